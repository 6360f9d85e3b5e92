-- Ranges that the program named, by name, as `nsys stats` sums them (nvtx_sum): open ones to the end of the recording.
WITH ranges AS (
  SELECT cat, name, dur_ns FROM host_ops WHERE kind = 'range'
  UNION ALL
  SELECT cat, name, dur_ns FROM open_ranges
)
SELECT sum(dur_ns) / sum(sum(dur_ns)) OVER () AS time_ratio, sum(dur_ns) AS total_ns, count(*) AS count,
  avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
  coalesce(stddev_samp(dur_ns), 0) AS std_ns,
  CASE WHEN cat IN ('nvtx', 'user_annotation') THEN name ELSE cat || ':' || name END AS range_name
FROM ranges
GROUP BY range_name
ORDER BY total_ns DESC, count, range_name
