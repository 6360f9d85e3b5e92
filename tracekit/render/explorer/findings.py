"""Findings of the report for the page: their savings, and the intervals of the timeline that show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracekit.model.report import Finding, Place, Report
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.processes import ExplorerRows, PageRow

Pin = dict[str, Any]

MOST_PINS = 2
"""Most places with times that are pinned for a finding without instances."""


def describe_findings(report: Report, rows: ExplorerRows) -> list[dict[str, Any]]:
    """Describe all findings in order, with pins where an interval is known."""
    return [
        {
            "rule": make_printable(finding.rule, 60),
            "severity": finding.severity,
            "number": number,
            "claim": make_printable(finding.claim, phrases.SENTENCE),
            "advice": make_printable(finding.advice, phrases.SENTENCE),
            "caveats": [make_printable(caveat, phrases.SENTENCE) for caveat in finding.caveats],
            "saving": _describe_page_saving(finding, report),
            "cost": finding.cost_ns,
            "pins": find_pins(finding, rows),
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


def find_pins(finding: Finding, rows: ExplorerRows) -> list[Pin]:
    """Find the rows of the worst and the median instance of a finding; of its places with times, if it names no instance."""
    named: list[tuple[str, Place]] = [(instance.which, instance.place) for instance in finding.instances]
    if not named:
        named = [("interval", place) for place in finding.places if place.start_ns is not None][:MOST_PINS]
    pins = (_pin_interval(name, place, rows) for name, place in named)
    return [pin for pin in pins if pin is not None]


def _pin_interval(name: str, place: Place, rows: ExplorerRows) -> Pin | None:
    """Pin the interval of a place on the first row that matches it; None if the page has no such row."""
    if place.start_ns is None:
        return None
    for number, row in _iterate_matching_rows(place, rows):
        end_ns = place.start_ns + 1 if place.end_ns is None else place.end_ns
        shift = row.process.shift_ns - row.process.data.base_ns
        return {"row": number, "t0": place.start_ns + shift, "t1": end_ns + shift, "name": name}
    return None


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
