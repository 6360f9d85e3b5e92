"""Series of measured memory, one per allocator: the level at the same point of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import name_stages
from tracekit.job.memory.device_size import DeviceSize, device_sizes
from tracekit.job.memory.snapshots import name_ranges
from tracekit.model.records import dataclass
from tracekit.model.stats.staircase import refine_growth_label
from tracekit.model.stats.trend import (
    Growth,
    GrowthLimits,
    Label,
    Slope,
    compute_theil_sen,
    holm,
    label_growth,
    measure_growth,
)
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.frame import (
    Frame,
    Ints,
    concat,
    count_distinct_of,
    count_rows,
    first_of,
    is_missing,
    max_of,
    min_of,
    sum_of,
    where,
)
from tracekit.model.text.labels import format_numbered_word, join_phrase, name_rank_or_pid
from tracekit.model.trace import Measurements
from tracekit.process.memory.levels import DRIVER, SNAPSHOT

Floats = npt.NDArray[np.float64]

GPU = 1
"""The `device_type` of memory in a log: a device's."""

KINDS = {0: "CPU", 1: "GPU", 6: "GPU", 12: "GPU", DRIVER: "cudaMalloc", SNAPSHOT: "GPU (snapshot)"}
"""Owner of memory by `device_type`; any other is some device's."""

FLOOR = "floor of the step"
"""The point of a step where no stage is in all of them."""

PHASES = ("update_actor", "update_critic")
"""Stages at whose end memory is compared from step to step, if all steps have one; else the last stage."""


class Allocator(NamedTuple):
    """One allocator of one process; None is unknown."""

    run: str | None
    role: str | None
    rank: int | None
    host: str | None
    pid: int | None
    replica: int | None
    device_type: int | None
    device: int | None

    @property
    def kind(self) -> str:
        """`CPU`, `GPU`, `cudaMalloc` (got from the driver), or `device` for memory of another or an unknown type."""
        return "device" if self.device_type is None else KINDS.get(self.device_type, "device")

    @property
    def memory(self) -> str:
        """`CPU`, `GPU 0`, `cudaMalloc on GPU 0`, `GPU 0 (snapshot)`."""
        if self.kind == "CPU" or self.device is None:
            return self.kind
        if self.device_type == SNAPSHOT:
            return f"GPU {self.device} (snapshot)"
        on = " on GPU" if self.device_type == DRIVER else ""
        return f"{self.kind}{on} {self.device}"

    @property
    def process(self) -> str:
        """`rank 3 actor`; the pid where no rank is known; empty without both."""
        words = (name_rank_or_pid(self.rank, self.pid), format_numbered_word("replica", self.replica), self.role)
        return join_phrase(*words)


@dataclass(frozen=True, slots=True)
class Series:
    """Memory of one allocator from step to step.

    `level` is that at `phase`, the same point of each step in `x` (numbers of steps, else their order);
    `relative` levels are relative to the start of the recording, whose first step is left out then;
    `floor` and `point` are the slopes of the least and of that level, bytes a step. Of the quantities only
    requested and allocated bytes are judged: the others grow without any leak. `taken_bytes`
    is the most that the device gave: the reserved bytes, unless only those in use are known
    (`cached` False). `numbered`: `x` are numbers of steps.
    """

    of: Allocator
    phase: str
    relative: bool
    x: Floats
    level: Floats
    floor: Slope | None
    point: Slope | None
    found: Growth
    taken_bytes: int
    cached: bool
    card: DeviceSize | None
    numbered: bool
    quantity: str = "allocated"
    logged: bool = False

    @property
    def judged(self) -> bool:
        """Whether growth can be a leak."""
        return self.quantity in ("requested", "allocated")


def make_growth_limits(limit: Mapping[str, float]) -> GrowthLimits:
    """Make the limits of growth from the thresholds of a rule."""
    return GrowthLimits(
        int(limit["min_steps"]),
        limit["slope_bytes"],
        limit["slope_ratio"],
        limit["flat_bytes"],
        limit["p_likely"],
        limit["p_strong"],
        limit["late_ratio"],
    )


