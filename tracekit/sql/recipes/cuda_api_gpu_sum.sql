-- Calls of the API and device work in one list, as `nsys stats` sums them (cuda_api_gpu_sum).
WITH work AS (
  SELECT 'api' AS category, name AS operation, dur_ns FROM host_ops WHERE kind = 'runtime'
  UNION ALL
  SELECT CASE WHEN kind IN ('memcpy', 'memset') THEN 'memory' ELSE 'kernel' END,
    CASE WHEN kind IN ('memcpy', 'memset') THEN split_part(name, ' (', 1) ELSE name END, dur_ns
  FROM device_ops
)
SELECT sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio, sum(dur_ns) AS total_ns, count(*) AS count,
  avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
  coalesce(stddev_samp(dur_ns), 0) AS std_ns,
  category, operation
FROM work
GROUP BY category, operation
ORDER BY total_ns DESC, count, operation
