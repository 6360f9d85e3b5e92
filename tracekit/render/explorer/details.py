"""Gaps and host rows on the page: as many as fit their shares of the budget, with the names and paths in use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.render.explorer.blocks import compress_block, measure_block
from tracekit.render.explorer.names import MergedPaths, PageNames, mark_path_ancestors, merge_paths
from tracekit.render.explorer.processes import ExplorerRows, JoinedColumns
from tracekit.render.explorer.tables import (
    GapSelection,
    Numbering,
    choose_host_floor,
    encode_gaps,
    encode_host_rows,
    mark_used_names,
    mark_used_paths,
    select_gaps,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BYTES_OF_GAPS = BYTES_OF_HOST = 0.15
"""Share of the budget that gaps, and host rows, may take."""

MOST_FITS = 8
SMALLER = 0.9
"""Factor by which too many rows become fewer than their size asks for."""


class PageDetails(NamedTuple):
    """Gaps and host rows that fit, their compressed blocks, and the numbers of all names and paths in use."""

    gaps: GapSelection
    host_floor: int
    names: PageNames
    numbering: list[Numbering]
    texts: list[str]
    paths: list[list[int]]
    blocks: dict[str, bytes]


def fit_details(rows: ExplorerRows, budget_bytes: int) -> PageDetails:
    """Encode the longest gaps and host rows, fewer until each kind fits its share of the budget."""
    tables = _join_names(rows)
    gaps, host_floor = select_gaps(rows), choose_host_floor(rows)
    gap_share, host_share = 1.0, 1.0
    for attempt in range(MOST_FITS):
        used = _mark_used(tables, gaps.floor_ns, host_floor)
        numbering = _number_used(tables, used)
        encoded = encode_gaps(rows, numbering, gaps.floor_ns)
        of_gaps = {name: compress_block(data) for name, data in zip(("gaps", "segments"), encoded, strict=True)}
        host_rows = encode_host_rows(rows, numbering, host_floor)
        of_host = {name: compress_block(data) for name, data in host_rows.items()}
        gap_excess = _measure_blocks(of_gaps) / (budget_bytes * BYTES_OF_GAPS)
        host_excess = _measure_blocks(of_host) / (budget_bytes * BYTES_OF_HOST)
        if max(gap_excess, host_excess) <= 1 or attempt == MOST_FITS - 1:
            break
        if gap_excess > 1:
            gap_share *= SMALLER / gap_excess
            gaps = select_gaps(rows, gap_share)
        if host_excess > 1:
            host_share *= SMALLER / host_excess
            host_floor = choose_host_floor(rows, host_share)
    texts, paths = tables.names.list_printable(used.names), _list_used_paths(tables.paths, used)
    tables.names.keep_used(used.names)
    return PageDetails(gaps, host_floor, tables.names, numbering, texts, paths, of_gaps | of_host)


def _measure_blocks(blocks: dict[str, bytes]) -> int:
    """Measure compressed blocks in the file."""
    return sum(measure_block(name, len(block)) for name, block in blocks.items())


class _NameTables(NamedTuple):
    """All names and paths; per process and snapshot the numbers of its names, and their columns."""

    names: PageNames
    of_process: list[Ints]
    paths: MergedPaths
    columns: JoinedColumns


class _UsedNames(NamedTuple):
    """Names and paths that the page uses."""

    names: Mask
    paths: Mask


def _join_names(rows: ExplorerRows) -> _NameTables:
    """Join the names and paths of all processes and snapshots."""
    names, processes = PageNames(), (*rows.processes, *rows.snapshots)
    of_process = [names.number_texts(process.data.names) for process in processes]
    return _NameTables(names, of_process, merge_paths(processes, of_process), JoinedColumns(processes))


def _mark_used(tables: _NameTables, gap_floor: int, host_floor: int) -> _UsedNames:
    """Mark the names and paths that are used."""
    paths = np.zeros(len(tables.paths.parent) + 1, np.bool_)
    names = np.zeros(len(tables.names.numbers), np.bool_)
    mark_used_paths(tables.columns, tables.paths.of_process, (gap_floor, host_floor), paths)
    mark_used_names(tables.columns, tables.of_process, gap_floor, names)
    mark_path_ancestors(tables.paths.parent, paths[1:])
    names[tables.paths.name[paths[1:]]] = True
    return _UsedNames(names, paths[1:])


def _number_used(tables: _NameTables, used: _UsedNames) -> list[Numbering]:
    """Number the names and paths of each process that are used."""
    new_name = _number_marked(used.names)
    new_path = np.concatenate(([0], np.where(used.paths, np.cumsum(used.paths), 0)))
    return [
        Numbering(new_name[names], new_path[paths])
        for names, paths in zip(tables.of_process, tables.paths.of_process, strict=True)
    ]


def _number_marked(marked: Mask) -> Ints:
    """Number the marked ones from 0 on; others have number 0."""
    return np.where(marked, np.cumsum(marked) - 1, 0)


def _list_used_paths(merged: MergedPaths, used: _UsedNames) -> list[list[int]]:
    """List the paths that are used: the path around each (-1: none), and its name."""
    parent = np.append(_number_marked(used.paths), -1)[merged.parent[used.paths]]
    name = _number_marked(used.names)[merged.name[used.paths]]
    paths: list[list[int]] = np.stack((parent, name), axis=1).tolist()
    return paths