def number_allocators(rows: Frame) -> tuple[list[Allocator], Ints]:
    """Return (the allocators in the order of their first rows, the number of that of each row)."""
    groups = rows.group_by(*Allocator._fields)
    return [Allocator(**owner) for owner in groups.agg().rows()], groups.number


def split_by_allocator(rows: Frame) -> Mapping[Allocator, Frame]:
    """Split rows by allocator, in the order of their first rows."""
    groups = rows.group_by(*Allocator._fields).frames()
    return {Allocator(**next(group.rows(*Allocator._fields))): group for group in groups}


def list_profiled_series(measured: Measurements, limits: GrowthLimits) -> Iterator[Series]:
    """List the levels of every profiled allocator over its steps, with the evidence for growth (R19).

    Snapshots know the level at the end of a step more exactly: see `list_logged_series`.
    Levels that count from the start of a recording, and those of hosts, which are counted only while a
    profiler runs, are compared within the source with most steps, and not in its first one: until then
    blocks from before the recording are freed without ever having been counted.
    """
    peaks = split_by_allocator(measured.frame("memory_peaks"))
    stage_ends = list_memory_stages(measured)
    stage_ends = stage_ends.filter(~stage_ends.is_missing("end_bytes"))
    ends = split_by_allocator(stage_ends)
    sizes = device_sizes(measured)
    for owner, of_owner in split_by_allocator(list_memory_steps(measured)).items():
        levels = of_owner.filter(~of_owner.is_missing("floor_bytes"))
        if owner.device_type == SNAPSHOT or owner not in peaks or not len(levels):
            continue
        relative = bool(levels["relative"].any())
        if relative or owner.kind == "CPU":
            levels = _keep_main_source(levels)
        if relative:
            levels = levels.take(slice(1, None))
        if not len(levels):
            continue
        steps = levels.values("step")
        is_numbered = None not in steps and len(set(steps)) == len(steps)
        x = np.array(steps if is_numbered else range(len(steps)), np.float64)
        phase, level = _pick_phase(levels, ends.get(owner))
        yield Series(
            owner,
            phase,
            relative,
            x,
            level,
            compute_theil_sen(x, levels.number("floor_bytes")),
            compute_theil_sen(x, level),
            measure_growth(x, level, limits),
            *_find_most_taken(peaks[owner]),
            None if owner.kind == "CPU" else sizes.limit(owner.run, owner.rank, owner.device),
            is_numbered,
        )


def _find_most_taken(peaks: Frame) -> tuple[int, bool]:
    """Return (the most bytes that the device gave, whether they count the cache): reserved, else in use."""
    in_use = int(peaks["peak_bytes"].max())
    reserved = int(peaks.integers("reserved_peak_bytes", missing=-1).max())
    return max(in_use, reserved), reserved >= 0


def _keep_main_source(levels: Frame) -> Frame:
    """Keep the levels of the source with most of them, the first by name of equals."""
    counts = levels.group_by("source").agg(count=count_rows())
    (main,) = counts.sort("count", "source", descending=["count"]).head(1).values("source")
    return levels.filter(levels.equals("source", main))


