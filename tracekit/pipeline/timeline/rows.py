"""One trace as rows of the timeline: JSON text, each row with a leading comma.

Times are µs with three decimals, exact to the ns. Correlation ids and flow ids are shifted to be unique per source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import QUEUE, look_up_keys
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import SparseColumn, Trace
from tracekit.pipeline.timeline.arguments import TRACE_ID_RANGE, RecordedArguments, quote_json
from tracekit.pipeline.timeline.lanes import FIRST_OTHER, HOST, NOTES, Lane
from tracekit.process.memory.levels import DRIVER

Ints = npt.NDArray[np.int64]

ROWS_PER_CHUNK = 50_000
"""Rows formatted at a time."""

_LARGEST_TID = 2**30
_DEVICE_CATEGORY = {"kernel": "kernel", "collective": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def name_track(pid: int, name: str, place: int, *, what: str = "process", tid: int = 0) -> str:
    """Format the rows that name and sort a process or thread."""
    which = f'"ph":"M","pid":{pid},"tid":{tid}'
    return (
        f',\n{{{which},"name":"{what}_name","args":{{"name":{quote_json(name)}}}}}'
        f',\n{{{which},"name":"{what}_sort_index","args":{{"sort_index":{place}}}}}'
    )


def format_micros(ns: Ints) -> list[str]:
    """Format nanoseconds as exact µs.

    >>> format_micros(np.array([1_234_567, -5]))
    ['1234.567', '-0.005']
    """
    microseconds, remainder = np.divmod(np.abs(ns), 1000)
    numbers = zip(microseconds.tolist(), remainder.tolist(), strict=True)
    texts = list(map("%d.%03d".__mod__, numbers))
    for row in np.flatnonzero(ns < 0).tolist():
        texts[row] = f"-{texts[row]}"
    return texts


def format_trace(trace: Trace, lane: Lane, *, is_part: bool) -> Iterator[tuple[str, int, str]]:
    """Format a trace in chunks: (table, number of rows, their text); the names of processes and threads come last.

    `is_part`: the trace was cut, and flow arrows to removed events are left out.
    """
    places = _TrackPlaces.assign(trace, lane)
    numbers = RecordedArguments({**_list_table_arguments(trace), **trace.sparse}, lane.trace_number * TRACE_ID_RANGE)
    for name in ("host_ops", "device_ops", "device_ranges", "syncs", "memory_ops"):
        if trace.has(name):
            yield from _format_interval_rows(name, trace[name], places, numbers)
    if trace.has("memory_ops"):
        yield from _format_allocated(trace["memory_ops"], places)
    if trace.has("counters"):
        yield from _format_counters(trace["counters"], places)
    if trace.has("windows") and not is_part:
        yield from _format_windows(trace["windows"], places)
    if trace.has("flows"):
        flows = trace["flows"]
        if is_part:
            flows = _keep_linked_flows(flows, trace)
        yield from _format_flows(flows, _find_flow_tracks(flows, trace, places), lane)
    yield "names", 0, places.names(trace.get("threads"))


@dataclass(frozen=True, slots=True)
class _NumberColumn:
    """Numbers of some rows, in the form of recorded arguments."""

    rows: npt.NDArray[np.int32]
    values: npt.NDArray[Any]
    categories: list[Any] | None = None


def _list_table_arguments(trace: Trace) -> Mapping[str, SparseColumn]:
    """List columns as arguments where formats do not record them as such: ids that join rows, and sizes."""
    columns: dict[str, SparseColumn] = {}
    for key, column in (("correlation", "correlation"), ("External id", "external_id"), ("bytes", "size_bytes")):
        id_parts, value_parts = [], []
        for name in ("host_ops", "device_ops", "syncs"):
            frame = trace.get(name)
            if column in frame and frame[column].notna().any():
                recorded = frame[frame[column].notna().to_numpy()]
                id_parts.append(recorded["id"].to_numpy())
                value_parts.append(recorded[column].to_numpy(np.int64))
        if id_parts:
            ids, values = np.concatenate(id_parts), np.concatenate(value_parts)
            order = np.argsort(ids, kind="stable")
            columns[key] = _NumberColumn(ids[order], values[order])
    return columns


# Tracks of rows


@dataclass(frozen=True, slots=True)
class _TrackPlaces:
    """Tracks of a trace as JSON: `thread[i]` for rows on thread i, `queues` for every (device, stream).

    `own[i]`: the host has events on thread i. `drawn` names each (pid, tid).
    """

    lane: Lane
    thread: npt.NDArray[np.object_]
    own: npt.NDArray[np.bool_]
    drawn: Mapping[tuple[int, int], tuple[str, str]]
    queues: Mapping[tuple[int | None, int | None], str]

    @classmethod
    def assign(cls, trace: Trace, lane: Lane) -> _TrackPlaces:
        """Assign tracks to the threads of a trace, threads of other processes, and the queues of its devices."""
        drawn: dict[tuple[int, int], tuple[str, str]] = {}
        queues: dict[tuple[int | None, int | None], str] = {}
        for device, stream in _list_queues(trace):
            pid = lane.pid(lane.device(device))
            tid = _make_tid(stream, len(queues))
            drawn[pid, tid] = (f"GPU {_format_unknown(device)}", f"stream {_format_unknown(stream)}")
            queues[device, stream] = _format_track(pid, tid)
        threads = trace.get("threads")
        used = pd.concat([trace.get("host_ops")["thread"], trace.get("memory_ops")["thread"]])
        own_pids = set(used.unique().tolist())
        other_pids: dict[object, int] = {lane.source.pid: HOST}
        texts = []
        columns = threads[["thread", "pid", "tid"]].astype(object)
        for number, *recorded in columns.itertuples(index=False, name=None):
            pid_of, tid_of = (_parse_optional_int(value) for value in recorded)
            # Flow ends on a device name only the device and stream, as pid and tid.
            if number not in own_pids and (pid_of, tid_of) in queues:
                texts.append(queues[pid_of, tid_of])
                continue
            process_number = other_pids.setdefault(pid_of, FIRST_OTHER + len(other_pids))
            pid, tid = lane.pid(process_number), _make_tid(tid_of, int(number))
            texts.append(_format_track(pid, tid))
            if number in own_pids:
                process = "CPU" if pid_of is None else f"CPU (pid {pid_of})"
                drawn[pid, tid] = (process, format_numbered_word("thread", tid_of))
        is_own = np.isin(np.arange(len(texts)), list(own_pids))
        return cls(lane, np.array([*texts, ""], object)[:-1], is_own, drawn, queues)

    def names(self, threads: pd.DataFrame) -> str:
        """Format the rows that name the tracks; recorded thread names take precedence."""
        is_named = threads["name"].notna().to_numpy(np.bool_)
        names = threads["name"][is_named].astype(object).map(str)
        recorded = dict(zip(self.thread[is_named], names, strict=True))
        lines: list[str] = []
        named_pids: set[int] = set()
        for (pid, tid), (process, thread) in self.drawn.items():
            if pid not in named_pids:
                named_pids.add(pid)
                lines.append(name_track(pid, f"{self.lane.name} · {process}", pid))
            label = recorded.get(_format_track(pid, tid)) or thread or "thread ?"
            lines.append(name_track(pid, label, tid, what="thread", tid=tid))
        return "".join(lines)


def _list_queues(trace: Trace) -> list[tuple[int | None, int | None]]:
    """List every (device, stream) with events."""
    tables = (trace.get(name)[[*QUEUE]] for name in ("device_ops", "device_ranges", "syncs"))
    pairs = pd.concat(tables).drop_duplicates().astype(object)
    rows = pairs.itertuples(index=False, name=None)
    lines = [(_parse_optional_int(device), _parse_optional_int(stream)) for device, stream in rows]
    return sorted(lines, key=lambda pair: [(v is None, v or 0) for v in pair])


def _format_track(pid: int, tid: int) -> str:
    return f'"pid":{pid},"tid":{tid}'


def _make_tid(recorded: int | None, number: int) -> int:
    """Get the recorded thread id if viewers accept it, else a substitute."""
    if recorded is None or not 0 <= recorded < _LARGEST_TID:
        return _LARGEST_TID + number
    return recorded


# Tables


def _format_interval_rows(
    name: str, frame: pd.DataFrame, places: _TrackPlaces, arguments: RecordedArguments
) -> Iterator[tuple[str, int, str]]:
    """Format intervals and allocator events, with all recorded arguments."""
    heads_of = None if name == "memory_ops" else _make_head_formatter(name, frame)
    for low in range(0, len(frame), ROWS_PER_CHUNK):
        part = frame.iloc[low : low + ROWS_PER_CHUNK]
        if "stream" in frame:
            queued, where = part, _format_queue_tracks(part, places)
        else:
            queued, where = None, places.thread[part["thread"]].tolist()
        begin = format_micros(part["ts_ns"].to_numpy(np.int64) - places.lane.shift_ns)
        args = arguments.format_rows(part["id"].to_numpy(np.int64), queued)
        if heads_of is None:
            instants = zip(where, begin, args, strict=True)
            texts = map((_INSTANT + '%s,"ts":%s%s}').__mod__, instants)
        else:
            length = format_micros(part["dur_ns"].to_numpy(np.int64))
            timed = zip(heads_of(low, low + ROWS_PER_CHUNK), where, begin, length, args, strict=True)
            texts = map('%s%s,"ts":%s,"dur":%s%s}'.__mod__, timed)
        yield name, len(part), "".join(texts)


_INSTANT = ',\n{"ph":"i","s":"t","name":"[memory]","cat":"cpu_instant_event",'


def _make_head_formatter(name: str, frame: pd.DataFrame) -> Callable[[int, int], list[str]]:
    """Make a function that formats the start of rows low … high: phase, category and name."""
    names = _format_fragments("name", frame["name"].cat.categories)
    name_code = frame["name"].cat.codes.to_numpy()
    if name == "host_ops":
        categories = _format_fragments("cat", frame["cat"].cat.categories)
        code = frame["cat"].cat.codes.to_numpy()
    elif name == "device_ops":
        categories = _format_fragments("cat", [_DEVICE_CATEGORY.get(kind) for kind in frame["kind"].cat.categories])
        code = frame["kind"].cat.codes.to_numpy()
    else:
        fixed = {"device_ranges": "gpu_user_annotation", "syncs": "cuda_sync"}[name]
        categories, code = _format_fragments("cat", [fixed]), np.zeros(len(frame), np.int8)

    def heads(low: int, high: int) -> list[str]:
        cells = zip(categories[code[low:high]].tolist(), names[name_code[low:high]].tolist(), strict=True)
        return list(map(',\n{"ph":"X",%s%s'.__mod__, cells))

    return heads


def _format_fragments(key: str, values: Any) -> npt.NDArray[np.object_]:
    """Format `"key":"value",` for each value, then an empty text for none."""
    return np.array([*(f'"{key}":{quote_json(value)},' for value in values), ""], object)


def _format_queue_tracks(part: pd.DataFrame, places: _TrackPlaces) -> list[str]:
    """Format the track of each row by its device and stream."""
    pairs = part[[*QUEUE]]
    number = np.asarray(pairs.groupby([*QUEUE], dropna=False, sort=False).ngroup(), np.int64)
    first = pairs[~pd.Series(number).duplicated().to_numpy()].astype(object)
    texts: list[str] = []
    for device, stream in first.itertuples(index=False, name=None):
        texts.append(places.queues[_parse_optional_int(device), _parse_optional_int(stream)])
    names: list[str] = np.array(texts, object)[number].tolist()
    return names


def _format_allocated(frame: pd.DataFrame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format the allocated bytes of each device as a counter, after every allocation and free."""
    measured = frame[frame["allocated_bytes"].notna()]
    for key, of_device in measured.groupby(["device_type", "device"], dropna=False, sort=True):
        kind, device = (_parse_optional_int(value) for value in key)
        where = "CPU" if kind == 0 else f"device {_format_unknown(device)}"
        if kind == DRIVER:
            where += " (from the driver)"
        head = f',\n{{"ph":"C","name":{quote_json(f"allocated memory, {where}")},'
        head += f'"pid":{places.lane.pid(HOST)},"tid":0,"ts":'
        for low in range(0, len(of_device), ROWS_PER_CHUNK):
            part = of_device.iloc[low : low + ROWS_PER_CHUNK]
            begin = format_micros(part["ts_ns"].to_numpy(np.int64) - places.lane.shift_ns)
            cells = zip(begin, part["allocated_bytes"].tolist(), strict=True)
            text = head + '%s,"args":{"bytes":%d}}'
            yield "allocated memory", len(part), "".join(map(text.__mod__, cells))


