"""The private pools of memory snapshots: what they are for, and how much of what PyTorch counts the device may not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.memory.device_size import device_sizes
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, of_snapshot, snapshot_levels
from tracekit.model.keys import is_among, row_dicts
from tracekit.model.trace import Measurements
from tracekit.model.units import show
from tracekit.process.memory.pools import PAUSABLE

ENGINE = ("engine weights", "engine KV cache")
"""Classes of pools that a serving engine with sleep mode has."""

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


def has_pausable(measured: Measurements, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows about memories of snapshots are of one with a pool that may be unmapped: no limit is told of these."""
    pools = measured["memory_pools"]
    pausable = pools[pools["class"].isin(PAUSABLE).to_numpy(np.bool_)]
    return is_among(rows, pausable, SNAPSHOT_KEYS)


def pools_of(measured: Measurements, one: pd.Series[Any]) -> pd.DataFrame:
    """The pools of the memory of one row of `snapshot_levels`, with `label` and `idle_bytes` (reserved, not in use)."""
    rows = of_snapshot(measured["memory_pools"], one)
    labels = [_label(row) for row in row_dicts(rows)]
    return rows.assign(
        label=pd.Series(labels, rows.index, dtype=object),
        idle_bytes=rows["reserved_bytes"] - rows["in_use_bytes"],
    )


def _label(row: Mapping[Any, Any]) -> str:
    """`private pool (0,2), KV cache`."""
    if row["class"] == "default":
        return "default pool"
    name = f"private pool ({row['pool']})"
    return f"{name}, {_NAMES[row['class']]}" if row["class"] in _NAMES else name


def held_bounds(pools: pd.DataFrame) -> tuple[int, int]:
    """(the least, the most) bytes that the device holds for these pools."""
    is_pausable = pools["class"].isin(PAUSABLE).to_numpy(np.bool_)
    reserved = pools["reserved_bytes"].to_numpy(np.int64)
    return int(reserved[~is_pausable].sum()), int(reserved.sum())


def pool_notes(measured: Measurements) -> Iterator[str]:
    """Sentences on the private pools of each memory, the highest peak first; none without such pools."""
    if not measured.row_count("memory_pools"):
        return
    sizes = device_sizes(measured)
    for _, one in snapshot_levels(measured).iterrows():
        pools = pools_of(measured, one)
        private = pools[(pools["class"] != "default").to_numpy(np.bool_)]
        total = int(pools["reserved_bytes"].sum())
        if total and int(private["reserved_bytes"].sum()) >= WORTH_NAMING * total:
            card = sizes.of(one["run"], one["rank"], one["device"])
            yield from _notes(one, pools, private, None if card is None else card.size_bytes)


def _notes(
    one: pd.Series[Any], pools: pd.DataFrame, private: pd.DataFrame, card_bytes: int | None
) -> Iterator[str]:
    """The sentences about one memory of a device with so many bytes."""
    least, most = held_bounds(pools)
    of_engine = private[private["class"].isin((*ENGINE, "paused region")).to_numpy(np.bool_)]
    if len(of_engine):
        size = show(int(of_engine["reserved_bytes"].sum()), "bytes")
        yield (
            f"{size} of the {show(most, 'bytes')} that PyTorch counts for {one['who']} are in pools of a "
            f"serving engine ({', '.join(_parts(of_engine))}): while it sleeps, they use no memory"
        )
    for row in row_dicts(private):
        if row["class"] in (*ENGINE, "paused region"):
            continue
        if row["class"] != "unknown" and row["in_use_bytes"] > IN_USE * row["reserved_bytes"]:
            continue
        if row["reserved_bytes"] < WORTH_NAMING * most:
            continue
        made_by = " (a CUDA graph or torch.cuda.MemPool)" if row["class"] == "unknown" else ""
        yield (
            f"{row['label']}{made_by} of {one['who']}: {show(int(row['reserved_bytes']), 'bytes')} reserved, "
            f"{show(int(row['in_use_bytes']), 'bytes')} in use"
        )
    if least < most:
        over = ""
        if card_bytes is not None and most > card_bytes:
            over = f", and at least {show(most - card_bytes, 'bytes')} are unmapped"
        yield (
            f"{one['who']} uses between {show(least, 'bytes')} and {show(most, 'bytes')}: pools may be unmapped, "
            f"which PyTorch still counts{over}; compare with nvidia-smi"
        )


def _parts(of_engine: pd.DataFrame) -> Iterator[str]:
    """`weights 14.0 GiB, emptied 10.0 GiB, KV cache 64.0 GiB`."""
    for kind in (*ENGINE, "paused region"):
        of_kind = of_engine[(of_engine["class"] == kind).to_numpy(np.bool_)]
        if len(of_kind):
            emptied = int(of_kind["emptied_bytes"].sum())
            yield f"{_NAMES[kind]} {show(int(of_kind['reserved_bytes'].sum()) - emptied, 'bytes')}"
            if emptied:
                yield f"emptied {show(emptied, 'bytes')}"
