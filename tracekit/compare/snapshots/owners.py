"""Memory snapshots: owner, step and levels of each, and their matching before and after by rank and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tracekit.compare.sides import ComparedSide
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS
from tracekit.job.steps.metric_samples import MetricSamples, make_missing_last_key
from tracekit.model.records import dataclass
from tracekit.model.report import Better
from tracekit.model.tables.frame import Frame, count_distinct_of, max_of, min_of, numbers, sum_of
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import Measurements

PEAK, END = "peak_requested", "end_requested"
"""Headline levels; the second applies if a side recorded no history."""

MEMORY_LEVELS: Mapping[str, tuple[str, Better]] = {
    PEAK: ("peak requested", "lower"),
    "peak_reserved": ("peak reserved", "lower"),
    END: ("requested at the end", "lower"),
    "end_allocated": ("allocated at the end", "lower"),
    "end_reserved": ("reserved at the end", "lower"),
    "stranded": ("stranded at the end", "lower"),
    "largest_free": ("largest free piece at the end", "neither"),
}
"""Title and direction of every level."""

_MEASURED = {
    PEAK: "peak_bytes",
    "peak_reserved": "reserved_peak_bytes",
    END: "end_requested_bytes",
    "end_allocated": "end_allocated_bytes",
    "end_reserved": "end_reserved_bytes",
    "stranded": "stranded_bytes",
    "largest_free": "largest_free_bytes",
}
_LEVEL_METRICS = {
    PEAK: "device_peak_requested",
    "peak_reserved": "device_peak_reserved",
    END: "device_end_requested",
    "end_allocated": "device_end_allocated",
    "end_reserved": "device_end_reserved",
    "stranded": "device_end_stranded",
}
"""Metric of each level in a saved report."""


class MemoryOwner(NamedTuple):
    """Owner of a memory; `number` separates processes of one rank, in the order of their ids."""

    memory: str
    role: str | None
    rank: int | None
    replica: int | None
    device: int | None
    number: int

    def __str__(self) -> str:
        """Format the owner: `rank 3 actor, GPU 0`."""
        words = []
        if self.rank is not None:
            words.append(f"rank {self.rank}")
        if self.role:
            words.append(self.role)
        if self.number:
            words.append(f"(process {self.number + 1})")
        name = " ".join(words)
        memory = format_numbered_word("GPU", self.device) or "GPU"
        if self.memory == "host":
            memory = "pinned host memory"
        return ", ".join(part for part in (name, memory) if part)


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory of one device in one snapshot; `levels` by the names of `LEVELS`, None if not recorded.

    `row` has the columns of `snapshot_levels` of `measured`; both are None for saved reports.
    """

    whose: MemoryOwner
    run: str
    step: int | None
    taken_ns: int
    source: str
    levels: Mapping[str, int | None]
    row: Mapping[str, Any] | None = None
    measured: Measurements | None = None

    @property
    def height(self) -> tuple[int, int, int]:
        """Sort key of the worst snapshot: its peak, then its level at the end, then its step."""
        return self.levels[PEAK] or 0, self.levels[END] or 0, self.step or 0


Key = tuple[object, ...]
Steps = Mapping[int | None, MemorySnapshot]


def list_measured_snapshots(side: ComparedSide) -> list[MemorySnapshot]:
    """List every measured snapshot of every device; `reported` covers saved reports."""
    return list(chain.from_iterable(_read_input_snapshots(measured) for measured in side.measured))


def _read_input_snapshots(measured: Measurements) -> Iterator[MemorySnapshot]:
    """List the snapshots of one input, with the free space at its end."""
    levels = measured.frame("snapshot_levels")
    if not len(levels):
        return
    levels = levels.join(_measure_free_space(measured), on=SNAPSHOT_KEYS, how="left", optional=SNAPSHOT_KEYS)
    windows = measured.frame("snapshot_windows")
    ends = windows.filter(~windows.is_missing("end_ns")).group_by("source").agg(end_ns=max_of("end_ns"))
    end_of = dict(zip(ends.values("source"), ends.values("end_ns"), strict=True))
    step_of = {source.name: source.step for source in measured.sources}
    levels = levels.with_columns(step=numbers([step_of.get(source) for source in levels.values("source")]))
    for row, number in zip(levels.rows(), _number_processes(levels), strict=True):
        yield MemorySnapshot(
            MemoryOwner(row["memory"], row["role"], row["rank"], row["replica"], row["device"], number),
            row["run"],
            row["step"],
            end_of.get(row["source"], 0),
            row["source"] or "",
            _read_snapshot_levels(row),
            row,
            measured,
        )


def _read_snapshot_levels(row: Mapping[str, Any]) -> dict[str, int | None]:
    """Read the levels of a row; without a history there is no peak."""
    levels: dict[str, int | None] = {name: row[column] for name, column in _MEASURED.items()}
    if not row["entry_count"]:
        levels |= {PEAK: None, "peak_reserved": None}
    return levels


