"""Overlays of the page's timeline: the critical path as recorded, and the memory of devices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.timeline import PathPieces
from tracekit.render.explorer.blocks import compress_block, measure_block
from tracekit.render.explorer.names import PageNames
from tracekit.render.explorer.process_files import list_file_names
from tracekit.render.explorer.processes import ExplorerRows
from tracekit.render.explorer.varints import encode_columns, fold_signs, take_differences

Ints = npt.NDArray[np.int64]

BYTES_OF_CURVES = 0.05
"""Share of the budget that curves of memory may take."""


def encode_critical_path(rows: ExplorerRows, pieces: PathPieces, names: PageNames) -> bytes:
    """Encode the block `critical`; kinds and names get numbers on the page. A piece of an unknown process is on row 0."""
    places: dict[tuple[str, int | None], tuple[int, int]] = {}
    for number, row in enumerate(rows.rows):
        data = row.process.data
        place = number + 1, row.process.shift_ns - data.base_ns
        for file in list_file_names(data):
            places.setdefault((file, data.source.pid), place)
    on_page = [places.get(key, (0, -rows.begin_ns)) for key in zip(pieces.source, pieces.pid, strict=True)]
    row_numbers, shift = np.array(on_page, np.int64).reshape(-1, 2).T
    start = np.array(pieces.ts_ns, np.int64) + shift
    named = np.array([name is not None for name in pieces.name], np.int64)
    name = (names.number_texts([name or "" for name in pieces.name]) + 1) * named
    columns = [row_numbers, start, np.array(pieces.dur_ns, np.int64), names.number_texts(pieces.kind), name]
    order = np.argsort(start, kind="stable")
    row_numbers, start, *others = (column[order] for column in columns)
    return encode_columns([row_numbers, fold_signs(take_differences(start)), *others])


def encode_memory_curves(
    rows: ExplorerRows, late_ns: Mapping[int, float], budget_bytes: int
) -> tuple[dict[str, bytes], int]:
    """Encode the blocks `curve` of rows, the latest ranks first, while they fit: (compressed blocks, number left out)."""
    blocks: dict[str, bytes] = {}
    left, dropped = budget_bytes * BYTES_OF_CURVES, 0
    ranks = [row.process.data.source.rank for row in rows.rows]
    late = np.array([0.0 if rank is None else late_ns.get(rank, 0.0) for rank in ranks])
    for number in np.argsort(-late, kind="stable").tolist():
        row = rows.rows[number]
        time = row.read_times("curves", "curve.start")
        if not len(time):
            continue
        # Of the points before the page begins, the last one is the level at its begin.
        first = max(int(np.searchsorted(time, 0, side="right")) - 1, 0)
        levels = (row.read_part("curves", f"curve.{name}")[first:] for name in ("allocated", "reserved"))
        block = compress_block(encode_columns([take_differences(np.maximum(time[first:], 0)), *levels]))
        size = measure_block(f"curve{number}", len(block))
        if size > left:
            dropped += 1
            continue
        left -= size
        blocks[f"curve{number}"] = block
    return blocks, dropped
