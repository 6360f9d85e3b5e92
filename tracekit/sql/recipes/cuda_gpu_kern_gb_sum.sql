-- Kernels by name, grid and block, as `nsys stats` sums them (cuda_gpu_kern_gb_sum): collectives are kernels too.
WITH launches AS (
  SELECT process, id, max(value) FILTER (WHERE key = 'grid') AS grid, max(value) FILTER (WHERE key = 'block') AS block
  FROM args
  WHERE key IN ('grid', 'block')
  GROUP BY process, id)
SELECT sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio, sum(dur_ns) AS total_ns, count(*) AS count,
  avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
  coalesce(stddev_samp(dur_ns), 0) AS std_ns, grid, block, name
FROM device_ops LEFT JOIN launches USING (process, id)
WHERE kind IN ('kernel', 'collective')
GROUP BY name, grid, block
ORDER BY total_ns DESC, count, name, grid, block
