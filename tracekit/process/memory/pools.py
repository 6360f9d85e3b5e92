"""Private pools of a snapshot: their purpose, and whether their memory may be unmapped but still counted.

vLLM's sleep mode and torch_memory_saver unmap pools behind PyTorch's back: the address range stays, the
segments stay in the snapshot, and the device has the memory back. A pool id alone is not enough (`0,n`: a
`MemPool` or a handle for graphs; `n,0`: a capture without a pool), but the frames of its allocations are. The
same frames in the default pool belong to an engine without sleep mode.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Nullable,
    concatenate_like_arrays,
    select_all_rows,
    select_rows,
    trim_texts,
)
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, Replay, mark_blocks_in_use, read_ints
from tracekit.process.memory.space import DEFAULT_POOL, find_block_owners, read_pools
from tracekit.process.name_filters import look_up_names

POOL_CLASSES = (
    *("default", "engine weights", "engine KV cache", "paused region"),
    *("graph", "communication", "unknown"),
)
"""Purposes of a pool. A `paused region` belongs to torch_memory_saver."""

PAUSABLE = ("engine weights", "engine KV cache", "paused region", "unknown")
"""Classes of pools whose memory may be unmapped: limits, waste and fragmentation ignore them."""

_OF_GRAPHS = re.compile(r"cuda_?graph|graph_capture|capture_model|capture_begin", re.IGNORECASE)
_OF_COMMUNICATION = re.compile(r"nccl|symm_mem|symmetric_memory", re.IGNORECASE)
_RUNNERS = re.compile(r"(?:^|[/\\])(?:gpu_worker|gpu_model_runner|worker|model_runner)\.py$")
_KV_CACHE = frozenset(("initialize_kv_cache", "initialize_from_config", "init_memory_pool"))
_REGIONS = {
    "load_model_with_memory_saver": re.compile("load_model_utils"),
    "load_model": re.compile(r"sglang.*model_runner"),
    "_create_buffers": re.compile("memory_pool"),
}
"""Functions of SGLang that allocate in regions of torch_memory_saver, with their files."""


def classify_frame_purpose(name: str, file: str) -> str | None:
    """Classify the purpose of memory by an allocating frame; None if the frame does not tell.

    >>> classify_frame_purpose("load_model", "/opt/vllm/v1/worker/gpu_worker.py"), classify_frame_purpose("load_model", "/job/train.py")
    ('engine weights', None)
    >>> classify_frame_purpose("initialize_kv_cache", "vllm/v1/worker/gpu_model_runner.py"), classify_frame_purpose("graph_capture", "x.py")
    ('engine KV cache', 'graph')
    >>> classify_frame_purpose("_create_buffers", "sglang/srt/mem_cache/memory_pool.py")
    'paused region'
    """
    if _OF_GRAPHS.search(name) or _OF_GRAPHS.search(file.replace("\\", "/").rpartition("/")[2]):
        return "graph"
    if name in _REGIONS and _REGIONS[name].search(file):
        return "paused region"
    if name in _KV_CACHE and _RUNNERS.search(file):
        return "engine KV cache"
    if name == "load_model" and _RUNNERS.search(file):
        return "engine weights"
    if _OF_COMMUNICATION.search(name) or _OF_COMMUNICATION.search(file):
        return "communication"
    return None


def list_memory_pools(trace: Trace, replay: Replay) -> dict[str, Array]:
    """List the pools of one memory at the end, the largest first: pool, class, segment_count and bytes.

    `reserved_bytes` of its segments, `in_use_bytes` of its blocks (rounded up), `emptied_bytes` of segments
    without a block in use.
    """
    segments = replay.segments
    pools = trim_texts(read_pools(trace, "memory_segments", segments))
    number, count = pools.codes, len(pools.texts)
    size = np.clip(read_ints(trace, "memory_segments", "size_bytes", segments), 0, MAX_BYTES)
    blocks, owner = find_block_owners(trace, segments)
    is_held = mark_blocks_in_use(trace)[blocks]
    blocks, owner = blocks[is_held], owner[is_held]
    used = sum_by_group(owner, np.clip(read_ints(trace, "blocks", "size_bytes", blocks), 0, MAX_BYTES), len(segments))
    stacks = concatenate_like_arrays(
        [
            select_rows(trace.nullable(table, "stack"), rows)
            for table, rows in (("memory_segments", segments), ("blocks", blocks))
        ]
    )
    of_stacks = np.concatenate((number, number[owner]))
    weights = np.concatenate((size, used[owner]))
    classes = [
        _classify_pool(trace, name, select_rows(stacks, of_stacks == index), weights[of_stacks == index])
        for index, name in enumerate(pools.texts)
    ]
    reserved = sum_by_group(number, size, count)
    table: dict[str, Array] = {
        "pool": Coded(np.arange(count), pools.texts),
        "class": Coded(np.array([POOL_CLASSES.index(name) for name in classes], np.int64), POOL_CLASSES),
        "segment_count": np.bincount(number, minlength=count),
        "reserved_bytes": reserved,
        "in_use_bytes": sum_by_group(number, used, count),
        "emptied_bytes": sum_by_group(number, np.where(used == 0, size, 0), count),
    }
    return select_all_rows(table, np.argsort(-reserved, kind="stable"))


def _classify_pool(trace: Trace, pool: str, stacks: Nullable, weights: npt.NDArray[np.int64]) -> str:
    """Classify a pool by the class of most of its bytes among stacks with a known class."""
    if pool == DEFAULT_POOL:
        return "default"
    by_stack = trace.derived(classify_stacks)
    sums: dict[str, int] = {}
    is_known = ~stacks.missing
    for stack, weight in zip(stacks.values[is_known].tolist(), weights[is_known].tolist(), strict=True):
        purpose = by_stack.get(stack)
        if purpose is not None:
            sums[purpose] = sums.get(purpose, 0) + max(weight, 1)
    if sums:
        return max(sums, key=lambda purpose: (sums[purpose], purpose))
    # A capture without a given pool made a pool of its own.
    return "graph" if pool.endswith(",0") else "unknown"


def classify_stacks(trace: Trace) -> dict[int, str]:
    """Classify each stack by its outermost frame with a known purpose; a frame of a graph capture wins."""
    name, file, stack = trace.texts("stacks", "name"), trace.texts("stacks", "file"), trace.numbers("stacks", "stack")
    number, first = group_arrays([name, file])
    frames = zip(look_up_names(name, first).tolist(), look_up_names(file, first).tolist(), strict=True)
    purposes = [classify_frame_purpose(of_frame or "", path or "") for of_frame, path in frames]
    order = np.lexsort((trace.numbers("stacks", "depth"), stack))
    order = order[np.array([purpose is not None for purpose in purposes], np.bool_)[number[order]]]
    classes: dict[int, str] = {}
    for key, frame in zip(stack[order].tolist(), number[order].tolist(), strict=True):
        # A graph may be captured inside a call that also loads or sizes memory: the inner purpose counts.
        if classes.get(key) != "graph":
            classes[key] = purposes[frame] or ""
    return classes
