"""Matching of snapshots before and after: same rank with same rank, same step with same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from tracekit.compare.memory_snapshots import Snapshot, Whose
from tracekit.job.steps.metric_samples import missing_last
from tracekit.model.labels import called
from tracekit.model.records import dataclass

Key = tuple[object, ...]
Steps = Mapping[int | None, Snapshot]


@dataclass(frozen=True, slots=True)
class Match:
    """Matched snapshots as (before, after), and notes on the matching."""

    pairs: tuple[tuple[Snapshot, Snapshot], ...]
    notes: tuple[str, ...]


def matched(base: Sequence[Snapshot], opt: Sequence[Snapshot], names: tuple[str, str]) -> Match:
    """Match the snapshots of two sides; empty if they share no memory.

    If there are several runs, the snapshot with the highest peak is used. If the sides share no step, or no
    step has a number, the last snapshot of each is used.
    """
    base_steps, opt_steps = _by_owner(base), _by_owner(opt)
    key = _key(base_steps, opt_steps)
    if key is None:
        return Match((), ())
    before = dict(zip(map(key, base_steps), base_steps, strict=True))
    after = dict(zip(map(key, opt_steps), opt_steps, strict=True))
    pairs: list[tuple[Snapshot, Snapshot]] = []
    notes = [*_names(before, after, names)]
    for memory, whose in before.items():
        if memory in after:
            of_memory, note = _steps(base_steps[whose], opt_steps[after[memory]])
            pairs += of_memory
            notes.append(note)
    if _several_runs(base) or _several_runs(opt):
        notes.append("of several runs the snapshots with the highest peak are compared")
    if _several_unnumbered(base) or _several_unnumbered(opt):
        notes.append("of several snapshots without a step the last is compared")
    if any(map(attrgetter("number"), (*base_steps, *opt_steps))):
        notes.append("processes of one rank are paired in the order of their ids")
    return Match(tuple(pairs), tuple(dict.fromkeys(filter(None, notes))))


def _several_runs(side: Sequence[Snapshot]) -> bool:
    return len(set(map(attrgetter("run"), side))) > 1


def _several_unnumbered(side: Sequence[Snapshot]) -> bool:
    """Check whether a memory has several snapshots without a step in one run."""
    unnumbered = Counter(
        (snapshot.whose, snapshot.run) for snapshot in side if snapshot.step is None
    )
    return max(unnumbered.values(), default=0) > 1


def _by_owner(side: Iterable[Snapshot]) -> dict[Whose, Steps]:
    """Group snapshots by memory and step, keeping the highest of each step.

    Under None it keeps the last snapshot of each run without a step number.
    """
    of_run: dict[tuple[Whose, str], dict[int | None, Snapshot]] = {}
    for snapshot in side:
        steps = of_run.setdefault((snapshot.whose, snapshot.run), {})
        order = _taken if snapshot.step is None else _height
        steps[snapshot.step] = max(steps.get(snapshot.step, snapshot), snapshot, key=order)
    owners: dict[Whose, dict[int | None, Snapshot]] = {}
    for (whose, _), steps in of_run.items():
        highest = owners.setdefault(whose, {})
        for step, snapshot in steps.items():
            highest[step] = max(snapshot, highest.get(step, snapshot), key=_height)
    return {whose: owners[whose] for whose in sorted(owners, key=missing_last)}


def _taken(snapshot: Snapshot) -> tuple[int, str]:
    """Sort key: capture time, then file."""
    return snapshot.taken_ns, snapshot.source


def _height(snapshot: Snapshot) -> tuple[int, int, int]:
    return snapshot.height


def _key(before: Iterable[Whose], after: Iterable[Whose]) -> Callable[[Whose], Key] | None:
    """Choose the key that matches owners: all known fields, or the fewest that separate them on both sides.

    If each side has one process, its name is ignored: the user chose to compare the two.
    """
    sides = [*before], [*after]
    if {*sides[0]} & {*sides[1]}:
        return tuple
    keys: list[Callable[[Whose], Key]] = [_without_role]
    if all(len(set(map(_process, side))) == 1 for side in sides):
        keys += [_device, _memory]
    for key in keys:
        first, second = set(map(key, sides[0])), set(map(key, sides[1]))
        tells_apart = (len(first), len(second)) == (len(sides[0]), len(sides[1]))
        if tells_apart and first & second:
            return key
    return None


def _without_role(whose: Whose) -> Key:
    return (whose.memory, *whose[2:])


def _process(whose: Whose) -> Key:
    return (whose.role, whose.rank, whose.replica, whose.number)


def _device(whose: Whose) -> Key:
    return (whose.memory, whose.device)


def _memory(whose: Whose) -> Key:
    return (whose.memory,)


def _names(
    before: Mapping[Key, Whose], after: Mapping[Key, Whose], names: tuple[str, str]
) -> Iterator[str]:
    """Describe owners with different names, and those on one side only."""
    for key, whose in before.items():
        if key in after and str(after[key]) != str(whose):
            yield f"{whose} of {names[0]} is compared with {after[key]} of {names[1]}"
    yield from _on_one_side(names[0], before, after)
    yield from _on_one_side(names[1], after, before)


def _on_one_side(
    name: str, owners: Mapping[Key, Whose], others: Mapping[Key, Whose]
) -> Iterator[str]:
    """List the owners that the other side lacks in one line."""
    lacking = [str(whose) for key, whose in owners.items() if key not in others]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        yield f"only {name} has snapshots of {'; '.join(lacking[:3])}{more}"


def _steps(base: Steps, opt: Steps) -> tuple[list[tuple[Snapshot, Snapshot]], str]:
    """Pair the steps of one memory, with a note if they differ."""
    common = _numbered(base) & _numbered(opt)
    if common:
        return [(base[step], opt[step]) for step in sorted(common)], ""
    before, after = _last(base), _last(opt)
    if before.step is None and after.step is None:
        return [(before, after)], ""
    note = (
        f"no step is on both sides: {_step_name(before)} is compared with {_step_name(after)},"
        " the last of each"
    )
    return [(before, after)], note


def _step_name(snapshot: Snapshot) -> str:
    return called("step", snapshot.step) or "a snapshot without a step"


def _numbered(steps: Steps) -> set[int]:
    """Collect the steps with a number."""
    return {step for step in steps if step is not None}


def _last(steps: Steps) -> Snapshot:
    """Find the snapshot of the last step; one without a number only if there is no other."""
    return steps[max(_numbered(steps), default=None)]
