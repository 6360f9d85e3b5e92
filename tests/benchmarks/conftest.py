"""What pytest must not import here: scripts that run in the environments of the peers."""

collect_ignore_glob = [
    "peer*.py",
    "run.py",
    "bench_runs.py",
    "ratio_table.py",
    "measurement.py",
    "two_questions.py",
    "nsys_run.py",
    "nsys_questions.py",
    "scale_*.py",
    "analyze_run.py",
    "replay_cost.py",
    "page_cost.py",
]
