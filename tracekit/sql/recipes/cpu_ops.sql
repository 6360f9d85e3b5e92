-- Ops by the time that the host itself spent in them.
SELECT name, sum(count) AS count, sum(total_ns) AS total_ns, sum(self_ns) AS self_ns,
  sum(self_ns) / sum(sum(self_ns)) OVER () AS self_ratio
FROM operators
WHERE kind = 'op'
GROUP BY name
ORDER BY self_ns DESC, name