def list_logged_series(measured: Measurements, limits: GrowthLimits) -> Iterator[Series]:
    """List the levels in memory snapshots and logs: at one point of each step, by quantity.

    Where a log has several points of a step, the one that most steps have is taken, the last of equals.
    """
    rows = measured.frame("step_levels")
    of_snapshot = rows.equals("tool", "torch_memory")
    rows = rows.with_columns(device_type=np.where(of_snapshot, SNAPSHOT, GPU))
    snapshots = measured.frame("snapshot_levels").with_columns(device_type=SNAPSHOT)
    snapshot_peaks = split_by_allocator(snapshots.filter(snapshots.equals("memory", "device")))
    sizes = device_sizes(measured)
    for owner, of_owner in split_by_allocator(rows).items():
        levels = _keep_one_process(of_owner)
        if owner in snapshot_peaks:
            most_taken, cached = _find_most_taken(snapshot_peaks[owner])
        else:
            most_taken = int(levels["level_bytes"].max())
            cached = bool(levels.is_in("quantity", ("reserved", "peak reserved")).any())
        for of_quantity in levels.group_by("quantity").frames():
            quantity = of_quantity.values("quantity")[0]
            phase, chosen = _pick_point(of_quantity)
            is_numbered = not chosen.is_missing("step").any()
            is_numbered = is_numbered and bool((np.diff(chosen.integers("step")) >= 0).all())
            x = chosen.number("step") if is_numbered else np.arange(len(chosen), dtype=np.float64)
            level = chosen.number("level_bytes")
            slope = compute_theil_sen(x, level)
            judged = quantity in ("requested", "allocated")
            evidence = measure_growth(x, level, limits) if judged else Growth(slope)
            yield Series(
                owner,
                phase,
                relative=False,
                x=x,
                level=level,
                floor=evidence.slope,
                point=evidence.slope,
                found=evidence,
                taken_bytes=most_taken,
                cached=cached,
                card=sizes.limit(owner.run, owner.rank, owner.device),
                numbered=is_numbered,
                quantity=quantity,
                logged=True,
            )


def _pick_point(levels: Frame) -> tuple[str, Frame]:
    """Return (the point of a step in words, the last row of each step there in order of time)."""
    by = "step" if levels.is_missing("at_ns").any() else "at_ns"
    levels = levels.sort(by, "source", "position")
    points = levels.group_by("point").agg(steps=count_distinct_of("step"), unnumbered=sum_of(levels.is_missing("step")))
    counts = points["steps"] + points["unnumbered"]
    point = points.values("point")[np.flatnonzero(counts == counts.max())[-1]]
    levels = levels.filter(levels.equals("point", point))
    # A step that was logged again counts once, as it was last.
    later = levels.group_by("step").position(np.arange(len(levels))[::-1])
    levels = levels.filter(levels.is_missing("step") | (later == 0))
    return "end of the step" if point is None else point, levels


def _keep_one_process(levels: Frame) -> Frame:
    """Keep the levels of one source if several snapshots may be of several processes."""
    is_named = not (levels.is_missing("rank").all() and levels.is_missing("pid").all())
    # Steps within a file are known, not those in its name.
    within = len(levels.distinct("source")) < len(levels)
    may_be_one = within or levels.is_missing("step").all()
    if is_named or not levels.equals("tool", "torch_memory").all() or not may_be_one:
        return levels
    return _keep_main_source(levels)


def list_memory_steps(measured: Measurements) -> Frame:
    """List the levels of each allocator in each step, in order of time: the steps of sources that are stages are joined."""
    steps = _blank_parts(measured.frame("memory_steps")).sort("ts_ns")
    end = steps["end_bytes"]
    joined = steps.group_by(*Allocator._fields, "step", "part", "occurrence").agg(
        source=first_of("source"),
        ts_ns=min_of("ts_ns"),
        relative=max_of("relative"),
        floor_bytes=min_of("floor_bytes"),
        last=max_of(where(~is_missing(end), np.arange(len(steps)))),
        peak_bytes=max_of("peak_bytes"),
        reserved_bytes=max_of("reserved_bytes"),
    )
    last = joined["last"]
    last_end = Nullable(end.values[last.values], last.missing)
    return joined.with_columns(end_bytes=last_end).sort("step", "ts_ns")


def list_memory_stages(measured: Measurements) -> Frame:
    """List the rows of `memory_stages` with `canonical`, the canonical name of the stage, in order of time."""
    rows = _blank_parts(measured.frame("memory_stages"))
    of_snapshot = rows.equals("tool", "torch_memory")
    ranges, stages = rows.filter(of_snapshot), rows.filter(~of_snapshot)
    # Ranges of snapshots are in no table of stages: their windows hold more than one step's work.
    ranges = ranges.with_columns(canonical=name_ranges(ranges))
    stages = stages.with_columns(canonical=name_stages(stages))
    stages = stages.filter(~stages.is_missing("canonical"))
    return concat([stages, ranges]).sort("ts_ns")


