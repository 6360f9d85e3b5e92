-- Kernels by name, as `nsys stats` sums them (cuda_gpu_kern_sum): collectives are kernels too.
SELECT sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio, sum(dur_ns) AS total_ns, count(*) AS count,
  avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
  coalesce(stddev_samp(dur_ns), 0) AS std_ns, name
FROM device_ops
WHERE kind IN ('kernel', 'collective')
GROUP BY name
ORDER BY total_ns DESC, count, name
