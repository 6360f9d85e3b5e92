"""Application of changes to the memory of a replayed history: the changed program, and the memory that it touches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural, did_you_mean
from tracekit.model.trace import Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.allocator.identity import HistoryMatch
from tracekit.process.memory.allocator.plain import ALLOC, COMPLETE, EMPTY
from tracekit.process.memory.allocator.rules import UNLIMITED
from tracekit.process.memory.allocator.run import OP, OWNER, AllocatorProgram, AllocatorRun
from tracekit.process.memory.pools import list_memory_pools
from tracekit.process.memory.replay import NEVER, Replay
from tracekit.process.memory.windows import AnnotatedRanges, list_annotated_ranges
from tracekit.replay.changes import ChangeError
from tracekit.replay.memory.memory_changes import AllocatorChange
from tracekit.replay.memory.purposes import (
    find_kv_cache,
    find_optimizer_state,
    find_pieces_of_site,
    find_scaling_pieces,
    list_sites,
    mark_memory_at_peak,
    mark_named_ranges,
)
from tracekit.replay.memory.resizing import mark_touched_blocks, resize_blocks, scale_owners

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FORBIDDING = ("engine weights", "engine KV cache", "paused region")
"""Classes of pools of an engine that do not work with expandable segments: memory is unmapped behind PyTorch's back."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedMemory:
    """A history that was replayed unchanged: its program, the unchanged run, and how well it matches the record."""

    name: str
    trace: Trace
    replay: Replay
    program: AllocatorProgram
    run: AllocatorRun
    match: HistoryMatch
    device_memory: int | None = None


@dataclass(frozen=True, slots=True)
class TouchedMemory:
    """Memory that a change touches: in words, and bytes in use at the recorded peak (None for options)."""

    words: str
    peak_bytes: int | None = None


Applied = tuple[AllocatorProgram, TouchedMemory]


