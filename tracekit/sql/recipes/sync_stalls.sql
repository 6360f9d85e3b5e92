-- Calls in steps that wait for the device, by the op around them: how often, how long, and how long the device is idle after them.
SELECT op, call, sum(count) AS count, sum(call_ns) AS call_ns, sum(stall_count) AS stall_count,
  sum(idle_ns) AS idle_ns
FROM sync_stalls
WHERE "window" = 'step'
GROUP BY op, call
ORDER BY idle_ns DESC, call_ns DESC, op, call
