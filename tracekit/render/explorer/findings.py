"""Findings of the report for the page: their savings, and the intervals of the timeline that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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


def describe_findings(
    report: Report, rows: ExplorerRows, numbering: Sequence[Numbering], names: PageNames, counted: frozenset[int] | None
) -> list[dict[str, Any]]:
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
            "pins": find_pins(finding, rows, numbering, names, counted),
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


def find_pins(
    finding: Finding,
    rows: ExplorerRows,
    numbering: Sequence[Numbering],
    names: PageNames,
    counted: frozenset[int] | None,
) -> list[Pin]:
    """Find the intervals that show a finding: recorded ones, or the worst and the median of the stage it names."""
    recorded = [
        pin for place in finding.places if place.start_ns is not None for pin in _pin_recorded_place(place, rows)
    ]
    if recorded:
        return recorded[:2]
    for place in finding.places:
        if place.stage is not None and (pins := _pin_stage(place, rows, numbering, names, counted)):
            return pins
    return []


def _pin_recorded_place(place: Place, rows: ExplorerRows) -> list[Pin]:
    """Pin the interval of a place on the first row that matches it."""
    if place.start_ns is None:
        return []
    for number, row in _iterate_matching_rows(place, rows):
        end_ns = place.start_ns + 1 if place.end_ns is None else place.end_ns
        shift = row.process.shift_ns - row.process.data.base_ns
        return [{"row": number, "t0": place.start_ns + shift, "t1": end_ns + shift, "name": "worst"}]
    return []


def _pin_stage(
    place: Place, rows: ExplorerRows, numbering: Sequence[Numbering], names: PageNames, counted: frozenset[int] | None
) -> list[Pin]:
    """Pin the longest occurrence of a stage and the median one, in steps that count."""
    number = names.numbers.get(place.stage or "")
    found: list[tuple[int, int, int]] = []
    for place_of_row, row in _iterate_matching_rows(place, rows):
        wanted = row.read_part("ranges", "range.depth") == 0
        of_process = numbering[row.process.number].names
        wanted &= of_process[row.read_part("ranges", "range.name")] == number
        if counted is not None:
            steps = np.append(0, row.process.read_column("step.number"))
            step = steps[row.read_part("ranges", "range.step")]
            wanted &= np.isin(step, [0, *(value + 1 for value in counted)])
        start, length = row.read_times("ranges", "range.start")[wanted], row.read_part("ranges", "range.length")[wanted]
        found += [(int(b), place_of_row, int(a)) for a, b in zip(start.tolist(), length.tolist(), strict=True)]
    if not found:
        return []
    found.sort(key=lambda occurrence: (-occurrence[0], occurrence[1:]))
    chosen = [("worst", found[0]), *([("median", found[len(found) // 2])] if len(found) > 2 else [])]
    return [{"row": row, "t0": start, "t1": start + length, "name": name} for name, (length, row, start) in chosen]


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
