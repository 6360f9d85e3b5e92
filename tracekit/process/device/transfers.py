"""Copies between device and host memory (H2D, D2H) by stage: busy and exposed time (Q13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, covered, subtract, union, window_at
from tracekit.model.keys import distinct, of_arrays, summed
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable, at_rows, joined
from tracekit.model.trace import Trace
from tracekit.process.device.copy_names import way_of
from tracekit.process.device.devices import devices
from tracekit.process.name_filters import named, of_kind
from tracekit.process.steps.stage_lookup import outer_ranges
from tracekit.process.steps.windows import windows

Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

SMALL_BYTES = 64_000
"""Copies up to this size carry arguments and scalars, not state, and are left out."""

RATED_BYTES = 2**20
"""Smallest copy that shows the bandwidth of a link."""

HOST_WAYS = ("HtoD", "DtoH")


@dataclass(frozen=True, slots=True)
class Places:
    """Windows in order, without overlap: outermost stages, and the rest of each step."""

    step: Nullable
    stage: Objects
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one device and kind."""

    start: Ints
    end: Ints
    size_bytes: Ints

    def at(self, rows: Any) -> Copies:
        """Select rows."""
        return Copies(self.start[rows], self.end[rows], self.size_bytes[rows])


def transfers(trace: Trace) -> Mapping[str, Any]:
    """Measure copies above 64,000 bytes by device, step, outermost stage, direction and memory; {} for none.

    Columns: those keys; count and size_bytes of the copies that start there; busy_ns and exposed_ns of the
    time there (exposed: no kernel and no collective runs); max_gb_per_s of copies of 1 MiB and more.
    Direction `any` is the union of H2D and D2H time, so it may be less than their sum.
    """
    size = trace.nullable("device_ops", "size_bytes")
    is_large = ~size.missing & (size.values > SMALL_BYTES)
    rows = (of_kind(trace, "device_ops", "memcpy") & is_large).nonzero()[0]
    if not len(rows):
        return {}
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    names, places = trace.texts("device_ops", "name"), _places(trace)
    kinds = [way_of(name) for name in names.texts]
    works = of_kind(trace, "device_ops", "kernel", "collective").nonzero()[0]
    parts = []
    for ordinal, of_copies, of_work in _by_device(trace, rows, works):
        busy = union(start[of_work], end[of_work])
        copies = Copies(start[of_copies], end[of_copies], size.values[of_copies])
        for way, memory, of_way in _ways(kinds, names.codes[of_copies]):
            part = _by_place(copies.at(of_way), busy, places)
            same = np.zeros(len(part["count"]), np.int64)
            parts.append(
                part
                | {"device": at_rows(ordinal, same)}
                | {"direction": np.full(len(same), way, object)}
                | {"memory": np.full(len(same), memory, object)}
            )
    return {name: joined([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _by_device(trace: Trace, copies: Ints, works: Ints) -> Iterator[tuple[Nullable, Ints, Ints]]:
    """Yield (device, rows of its copies, rows of its other work) for every device with copies, the unknown one last."""
    recorded = trace.derived(devices)
    of_copies, of_works = recorded.number[copies], recorded.number[works]
    for number in recorded.in_order:
        if (of_copies == number).any():
            ordinal = at_rows(recorded.ordinal, [number])
            yield ordinal, copies[of_copies == number], works[of_works == number]


def _ways(
    kinds: list[tuple[str | None, str | None]], code: Ints
) -> Iterator[tuple[str, str | None, Ints]]:
    """Yield (direction, memory, rows) of every recorded kind, then all H2D and D2H copies as direction `any`.

    `kinds` has direction and memory of each name; `code` is the name of each row, -1 for none.
    """
    recorded = {kinds[number] for number in distinct(code).tolist() if number >= 0}
    for way, memory in sorted(
        recorded, key=lambda kind: (kind[0] or "", kind[1] is None, kind[1] or "")
    ):
        if way is not None:
            yield way, memory, _rows_of(code, [kind == (way, memory) for kind in kinds])
    both = _rows_of(code, [way in HOST_WAYS for way, _ in kinds])
    if len(both):
        yield "any", None, both


def _rows_of(code: Ints, is_chosen: list[bool]) -> Ints:
    """Find the rows whose name is chosen."""
    return np.array([*is_chosen, False], np.bool_)[code].nonzero()[0]


def _places(trace: Trace) -> Places:
    """Split the trace into outermost stages and the rest of each step."""
    steps, stages = trace.derived(windows).step_rows, trace.derived(outer_ranges)
    start, end = stages.ts_ns, stages.end_ns
    # Ends jitter by up to a microsecond: begin each stage no earlier than the end of the one before.
    before = np.maximum.accumulate(np.concatenate((start[:1], end)))[:-1]
    start = np.minimum(np.maximum(start, before), end)
    outside = _cut(subtract(union(steps.ts_ns, steps.end_ns), union(start, end)), steps.ts_ns)
    starts = np.concatenate((start, outside.start))
    order = np.argsort(starts, kind="stable")
    stage = np.concatenate((np.arange(len(stages)), np.full(len(outside.start), -1)))
    step, of_outside = stages.step, steps.number_at(outside.start)
    return Places(
        Nullable(
            np.concatenate((step.values, of_outside.values))[order],
            np.concatenate((step.missing, of_outside.missing))[order],
        ),
        named(stages.stage, stage[order]),
        starts[order],
        np.concatenate((end, outside.end))[order],
    )


def _cut(spans: Intervals, at: Ints) -> Intervals:
    """Split spans at these instants; the union of adjacent steps is one span that must be split again."""
    span = np.searchsorted(spans.start, at, side="right") - 1
    inside = at[(span >= 0) & (at < np.append(spans.end, 0)[span])]
    start = distinct(np.concatenate((spans.start, inside)))
    span = np.searchsorted(spans.start, start, side="right") - 1
    end = np.minimum(spans.end[span], np.append(start[1:], np.iinfo(np.int64).max))
    return Intervals(start, end)


def _by_place(copies: Copies, busy: Intervals, places: Places) -> dict[str, Any]:
    """Sum the copies of one kind in every window that any of them touches."""
    running, (begin, end) = union(copies.start, copies.end), (places.start, places.end)
    busy_ns = covered(running, begin, end)
    exposed_ns = covered(subtract(running, busy), begin, end)
    assert (exposed_ns <= busy_ns).all(), "what is exposed is a part of what runs"
    place = window_at(begin, end, copies.start)
    count = np.bincount(place[place >= 0], minlength=len(begin))
    moved = summed(place, copies.size_bytes, len(begin))
    touched = ((busy_ns > 0) | (count > 0)).nonzero()[0]
    step, stage = at_rows(places.step, touched), places.stage[touched]
    group, first = of_arrays([step, stage])
    sums = {"count": count, "size_bytes": moved, "busy_ns": busy_ns, "exposed_ns": exposed_ns}
    dur = copies.end - copies.start
    rated = (copies.size_bytes >= RATED_BYTES) & (dur > 0)
    rate = (copies.size_bytes[rated] / dur[rated]).max(initial=0.0)
    unrated = np.full(len(first), not rated.any())
    return {
        "step": at_rows(step, first),
        "stage": stage[first],
        **{name: summed(group, values[touched], len(first)) for name, values in sums.items()},
        "max_gb_per_s": Nullable(np.full(len(first), rate), unrated),
    }
