"""Which ops enclose an op: its path from the outermost to itself, as a number and as text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import distinct, numbered
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import Nesting, nesting
from tracekit.process.name_filters import of_kind

Ints = npt.NDArray[np.int64]

INNER = 6
"""How many ops of a path are told, from the innermost; of the others only the outermost."""

MAX_CLIMB = 64
"""How far the outermost op is looked for."""

MAX_NAME = 300
"""How much of a name a path shows."""

_NOTHING = -2


def op_paths(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """(for each of these rows of `host_ops` the number of its path, one row of every path)."""
    codes = trace.texts("host_ops", "name").codes.astype(np.int64) + 1
    width = int(codes.max(initial=0)) + 1
    key, depth = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    outermost = np.zeros(len(rows), np.int64)
    for level, (place, row) in enumerate(_levels(trace, rows)):
        depth[place] = level + 1
        outermost[place] = codes[row]
        if level < INNER:
            name = np.zeros(len(rows), np.int64)
            name[place] = codes[row]
            _, key = numbered(key * width + name)
    more = np.clip(depth - INNER, 0, 2)
    keys, number = numbered((key * width + np.where(more > 0, outermost, 0)) * 3 + more)
    sole = np.empty(len(keys), np.int64)
    sole[number[::-1]] = rows[::-1]
    return number, sole


def path_texts(trace: Trace, rows: Ints) -> list[str]:
    """The path of each of these rows, `outer > … > inner`."""
    recorded = trace.texts("host_ops", "name")
    codes = recorded.codes.astype(np.int64)
    parts_ = np.full((INNER, len(rows)), _NOTHING)
    outermost, depth = np.full(len(rows), _NOTHING), np.zeros(len(rows), np.int64)
    for level, (place, row) in enumerate(_levels(trace, rows)):
        depth[place] = level + 1
        outermost[place] = codes[row]
        if level < INNER:
            parts_[level, place] = codes[row]
    used = distinct(np.concatenate((parts_.ravel(), outermost)))
    names = {-1: "(no name)"}
    names |= {code: recorded.texts[code] for code in used[used >= 0].tolist()}
    texts = []
    for inner, top, steps in zip(
        parts_.T.tolist(), outermost.tolist(), depth.tolist(), strict=True
    ):
        path = [names[code][:MAX_NAME] for code in reversed(inner) if code != _NOTHING]
        outer = [names[top][:MAX_NAME]] if steps > INNER else []
        gap = ["…"] if steps > INNER + 1 else []
        texts.append(" > ".join((*outer, *gap, *path)))
    return texts


def _levels(trace: Trace, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """(positions, rows): the rows themselves, then the nearest op around each, then the one around that …"""
    tree: Nesting = trace.derived(nesting)
    is_op = of_kind(trace, "host_ops", "op")
    place, row = np.arange(len(rows)), rows
    for _ in range(MAX_CLIMB):
        if not len(place):
            return
        yield place, row
        above = tree.nearest(is_op, row)
        place, row = place[above >= 0], above[above >= 0]
