"""Memory of two sides, compared by their snapshots. Every number is exact; one snapshot suffices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from tracekit.compare.comparison import Word
from tracekit.compare.memory_change import MemoryChange, MemoryLevel, MemoryPair, MemorySites, Moment
from tracekit.compare.sides import ComparedSide
from tracekit.compare.snapshots.owners import (
    END,
    MEMORY_LEVELS,
    PEAK,
    MemorySnapshot,
    list_measured_snapshots,
    list_reported_snapshots,
    match_snapshots,
)
from tracekit.compare.snapshots.sites import compare_memory_sites
from tracekit.job.frames import divide_or_none
from tracekit.model.metrics import OUT_OF_MEMORY
from tracekit.model.text.labels import choose_plural

LEAST_BYTES, LEAST_SHARE = 2**20, 0.01
"""Smallest change that matters: a mebibyte, and a hundredth of the level before."""

MAX_PAIRS = 200
"""Most pairs of snapshots listed: those with the highest peaks after the change."""

MAX_ELSEWHERE = 8
"""Most other memories whose allocation sites are compared."""

_LEVELS_ONLY = "a saved report has levels of the worst rank only: for the places that use the memory, give snapshots or files of --save"
_MOMENTS: tuple[Moment, ...] = ("peak", "end")

SnapshotPair = tuple[MemorySnapshot, MemorySnapshot]
"""A snapshot before the change, and its counterpart after it."""


def compare_memory(base: ComparedSide, opt: ComparedSide) -> MemoryChange | None:
    """Compare the memory of two sides; None if either has no memory recorded in snapshots."""
    base_measured, opt_measured = list_measured_snapshots(base), list_measured_snapshots(opt)
    notes: tuple[str, ...] = ()
    if base_measured and opt_measured:
        match = match_snapshots(base_measured, opt_measured, (base.name, opt.name))
    else:
        match = match_snapshots(list_reported_snapshots(base), list_reported_snapshots(opt), (base.name, opt.name))
        notes = (_LEVELS_ONLY,)
    pairs = sorted(match.pairs, key=_rank_snapshot_pair)
    if not pairs:
        return None
    name, heading = _choose_headline_level(pairs)
    if not heading:
        return None
    levels = tuple(_compare_snapshot_levels(*pair) for pair in pairs[:MAX_PAIRS])
    sites = (compare_memory_sites(*pairs[0], moment) for moment in _MOMENTS)
    return MemoryChange(
        _compare_highest_levels(name, heading),
        levels,
        omitted=len(pairs) - len(levels),
        median=_compare_median_memory(name, heading),
        sites=tuple(site for site in sites if site),
        elsewhere=tuple(_compare_other_memories(pairs)),
        failed=(_count_failed_requests(base), _count_failed_requests(opt)),
        reading=(_describe_snapshots(base, base_measured), _describe_snapshots(opt, opt_measured)),
        notes=(*match.notes, *notes),
    )


def _choose_headline_level(pairs: Sequence[SnapshotPair]) -> tuple[str, list[SnapshotPair]]:
    """Choose the headline level, and the pairs of the worst memory's kind that have it."""
    memory = pairs[0][0].whose.memory
    of_memory = [pair for pair in pairs if pair[0].whose.memory == memory]
    if all(_has_level_on_both_sides(pair, PEAK) for pair in of_memory):
        return PEAK, of_memory
    return END, [pair for pair in of_memory if _has_level_on_both_sides(pair, END)]


def judge_memory_level(level: MemoryLevel) -> Word:
    """Judge a level: equal to the byte, too small to matter, less, or more."""
    if level.difference is None or level.base is None:
        return "inconclusive"
    if not level.difference:
        return "same"
    if abs(level.difference) < max(LEAST_BYTES, LEAST_SHARE * level.base):
        return "no change"
    return "improvement" if level.difference < 0 else "regression"


def _has_level_on_both_sides(pair: SnapshotPair, name: str) -> bool:
    """Check whether both snapshots recorded a level."""
    before, after = pair
    return before.levels[name] is not None and after.levels[name] is not None


def _rank_snapshot_pair(pair: SnapshotPair) -> tuple[object, ...]:
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


def _compare_snapshot_levels(before: MemorySnapshot, after: MemorySnapshot) -> MemoryPair:
    """Compare all levels of two snapshots."""
    who = str(before.whose)
    if not before.measured:
        who = f"the worst rank {before.whose.role or ''}".strip()
    levels = tuple(_compare_memory_level(name, before.levels[name], after.levels[name]) for name in MEMORY_LEVELS)
    return MemoryPair(who, before.step, after.step, before.source, after.source, levels)


def _compare_memory_level(name: str, base: int | None, opt: int | None) -> MemoryLevel:
    """Compare one level on both sides."""
    if base is None or opt is None:
        return MemoryLevel(name, *MEMORY_LEVELS[name], base, opt)
    change = opt - base
    return MemoryLevel(name, *MEMORY_LEVELS[name], base, opt, change, divide_or_none(change, base))


def _compare_highest_levels(name: str, pairs: Iterable[SnapshotPair]) -> MemoryLevel:
    """Compare the highest values of a level before and after: the memory that the devices need."""
    befores, afters = zip(*pairs, strict=True)
    return _compare_memory_level(name, _find_highest_level(name, befores), _find_highest_level(name, afters))


def _find_highest_level(name: str, of_side: Iterable[MemorySnapshot]) -> int:
    """Find the highest value of a level among snapshots."""
    return max(snapshot.levels[name] or 0 for snapshot in of_side)


def _compare_median_memory(name: str, pairs: Sequence[SnapshotPair]) -> MemoryLevel | None:
    """Compare the median of a level over memories, each at its worst snapshot; None for a single memory."""
    by_memory: dict[object, list[SnapshotPair]] = {}
    for pair in pairs:
        by_memory.setdefault(pair[0].whose, []).append(pair)
    if len(by_memory) < 2:
        return None
    highest = [_compare_highest_levels(name, of_memory) for of_memory in by_memory.values()]
    before = median(level.base or 0 for level in highest)
    after = median(level.opt or 0 for level in highest)
    return _compare_memory_level(name, round(before), round(after))


def _compare_other_memories(pairs: Sequence[SnapshotPair]) -> Iterator[MemorySites]:
    """Compare the allocation sites of memories other than the first pair's, each at its worst."""
    seen = {pairs[0][0].whose}
    for pair in pairs[1:]:
        if pair[0].whose in seen:
            continue
        if len(seen) > MAX_ELSEWHERE:
            return
        seen.add(pair[0].whose)
        sites = compare_memory_sites(*pair, "peak") or compare_memory_sites(*pair, "end")
        if sites is not None:
            yield sites


def _count_failed_requests(side: ComparedSide) -> int | None:
    """Count the failed requests of the run with most; None if no history was read."""
    failures = side.samples.get((OUT_OF_MEMORY, None, None))
    if failures is None:
        return None
    return int(max(sum(values) for values in failures.values))


def _describe_snapshots(side: ComparedSide, measured: Sequence[MemorySnapshot]) -> str:
    """Describe how the snapshots of a side were interpreted."""
    if not measured:
        return f"{side.name}: levels of memory"
    count = len({(snapshot.run, snapshot.source) for snapshot in measured})
    memories = len({snapshot.whose for snapshot in measured})
    text = f"{side.name}: {count:,} memory {choose_plural(count, 'snapshot')}"
    if memories > 1:
        text += f" of {memories:,} devices"
    return text
