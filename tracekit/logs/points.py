"""The values of a report as experiment trackers store them: name, step, value in seconds, bytes or plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Metric, Report

PREFIX = "tracekit"

_IN_BASE = {"ns": ("_s", 1e-9), "bytes": ("_bytes", 1.0), "ratio": ("_ratio", 1.0)}
"""Suffix of a metric name by unit, and the factor to the exported unit."""

_NO_MEASURE = frozenset({"first_of_window"})
"""Names in the table `values` that describe a step but are not measurements."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one step."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class ExportedReport:
    """The exported data: values by step, values of the whole run, and the report as HTML, Markdown and JSON."""

    title: str
    points: tuple[Point, ...]
    summary: Mapping[str, float]
    page: str
    markdown: str
    json: str

    def by_step(self) -> dict[int, dict[str, float]]:
        """Group the values by step, in order; each group maps names to values."""
        steps: dict[int, dict[str, float]] = {}
        for point in sorted(self.points, key=lambda point: point.step):
            steps.setdefault(point.step, {})[point.name] = point.value
        return steps


def extract_points(report: Report) -> tuple[Point, ...]:
    """Convert the values of every step: job values as they are, rank values as mean and maximum.

    Names are `tracekit/[RUN/][ROLE/][STAGE/]NAME` with the unit as suffix; rows without a step number are left out.
    """
    if report.values is None:
        return ()
    names = [heading.name for heading in report.values.headings]
    of_ranks: dict[tuple[str, int], list[float]] = {}
    of_job: dict[tuple[str, int], float] = {}
    rows = [dict(zip(names, row, strict=False)) for row in report.values.rows]
    runs = {cells["run"] for cells in rows}
    for cells in rows:
        value, step = cells["value"], cells["step"]
        if not isinstance(value, int | float) or not isinstance(step, int):
            continue
        if cells["name"] in _NO_MEASURE:
            continue
        suffix, factor = _IN_BASE.get(str(cells["unit"]), ("", 1.0))
        where = _format_metric_prefix(cells, with_run=len(runs) > 1)
        key = f"{where}{cells['name']}{suffix}", step
        if cells.get("rank") is None:
            of_job[key] = value * factor
        else:
            of_ranks.setdefault(key, []).append(value * factor)
    found = [Point(name, step, value) for (name, step), value in of_job.items()]
    for (name, step), values in of_ranks.items():
        found.append(Point(f"{name}/mean", step, sum(values) / len(values)))
        found.append(Point(f"{name}/max", step, max(values)))
    return tuple(point for point in found if isfinite(point.value))


def _format_metric_prefix(cells: Mapping[str, Cell], *, with_run: bool) -> str:
    """Build the prefix of a metric name: the run if there are several, the role and the stage."""
    parts: list[str] = [PREFIX]
    for name in ("run", "role", "stage"):
        value = cells.get(name)
        if value is not None and (name != "run" or with_run):
            parts.append(str(value).replace("/", "_"))
    return f"{'/'.join(parts)}/"


def summarize_for_tracker(report: Report) -> dict[str, float]:
    """Collect the headline, and the savings of the fixes of each rule per step in seconds, on top of those ranked higher."""
    summary: dict[str, float] = {}
    for name, value in _list_headline_values(report.headline):
        summary[f"{PREFIX}/{name}"] = value
    for finding in report.findings:
        if finding.saving is not None:
            name = f"{PREFIX}/saving/{finding.rule}_s"
            summary[name] = summary.get(name, 0.0) + finding.saving.after_ns * 1e-9
    return summary


def _list_headline_values(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each known headline metric."""
    for metric in metrics:
        if metric.value is not None and isfinite(metric.value):
            suffix, factor = _IN_BASE.get(metric.unit, ("", 1.0))
            yield f"{metric.name}{suffix}", metric.value * factor
