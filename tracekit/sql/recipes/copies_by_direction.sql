-- Copies by direction and memory: how many bytes, how fast, how many are small.
SELECT direction, memory, sum(count) AS count, sum(dur_ns) AS total_ns, sum(size_bytes) AS size_bytes,
  sum(rated_bytes) / nullif(sum(rated_ns), 0) AS gb_per_s, sum(small_count) AS small_count
FROM copies
GROUP BY direction, memory
ORDER BY total_ns DESC, direction, memory
