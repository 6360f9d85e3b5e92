"""Gaps and host rows on the page: as many as fit their shares of the budget, with the names and paths in use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.render.explorer.blocks import compress_block, measure_block
from tracekit.render.explorer.names import MergedPaths, PageNames, mark_path_ancestors, merge_paths
from tracekit.render.explorer.processes import ExplorerRows
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
    gap_share, host_share = 1.0, 1.0
    for attempt in range(MOST_FITS):
        gaps, host_floor = select_gaps(rows, gap_share), choose_host_floor(rows, host_share)
        names, numbering, texts, paths = _number_names(rows, gaps, host_floor)
        encoded = encode_gaps(rows, numbering, gaps.floor_ns)
        of_gaps = {name: compress_block(data) for name, data in zip(("gaps", "segments"), encoded, strict=True)}
        of_host = {}
        for process, numbers in zip(rows.processes, numbering, strict=False):
            host_rows = encode_host_rows(process, numbers, host_floor)
            if host_rows is not None:
                of_host[f"h{process.number}"] = compress_block(host_rows)
        gap_excess = _measure_blocks(of_gaps) / (budget_bytes * BYTES_OF_GAPS)
        host_excess = _measure_blocks(of_host) / (budget_bytes * BYTES_OF_HOST)
        if max(gap_excess, host_excess) <= 1 or attempt == MOST_FITS - 1:
            break
        gap_share *= SMALLER / gap_excess if gap_excess > 1 else 1
        host_share *= SMALLER / host_excess if host_excess > 1 else 1
    return PageDetails(gaps, host_floor, names, numbering, texts, paths, of_gaps | of_host)


def _measure_blocks(blocks: dict[str, bytes]) -> int:
    """Measure compressed blocks in the file."""
    return sum(measure_block(name, len(block)) for name, block in blocks.items())


def _number_names(
    rows: ExplorerRows, gaps: GapSelection, host_floor: int
) -> tuple[PageNames, list[Numbering], list[str], list[list[int]]]:
    """Number the names and paths that are used: (all names, per process numbers, texts, paths as parent and name)."""
    names, processes = PageNames(), (*rows.processes, *rows.snapshots)
    of_process = [names.number_texts(process.data.names) for process in processes]
    merged = merge_paths(processes, of_process)
    used_paths = np.zeros(len(merged.parent) + 1, np.bool_)
    used_names = np.zeros(len(names.numbers), np.bool_)
    for process, numbers, paths in zip(processes, of_process, merged.of_process, strict=True):
        mark_used_paths(process, paths, (gaps.floor_ns, host_floor), used_paths)
        mark_used_names(process, numbers, gaps.floor_ns, used_names)
    used_paths = used_paths[1:]
    mark_path_ancestors(merged.parent, used_paths)
    used_names[merged.name[used_paths]] = True
    new_name = np.where(used_names, np.cumsum(used_names) - 1, 0)
    new_path = np.concatenate(([0], np.where(used_paths, np.cumsum(used_paths), 0)))
    numbering = [
        Numbering(new_name[numbers], new_path[paths])
        for numbers, paths in zip(of_process, merged.of_process, strict=True)
    ]
    texts = names.list_printable(used_names)
    kept = {text: number for number, text in enumerate(np.flatnonzero(used_names).tolist())}
    names.numbers = {text: kept[number] for text, number in names.numbers.items() if number in kept}
    return names, numbering, texts, _list_used_paths(merged, used_paths, new_name, new_path)


def _list_used_paths(
    merged: MergedPaths, used: npt.NDArray[np.bool_], new_name: Ints, new_path: Ints
) -> list[list[int]]:
    """List the paths that are used: the path around each (-1: none), and its name."""
    parent = new_path[merged.parent[used] + 1] - 1
    paths: list[list[int]] = np.stack((parent, new_name[merged.name[used]]), axis=1).tolist()
    return paths
