-- Communication that no compute hides, by step and rank: the part of the step that it takes.
SELECT run, rank, source, device, step, occurrence, window_ns, comm_ns, overlap_ns, exposed_comm_ns,
  exposed_comm_ns / window_ns AS exposed_comm_ratio
FROM gpu_time_by_step
ORDER BY run, step, occurrence, rank, source, device
