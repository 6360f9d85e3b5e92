-- What runs on each stream: its work by kind, from its first op to its last.
SELECT process, device, stream, kind, count(*) AS count, sum(dur_ns) AS total_ns,
  max(ts_ns + dur_ns) - min(ts_ns) AS span_ns
FROM device_ops
GROUP BY process, device, stream, kind
ORDER BY process, device, total_ns DESC, stream, kind
