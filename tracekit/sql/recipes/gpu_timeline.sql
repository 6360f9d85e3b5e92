-- What each device did with the recorded time: compute, communication, copies, nothing (gpu_timeline of TraceLens).
SELECT run, rank, source, device, window_ns, compute_ns, exposed_comm_ns, exposed_memcpy_ns, exposed_memset_ns,
  window_ns - idle_ns AS busy_ns, idle_ns, compute_ns / window_ns AS compute_ratio,
  exposed_comm_ns / window_ns AS exposed_comm_ratio, exposed_memcpy_ns / window_ns AS exposed_memcpy_ratio,
  idle_ns / window_ns AS idle_ratio
FROM gpu_time
WHERE "window" = 'capture'
ORDER BY run, rank, source, device
