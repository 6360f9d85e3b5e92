"""Call paths of rows of a tree: rows with equal names from the top down share a path."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.keys import find_distinct, number_keys
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import CallTree, build_call_tree
from tracekit.process.host.tree import mark_window_rows
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.page_blocks.columns import PageTexts, PathTable

Ints = npt.NDArray[np.int64]

MAX_LEVELS = 64
"""Levels of the call tree in a path at most; outer ones are dropped."""

MAX_NAME = 300
"""Characters of a name on the page."""

_NUMBER = re.compile(r"#\d+$")


def shorten_page_name(name: str) -> str:
    """Shorten a name for the page, without the number of one instance.

    >>> shorten_page_name("Optimizer.step#AdamW.step"), shorten_page_name("ProfilerStep#12")
    ('Optimizer.step#AdamW.step', 'ProfilerStep#')
    """
    return _NUMBER.sub("#", name[: MAX_NAME + 20])[:MAX_NAME]


def number_launch_paths(trace: Trace, rows: Ints, names: PageTexts, paths: PathTable) -> Ints:
    """Number the paths of rows of `host_ops` (-1: none) through ops and inner ranges: number + 1, 0 for none.

    Steps and outermost ranges are not part of a path, since the page shows stages separately.
    """
    distinct, place = number_keys(rows)
    if not len(distinct) or distinct[-1] < 0:
        return np.zeros(len(rows), np.int64)
    begin = int(np.searchsorted(distinct, 0))
    wanted = mark_rows_of_kind(trace, "host_ops", "op", "range") & (mark_window_rows(trace) == 0)
    tree: CallTree = trace.derived(build_call_tree)
    all_rows, parent = list_ancestors(tree, wanted, distinct[begin:])
    codes = names.add_column(select_rows(trace.texts("host_ops", "name"), all_rows), shorten_page_name)
    number = add_call_paths(parent, codes, paths)[np.searchsorted(all_rows, distinct[begin:])]
    return np.concatenate((np.zeros(begin, np.int64), number + 1))[place]


def list_ancestors(tree: CallTree, wanted: npt.NDArray[np.bool_], rows: Ints) -> tuple[Ints, Ints]:
    """List rows and their ancestors that are shown, ascending: (rows, position of the nearest one around each, or -1)."""
    parts, parents, level = [rows], [], rows
    for _ in range(MAX_LEVELS):
        above = tree.nearest(wanted, level)
        parents.append(above)
        level = find_distinct(above[above >= 0])
        if not len(level):
            break
        parts.append(level)
    else:
        parents.append(np.full(len(level), -1, np.int64))
    both = np.concatenate(parts)
    all_rows, first = np.unique(both, return_index=True)
    around = np.concatenate(parents)[first]
    return all_rows, np.where(around >= 0, np.searchsorted(all_rows, around), -1)


def add_call_paths(parent: Ints, name: npt.NDArray[np.integer[Any]], paths: PathTable) -> Ints:
    """Merge rows with equal paths of names, add the paths, and get the number of the path of each row."""
    numbers = np.full(len(parent) + 1, -1, np.int64)
    factor = int(name.max(initial=0)) + 1
    parents, labels, count = [], [], 0
    open_rows = np.arange(len(parent))
    inner = np.zeros(len(parent), np.bool_)
    inner[parent >= 0] = True
    level = (~inner).nonzero()[0]
    while len(level):
        distinct, number = number_keys((numbers[parent[level]] + 1) * factor + name[level])
        numbers[level] = count + number
        count += len(distinct)
        parents.append(distinct // factor - 1)
        labels.append(distinct % factor)
        open_rows = open_rows[numbers[open_rows] < 0]
        level = open_rows[numbers[parent[open_rows]] >= 0]
    none = np.empty(0, np.int64)
    first = paths.add_paths(np.concatenate((none, *parents)), np.concatenate((none, *labels)))
    return numbers[:-1] + first
