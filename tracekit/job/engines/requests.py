"""Time of requests and agents' runs by part: queue, prefill, decode, preemption, tools; and the cause of the tail."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, max_of
from tracekit.model.trace import Measurements

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PARTS = ("queue", "prefill", "decode", "forward", "preempted", "tool", "other")
PART_TITLES = {
    "queue": "waiting in the engine's queue",
    "prefill": "prefill",
    "decode": "decode",
    "forward": "prefill and decode",
    "preempted": "preempted",
    "tool": "tools",
    "other": "outside the engine and tools",
}

TAIL = 0.05
"""Share of the units that make the tail: the slowest 5 %."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTimes:
    """Times of the requests of one source, or of the dumps of one run, or of its agents' runs where tools were recorded too.

    `parts` has one array per recorded part, ns per unit; together they are `total_ns`. `unit` names one. `step` is -1 where
    it is not recorded.
    """

    run: str | None
    sources: tuple[str, ...]
    unit: str
    total_ns: Floats
    step: npt.NDArray[np.int64]
    parts: dict[str, Floats]
    requests: int
    preemptions: int | None
    overlapping_ratio: float

    @property
    def source(self) -> str:
        """Name of its source, or of the first with the count of the others."""
        first, *others = self.sources
        return f"{first} and {len(others):,} more" if others else first

    @property
    def is_tail(self) -> Bools:
        """The slowest units."""
        count = max(1, round(TAIL * len(self.total_ns)))
        mask = np.zeros(len(self.total_ns), np.bool_)
        mask[np.argsort(-self.total_ns, kind="stable")[:count]] = True
        return mask

    def find_tail_cause(self) -> tuple[str, float] | None:
        """Find the part that makes the slowest units slower than the others, and its share of the difference."""
        tail = self.is_tail
        if tail.all():
            return None
        more = float(self.total_ns[tail].mean() - self.total_ns[~tail].mean())
        if more <= 0:
            return None
        differences = {name: float(ns[tail].mean() - ns[~tail].mean()) for name, ns in self.parts.items()}
        name = max(differences, key=lambda part: differences[part])
        return name, differences[name] / more


def list_request_times(measured: Measurements) -> list[RequestTimes]:
    """List the times of the requests of every source, in the order of the sources."""
    return measured.derived(_make_request_times)


def _make_request_times(measured: Measurements) -> list[RequestTimes]:
    """Make the times of each source; files whose requests all have a step (verl's dumps) are one source per run."""
    rows = measured.frame("request_times")
    made: list[RequestTimes | None] = []
    for of_run in rows.group_by("run").frames():
        by_source = of_run.group_by("source")
        is_dump = ~by_source.each(max_of(of_run.is_missing("step").astype(np.int64))).astype(np.bool_)
        dumps, others = of_run.filter(is_dump), of_run.filter(~is_dump)
        made += [_measure_units(part) for part in (dumps, *others.group_by("source").frames()) if len(part)]
    return [times for times in made if times is not None]


def _measure_units(rows: Frame) -> RequestTimes | None:
    """Measure the units of one source: agents' runs if any run has a tool, otherwise requests."""
    requests = rows.filter(rows.equals("kind", "request"))
    if not len(requests):
        return None
    is_run = bool(rows.equals("kind", "tool").any()) and not bool(requests.is_missing("trajectory").all())
    units = rows.filter(~rows.is_missing("trajectory")) if is_run else requests
    number = units.group_by("source", "trajectory").number if is_run else np.arange(len(units))
    total = _measure_totals(units, number, is_run=is_run)
    sums = {name: _sum_part(units, number, name, len(total)) for name in PARTS if name != "other"}
    inside = np.sum(list(sums.values()), axis=0)
    known = total > 0
    # Tools or turns that run at the same time add up to more than the wall time.
    overlap = float(np.maximum(inside - total, 0)[known].sum() / max(float(total[known].sum()), 1.0))
    total = np.maximum(total, inside)
    parts = {name: ns[known] for name, ns in sums.items() if ns.any()}
    parts["other"] = (total - inside)[known]
    if not known.any():
        return None
    step = np.full(len(total), -1, np.int64)
    np.maximum.at(step, number, units.integers("step", missing=-1))
    preempted = requests.number("preemption_count")
    return RequestTimes(
        rows.values("run")[0],
        tuple(rows.distinct("source").values("source")),
        "agent run" if is_run else "request",
        total[known],
        step[known],
        parts,
        len(requests),
        None if np.isnan(preempted).all() else int(np.nansum(preempted)),
        overlap,
    )


def _measure_totals(units: Frame, number: npt.NDArray[Any], *, is_run: bool) -> Floats:
    """Measure the time of each unit from its first start to its last end; without times, its longest row."""
    count = int(number.max()) + 1 if len(number) else 0
    dur = np.nan_to_num(units.number("dur_ns"))
    longest = np.zeros(count)
    if not is_run:
        longest[number] = dur
        return longest
    np.maximum.at(longest, number, dur)
    timed = ~units.is_missing("ts_ns")
    start = units.integers("ts_ns")
    origin = int(start[timed].min()) if timed.any() else 0
    begin, end = np.full(count, np.inf), np.full(count, -np.inf)
    since = (start - origin).astype(np.float64)
    np.minimum.at(begin, number[timed], since[timed])
    np.maximum.at(end, number[timed], (since + dur)[timed])
    wall = np.where(np.isfinite(begin), end - begin, 0.0)
    return np.maximum(longest, wall)


def _sum_part(units: Frame, number: npt.NDArray[Any], name: str, count: int) -> Floats:
    """Sum one part over the rows of each unit; unknown times count as 0 and become part of `other`."""
    values = np.nan_to_num(units.number(f"{name}_ns"))
    return np.bincount(number, weights=values, minlength=count).astype(np.float64)
