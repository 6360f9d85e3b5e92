"""Measured memory to one series per allocator: what it held at the same point of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import canonical_stages, grouped, stacked, staged, units
from tracekit.job.memory.device_size import DeviceSize, DeviceSizes, device_sizes
from tracekit.model.intervals import Ints
from tracekit.model.keys import as_python, equal, numbered_alike, of_keys, records
from tracekit.model.labels import called, phrase
from tracekit.model.records import dataclass
from tracekit.model.stats.staircase import shaped
from tracekit.model.stats.trend import Growth, Label, Limits, Slope, growth, holm, label, theil_sen
from tracekit.model.trace import Measurements
from tracekit.process.memory.levels import DRIVER, SNAPSHOT

GPU = 1
"""The `device_type` that stands for the memory that a log tells of: a device's."""

KINDS = {0: "CPU", 1: "GPU", 6: "GPU", 12: "GPU", DRIVER: "cudaMalloc", SNAPSHOT: "GPU (snapshot)"}
"""Whose memory a `device_type` is; any other is some device's."""

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
        """`rank 3 actor`; the process id where no rank is known."""
        process = called("rank", self.rank) or called("process", self.pid) or "rank ?"
        return phrase(process, called("replica", self.replica), self.role)


@dataclass(frozen=True, slots=True)
class Series:
    """What one allocator held from step to step.

    `level` is that at `phase`, the same point of each step in `x` (numbers of steps, else their order);
    `relative` if it counts from the start of the recording, whose first step is left out then;
    `floor` and `point` are the slopes of the least and of that level, bytes a step. `quantity` is what the
    level is of; only what is requested or allocated is judged: the rest grows without any leak. `taken_bytes`
    is the most that the device was seen to give: what was reserved, unless only what was in use is known
    (`cached` False). `numbered` tells whether `x` are numbers of steps.
    """

    of: Allocator
    phase: str
    relative: bool
    x: npt.NDArray[np.float64]
    level: npt.NDArray[np.float64]
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
        """Whether growth of it can be a leak."""
        return self.quantity in ("requested", "allocated")


def by_allocator(frame: pd.DataFrame) -> Mapping[Allocator, pd.DataFrame]:
    """The rows of each allocator, in the order of their first rows."""
    owners, number = allocators(frame)
    rows_of_each = rows_by_number(number, len(owners))
    return {owner: frame.iloc[rows] for owner, rows in zip(owners, rows_of_each, strict=False)}


def rows_by_number(number: Ints, count: int) -> list[Ints]:
    """The rows of every one of `count` numbers, in order."""
    ends = np.cumsum(np.bincount(number, minlength=count))
    return np.split(np.argsort(number, kind="stable"), ends[:-1])


def allocators(frame: pd.DataFrame) -> tuple[list[Allocator], npt.NDArray[np.int64]]:
    """(every allocator in the order of its first row, which of them each row is of)."""
    keys = list(Allocator._fields)
    number, first = of_keys(frame, keys)
    return list(starmap(Allocator, records(frame[keys].iloc[first], keys))), number


