-- What was recorded: each process of each file, its rank and host, how long, and how much.
SELECT run, tool, role, rank, host, pid, source, dur_ns, row_count, host_op_count, device_op_count, device_name
FROM captures
ORDER BY run, role, rank, source, pid
