-- How long device work waits between its call and its start, by stage: short ones mean that the host is the limit.
SELECT run, rank, device, stage, count, p50_ns, p95_ns, max_ns, negative_count
FROM launch_delays
ORDER BY run, rank, device, count DESC, stage
