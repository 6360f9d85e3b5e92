"""The end of a report: notes on the sources, and the metrics of every process and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from tracekit.job.report.tables import make_sheet
from tracekit.job.steps.step_values import FRACTIONAL_VALUES, list_values_of_job
from tracekit.model import failed_questions
from tracekit.model.report import Heading, Remark, Sheet
from tracekit.model.tables.frame import Frame, concat
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
    rows = list_value_rows(measured)
    if len(rows) > MAX_REPORT_VALUES:
        rows = rows.sort("whole", descending=["whole"])
    cells = zip(rows["whole"].tolist(), rows.values("name"), rows.values("value"), strict=True)
    value = [int(v) if is_of_job and name not in FRACTIONAL_VALUES else v for is_of_job, name, v in cells]
    rows = rows.with_columns(value=np.array(value, object))
    headings = [Heading(name, name, "") for name in VALUE_COLUMNS]
    return make_sheet("values", "Values by process and step", headings, rows, max_rows=MAX_REPORT_VALUES)


def list_content_digests(measured: Measurements) -> tuple[tuple[str, str], ...]:
    """List (run, content digest) of the files in a fixed order, without files of unknown digest."""
    pairs = {(source.run, source.content) for source in measured.sources if source.content}
    return tuple(sorted(pairs))


def list_value_rows(measured: Measurements) -> Frame:
    """List the rows of the metrics table and the metrics of the job (`whole`), sorted by the key columns, missing ones first.

    Leaves out metrics that depend on an error of tracekit, for all processes.
    """
    of_job = failed_questions.judge_if_sound(measured, lambda part: part.derived(list_values_of_job), Frame({}, 0))
    of_processes = _drop_snapshot_duplicates(failed_questions.keep_sound_metrics(measured)).select(*VALUE_COLUMNS)
    rows = concat([of_job.with_columns(whole=True), of_processes.with_columns(whole=False)])
    keys = VALUE_COLUMNS[:7]
    is_known = {f"has_{name}": ~rows.is_missing(name) for name in keys}
    order = rows.with_columns(**is_known).order(*chain.from_iterable(zip(is_known, keys, strict=True)))
    return rows.take(order)


def _drop_snapshot_duplicates(rows: Frame) -> Frame:
    """Drop metrics of memory snapshots that another tool also has for the same process.

    Both are levels of one allocator; the maximum over two tools would describe neither.
    """
    keys = ("run", "role", "rank", "name")
    of_snapshot = rows.equals("tool", "torch_memory")
    return rows.filter(~(of_snapshot & rows.is_among(rows.filter(~of_snapshot), keys, optional=keys)))