def _parse_optional_int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _format_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _format_counters(frame: pd.DataFrame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format counter samples; the last part of a counter's name is the argument of its value."""
    heads = []
    for name in frame["name"].cat.categories:
        counter, dot, key = str(name).rpartition(".")
        counter = counter if dot else key
        head = f',\n{{"ph":"C","name":{quote_json(counter)},"pid":{places.lane.pid(HOST)},"tid":0'
        heads.append(f'{head},"args":{{{quote_json(key)}:')
    texts = np.array([*heads, ""], object)
    for low in range(0, len(frame), ROWS_PER_CHUNK):
        part = frame.iloc[low : low + ROWS_PER_CHUNK]
        value = part["value"].to_numpy(np.float64, na_value=np.nan)
        part, value = part[np.isfinite(value)], value[np.isfinite(value)]
        begin = format_micros(part["ts_ns"].to_numpy(np.int64) - places.lane.shift_ns)
        head = texts[part["name"].cat.codes.to_numpy()].tolist()
        cells = zip(head, map(repr, value.tolist()), begin, strict=True)
        yield "counters", len(part), "".join(map('%s%s},"ts":%s}'.__mod__, cells))


def _format_windows(frame: pd.DataFrame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format the spans that the profiler reports as recorded, as tracks among the annotations."""
    pid = places.lane.pid(NOTES)
    names = _format_fragments("name", frame["name"].cat.categories)[frame["name"].cat.codes.to_numpy()]
    begin = format_micros(frame["ts_ns"].to_numpy(np.int64) - places.lane.shift_ns)
    length = format_micros(frame["dur_ns"].to_numpy(np.int64))
    # One track each, because they may overlap partially.
    tids = range(_LARGEST_TID, _LARGEST_TID + len(frame))
    text = f',\n{{"ph":"X","cat":"Trace",%s"pid":{pid},"tid":%d,"ts":%s,"dur":%s}}'
    cells = zip(names.tolist(), tids, begin, length, strict=True)
    yield "windows", len(frame), "".join(map(text.__mod__, cells))


def _format_flows(frame: pd.DataFrame, ends: npt.NDArray[np.object_], lane: Lane) -> Iterator[tuple[str, int, str]]:
    """Format flow arrows between these tracks, with a new unique id per arrow."""
    is_known = frame["flow"].notna().to_numpy(np.bool_)
    closed, ends = frame[is_known], ends[is_known]
    texts = closed["cat"].cat.categories
    # Viewers match arrows by category, name and id; the recorded name was the category.
    cats = _format_fragments("cat", texts) + _format_fragments("name", texts)
    cats[-1] = '"name":"flow",'
    number = np.asarray(closed.groupby(["cat", "flow"], observed=True, dropna=False, sort=False).ngroup(), np.int64)
    ids = number + 1 + lane.trace_number * TRACE_ID_RANGE
    phases = {"start": '"s"', "step": '"t","bp":"e"', "end": '"f","bp":"e"'}
    phase_texts = np.array([phases[phase] for phase in closed["phase"].cat.categories], object)
    for low in range(0, len(closed), ROWS_PER_CHUNK):
        part = closed.iloc[low : low + ROWS_PER_CHUNK]
        cells = zip(
            phase_texts[part["phase"].cat.codes.to_numpy()].tolist(),
            cats[part["cat"].cat.codes.to_numpy()].tolist(),
            ids[low : low + ROWS_PER_CHUNK].tolist(),
            ends[low : low + ROWS_PER_CHUNK].tolist(),
            format_micros(part["ts_ns"].to_numpy(np.int64) - lane.shift_ns),
            strict=True,
        )
        text = ',\n{"ph":%s,%s"id":%d,%s,"ts":%s}'
        yield "flows", len(part), "".join(map(text.__mod__, cells))


def _find_flow_tracks(flows: pd.DataFrame, trace: Trace, places: _TrackPlaces) -> npt.NDArray[np.object_]:
    """Find the track of each flow end.

    A flow names its device only by the recorded thread, which is useless if that is a text (`stream 7`). The op on the
    device has the flow id as its correlation id.
    """
    thread = flows["thread"].to_numpy()
    names: npt.NDArray[np.object_] = places.thread[thread]
    columns = [*QUEUE, "correlation"]
    ops = pd.concat([trace.get(name)[columns] for name in ("device_ops", "syncs")])
    ops = ops[ops["correlation"].notna().to_numpy(np.bool_)].drop_duplicates("correlation")
    away = ~places.own[thread] & flows["flow"].notna().to_numpy(np.bool_)
    if not len(ops) or not away.any():
        return names
    ops = ops.sort_values("correlation", kind="stable")
    wanted = flows["flow"].to_numpy(np.int64, na_value=0)
    linked = ops["correlation"].to_numpy(np.int64)
    place, is_linked = look_up_keys(linked, wanted)
    hit = np.flatnonzero(away & is_linked)
    names[hit] = np.array([*_format_queue_tracks(ops, places), ""], object)[place[hit]]
    return names


def _keep_linked_flows(flows: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Keep the arrows whose ends both start at an event that remains after the cut."""
    starts = pd.concat([trace.get("host_ops")["ts_ns"], trace.get("device_ops")["ts_ns"]])
    ends = flows[flows["ts_ns"].isin(starts)]
    return ends[ends.groupby(["cat", "flow"], observed=True)["flow"].transform("size") > 1]