def _blank_parts(rows: Frame) -> Frame:
    """Empty `part` where a step number identifies the step already."""
    return rows.with_columns(part=where(rows.is_missing("step"), rows["part"]))


def _pick_phase(levels: Frame, ends: Frame | None) -> tuple[str, Floats]:
    """Return (the point of a step, the level there in each step); the floor if all steps have no stage in common."""
    floor = levels.number("floor_bytes")
    if ends is None:
        return FLOOR, floor
    level_at: dict[str, dict[tuple[Any, Any], int]] = {}
    latest: dict[str, int] = {}
    for row in ends.rows("canonical", "ts_ns", "step", "part", "end_bytes"):
        level_at.setdefault(row["canonical"], {})[row["step"], row["part"]] = row["end_bytes"]
        latest[row["canonical"]] = row["ts_ns"]
    steps = list(zip(levels.values("step"), levels.values("part"), strict=True))
    # How late a stage ends decides between those that all steps have.
    for stage in (*PHASES, *sorted(latest, key=lambda stage: -latest[stage])):
        if stage in level_at and level_at[stage].keys() >= set(steps):
            return f"end of {stage}", np.array([level_at[stage][step] for step in steps], np.float64)
    return FLOOR, floor


def group_series(every_series: Sequence[Series]) -> list[list[int]]:
    """Group the places of series by run, role, kind of memory, quantity and origin."""
    places: dict[tuple[str | None, str | None, str, str, bool], list[int]] = {}
    for i, item in enumerate(every_series):
        key = (item.of.run, item.of.role, item.of.kind, item.quantity, item.logged)
        places.setdefault(key, []).append(i)
    return list(places.values())


def label_series(every_series: Sequence[Series], limits: GrowthLimits) -> tuple[list[Label | None], list[float | None]]:
    """Return (the trend of each series, its p): p is corrected for all of its group that were tested; None: not judged."""
    labels: list[Label | None] = ["too few" if item.judged else None for item in every_series]
    corrected: list[float | None] = [None] * len(every_series)
    for group in group_series(every_series):
        tested = [(i, p) for i in group if (p := every_series[i].found.p) is not None]
        for (i, _), p in zip(tested, holm([p for _, p in tested]), strict=True):
            item, corrected[i] = every_series[i], p
            labels[i] = refine_growth_label(item.found, item.x, item.level, label_growth(item.found, limits, p), limits)
    return labels, corrected


def grows_enough(item: Series, limit: Mapping[str, float]) -> bool:
    """Tell whether a series, and the least level of its steps, grows by enough to matter.

    A level that is logged at every step, or held at its end, need not have grown by much yet.
    """
    if item.logged:
        return True
    level = item.level[item.found.warm_up :]
    enough = limit["growth_bytes"]
    if item.card is not None:
        enough = max(enough, limit["card_ratio"] * item.card.size_bytes)
    floor = item.floor is not None and item.floor.per_x >= limit["slope_bytes"]
    return bool(level[-1] - level[0] >= enough) and floor


def measure_median_growth(members: Sequence[Series], limits: GrowthLimits) -> Growth | None:
    """Measure the growth of the median of a group; None for a single series, or if they differ in steps.

    The noise of ranks averages out in it; the leak of a single rank does not show.
    """
    x = members[0].x
    if len(members) < 2 or not all(np.array_equal(item.x, x) for item in members):
        return None
    return measure_growth(x, np.median([item.level for item in members], axis=0), limits)


def grows_together(members: Sequence[Series], limits: GrowthLimits, limit: Mapping[str, float]) -> bool:
    """Tell whether the median of a group grows, and each of its series by enough to matter."""
    middle = measure_median_growth(members, limits)
    if middle is None or label_growth(middle, limits) not in ("likely", "strong"):
        return False
    return all(grows_enough(item, limit) for item in members)
