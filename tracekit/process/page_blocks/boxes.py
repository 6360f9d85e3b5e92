"""Boxes of the rows of the page: device ops, or outermost ops of host threads, with their sums and levels of merging."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.keys import group_arrays, sum_by_group

Ints = npt.NDArray[np.int64]

KINDS = ("compute", "communication", "copies")
"""Kinds of boxes on the page."""

MERGE_LIMITS_NS = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000)
"""Limits below which neighboring boxes of a lane may be merged: their lengths, and the gap between them."""

NEVER_MERGED = len(MERGE_LIMITS_NS) + 1


class RowBoxes(NamedTuple):
    """Boxes of one row of the page.

    `lane` is the stream, or 0. `step` is the position of the step in which a box was launched, `stage` that of the
    outermost range, -1 for none. `cell` is the step in which it begins + 1. `path` and `delay_ns` are stored + 1, 0 for
    unknown.
    """

    start: Ints
    length: Ints
    kind: Ints
    stream: Ints
    name: Ints
    path: Ints
    step: Ints
    stage: Ints
    cell: Ints
    delay: Ints


def find_cells(start: Ints, step_starts: Ints) -> Ints:
    """Find the cell of each box: the last step that has begun + 1, 0 before the first."""
    cells: Ints = np.searchsorted(step_starts, start, side="right")
    return cells


def make_lanes(boxes: RowBoxes) -> tuple[dict[str, Ints], Ints]:
    """Number the lanes of a row, a lane per kind and stream: (columns of the lanes, lane of each box)."""
    streams, number = np.unique(boxes.stream, return_inverse=True)
    distinct, lane = np.unique(boxes.kind * len(streams) + number, return_inverse=True)
    kind, place = np.divmod(distinct, max(len(streams), 1))
    return {"lane.kind": kind, "lane.number": streams[place]}, lane.astype(np.int64)


def sort_boxes(boxes: RowBoxes, lane: Ints) -> dict[str, Ints]:
    """Sort boxes by cell, lane and start, and find below which limit each would merge with the one before it."""
    order = np.lexsort((boxes.length, boxes.start, lane, boxes.cell))
    columns = {name: column[order] for name, column in boxes._asdict().items()}
    lane = lane[order]
    return {
        "kernel.cell": columns["cell"],
        "kernel.lane": lane,
        "kernel.start": columns["start"],
        "kernel.length": columns["length"],
        "kernel.name": columns["name"],
        "kernel.path": columns["path"],
        "kernel.stage": columns["stage"] + 1,
        "kernel.delay": columns["delay"],
        "kernel.merge": find_merge_levels(
            columns["start"], columns["length"], (columns["cell"], lane, columns["stage"])
        ),
    }


def find_merge_levels(start: Ints, length: Ints, keys: tuple[Ints, ...]) -> Ints:
    """Find the lowest of `MERGE_LIMITS_NS` (counted from 1) below which each box merges with the one before it.

    A box merges with its neighbor of the same keys (cell, lane and stage) if both and the gap between them are shorter than
    the limit. `NEVER_MERGED` if no limit is high enough.
    """
    level = np.full(len(start), NEVER_MERGED, np.int64)
    gap = start[1:] - (start[:-1] + length[:-1])
    limit = np.maximum(gap, np.maximum(length[1:], length[:-1]))
    level[1:] = np.searchsorted(np.array(MERGE_LIMITS_NS), limit, side="right") + 1
    for key in keys:
        level[1:][key[1:] != key[:-1]] = NEVER_MERGED
    return level


def sum_boxes(boxes: RowBoxes, first_range: int) -> dict[str, Ints]:
    """Sum the boxes of a row by step, stage, path, name and kind, all exact."""
    keys = (
        boxes.step + 1,
        np.where(boxes.stage >= 0, boxes.stage + first_range + 1, 0),
        boxes.path,
        boxes.name,
        boxes.kind,
    )
    group, first = group_arrays(list(keys))
    columns = [key[first] for key in keys]
    order = np.lexsort(columns[::-1])
    names = ("step", "range", "path", "name", "kind")
    sums = {f"sum.{name}": column[order] for name, column in zip(names, columns, strict=True)}
    return {
        **sums,
        "sum.count": np.bincount(group, minlength=len(first))[order],
        "sum.ns": sum_by_group(group, boxes.length, len(first))[order],
    }
