"""Groups of the rows of a Chrome trace that a cut may leave out: classes, names, threads, nested ops and arguments."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from tracekit.model.sweeps import find_parents
from tracekit.model.tables import DEVICE_OP_KINDS
from tracekit.pipeline.timeline.cutting.chrome import ScannedTrace, number_row_threads
from tracekit.pipeline.timeline.cutting.reduction import Group
from tracekit.readers.chrome.classes import CLASS_NAMES
from tracekit.readers.chrome.scan import TraceScan

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NESTED: Group = ("rows", "nested operators")
_UNLINKED: Group = ("rows", "calls without a device op")
_DETAILS = ("python", "python_call", "overhead", "memory", "counter", "flow", "other", "ignored", "window")
_ESSENTIAL = ("op", "runtime", "device_range", "range", "sync", "memcpy", "memset")
_NEEDED_ARGUMENTS = ("name", "labels", "sort_index", "correlation", "device", "stream")
"""Arguments that stay: those of metadata, and those with which other tools link and place device ops."""
_MOST_NAMES = 512


def list_row_blocks(trace: ScannedTrace, is_kept: Bools, arguments: Iterable[str]) -> list[list[Group]]:
    """List what to try to leave out together: arguments, details, then the classes and threads one by one."""
    present = {CLASS_NAMES[code] for code in np.unique(trace.classes[is_kept]).tolist()}
    known = [key for key in arguments if key in trace.scan.args and key not in _NEEDED_ARGUMENTS]
    blocks: list[list[Group]] = [
        [_UNLINKED, _NESTED, *(("class", name) for name in _DETAILS if name in present)],
        [("argument", key) for key in sorted(known)],
        *([("class", name)] for name in _ESSENTIAL if name in present),
    ]
    threads = np.unique(number_row_threads(trace.scan)[is_kept]).tolist()
    if len(threads) > 1:
        labels = _list_thread_labels(trace.scan)
        blocks.append([("thread", labels[number]) for number in threads])
    return blocks


def list_name_block(trace: ScannedTrace, is_kept: Bools) -> list[Group]:
    """List the names of device ops and operators, the most frequent first."""
    counted = is_kept & (trace.scan.name.codes >= 0) & trace.is_of(*DEVICE_OP_KINDS, "op")
    codes, counts = np.unique(trace.scan.name.codes[counted], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_NAMES]
    return [("name", str(trace.scan.name.values[code])) for code in codes[order].tolist()]


def drop_groups(trace: ScannedTrace, is_kept: Bools, left_out: frozenset[Group]) -> Bools:
    """Drop the rows of the groups from those to keep, then calls and operators that nothing needs if asked."""
    values = {kind: {value for group, value in left_out if group == kind} for kind in ("class", "name", "thread")}
    kept = is_kept & ~_mark_classes_and_names(trace, values["class"], values["name"])
    if values["thread"]:
        labels = _list_thread_labels(trace.scan)
        numbers = [number for number, label in labels.items() if label in values["thread"]]
        kept &= ~np.isin(number_row_threads(trace.scan), numbers)
    if _NESTED in left_out:
        kept &= ~_mark_nested_ops(trace, kept)
    if left_out:
        kept &= ~_mark_unlinked_calls(trace, kept, is_kept, every=_UNLINKED in left_out)
    return kept


def _mark_classes_and_names(trace: ScannedTrace, classes: AbstractSet[str], names: AbstractSet[str]) -> Bools:
    """Mark the rows with one of the classes, and device ops and operators with one of the names."""
    marks = np.array([*(str(value) in names for value in trace.scan.name.values), False], np.bool_)
    marked: Bools = marks[trace.scan.name.codes] & trace.is_of(*DEVICE_OP_KINDS, "op")
    return marked | trace.is_of(*classes)


def _mark_unlinked_calls(trace: ScannedTrace, kept: Bools, before: Bools, *, every: bool) -> Bools:
    """Mark the calls without a device op among the kept rows; unless `every`, only those whose device op was dropped."""
    ops = trace.is_of(*DEVICE_OP_KINDS, "sync") & (trace.correlation > 0)
    unlinked = trace.is_of("runtime") & ~np.isin(trace.correlation, trace.correlation[ops & kept])
    if not every:
        unlinked &= np.isin(trace.correlation, trace.correlation[ops & before])
    return unlinked


def _mark_nested_ops(trace: ScannedTrace, kept: Bools) -> Bools:
    """Mark the operators that begin within another operator of their thread."""
    scan = trace.scan
    rows = np.flatnonzero(kept & trace.is_of("op") & scan.has_ts)
    nested = np.zeros(len(kept), np.bool_)
    if not len(rows):
        return nested
    length = np.where(scan.has_dur, np.maximum(scan.dur_ns, 0), 0)
    rows = rows[np.lexsort((-length[rows], scan.ts_ns[rows], number_row_threads(scan)[rows]))]
    nested[rows] = find_parents(rows, number_row_threads(scan), scan.ts_ns, length)[rows] >= 0
    return nested


def _list_thread_labels(scan: TraceScan) -> dict[int, str]:
    """List the process and thread of each number."""
    width = len(scan.tid.values) + 2
    labels = {}
    for number in np.unique(number_row_threads(scan)).tolist():
        pid, tid = number // width - 1, number % width - 1
        labels[number] = " ".join(
            str(values[code]) if code >= 0 else "-" for values, code in ((scan.pid.values, pid), (scan.tid.values, tid))
        )
    return labels
