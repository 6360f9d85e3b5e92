"""The stage in which growing memory is allocated: the one whose net change per step is the growth, while others balance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.job.memory.card_lines import is_of_process, list_card_lines
from tracekit.job.memory.trend import Allocator, Series, list_memory_stages, split_by_allocator
from tracekit.model.stages import get_canonical_stage
from tracekit.model.trace import Measurements, derive_once
from tracekit.process.memory.levels import DRIVER

MOST_OFF = 0.25
"""The net change of the stage differs from the growth by at most this share, and all others by as much from 0."""

_POINT = re.compile(r"(before|after)[ _:]+(\S.*)", re.IGNORECASE)

Changes = Mapping[str, Mapping[Any, int]]
"""Net change of memory in bytes by stage and step."""

Level = tuple[Any, str | None, int]
"""Level of memory in a log: (step, point, bytes)."""


def find_growth_stage(measured: Measurements, series: Series) -> str | None:
    """Find the stage in which the growth of a series is allocated; None if no recorded stage accounts for it alone.

    Stages are those of a profile, or points of a log: `Before update_actor`, `After update_actor`.
    """
    slope = series.found.slope
    if slope is None or slope.per_x <= 0 or series.of.device_type == DRIVER:
        return None
    return next(
        filter(None, (pick_growth_stage(found, slope.per_x) for found in _list_changes(measured, series.of))), None
    )


def pick_growth_stage(changes: Changes, growth: float) -> str | None:
    """Pick the one stage whose mean net change is the growth per step, if all others and the time between them balance.

    The first step counts as warm-up.

    >>> pick_growth_stage({"gen": {1: 0, 2: 0, 3: 1}, "update_actor": {1: 50, 2: 9, 3: 11}}, 10.0)
    'update_actor'
    """
    steps = sorted({step for by_step in changes.values() for step in by_step})
    means = {
        stage: float(np.mean([by_step.get(step, 0) for step in steps[1:]]))
        for stage, by_step in changes.items()
        if len(steps) > 1
    }
    outside = growth - sum(means.values())
    most = MOST_OFF * growth
    found = [stage for stage, mean in means.items() if abs(mean - growth) <= most]
    others = [mean for stage, mean in means.items() if stage not in found]
    return found[0] if len(found) == 1 and all(abs(mean) <= most for mean in (*others, outside)) else None


def _list_changes(measured: Measurements, owner: Allocator) -> Iterator[Changes]:
    """List the changes of an allocator by each kind of recording that has its levels at stages."""
    yield _map_profiled_changes(measured).get(owner, {})
    yield _pair_points(_list_logged_levels(measured, owner))
    process = {"run": owner.run, "pid": owner.pid, "rank": owner.rank}
    lines = [line for line in list_card_lines(measured) if is_of_process(line, process)]
    on_device = [line for line in lines if line.device in (None, owner.device)]
    yield _pair_points(
        (line.step, line.point, line.allocated_bytes) for line in on_device if line.allocated_bytes is not None
    )


@derive_once
def _map_profiled_changes(measured: Measurements) -> Mapping[Allocator, Changes]:
    """Map each profiled allocator to its changes in stages."""
    rows = list_memory_stages(measured)
    rows = rows.filter(~rows.is_missing("begin_bytes") & ~rows.is_missing("end_bytes"))
    changes: dict[Allocator, Changes] = {}
    for owner, of_owner in split_by_allocator(rows).items():
        by_stage: dict[str, dict[Any, int]] = {}
        for row in of_owner.rows("canonical", "step", "part", "begin_bytes", "end_bytes"):
            by_step, step = by_stage.setdefault(row["canonical"], {}), (row["part"] or 0, row["step"] or 0)
            by_step[step] = by_step.get(step, 0) + row["end_bytes"] - row["begin_bytes"]
        changes[owner] = by_stage
    return changes


def _list_logged_levels(measured: Measurements, owner: Allocator) -> Iterator[Level]:
    """List the allocated bytes of a log about an allocator, in order."""
    rows = measured.frame("step_levels")
    rows = rows.filter(rows.equals("quantity", "allocated") & ~rows.equals("tool", "torch_memory"))
    for name in ("run", "role", "rank", "host", "pid", "replica", "device"):
        rows = rows.filter(rows.equals(name, getattr(owner, name)))
    for row in rows.sort("source", "position").rows("step", "point", "level_bytes"):
        yield row["step"], row["point"], row["level_bytes"]


def _pair_points(levels: Iterable[Level]) -> Changes:
    """Pair each level before a stage with the next one after it."""
    begun: dict[str, int] = {}
    changes: dict[str, dict[Any, int]] = {}
    for step, point, level in levels:
        named = _POINT.fullmatch(point or "")
        if named is None or step is None:
            continue
        stage = get_canonical_stage(named[2].strip())
        if named[1].lower() == "before":
            begun[stage] = level
        elif stage in begun:
            by_step = changes.setdefault(stage, {})
            by_step[step] = by_step.get(step, 0) + level - begun.pop(stage)
    return changes
