"""Matching of snapshots before and after: same rank with same rank, same step with same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tracekit.compare.memory_snapshots import MemoryOwner, MemorySnapshot
from tracekit.job.steps.metric_samples import make_missing_last_key
from tracekit.model.labels import format_numbered_word
from tracekit.model.records import dataclass

Key = tuple[object, ...]
Steps = Mapping[int | None, MemorySnapshot]


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
        notes.append("of several runs the snapshots with the highest peak are compared")
    if _has_unnumbered_snapshots(base) or _has_unnumbered_snapshots(opt):
        notes.append("of several snapshots without a step the last is compared")
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
        f"no step is on both sides: {_name_snapshot_step(before)} is compared with {_name_snapshot_step(after)},"
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
