-- Every kernel, copy and fill in order of time (cuda_gpu_trace of `nsys stats`).
SELECT process, ts_ns, dur_ns, correlation, size_bytes, device, stream, name
FROM device_ops
ORDER BY process, ts_ns, correlation