def series(measured: Measurements, limits: Limits) -> Iterator[Series]:
    """Every allocator that a profile tells of over its steps, with the evidence for growth (R19).

    Snapshots tell more exactly what is left at the end of a step: see `logged_series`.
    Levels that count from the start of a recording, and those of hosts, which are counted only while a
    profiler runs, are compared within the source with most steps, and not in its first one: until then
    blocks from before the recording are freed without ever having been counted.
    """
    most_taken = _taken_by(measured["memory_peaks"])
    sizes = device_sizes(measured)
    levels = steps(measured)
    phase_levels = _phase_ends(measured)
    point, point_of_end = numbered_alike(_POINT, levels, phase_levels)
    phases = _ends_by_allocator(phase_levels, point_of_end)
    levels = levels.assign(point=point)
    has_floor = levels["floor_bytes"].notna().to_numpy(np.bool_)
    owners, number = allocators(levels)
    levels, number = levels[has_floor].reset_index(drop=True), number[has_floor]
    floors, is_relative = levels["floor_bytes"].to_numpy(float), levels["relative"].to_numpy(bool)
    steps_told, step = (
        levels["step"].notna().to_numpy(bool),
        levels["step"].to_numpy(float, na_value=0),
    )
    points = levels["point"].to_numpy(np.int64)
    for owner, rows in zip(owners, rows_by_number(number, len(owners)), strict=False):
        if owner.device_type == SNAPSHOT or owner not in most_taken:
            continue
        relative = bool(is_relative[rows].any())
        chosen = rows
        if relative or owner.kind == "CPU":
            source = levels["source"].iloc[rows]
            chosen = rows[(source == source.mode().get(0)).to_numpy(np.bool_)]
        if relative:
            chosen = chosen[1:]
        if not len(chosen):
            continue
        floor = floors[chosen]
        phase, level = _at_phase(points[chosen], floor, phases.get(owner))
        is_numbered = bool(steps_told[chosen].all()) and len(np.unique(step[chosen])) == len(chosen)
        x = step[chosen] if is_numbered else np.arange(len(chosen), dtype=np.float64)
        yield Series(
            owner,
            phase,
            relative,
            x,
            level,
            theil_sen(x, floor),
            theil_sen(x, level),
            growth(x, level, limits),
            *most_taken[owner],
            _card(sizes, owner),
            is_numbered,
        )


_POINT = [*Allocator._fields, "step", "part"]
"""One allocator in one step."""


def _taken_by(rows: pd.DataFrame) -> Mapping[Allocator, tuple[int, bool]]:
    """What `_taken` tells, of every allocator."""
    owners, number = allocators(rows)
    in_use = _largest(rows["peak_bytes"], number, len(owners))
    reserved = _largest(rows["reserved_peak_bytes"], number, len(owners))
    is_counted = reserved >= 0
    most = np.maximum(in_use, reserved).tolist()
    return dict(zip(owners, zip(most, is_counted.tolist(), strict=True), strict=False))


def _largest(sizes: pd.Series, number: Ints, count: int) -> Ints:
    """The largest of the sizes with each of `count` numbers; -1 where all are missing."""
    largest = np.full(count, -1, np.int64)
    np.maximum.at(largest, number, sizes.to_numpy(np.int64, na_value=-1))
    return largest


def _card(sizes: DeviceSizes, owner: Allocator) -> DeviceSize | None:
    """The size of the device of an allocator; None of a host."""
    return None if owner.kind == "CPU" else sizes.limit(owner.run, owner.rank, owner.device)


def _taken(rows: pd.DataFrame, used: str, reserved: str) -> tuple[int, bool]:
    """(the most that the device gave, whether that counts the cache): the peak of what is reserved, else of what is used."""
    in_use = int(rows[used].max())
    if rows[reserved].isna().all():
        return in_use, False
    return max(in_use, int(rows[reserved].max())), True


def logged_series(measured: Measurements, limits: Limits) -> Iterator[Series]:
    """Every series that memory snapshots and logs tell of: levels at one point of each step, by what they are of.

    Where a log tells of several points of a step, the one that most steps have is taken, the last of equals.
    """
    if not measured.has("step_levels"):
        return
    rows = measured["step_levels"]
    of_snapshot = (rows["tool"] == "torch_memory").to_numpy()
    rows["device_type"] = pd.array(np.where(of_snapshot, SNAPSHOT, GPU), dtype="Int64")
    sizes, snapshots = device_sizes(measured), by_snapshot(measured)
    for owner, mixed in by_allocator(rows).items():
        levels = _of_one_process(mixed)
        if owner in snapshots:
            most_taken, cached = _taken(snapshots[owner], "peak_bytes", "reserved_peak_bytes")
        else:
            most_taken = int(levels["level_bytes"].max())
            cached = bool(levels["quantity"].isin(("reserved", "peak reserved")).any())
        for quantity, of_quantity in levels.groupby("quantity", sort=False):
            phase, chosen = _one_point(of_quantity)
            number = chosen["step"]
            is_numbered = bool(number.notna().all()) and bool(number.is_monotonic_increasing)
            x = number.to_numpy(float) if is_numbered else np.arange(len(chosen), dtype=np.float64)
            level = chosen["level_bytes"].to_numpy(float)
            slope = theil_sen(x, level)
            judged = quantity in ("requested", "allocated")
            evidence = growth(x, level, limits) if judged else Growth(slope)
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
                quantity=str(quantity),
                logged=True,
            )


