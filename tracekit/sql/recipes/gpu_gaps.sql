-- The 50 longest times in which a device ran nothing, between its first and its last op (gpu_gaps of `nsys analyze`).
WITH ends AS (
  SELECT process, device, ts_ns, name,
    max(ts_ns + dur_ns) OVER (
      PARTITION BY process, device ORDER BY ts_ns, dur_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until_ns
  FROM device_ops
)
SELECT process, device, ts_ns - busy_until_ns AS gap_ns, busy_until_ns AS start_ts_ns, name AS next_op
FROM ends
WHERE ts_ns > busy_until_ns
ORDER BY gap_ns DESC, start_ts_ns
LIMIT 50
