"""Recurrences in a recording without step marks: repeating kernels and annotated ranges, and their intervals.

A window cut out of a run is not a step. Its repetitions are units of work to compare with other such
windows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import is_collective_range
from tracekit.model.tables.arrays import Array, concatenate_parts, repeat_number, repeat_text
from tracekit.model.tables.keys import number_keys, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.steps.repetition import mask_numbers
from tracekit.process.steps.windows import StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]

LEAST_TIMES = 6
"""Occurrences needed for a rhythm."""

MOST_NAMES, MOST_ROWS = 4, 200
"""Names per device or thread at most (those with most time); rows per name before recurrences are merged."""

LEAST_SPAN = 0.8
"""Share of the recording that a recurrence must span to pace it."""


def is_unmarked_recording(steps: StepWindows, part: str | None) -> bool:
    """Check whether the step is unknown: no mark, file name or capture range of the program gives it."""
    numbered_capture = part is not None and part.startswith("capture")
    unnumbered = steps.origin == "file" and bool(steps.step.missing.all())
    return bool(len(steps)) and unnumbered and not numbered_capture


def list_recurrences(trace: Trace) -> dict[str, Array] | None:
    """List the recurrences of a source without step marks, in order; None for other sources, or if nothing recurs.

    kind: launch (a kernel on one device) or range (of one thread, numbers in its name as `#`). dur_ns: from
    the start of the first of `count` recurrences to the start of the next one.
    """
    steps = trace.derived(find_steps_and_stages).step_rows
    if not is_unmarked_recording(steps, trace.source.part):
        return None
    least_span = LEAST_SPAN * float(steps.end_ns.max() - steps.ts_ns.min())
    parts = [*_list_recurring_kernels(trace, least_span), *_list_recurring_ranges(trace, least_span)]
    return concatenate_parts(parts) if parts else None


def _list_recurring_kernels(trace: Trace, least_span: float) -> Iterator[dict[str, Array]]:
    """Yield the recurring kernels of every device."""
    device, names = trace.nullable("device_ops", "device"), trace.texts("device_ops", "name")
    rows = mark_rows_of_kind(trace, "device_ops", "kernel").nonzero()[0]
    number = np.where(device.missing[rows], -1, device.values[rows])
    code = names.codes[rows]
    for (number_of, of_name), starts in _select_recurring_names(trace, "device_ops", rows, number, code, least_span):
        yield _make_recurrence_rows("launch", names.texts[of_name], None if number_of < 0 else number_of, starts)


def _list_recurring_ranges(trace: Trace, least_span: float) -> Iterator[dict[str, Array]]:
    """Yield the recurring annotated ranges of every thread, without ranges of single collectives."""
    names = trace.texts("host_ops", "name")
    patterns = [None if is_collective_range(name) else mask_numbers(name) for name in names.texts]
    texts = sorted({text for text in patterns if text is not None})
    code_of: dict[str | None, int] = {None: -1, **{text: code for code, text in enumerate(texts)}}
    codes = np.array([*(code_of[text] for text in patterns), -1], np.int64)
    rows = mark_rows_of_kind(trace, "host_ops", "range").nonzero()[0]
    code = codes[names.codes[rows]]
    rows, code = rows[code >= 0], code[code >= 0]
    thread = trace.numbers("host_ops", "thread")[rows]
    for (_, of_name), starts in _select_recurring_names(trace, "host_ops", rows, thread, code, least_span):
        yield _make_recurrence_rows("range", texts[of_name], None, starts)


def _select_recurring_names(
    trace: Trace, table: str, rows: Ints, where: Ints, name: Ints, least_span: float
) -> Iterator[tuple[tuple[int, int], Ints]]:
    """Yield ((place, name), its starts) for the names with most time in each place that recur often enough."""
    order = np.argsort(trace.numbers(table, "ts_ns")[rows], kind="stable")
    rows, where, name = rows[order], where[order], name[order]
    start, dur = trace.numbers(table, "ts_ns")[rows], trace.numbers(table, "dur_ns")[rows]
    places, place = number_keys(where)
    width = int(name.max(initial=-1)) + 2
    pairs, pair = number_keys(place * width + name + 1)
    times, ns = np.bincount(pair, minlength=len(pairs)), sum_by_group(pair, dur, len(pairs))
    first, last = np.empty((2, len(pairs)), np.int64)
    first[pair[::-1]], last[pair] = start[::-1], start
    recurring = ((times >= LEAST_TIMES) & (last - first >= least_span)).nonzero()[0]
    shown = np.zeros(len(places), np.int64)
    for number in recurring[np.argsort(-ns[recurring], kind="stable")].tolist():
        of_place, of_name = divmod(int(pairs[number]), width)
        shown[of_place] += 1
        if shown[of_place] <= MOST_NAMES:
            yield (int(places[of_place]), of_name - 1), start[pair == number]


def _make_recurrence_rows(kind: str, name: str, device: int | None, starts: Ints) -> dict[str, Array]:
    """Make the rows of one recurrence; a last partial row is left out."""
    count = -(-(len(starts) - 1) // MOST_ROWS)
    edges = starts[::count]
    length = len(edges) - 1
    return {
        "kind": repeat_text(kind, length),
        "name": repeat_text(name, length),
        "device": repeat_number(device, length),
        "position": np.arange(length),
        "ts_ns": edges[:-1],
        "dur_ns": np.diff(edges),
        "count": np.full(length, count),
    }
