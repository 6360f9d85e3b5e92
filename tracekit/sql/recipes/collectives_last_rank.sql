-- Who is last, by the clocks as recorded: in how many collectives each rank began after all others of its group, and how late.
WITH matched AS (
  SELECT run, "group", op, ordinal, rank, ts_ns, dur_ns,
    count(*) OVER same AS rank_count, min(ts_ns) OVER same AS first_ns, max(ts_ns) OVER same AS last_ns
  FROM collectives
  WHERE synchronising AND rank IS NOT NULL
  WINDOW same AS (PARTITION BY run, "group", op, ordinal)
)
SELECT run, rank, count(*) FILTER (ts_ns = last_ns) AS last_count, count(*) AS count,
  sum(last_ns - first_ns) FILTER (ts_ns = last_ns) AS late_ns, sum(last_ns - ts_ns) AS waited_ns
FROM matched
WHERE rank_count > 1
GROUP BY run, rank
ORDER BY run, late_ns DESC NULLS LAST, rank
