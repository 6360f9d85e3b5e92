"""Which snapshot before is compared with which after: the same rank with the same rank, the same step with the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracekit.compare.memory_snapshots import Snapshot, Whose

Key = tuple[object, ...]
Steps = Mapping[int | None, Snapshot]


@dataclass(frozen=True, slots=True)
class Match:
    """Snapshots that belong together, each (before, after), and what to say of how they were found."""

    pairs: tuple[tuple[Snapshot, Snapshot], ...]
    notes: tuple[str, ...]


def matched(base: Sequence[Snapshot], opt: Sequence[Snapshot], names: tuple[str, str]) -> Match:
    """The pairs of two sides; none where no memory is on both.

    Of several runs the snapshot with the highest peak is taken. Where the sides share no step, or none has a
    number, the last of each is.
    """
    before, after = _by_owner(base), _by_owner(opt)
    key = _key(before, after)
    if key is None:
        return Match((), ())
    mine, other = ({key(whose): whose for whose in side} for side in (before, after))
    pairs: list[tuple[Snapshot, Snapshot]] = []
    notes = [*_named(mine, other, names)]
    for one in mine:
        if one in other:
            found, note = _steps(before[mine[one]], after[other[one]])
            pairs += found
            notes += [note] if note else []
    if any(len({one.run for one in side}) > 1 for side in (base, opt)):
        notes.append("of several runs the snapshots with the highest peak are compared")
    if any(count > 1 for side in (base, opt) for count in _unnumbered(side).values()):
        notes.append("of several snapshots without a step the last is compared")
    if any(whose.number for whose in (*before, *after)):
        notes.append("processes of one rank are paired in the order of their ids")
    return Match(tuple(pairs), tuple(dict.fromkeys(notes)))


def _by_owner(found: Iterable[Snapshot]) -> dict[Whose, Steps]:
    """The snapshots of each memory by step: the highest of each, and under None the last of those without a number."""
    runs: dict[tuple[Whose, str], dict[int | None, list[Snapshot]]] = {}
    for one in found:
        runs.setdefault((one.whose, one.run), {}).setdefault(one.step, []).append(one)
    owned: dict[Whose, dict[int | None, Snapshot]] = {}
    for (whose, _), steps in runs.items():
        mine = owned.setdefault(whose, {})
        for step, several in steps.items():
            last = max(several, key=lambda one: (one.taken_ns, one.source))
            one = last if step is None else max(several, key=lambda one: one.height)
            mine[step] = max(one, mine.get(step, one), key=lambda one: one.height)
    return dict(sorted(owned.items(), key=lambda pair: _order(pair[0])))


def _unnumbered(found: Iterable[Snapshot]) -> Counter[tuple[Whose, str]]:
    """How many snapshots of each memory in each run have no step."""
    return Counter((one.whose, one.run) for one in found if one.step is None)


def _order(whose: Whose) -> tuple[object, ...]:
    return tuple((value is None, value if value is not None else 0) for value in whose)


def _key(before: Iterable[Whose], after: Iterable[Whose]) -> Callable[[Whose], Key] | None:
    """By what owners are the same: all that is known of them, or as much as tells them apart on both sides.

    Of one process a side the names do not matter: those are what was given to be compared.
    """
    sides = [list(before), list(after)]
    keys: list[Callable[[Whose], Key]] = [tuple, lambda one: (*one[:1], *one[2:])]
    if all(
        len({(one.role, one.rank, one.replica, one.number) for one in side}) == 1 for side in sides
    ):
        keys += [lambda one: (one.memory, one.device), lambda one: (one.memory,)]
    for at, key in enumerate(keys):
        first, second = ({key(one) for one in side} for side in sides)
        whole = at == 0 or (len(first), len(second)) == (len(sides[0]), len(sides[1]))
        if whole and first & second:
            return key
    return None


def _named(
    mine: Mapping[Key, Whose], other: Mapping[Key, Whose], names: tuple[str, str]
) -> Iterator[str]:
    """What to say of owners that are called otherwise, and of those on one side alone."""
    for key, whose in mine.items():
        if key in other and str(other[key]) != str(whose):
            yield f"{whose} of {names[0]} is compared with {other[key]} of {names[1]}"
    for name, some, others in ((names[0], mine, other), (names[1], other, mine)):
        alone = [str(whose) for key, whose in some.items() if key not in others]
        if alone:
            more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
            yield f"only {name} has snapshots of {'; '.join(alone[:3])}{more}"


def _steps(base: Steps, opt: Steps) -> tuple[list[tuple[Snapshot, Snapshot]], str]:
    """(the pairs of one memory, what to say of their steps)."""
    common = sorted(step for step in base.keys() & opt.keys() if step is not None)
    if common:
        return [(base[step], opt[step]) for step in common], ""
    last = _last(base), _last(opt)
    steps = [one.step for one in last]
    if steps == [None, None]:
        return [last], ""
    told = ["a snapshot without a step" if step is None else f"step {step}" for step in steps]
    return [
        last
    ], f"no step is on both sides: {told[0]} is compared with {told[1]}, the last of each"


def _last(steps: Steps) -> Snapshot:
    """The snapshot of the last step; one without a number only where there is no other."""
    numbers = [step for step in steps if step is not None]
    return steps[max(numbers) if numbers else None]
