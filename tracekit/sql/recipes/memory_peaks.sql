-- The highest memory of every allocator, and the step, stage and op in which it was reached.
SELECT run, rank, source, device_type, device, peak_bytes, reserved_peak_bytes, peak_step, peak_stage, peak_op
FROM memory_peaks
ORDER BY peak_bytes DESC NULLS LAST, run, rank, source
