-- Matrix products by size: how often, how long on the device, and at what rate (GEMM of TraceLens).
SELECT name, kind, type, batch, m, n, k, sum(count) AS count, sum(flop_count) AS flop_count,
  sum(device_busy_ns) AS device_busy_ns,
  sum(rated_flop_count) / nullif(sum(device_busy_ns), 0) / 1000 AS tflop_per_s
FROM matrix_products
GROUP BY ALL
ORDER BY device_busy_ns DESC NULLS LAST, name, m, n, k, batch
