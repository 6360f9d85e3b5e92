"""Cells of the page: the kernels of one row and step, exact, or merged where the budget is too small.

Neighboring kernels of a lane and stage that are shorter than a limit become one box with their number and busy time. The
levels of merging are exact, then one per limit; nothing is left out unless a cell does not fit at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.render.explorer.processes import PageRow
from tracekit.render.explorer.varints import encode_column_parts, take_part_differences

Ints = npt.NDArray[np.int64]

LEVEL_LIMITS_NS = (0, 1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000)
"""Limit of each level of merging, as the workers have found them; 0 is exact."""

COLUMNS = 9
LEFT_OUT = -1
"""Level of a cell that is not on the page."""


class RowCells(NamedTuple):
    """Cells of one row: step + 1, number of kernels, first start, last end, and number of boxes at each level."""

    cell: Ints
    kernels: Ints
    first: Ints
    last: Ints
    boxes: Ints


def list_row_cells(row: PageRow) -> RowCells:
    """List the cells of a row."""
    cell = row.read_part("kernels", "kernel.cell")
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    kernels = np.diff(begins, append=len(cell))
    place = np.repeat(np.arange(len(begins)), kernels)
    levels = len(LEVEL_LIMITS_NS)
    merge = row.read_part("kernels", "kernel.merge")
    joined = np.bincount(place * (levels + 1) + merge, minlength=len(begins) * (levels + 1))
    joined = joined.reshape(len(begins), levels + 1)[:, :levels].cumsum(1)
    start = row.read_times("kernels", "kernel.start")
    if not len(begins):
        return RowCells(cell, kernels, cell, cell, joined)
    end = start + row.read_part("kernels", "kernel.length")
    first, last = np.minimum.reduceat(start, begins), np.maximum.reduceat(end, begins)
    return RowCells(cell[begins], kernels, first, last, kernels[:, None] - joined)


class Boxes(NamedTuple):
    """Boxes of one row in the order of the page, and how many each cell has."""

    sizes: Ints
    columns: tuple[Ints, ...]


def merge_row_kernels(row: PageRow, cells: RowCells, levels: Ints, tables: tuple[Ints, Ints, Ints]) -> Boxes:
    """Merge the kernels of a row to the level of each cell; `tables` are the names, paths and stage names of its process."""
    place = np.repeat(np.arange(len(cells.cell)), cells.kernels)
    level = levels[place]
    kept = (level >= 0).nonzero()[0]
    opens = (row.read_part("kernels", "kernel.merge")[kept] > level[kept]).nonzero()[0]
    if not len(opens):
        return Boxes(np.zeros(len(cells.cell), np.int64), (np.empty(0, np.int64),) * COLUMNS)
    names, paths, stages = tables
    start = row.read_times("kernels", "kernel.start")[kept]
    length, lane, delay = (row.read_part("kernels", f"kernel.{name}")[kept] for name in ("length", "lane", "delay"))
    name = names[row.read_part("kernels", "kernel.name")[kept]] + 1
    path = paths[row.read_part("kernels", "kernel.path")[kept]]
    count = np.diff(opens, append=len(kept))
    begin, of_cell = start[opens], place[kept][opens]
    several = count > 1
    busy = np.add.reduceat(length, opens)
    reach = np.maximum.reduceat(start + length, opens) - begin
    order = np.lexsort((lane[opens], begin, of_cell))
    columns = (
        begin,
        reach,
        lane[opens],
        _keep_common_values(name, opens),
        _keep_common_values(path, opens),
        stages[row.read_part("kernels", "kernel.stage")[kept][opens]],
        np.where(several, 0, delay[opens]),
        count - 1,
        np.where(several, busy, 0),
    )
    sizes = np.bincount(of_cell, minlength=len(cells.cell))
    return Boxes(sizes, tuple(column[order] for column in columns))


def _keep_common_values(values: Ints, opens: Ints) -> Ints:
    """Keep the value that all members of a box have; 0 where they differ."""
    low, high = np.minimum.reduceat(values, opens), np.maximum.reduceat(values, opens)
    return np.where(low == high, low, 0)


def encode_boxes(rows: Sequence[Boxes]) -> list[bytes]:
    """Encode the boxes of rows: for each cell of a row on the page the number of boxes, then one column after the other."""
    sizes = [boxes.sizes[boxes.sizes > 0] for boxes in rows]
    start, *others = (np.concatenate(columns) for columns in zip(*(boxes.columns for boxes in rows), strict=True))
    of_cell = np.concatenate(sizes)
    cells = encode_column_parts([take_part_differences(start, of_cell), *others], of_cell)
    bounds = np.cumsum([0, *map(len, sizes)]).tolist()
    return [b"".join(cells[first:last]) for first, last in itertools.pairwise(bounds)]


class CellOrder(NamedTuple):
    """Facts that decide which cells are kept exact first."""

    pinned: npt.NDArray[np.bool_]
    telling: npt.NDArray[np.bool_]
    late_ns: npt.NDArray[np.float64]


def choose_levels(costs: npt.NDArray[np.float64], order: CellOrder, room: float) -> Ints:
    """Choose the level of merging of each cell; the sum of their costs (bytes, by cell and level) fits the room.

    Cells that a finding points at come first: each may take a third of the room left. Telling cells, the latest ranks first,
    take their need until half of the room is spent. The rest share alike; others get the room that some do not need.
    """
    levels = np.full(len(costs), LEFT_OUT, np.int64)
    left = room
    share = room / max(len(costs), 1)
    ranked = np.lexsort((-order.late_ns, ~order.telling, ~order.pinned))
    others: list[int] = []
    for place in ranked.tolist():
        quota = left / 3 if order.pinned[place] else left - room / 2
        if not order.pinned[place] and (not order.telling[place] or quota < min(costs[place, 0], 4 * share)):
            others.append(place)
            continue
        levels[place] = _find_fitting_level(costs[place], max(quota, min(share, left)))
        left -= _get_cost(costs[place], levels[place])
    others.sort(key=lambda place: costs[place, 0])
    for done, place in enumerate(others):
        levels[place] = _find_fitting_level(costs[place], left / (len(others) - done))
        left -= _get_cost(costs[place], levels[place])
    return levels


def _find_fitting_level(costs: npt.NDArray[np.float64], quota: float) -> int:
    """Find the first level that fits; `LEFT_OUT` if none does."""
    fits = (costs <= quota).nonzero()[0]
    return int(fits[0]) if len(fits) else LEFT_OUT


def _get_cost(costs: npt.NDArray[np.float64], level: int) -> float:
    """Get the cost of a level."""
    return float(costs[level]) if level >= 0 else 0.0


def encode_cell_lines(cells: Sequence[RowCells], levels: Ints) -> list[Ints]:
    """Make the columns of the block `cells`: row, step + 1, first start, last end, limit, boxes, kernels."""
    row = np.repeat(np.arange(len(cells)), [len(of_row.cell) for of_row in cells])
    joined = RowCells(*(np.concatenate(columns) for columns in zip(*cells, strict=True)))
    kept = (levels >= 0).nonzero()[0]
    limits = np.array(LEVEL_LIMITS_NS)[levels[kept]]
    boxes = joined.boxes[kept, levels[kept]]
    return [row[kept], joined.cell[kept], joined.first[kept], joined.last[kept], limits, boxes, joined.kernels[kept]]
