"""Findings of the report for the page: their savings, and the intervals of the timeline that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.report import Finding, Place, Report
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.names import PageNames
from tracekit.render.explorer.processes import ExplorerRows, PageRow
from tracekit.render.explorer.tables import Numbering

Ints = npt.NDArray[np.int64]

Pin = dict[str, Any]
Span = tuple[int, int, int]
"""Length, row and start of an interval."""


def describe_findings(report: Report, search: PinSearch) -> list[dict[str, Any]]:
    """Describe all findings in order, with pins where an interval is known."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "number": number,
            "claim": make_printable(finding.claim, phrases.SENTENCE),
            "advice": make_printable(finding.advice, phrases.SENTENCE),
            "caveats": [make_printable(caveat, phrases.SENTENCE) for caveat in finding.caveats],
            "saving": _describe_page_saving(finding, report),
            "cost": finding.cost_ns,
            "pins": find_pins(finding, search),
        }
        for number, finding in enumerate(report.findings, 1)
    ]


def _describe_page_saving(finding: Finding, report: Report) -> dict[str, Any] | None:
    """Describe what a fix saves, in ns; None without a prediction."""
    saving = finding.saving
    if saving is None:
        return None
    behind = phrases.find_blocking_number(finding, report)
    return {"alone": saving.alone_ns, "before": saving.before_ns, "step": saving.step_ns, "behind": behind}


def describe_page_plan(report: Report) -> dict[str, Any] | None:
    """Describe the step with one fix after the other, of the first run with a prediction."""
    for replay in report.replays:
        savings = [f.saving for f in report.findings if f.saving and f.saving.recorded_ns == replay.recorded_ns]
        if savings and not replay.refusal:
            ordered = sorted(savings, key=lambda saving: saving.number)
            return {"recorded": replay.recorded_ns, "steps": [saving.step_ns for saving in ordered]}
    return None


class PinSearch(NamedTuple):
    """The rows, names and counted steps among which intervals of findings are searched."""

    rows: ExplorerRows
    numbering: Sequence[Numbering]
    names: PageNames
    counted: frozenset[int] | None


def find_pins(finding: Finding, search: PinSearch) -> list[Pin]:
    """Find the intervals that show a finding: recorded ones, or the longest and the median of its ops, stage or step."""
    recorded = [pin for place in finding.places for pin in _pin_recorded_place(place, search.rows)]
    if recorded:
        return recorded[:2]
    for list_spans in (_list_kernel_spans, _list_stage_spans, _list_step_spans):
        for place in finding.places:
            if spans := list_spans(place, search):
                return _pin_worst_and_median(spans)
    return []


def _pin_recorded_place(place: Place, rows: ExplorerRows) -> list[Pin]:
    """Pin the interval of a place on the first row that matches it; none if no interval was recorded."""
    if place.start_ns is None:
        return []
    for number, row in _iterate_matching_rows(place, rows):
        end_ns = place.start_ns + 1 if place.end_ns is None else place.end_ns
        shift = row.process.shift_ns - row.process.data.base_ns
        return [{"row": number, "t0": place.start_ns + shift, "t1": end_ns + shift, "name": "worst"}]
    return []


def _pin_worst_and_median(spans: list[Span]) -> list[Pin]:
    """Pin the longest of several intervals, and the median one of more than two."""
    spans.sort(key=lambda span: (-span[0], span[1:]))
    chosen = [("worst", spans[0]), *([("median", spans[len(spans) // 2])] if len(spans) > 2 else [])]
    return [{"row": row, "t0": start, "t1": start + length, "name": name} for name, (length, row, start) in chosen]


def _list_kernel_spans(place: Place, search: PinSearch) -> list[Span]:
    """List the longest and the median kernel, per row, of those whose names contain the name of the place."""
    if not place.name:
        return []
    wanted = np.zeros(len(search.names.numbers), np.bool_)
    wanted[[number for text, number in search.names.numbers.items() if place.name in text]] = True
    spans: list[Span] = []
    for number, row in _iterate_matching_rows(place, search.rows) if wanted.any() else ():
        names = search.numbering[row.process.number].names
        rows = np.flatnonzero(wanted[names[row.read_part("kernels", "kernel.name")]])
        steps = _read_step_numbers(row)[row.read_part("kernels", "kernel.cell")[rows]]
        rows = rows[_mark_steps(steps, place, search)]
        length = row.read_part("kernels", "kernel.length")[rows]
        order = np.argsort(-length, kind="stable")
        start = row.read_times("kernels", "kernel.start")[rows]
        few = order[[0, len(order) // 2]] if len(order) else order
        spans += [(int(length[chosen]), number, int(start[chosen])) for chosen in np.unique(few).tolist()]
    return spans


def _list_stage_spans(place: Place, search: PinSearch) -> list[Span]:
    """List the occurrences of the stage of a place in the steps that count."""
    number = search.names.numbers.get(place.stage or "")
    spans: list[Span] = []
    for place_of_row, row in _iterate_matching_rows(place, search.rows) if number is not None else ():
        names = search.numbering[row.process.number].names
        wanted = row.read_part("ranges", "range.depth") == 0
        wanted &= names[row.read_part("ranges", "range.name")] == number
        wanted &= _mark_steps(_read_step_numbers(row)[row.read_part("ranges", "range.step")], place, search)
        start, length = row.read_times("ranges", "range.start")[wanted], row.read_part("ranges", "range.length")[wanted]
        spans += [(int(b), place_of_row, int(a)) for a, b in zip(start.tolist(), length.tolist(), strict=True)]
    return spans


def _list_step_spans(place: Place, search: PinSearch) -> list[Span]:
    """List the steps that count on the rank of a place; none if the place names no rank."""
    spans: list[Span] = []
    for number, row in _iterate_matching_rows(place, search.rows) if place.rank is not None else ():
        is_of_row = row.process.read_column("step.row") == row.row
        is_of_row &= _mark_steps(row.process.read_column("step.number"), place, search)
        start, length = row.process.read_times("step.start"), row.process.read_column("step.length")
        spans += [
            (int(b), number, int(a)) for a, b in zip(start[is_of_row].tolist(), length[is_of_row].tolist(), strict=True)
        ]
    return spans


def _read_step_numbers(row: PageRow) -> Ints:
    """Read the number + 1 of each step of a row, after a 0 for no step."""
    is_of_row = row.process.read_column("step.row") == row.row
    return np.append(0, row.process.read_column("step.number")[is_of_row])


def _mark_steps(numbers: Ints, place: Place, search: PinSearch) -> npt.NDArray[np.bool_]:
    """Mark the steps (number + 1, 0: unknown) of a place: the one it names, or those that count."""
    if place.step is None and search.counted is None:
        return np.ones(len(numbers), np.bool_)
    wanted = [place.step + 1] if place.step is not None else [0, *(number + 1 for number in search.counted or ())]
    return np.isin(numbers, wanted)


def _iterate_matching_rows(place: Place, rows: ExplorerRows) -> Iterator[tuple[int, PageRow]]:
    """Iterate over the rows that a place may be on, with their positions."""
    for number, row in enumerate(rows.rows):
        source = row.process.data.source
        pairs = (
            (place.rank, source.rank),
            (place.role, source.role),
            (place.run, source.run),
            (place.source, source.name),
            (place.device, row.get_label("device")),
        )
        if all(wanted is None or wanted == value for wanted, value in pairs):
            yield number, row
