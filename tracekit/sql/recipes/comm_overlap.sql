-- How much of the communication runs beside compute, by rank and stage.
SELECT run, rank, device, stage, sum(comm_ns) AS comm_ns, sum(overlap_ns) AS overlap_ns,
  sum(overlap_ns) / nullif(sum(comm_ns), 0) AS overlap_ratio
FROM gpu_time_by_stage
GROUP BY run, rank, device, stage
HAVING sum(comm_ns) > 0
ORDER BY comm_ns DESC, stage, rank
