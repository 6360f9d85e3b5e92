-- How device work was launched: by which calls, from which stages.
SELECT stage, call, link, sum(count) AS count, sum(dur_ns) AS total_ns
FROM launches
GROUP BY stage, call, link
ORDER BY total_ns DESC, stage, call
