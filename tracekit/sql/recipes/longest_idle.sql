-- The longest gaps of the devices: in which step and stage, why, and between which ops.
SELECT run, rank, device, step, stage, dur_ns, cause, cause_ns, before, after
FROM idle_gaps
ORDER BY dur_ns DESC, ts_ns
LIMIT 50
