"""What stands at the end of a report: notes on the sources, and the values of every process and step."""

from __future__ import annotations

import pandas as pd

from tracekit.job_values import job_values
from tracekit.pooling import plain
from tracekit.report import Heading, Remark, Sheet
from tracekit.sheets import sheet
from tracekit.trace import Measurements


def remarks(measured: Measurements) -> tuple[Remark, ...]:
    """Notes as shown, the worst first, in a fixed order."""
    order = {"error": 0, "data_loss": 1, "warning": 2, "info": 3}
    notes = sorted(measured.notes, key=lambda n: (order[n.severity], n.code, n.source, n.message))
    failures = [Remark("error", "unreadable", f.problem, f.source) for f in measured.failures]
    return (*failures, *(Remark(n.severity, n.code, n.message, n.source, n.count) for n in notes))


def values(measured: Measurements) -> Sheet | None:
    """The metrics of the job and of every process, step and stage, for a later compare."""
    if not measured.has("metrics"):
        return None
    names = ("run", "role", "rank", "step", "part", "stage", "name", "value", "unit", "better")
    frame = measured["metrics"]
    whole = job_values(measured).reindex(columns=[*names])
    frame = pd.concat([whole, plain(frame[[*names]]).astype(object)], ignore_index=True)
    frame = frame.sort_values(list(names[:7]), kind="stable", na_position="first")
    return sheet(
        "values",
        "Values by process and step",
        [Heading(n, n, "") for n in names],
        frame,
        max_rows=100_000,
    )
