-- What holds the memory at the peak of a snapshot, by the place in the program that asked for it.
SELECT run, rank, source, device, site, sum(size_bytes) AS size_bytes, sum(block_count) AS block_count
FROM live_sites
WHERE moment = 'peak'
GROUP BY run, rank, source, device, site
ORDER BY size_bytes DESC, site
