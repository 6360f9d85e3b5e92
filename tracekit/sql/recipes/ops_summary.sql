-- Ops by the device time that they launched themselves (ops_summary of TraceLens).
SELECT name, sum(count) AS count, sum(device_ns) AS device_ns,
  sum(device_ns) / sum(sum(device_ns)) OVER () AS device_ratio, sum(launch_count) AS launch_count,
  sum(self_ns) AS host_self_ns
FROM operators
WHERE kind = 'op'
GROUP BY name
HAVING sum(device_ns) > 0
ORDER BY device_ns DESC, name
