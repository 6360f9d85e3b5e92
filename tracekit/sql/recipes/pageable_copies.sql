-- Copies from or to pageable memory, which the host has to wait for (cuda_memcpy_async of `nsys analyze`).
SELECT process, device, name, count(*) AS count, sum(dur_ns) AS total_ns, sum(size_bytes) AS total_bytes
FROM device_ops
WHERE kind = 'memcpy' AND name ILIKE '%pageable%'
GROUP BY process, device, name
ORDER BY total_ns DESC, name