def _number_processes(levels: Frame) -> list[int]:
    """Assign each row the number of its process within the rank.

    A process that replaced another keeps its number.
    """
    rank = ("run", "memory", "role", "rank", "replica", "device")
    of_rank = levels.group_by(*rank)
    levels = levels.with_columns(of_rank=of_rank.number, process=levels.dense_rank("host", "pid"))
    at_once = levels.group_by(*rank, "step").each(count_distinct_of("process"))
    place = levels.dense_rank("of_rank", "process")
    number = np.where(of_rank.each(max_of(at_once)) > 1, place - of_rank.each(min_of(place)), 0)
    numbers_in_rank: list[int] = number.tolist()
    return numbers_in_rank


def _measure_free_space(measured: Measurements) -> Frame:
    """Measure the free space at the end of every snapshot: stranded bytes and the largest block."""
    space = measured.frame("free_space")
    ends = space.filter(space.equals("moment", "end")).group_by(*SNAPSHOT_KEYS)
    return ends.agg(stranded_bytes=sum_of("stranded_bytes"), largest_free_bytes=max_of("largest_free_bytes"))


def list_reported_snapshots(side: ComparedSide) -> list[MemorySnapshot]:
    """List the snapshot levels of a saved report by step: those of the worst rank of every role.

    Empty without a level that only snapshots have.
    """
    levels: dict[tuple[str | None, str, int | None], dict[str, int | None]] = {}
    for name, metric in _LEVEL_METRICS.items():
        for (recorded, role, stage), samples in side.samples.items():
            if recorded != metric or stage is not None:
                continue
            for run, step, value in _iterate_step_values(samples):
                of_step = levels.setdefault((role, run, step), dict.fromkeys(MEMORY_LEVELS))
                of_step[name] = max(of_step[name] or 0, value)
    snapshots = []
    for (role, run, step), of_step in levels.items():
        if of_step[PEAK] is not None or of_step[END] is not None:
            whose = MemoryOwner("device", role, None, None, None, 0)
            snapshots.append(MemorySnapshot(whose, run, step, 0, side.name, of_step))
    return snapshots


def _iterate_step_values(samples: MetricSamples) -> Iterator[tuple[str, int | None, int]]:
    """Iterate over the (run, step, value) of every step."""
    for run, steps, values in zip(samples.runs, samples.steps, samples.values, strict=True):
        for (_, step, _), value in zip(steps, values, strict=True):
            yield run, step, int(value)


@dataclass(frozen=True, slots=True)
class SnapshotMatch:
    """Matched snapshots as (before, after), and notes on the matching."""

    pairs: tuple[tuple[MemorySnapshot, MemorySnapshot], ...]
    notes: tuple[str, ...]


def match_snapshots(
    base: Sequence[MemorySnapshot], opt: Sequence[MemorySnapshot], names: tuple[str, str]
) -> SnapshotMatch:
    """Match the snapshots of two sides; empty if they share no memory.

    If there are several runs, the snapshot with the highest peak is used. If the sides share no step, or no
    step has a number, the last snapshot of each is used.
    """
    base_steps, opt_steps = _group_snapshots_by_owner(base), _group_snapshots_by_owner(opt)
    key = _choose_owner_key(base_steps, opt_steps)
    if key is None:
        return SnapshotMatch((), ())
    before = {key(owner): owner for owner in base_steps}
    after = {key(owner): owner for owner in opt_steps}
    pairs: list[tuple[MemorySnapshot, MemorySnapshot]] = []
    notes = [*_describe_unmatched_owners(before, after, names)]
    for memory, whose in before.items():
        if memory in after:
            of_memory, note = _pair_memory_steps(base_steps[whose], opt_steps[after[memory]])
            pairs += of_memory
            notes.append(note)
    if _has_several_runs(base) or _has_several_runs(opt):
        notes.append("if a side has several runs, the snapshots with the highest peak are compared")
    if _has_unnumbered_snapshots(base) or _has_unnumbered_snapshots(opt):
        notes.append("if several snapshots have no step, the last one is compared")
    if any(owner.number for owner in (*base_steps, *opt_steps)):
        notes.append("processes of one rank are paired in the order of their ids")
    return SnapshotMatch(tuple(pairs), tuple(dict.fromkeys(note for note in notes if note)))


def _has_several_runs(side: Sequence[MemorySnapshot]) -> bool:
    return len({snapshot.run for snapshot in side}) > 1


def _has_unnumbered_snapshots(side: Sequence[MemorySnapshot]) -> bool:
    """Check whether a memory has several snapshots without a step in one run."""
    unnumbered = Counter((snapshot.whose, snapshot.run) for snapshot in side if snapshot.step is None)
    return max(unnumbered.values(), default=0) > 1


