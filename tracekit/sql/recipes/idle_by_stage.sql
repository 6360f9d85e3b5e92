-- Idle time of the devices in each stage: how long, and what part of the stage.
SELECT run, rank, device, stage, count(*) AS count, sum(window_ns) AS window_ns, sum(idle_ns) AS idle_ns,
  sum(idle_ns) / nullif(sum(window_ns), 0) AS idle_ratio
FROM gpu_time_by_stage
GROUP BY run, rank, device, stage
ORDER BY idle_ns DESC, stage, rank
