"""The request that ran out of memory: whether it fits after a change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import select_rows
from tracekit.process.memory.allocator.plain import ALLOC
from tracekit.process.memory.allocator.run import AllocatorProgram, run_program
from tracekit.process.memory.replay import Replay
from tracekit.process.memory.space import DEFAULT_POOL, read_pools
from tracekit.replay.memory.applying import ReplayedMemory


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """The last request that ran out of memory, and the memory that the allocator could reserve then.

    `entry` is its place in the history.
    """

    entry: int
    size_bytes: int
    lane: int
    limit: int


def find_failed_request(memory: ReplayedMemory) -> FailedRequest | None:
    """Find the last request that ran out of memory; None without one, or if its record is incomplete."""
    replay, program = memory.replay, memory.program
    failed = replay.during("oom")
    if not len(failed) or replay.reserved is None:
        return None
    entry = int(failed[-1])
    rows = replay.rows[[entry]]
    free = select_rows(memory.trace.nullable("allocations", "device_free_bytes"), rows)
    lane = _find_request_lane(memory, replay, entry)
    if free.missing.any() or lane is None or replay.size[entry] <= 0:
        return None
    limit = int(replay.reserved[entry]) + int(free.values[0])
    request = FailedRequest(entry, int(replay.size[entry]), lane, limit)
    # A request that fits as recorded failed for a reason that the replay does not know.
    return None if fits_request(program, request) else request


def _find_request_lane(memory: ReplayedMemory, replay: Replay, entry: int) -> int | None:
    """Find the lane of a request: that of the last allocation before it of its stream and pool."""
    program, trace = memory.program, memory.trace
    stream = select_rows(trace.nullable("allocations", "stream"), replay.rows)
    pools = read_pools(trace, "allocations", replay.rows)
    is_like = (stream.values == stream.values[entry]) & (pools.codes == pools.codes[entry])
    if pools.texts[pools.codes[entry]] != DEFAULT_POOL:
        return None
    allocs = program.ops[:, 0] == ALLOC
    like = (
        is_like[np.minimum(program.entry, len(replay.rows) - 1)]
        & allocs
        & (program.pool_of_lane[program.ops[:, 3]] == 0)
    )
    lanes = program.ops[like, 3]
    return int(lanes[-1]) if len(lanes) else None


def fits_request(program: AllocatorProgram, request: FailedRequest) -> bool:
    """Check whether the request fits at its place in a program, within the memory that there was."""
    place = int(np.searchsorted(program.entry, request.entry))
    row = [[ALLOC, program.owners, request.size_bytes, request.lane]]
    ops = np.concatenate((program.ops[:place], np.array(row, np.int64)))
    entry = np.append(program.entry[:place], request.entry)
    limited = replace(program.options, limit=request.limit)
    run = run_program(replace(program, ops=ops, entry=entry, owners=program.owners + 1, options=limited))
    return int(run.placed[-1]) >= 0
