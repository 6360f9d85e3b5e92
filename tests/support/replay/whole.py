"""Replaying graphs with every verb."""

from __future__ import annotations

import numpy as np

from tracekit.replay.changes import ChangeError, make_change
from tracekit.replay.job_graph import join_processes
from tracekit.replay.ledger import close_ledger, find_critical_path, name_owners
from tracekit.replay.paths import time_instants
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import list_job_steps

CHANGES = [
    make_change(fields)
    for fields in (
        {"do": "scale", "on": "host", "factor": 0.5},
        {"do": "scale", "on": "device", "factor": 2},
        {"do": "remove", "on": "collective", "op": "."},
        {"do": "remove", "op": ".", "host": "."},
        {"do": "remove", "on": "range", "range": "."},
        {"do": "unwait", "by": "."},
        {"do": "unblock", "op": "HtoD"},
        {"do": "hide", "op": ".", "until": "."},
        {"do": "equalise"},
        {"do": "equalise", "on": "host"},
        {"do": "prefetch", "range": ".", "workers": 2},
        {"do": "graph", "range": "."},
        {"do": "set", "silent": True, "to_us": 0, "nth": 0, "range": "."},
        {"do": "set", "before": ".", "to_us": 0},
    )
]


def replay_graphs(graphs) -> bool:
    """Replay graphs as a report does: times come back, books close, changes are made or refused. Whether there is any instant."""
    job = join_processes(graphs)
    steps = list_job_steps(job)
    settled = job.settled
    again = time_instants(settled.ordering, settled.edges.source, settled.edges.weight, settled.time)
    assert (settled.edges.target[1:] >= settled.edges.target[:-1]).all(), "edges are sorted by target"
    assert np.array_equal(again.time, settled.time)
    critical = find_critical_path(job, steps)
    name_owners(job, critical.spent)
    close_ledger(job, steps)
    for change in CHANGES:
        try:
            predict_changes(job, steps, [change])
        except ChangeError:
            continue
    return bool(len(job.time))
