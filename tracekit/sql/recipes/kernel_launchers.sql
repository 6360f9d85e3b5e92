-- Which op launched which kernels, and how long these took (kernel_launchers of TraceLens).
WITH launched AS (
  SELECT process, external_id, name AS kernel, dur_ns
  FROM device_ops
  WHERE external_id IS NOT NULL AND kind IN ('kernel', 'collective')
), launchers AS (
  SELECT process, external_id, arg_min(name, dur_ns) AS op
  FROM host_ops
  WHERE kind = 'op' AND external_id IS NOT NULL
  GROUP BY process, external_id
)
SELECT op, kernel, count(*) AS count, sum(dur_ns) AS total_ns, avg(dur_ns) AS avg_ns
FROM launched
LEFT JOIN launchers USING (process, external_id)
GROUP BY op, kernel
ORDER BY total_ns DESC, op, kernel
