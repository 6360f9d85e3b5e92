"""The numbers of a report as such systems hold them: a name, a step, a value in seconds, bytes or plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import isfinite
from operator import itemgetter

from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Metric, Report

PREFIX = "tracekit"

_IN_BASE = {"ns": ("_s", 1e-9), "bytes": ("_bytes", 1.0), "ratio": ("_ratio", 1.0)}
"""The end of a name by unit, and what one of ours is in it."""

_NO_MEASURE = frozenset({"first_of_window"})
"""What the table `values` says of a step that is no measure of it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one step."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Logged:
    """What is sent: numbers by step, numbers of the whole, and the report as a page, as Markdown and as JSON."""

    title: str
    points: tuple[Point, ...]
    summary: Mapping[str, float]
    page: str
    markdown: str
    json: str

    def by_step(self) -> dict[int, dict[str, float]]:
        """The numbers of each step, by name, in order of the steps."""
        steps: dict[int, dict[str, float]] = {}
        for point in sorted(self.points, key=lambda point: point.step):
            steps.setdefault(point.step, {})[point.name] = point.value
        return steps


def points_of(report: Report) -> tuple[Point, ...]:
    """The values of every step: those of the job as they are, those of ranks as their mean and their largest.

    Names are `tracekit/[RUN/][ROLE/][STAGE/]NAME` with the unit at the end; rows without a step number are left out.
    """
    if report.values is None:
        return ()
    names = [heading.name for heading in report.values.headings]
    of_ranks: dict[tuple[str, int], list[float]] = {}
    of_job: dict[tuple[str, int], float] = {}
    rows = list(map(dict, map(partial(zip, names), report.values.rows)))
    runs = set(map(itemgetter("run"), rows))
    for cells in rows:
        value, step = cells["value"], cells["step"]
        if not isinstance(value, int | float) or not isinstance(step, int):
            continue
        if cells["name"] in _NO_MEASURE:
            continue
        suffix, factor = _IN_BASE.get(str(cells["unit"]), ("", 1.0))
        where = _where(cells, with_run=len(runs) > 1)
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


def _where(cells: Mapping[str, Cell], *, with_run: bool) -> str:
    """What stands before the name of a value: the run where there are several, the role and the stage."""
    parts: list[str] = [PREFIX]
    for name in ("run", "role", "stage"):
        value = cells.get(name)
        if value is not None and (name != "run" or with_run):
            parts.append(str(value).replace("/", "_"))
    return f"{'/'.join(parts)}/"


def summary_of(report: Report) -> dict[str, float]:
    """The headline, and what each rule's findings would give back at most per step, in seconds."""
    summary: dict[str, float] = {}
    for name, value in _headline(report.headline):
        summary[f"{PREFIX}/{name}"] = value
    for finding in report.findings:
        if finding.recoverable_ns is not None:
            name = f"{PREFIX}/recoverable/{finding.rule}_s"
            summary[name] = summary.get(name, 0.0) + finding.recoverable_ns * 1e-9
    return summary


def _headline(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, float]]:
    """The name and the value of each number that is known."""
    for metric in metrics:
        if metric.value is not None and isfinite(metric.value):
            suffix, factor = _IN_BASE.get(metric.unit, ("", 1.0))
            yield f"{metric.name}{suffix}", metric.value * factor
