-- Idle time of the devices by its cause, over all recorded time.
SELECT run, rank, device, cause, sum(gap_count) AS gap_count, sum(idle_ns) AS idle_ns,
  sum(idle_ns) / sum(sum(idle_ns)) OVER (PARTITION BY run, rank, device) AS idle_ratio
FROM idle
WHERE "window" = 'capture'
GROUP BY run, rank, device, cause
ORDER BY run, rank, device, idle_ns DESC, cause
