"""Check of a replayed history against the recorded one: segments, reserved memory and addresses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.trace import Trace
from tracekit.process.memory.allocator.history import build_program
from tracekit.process.memory.allocator.plain import ALLOC, COMPLETE, EMPTY, FRESH, RELEASE
from tracekit.process.memory.allocator.run import OP, OWNER, AllocatorProgram, AllocatorRun, run_program
from tracekit.process.memory.replay import CODE, Replay

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_DIFFERENCE = 0.03
"""Difference from the recorded reserved memory, as a share of its peak, above which nothing is predicted."""


@dataclass(frozen=True, slots=True)
class HistoryMatch:
    """Comparison of a replayed history with the recorded one.

    `segments` and `recorded_segments` count segments got and given back, and `unequal_segments` those that differ in
    address, size or place in the history. `unequal_addresses` of `allocations` allocations have another address. `largest_bytes` is
    the largest difference of the reserved memory after any entry, `peak_bytes` the recorded peak.
    """

    segments: int
    recorded_segments: int
    unequal_segments: int
    allocations: int
    unequal_addresses: int
    largest_bytes: int
    peak_bytes: int

    @property
    def is_exact(self) -> bool:
        """Whether segments, reserved memory and addresses are as recorded."""
        return not (self.unequal_segments or self.unequal_addresses or self.largest_bytes)

    @property
    def difference(self) -> float:
        """Largest difference as a share of the recorded peak."""
        return self.largest_bytes / self.peak_bytes if self.peak_bytes else 0.0

    @property
    def is_sufficient(self) -> bool:
        """Whether what-ifs are predicted from this history."""
        return self.difference <= MAX_DIFFERENCE


def replay_history(trace: Trace, replay: Replay) -> tuple[AllocatorProgram, AllocatorRun, HistoryMatch]:
    """Build the program of a history, run it, and compare it with the record. Raises `UnreplayableError`.

    If giving the whole cache back does not match, segments are given back as recorded.
    """
    program = build_program(trace, replay)
    run = run_program(program)
    match = compare_with_history(replay, program, run)
    if match.is_exact or not len(replay.during("segment_free")):
        return program, run, match
    as_recorded = build_program(trace, replay, releases_as_recorded=True)
    second = run_program(as_recorded)
    match_recorded = compare_with_history(replay, as_recorded, second)
    if match_recorded.largest_bytes < match.largest_bytes or match_recorded.is_exact:
        return as_recorded, second, match_recorded
    return program, run, match


def compare_with_history(replay: Replay, program: AllocatorProgram, run: AllocatorRun) -> HistoryMatch:
    """Compare a run of the unchanged program with the recorded history."""
    assert replay.reserved is not None, "a history without segments has no program"
    moved = replay.during("segment_alloc", "segment_map", "segment_free", "segment_unmap")
    sign = np.where(np.isin(replay.action[moved], [CODE["segment_alloc"], CODE["segment_map"]]), 1, -1)
    ours = _sort_segments(_find_first_operations(program, run.segments[:, 0]), run.segments[:, 1], run.segments[:, 2])
    theirs = _sort_segments(
        _find_own_operations(program, moved, sign > 0), replay.address[moved], sign * replay.size[moved]
    )
    is_move = np.isin(program.ops[:, OP], [ALLOC, COMPLETE])
    reserved = replay.reserved[program.entry[is_move]]
    away = np.abs(run.reserved[is_move] - reserved)
    last = abs(int(run.reserved[-1]) - int(replay.reserved[-1])) if len(run.reserved) else 0
    allocs = program.ops[program.ops[:, OP] == ALLOC, OWNER]
    return HistoryMatch(
        len(run.segments),
        len(moved),
        _count_unequal(ours, theirs),
        len(allocs),
        int((run.placed[allocs] != replay.pieces.address[allocs]).sum()),
        max(int(away.max(initial=0)), last, abs(run.reserved_before - replay.reserved_before)),
        max(int(replay.reserved.max(initial=0)), replay.reserved_before),
    )


def _find_first_operations(program: AllocatorProgram, operations: Ints) -> Ints:
    """Find the operation that stands for each: of a release as recorded, that of the whole cache at its entry."""
    before = np.maximum(operations - 1, 0)
    follows = (program.ops[operations, OP] == RELEASE) & (program.ops[before, OP] == EMPTY)
    firsts: Ints = operations - (follows & (program.entry[before] == program.entry[operations]))
    return firsts


def _find_own_operations(program: AllocatorProgram, moved: Ints, is_gain: Mask) -> Ints:
    """Find the operation of each recorded move.

    Segments are got for the allocation that follows. They are given back by the operation at their entry or at the first
    entry of those that follow one another, and otherwise also for the next allocation.
    """
    operations = np.searchsorted(program.entry, moved)
    last = max(len(program.ops) - 1, 0)
    operations += program.ops[np.minimum(operations, last), OP] == FRESH
    given = (~is_gain).nonzero()[0]
    starts = np.append(True, np.diff(moved[given]) > 1)[: len(given)]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(given)), 0))
    count = len(program.entry)
    follows = operations.copy()
    for rows in (given[first], given):
        at = follows[rows]
        is_own = (at < count) & (program.entry[np.minimum(at, count - 1)] == moved[rows])
        operations[given[is_own]] = at[is_own]
    return operations


def _sort_segments(operation: Ints, address: Ints, size: Ints) -> set[tuple[int, int, int]]:
    return set(zip(operation.tolist(), address.tolist(), size.tolist(), strict=True))


def _count_unequal(replayed: set[tuple[int, int, int]], recorded: set[tuple[int, int, int]]) -> int:
    return max(len(replayed - recorded), len(recorded - replayed))
