"""Call paths of ops, from the outermost op to the op itself, as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.keys import find_distinct, number_keys
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import CallTree, build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind

Ints = npt.NDArray[np.int64]

INNER = 6
"""Innermost ops of a path that are kept; of the rest only the outermost is kept."""

MAX_CLIMB = 64
"""Levels to climb at most when looking for the outermost op."""

MAX_NAME = 300
"""Characters of an op name that a path shows."""

_NOTHING = -2


def number_op_paths(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Assign numbers to the call paths of rows of `host_ops`: (path number of each row, one row of each path)."""
    codes = trace.texts("host_ops", "name").codes.astype(np.int64) + 1
    width = int(codes.max(initial=0)) + 1
    key, depth = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    outermost = np.zeros(len(rows), np.int64)
    for level, (place, row) in enumerate(_climb_op_levels(trace, rows)):
        depth[place] = level + 1
        outermost[place] = codes[row]
        if level < INNER:
            name = np.zeros(len(rows), np.int64)
            name[place] = codes[row]
            _, key = number_keys(key * width + name)
    more = np.clip(depth - INNER, 0, 2)
    keys, number = number_keys((key * width + np.where(more > 0, outermost, 0)) * 3 + more)
    sole = np.empty(len(keys), np.int64)
    sole[number[::-1]] = rows[::-1]
    return number, sole


def format_op_paths(trace: Trace, rows: Ints) -> list[str]:
    """Format the path of each row as `outer > … > inner`."""
    recorded = trace.texts("host_ops", "name")
    codes = recorded.codes.astype(np.int64)
    parts_ = np.full((INNER, len(rows)), _NOTHING)
    outermost, depth = np.full(len(rows), _NOTHING), np.zeros(len(rows), np.int64)
    for level, (place, row) in enumerate(_climb_op_levels(trace, rows)):
        depth[place] = level + 1
        outermost[place] = codes[row]
        if level < INNER:
            parts_[level, place] = codes[row]
    used = find_distinct(np.concatenate((parts_.ravel(), outermost)))
    names = {-1: "(no name)"}
    names |= {code: recorded.texts[code] for code in used[used >= 0].tolist()}
    texts = []
    for inner, top, steps in zip(parts_.T.tolist(), outermost.tolist(), depth.tolist(), strict=True):
        path = [names[code][:MAX_NAME] for code in reversed(inner) if code != _NOTHING]
        outer = [names[top][:MAX_NAME]] if steps > INNER else []
        gap = ["…"] if steps > INNER + 1 else []
        texts.append(" > ".join((*outer, *gap, *path)))
    return texts


def _climb_op_levels(trace: Trace, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield (positions, rows): the rows themselves, then the nearest op around each, and so on."""
    tree: CallTree = trace.derived(build_call_tree)
    is_op = mark_rows_of_kind(trace, "host_ops", "op")
    place, row = np.arange(len(rows)), rows
    for _ in range(MAX_CLIMB):
        if not len(place):
            return
        yield place, row
        above = tree.nearest(is_op, row)
        place, row = place[above >= 0], above[above >= 0]
