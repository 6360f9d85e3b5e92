-- All device work by category and name, as `nsys stats` sums it (cuda_gpu_sum).
SELECT sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio, sum(dur_ns) AS total_ns, count(*) AS count,
  avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
  coalesce(stddev_samp(dur_ns), 0) AS std_ns,
  CASE WHEN kind IN ('memcpy', 'memset') THEN 'memory' ELSE 'kernel' END AS category,
  CASE WHEN kind IN ('memcpy', 'memset') THEN split_part(name, ' (', 1) ELSE name END AS operation
FROM device_ops
GROUP BY category, operation
ORDER BY total_ns DESC, count, operation
