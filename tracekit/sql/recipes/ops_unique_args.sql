-- Ops by name, shapes and types of their inputs (ops_unique_args of TraceLens).
SELECT name, dims, types, sum(count) AS count, sum(device_ns) AS device_ns,
  sum(device_total_ns) AS device_total_ns, sum(self_ns) AS host_self_ns, sum(flop_count) AS flop_count
FROM operator_shapes
GROUP BY name, dims, types
ORDER BY device_ns DESC NULLS LAST, host_self_ns DESC, name, dims
