-- Kernels in every range that was open on their thread when they were launched (nvtx_kern_sum of `nsys stats`).
SELECT outer_range.process, outer_range.name AS range_name, count(DISTINCT outer_range.id) AS range_count,
  count(*) AS kernel_count, sum(kernel.dur_ns) AS total_ns, avg(kernel.dur_ns) AS avg_ns,
  min(kernel.dur_ns) AS min_ns, max(kernel.dur_ns) AS max_ns, kernel.name AS kernel
FROM device_ops AS kernel
JOIN host_ops AS launch
  ON launch.process = kernel.process AND launch.correlation = kernel.correlation AND launch.kind = 'runtime'
JOIN host_ops AS outer_range
  ON outer_range.process = launch.process AND outer_range.thread = launch.thread AND outer_range.kind = 'range'
  AND outer_range.ts_ns <= launch.ts_ns
  AND outer_range.ts_ns + outer_range.dur_ns >= launch.ts_ns + launch.dur_ns
WHERE kernel.kind IN ('kernel', 'collective')
GROUP BY outer_range.process, outer_range.name, kernel.name
ORDER BY total_ns DESC, range_name, kernel
