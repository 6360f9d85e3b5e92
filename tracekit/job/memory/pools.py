"""Private pools of memory snapshots: their use, and how much of PyTorch's counts may be unmapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.job.memory.card_lines import describe_held_memory
from tracekit.job.memory.device_size import device_sizes
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, snapshot_levels, take_snapshot
from tracekit.model.tables.frame import Bools, Frame, texts
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.process.memory.pools import PAUSABLE

ENGINE = ("engine weights", "engine KV cache")
"""Classes of pools that a serving engine with sleep mode has."""

SLEEPING = (*ENGINE, "paused region")
"""Classes of pools that use no memory while their owner sleeps."""

WORTH_NAMING = 0.01
"""A pool with a smaller share of the reserved bytes is not named."""

IN_USE = 0.5
"""A pool of graphs or communication with a larger share in use is normal."""

_NAMES = {
    "engine weights": "weights",
    "engine KV cache": "KV cache",
    "paused region": "regions of torch_memory_saver",
    "graph": "CUDA graphs",
    "communication": "communication",
}


def has_pausable(measured: Measurements, memories: Frame) -> Bools:
    """Tell which memories of snapshots have a pool that may be unmapped: they have no limit."""
    pools = measured.frame("memory_pools")
    pausable = pools.filter(pools.is_in("class", PAUSABLE))
    if not len(pausable):
        return np.zeros(len(memories), np.bool_)
    return memories.is_among(pausable, SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)


def select_pools(measured: Measurements, snapshot: Mapping[str, Any]) -> Frame:
    """Select the pools of the memory of one row of `snapshot_levels`, with their `label`."""
    pools = take_snapshot(measured.frame("memory_pools"), snapshot)
    return pools.with_columns(label=texts([_name_pool(row) for row in pools.rows("class", "pool")]))


def _name_pool(row: Mapping[str, Any]) -> str:
    """Name a pool: `private pool (0,2), KV cache`."""
    if row["class"] == "default":
        return "default pool"
    name = f"private pool ({row['pool']})"
    return f"{name}, {_NAMES[row['class']]}" if row["class"] in _NAMES else name


def pool_notes(measured: Measurements) -> Iterator[str]:
    """Describe the private pools of each memory, the highest peak first; snapshots in the same state count once."""
    yield from dict.fromkeys(_describe_all_pools(measured))


def _describe_all_pools(measured: Measurements) -> Iterator[str]:
    """Describe the private pools of each snapshot."""
    if not measured.row_count("memory_pools"):
        return
    sizes = device_sizes(measured)
    for snapshot in snapshot_levels(measured).rows():
        pools = select_pools(measured, snapshot)
        private = pools.filter(~pools.equals("class", "default"))
        total = int(pools["reserved_bytes"].sum())
        if total and private["reserved_bytes"].sum() >= WORTH_NAMING * total:
            card = sizes.find_size(snapshot["run"], snapshot["rank"], snapshot["device"])
            held = describe_held_memory(measured, snapshot)
            yield from _describe_pools(snapshot["who"], pools, private, None if card is None else card.size_bytes, held)


def _describe_pools(who: str, pools: Frame, private: Frame, card_bytes: int | None, held: str | None) -> Iterator[str]:
    """Describe the pools of one memory of a device of this size; `held`: the memory really held, by the log."""
    most = int(pools["reserved_bytes"].sum())
    least = most - int(pools["reserved_bytes"][pools.is_in("class", PAUSABLE)].sum())
    of_engine = private.filter(private.is_in("class", SLEEPING))
    if len(of_engine):
        size = format_quantity(int(of_engine["reserved_bytes"].sum()), "bytes")
        yield (
            f"{size} of the {format_quantity(most, 'bytes')} that PyTorch counts for {who} are in pools of a "
            f"serving engine ({', '.join(_list_engine_parts(of_engine))}): while it sleeps, they use no memory"
        )
    for pool in private.rows("class", "label", "reserved_bytes", "in_use_bytes"):
        if pool["class"] in SLEEPING:
            continue
        if pool["class"] != "unknown" and pool["in_use_bytes"] > IN_USE * pool["reserved_bytes"]:
            continue
        if pool["reserved_bytes"] < WORTH_NAMING * most:
            continue
        made_by = " (a CUDA graph or torch.cuda.MemPool)" if pool["class"] == "unknown" else ""
        yield (
            f"{pool['label']}{made_by} of {who}: {format_quantity(pool['reserved_bytes'], 'bytes')} reserved, "
            f"{format_quantity(pool['in_use_bytes'], 'bytes')} in use"
        )
    if least < most:
        over = ""
        if card_bytes is not None and most > card_bytes:
            over = f", and at least {format_quantity(most - card_bytes, 'bytes')} are unmapped"
        yield (
            f"{who} uses between {format_quantity(least, 'bytes')} and {format_quantity(most, 'bytes')}: pools may be unmapped, "
            f"which PyTorch still counts{over}{'; compare with nvidia-smi' if held is None else f'. {held}'}"
        )


def _list_engine_parts(of_engine: Frame) -> Iterator[str]:
    """List the sizes by class: `weights 14.0 GiB, emptied 10.0 GiB, KV cache 64.0 GiB`."""
    for kind in SLEEPING:
        of_kind = of_engine.filter(of_engine.equals("class", kind))
        if len(of_kind):
            emptied = int(of_kind["emptied_bytes"].sum())
            yield f"{_NAMES[kind]} {format_quantity(int(of_kind['reserved_bytes'].sum()) - emptied, 'bytes')}"
            if emptied:
                yield f"emptied {format_quantity(emptied, 'bytes')}"
