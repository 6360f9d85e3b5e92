"""The end of a report: notes on the sources, and the metrics of every process and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.report.tables import make_sheet
from tracekit.job.steps.step_values import list_job_values
from tracekit.model import failed_questions
from tracekit.model.report import Heading, Remark, Sheet
from tracekit.model.tables.keys import Ints, group_column
from tracekit.model.trace import Measurements

VALUE_COLUMNS = ("run", "role", "rank", "step", "part", "stage", "name", "value", "unit", "better")
MAX_REPORT_VALUES = 100_000
"""Most rows of metrics in a report; `VALUE_COLUMNS` are their columns."""


MOST_ALIKE, NAMED = 8, 3
"""Most sources with the same note that are listed one by one; beyond that, the first ones named."""


def list_remarks(measured: Measurements) -> tuple[Remark, ...]:
    """List the notes in a fixed order, worst first; a note on many sources becomes one remark.

    Unreadable sources are always listed one by one.
    """
    order = {"error": 0, "data_loss": 1, "warning": 2, "info": 3}
    all_notes = (*measured.notes, *failed_questions.make_fault_notes(measured))
    notes = sorted(all_notes, key=lambda n: (order[n.severity], n.code, n.source, n.message))
    same_text: dict[tuple[str, str, str], list[Remark]] = {}
    for note in notes:
        remark = Remark(note.severity, note.code, note.message, note.source, note.count)
        same_text.setdefault((note.severity, note.code, note.message), []).append(remark)
    remaining: dict[tuple[str, str, str], Iterator[Remark]] = {}
    for key, same in same_text.items():
        sources = {remark.source for remark in same}
        remaining[key] = iter([_merge_remarks(same)] if len(sources) > MOST_ALIKE else same)
    nexts = (next(remaining[note.severity, note.code, note.message], None) for note in notes)
    failures = (Remark("error", "unreadable", f.problem, f.source) for f in measured.failures)
    return (*failures, *(remark for remark in nexts if remark))


def _merge_remarks(same: list[Remark]) -> Remark:
    """Merge remarks with the same text: sums their counts, and names the first sources."""
    names = list(dict.fromkeys(remark.source for remark in same))
    sources = f"{', '.join(names[:NAMED])} and {len(names) - NAMED:,} more"
    return replace(same[0], source=sources, count=sum(remark.count for remark in same))


def make_value_table(measured: Measurements) -> Sheet | None:
    """Make the table of metrics of the job and of every process, step and stage, for a later compare.

    If there are too many rows, those of the job come first and are all kept.
    """
    if not measured.has("metrics") and not measured.faults:
        return None
    frame = list_value_rows(measured)
    if len(frame) > MAX_REPORT_VALUES:
        frame = frame.sort_values("whole", ascending=False, kind="stable")
    headings = [Heading(name, name, "") for name in VALUE_COLUMNS]
    return make_sheet("values", "Values by process and step", headings, frame, max_rows=MAX_REPORT_VALUES)


def list_content_digests(measured: Measurements) -> tuple[tuple[str, str], ...]:
    """List (run, content digest) of the files in a fixed order, without files of unknown digest."""
    pairs = {(source.run, source.content) for source in measured.sources if source.content}
    return tuple(sorted(pairs))


def list_value_rows(measured: Measurements) -> pd.DataFrame:
    """List all rows of the metrics table, with the column `integers` for metrics of the job; sorted by the key columns.

    Leaves out metrics that depend on an error of tracekit, for all processes.
    """
    nothing = pd.DataFrame(columns=[*VALUE_COLUMNS])
    of_job = failed_questions.judge_if_sound(measured, lambda part: part.derived(list_job_values), nothing)
    of_whole_job = of_job.reindex(columns=[*VALUE_COLUMNS]).assign(whole=True)
    rows = (
        _drop_snapshot_duplicates(failed_questions.select_sound_metrics(measured))[[*VALUE_COLUMNS]]
        .astype(object)
        .assign(whole=False)
    )
    frame = pd.concat([of_whole_job, rows], ignore_index=True)
    order = np.lexsort([_rank_value_keys(frame[name]) for name in reversed(VALUE_COLUMNS[:7])])
    return frame.iloc[order]


def _rank_value_keys(keys: pd.Series[Any]) -> Ints:
    """Rank each key among the distinct ones, missing ones first."""
    number, first = group_column(keys)
    ranks = pd.Series(keys.array[first]).rank(method="dense", na_option="top")
    return ranks.to_numpy().astype(np.int64)[number]


def _drop_snapshot_duplicates(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop metrics of memory snapshots that another tool also has for the same process.

    Both are levels of one allocator; the maximum over two tools would describe neither.
    """
    keys = ["run", "role", "rank", "name"]
    of_snapshot = (rows["tool"] == "torch_memory").to_numpy()
    if of_snapshot.all() or not of_snapshot.any():
        return rows
    number = rows.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    return rows[~(of_snapshot & np.isin(number, number[~of_snapshot]))]
