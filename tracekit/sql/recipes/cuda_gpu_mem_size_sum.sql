-- Copies and fills by kind and size, as `nsys stats` sums them (cuda_gpu_mem_size_sum).
SELECT sum(size_bytes) AS total_bytes, count(size_bytes) AS count, avg(size_bytes) AS avg_bytes,
  median(size_bytes) AS med_bytes, min(size_bytes) AS min_bytes, max(size_bytes) AS max_bytes,
  coalesce(stddev_samp(size_bytes), 0) AS std_bytes, split_part(name, ' (', 1) AS operation
FROM device_ops
WHERE kind IN ('memcpy', 'memset') AND size_bytes IS NOT NULL
GROUP BY operation
ORDER BY total_bytes DESC, count, operation
