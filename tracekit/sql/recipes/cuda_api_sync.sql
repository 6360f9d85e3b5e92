-- The 50 longest calls that wait for a device or a stream (cuda_api_sync of `nsys analyze`).
SELECT process, dur_ns, ts_ns, name, pid, tid
FROM host_ops
WHERE kind = 'runtime' AND (name LIKE '%DeviceSynchronize%' OR name LIKE '%StreamSynchronize%'
  OR name LIKE '%EventSynchronize%' OR name LIKE '%CtxSynchronize%')
ORDER BY dur_ns DESC, ts_ns
LIMIT 50
