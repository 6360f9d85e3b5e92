-- Modules of the model by class: calls, time on the host, and time of the device work launched in them.
SELECT module, origin, sum(instance_count) AS instance_count, sum(count) AS count, sum(total_ns) AS total_ns,
  sum(device_total_ns) AS device_total_ns, sum(device_ns) AS device_ns
FROM modules
GROUP BY module, origin
ORDER BY device_total_ns DESC NULLS LAST, total_ns DESC NULLS LAST, module
