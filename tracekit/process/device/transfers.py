"""Copies between device and host memory (H2D, D2H) by stage: busy and exposed time (Q13)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, find_window_at, measure_coverage, merge_intervals, subtract
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable, concatenate_like_arrays, select_rows
from tracekit.model.tables.keys import find_distinct, group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.device.devices import number_devices
from tracekit.process.name_filters import look_up_names, mark_rows_of_kind
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

SMALL_BYTES = 64_000
"""Copies up to this size carry arguments and scalars, not state, and are left out."""

RATED_BYTES = 2**20
"""Smallest copy that shows the bandwidth of a link."""

HOST_WAYS = ("HtoD", "DtoH")


@dataclass(frozen=True, slots=True)
class TransferWindows:
    """Windows in order, without overlap: outermost stages, and the rest of each step."""

    step: Nullable
    stage: Objects
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class CopySpans:
    """Copies of one device and kind."""

    start: Ints
    end: Ints
    size_bytes: Ints

    def take(self, rows: Any) -> CopySpans:
        """Select rows."""
        return CopySpans(self.start[rows], self.end[rows], self.size_bytes[rows])


def measure_transfers(trace: Trace) -> Mapping[str, Any]:
    """Measure copies above 64,000 bytes by device, step, outermost stage, direction and memory; {} for none.

    Columns: those keys; count and size_bytes of the copies that start there; busy_ns and exposed_ns of the
    time there (exposed: no kernel and no collective runs); max_gb_per_s of copies of 1 MiB and more.
    Direction `any` is the union of H2D and D2H time, so it may be less than their sum.
    """
    size = trace.nullable("device_ops", "size_bytes")
    is_large = ~size.missing & (size.values > SMALL_BYTES)
    rows = (mark_rows_of_kind(trace, "device_ops", "memcpy") & is_large).nonzero()[0]
    if not len(rows):
        return {}
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    names, places = trace.texts("device_ops", "name"), _make_transfer_windows(trace)
    kinds = [parse_copy_direction(name) for name in names.texts]
    works = mark_rows_of_kind(trace, "device_ops", "kernel", "collective").nonzero()[0]
    parts = []
    for ordinal, of_copies, of_work in _split_copies_by_device(trace, rows, works):
        busy = merge_intervals(start[of_work], end[of_work])
        copies = CopySpans(start[of_copies], end[of_copies], size.values[of_copies])
        for way, memory, of_way in _split_copies_by_direction(kinds, names.codes[of_copies]):
            part = _sum_copies_by_window(copies.take(of_way), busy, places)
            same = np.zeros(len(part["count"]), np.int64)
            parts.append(
                part
                | {"device": select_rows(ordinal, same)}
                | {"direction": np.full(len(same), way, object)}
                | {"memory": np.full(len(same), memory, object)}
            )
    return {name: concatenate_like_arrays([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _split_copies_by_device(trace: Trace, copies: Ints, works: Ints) -> Iterator[tuple[Nullable, Ints, Ints]]:
    """Yield (device, rows of its copies, rows of its other work) for every device with copies, the unknown one last."""
    recorded = trace.derived(number_devices)
    of_copies, of_works = recorded.number[copies], recorded.number[works]
    for number in recorded.in_order:
        if (of_copies == number).any():
            ordinal = select_rows(recorded.ordinal, [number])
            yield ordinal, copies[of_copies == number], works[of_works == number]


def _split_copies_by_direction(
    kinds: list[tuple[str | None, str | None]], code: Ints
) -> Iterator[tuple[str, str | None, Ints]]:
    """Yield (direction, memory, rows) of every recorded kind, then all H2D and D2H copies as direction `any`.

    `kinds` has direction and memory of each name; `code` is the name of each row, -1 for none.
    """
    recorded = {kinds[number] for number in find_distinct(code).tolist() if number >= 0}
    for way, memory in sorted(recorded, key=lambda kind: (kind[0] or "", kind[1] is None, kind[1] or "")):
        if way is not None:
            yield (way, memory, _find_rows_of_chosen_names(code, [kind == (way, memory) for kind in kinds]))
    both = _find_rows_of_chosen_names(code, [way in HOST_WAYS for way, _ in kinds])
    if len(both):
        yield "any", None, both


def _find_rows_of_chosen_names(code: Ints, is_chosen: list[bool]) -> Ints:
    """Find the rows whose name is chosen."""
    return np.array([*is_chosen, False], np.bool_)[code].nonzero()[0]


def _make_transfer_windows(trace: Trace) -> TransferWindows:
    """Split the trace into outermost stages and the rest of each step."""
    steps, stages = (trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges))
    start, end = stages.ts_ns, stages.end_ns
    # Ends jitter by up to a microsecond: begin each stage no earlier than the end of the one before.
    before = np.maximum.accumulate(np.concatenate((start[:1], end)))[:-1]
    start = np.minimum(np.maximum(start, before), end)
    outside = _split_spans_at(
        subtract(merge_intervals(steps.ts_ns, steps.end_ns), merge_intervals(start, end)), steps.ts_ns
    )
    starts = np.concatenate((start, outside.start))
    order = np.argsort(starts, kind="stable")
    stage = np.concatenate((np.arange(len(stages)), np.full(len(outside.start), -1)))
    step, of_outside = stages.step, steps.number_at(outside.start)
    return TransferWindows(
        Nullable(
            np.concatenate((step.values, of_outside.values))[order],
            np.concatenate((step.missing, of_outside.missing))[order],
        ),
        look_up_names(stages.stage, stage[order]),
        starts[order],
        np.concatenate((end, outside.end))[order],
    )


def _split_spans_at(spans: Intervals, instants: Ints) -> Intervals:
    """Split spans at these instants; the union of adjacent steps is one span that must be split again."""
    span = np.searchsorted(spans.start, instants, side="right") - 1
    inside = instants[(span >= 0) & (instants < np.append(spans.end, 0)[span])]
    start = find_distinct(np.concatenate((spans.start, inside)))
    span = np.searchsorted(spans.start, start, side="right") - 1
    end = np.minimum(spans.end[span], np.append(start[1:], np.iinfo(np.int64).max))
    return Intervals(start, end)


def _sum_copies_by_window(copies: CopySpans, busy: Intervals, places: TransferWindows) -> dict[str, Any]:
    """Sum the copies of one kind in every window that any of them touches."""
    running, (begin, end) = merge_intervals(copies.start, copies.end), (places.start, places.end)
    busy_ns = measure_coverage(running, begin, end)
    exposed_ns = measure_coverage(subtract(running, busy), begin, end)
    assert (exposed_ns <= busy_ns).all(), "what is exposed is a part of what runs"
    place = find_window_at(begin, end, copies.start)
    count = np.bincount(place[place >= 0], minlength=len(begin))
    moved = sum_by_group(place, copies.size_bytes, len(begin))
    touched = ((busy_ns > 0) | (count > 0)).nonzero()[0]
    step, stage = select_rows(places.step, touched), places.stage[touched]
    group, first = group_arrays([step, stage])
    sums = {"count": count, "size_bytes": moved, "busy_ns": busy_ns, "exposed_ns": exposed_ns}
    dur = copies.end - copies.start
    rated = (copies.size_bytes >= RATED_BYTES) & (dur > 0)
    rate = (copies.size_bytes[rated] / dur[rated]).max(initial=0.0)
    unrated = np.full(len(first), not rated.any())
    return {
        "step": select_rows(step, first),
        "stage": stage[first],
        **{name: sum_by_group(group, values[touched], len(first)) for name, values in sums.items()},
        "max_gb_per_s": Nullable(np.full(len(first), rate), unrated),
    }


_WAY = re.compile(r"(Host|Device|Peer|H|D|P)(?:To|2|to)(Host|Device|Peer|H|D|P)")
_MEMORY = re.compile(r"\((.*)\)\s*\Z")


def parse_copy_direction(name: str) -> tuple[str | None, str | None]:
    """Parse the (direction, memory) of a copy from its name; None for a part that the name lacks.

    >>> parse_copy_direction("Memcpy HtoD (Pinned -> Device)"), parse_copy_direction("CopyDeviceToHost")
    (('HtoD', 'Pinned -> Device'), ('DtoH', None))
    """
    way, memory = _WAY.search(name), _MEMORY.search(name)
    return f"{way[1][0]}to{way[2][0]}" if way else None, memory[1] if memory else None
