"""Idle gaps of devices in segments with the call path of the host and the cause, as the analysis of idle time has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.keys import find_distinct
from tracekit.model.tables.slots import CAUSES, CPU_ACTIVITIES
from tracekit.model.trace import Trace
from tracekit.process.host.tree import HostThreadRows

# The attribution of each nanosecond is the one of the table `idle_blame`; only its sums are public so far.
from tracekit.process.idle_time.attribution import (
    _attribute_gaps,
    _build_idle_call_tree,
    _IdleLeaves,
    _shorten_row_names,
)
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.page_blocks.columns import PageTexts, PathTable

Ints = npt.NDArray[np.int64]

MAX_GAPS = 60_000
"""Longest gaps of one process that are kept one by one."""


_CAUSE_NUMBERS = {name: number for number, name in enumerate((*CAUSES, *CPU_ACTIVITIES))}
"""Number of each cause in `PAGE_CAUSES`."""


class IdleSegments(NamedTuple):
    """Segments of the idle gaps of one row in order: `start`, `end`, `cause` (index into `PAGE_CAUSES`), `path` + 1."""

    start: Ints
    end: Ints
    cause: Ints
    path: Ints


def list_idle_segments(
    trace: Trace, host: HostThreadRows, devices: Sequence[DeviceIdle], names: PageTexts, paths: PathTable
) -> list[IdleSegments]:
    """List the segments of all gaps of each device; each idle nanosecond is in one segment."""
    notes: dict[str, int] = {}
    leaves = [_attribute_gaps(trace, host, idle, notes) for idle in devices]
    short = _shorten_row_names(host.name, host.holder)
    flat = [part for parts in leaves for part in parts]
    tree, nodes = _build_idle_call_tree(short, host.tree.parent, host.holder, flat, tuple(notes))
    first = paths.add_paths(tree.parent, names.add_column(tree.text))
    ends = np.cumsum([len(parts) for parts in leaves]).tolist()
    return [
        _overlay_causes(idle, _join_leaves(parts, nodes[end - len(parts) : end], first))
        for idle, parts, end in zip(devices, leaves, ends, strict=True)
    ]


def _join_leaves(
    parts: Sequence[_IdleLeaves], nodes: Sequence[npt.NDArray[Any]], first: int
) -> tuple[Ints, Ints, Ints]:
    """Join the parts of one device in order of time: (start, end, path + 1)."""
    none = np.empty(0, np.int64)
    found = [(node >= 0).nonzero()[0] for node in nodes]
    start, end, node = (
        np.concatenate((none, *columns))
        for columns in zip(
            *(
                (part.start[rows], part.end[rows], node[rows])
                for part, node, rows in zip(parts, nodes, found, strict=True)
            ),
            strict=True,
        )
    )
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    return start[order], end[order], node[order].astype(np.int64) + first + 1


def _overlay_causes(idle: DeviceIdle, leaves: tuple[Ints, Ints, Ints]) -> IdleSegments:
    """Cut the leaves of one device where its cause changes, and join neighbors that are equal in both."""
    start, end, path = leaves
    cause_start, cause = order_causes(idle)
    begin = find_distinct(np.concatenate((start, cause_start)))
    leaf = np.searchsorted(start, begin, side="right") - 1
    causes = cause[np.searchsorted(cause_start, begin, side="right") - 1]
    gap = np.searchsorted(idle.gaps.start, begin, side="right") - 1
    paths = path[leaf]
    opens = np.ones(len(begin), np.bool_)
    opens[1:] = (gap[1:] != gap[:-1]) | (causes[1:] != causes[:-1]) | (paths[1:] != paths[:-1])
    begin, causes, paths, gap = begin[opens], causes[opens], paths[opens], gap[opens]
    until = idle.gaps.end[gap]
    until[:-1] = np.minimum(until[:-1], begin[1:])
    assert int((end - start).sum()) == idle.gaps.total == int((until - begin).sum()), "each idle nanosecond once"
    return IdleSegments(begin, until, causes, paths)


def order_causes(idle: DeviceIdle) -> tuple[Ints, Ints]:
    """Order the parts of all causes by time: (start, index into `PAGE_CAUSES`)."""
    numbers, parts = [_CAUSE_NUMBERS[name] for name in idle.causes], [part.start for part in idle.causes.values()]
    start = np.concatenate((np.empty(0, np.int64), *parts))
    order = np.argsort(start, kind="stable")
    return start[order], np.repeat(np.array(numbers, np.int64), [len(part) for part in parts])[order]


def make_gap_columns(
    idle: DeviceIdle, segments: IdleSegments, name: Ints, row: int
) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Make the columns of the gaps of one device and of their segments; `name` is the name of each op of the trace."""
    gaps = idle.gaps
    first = np.searchsorted(segments.start, gaps.start)
    named = np.append(name + 1, 0)
    return {
        "gap.row": np.full(len(gaps.start), row),
        "gap.start": gaps.start,
        "gap.length": gaps.end - gaps.start,
        "gap.before": named[idle.before],
        "gap.after": named[idle.after],
        "gap.segments": np.diff(first, append=len(segments.start)),
    }, {
        "segment.length": segments.end - segments.start,
        "segment.cause": segments.cause,
        "segment.path": segments.path,
    }


def select_longest_gaps(columns: dict[str, Ints], segments: dict[str, Ints]) -> tuple[dict[str, Ints], tuple[int, int]]:
    """Select the longest gaps of a process with their segments: (columns, (number and sum of the gaps left out))."""
    length = columns["gap.length"]
    chosen = np.ones(len(length), np.bool_)
    if len(length) > MAX_GAPS:
        chosen[np.argsort(-length, kind="stable")[MAX_GAPS:]] = False
    inside = np.repeat(chosen, columns["gap.segments"])
    kept = {name: column[chosen] for name, column in columns.items()}
    kept |= {name: column[inside] for name, column in segments.items()}
    return kept, (int((~chosen).sum()), int(length[~chosen].sum()))
