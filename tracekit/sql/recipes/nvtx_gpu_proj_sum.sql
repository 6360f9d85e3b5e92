-- Ranges as their device work ran: from its first start to its last end, by name (nvtx_gpu_proj_sum of `nsys recipe`).
WITH projected AS (
  SELECT host_range.process, host_range.name, min(op.ts_ns) AS start_ns,
    max(op.ts_ns + op.dur_ns) AS end_ns, count(DISTINCT op.correlation) AS op_count
  FROM device_ops AS op
  JOIN host_ops AS launch
    ON launch.process = op.process AND launch.correlation = op.correlation AND launch.kind = 'runtime'
  JOIN host_ops AS host_range
    ON host_range.process = launch.process AND host_range.thread = launch.thread AND host_range.kind = 'range'
    AND host_range.ts_ns <= launch.ts_ns
    AND host_range.ts_ns + host_range.dur_ns >= launch.ts_ns + launch.dur_ns
  GROUP BY host_range.process, host_range.id, host_range.name
)
SELECT process, name AS range_name, count(*) AS count, sum(op_count) AS op_count,
  sum(end_ns - start_ns) AS total_ns, avg(end_ns - start_ns) AS avg_ns,
  min(end_ns - start_ns) AS min_ns, max(end_ns - start_ns) AS max_ns
FROM projected
GROUP BY process, name
ORDER BY total_ns DESC, range_name
