-- Memory of every stage: the peak, and what is still held at its end.
SELECT run, rank, device_type, device, stage, count(*) AS count, max(peak_bytes) AS peak_bytes,
  max(end_bytes) AS end_bytes, max(reserved_bytes) AS reserved_bytes
FROM memory_stages
GROUP BY run, rank, device_type, device, stage
ORDER BY peak_bytes DESC NULLS LAST, stage, rank
