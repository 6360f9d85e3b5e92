"""Kernels without a launching op (CUDA graphs, Triton) that have another name on each side: one name for both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.frame import Frame, sum_of, texts
from tracekit.model.tables.slots import NO_OP, UNLINKED
from tracekit.model.text.kernel_labels import shorten_kernel_name, strip_build_details

Slot = tuple[str, str, str, str]
"""Stage, class, op path and kernel."""

RENAMED = " → "
"""Separator of a kernel's names before and after."""

KEYS = ("stage", "class", "op", "kernel")

_SAME_CALLS = 1e-9
"""Largest relative difference of two equal call counts: the rounding error of a mean."""


def rename_replaced_kernels(rows: Frame) -> Frame:
    """Give kernels that replace one another the same name, `before → after`.

    `rows` are the slots of both sides (columns `KEYS`, half, unit, ns, count). Kernels without a launching op
    replace one another if each is on one side of a stage only, and calls both equally often per step.
    """
    before, after = (_measure_unlaunched_kernels(rows.filter(rows["half"] == half)) for half in (0, 1))
    renamed = dict(_match_renamed_kernels(before, after))
    if not renamed:
        return rows
    by_slot = rows.group_by(*KEYS)
    names = [renamed.get(_get_slot(row), row["kernel"]) for row in by_slot.agg().rows()]
    return rows.with_columns(kernel=select_rows(texts(names), by_slot.number))


def _get_slot(row: Mapping[str, str]) -> Slot:
    """Get the slot of a row."""
    return (row["stage"], row["class"], row["op"], row["kernel"])


def _measure_unlaunched_kernels(rows: Frame) -> dict[Slot, tuple[float, float]]:
    """Measure calls and time per step of each kernel without a launching op on one side."""
    chosen = rows.filter(rows.equals("class", "compute") & rows.is_in("op", (NO_OP, UNLINKED, "")))
    units = max(len(rows.distinct("unit")), 1)
    sums = chosen.group_by(*KEYS).agg(count=sum_of("count"), ns=sum_of("ns"))
    return {_get_slot(row): (row["count"] / units, row["ns"] / units) for row in sums.rows() if row["kernel"]}


def _match_renamed_kernels(
    before: Mapping[Slot, tuple[float, float]], after: Mapping[Slot, tuple[float, float]]
) -> Iterator[tuple[Slot, str]]:
    """Match the kernels of one side only: those alike but for build details first, then in order of time."""
    gone, come = _group_by_place(before, after), _group_by_place(after, before)
    for place in gone.keys() & come.keys():
        old, new = gone[place], come[place]
        alike = [(a, b) for a in old for b in new if strip_build_details(a[3]) == strip_build_details(b[3])]
        pairs = []
        for pair in alike:
            if pair[0] in old and pair[1] in new and _has_same_calls(before[pair[0]], after[pair[1]]):
                pairs.append(pair)
                old.remove(pair[0])
                new.remove(pair[1])
        if len(old) == len(new):
            rest = zip(_sort_by_time(old, before), _sort_by_time(new, after), strict=True)
            pairs += [(a, b) for a, b in rest if _has_same_calls(before[a], after[b])]
        for a, b in pairs:
            name = join_kernel_names(a[3], b[3])
            yield a, name
            yield b, name


def join_kernel_names(before: str, after: str) -> str:
    """Join the names of a kernel on both sides, with equal functions once.

    >>> at = "void at::native::vectorized_elementwise_kernel<8, at::native::"
    >>> join_kernel_names(at + "GeluCUDAKernelImpl(int)>(int)", at + "(anonymous namespace)::silu_kernel(int)>(int)")
    'gelu → silu (vectorized_elementwise_kernel, int32)'
    >>> join_kernel_names("mine_v1", "mine_v2")
    'mine_v1 → mine_v2'
    """
    first, second = shorten_kernel_name(before), shorten_kernel_name(after)
    kind, _, function = first.partition(" (")
    if first == second:
        return first
    if function and second.endswith(f" ({function}"):
        return f"{kind}{RENAMED}{second}"
    return f"{first}{RENAMED}{second}"


def _group_by_place(
    slots: Mapping[Slot, tuple[float, float]], other: Mapping[Slot, tuple[float, float]]
) -> dict[tuple[str, str, str, int], list[Slot]]:
    """Group the slots that the other side lacks by stage, class, op and whole calls per step."""
    places = defaultdict(list)
    for slot, (calls, _) in slots.items():
        if slot not in other and calls:
            places[*slot[:3], round(calls)].append(slot)
    return places


def _has_same_calls(one: tuple[float, float], two: tuple[float, float]) -> bool:
    return abs(one[0] - two[0]) <= _SAME_CALLS * max(one[0], two[0])


def _sort_by_time(slots: list[Slot], sizes: Mapping[Slot, tuple[float, float]]) -> list[Slot]:
    """Sort slots by time, the longest first."""
    return sorted(slots, key=lambda slot: (-sizes[slot][1], slot))
