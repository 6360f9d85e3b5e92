-- How long a kernel takes from its call to its end: call, wait in the queue, run (cuda_kern_exec_sum of `nsys stats`).
SELECT kernel.process, kernel.device, launch.name AS api, kernel.name AS kernel, count(*) AS count,
  count(*) FILTER (kernel.ts_ns > launch.ts_ns + launch.dur_ns) AS queued_count,
  avg(greatest(launch.ts_ns + launch.dur_ns, kernel.ts_ns + kernel.dur_ns) - launch.ts_ns) AS total_avg_ns,
  avg(launch.dur_ns) AS api_avg_ns,
  avg(kernel.ts_ns - launch.ts_ns - launch.dur_ns)
    FILTER (kernel.ts_ns > launch.ts_ns + launch.dur_ns) AS queue_avg_ns,
  avg(kernel.dur_ns) AS kernel_avg_ns
FROM device_ops AS kernel
JOIN host_ops AS launch
  ON launch.process = kernel.process AND launch.correlation = kernel.correlation AND launch.kind = 'runtime'
WHERE kernel.kind IN ('kernel', 'collective')
GROUP BY kernel.process, kernel.device, launch.name, kernel.name
ORDER BY sum(greatest(launch.ts_ns + launch.dur_ns, kernel.ts_ns + kernel.dur_ns) - launch.ts_ns) DESC, kernel
