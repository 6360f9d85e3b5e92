-- Kernels by how long they run: how many are short, and what share of the time these are (short kernels of TraceLens).
SELECT CASE WHEN dur_ns < 2000 THEN 'below 2 us' WHEN dur_ns < 5000 THEN '2 to 5 us'
    WHEN dur_ns < 10000 THEN '5 to 10 us' WHEN dur_ns < 100000 THEN '10 to 100 us'
    ELSE '100 us or more' END AS length,
  count(*) AS count, count(*) / sum(count(*)) OVER () AS count_ratio, sum(dur_ns) AS total_ns,
  sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio
FROM device_ops
WHERE kind = 'kernel'
GROUP BY length
ORDER BY min(dur_ns)
