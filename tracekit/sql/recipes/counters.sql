-- Counters that were sampled (memory, GPU metrics): how often, least, mean and greatest.
SELECT process, name, count(*) AS count, min(value) AS min, avg(value) AS mean, max(value) AS max
FROM counters
GROUP BY process, name
ORDER BY process, name
