"""Did memory shrink or grow? The snapshots of two sides compared; every number is exact, one snapshot suffices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tracekit.compare.comparison import Word
from tracekit.compare.memory_change import Level, MemoryChange, Moment, Pair, Sites
from tracekit.compare.memory_pairs import matched
from tracekit.compare.memory_sites import site_changes
from tracekit.compare.memory_snapshots import END, LEVELS, PEAK, Snapshot, reported, snapshots
from tracekit.compare.sides import Side
from tracekit.job.metric_kinds import OUT_OF_MEMORY

LEAST_BYTES, LEAST_SHARE = 2**20, 0.01
"""A change smaller than either, of the level before, is none that matters: a mebibyte, or a hundredth."""

MAX_PAIRS = 200
"""Most pairs of snapshots that are told of: those with the highest peaks after."""

MAX_ELSEWHERE = 8
"""Most other memories of which the places in the program are compared."""

_LEVELS_ONLY = "a saved report tells levels of the worst rank only: what holds them, snapshots tell, or what --save wrote"
_MOMENTS: tuple[Moment, ...] = ("peak", "end")


def memory_change(base: Side, opt: Side) -> MemoryChange | None:
    """What became of memory; None where no memory was recorded in snapshots of both sides."""
    found = taken = [snapshots(side) for side in (base, opt)]
    if not all(taken):
        found = [reported(side) for side in (base, opt)]
    match = matched(found[0], found[1], (base.name, opt.name))
    if not match.pairs:
        return None
    pairs = sorted(match.pairs, key=_worst_first)
    heading = [pair for pair in pairs if pair[0].whose.memory == pairs[0][0].whose.memory]
    name = PEAK if all(_told(pair, PEAK) for pair in heading) else END
    heading = [pair for pair in heading if _told(pair, name)]
    if not heading:
        return None
    shown = tuple(_pair(*pair) for pair in pairs[:MAX_PAIRS])
    sites = [one for moment in _MOMENTS if (one := site_changes(*pairs[0], moment)) is not None]
    return MemoryChange(
        _highest(name, heading),
        shown,
        len(pairs) - len(shown),
        _median(name, heading),
        tuple(sites),
        tuple(_elsewhere(pairs)),
        (_failed(base), _failed(opt)),
        tuple(_reading(side, own) for side, own in zip((base, opt), taken, strict=True)),
        (*match.notes, *([_LEVELS_ONLY] if found is not taken else [])),
    )


def word_of(level: Level) -> Word:
    """The word for a level: equal to the byte, too little to matter, less, or more."""
    if level.difference is None or level.base is None:
        return "inconclusive"
    if not level.difference:
        return "same"
    if abs(level.difference) < max(LEAST_BYTES, LEAST_SHARE * level.base):
        return "no change"
    return "improvement" if level.difference < 0 else "regression"


def _told(pair: tuple[Snapshot, Snapshot], name: str) -> bool:
    """Whether both snapshots tell a level."""
    return all(one.levels[name] is not None for one in pair)


def _worst_first(pair: tuple[Snapshot, Snapshot]) -> tuple[object, ...]:
    """Memory of devices first, by the highest peak after, then before; of equals the last step."""
    before, after = pair
    heights = [-value for one in (after, before) for value in one.height[:2]]
    return (before.whose.memory == "host", *heights, -(after.step or 0), str(before.whose))


def _pair(before: Snapshot, after: Snapshot) -> Pair:
    return Pair(
        str(before.whose)
        if before.measured
        else f"the worst rank {before.whose.role or ''}".strip(),
        before.step,
        after.step,
        before.source,
        after.source,
        tuple(_level(name, before.levels[name], after.levels[name]) for name in LEVELS),
    )


def _level(name: str, base: int | None, opt: int | None) -> Level:
    """One level on both sides."""
    change = None if base is None or opt is None else opt - base
    share = change / base if base and change is not None else None
    return Level(name, *LEVELS[name], base, opt, change, share)


def _highest(name: str, pairs: Sequence[tuple[Snapshot, Snapshot]]) -> Level:
    """The highest of a level before, and the highest after: what the devices need."""
    return _level(name, *(max(values) for values in _values(name, pairs)))


def _median(name: str, pairs: Sequence[tuple[Snapshot, Snapshot]]) -> Level | None:
    """A level of the median memory on both sides, of the worst snapshot of each; None of one memory."""
    of: dict[object, list[tuple[Snapshot, Snapshot]]] = {}
    for pair in pairs:
        of.setdefault(pair[0].whose, []).append(pair)
    if len(of) < 2:
        return None
    each = [[max(values) for values in _values(name, mine)] for mine in of.values()]
    return _level(name, *(round(median(values)) for values in zip(*each, strict=True)))


def _values(name: str, pairs: Sequence[tuple[Snapshot, Snapshot]]) -> list[list[int]]:
    """A level of all pairs, before and after."""
    return [[pair[at].levels[name] or 0 for pair in pairs] for at in (0, 1)]


def _elsewhere(pairs: Sequence[tuple[Snapshot, Snapshot]]) -> Iterator[Sites]:
    """The places at the peak of other memories than the first pair's, each at its worst."""
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
    """How many requests failed in the run with most of them; None where no history was read."""
    found = side.samples.get((OUT_OF_MEMORY, None, None))
    return None if found is None else int(max(sum(run) for run in found.values))


def _reading(side: Side, found: Sequence[Snapshot]) -> str:
    """How the snapshots of a side were understood."""
    if not found:
        return f"{side.name}: levels of memory"
    count = len({(one.run, one.source) for one in found})
    memories = len({one.whose for one in found})
    text = f"{side.name}: {count:,} memory {'snapshot' if count == 1 else 'snapshots'}"
    return text + (f" of {memories:,} devices" if memories > 1 else "")