def _one_point(rows: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """(the point of a step in words, the last row of each step there in order of time)."""
    by = "at_ns" if bool(rows["at_ns"].notna().all()) else "step"
    rows = rows.sort_values([by, "source", "position"], kind="stable")
    points = rows.groupby("point", dropna=False, sort=False)
    counts = points["step"].nunique() + points["step"].agg(lambda steps: steps.isna().sum())
    point = as_python(counts.index[counts == counts.max()])[-1]
    at_point = rows[equal(rows["point"], point)]
    # A step that was logged again counts once, as it was last.
    is_repeated = at_point["step"].notna() & at_point.duplicated("step", keep="last")
    return "end of the step" if point is None else str(point), at_point[~is_repeated]


def by_snapshot(measured: Measurements) -> Mapping[Allocator, pd.DataFrame]:
    """The rows of `snapshot_levels` of each device that snapshots tell of."""
    rows = measured["snapshot_levels"]
    rows = rows[rows["memory"] == "device"]
    return by_allocator(rows.assign(device_type=pd.array([SNAPSHOT] * len(rows), dtype="Int64")))


def _of_one_process(rows: pd.DataFrame) -> pd.DataFrame:
    """The levels of the source with most of them, where nothing tells that several snapshots are of one process."""
    is_named = rows["rank"].notna().any() or rows["pid"].notna().any()
    counts = rows["source"].value_counts()
    within = int(counts.max()) > 1  # steps are told of within a file, not by its name
    if (
        is_named
        or (rows["tool"] != "torch_memory").any()
        or not (within or rows["step"].isna().all())
    ):
        return rows
    largest = str(counts[counts == counts.max()].index.min())
    return rows[(rows["source"] == largest).to_numpy(bool)]


def steps(measured: Measurements) -> pd.DataFrame:
    """One row an allocator and step, in order of time: the steps of sources that are stages are joined."""
    rows = units(measured["memory_steps"]).sort_values("ts_ns", kind="stable")
    keys = [*Allocator._fields, "step", "part", "occurrence"]
    joined = grouped(
        rows,
        keys,
        source=("source", "first"),
        ts_ns=("ts_ns", "min"),
        relative=("relative", "any"),
        floor_bytes=("floor_bytes", "min"),
        end_bytes=("end_bytes", "last"),
        peak_bytes=("peak_bytes", "max"),
        reserved_bytes=("reserved_bytes", "max"),
    )
    return joined.sort_values(["step", "ts_ns"], kind="stable", ignore_index=True)


def stages(measured: Measurements) -> pd.DataFrame:
    """The rows of `memory_stages` with `canonical`, the stage under its one name, in order of time."""
    rows = units(measured["memory_stages"])
    of_snapshot = (rows["tool"] == "torch_memory").to_numpy()
    named = staged(rows[~of_snapshot])
    if of_snapshot.any():
        # Ranges of snapshots are in no table of stages: their windows hold more than one step's work.
        ranges = rows[of_snapshot]
        ranges = ranges.assign(canonical=canonical_stages(ranges, any_range=True))
        named = stacked([named, ranges])
    return named.sort_values("ts_ns", kind="stable")


def _phase_ends(measured: Measurements) -> pd.DataFrame:
    """What each allocator held at the last end of each stage in each step."""
    rows = stages(measured)
    return rows[rows["end_bytes"].notna()].drop_duplicates([*_POINT, "canonical"], keep="last")


class _Ends(NamedTuple):
    """What one allocator held at the ends of stages."""

    canonical: npt.NDArray[np.object_]
    ts: npt.NDArray[np.int64]
    point: npt.NDArray[np.int64]
    level: npt.NDArray[np.float64]


def _ends_by_allocator(
    levels: pd.DataFrame, point: npt.NDArray[np.int64]
) -> Mapping[Allocator, _Ends]:
    """The rows of `_phase_ends` of each allocator, `point` being the number of the step of each."""
    owners, number = allocators(levels)
    canonical, ts = levels["canonical"].to_numpy(object), levels["ts_ns"].to_numpy(np.int64)
    level, ends = levels["end_bytes"].to_numpy(float), {}
    for owner, rows in zip(owners, rows_by_number(number, len(owners)), strict=False):
        ends[owner] = _Ends(canonical[rows], ts[rows], point[rows], level[rows])
    return ends


def _at_phase(
    points: npt.NDArray[np.int64], floor: npt.NDArray[np.float64], ends: _Ends | None
) -> tuple[str, npt.NDArray[np.float64]]:
    """(the point of a step, the level there in each step); the floor where no stage is in all steps."""
    if ends is not None:
        canonical, ts, numbers, level = ends
        # How late a stage ends decides between those that all steps have.
        latest: dict[str, int] = {}
        for stage, when in zip(canonical, ts.tolist(), strict=True):
            latest[stage] = max(when, latest.get(stage, when))
        order = sorted(latest, key=lambda stage: -latest[stage])
        for stage in (*filter(latest.__contains__, PHASES), *order):
            in_stage = canonical == stage
            level_at = dict(zip(numbers[in_stage].tolist(), level[in_stage].tolist(), strict=True))
            if level_at.keys() >= set(points.tolist()):
                levels = list(map(level_at.__getitem__, points.tolist()))
                return f"end of {stage}", np.array(levels, np.float64)
    return FLOOR, floor


def groups(found: Sequence[Series]) -> list[list[int]]:
    """The places of the series of each run, role, kind of memory and what is told of it."""
    places: dict[tuple[str | None, str | None, str, str, bool], list[int]] = {}
    for i, item in enumerate(found):
        key = (item.of.run, item.of.role, item.of.kind, item.quantity, item.logged)
        places.setdefault(key, []).append(i)
    return list(places.values())


def labelled(
    every_series: Sequence[Series], limits: Limits
) -> tuple[list[Label | None], list[float | None]]:
    """(what each series shows, its p): p is corrected for all of its group that were looked at; None: not judged."""
    labels: list[Label | None] = ["too few" if item.judged else None for item in every_series]
    corrected: list[float | None] = [None] * len(every_series)
    for group in groups(every_series):
        tested = [(i, p) for i in group if (p := every_series[i].found.p) is not None]
        for (i, _), p in zip(tested, holm(list(map(itemgetter(1), tested))), strict=True):
            item, corrected[i] = every_series[i], p
            labels[i] = shaped(item.found, item.x, item.level, label(item.found, limits, p), limits)
    return labels, corrected


def matters(item: Series, limit: Mapping[str, float]) -> bool:
    """Whether a series that grows grows by enough, and the least level of its steps with it.

    What is logged of every step, or held at its end, need not have grown by much yet.
    """
    if item.logged:
        return True
    level = item.level[item.found.warm_up :]
    enough = limit["growth_bytes"]
    if item.card is not None:
        enough = max(enough, limit["card_ratio"] * item.card.size_bytes)
    floor = item.floor is not None and item.floor.per_x >= limit["slope_bytes"]
    return bool(level[-1] - level[0] >= enough) and floor


def median_growth(members: Sequence[Series], limits: Limits) -> Growth | None:
    """The evidence for growth of the median of a group; None where there is but one, or they differ in steps.

    The noise of ranks averages out in it; what a single rank leaks does not show.
    """
    x = members[0].x
    if len(members) < 2 or not all(np.array_equal(item.x, x) for item in members):
        return None
    return growth(x, np.median(list(map(attrgetter("level"), members)), axis=0), limits)


def together(members: Sequence[Series], limits: Limits, limit: Mapping[str, float]) -> list[Series]:
    """All of a group, where none alone but their median grows."""
    middle = median_growth(members, limits)
    grows = middle is not None and label(middle, limits) in ("likely", "strong")
    if grows and all(matters(item, limit) for item in members):
        return list(members)
    return []
