-- Kernel time of every step and rank, by kind of work: to the step in which it was launched.
SELECT run, rank, step, kind, count(*) AS count, sum(dur_ns) AS total_ns
FROM device_ops
GROUP BY run, rank, step, kind
ORDER BY run, rank, step, kind