def apply_memory_change(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    """Apply a change to a program, which earlier changes may have made. Raises `ChangeError`."""
    return _APPLIERS[change.do](memory, program, change)


def _use_expandable_segments(memory: ReplayedMemory, program: AllocatorProgram, _: AllocatorChange) -> Applied:
    if program.pool_grows[0]:
        raise ChangeError("the history was recorded with expandable segments")
    pools = list_memory_pools(memory.trace, memory.replay)
    classes = [pools["class"].texts[code] for code in pools["class"].codes.tolist()]  # type: ignore[union-attr]
    if forbidding := sorted(set(FORBIDDING) & set(classes)):
        raise ChangeError(
            f"a pool of {' and '.join(forbidding)} forbids expandable segments: its memory is unmapped behind PyTorch's back, "
            "which expandable segments do not allow"
        )
    grows = program.pool_grows.copy()
    grows[0] = 1
    return replace(program, pool_grows=grows), _describe_default_pool(program)


def _describe_default_pool(program: AllocatorProgram) -> TouchedMemory:
    allocs = program.ops[program.ops[:, OP] == ALLOC]
    count = int((program.pool_of_lane[allocs[:, 3]] == 0).sum())
    return TouchedMemory(f"{count:,} {choose_plural(count, 'allocation')}")


def _limit_splits(_: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    assert change.size_bytes is not None
    if program.options.max_split < UNLIMITED:
        raise ChangeError(
            f"the history was recorded with max_split={format_quantity(program.options.max_split, 'bytes')}"
        )
    allocs = program.ops[program.ops[:, OP] == ALLOC]
    count = int((allocs[:, 2] >= change.size_bytes).sum())
    if not count:
        raise ChangeError(f"no allocation has {format_quantity(change.size_bytes, 'bytes')} or more")
    words = f"{count:,} {choose_plural(count, 'allocation')}"
    return replace(program, options=replace(program.options, max_split=change.size_bytes)), TouchedMemory(words)


def _collect_garbage(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    assert change.factor is not None
    above = int(change.factor * _require_device_memory(memory))
    if memory.run.peak_reserved <= above:
        raise ChangeError(f"never more than {format_quantity(above, 'bytes')} are reserved")
    words = f"above {format_quantity(above, 'bytes')}"
    return replace(program, options=replace(program.options, collect_above=above)), TouchedMemory(words)


def _require_device_memory(memory: ReplayedMemory) -> int:
    if memory.device_memory is None:
        raise ChangeError("it is a share of the device, whose size is unknown", "give --device-memory 80GiB")
    return memory.device_memory


def _empty_cache_after(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    ranges = memory.trace.derived(list_annotated_ranges)
    ends = _find_range_entries(memory, change.stage or "", ranges)[1]
    if not len(ends):
        names = list(dict.fromkeys(name.partition("#")[0] for name in ranges.name.texts))
        near = did_you_mean(change.stage or "", names)
        hint = f"recorded are {', '.join(names[:6])}" if names else "torch.profiler.record_function records ranges"
        raise ChangeError(f"no range of this name has a time in the history{near}", hint)
    changed = _insert_ops(program, [(int(end), EMPTY, 0) for end in ends.tolist()])
    return changed, TouchedMemory(f"{len(ends):,} {choose_plural(len(ends), 'end')} of {change.stage}")


def _find_range_entries(memory: ReplayedMemory, name: str, ranges: AnnotatedRanges) -> tuple[Ints, Ints]:
    """Find the entries of the history at which ranges of a name begin and end."""
    none = np.empty(0, np.int64)
    if not memory.replay.timed or not len(ranges.ts_ns):
        return none, none
    rows = mark_named_ranges(ranges.name, name).nonzero()[0]
    ts = memory.replay.ts_ns
    return np.searchsorted(ts, ranges.ts_ns[rows]), np.searchsorted(ts, ranges.end_ns[rows])


def _insert_ops(program: AllocatorProgram, added: list[tuple[int, int, int]]) -> AllocatorProgram:
    """Insert operations (entry before which it runs, operation, owner) before those of the history at their entry."""
    table = np.array(added, np.int64).reshape(-1, 3)
    ops = np.zeros((len(table), 4), np.int64)
    ops[:, OP], ops[:, OWNER] = table[:, 1], table[:, 2]
    return _merge_ops(program, ops, table[:, 0])


def _merge_ops(program: AllocatorProgram, ops: Ints, entry: Ints) -> AllocatorProgram:
    every, entries = np.concatenate((ops, program.ops)), np.concatenate((entry, program.entry))
    order = np.argsort(entries, kind="stable")
    return replace(program, ops=every[order], entry=entries[order])


def _scale_site(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    assert change.site is not None
    assert change.factor is not None
    owners = find_pieces_of_site(memory.trace, memory.replay, change.site)
    if not owners.any():
        sites = list_sites(memory.trace, memory.replay)
        near = did_you_mean(change.site, sites)
        hint = f"those of most bytes are {', '.join(sites[:3])}" if sites else "the history has no stacks"
        raise ChangeError(f"no allocation has such a site{near}", hint)
    return scale_owners(program, owners, change.factor), describe_touched(memory, program, owners)


def describe_touched(memory: ReplayedMemory, program: AllocatorProgram, owners: Mask) -> TouchedMemory:
    """Describe the memory of the marked owners."""
    allocs = program.ops[program.ops[:, OP] == ALLOC, OWNER]
    count, early = int(owners[allocs].sum()), int(mark_touched_blocks(program, owners).sum())
    words = f"{count:,} {choose_plural(count, 'allocation')}"
    if early:
        words += f", {early:,} earlier {choose_plural(early, 'block')}"
    at_peak = owners & mark_memory_at_peak(memory.replay)
    return TouchedMemory(words, int(memory.replay.pieces.size[at_peak].sum()))


MAX_UNKNOWN = 0.1
"""Share of the memory in use at the peak that may or may not scale, above which a micro-batch is not predicted."""


def _scale_micro_batch(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    assert change.factor is not None
    scaling = find_scaling_pieces(memory.trace, memory.replay)
    if not scaling.sure.any():
        raise ChangeError("no memory of the history is known to scale with the micro-batch")
    at_peak, size = mark_memory_at_peak(memory.replay), memory.replay.pieces.size
    unknown, total = int(size[at_peak & scaling.possible].sum()), int(size[at_peak].sum())
    if unknown > MAX_UNKNOWN * total:
        share = format_quantity(unknown / total, "ratio", 2)
        raise ChangeError(
            f"{share} of the memory at the peak may scale or not, more than {format_quantity(MAX_UNKNOWN, 'ratio', 2)}",
            "record stacks of all allocations, or give two snapshots with --micro-batch 4,8",
        )
    return scale_owners(program, scaling.sure, change.factor), describe_touched(memory, program, scaling.sure)


def _offload_optimizer(memory: ReplayedMemory, program: AllocatorProgram, _: AllocatorChange) -> Applied:
    """Let optimizer state be on the device only during steps of the optimizer."""
    owners = find_optimizer_state(memory.trace, memory.replay)
    if not owners.any():
        raise ChangeError("no memory is known to be optimizer state", "record stacks of all allocations")
    ranges = memory.trace.derived(list_annotated_ranges)
    begins, ends = _find_range_entries(memory, "Optimizer.step", ranges)
    if not len(begins):
        raise ChangeError("no Optimizer.step range with a time was recorded")
    touched = describe_touched(memory, program, owners)
    early = mark_touched_blocks(program, owners)
    blocks = resize_blocks(program, early, np.where(early, 0, program.blocks[:, 1]))
    changed = replace(program, blocks=blocks)
    born = memory.replay.pieces.born
    state = owners.nonzero()[0]
    state = state[np.argsort(born[state], kind="stable")]
    lanes = _find_lanes(program, state)
    added = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        loaded = state[born[state] < begin]
        added.append(_make_moves(ALLOC, begin, loaded, memory.replay.pieces.size[loaded], lanes[born[state] < begin]))
        stored = state[born[state] < end]
        added.append(
            _make_moves(COMPLETE, end, stored, np.zeros(len(stored), np.int64), np.zeros(len(stored), np.int64))
        )
    moves = np.concatenate(added)
    return _merge_ops(changed, moves[:, :4], moves[:, 4]), touched


def _make_moves(op: int, entry: int, owners: Ints, size: Ints, lanes: Ints) -> Ints:
    count = len(owners)
    return np.column_stack((np.full(count, op), owners, size, lanes, np.full(count, entry))).astype(np.int64)


def _find_lanes(program: AllocatorProgram, owners: Ints) -> Ints:
    """Find the lane of each owner, by its allocation or its block before the history."""
    lane = np.zeros(program.owners, np.int64)
    allocs = program.ops[program.ops[:, OP] == ALLOC]
    lane[allocs[:, OWNER]] = allocs[:, 3]
    held = program.blocks[program.blocks[:, 3] >= 0]
    lane[held[:, 3]] = held[:, 2] // 2
    return lane[owners]


def _resize_kv_cache(memory: ReplayedMemory, program: AllocatorProgram, change: AllocatorChange) -> Applied:
    assert change.factor is not None
    owners = find_kv_cache(memory.trace, memory.replay)
    recorded = measure_kv_cache(memory, owners)
    if not recorded:
        raise ChangeError("no memory is known to be the KV cache of an engine", "record stacks of all allocations")
    factor = change.factor * _require_device_memory(memory) / recorded
    return scale_owners(program, owners, factor), describe_touched(memory, program, owners)


def measure_kv_cache(memory: ReplayedMemory, owners: Mask) -> int:
    """Measure the KV cache: the bytes in use at the end."""
    return int(memory.replay.pieces.size[owners & (memory.replay.pieces.died == NEVER)].sum())


_APPLIERS: Mapping[str, Callable[[ReplayedMemory, AllocatorProgram, AllocatorChange], Applied]] = {
    "expandable": _use_expandable_segments,
    "max_split": _limit_splits,
    "gc": _collect_garbage,
    "empty_cache": _empty_cache_after,
    "scale": _scale_site,
    "micro_batch": _scale_micro_batch,
    "offload": _offload_optimizer,
    "kv_cache": _resize_kv_cache,
}
