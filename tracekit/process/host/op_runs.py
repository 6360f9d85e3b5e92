"""Runs of calls of one op: short calls that follow one another on the step thread, as a loop over small tensors makes."""

from __future__ import annotations

import numpy as np

from tracekit.model.tables.arrays import Array, Coded, select_all_rows, trim_all_texts
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import (
    SHORT_NS,
    HostPhases,
    HostWindows,
    build_host_windows,
    classify_host_rows,
    find_step_thread,
)
from tracekit.process.steps.stage_lookup import find_range_codes_at

LEAST_CALLS = 100
"""Fewest calls in a row that a loop over small tensors makes; models call one op a few dozen times in a row."""


def measure_op_runs(trace: Trace) -> dict[str, Array]:
    """Sum the runs of calls of one op by step, stage and name; calls of an optimizer step do not count."""
    side: HostPhases = trace.derived(classify_host_rows)
    thread = trace.numbers("host_ops", "thread")
    chosen = side.call & (side.within_optimizer < 0)
    of_steps = trace.derived(find_step_thread)
    rows = chosen.nonzero()[0]
    if of_steps is None and len(rows):
        of_steps = int(np.bincount(thread[rows]).argmax())
    rows = rows[thread[rows] == of_steps]
    start = trace.numbers("host_ops", "ts_ns")[rows]
    order = np.argsort(start, kind="stable")
    rows, start = rows[order], start[order]
    dur = trace.numbers("host_ops", "dur_ns")[rows]
    where: HostWindows = trace.derived(build_host_windows)
    step, stage = where.step_at(start), find_range_codes_at(trace, start)
    name = trace.texts("host_ops", "name")
    codes = name.codes[rows].astype(np.int64)
    parts = np.stack((codes, step, stage.codes.astype(np.int64)))
    begins = np.append(True, (np.diff(parts, axis=1) != 0).any(axis=0))[: len(rows)]
    first = begins.nonzero()[0]
    count = np.diff(np.append(first, len(rows)))
    number = np.cumsum(begins) - 1
    op_ns = sum_by_group(number, dur, len(first))
    kept = ((count >= LEAST_CALLS) & (op_ns < SHORT_NS * count) & (step[first] >= 0)).nonzero()[0]
    first, count, op_ns = first[kept], count[kept], op_ns[kept]
    last = first + count - 1
    span_ns = start[last] + dur[last] - start[first]
    keys: dict[str, Array] = {
        **where.steps_of(step[first]),
        "stage": Coded(stage.codes[first], stage.texts),
        "name": Coded(name.codes[rows[first]], name.texts),
    }
    group, distinct = group_arrays(list(keys.values()))
    values = {"run_count": np.ones(len(kept), np.int64), "call_count": count, "op_ns": op_ns, "span_ns": span_ns}
    sums = {column: sum_by_group(group, of_runs, len(distinct)) for column, of_runs in values.items()}
    longest = find_longest_by_keys(keys, start[first], span_ns)
    return trim_all_texts({**select_all_rows(keys, distinct), **sums, **longest})
