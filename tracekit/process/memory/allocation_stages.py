"""The stage in which surviving memory was allocated: by annotated ranges, or by functions of the stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import RL_STAGES, get_canonical_stage
from tracekit.model.tables.arrays import Array, Coded, Nullable, fill_missing, mask_value, select_rows, trim_texts
from tracekit.model.tables.keys import look_up_keys, number_keys, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, Replay, replay_all_devices
from tracekit.process.memory.space import read_pools
from tracekit.process.memory.survivors import number_equal_rows
from tracekit.process.memory.windows import list_snapshot_stages, list_snapshot_steps
from tracekit.process.name_filters import look_up_name_codes, mark_wanted_names
from tracekit.process.steps.windows import StageWindows

Ints = npt.NDArray[np.int64]


def parse_stage_function(name: str) -> str | None:
    """Return the stage of the RL step that a Python function of this name runs; None for other functions.

    >>> parse_stage_function("update_policy"), parse_stage_function("verl/trainer.py(12): compute_log_prob")
    ('update_actor', 'old_log_prob')
    >>> parse_stage_function("forward"), parse_stage_function("Worker.update_actor")
    (None, 'update_actor')
    """
    stage = get_canonical_stage(name.rpartition(": ")[2].rpartition(".")[2])
    return stage if stage in RL_STAGES else None


def find_survivor_stages(trace: Trace, stack: Nullable, blocks: Mapping[str, Any]) -> Coded:
    """Find the stage of each stack, as recorded; missing where neither ranges nor functions show it.

    `blocks` are rows of `survivor_blocks`. A range has to contain more than half of the surviving bytes of the stack
    with a known time; otherwise, the outermost function named for a stage counts.
    """
    by_range, by_function = _sum_blocks_by_range(trace, blocks), trace.derived(_find_stage_functions)
    codes, texts = np.full(len(stack.values), -1, np.int64), list[str]()
    for keys, names in (by_function, by_range):  # ranges replace functions
        place, is_known = look_up_keys(keys, stack.values)
        codes = np.where(is_known & ~stack.missing, np.append(names.codes, -1)[place] + len(texts), codes)
        texts += names.texts
    return trim_texts(Coded(codes, tuple(texts)))


def list_new_segments(trace: Trace) -> tuple[dict[str, Array], Ints]:
    """List the segments at the end that the history allocated: (device, pool and stage as recorded; bytes)."""
    segments = mask_value(trace.texts("memory_segments", "memory"), "device").nonzero()[0]
    actions, memory = trace.texts("allocations", "action"), trace.texts("allocations", "memory")
    entries = (mask_value(actions, "segment_alloc") & mask_value(memory, "device")).nonzero()[0]
    code = number_equal_rows(
        *(
            np.concatenate([_read_filled(trace, table, name, rows) for table, rows in _both(entries, segments)])
            for name in ("device", "address")
        )
    )
    last = np.full(int(code.max(initial=-1)) + 1, -1, np.int64)
    last[code[: len(entries)]] = entries  # of equal addresses the last one counts
    born = last[code[len(entries) :]]
    segments, born = segments[born >= 0], born[born >= 0]
    keys: dict[str, Array] = {
        "device": select_rows(trace.nullable("memory_segments", "device"), segments),
        "pool": read_pools(trace, "memory_segments", segments),
        "stage": _find_entry_stages(trace, born),
    }
    return keys, np.clip(_read_filled(trace, "memory_segments", "size_bytes", segments), 0, MAX_BYTES)


def _both(entries: Ints, segments: Ints) -> tuple[tuple[str, Ints], tuple[str, Ints]]:
    """Return the rows of the history, then those of the segments, with their tables."""
    return ("allocations", entries), ("memory_segments", segments)


def _read_filled(trace: Trace, table: str, column: str, rows: Ints) -> Ints:
    """Read numbers of rows, -1 where missing."""
    return fill_missing(select_rows(trace.nullable(table, column), rows), -1)


def _find_entry_stages(trace: Trace, entries: Ints) -> Coded:
    """Find the stage of each entry of the history: the range around it, or a function of its stack."""
    stack = select_rows(trace.nullable("allocations", "stack"), entries)
    keys, functions = trace.derived(_find_stage_functions)
    place, is_known = look_up_keys(keys, stack.values)
    by_function = np.where(is_known & ~stack.missing, np.append(functions.codes, -1)[place], -1)
    ranges = _list_snapshot_ranges(trace)
    if ranges is None:
        return trim_texts(Coded(by_function, functions.texts))
    ts = select_rows(trace.nullable("allocations", "ts_ns"), entries)
    row = np.where(ts.missing, -1, ranges.row_at(ts.values))
    by_range = look_up_name_codes(ranges.stage, row)
    codes = np.where(by_range >= 0, len(functions.texts) + by_range, by_function)
    return trim_texts(Coded(codes, (*functions.texts, *ranges.stage.texts)))


def _list_snapshot_ranges(trace: Trace) -> StageWindows | None:
    """List the outermost ranges of a snapshot that may be stages; None without times."""
    timed: list[Replay] = [replay for replay in trace.derived(replay_all_devices) if replay.timed and len(replay.rows)]
    if not timed or not trace.has("annotations"):
        return None
    return list_snapshot_stages(trace, list_snapshot_steps(trace, timed[0]))


def _sum_blocks_by_range(trace: Trace, blocks: Mapping[str, Any]) -> tuple[Ints, Coded]:
    """Find the range of most surviving bytes: (ascending stacks, the name of each); without stacks of several ranges."""
    ranges, nothing = _list_snapshot_ranges(trace), (np.empty(0, np.int64), Coded(np.empty(0, np.int64), ()))
    if ranges is None or not len(ranges):
        return nothing
    stack, born = blocks["stack"], blocks["born_ns"]
    known = (~stack.missing & ~born.missing & blocks["born"]).nonzero()[0]
    if not len(known):
        return nothing
    keys, number = number_keys(stack.values[known])
    row = ranges.row_at(born.values[known])
    count = len(ranges.stage.texts) + 1
    stage = np.append(ranges.stage.codes, -1)[row].astype(np.int64)
    stage[row < 0] = -1
    sizes = sum_by_group(number * count + stage + 1, blocks["size_bytes"][known], len(keys) * count)
    by_stage = sizes.reshape(len(keys), count)
    best = by_stage.argmax(axis=1)
    is_most = (best > 0) & (2 * by_stage.max(axis=1) > by_stage.sum(axis=1))
    return keys[is_most], Coded(best[is_most] - 1, ranges.stage.texts)


def _find_stage_functions(trace: Trace) -> tuple[Ints, Coded]:
    """Find the outermost function of a stage in each stack: (ascending stacks, the stage of each)."""
    name, stack = trace.texts("stacks", "name"), trace.numbers("stacks", "stack")
    stages = [parse_stage_function(text) for text in name.texts]
    is_python = mark_wanted_names(trace.texts("stacks", "file"), lambda file: file.endswith(".py"))
    is_python |= mark_wanted_names(name, lambda text: ".py(" in text)
    rows = (np.array([*(stage is not None for stage in stages), False])[name.codes] & is_python).nonzero()[0]
    rows = rows[np.lexsort((-trace.numbers("stacks", "depth")[rows], stack[rows]))]
    keys, first = np.unique(stack[rows], return_index=True)
    known = {stage: place for place, stage in enumerate(dict.fromkeys(stage for stage in stages if stage))}
    code_of = np.array([*(known.get(stage or "", -1) for stage in stages), -1], np.int64)
    return keys, Coded(code_of[name.codes[rows[first]]], tuple(known))
