"""GPU metrics of an Nsight Systems export, and the process that each GPU's samples are assigned to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.keys import group_arrays
from tracekit.readers.nsys import metrics_json as nsys_metrics_json
from tracekit.readers.nsys.content import MAX_NS, ExportClock
from tracekit.readers.nsys.samples import GPU_MASK, GpuSamples, Part, join_sample_parts, name_metric_series
from tracekit.readers.nsys.sqlite.blocks import read_column_blocks
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_small_table
from tracekit.readers.nsys.sqlite.expressions import MISSING

TABLE, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"


def read(db: ExportDatabase, clock: ExportClock) -> GpuSamples | None:
    """Read the samples of all GPUs, named `GPU <number> <metric>`; None if none were recorded.

    Falls back to the JSON samples of older exporters if the table is absent or empty.
    """
    samples = _read_metric_table(db, clock)
    if samples is None or not (len(samples.ts_ns) or samples.notes):
        older = nsys_metrics_json.read(db, clock)
        return samples if older is None else older
    return samples


def _read_metric_table(db: ExportDatabase, clock: ExportClock) -> GpuSamples | None:
    """Read the samples of the table; None if it does not exist.

    Metric numbers differ between files. Samples without a listed name are therefore dropped and counted.
    """
    if not has_table_columns(db, TABLE, "timestamp", "typeId", "metricId", "value"):
        return None
    names = _read_metric_names(db)
    code_of: dict[str, int] = {}
    parts: list[Part] = []
    untimed = unnamed = 0
    # Values are integers, except in hand-made files.
    thousandth = {"value": 'CAST(round("value" * 1000) AS INTEGER)'}
    for block in read_column_blocks(db, TABLE, ("timestamp", "typeId", "metricId"), expressions=thousandth):
        pair = [block["typeId"], block["metricId"]]
        number, first = group_arrays(pair)
        table = []
        for key in zip(*(column[first].tolist() for column in pair), strict=True):
            text = names.get(key)
            table.append(code_of.setdefault(text, len(code_of)) if text else -1)
        name = np.array(table, np.int32)[number]
        ts = block["timestamp"]
        timed = (ts > -MAX_NS) & (ts < MAX_NS)
        is_sample = (name >= 0) & (block["value"] != MISSING)
        untimed += int((~timed).sum())
        unnamed += int((timed & ~is_sample).sum())
        keep = timed & is_sample
        gpu = (block["typeId"][keep] & GPU_MASK).astype(np.int16)
        parts.append((ts[keep] + clock.base_ns, gpu, name[keep], block["value"][keep] / 1000))
    counts = (
        ("no-time", "samples of GPU metrics without a usable time were left out", untimed),
        ("no-name", "samples of GPU metrics without a name or a value were left out", unnamed),
    )
    return join_sample_parts(parts, list(code_of), counts)


def _read_metric_names(db: ExportDatabase) -> dict[tuple[int, int], str]:
    """Read the series name of each (type, metric)."""
    names: dict[tuple[int, int], str] = {}
    for type_, metric, name in sorted(read_small_table(db, NAMES, ("typeId", "metricId", "metricName")), key=str):
        if isinstance(type_, int) and isinstance(metric, int) and isinstance(name, str) and name:
            names[type_, metric] = name_metric_series(type_, name)
    return names


def assign_samples_to_processes(
    samples: GpuSamples, gpus: Mapping[int, Collection[int]]
) -> dict[int, npt.NDArray[np.int64]]:
    """Assign samples to processes (positions by pid): to the only process that uses the GPU, else to the first process.

    `gpus` are the profiler's numbers of the GPUs that each process uses. The first process is the one with the lowest pid.
    """
    if not gpus:
        return {}
    first = min(gpus)
    owner = {}
    for number in np.unique(samples.gpu).tolist():
        users = [pid for pid, used in sorted(gpus.items()) if number in used]
        owner[number] = users[0] if len(users) == 1 else first
    table = np.full(GPU_MASK + 1, first, np.int64)
    table[list(owner)] = list(owner.values())
    owner_of_sample = table[samples.gpu]
    return {pid: np.flatnonzero(owner_of_sample == pid) for pid in sorted(set(owner.values()))}
