"""Predictions of peak memory: each change alone, and on top of those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import trim_texts
from tracekit.process.memory.allocator.plain import EMPTY
from tracekit.process.memory.allocator.run import AllocatorProgram, AllocatorRun, run_program
from tracekit.process.memory.windows import list_annotated_ranges, list_snapshot_stages, list_snapshot_steps
from tracekit.replay.changes import ChangeError
from tracekit.replay.memory.applying import (
    ReplayedMemory,
    TouchedMemory,
    apply_memory_change,
    measure_kv_cache,
)
from tracekit.replay.memory.failed_request import FailedRequest, find_failed_request, fits_request
from tracekit.replay.memory.memory_changes import MIB, AllocatorChange
from tracekit.replay.memory.purposes import find_kv_cache

MOST_STAGES = 6
"""Stages after which an empty cache is tried at most."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPrediction:
    """A change replayed: alone, and after those before it (`run` is None where it is not added to them).

    `fits` is whether the request that ran out of memory fits with this change only; None without such a request. `emptied_bytes` is
    the peak with this change only if the cache is emptied before the history; None if the history begins without memory.
    """

    change: AllocatorChange
    touched: TouchedMemory
    alone: AllocatorRun
    run: AllocatorRun | None
    fits: bool | None = None
    emptied_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """Predictions in order, and changes that cannot be predicted, with the reason."""

    predictions: tuple[MemoryPrediction, ...]
    refused: tuple[tuple[AllocatorChange, str], ...] = ()

    def get_last(self, recorded: AllocatorRun) -> AllocatorRun:
        """Get the run with all added changes; the recorded one without any."""
        return next((each.run for each in reversed(self.predictions) if each.run is not None), recorded)


def predict_memory_changes(memory: ReplayedMemory, changes: Sequence[AllocatorChange]) -> MemoryPlan:
    """Predict the memory with changes, one after the other. Raises `ChangeError`."""
    predictions: list[MemoryPrediction] = []
    program, failed = memory.program, find_failed_request(memory)
    for change in changes:
        try:
            alone, touched = apply_memory_change(memory, memory.program, change)
            program, _ = apply_memory_change(memory, program, change)
        except ChangeError as error:
            raise ChangeError(f"{change.describe()}: {error.problem}", error.hint) from None
        is_first = not predictions
        run_alone = run_program(alone)
        run = run_alone if is_first else run_program(program)
        predictions.append(
            MemoryPrediction(
                change, touched, run_alone, run, _check_failed(alone, failed), measure_from_empty_cache(alone)
            )
        )
    return MemoryPlan(tuple(predictions))


def plan_memory_changes(memory: ReplayedMemory) -> MemoryPlan:
    """Predict every change that applies, the one that saves most first; those that save nothing alone are not added."""
    tried: list[tuple[AllocatorChange, TouchedMemory, AllocatorRun, bool | None, int | None]] = []
    failed = find_failed_request(memory)
    refused = []
    for change in list_applicable_changes(memory):
        try:
            program, touched = apply_memory_change(memory, memory.program, change)
        except ChangeError as error:
            refused.append((change, error.problem))
            continue
        tried.append(
            (change, touched, run_program(program), _check_failed(program, failed), measure_from_empty_cache(program))
        )
    tried.sort(key=lambda each: each[2].peak_reserved)
    predictions: list[MemoryPrediction] = []
    program, peak = memory.program, memory.run.peak_reserved
    for change, touched, alone, fits, emptied in tried:
        run = None
        if alone.peak_reserved < memory.run.peak_reserved:
            run, program = _add_change(memory, program, change, peak)
            peak = peak if run is None else run.peak_reserved
        predictions.append(MemoryPrediction(change, touched, alone, run, fits, emptied))
    return MemoryPlan(tuple(predictions), tuple(refused))


def measure_from_empty_cache(program: AllocatorProgram) -> int | None:
    """Measure the peak if the cache is emptied before the history; None if the history begins without memory.

    Earlier steps of a run leave segments that the history does not need, and that a change would have made smaller.
    """
    if not len(program.blocks):
        return None
    first = np.array([[EMPTY, 0, 0, 0]], np.int64)
    entry = np.append(np.int64(-1), program.entry)
    return int(run_program(replace(program, ops=np.concatenate((first, program.ops)), entry=entry)).reserved.max())


def _check_failed(program: AllocatorProgram, failed: FailedRequest | None) -> bool | None:
    return None if failed is None else fits_request(program, failed)


def _add_change(
    memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange, peak: int
) -> tuple[AllocatorRun | None, AllocatorProgram]:
    """Add a change to those before it, if it saves more: (run or None, program)."""
    try:
        changed, _ = apply_memory_change(memory, program, change)
    except ChangeError:
        return None, program
    run = run_program(changed)
    return (run, changed) if run.peak_reserved < peak else (None, program)


def list_applicable_changes(memory: ReplayedMemory) -> Iterator[AllocatorChange]:
    """List the changes that are tried without any given."""
    yield AllocatorChange("expandable")
    yield from (AllocatorChange("max_split", size_bytes=size * MIB) for size in (128, 512))
    if memory.device_memory is not None:
        yield AllocatorChange("gc", factor=0.8)
    yield from (AllocatorChange("empty_cache", stage=stage) for stage in list_range_names(memory)[:MOST_STAGES])
    yield AllocatorChange("micro_batch", factor=0.5)
    yield AllocatorChange("offload")
    recorded = measure_kv_cache(memory, find_kv_cache(memory.trace, memory.replay))
    if recorded and memory.device_memory is not None:
        yield AllocatorChange("kv_cache", factor=round(0.5 * recorded / memory.device_memory, 4))


def list_range_names(memory: ReplayedMemory) -> list[str]:
    """List the stages of a history, without their numbers, or its ranges."""
    steps = list_snapshot_steps(memory.trace, memory.replay)
    stages = trim_texts(list_snapshot_stages(memory.trace, steps).stage)
    names = stages.texts or trim_texts(memory.trace.derived(list_annotated_ranges).name).texts
    return list(dict.fromkeys(name.partition("#")[0] for name in names))
