-- How busy each device is in 30 equal parts of its time, overlaps counted once (gpu_time_util of `nsys analyze`).
WITH ops AS (
  SELECT process, device, ts_ns, ts_ns + dur_ns AS end_ns,
    max(ts_ns + dur_ns) OVER (
      PARTITION BY process, device ORDER BY ts_ns, dur_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until_ns
  FROM device_ops
), busy AS (
  SELECT process, device, greatest(ts_ns, coalesce(busy_until_ns, ts_ns)) AS start_ns, end_ns
  FROM ops
  WHERE busy_until_ns IS NULL OR end_ns > busy_until_ns
), span AS (
  SELECT process, device, min(ts_ns) AS first_ns, max(end_ns) AS last_ns FROM ops GROUP BY process, device
), parts AS (
  SELECT process, device, part, first_ns + (last_ns - first_ns) * part // 30 AS from_ns,
    first_ns + (last_ns - first_ns) * (part + 1) // 30 AS to_ns
  FROM span, range(30) AS numbers(part)
)
SELECT parts.process, parts.device, part, from_ns AS from_ts_ns, to_ns - from_ns AS part_ns,
  coalesce(sum(least(end_ns, to_ns) - greatest(start_ns, from_ns)), 0)::BIGINT AS busy_ns,
  coalesce(sum(least(end_ns, to_ns) - greatest(start_ns, from_ns)), 0) / (to_ns - from_ns) AS busy_ratio
FROM parts
LEFT JOIN busy
  ON busy.process = parts.process AND busy.device = parts.device AND start_ns < to_ns AND end_ns > from_ns
GROUP BY parts.process, parts.device, part, from_ns, to_ns
ORDER BY parts.process, parts.device, part
