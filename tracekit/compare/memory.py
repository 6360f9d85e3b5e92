"""Memory of two sides, compared by their snapshots. Every number is exact; one snapshot suffices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from operator import attrgetter
from statistics import median

from tracekit.compare.comparison import Word
from tracekit.compare.memory_change import Level, MemoryChange, Moment, Pair, Sites
from tracekit.compare.memory_pairs import matched
from tracekit.compare.memory_sites import site_changes
from tracekit.compare.memory_snapshots import END, LEVELS, PEAK, Snapshot, reported, snapshots
from tracekit.compare.sides import Side
from tracekit.job.frames import share_of
from tracekit.model.labels import plural
from tracekit.model.metrics import OUT_OF_MEMORY

LEAST_BYTES, LEAST_SHARE = 2**20, 0.01
"""Smallest change that matters: a mebibyte, and a hundredth of the level before."""

MAX_PAIRS = 200
"""Most pairs of snapshots listed: those with the highest peaks after the change."""

MAX_ELSEWHERE = 8
"""Most other memories whose allocation sites are compared."""

_LEVELS_ONLY = "a saved report tells levels of the worst rank only: what holds them, snapshots tell, or what --save wrote"
_MOMENTS: tuple[Moment, ...] = ("peak", "end")

SnapshotPair = tuple[Snapshot, Snapshot]
"""A snapshot before the change, and its counterpart after it."""


def memory_change(base: Side, opt: Side) -> MemoryChange | None:
    """Compare the memory of two sides; None if either has no memory recorded in snapshots."""
    base_measured, opt_measured = snapshots(base), snapshots(opt)
    notes: tuple[str, ...] = ()
    if base_measured and opt_measured:
        match = matched(base_measured, opt_measured, (base.name, opt.name))
    else:
        match = matched(reported(base), reported(opt), (base.name, opt.name))
        notes = (_LEVELS_ONLY,)
    pairs = sorted(match.pairs, key=_worst_first)
    if not pairs:
        return None
    name, heading = _heading(pairs)
    if not heading:
        return None
    levels = tuple(starmap(_pair, pairs[:MAX_PAIRS]))
    sites = (site_changes(*pairs[0], moment) for moment in _MOMENTS)
    return MemoryChange(
        _highest(name, heading),
        levels,
        omitted=len(pairs) - len(levels),
        median=_median(name, heading),
        sites=tuple(filter(None, sites)),
        elsewhere=tuple(_elsewhere(pairs)),
        failed=(_failed(base), _failed(opt)),
        reading=(_reading(base, base_measured), _reading(opt, opt_measured)),
        notes=(*match.notes, *notes),
    )


def _heading(pairs: Sequence[SnapshotPair]) -> tuple[str, list[SnapshotPair]]:
    """Choose the headline level, and the pairs of the worst memory's kind that have it."""
    memory = pairs[0][0].whose.memory
    of_memory = [pair for pair in pairs if pair[0].whose.memory == memory]
    if all(_recorded(pair, PEAK) for pair in of_memory):
        return PEAK, of_memory
    return END, [pair for pair in of_memory if _recorded(pair, END)]


def word_of(level: Level) -> Word:
    """Judge a level: equal to the byte, too small to matter, less, or more."""
    if level.difference is None or level.base is None:
        return "inconclusive"
    if not level.difference:
        return "same"
    if abs(level.difference) < max(LEAST_BYTES, LEAST_SHARE * level.base):
        return "no change"
    return "improvement" if level.difference < 0 else "regression"


def _recorded(pair: SnapshotPair, name: str) -> bool:
    """Check whether both snapshots recorded a level."""
    before, after = pair
    return before.levels[name] is not None and after.levels[name] is not None


def _worst_first(pair: SnapshotPair) -> tuple[object, ...]:
    """Sort key: device memory first, then the highest peak after, then before; for ties the last step."""
    before, after = pair
    return (
        before.whose.memory == "host",
        -after.height[0],
        -after.height[1],
        -before.height[0],
        -before.height[1],
        -(after.step or 0),
        str(before.whose),
    )


def _pair(before: Snapshot, after: Snapshot) -> Pair:
    """Compare all levels of two snapshots."""
    who = str(before.whose)
    if not before.measured:
        who = f"the worst rank {before.whose.role or ''}".strip()
    levels = tuple(_level(name, before.levels[name], after.levels[name]) for name in LEVELS)
    return Pair(who, before.step, after.step, before.source, after.source, levels)


def _level(name: str, base: int | None, opt: int | None) -> Level:
    """Compare one level on both sides."""
    if base is None or opt is None:
        return Level(name, *LEVELS[name], base, opt)
    change = opt - base
    return Level(name, *LEVELS[name], base, opt, change, share_of(change, base))


def _highest(name: str, pairs: Iterable[SnapshotPair]) -> Level:
    """Compare the highest values of a level before and after: the memory that the devices need."""
    befores, afters = zip(*pairs, strict=True)
    return _level(name, _most(name, befores), _most(name, afters))


def _most(name: str, of_side: Iterable[Snapshot]) -> int:
    """Find the highest value of a level among snapshots."""
    return max(snapshot.levels[name] or 0 for snapshot in of_side)


def _median(name: str, pairs: Sequence[SnapshotPair]) -> Level | None:
    """Compare the median of a level over memories, each at its worst snapshot; None for a single memory."""
    by_memory: dict[object, list[SnapshotPair]] = {}
    for pair in pairs:
        by_memory.setdefault(pair[0].whose, []).append(pair)
    if len(by_memory) < 2:
        return None
    highest = [_highest(name, of_memory) for of_memory in by_memory.values()]
    before = median(level.base or 0 for level in highest)
    after = median(level.opt or 0 for level in highest)
    return _level(name, round(before), round(after))


def _elsewhere(pairs: Sequence[SnapshotPair]) -> Iterator[Sites]:
    """Compare the allocation sites of memories other than the first pair's, each at its worst."""
    seen = {pairs[0][0].whose}
    for pair in pairs[1:]:
        if pair[0].whose in seen:
            continue
        if len(seen) > MAX_ELSEWHERE:
            return
        seen.add(pair[0].whose)
        sites = site_changes(*pair, "peak") or site_changes(*pair, "end")
        if sites is not None:
            yield sites


def _failed(side: Side) -> int | None:
    """Count the failed requests of the run with most; None if no history was read."""
    failures = side.samples.get((OUT_OF_MEMORY, None, None))
    if failures is None:
        return None
    return int(max(map(sum, failures.values)))


def _reading(side: Side, measured: Sequence[Snapshot]) -> str:
    """Describe how the snapshots of a side were interpreted."""
    if not measured:
        return f"{side.name}: levels of memory"
    count = len({(snapshot.run, snapshot.source) for snapshot in measured})
    memories = len(set(map(attrgetter("whose"), measured)))
    text = f"{side.name}: {count:,} memory {plural(count, 'snapshot')}"
    if memories > 1:
        text += f" of {memories:,} devices"
    return text
