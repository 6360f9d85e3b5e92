"""Kernels of the page: which cells are exact, and how far others are merged to fit the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.render.explorer.blocks import PageBlockStore, compress_block, measure_block
from tracekit.render.explorer.cells import (
    LEVEL_LIMITS_NS,
    CellOrder,
    RowCells,
    choose_levels,
    encode_boxes,
    encode_cell_lines,
    list_row_cells,
    merge_row_kernels,
)
from tracekit.render.explorer.processes import ExplorerRows, PageRow
from tracekit.render.explorer.report_values import RankTable
from tracekit.render.explorer.tables import Numbering
from tracekit.render.explorer.varints import encode_columns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SAMPLED_ROWS = 5
"""Rows that are encoded to learn the size of a box at each level."""

SAMPLED_LEVELS = (0, 2, 4, 6)
RESERVED = 0.02
"""Share of the room that is left free at first: sizes are estimates."""

MOST_TRIES = 5

ROWS_AT_ONCE = 64
"""Rows that are encoded together."""


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """Number of kernels: in all, exact on the page, merged into boxes, and left out."""

    total: int
    exact: int
    merged: int
    missed: int


def add_kernels(
    rows: ExplorerRows,
    numbering: Sequence[Numbering],
    store: PageBlockStore,
    pins: Sequence[tuple[int, int, int]],
    late_ns: RankTable,
    room_bytes: float,
) -> KernelCounts:
    """Add the kernels of all rows to the page, in at most `room_bytes`."""
    cells = [list_row_cells(row) for row in rows.rows]
    if not cells:
        return KernelCounts(0, 0, 0, 0)
    tables = [_make_row_tables(row, numbering[row.process.number]) for row in rows.rows]
    boxes = np.concatenate([of_row.boxes for of_row in cells])
    sizes = _sample_box_sizes(rows, cells, tables)
    order = _order_cells(rows, cells, pins, late_ns)
    # A row costs its element, a cell its line.
    room = room_bytes * (1 - RESERVED) - 70.0 * len(rows.rows) - 14.0 * len(boxes) - 100
    encoded: dict[int, tuple[bytes, bytes]] = {}
    for _ in range(MOST_TRIES):
        levels = choose_levels(boxes * sizes, order, max(room, 0.0))
        _encode_changed_rows(rows, cells, levels, tables, encoded)
        blocks = {f"k{number}": block for number, (_, block) in encoded.items() if block}
        blocks["cells"] = compress_block(encode_columns(encode_cell_lines(cells, levels)))
        size = sum(measure_block(name, len(block)) for name, block in blocks.items())
        if size <= room_bytes or (levels < 0).all():
            break
        sizes *= 1.02 * size / max(room_bytes, 1.0)
    store.blocks |= blocks
    return _summarize_levels(cells, levels)


def _encode_changed_rows(
    rows: ExplorerRows,
    cells: Sequence[RowCells],
    levels: Ints,
    tables: Sequence[tuple[Ints, Ints, Ints]],
    encoded: dict[int, tuple[bytes, bytes]],
) -> None:
    """Encode the rows whose levels are not those of the last time; `encoded` has the levels and block of each row."""
    ends = np.cumsum([len(of_row.cell) for of_row in cells])
    changed = [
        (number, of_row)
        for number, of_row in enumerate(np.split(levels, ends[:-1]))
        if number not in encoded or encoded[number][0] != of_row.tobytes()
    ]
    for begin in range(0, len(changed), ROWS_AT_ONCE):
        part = changed[begin : begin + ROWS_AT_ONCE]
        merged = [
            merge_row_kernels(rows.rows[number], cells[number], of_row, tables[number]) for number, of_row in part
        ]
        for (number, of_row), data in zip(part, encode_boxes(merged), strict=True):
            encoded[number] = of_row.tobytes(), compress_block(data) if data else b""


def _make_row_tables(row: PageRow, numbers: Numbering) -> tuple[Ints, Ints, Ints]:
    """Make the tables of names, paths and stage names (+ 1, after a 0) of a row."""
    stages = numbers.names[row.read_part("ranges", "range.name")] + 1
    return numbers.names, numbers.paths, np.concatenate((np.zeros(1, np.int64), stages))


def _sample_box_sizes(
    rows: ExplorerRows, cells: Sequence[RowCells], tables: Sequence[tuple[Ints, Ints, Ints]]
) -> Floats:
    """Measure bytes per box in the file at each level on some rows; levels between are interpolated."""
    chosen = np.unique(np.linspace(0, len(cells) - 1, SAMPLED_ROWS).round().astype(int)).tolist()
    sizes = []
    for level in SAMPLED_LEVELS:
        size, count = 0, 0
        for number in chosen:
            levels = np.full(len(cells[number].cell), level)
            merged = merge_row_kernels(rows.rows[number], cells[number], levels, tables[number])
            size += len(compress_block(*encode_boxes([merged])))
            count += int(merged.sizes.sum())
        sizes.append(size * 4 / 3 / max(count, 1))
    return np.interp(np.arange(len(LEVEL_LIMITS_NS)), SAMPLED_LEVELS, sizes)


def _order_cells(
    rows: ExplorerRows, cells: Sequence[RowCells], pins: Sequence[tuple[int, int, int]], late_ns: RankTable
) -> CellOrder:
    """Order cells: those that findings point at, then the longest and the median step of each row."""
    pinned, telling, late = [], [], []
    for number, (row, of_row) in enumerate(zip(rows.rows, cells, strict=True)):
        is_pinned = np.zeros(len(of_row.cell), np.bool_)
        for of_pin, begin, end in pins:
            if of_pin == number:
                is_pinned |= (of_row.first < end) & (of_row.last > begin)
        is_of_row = row.process.read_column("step.row") == row.row
        length = np.append(0, row.process.read_column("step.length")[is_of_row])[of_row.cell]
        by_length = np.argsort(-length, kind="stable")
        is_telling = np.zeros(len(of_row.cell), np.bool_)
        is_telling[by_length[[0, len(by_length) // 2]] if len(by_length) else []] = True
        pinned.append(is_pinned)
        telling.append(is_telling)
        late.append(np.full(len(of_row.cell), late_ns.get_value(row.process.data.source) or 0.0))
    return CellOrder(np.concatenate(pinned), np.concatenate(telling), np.concatenate(late))


def _summarize_levels(cells: Sequence[RowCells], levels: Ints) -> KernelCounts:
    """Count kernels that are exact, in merged cells, and left out."""
    kernels = np.concatenate([of_row.kernels for of_row in cells])
    exact = int(kernels[levels == 0].sum())
    missed = int(kernels[levels < 0].sum())
    total = int(kernels.sum())
    return KernelCounts(total, exact, total - exact - missed, missed)
