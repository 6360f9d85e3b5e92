-- Wall time of every step, by rank: the slowest, the fastest, and how far they are apart.
SELECT run, role, step, count(*) AS rank_count, min(dur_ns) AS min_ns, avg(dur_ns) AS avg_ns, max(dur_ns) AS max_ns,
  arg_max(rank, dur_ns) AS slowest_rank, max(dur_ns) - min(dur_ns) AS spread_ns
FROM steps
GROUP BY run, role, step
ORDER BY run, role, step
