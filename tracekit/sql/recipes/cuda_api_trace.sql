-- Every call of the API in order of time (cuda_api_trace of `nsys stats`).
SELECT process, ts_ns, dur_ns, name, correlation, pid, tid
FROM host_ops
WHERE kind = 'runtime'
ORDER BY process, ts_ns, correlation
