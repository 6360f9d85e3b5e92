"""Cut of a Chrome trace: the rows of a window, written as a Chrome trace again."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import DEVICE_OP_KINDS
from tracekit.model.trace import SparseColumn
from tracekit.pipeline.timeline.arguments import RecordedArguments, quote_json
from tracekit.pipeline.timeline.cutting.names import Placeholders
from tracekit.pipeline.timeline.cutting.vocabulary import is_public_text
from tracekit.pipeline.timeline.rows import ROWS_PER_CHUNK, format_micros
from tracekit.readers.chrome import ARGUMENTS
from tracekit.readers.chrome.classes import CLASS_CODE, CLASS_OF_CATEGORY, classify_rows
from tracekit.readers.chrome.scan import Codes, ScanOptions, Sparse, TraceScan
from tracekit.readers.chrome.stream import scan_trace
from tracekit.readers.chrome.tables import take_sparse_integers
from tracekit.readers.chrome.values import Number

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LEVELS = ("lean", "ops", "full")
"""Rows within a window: device ops, runtime calls and annotations; also operators and modules; every row and argument."""

_ALWAYS = (*DEVICE_OP_KINDS, "range", "device_range", "sync", "runtime", "window", "meta")
_WITH_OPS = (*_ALWAYS, "op", "overhead", "memory", "counter")
_CLIPPED = ("range", "device_range", "window", "op", "python")
_PUBLIC_META = (
    *("schemaVersion", "deviceProperties", "cupti_version", "cuda_runtime_version", "cuda_driver_version"),
    *(
        "baseTimeNanoseconds",
        "displayTimeUnit",
        "record_shapes",
        "with_flops",
        "profile_memory",
        "with_stack",
        "with_modules",
    ),
)
_PUBLIC_DISTRIBUTED = ("backend", "rank", "world_size", "pg_count", "nccl_version")
_PUBLIC_FIELDS = ("id", "bp", "s")
_PUBLIC_PHASES = frozenset("BEXibnesftPNODMVvRcCIS(),")
_PUBLIC_PROPERTY = (
    *(
        "id",
        "name",
        "totalGlobalMem",
        "computeMajor",
        "computeMinor",
        "maxThreadsPerBlock",
        "maxThreadsPerMultiprocessor",
    ),
    *("regsPerBlock", "regsPerMultiprocessor", "warpSize", "sharedMemPerBlock", "sharedMemPerMultiprocessor", "numSms"),
    "sharedMemPerBlockOptin",
)
_PUBLIC_FACT = re.compile(
    r"[\d.,+ -]*|ms|ns|(?:cpu:|cuda:|hip:)?(?:nccl|gloo|mpi|ucc)(?:,(?:cpu:|cuda:|hip:)(?:nccl|gloo|mpi|ucc))*"
    r"|(?:NVIDIA|AMD|Tesla|GeForce|Quadro|Instinct|RTX|GTX|G[BH]?(?=\d\d)|[AHBVPTL](?=\d)|MI(?=\d\d)|(?<=\d)(?:X|S|GB)|SXM|PCIe|HBM\w?"
    r"|Ti|SUPER|NVL|Graphics|Radeon|Ada|Generation|Laptop|GPU|[\d -])+"
)
_LONGEST_FACT = 200
_PUBLIC_TEXT_ARGUMENTS = (
    *("dtype", "Collective name", "Input Dims", "Input type", "Input Strides", "Process Group Ranks", "grid", "block"),
)
_NAMED_ARGUMENTS = {
    "Process Group Name": "group",
    "Process Group Description": "group",
    "name": "name",
    "labels": "label",
}
_META_NAMES = ("process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index")
_GROUPS = "pg_config"


@dataclass(frozen=True, slots=True, eq=False)
class ScannedTrace:
    """A scanned Chrome trace, the class of each row, and the launch id of each row (0: none)."""

    scan: TraceScan
    classes: npt.NDArray[np.int8]
    correlation: Ints
    base_ns: int

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.classes)

    def is_of(self, *names: str) -> Bools:
        """Mark the rows by class."""
        return np.isin(self.classes, [CLASS_CODE[name] for name in names])


def scan_for_cut(path: Path) -> ScannedTrace:
    """Scan a Chrome trace, with every argument."""
    scan = scan_trace(path, ScanOptions())
    base = scan.meta.get("baseTimeNanoseconds", 0)
    base_ns = (
        int(base) if isinstance(base, int | float) or (isinstance(base, str) and base.lstrip("-").isdecimal()) else 0
    )
    rows = np.arange(len(scan.ts_ns))
    known = take_sparse_integers(scan.args.get("correlation"), rows)
    return ScannedTrace(
        scan, classify_rows(scan)[0], np.where(known.missing, 0, known.values).astype(np.int64), base_ns
    )


def select_rows_of_window(trace: ScannedTrace, start_ns: int, end_ns: int, level: str) -> Bools:
    """Mark the rows of [start_ns, end_ns) in Unix or file time: those that run in it, with the launches of its device ops.

    Device ops are kept if they begin in the window or are launched in it. Metadata is kept for the threads that remain.
    """
    scan = trace.scan
    start, end = start_ns - trace.base_ns, end_ns - trace.base_ns
    after = scan.ts_ns + np.maximum(np.where(scan.has_dur, scan.dur_ns, 0), 1)
    inside = scan.has_ts & (scan.ts_ns >= start) & (scan.ts_ns < end)
    containers = trace.is_of(*_CLIPPED) & scan.has_ts & (scan.ts_ns < start) & (after > start)
    kinds = {"lean": _ALWAYS, "ops": _WITH_OPS, "full": tuple(CLASS_CODE)}[level]
    wanted = trace.is_of(*kinds)
    if level != "full":
        wanted |= trace.is_of("python") & _mark_names(scan.name, "nn.Module: ")
    calls, ops = trace.is_of("runtime"), trace.is_of(*DEVICE_OP_KINDS, "sync")
    is_linked = trace.correlation > 0
    launched = ops & is_linked & np.isin(trace.correlation, trace.correlation[calls & inside & is_linked])
    kept = wanted & (inside | containers | launched)
    kept |= calls & is_linked & np.isin(trace.correlation, trace.correlation[kept & ops & is_linked])
    kept &= ~trace.is_of("meta")
    kept &= ~_mark_broken_flows(trace, kept)
    return kept | (trace.is_of("meta") & _mark_same_threads(scan, kept))


_ROW_KINDS = {
    **dict.fromkeys(("kernel", "collective"), "kernel"),
    **dict.fromkeys(("memcpy", "memset"), "copy"),
    "runtime": "call",
    "op": "operator",
    **dict.fromkeys(("range", "device_range"), "annotation"),
    "python": "Python function",
}


def count_chrome_rows(trace: ScannedTrace, is_kept: Bools) -> dict[str, int]:
    """Count the rows of each kind, in words of the field; metadata is not counted."""
    counts: dict[str, int] = dict.fromkeys((*_ROW_KINDS.values(), "other row"), 0)
    for name, code in CLASS_CODE.items():
        if name != "meta":
            counts[_ROW_KINDS.get(name, "other row")] += int((is_kept & (trace.classes == code)).sum())
    return counts


def _mark_names(names: Codes, head: str) -> Bools:
    """Mark the rows whose name begins so."""
    marks = [isinstance(value, str) and value.startswith(head) for value in names.values]
    marked: Bools = np.array([*marks, False], np.bool_)[names.codes]
    return marked


def _mark_broken_flows(trace: ScannedTrace, is_kept: Bools) -> Bools:
    """Mark the rows of flows that lack their start or their end: viewers cannot draw them."""
    scan, flows = trace.scan, is_kept & trace.is_of("flow")
    column = scan.fields.get("id")
    if column is None or not flows.any():
        return flows
    ids = np.full(len(flows), -1, np.int64)
    ids[column.rows] = np.unique(column.values, return_inverse=True)[1]
    ids = ids * (len(scan.cat.values) + 2) + scan.cat.codes
    for phase in ("s", "f"):
        flows &= np.isin(ids, ids[flows & _mark_names(scan.ph, phase)])
    broken: Bools = is_kept & trace.is_of("flow") & ~flows
    return broken


def number_row_threads(scan: TraceScan) -> Ints:
    """Number the thread or stream of each row."""
    return (scan.pid.codes.astype(np.int64) + 1) * (len(scan.tid.values) + 2) + scan.tid.codes + 1


def _mark_same_threads(scan: TraceScan, is_kept: Bools) -> Bools:
    """Mark the rows of the processes that have kept rows; names of a thread only if that thread has some."""
    thread = number_row_threads(scan)
    is_of_thread = _mark_names(scan.name, "thread_")
    same_process = np.isin(scan.pid.codes, np.unique(scan.pid.codes[is_kept]))
    same: Bools = np.where(is_of_thread, np.isin(thread, np.unique(thread[is_kept])), same_process)
    return same


def write_cut_pieces(
    trace: ScannedTrace,
    is_kept: Bools,
    window: tuple[int, int],
    level: str,
    read_arguments: Sequence[str],
    placeholders: Placeholders | None,
    left_out: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """Yield the text of a Chrome trace with the kept rows; ranges and ops around the window are clipped to it.

    Arguments of `left_out` are not written.
    """
    scan = _clip_containers(trace, is_kept, window)
    meta = scan.meta if placeholders is None else _anonymize_meta(scan.meta, placeholders)
    facts = json.dumps({**meta, "tracekit": {"cut": level}}, default=str, ensure_ascii=True)
    yield f'{facts[:-1]},\n"traceEvents": [\n'
    args: dict[str, SparseColumn] = dict(scan.args)
    if level != "full" or placeholders is not None:
        args = {key: args[key] for key in args if key in list_needed_arguments(read_arguments)}
    args = {key: column for key, column in args.items() if key not in left_out}
    labels: Sequence[Codes] = (scan.ph, scan.cat, scan.name, scan.pid, scan.tid)
    fields: dict[str, SparseColumn] = dict(scan.fields)
    if placeholders is not None:
        args, labels = _anonymize_arguments(args, placeholders), _anonymize_labels(trace, scan, placeholders, is_kept)
        fields = _anonymize_fields(fields, placeholders)
    texts = [
        _format_codes(key, column) for key, column in zip(("ph", "cat", "name", "pid", "tid"), labels, strict=True)
    ]
    formatted = RecordedArguments(args, 0), RecordedArguments(fields, 0)
    rows = _order_rows(trace, is_kept)
    for low in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[low : low + ROWS_PER_CHUNK]
        order = np.argsort(chunk)
        events = np.empty(len(chunk), object)
        events[order] = _format_rows(scan, chunk[order], labels, texts, formatted)
        yield (",\n" if low else "") + ",\n".join(events)
    yield "\n]}\n"


def _order_rows(trace: ScannedTrace, is_kept: Bools) -> Ints:
    """Order the kept rows to compress well: calls and device ops by name, after the other rows.

    Ranges and ops come first, in the recorded order: of two with the same times, the outer one is the first in the file.
    Flows come last: viewers attach their ends to the slices before them.
    """
    rows = np.flatnonzero(is_kept)
    is_named = trace.is_of("runtime", *DEVICE_OP_KINDS)[rows]
    group = np.select([trace.is_of("runtime")[rows], is_named, trace.is_of("flow")[rows]], [1, 2, 3], 0)
    ordered: Ints = rows[np.lexsort((rows, np.where(is_named, trace.scan.name.codes[rows], 0), group))]
    return ordered


def list_needed_arguments(read_arguments: Sequence[str]) -> frozenset[str]:
    """List the arguments that the readers and rules read, and those of metadata."""
    return frozenset((*ARGUMENTS, *read_arguments, *_NAMED_ARGUMENTS, "sort_index"))


def _format_rows(
    scan: TraceScan,
    rows: Ints,
    labels: Sequence[Codes],
    texts: Sequence[npt.NDArray[np.object_]],
    formatted: tuple[RecordedArguments, RecordedArguments],
) -> list[str]:
    """Format some rows, in ascending order, as elements of the event array."""
    parts = np.full(len(rows), "", object)
    for column, text in zip(labels, texts, strict=True):
        parts += text[column.codes[rows]]
    for key, values, is_known in (("ts", scan.ts_ns, scan.has_ts), ("dur", scan.dur_ns, scan.has_dur)):
        known = is_known[rows]
        times = np.empty(int(known.sum()), object)
        times[:] = [f',"{key}":{micros}' for micros in format_micros(values[rows[known]])]
        parts[known] += times
    arguments, fields = formatted
    extra = [text[len(',"args":{') : -1] for text in fields.format_rows(rows, None)]
    cells = zip(parts.tolist(), extra, arguments.format_rows(rows, None), strict=True)
    return ["{" + (head + ("," + more if more else "") + args).removeprefix(",") + "}" for head, more, args in cells]


def _format_codes(key: str, column: Codes) -> npt.NDArray[np.object_]:
    """Format `,"key":value` for each value of a column, then an empty text for none."""
    return np.array([*(f',"{key}":{_format_scalar(value)}' for value in column.values), ""], object)


def _format_scalar(value: Any) -> str:
    """Format a value as JSON; a number beyond the range of Python stays as recorded."""
    if isinstance(value, Number):
        return quote_json(str(value))
    return quote_json(value) if isinstance(value, str) else json.dumps(value)


def _clip_containers(trace: ScannedTrace, is_kept: Bools, window: tuple[int, int]) -> TraceScan:
    """Clip ranges and ops that begin before the window to it; without it they would last longer than the cut.

    Rows that begin in the window stay as recorded. Where such a row ends later, the ranges around it end with it: rows of a
    thread or stream still nest.
    """
    scan = trace.scan
    start, end = window[0] - trace.base_ns, window[1] - trace.base_ns
    after = scan.ts_ns + np.where(scan.has_dur, scan.dur_ns, 0)
    names, track = np.unique(number_row_threads(scan), return_inverse=True)
    touching = is_kept & scan.has_ts & scan.has_dur & (scan.ts_ns < end) & (after > start)
    clipped = touching & trace.is_of(*_CLIPPED) & (scan.ts_ns < start)
    whole = touching & ~clipped
    low, high = np.full(len(names), start), np.full(len(names), end)
    np.minimum.at(low, track[whole], scan.ts_ns[whole])
    np.maximum.at(high, track[whole], after[whole])
    begin = np.where(clipped, np.maximum(scan.ts_ns, low[track]), scan.ts_ns)
    stop = np.minimum(after, high[track])
    return replace(scan, ts_ns=begin, dur_ns=np.where(clipped, stop - begin, scan.dur_ns))


def pack_pieces(pieces: Iterator[str], *, compressed: bool) -> Iterator[bytes]:
    """Encode the pieces, as one gzip member if `compressed`."""
    if not compressed:
        yield from (piece.encode() for piece in pieces)
        return
    member = zlib.compressobj(9, zlib.DEFLATED, 31)
    for piece in pieces:
        yield member.compress(piece.encode())
    yield member.flush()


# Names


def _anonymize_meta(meta: Mapping[str, Any], placeholders: Placeholders) -> dict[str, Any]:
    """Keep the public facts outside the events."""
    kept = {key: _keep_public_facts(meta[key]) for key in _PUBLIC_META if key in meta}
    given = meta.get("distributedInfo")
    if isinstance(given, Mapping):
        facts = {key: _keep_public_facts(given[key]) for key in _PUBLIC_DISTRIBUTED if key in given}
        groups = given.get(_GROUPS)
        if isinstance(groups, Sequence) and not isinstance(groups, str):
            facts[_GROUPS] = [_anonymize_group(group, placeholders) for group in groups if isinstance(group, Mapping)]
        kept["distributedInfo"] = facts
    return kept


def _anonymize_group(group: Mapping[str, Any], placeholders: Placeholders) -> dict[str, Any]:
    """Keep the ranks and size of a process group, and replace its name."""
    kept = {key: _keep_public_facts(group[key]) for key in ("pg_size", "ranks") if key in group}
    kept["pg_name"] = _anonymize_text(str(group.get("pg_name", "")), "group", placeholders)
    return kept


def is_public_fact(text: str) -> bool:
    """Check whether a text is a number, a version, a backend or the name of a GPU.

    >>> is_public_fact("AMD Instinct MI300X"), is_public_fact("NVIDIA A100-SXM4-80GB"), is_public_fact("node7")
    (True, True, False)
    """
    return len(text) <= _LONGEST_FACT and _PUBLIC_FACT.fullmatch(text) is not None


def _keep_public_facts(value: Any) -> Any:
    """Keep numbers, versions, backends and names of GPUs; other texts become None."""
    if isinstance(value, Mapping):
        return {key: _keep_public_facts(value[key]) for key in _PUBLIC_PROPERTY if key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_keep_public_facts(item) for item in value]
    if isinstance(value, str):
        return value if is_public_fact(value) else None
    return value


def _is_public_value(value: Any) -> bool:
    """Check whether a recorded argument has numbers and public words only."""
    if isinstance(value, str):
        return is_public_text(value)
    if isinstance(value, Mapping):
        return False
    return all(map(_is_public_value, value)) if isinstance(value, Sequence) else True


def _keep_marked(column: SparseColumn, marks: Sequence[bool]) -> SparseColumn:
    """Keep the rows of a column whose value is marked."""
    assert column.categories is not None, "only a column of texts has values to mark"
    chosen = np.array([*marks, False], np.bool_)[column.values]
    return Sparse(column.rows[chosen], column.values[chosen], column.categories)


def _anonymize_text(value: str, kind: str, placeholders: Placeholders) -> str:
    """Get a text without private names; numbers stay."""
    return placeholders.replace(value, kind)


def _anonymize_arguments(args: Mapping[str, SparseColumn], placeholders: Placeholders) -> dict[str, SparseColumn]:
    """Keep numbers, texts of a closed vocabulary, and placeholders for names."""
    kept: dict[str, SparseColumn] = {}
    for key, column in args.items():
        if column.categories is None:
            kept[key] = column
        elif kind := _NAMED_ARGUMENTS.get(key):
            texts = [_anonymize_value(value, kind, placeholders) for value in column.categories]
            kept[key] = Sparse(column.rows, column.values, texts)
        else:
            is_text = key in _PUBLIC_TEXT_ARGUMENTS
            marks = [_is_public_value(v) if is_text else isinstance(v, int | float) for v in column.categories]
            if any(marks):
                kept[key] = _keep_marked(column, marks)
    return kept


def _anonymize_fields(fields: Mapping[str, SparseColumn], placeholders: Placeholders) -> dict[str, SparseColumn]:
    """Keep the ids and marks of flows; an id that is a text becomes a placeholder."""
    kept: dict[str, SparseColumn] = {}
    for key in _PUBLIC_FIELDS:
        column = fields.get(key)
        if column is None:
            continue
        if column.categories is not None and key == "id":
            column = Sparse(
                column.rows, column.values, [_anonymize_value(v, "id", placeholders) for v in column.categories]
            )
        elif column.categories is not None:
            column = _keep_marked(column, [v in ("e", "t", "p", "g") for v in column.categories])
        kept[key] = column
    return kept


def _anonymize_value(value: Any, kind: str, placeholders: Placeholders) -> Any:
    """Replace a text; other values stay."""
    return _anonymize_text(str(value), kind, placeholders) if isinstance(value, str) else value


_KINDS = {"python": "function", "range": "annotation", "device_range": "annotation", "op": "op"}


def _anonymize_labels(
    trace: ScannedTrace, scan: TraceScan, placeholders: Placeholders, is_kept: Bools
) -> tuple[Codes, ...]:
    """Replace the names of rows, and texts in the place of categories, processes and threads."""
    kinds = list(CLASS_CODE)
    values = list(scan.name.values)
    for name in ("meta", *(kind for kind in kinds if kind != "meta")):
        is_device = name in DEVICE_OP_KINDS
        kind = "kernel" if is_device else _KINDS.get(name, "event")
        for code in np.unique(scan.name.codes[is_kept & trace.is_of(name)]).tolist():
            if code >= 0 and not (name == "meta" and scan.name.values[code] in _META_NAMES):
                values[code] = placeholders.replace(str(scan.name.values[code]), kind, is_device=is_device)
    return (
        Codes(scan.ph.codes, [v if v in _PUBLIC_PHASES else "i" for v in scan.ph.values]),
        Codes(scan.cat.codes, [_anonymize_category(value, placeholders) for value in scan.cat.values]),
        Codes(scan.name.codes, values),
        *(
            Codes(column.codes, [_anonymize_value(value, "thread", placeholders) for value in column.values])
            for column in (scan.pid, scan.tid)
        ),
    )


_CATEGORIES = frozenset(
    (*CLASS_OF_CATEGORY, "trace", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "cpu_instant_event")
)


def _anonymize_category(value: Any, placeholders: Placeholders) -> Any:
    """Replace a category that the reader does not know."""
    return value if str(value).lower() in _CATEGORIES else placeholders.replace(str(value), "category")
