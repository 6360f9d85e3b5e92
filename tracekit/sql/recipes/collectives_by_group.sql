-- Collectives by process group, kind and size: how often, how long, how much of it exposed (coll_analysis of TraceLens).
SELECT run, "group", group_size, op, dtype, size_bytes, count(*) AS count, sum(dur_ns) AS total_ns,
  min(dur_ns) AS min_ns, avg(dur_ns) AS avg_ns, max(dur_ns) AS max_ns, sum(exposed_ns) AS exposed_ns,
  size_bytes / nullif(min(dur_ns), 0) AS best_gb_per_s
FROM collectives
GROUP BY run, "group", group_size, op, dtype, size_bytes
ORDER BY total_ns DESC, op, size_bytes, "group"
