"""Private pools of a snapshot: their purpose, and whether their memory may be unmapped but still counted.

vLLM's sleep mode and torch_memory_saver unmap pools behind PyTorch's back: the address range stays, the
segments stay in the snapshot, and the device has the memory back. A pool id alone is not enough (`0,n`: a
`MemPool` or a handle for graphs; `n,0`: a capture without a pool), but the frames of its allocations are. The
same frames in the default pool belong to an engine without sleep mode.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.system.lazy_pandas import pd
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, Replay, read_ints, select_replay_rows
from tracekit.process.memory.space import DEFAULT_POOL

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


def list_memory_pools(trace: Trace, replay: Replay) -> pd.DataFrame:
    """List the pools of one memory at the end, the largest first: pool, class, segment_count and bytes.

    `reserved_bytes` of its segments, `in_use_bytes` of its blocks (rounded up), `emptied_bytes` of segments
    without a block in use.
    """
    segments = select_replay_rows(trace, "memory_segments", replay)
    recorded = segments["pool"].astype(object)
    pool = recorded.where(recorded.notna(), DEFAULT_POOL).to_numpy(object)
    size = np.clip(read_ints(segments["size_bytes"]), 0, MAX_BYTES)
    names, number = np.unique(pool.astype(str), return_inverse=True)
    place = np.full(len(trace.get("memory_segments")), -1, np.int64)
    place[segments.index.to_numpy()] = np.arange(len(segments))
    blocks = trace.get("blocks")
    owner = place[blocks["segment"].to_numpy(np.int64)]
    held = (owner >= 0) & blocks["state"].isin(("active", "pending_free")).to_numpy(np.bool_)
    owner, held_blocks = owner[held], blocks[held]
    used = np.zeros(len(segments), np.int64)
    np.add.at(used, owner, np.clip(read_ints(held_blocks["size_bytes"]), 0, MAX_BYTES))
    stacks = pd.concat([segments["stack"], held_blocks["stack"]], ignore_index=True)
    of_stacks = np.concatenate((number, number[owner]))
    weights = np.concatenate((size, used[owner]))
    classes = [
        _classify_pool(trace, name, stacks[of_stacks == index], weights[of_stacks == index])
        for index, name in enumerate(names.tolist())
    ]

    def total(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sum the values of each pool."""
        sums = np.zeros(len(names), np.int64)
        np.add.at(sums, number, values)
        return sums

    rows = pd.DataFrame(
        {
            "pool": names.astype(object),
            "class": np.array(classes, object),
            "segment_count": np.bincount(number, minlength=len(names)),
            "reserved_bytes": total(size),
            "in_use_bytes": total(used),
            "emptied_bytes": total(np.where(used == 0, size, 0)),
        }
    )
    return rows.sort_values("reserved_bytes", ascending=False, kind="stable", ignore_index=True)


def _classify_pool(trace: Trace, pool: str, stacks: pd.Series[Any], weights: npt.NDArray[np.int64]) -> str:
    """Classify a pool by the class of most of its bytes among stacks with a known class."""
    if pool == DEFAULT_POOL:
        return "default"
    by_stack = trace.derived(classify_stacks)
    sums: dict[str, int] = {}
    for stack, weight in zip(stacks.tolist(), weights.tolist(), strict=True):
        told = None if pd.isna(stack) else by_stack.get(int(stack))
        if told is not None:
            sums[told] = sums.get(told, 0) + max(weight, 1)
    if sums:
        return max(sums, key=lambda told: (sums[told], told))
    # A capture without a given pool made a pool of its own.
    return "graph" if pool.endswith(",0") else "unknown"


def classify_stacks(trace: Trace) -> dict[int, str]:
    """Classify each stack by its outermost frame with a known purpose; a frame of a graph capture wins."""
    if not trace.has("stacks"):
        return {}
    frames = trace["stacks"].sort_values(["stack", "depth"], kind="stable")
    columns = [frames[name].tolist() for name in ("stack", "name", "file")]
    told: dict[tuple[str, str], str | None] = {}
    classes: dict[int, str] = {}
    for stack, name, file in zip(*columns, strict=True):
        key = (str(name), "" if pd.isna(file) else str(file))
        if key not in told:
            told[key] = classify_frame_purpose(*key)
        of_frame = told[key]
        # A graph may be captured inside a call that also loads or sizes memory: the inner purpose counts.
        if of_frame is not None and classes.get(int(stack)) != "graph":
            classes[int(stack)] = of_frame
    return classes
