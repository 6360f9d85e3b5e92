"""Modules of a model as recorded in a trace, and the module that launched each device op."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import find_distinct, look_up_keys
from tracekit.model.trace import SparseColumn, Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import (
    build_call_tree_of_rows,
    find_innermost_rows_in_tree,
    measure_exclusive_host_times,
    measure_exclusive_times_in_tree,
)
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.ops.shapes import find_launch_threads

Ints = npt.NDArray[np.int64]

HIERARCHY = "Module Hierarchy"

_PYTHON = re.compile(r"nn\.Module: (.+?)(?:_(\d+))?\Z", re.DOTALL)
_WRAPPER = re.compile(r"((?:FullyShardedDataParallel|FSDP|DistributedDataParallel)[\w.:]*)", re.IGNORECASE)


@lru_cache(4096)
def parse_module_class(name: str) -> str | None:
    """Parse the module class, or kind of wrapper range, from a recorded name; None for other names.

    >>> parse_module_class("nn.Module: Linear_12"), parse_module_class("FSDP::pre_forward (layers.3)")
    ('Linear', 'FSDP::pre_forward')
    """
    python, wrapper = _PYTHON.match(name), _WRAPPER.match(name)
    if python:
        return python[1]
    return wrapper[1] if wrapper else None


def parse_innermost_class(hierarchy: str) -> str | None:
    """Parse the class of the innermost module of a recorded hierarchy; None for an empty one.

    >>> parse_innermost_class("SELF(Net)::forward.fc(Linear)::forward"), parse_innermost_class("")
    ('Linear', None)
    """
    names = re.findall(r"\(([^()]*)\)", hierarchy)
    if names:
        return str(names[-1]) or None
    return hierarchy.strip() or None


@dataclass(frozen=True, slots=True)
class RecordedModules:
    """One way in which modules are recorded.

    `origin` is python (rows of nn.Module), range (annotations) or hierarchy (an argument of ops). `calls` are
    the rows of `host_ops` that are calls of modules (or ops that name one). `owner` is the class of each, an
    index of `classes`; `instance` its recorded name as a number; `self_ns` its time outside inner module
    calls. `launcher` is, per row of `device_ops`, the class of the innermost module that launched it, -1
    outside. It is None if no thread that called modules recorded anything else, which leaves launches unassigned.
    """

    origin: str
    classes: list[str]
    calls: Ints
    owner: Ints
    instance: Ints
    self_ns: Ints
    launcher: Ints | None


def find_recorded_modules(trace: Trace) -> tuple[RecordedModules, ...]:
    """Find every way in which this trace records modules; empty if it does not."""
    tables = [
        _find_called_modules(trace, "python", "python"),
        _find_called_modules(trace, "range", "range"),
        _find_modules_by_hierarchy(trace),
    ]
    return tuple(table for table in tables if table)


def _find_called_modules(trace: Trace, origin: str, kind: str) -> RecordedModules | None:
    """Find modules that are rows of one kind, in a call tree of their own.

    A call belongs to the module that runs when the call begins, since ends jitter against those of inner ops.
    """
    names = trace.texts("host_ops", "name")
    classes_of = [parse_module_class(name) for name in names.texts]
    if not any(classes_of):
        return None
    named = np.array([*(name is not None for name in classes_of), False], np.bool_)[names.codes]
    rows = (named & mark_rows_of_kind(trace, "host_ops", kind)).nonzero()[0]
    if not len(rows):
        return None
    codes = names.codes[rows].astype(np.int64)
    classes = sorted({str(classes_of[code]) for code in find_distinct(codes).tolist()})
    number = {name: place for place, name in enumerate(classes)}
    of_code = np.array([*(number.get(str(name), -1) for name in classes_of), -1], np.int64)
    links: Launches = trace.derived(find_launches)
    thread = find_launch_threads(trace)
    in_thread = (thread >= 0).nonzero()[0]
    inside = np.full(len(thread), -1, np.int64)
    tree = build_call_tree_of_rows(trace, rows)
    spans = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    inside[in_thread] = find_innermost_rows_in_tree(
        trace, tree, thread[in_thread].astype(np.int32), links.ts_ns[in_thread]
    )
    return RecordedModules(
        origin,
        classes,
        rows,
        of_code[codes],
        codes,
        measure_exclusive_times_in_tree(tree, *spans)[rows],
        np.where(inside >= 0, of_code[names.codes[inside]], -1) if _has_ops_on_module_threads(trace, rows) else None,
    )


def _has_ops_on_module_threads(trace: Trace, rows: Ints) -> bool:
    """Check whether a thread of these rows recorded any ops or calls; some profilers put them on other threads."""
    thread = trace.numbers("host_ops", "thread")
    works = thread[mark_rows_of_kind(trace, "host_ops", "op", "runtime")]
    return not set(find_distinct(thread[rows]).tolist()).isdisjoint(find_distinct(works).tolist())


def _find_modules_by_hierarchy(trace: Trace) -> RecordedModules | None:
    """Find modules that an argument of every op names."""
    column: SparseColumn | None = trace.sparse.get(HIERARCHY)
    if column is None or column.categories is None or not len(column.rows):
        return None
    class_of_text = [parse_innermost_class(text) if isinstance(text, str) else None for text in column.categories]
    if not any(class_of_text):
        return None
    classes = sorted({name for name in class_of_text if name is not None})
    number = {name: place for place, name in enumerate(classes)}
    of_text = np.array([-1 if name is None else number[name] for name in class_of_text], np.int64)
    place, hit = look_up_keys(column.rows, trace.numbers("host_ops", "id"))
    codes = column.values[place].astype(np.int64)
    owner = np.where(hit & mark_rows_of_kind(trace, "host_ops", "op"), of_text[codes], -1)
    rows = (owner >= 0).nonzero()[0]
    if not len(rows):
        return None
    links: Launches = trace.derived(find_launches)
    by = np.where(links.op >= 0, links.op, links.call)
    launcher = np.where(by >= 0, owner[by], -1)
    self_ns = trace.derived(measure_exclusive_host_times)[rows]
    return RecordedModules("hierarchy", classes, rows, owner[rows], codes[rows], self_ns, launcher)
