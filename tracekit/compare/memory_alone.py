"""Two sides that memory snapshots alone can be compared of: the answer is what became of the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.changes import Choices, changes, step_key
from tracekit.compare.comparison import Change, Comparison, Difference
from tracekit.compare.differences import differences
from tracekit.compare.gate import gates
from tracekit.compare.memory import word_of
from tracekit.compare.memory_change import Level, MemoryChange
from tracekit.compare.sides import Side
from tracekit.model.version import VERSION

_BLOCKING = "world_size"
"""The one fact that forbids a verdict on memory: over other ranks the same state is divided otherwise."""


def compare_memory(base: Side, opt: Side, memory: MemoryChange, choices: Choices) -> Comparison:
    """The comparison of sides of which at least one recorded no step."""
    found = tuple(differences(base, opt))
    found = tuple(replace(one, blocking=one.blocking and one.name == _BLOCKING) for one in found)
    blocked = any(one.blocking for one in found) and not choices.force
    every = changes(base, opt, choices)
    head = _headline(memory.headline, blocked=blocked)
    if blocked:
        every = tuple(replace(one, word="not comparable") for one in every)
    return Comparison(
        tool_version=VERSION,
        base=base.name,
        opt=opt.name,
        verdict=head.word,
        headline=head,
        changes=every,
        differences=found,
        reading=memory.reading,
        warnings=(*ran_out(base, opt, memory), *_warnings(base, opt, found), *memory.notes),
        simulated=base.simulated or opt.simulated,
        min_effect=choices.min_effect,
        level=choices.level,
        gates=gates(choices.gate, base, opt, choices, blocked=blocked),
        inconclusive_fails=choices.gate.inconclusive_fails,
        untested_passes=choices.gate.untested_passes,
        memory=memory,
    )


def ran_out(base: Side, opt: Side, memory: MemoryChange | None) -> Iterator[str]:
    """The gravest thing that can be said of memory: that it ran out on one side more often than on the other."""
    before, after = memory.failed if memory is not None else (None, None)
    if before is None or after is None or before == after:
        return
    more, less = (opt, base) if after > before else (base, opt)
    times = [
        f"{count:,} {'time' if count == 1 else 'times'}"
        for count in (max(before, after), min(before, after))
    ]
    yield f"memory ran out {times[0]} in {more.name}, {times[1]} in {less.name}"


def _headline(level: Level, *, blocked: bool) -> Change:
    """The level of the highest device as the change that the answer is of."""
    ratio = level.base / level.opt if level.base and level.opt else None
    return Change(
        f"device_{level.name}",
        level.title,
        None,
        None,
        "bytes",
        level.better,
        "not comparable" if blocked else word_of(level),
        level.base,
        level.opt,
        level.difference,
        ratio,
        label="exact",
    )


def _warnings(base: Side, opt: Side, found: tuple[Difference, ...]) -> Iterator[str]:
    """What to keep in mind of a comparison without steps."""
    yield from (f"{one.name} differs ({one.base} · {one.opt})" for one in found)
    yield from dict.fromkeys((*base.notes, *opt.notes))
    key = step_key(base, opt)
    without = [side.name for side in (base, opt) if key not in side.samples]
    if len(without) == 1:
        yield f"{without[0]} recorded no step: only memory is compared"
