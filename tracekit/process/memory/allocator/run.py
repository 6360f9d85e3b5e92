"""Run of a program of requests through the allocator: memory after every operation, segments and addresses.

The C module is optional: `native` is None without it, and `plain` gives the same results.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.process.memory.allocator import plain
from tracekit.process.memory.allocator.rules import AllocatorOptions, round_requests

Ints = npt.NDArray[np.int64]

OP, OWNER, SIZE, LANE = range(4)
"""Columns of `AllocatorProgram.ops`."""

_COUNTS = 6
_ROOM = 4096
_NONE = -1


def _import_allocator() -> Any:
    """Import the C module; None if it was not built."""
    try:
        return import_module("tracekit.process.memory.allocator._allocator")
    except ImportError:
        return None


native = _import_allocator()


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorProgram:
    """Requests to an allocator, in order, and the memory that it begins with.

    - `ops`: rows of (operation, owner, requested bytes or address, lane); `entry` is the entry of the history of each.
    - `owners`: number of owners, one per piece of memory.
    - `pools`: names of the pools, the default one first; `pool_of_lane`: pool of each lane; `pool_grows`: 1 for pools of
      expandable segments.
    - `blocks`: rows of (address, size, shelf, owner or -1, flags) before the first operation, those of a segment in order.
    - `recorded`: rows of (address, size, shelf) of recorded new segments; `next_address` is above every segment.
    """

    ops: Ints
    entry: Ints
    owners: int
    pools: tuple[str, ...]
    pool_of_lane: Ints
    pool_grows: Ints
    blocks: Ints
    recorded: Ints
    next_address: int
    options: AllocatorOptions


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorRun:
    """Memory after each operation of a program.

    - `reserved`, `active`: bytes from the driver, and bytes of blocks in use or waiting to be free.
    - `reserved_before`, `active_before`: before the first operation.
    - `placed`: address of each owner's block, -1 without one.
    - `segments`: rows of (operation, address, bytes got or minus bytes given back, shelf).
    - `failed`: requests that ran out of memory; `first_failed` is the operation of the first, -1 without one.
    - `retries`: releases of the whole cache since memory ran out; `collected`: segments given back by garbage collection.
    """

    reserved: Ints
    active: Ints
    reserved_before: int
    active_before: int
    placed: Ints
    segments: Ints
    failed: int
    first_failed: int
    retries: int
    collected: int

    @property
    def peak_reserved(self) -> int:
        """Most bytes reserved."""
        return max(int(self.reserved.max(initial=0)), self.reserved_before)

    @property
    def peak_active(self) -> int:
        """Most bytes of blocks in use."""
        return max(int(self.active.max(initial=0)), self.active_before)


def run_program(program: AllocatorProgram) -> AllocatorRun:
    """Run a program with its options."""
    ops = np.ascontiguousarray(program.ops, np.int64)
    is_alloc = ops[:, OP] == plain.ALLOC
    ops = ops.copy()
    ops[is_alloc, SIZE] = round_requests(ops[is_alloc, SIZE], program.options.divisions)
    blocks = program.blocks
    is_mapped = blocks[:, 4] & plain.UNMAPPED == 0
    before = int(blocks[is_mapped, 1].sum()), int(blocks[blocks[:, 3] >= 0, 1].sum())
    reserved, active, *others = (_run_plain if native is None else _run_natively)(program, ops)
    return AllocatorRun(reserved, active, before[0], before[1], *others)


def _list_settings(program: AllocatorProgram) -> list[int]:
    options = program.options
    limits = (_NONE if limit is None else limit for limit in (options.collect_above, options.limit))
    return [options.max_split, *limits, program.next_address]


def _run_natively(program: AllocatorProgram, ops: Ints) -> tuple[Any, ...]:
    count, room = len(ops), _ROOM
    fixed = [program.pool_of_lane, program.pool_grows, np.array(_list_settings(program), np.int64)]
    inputs = [np.ascontiguousarray(array, np.int64) for array in (ops, *fixed, program.blocks, program.recorded)]
    while True:
        levels = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(program.owners, np.int64)
        segments, counts = np.empty((room, 4), np.int64), np.empty(_COUNTS, np.int64)
        native.run(*inputs, *levels, segments, counts)
        logged, failed, first_failed, retries, collected, _ = counts.tolist()
        if logged <= room:
            return *levels, segments[:logged], failed, first_failed, retries, collected
        room = logged


def _run_plain(program: AllocatorProgram, ops: Ints) -> tuple[Any, ...]:
    recorded = [(address, size, shelf) for address, size, shelf in program.recorded.tolist()]
    grows = [flag != 0 for flag in program.pool_grows.tolist()]
    max_split, collect_above, limit, next_address = _list_settings(program)
    lanes = program.pool_of_lane.tolist()
    device = plain.Device(lanes, grows, max_split, collect_above, limit, next_address, recorded)
    plain.begin(device, program.blocks.tolist())
    reserved, active, failures = [], [], []
    placed = np.full(program.owners, _NONE, np.int64)
    for number, op in enumerate(ops.tolist()):
        device.now = number
        block = plain.run_op(device, op)
        if op[OP] == plain.ALLOC:
            placed[op[OWNER]] = _NONE if block is None else block.address
            if block is None:
                failures.append(number)
        reserved.append(device.reserved)
        active.append(device.active)
    segments = np.array(device.segments, np.int64).reshape(-1, 4)
    counts = len(failures), failures[0] if failures else _NONE, device.retries, device.collected
    return np.array(reserved, np.int64), np.array(active, np.int64), placed, segments, *counts
