"""GPU metrics as an Nsight Systems export records them: samples of a whole GPU, of no process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.readers.nsys_content import MAX_NS, Clock
from tracekit.readers.nsys_database import MISSING, Database, blocks, has, rows
from tracekit.trace import Note

Ints = npt.NDArray[np.int64]

TABLE, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_GPU_MASK = 0xFF
"""The profiler's number of the GPU is the low byte of a sample's type."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in the order of time, then name: `gpu` is the profiler's number, `name` a code into `names`."""

    ts_ns: Ints
    gpu: npt.NDArray[np.int16]
    name: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    names: list[str]
    notes: tuple[Note, ...] = ()


def read(db: Database, clock: Clock) -> Samples | None:
    """The samples of all GPUs, named `GPU <number> <metric>`; None where none were recorded.

    The numbers of metrics differ from file to file, so that a sample without a listed name is left out and counted.
    """
    if not has(db, TABLE, "timestamp", "typeId", "metricId", "value"):
        return None
    listed = {
        (type_, metric): name
        for type_, metric, name in sorted(
            rows(db, NAMES, ("typeId", "metricId", "metricName")), key=str
        )
        if isinstance(type_, int) and isinstance(metric, int) and isinstance(name, str) and name
    }
    code_of: dict[str, int] = {}
    parts: list[
        tuple[Ints, npt.NDArray[np.int16], npt.NDArray[np.int32], npt.NDArray[np.float64]]
    ] = []
    untimed = unnamed = 0
    # Values are integers; those of a hand-made file may not be.
    thousandth = {"value": 'CAST(round("value" * 1000) AS INTEGER)'}
    for block in blocks(db, TABLE, ("timestamp", "typeId", "metricId"), expressions=thousandth):
        pair = pd.MultiIndex.from_arrays([block["typeId"], block["metricId"]])
        codes, distinct = pd.factorize(pair)
        texts = [_name(key, listed) for key in distinct.tolist()]
        table = np.array(
            [-1 if text is None else code_of.setdefault(text, len(code_of)) for text in texts],
            np.int32,
        )
        name = table[codes] if len(codes) else np.empty(0, np.int32)
        ts = block["timestamp"]
        timed = (ts > -MAX_NS) & (ts < MAX_NS)
        known = (name >= 0) & (block["value"] != MISSING)
        untimed += int((~timed).sum())
        unnamed += int((timed & ~known).sum())
        keep = timed & known
        parts.append((
            ts[keep] + clock.base_ns,
            (block["typeId"][keep] & _GPU_MASK).astype(np.int16),
            name[keep],
            block["value"][keep] / 1000,
        ))  # fmt: skip
    names = list(code_of)
    ts_ns = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
    gpu = np.concatenate([part[1] for part in parts] or [np.empty(0, np.int16)])
    name = np.concatenate([part[2] for part in parts] or [np.empty(0, np.int32)])
    value = np.concatenate([part[3] for part in parts] or [np.empty(0, np.float64)])
    rank = np.argsort(np.argsort(np.array(names, object))) if names else np.empty(0, np.int64)
    order = np.lexsort((value, rank[name], ts_ns))
    notes = []
    if untimed:
        text = "samples of GPU metrics without a usable time were left out"
        notes.append(Note("warning", "no-time", text, count=untimed))
    if unnamed:
        text = "samples of GPU metrics without a name or a value were left out"
        notes.append(Note("warning", "no-name", text, count=unnamed))
    return Samples(ts_ns[order], gpu[order], name[order], value[order], names, tuple(notes))


def owners(found: Samples, gpus: Mapping[int, Collection[int]]) -> dict[int, npt.NDArray[np.int64]]:
    """The samples (positions) that go with each process: those of a GPU that it alone uses, else with the first.

    `gpus` are the profiler's numbers of the GPUs that each process uses; the first is the one with the lowest pid.
    """
    if not gpus:
        return {}
    first = min(gpus)
    owner = {}
    for number in np.unique(found.gpu).tolist():
        users = [pid for pid, used in sorted(gpus.items()) if number in used]
        owner[number] = users[0] if len(users) == 1 else first
    table = np.full(_GPU_MASK + 1, first, np.int64)
    table[list(owner)] = list(owner.values())
    of = table[found.gpu]
    return {pid: np.flatnonzero(of == pid) for pid in sorted(set(owner.values()))}


def _name(key: tuple[int, int], listed: Mapping[tuple[int, int], str]) -> str | None:
    """The name of a sample's series, None where its metric is not listed."""
    name = listed.get(key)
    return None if name is None else f"GPU {key[0] & _GPU_MASK} {name}"
