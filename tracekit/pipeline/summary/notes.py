"""What stands at the end of a report: notes on the sources, and the values of every process and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.steps.step_values import job_values
from tracekit.job.tables import sheet
from tracekit.model import faults
from tracekit.model.keys import Ints, of_column
from tracekit.model.report import Heading, Remark, Sheet
from tracekit.model.trace import Measurements

VALUES = ("run", "role", "rank", "step", "part", "stage", "name", "value", "unit", "better")
MOST_VALUES = 100_000
"""Columns of the values, and how many of them a report holds."""


MOST_ALIKE, NAMED = 8, 3
"""So many sources of which the same is noted are listed one by one; of more only the first are named."""


def remarks(measured: Measurements) -> tuple[Remark, ...]:
    """Notes as shown, the worst first, in a fixed order; what is noted of many sources alike is one remark.

    What could not be read is named one by one, however much it is.
    """
    order = {"error": 0, "data_loss": 1, "warning": 2, "info": 3}
    all_notes = (*measured.notes, *faults.notes(measured))
    notes = sorted(all_notes, key=lambda n: (order[n.severity], n.code, n.source, n.message))
    same_text: dict[tuple[str, str, str], list[Remark]] = {}
    for note in notes:
        remark = Remark(note.severity, note.code, note.message, note.source, note.count)
        same_text.setdefault((note.severity, note.code, note.message), []).append(remark)
    remaining: dict[tuple[str, str, str], Iterator[Remark]] = {}
    for key, same in same_text.items():
        sources = set(map(attrgetter("source"), same))
        remaining[key] = iter([_together(same)] if len(sources) > MOST_ALIKE else same)
    nexts = (next(remaining[note.severity, note.code, note.message], None) for note in notes)
    failures = (Remark("error", "unreadable", f.problem, f.source) for f in measured.failures)
    return (*failures, *filter(None, nexts))


def _together(same: list[Remark]) -> Remark:
    """One remark for many that say the same: all their times, and whose the first are."""
    names = list(dict.fromkeys(map(attrgetter("source"), same)))
    sources = f"{', '.join(names[:NAMED])} and {len(names) - NAMED:,} more"
    return replace(same[0], source=sources, count=sum(map(attrgetter("count"), same)))


def values(measured: Measurements) -> Sheet | None:
    """The metrics of the job and of every process, step and stage, for a later compare.

    Where they are too many, those of the job stand first and none of them is lost.
    """
    if not measured.has("metrics") and not measured.faults:
        return None
    frame = value_rows(measured)
    if len(frame) > MOST_VALUES:
        frame = frame.sort_values("whole", ascending=False, kind="stable")
    headings = [Heading(name, name, "") for name in VALUES]
    return sheet("values", "Values by process and step", headings, frame, max_rows=MOST_VALUES)


def contents(measured: Measurements) -> tuple[tuple[str, str], ...]:
    """Each run and the digest of what each of its files holds, in a fixed order; files without one are left out."""
    pairs = {(source.run, source.content) for source in measured.sources if source.content}
    return tuple(sorted(pairs))


def value_rows(measured: Measurements) -> pd.DataFrame:
    """All rows of `values`, and `whole`: whether a row is of the job; in order of `VALUES`.

    Metrics that rest on an error of tracekit are left out, of all processes.
    """
    nothing = pd.DataFrame(columns=[*VALUES])
    of_job = faults.sound(measured, lambda part: part.derived(job_values), nothing)
    of_whole_job = of_job.reindex(columns=[*VALUES]).assign(whole=True)
    rows = (
        _one_tool_each(faults.sound_metrics(measured))[[*VALUES]].astype(object).assign(whole=False)
    )
    frame = pd.concat([of_whole_job, rows], ignore_index=True)
    order = np.lexsort([_order(frame[name]) for name in reversed(VALUES[:7])])
    return frame.iloc[order]


def _order(keys: pd.Series[Any]) -> Ints:
    """The place of each key among the distinct ones, missing ones first."""
    number, first = of_column(keys)
    ranks = pd.Series(keys.array[first]).rank(method="dense", na_option="top")
    return ranks.to_numpy().astype(np.int64)[number]


def _one_tool_each(rows: pd.DataFrame) -> pd.DataFrame:
    """The metrics without those of memory snapshots that another tool told of the same process as well.

    Both are levels of one allocator: the highest of two tools' would be of neither.
    """
    keys = ["run", "role", "rank", "name"]
    of_snapshot = (rows["tool"] == "torch_memory").to_numpy()
    if of_snapshot.all() or not of_snapshot.any():
        return rows
    number = rows.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    return rows[~(of_snapshot & np.isin(number, number[~of_snapshot]))]
