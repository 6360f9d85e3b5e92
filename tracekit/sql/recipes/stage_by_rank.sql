-- Wall time of every stage, by rank: the slowest, the fastest, and how far they are apart.
WITH of_rank AS (
  SELECT run, role, step, stage, rank, sum(dur_ns) AS dur_ns, sum(work_ns) AS work_ns
  FROM stages
  WHERE parent IS NULL
  GROUP BY run, role, step, stage, rank
)
SELECT run, role, step, stage, count(*) AS rank_count, min(dur_ns) AS min_ns, avg(dur_ns) AS avg_ns,
  max(dur_ns) AS max_ns, arg_max(rank, dur_ns) AS slowest_rank, sum(work_ns) AS work_ns
FROM of_rank
GROUP BY run, role, step, stage
ORDER BY run, role, step, max_ns DESC, stage
