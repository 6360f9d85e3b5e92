"""Dependency graphs as narrow columns: a tenth of their memory, for transport from workers and for saved measurements.

Values that other columns determine are not stored: launch times follow from instants, and edges along host threads from paths.
Unpacking gives the graph that was packed, edge by edge, and refuses columns that are not those of a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.graph_columns import GraphColumns
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Array, Coded, Columns, Nullable, broadcast_value
from tracekit.model.tables.slots import HOLDERS
from tracekit.model.trace import Trace
from tracekit.pipeline.wire_format.column_coding import MOST_NS, ColumnReader, ColumnWriter, DamagedGraphError
from tracekit.process.steps.windows import StageWindows
from tracekit.replay.edges import (
    ARRIVAL,
    CHANGED,
    DEVICE_KINDS,
    HOST_KINDS,
    KINDS,
    OWN_LENGTH,
    TRANSFER,
    Edges,
    Ints,
    Numbers,
    concatenate_edges,
    mark_kinds,
)
from tracekit.replay.process_graph import Meetings, ProcessGraph, StepBounds, build_process_graph
from tracekit.replay.process_parts.call_waits import CallWaits
from tracekit.replay.process_parts.device_ops import DeviceOps, find_previous_ops
from tracekit.replay.process_parts.host_load import MOST_CORES, HostLoad
from tracekit.replay.process_parts.host_threads import CallPaths, classify_host_edges
from tracekit.replay.process_parts.kernel_work import KernelWork

_COUNTS = (
    "host",
    "ops",
    "paths",
    "meetings",
    "steps",
    "stages",
    "edges",
    "hand_overs",
    "waits",
    "queue",
    "measured",
    "recorded",
)
"""Numbers of rows of each part, and single numbers of a graph."""

_MOST_ROWS = 2**31 - 2
_UNRECORDED = -1
_NOT_OF_ONE_PROCESS = (*HOST_KINDS, ARRIVAL, TRANSFER, OWN_LENGTH, CHANGED)
"""Kinds of edges that are made from other columns, or only once processes are joined."""


def build_graph_columns(trace: Trace) -> GraphColumns:
    """Build the graph of a trace as columns; no columns without work."""
    if not (trace.has("host_ops") or trace.has("device_ops")):
        return GraphColumns(trace.source, {}, {})
    return pack_graph(build_process_graph(trace))


def pack_graph(graph: ProcessGraph) -> GraphColumns:
    """Pack a graph. Raises `DamagedGraphError` for times or numbers beyond what can be unpacked."""
    writer = ColumnWriter()
    ops, waits, edges = graph.ops, graph.waits, graph.edges
    follows, kind = classify_host_edges(graph.thread, graph.path, graph.paths)
    between = len(edges.kind) - len(follows)
    parts = graph.host_count, ops, graph.paths, graph.meetings.rows, graph.steps.begin, graph.stages
    sizes = [part if isinstance(part, int) else len(part) for part in parts]
    singles = graph.hand_overs, waits.count, waits.queue, waits.queue_is_measured, graph.records_waits
    writer.add_integers("counts", [*sizes, between, *singles])
    _pack_host(writer, graph)
    _pack_ops(writer, ops)
    writer.texts["class"] = tuple(graph.classes)
    for name, mask in graph.classes.items():
        writer.add_mask(f"class.{name}", mask)
    _pack_host_edges(writer, graph, follows, kind)
    _pack_edges(writer, graph, edges.take(slice(between)))
    _pack_meetings(writer, graph.meetings)
    _pack_windows(writer, graph)
    _pack_load(writer, graph)
    return GraphColumns(graph.source, writer.numbers, writer.texts)


def _pack_host(writer: ColumnWriter, graph: ProcessGraph) -> None:
    """Pack the instants of host threads and the call paths; times follow one another over all threads."""
    begins = np.flatnonzero(np.diff(graph.thread, prepend=-2))
    writer.add_integers("thread", graph.thread[begins])
    writer.add_integers("thread.size", np.diff(np.append(begins, graph.host_count)))
    time = graph.time[: graph.host_count]
    steps = np.diff(time, prepend=time[:1])
    steps[begins] = 0
    writer.add_times("thread.first", time[begins])
    writer.add_integers("host.step", steps)
    writer.add_integers("host.path", graph.path)
    writer.add_integers("path.parent", graph.paths.parent)
    writer.add_coded("path.name", graph.paths.name)
    writer.add_integers("path.holder", graph.paths.holder)


def _pack_ops(writer: ColumnWriter, ops: DeviceOps) -> None:
    """Pack the device ops."""
    waits = np.flatnonzero(ops.waited_for >= 0)
    writer.add_times("op.start", ops.start)
    writer.add_integers("op.length", ops.end - ops.start)
    writer.add_integers("op.stream", ops.stream)
    writer.add_coded("op.name", ops.name)
    writer.add_mask("op.is_copy", ops.is_copy)
    writer.add_mask("op.is_collective", ops.is_collective)
    writer.add_integers("op.call", ops.call_begin)
    writer.add_integers("op.call_length", ops.call_end.astype(np.int64) - ops.call_begin)
    writer.add_integers("op.waits", waits)
    writer.add_integers("op.waited_for", ops.waited_for[waits])


def _pack_host_edges(writer: ColumnWriter, graph: ProcessGraph, follows: Ints, kind: npt.NDArray[np.int8]) -> None:
    """Pack the weights of edges along host threads that are not the time between two instants: waits were taken off."""
    host = graph.edges.take(slice(len(graph.edges.kind) - len(follows), None))
    is_expected = np.array_equal(host.target, follows) and np.array_equal(host.source, follows - 1)
    if not (is_expected and np.array_equal(host.kind, kind) and np.array_equal(host.owner, graph.path[follows - 1])):
        raise DamagedGraphError("edges of host threads: not those of its instants")
    cut = np.flatnonzero(host.weight != np.diff(graph.time)[follows - 1])
    writer.add_integers("cut", cut)
    writer.add_integers("cut.weight", host.weight[cut])


def _pack_edges(writer: ColumnWriter, graph: ProcessGraph, edges: Edges) -> None:
    """Pack edges that do not follow a thread, relative to the instants and ops around them."""
    target = edges.target.astype(np.int64)
    writer.add_integers("edge.step", np.diff(target, prepend=0))
    writer.add_integers("edge.length", target - edges.source)
    writer.add_integers("edge.kind", edges.kind)
    writer.add_mask("edge.inferred", edges.inferred)
    writer.add_integers("edge.owner", edges.owner - _guess_owners(target, graph.host_count, graph.path))
    length = _take_op_lengths(edges.source.astype(np.int64), target, graph.host_count, graph.ops.end - graph.ops.start)
    writer.add_integers("edge.weight", edges.weight - length)


def _guess_owners(target: Ints, host_count: int, path: Numbers) -> Ints:
    """Guess the owner of each edge: the op that it leads to, or the path that its thread is in before."""
    before = np.append(path, -1).astype(np.int64)[np.clip(target - 1, -1, host_count)]
    guess: Ints = np.where(target >= host_count, (target - host_count) >> 1, before)
    return guess


def _take_op_lengths(source: Ints, target: Ints, host_count: int, length: Ints) -> Ints:
    """Take the length of the op that each edge leads through, 0 for other edges."""
    through = (source >= host_count) & (target == source + 1) & ((source - host_count) & 1 == 0)
    lengths: Ints = np.where(through, np.append(length, 0)[np.where(through, (source - host_count) >> 1, -1)], 0)
    return lengths


def _pack_meetings(writer: ColumnWriter, meetings: Meetings) -> None:
    """Pack the collectives."""
    rows = TABLES["collectives"].cast_arrays(meetings.rows.arrays, len(meetings.rows), tuple(KEYS))
    for name, column in rows.items():
        _add_column(writer, f"meeting.{name}", column)
    for name in ("begin", "end", "op"):
        writer.add_integers(f"meeting:{name}", getattr(meetings, name))


def _pack_windows(writer: ColumnWriter, graph: ProcessGraph) -> None:
    """Pack the steps and stages."""
    steps, stages = graph.steps, graph.stages
    writer.add_nullable("step.number", steps.number)
    writer.add_integers("step.begin", steps.begin)
    writer.add_integers("step.end", steps.end)
    writer.add_times("stage.ts_ns", stages.ts_ns)
    writer.add_integers("stage.dur_ns", stages.dur_ns)
    writer.add_nullable("stage.step", stages.step)
    writer.add_coded("stage.stage", stages.stage)
    writer.add_coded("stage.parent", stages.parent)
    writer.add_integers("stage.occurrence", stages.occurrence)


def _pack_load(writer: ColumnWriter, graph: ProcessGraph) -> None:
    """Pack the load on the cores of the host, and the work of the kernels."""
    load = graph.load
    writer.add_integers("load.cores", sorted(load.cores))
    writer.add_integers("load.times", [load.running_ns, _UNRECORDED if load.ready_ns is None else load.ready_ns])
    writer.add_integers("work.device", graph.work.device)
    writer.add_integers("work.number", graph.work.number)


def _add_column(writer: ColumnWriter, name: str, column: Array) -> None:
    """Add a column of a table by its kind."""
    if isinstance(column, Coded):
        writer.add_coded(name, column)
    elif isinstance(column, Nullable):
        writer.add_nullable(name, column)
    elif column.dtype == np.bool_:
        writer.add_mask(name, column)
    else:
        writer.add_integers(name, column)


# --- unpacking --------------------------------------------------------------------------------------


def unpack_graph(columns: GraphColumns) -> ProcessGraph | None:
    """Unpack a graph; None for a process without work. Raises `DamagedGraphError` for columns that are not those of a graph."""
    if not columns.numbers:
        return None
    reader = ColumnReader(columns)
    values = reader.read_integers("counts", len(_COUNTS), 0, _MOST_ROWS).tolist()
    counts = dict(zip(_COUNTS, values, strict=True))
    host_count, op_count = counts["host"], counts["ops"]
    if host_count + 2 * op_count > _MOST_ROWS:
        raise DamagedGraphError("counts: too many instants")
    thread, host_time = _unpack_threads(reader, host_count)
    paths = _unpack_paths(reader, counts["paths"])
    path = reader.read_integers("host.path", host_count, -1, len(paths)).astype(np.int32)
    ops = _unpack_ops(reader, op_count, host_time, path)
    time = np.concatenate((host_time, np.stack((ops.start, ops.end), 1).reshape(-1)))
    _check_times(time)
    edges = _unpack_edges(reader, counts["edges"], (time, thread, path, paths), ops)
    return ProcessGraph(
        columns.source,
        time,
        host_count,
        thread,
        path,
        paths,
        ops,
        {name: reader.read_mask(f"class.{name}", op_count) for name in reader.read_texts("class")},
        edges,
        _unpack_meetings(reader, counts["meetings"], len(time), op_count),
        _unpack_steps(reader, counts["steps"], host_count),
        _unpack_stages(reader, counts["stages"]),
        CallWaits(counts["waits"], counts["queue"], queue_is_measured=bool(counts["measured"])),
        counts["hand_overs"],
        bool(counts["recorded"]),
        _unpack_load(reader),
        KernelWork(
            reader.read_integers("work.device", op_count, 0, max(op_count, 1)).astype(np.int32),
            reader.read_integers("work.number", op_count, -1, _MOST_ROWS).astype(np.int32),
        ),
    )


def _unpack_load(reader: ColumnReader) -> HostLoad:
    """Unpack the load on the cores of the host."""
    cores = reader.read_integers("load.cores", None, 0, MOST_CORES)
    running, ready = reader.read_integers("load.times", 2, _UNRECORDED, MOST_NS).tolist()
    return HostLoad(frozenset(cores.tolist()), max(running, 0), None if ready < 0 else ready)


def _check_times(time: Ints) -> None:
    """Raise `DamagedGraphError` if instants are too far apart."""
    if len(time) and int(time.max()) - int(time.min()) >= MOST_NS:
        raise DamagedGraphError("times too far apart")


def _unpack_threads(reader: ColumnReader, host_count: int) -> tuple[npt.NDArray[np.int32], Ints]:
    """Unpack the thread and the time of each host instant."""
    number = reader.read_integers("thread", None, 0, _MOST_ROWS)
    size = reader.read_integers("thread.size", len(number), 1, host_count + 1)
    if int(size.sum()) != host_count or (np.diff(number) <= 0).any():
        raise DamagedGraphError("thread: not all instants, each thread once")
    steps = reader.read_integers("host.step", host_count, 0, MOST_NS)
    if float(steps.astype(np.float64).sum()) >= MOST_NS:
        raise DamagedGraphError("host.step: times too far apart")
    begin = np.cumsum(size) - size
    since = np.cumsum(steps)
    first = reader.read_times("thread.first", len(number), ascending=False)
    time = since + np.repeat(first - since[begin], size)
    return np.repeat(number, size).astype(np.int32), time


def _unpack_paths(reader: ColumnReader, count: int) -> CallPaths:
    """Unpack the call paths, each after the path around it."""
    parent = reader.read_integers("path.parent", count, -1, max(count, 1))
    if (parent >= np.arange(count)).any():
        raise DamagedGraphError("path.parent: a path before the one around it")
    holder = reader.read_integers("path.holder", count, 0, len(HOLDERS))
    return CallPaths(parent.astype(np.int32), reader.read_coded("path.name", count), holder.astype(np.int8))


def _unpack_ops(reader: ColumnReader, count: int, host_time: Ints, path: Numbers) -> DeviceOps:
    """Unpack the device ops; their launches follow from the instants."""
    start = reader.read_times("op.start", count)
    end = start + reader.read_integers("op.length", count, 0, MOST_NS)
    stream = reader.read_integers("op.stream", count, 0, _MOST_ROWS).astype(np.int32)
    call_begin = reader.read_integers("op.call", count, -1, len(host_time))
    call_end = call_begin + reader.read_integers("op.call_length", count, 0, len(host_time) + 1)
    if len(call_end) and int(call_end.max()) >= max(len(host_time), 1):
        raise DamagedGraphError("op.call_length: beyond the last instant")
    call_end[call_begin < 0] = -1
    waits = reader.read_integers("op.waits", None, 0, count)
    waited_for = np.full(count, -1, np.int64)
    waited_for[waits] = reader.read_integers("op.waited_for", len(waits), 0, count)
    times, paths = np.append(host_time, 0), np.append(path, -1)
    launched = call_begin >= 0
    return DeviceOps(
        broadcast_value(np.int64(-1), count),
        start,
        end,
        stream,
        reader.read_coded("op.name", count),
        reader.read_mask("op.is_copy", count),
        reader.read_mask("op.is_collective", count),
        call_begin.astype(np.int32),
        call_end.astype(np.int32),
        np.where(launched, paths[call_begin], -1).astype(np.int32),
        np.where(launched, times[call_begin], 0),
        np.where(launched, times[call_end], 0),
        find_previous_ops(stream, start),
        waited_for,
    )


def _unpack_edges(
    reader: ColumnReader, count: int, host: tuple[Ints, npt.NDArray[np.int32], Numbers, CallPaths], ops: DeviceOps
) -> Edges:
    """Unpack all edges, those along host threads last."""
    time, thread, path, paths = host
    host_count = len(thread)
    steps = reader.read_integers("edge.step", count, -_MOST_ROWS, _MOST_ROWS)
    target = np.cumsum(steps)
    length = reader.read_integers("edge.length", count, -_MOST_ROWS, _MOST_ROWS)
    source = target - length
    _check_range("edge", source, 0, len(time))
    _check_range("edge", target, 0, len(time))
    kind = reader.read_integers("edge.kind", count, 0, len(KINDS))
    if mark_kinds(kind, *_NOT_OF_ONE_PROCESS).any():
        raise DamagedGraphError("edge.kind: not an edge of one process")
    owner = reader.read_integers("edge.owner", count, -_MOST_ROWS, _MOST_ROWS)
    owner = owner + _guess_owners(target, host_count, path)
    of_device = mark_kinds(kind, *DEVICE_KINDS)
    _check_range("edge.owner", owner[of_device], -1, len(ops))
    _check_range("edge.owner", owner[~of_device], -1, len(paths))
    weight = reader.read_integers("edge.weight", count, -MOST_NS, MOST_NS)
    weight = weight + _take_op_lengths(source, target, host_count, ops.end - ops.start)
    inferred = reader.read_mask("edge.inferred", count)
    between = (source.astype(np.int32), target.astype(np.int32), weight, kind.astype(np.int8), owner.astype(np.int32))
    return concatenate_edges([Edges(*between, inferred), _make_host_edges(reader, time, thread, path, paths)])


def _make_host_edges(
    reader: ColumnReader, time: Ints, thread: npt.NDArray[np.int32], path: Numbers, paths: CallPaths
) -> Edges:
    """Make the edges that follow host threads; a weight is the time between two instants unless it was cut."""
    follows, kind = classify_host_edges(thread, path, paths)
    weight = time[follows] - time[follows - 1]
    cut = reader.read_integers("cut", None, 0, len(follows))
    weight[cut] = reader.read_integers("cut.weight", len(cut), -MOST_NS, MOST_NS)
    target = follows.astype(np.int32)
    recorded = np.zeros(len(follows), np.bool_)
    return Edges(target - np.int32(1), target, weight, kind, path[follows - 1], recorded)


def _check_range(name: str, values: Ints, low: int, high: int) -> None:
    """Raise `DamagedGraphError` if a value is outside `[low, high)`."""
    if len(values) and (int(values.min()) < low or int(values.max()) >= high):
        raise DamagedGraphError(f"{name}: a value outside its range")


def _unpack_meetings(reader: ColumnReader, count: int, instants: int, op_count: int) -> Meetings:
    """Unpack the collectives."""
    begin = reader.read_integers("meeting:begin", count, -1, instants)
    end = reader.read_integers("meeting:end", count, -1, instants)
    op = reader.read_integers("meeting:op", count, -1, op_count)
    if ((begin >= 0) & (end < 0)).any():
        raise DamagedGraphError("meeting:end: a collective that does not end")
    table = TABLES["collectives"]
    rows: dict[str, Any] = {}
    for name, column in table.columns.items():
        if name not in KEYS:
            rows[name] = _read_table_column(reader, f"meeting.{name}", column.dtype, count)
    _check_spans(rows, instants)
    return Meetings(Columns(count, rows), begin.astype(np.int32), end.astype(np.int32), op)


def _check_spans(rows: Mapping[str, Any], instants: int) -> None:
    """Raise `DamagedGraphError` for collectives with impossible times, or with times but no instants at all."""
    if not len(rows["ts_ns"]):
        return
    if not instants or int(rows["dur_ns"].min()) < 0:
        raise DamagedGraphError("meeting: a collective without time")
    _check_times(np.concatenate((rows["ts_ns"], rows["ts_ns"] + rows["dur_ns"])))


def _read_table_column(reader: ColumnReader, name: str, dtype: str, count: int) -> Array:
    """Read a column of a table by its declared type."""
    if dtype == "category":
        return reader.read_coded(name, count)
    if dtype == "bool":
        return reader.read_mask(name, count)
    if dtype in ("Int64", "Float64"):
        return reader.read_nullable(name, count, is_float=dtype == "Float64")
    return reader.read_integers(name, count, -(2**61), 2**61).astype(dtype)


def _unpack_steps(reader: ColumnReader, count: int, host_count: int) -> StepBounds:
    """Unpack the steps."""
    number = reader.read_nullable("step.number", count)
    begin, end = (reader.read_integers(f"step.{name}", count, 0, host_count) for name in ("begin", "end"))
    return StepBounds(number, begin.astype(np.int32), end.astype(np.int32))


def _unpack_stages(reader: ColumnReader, count: int) -> StageWindows:
    """Unpack the stages."""
    return StageWindows(
        reader.read_times("stage.ts_ns", count),
        reader.read_integers("stage.dur_ns", count, 0, MOST_NS),
        reader.read_nullable("stage.step", count),
        reader.read_coded("stage.stage", count),
        reader.read_coded("stage.parent", count),
        reader.read_integers("stage.occurrence", count, 0, _MOST_ROWS).astype(np.int32),
    )