def _group_snapshots_by_owner(side: Iterable[MemorySnapshot]) -> dict[MemoryOwner, Steps]:
    """Group snapshots by memory and step, keeping the highest of each step.

    Under None it keeps the last snapshot of each run without a step number.
    """
    of_run: dict[tuple[MemoryOwner, str], dict[int | None, MemorySnapshot]] = {}
    for snapshot in side:
        steps = of_run.setdefault((snapshot.whose, snapshot.run), {})
        order = _get_capture_order if snapshot.step is None else _get_snapshot_height
        steps[snapshot.step] = max(steps.get(snapshot.step, snapshot), snapshot, key=order)
    owners: dict[MemoryOwner, dict[int | None, MemorySnapshot]] = {}
    for (whose, _), steps in of_run.items():
        highest = owners.setdefault(whose, {})
        for step, snapshot in steps.items():
            highest[step] = max(snapshot, highest.get(step, snapshot), key=_get_snapshot_height)
    return {whose: owners[whose] for whose in sorted(owners, key=make_missing_last_key)}


def _get_capture_order(snapshot: MemorySnapshot) -> tuple[int, str]:
    """Sort key: capture time, then file."""
    return snapshot.taken_ns, snapshot.source


def _get_snapshot_height(snapshot: MemorySnapshot) -> tuple[int, int, int]:
    return snapshot.height


def _choose_owner_key(
    before: Iterable[MemoryOwner], after: Iterable[MemoryOwner]
) -> Callable[[MemoryOwner], Key] | None:
    """Choose the key that matches owners: all known fields, or the fewest that separate them on both sides.

    If each side has one process, its name is ignored: the user chose to compare the two.
    """
    sides = [*before], [*after]
    if {*sides[0]} & {*sides[1]}:
        return tuple
    keys: list[Callable[[MemoryOwner], Key]] = [_key_without_role]
    if all(len({_key_of_process(owner) for owner in side}) == 1 for side in sides):
        keys += [_key_of_device, _key_of_memory]
    for key in keys:
        first, second = {key(owner) for owner in sides[0]}, {key(owner) for owner in sides[1]}
        tells_apart = (len(first), len(second)) == (len(sides[0]), len(sides[1]))
        if tells_apart and first & second:
            return key
    return None


def _key_without_role(whose: MemoryOwner) -> Key:
    return (whose.memory, *whose[2:])


def _key_of_process(whose: MemoryOwner) -> Key:
    return (whose.role, whose.rank, whose.replica, whose.number)


def _key_of_device(whose: MemoryOwner) -> Key:
    return (whose.memory, whose.device)


def _key_of_memory(whose: MemoryOwner) -> Key:
    return (whose.memory,)


def _describe_unmatched_owners(
    before: Mapping[Key, MemoryOwner], after: Mapping[Key, MemoryOwner], names: tuple[str, str]
) -> Iterator[str]:
    """Describe owners with different names, and those on one side only."""
    for key, whose in before.items():
        if key in after and str(after[key]) != str(whose):
            yield f"{whose} of {names[0]} is compared with {after[key]} of {names[1]}"
    yield from _describe_one_sided_owners(names[0], before, after)
    yield from _describe_one_sided_owners(names[1], after, before)


def _describe_one_sided_owners(
    name: str, owners: Mapping[Key, MemoryOwner], other_owners: Mapping[Key, MemoryOwner]
) -> Iterator[str]:
    """List the owners that the other side lacks in one line."""
    lacking = [str(whose) for key, whose in owners.items() if key not in other_owners]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        yield f"only {name} has snapshots of {'; '.join(lacking[:3])}{more}"


def _pair_memory_steps(base: Steps, opt: Steps) -> tuple[list[tuple[MemorySnapshot, MemorySnapshot]], str]:
    """Pair the steps of one memory, with a note if they differ."""
    common = _list_numbered_steps(base) & _list_numbered_steps(opt)
    if common:
        return [(base[step], opt[step]) for step in sorted(common)], ""
    before, after = _find_last_snapshot(base), _find_last_snapshot(opt)
    if before.step is None and after.step is None:
        return [(before, after)], ""
    note = (
        f"the sides share no step: {_name_snapshot_step(before)} is compared with {_name_snapshot_step(after)},"
        " the last of each"
    )
    return [(before, after)], note


def _name_snapshot_step(snapshot: MemorySnapshot) -> str:
    return format_numbered_word("step", snapshot.step) or "a snapshot without a step"


def _list_numbered_steps(steps: Steps) -> set[int]:
    """Collect the steps with a number."""
    return {step for step in steps if step is not None}


def _find_last_snapshot(steps: Steps) -> MemorySnapshot:
    """Find the snapshot of the last step; one without a number only if there is no other."""
    return steps[max(_list_numbered_steps(steps), default=None)]
