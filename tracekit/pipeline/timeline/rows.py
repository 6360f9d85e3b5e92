"""One trace as rows of the timeline: JSON text, each row with a leading comma.

Times are µs with three decimals, exact to the ns. Correlation ids and flow ids are shifted to be unique per source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.frame import Frame, concat, count_rows
from tracekit.model.tables.keys import QUEUE, look_up_keys
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import SparseColumn, Trace
from tracekit.pipeline.timeline.arguments import TRACE_ID_RANGE, RecordedArguments, quote_json
from tracekit.pipeline.timeline.lanes import FIRST_OTHER, HOST, NOTES, Lane
from tracekit.pipeline.timeline.overlaps import assign_nesting_tracks
from tracekit.pipeline.timeline.window import (
    DrawnWindow,
    clip_rows,
    keep_inner_flows,
    keep_samples,
    list_clipped_times,
)
from tracekit.process.memory.levels import DRIVER

Ints = npt.NDArray[np.int64]

ROWS_PER_CHUNK = 50_000
"""Rows formatted at a time."""

_LARGEST_TID = 2**30
_FURTHER_TID = _LARGEST_TID + 2**29
"""First thread id of tracks for rows that overlap others without nesting."""
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


def format_trace(
    trace: Trace, lane: Lane, *, is_part: bool, window: DrawnWindow | None = None
) -> Iterator[tuple[str, int, str]]:
    """Format a trace in chunks: (table, number of rows, their text); the names of processes and threads come last.

    `is_part`: the trace was cut, and flow arrows to removed events are left out. Only the `window` (in timeline times) is
    drawn, if there is one. Rows of a track that overlap without nesting go to further tracks.
    """
    places = _TrackPlaces.assign(trace, lane)
    drawn = None if window is None else window.shift(lane.shift_ns)
    timed = {name: _wrap_raw_table(trace, name) for name in _TIMED_TABLES if trace.has(name)}
    arguments = {**_list_table_arguments(trace), **trace.sparse}
    if drawn is not None:
        arguments |= list_clipped_times(timed, drawn)
        timed = {name: clip_rows(rows, drawn) for name, rows in timed.items()}
    numbers = RecordedArguments(arguments, lane.trace_number * TRACE_ID_RANGE)
    tracks, moved = _move_crossing_rows(timed, places)
    for name, rows in timed.items():
        yield from _format_interval_rows(name, rows, places, numbers, tracks.get(name))
    if trace.has("memory_ops"):
        yield from _format_allocated(_select_samples(trace, "memory_ops", drawn, "device_type", "device"), places)
    if trace.has("counters"):
        yield from _format_counters(_select_samples(trace, "counters", drawn, "name"), places)
    if trace.has("windows") and not is_part and drawn is None:
        yield from _format_windows(_wrap_raw_table(trace, "windows"), places)
    if trace.has("flows"):
        flows = _select_flows(trace, drawn, is_part=is_part)
        yield from _format_flows(flows, moved.follow(flows, _find_flow_tracks(flows, trace, places)), lane)
    yield "names", 0, places.names(_wrap_raw_table(trace, "threads")) + moved.names


_TIMED_TABLES = ("host_ops", "device_ops", "device_ranges", "syncs", "memory_ops")


def _select_samples(trace: Trace, name: str, window: DrawnWindow | None, *by: str) -> Frame:
    """Select the samples of a table that are drawn; `by` names the columns of a series."""
    rows = _wrap_raw_table(trace, name)
    if name == "memory_ops":
        rows = rows.filter(~rows.is_missing("allocated_bytes"))
    return rows if window is None else keep_samples(rows, window, *by)


def _wrap_raw_table(trace: Trace, name: str) -> Frame:
    """Wrap a table of a trace; it has no rows if it was not recorded."""
    return Frame.from_columns({column: trace.array(name, column) for column in TABLES[name].columns})


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
            if column in TABLES[name].columns:
                values = trace.nullable(name, column)
                id_parts.append(trace.numbers(name, "id")[~values.missing])
                value_parts.append(values.values[~values.missing])
        ids, recorded = np.concatenate(id_parts), np.concatenate(value_parts)
        if len(ids):
            order = np.argsort(ids, kind="stable")
            columns[key] = _NumberColumn(ids[order], recorded[order])
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
        own_pids = {*np.unique(np.concatenate([trace.numbers(name, "thread") for name in ("host_ops", "memory_ops")]))}
        other_pids: dict[object, int] = {lane.source.pid: HOST}
        texts = []
        for row in _wrap_raw_table(trace, "threads").rows("thread", "pid", "tid"):
            number, pid_of, tid_of = row.values()
            # Flow ends on a device name only the device and stream, as pid and tid.
            if number not in own_pids and (pid_of, tid_of) in queues:
                texts.append(queues[pid_of, tid_of])
                continue
            process_number = other_pids.setdefault(pid_of, FIRST_OTHER + len(other_pids))
            pid, tid = lane.pid(process_number), _make_tid(tid_of, number)
            texts.append(_format_track(pid, tid))
            if number in own_pids:
                process = "CPU" if pid_of is None else f"CPU (pid {pid_of})"
                drawn[pid, tid] = (process, format_numbered_word("thread", tid_of))
        is_own = np.isin(np.arange(len(texts)), list(own_pids))
        return cls(lane, np.array([*texts, ""], object)[:-1], is_own, drawn, queues)

    def names(self, threads: Frame) -> str:
        """Format the rows that name the tracks; recorded thread names take precedence."""
        named = zip(self.thread.tolist(), threads.values("name"), strict=True)
        recorded = {track: name for track, name in named if name is not None}
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
    tables = [_wrap_raw_table(trace, name).select(*QUEUE) for name in ("device_ops", "device_ranges", "syncs")]
    lines = [(row["device"], row["stream"]) for row in concat(tables).distinct(*QUEUE).rows()]
    return sorted(lines, key=lambda pair: [(v is None, v or 0) for v in pair])


def _format_track(pid: int, tid: int) -> str:
    return f'"pid":{pid},"tid":{tid}'


def _make_tid(recorded: int | None, number: int) -> int:
    """Get the recorded thread id if viewers accept it, else a substitute."""
    if recorded is None or not 0 <= recorded < _LARGEST_TID:
        return _LARGEST_TID + number
    return recorded


# Tables


def _number_tracks(rows: Frame, places: _TrackPlaces, texts: Mapping[str, int]) -> Ints:
    """List the number of each row's track in `texts`."""
    if "stream" in rows.columns:
        queues = rows.group_by(*QUEUE)
        tracks = [texts[places.queues[row["device"], row["stream"]]] for row in queues.agg().rows(*QUEUE)]
        of_queue: Ints = np.array([*tracks, -1], np.int64)[queues.number]
        return of_queue
    of_thread = [texts[track] for track in places.thread.tolist()]
    numbers: Ints = np.array([*of_thread, -1], np.int64)[rows["thread"]]
    return numbers


@dataclass(frozen=True, slots=True)
class _MovedRows:
    """The tracks of rows that moved to further tracks, by (recorded track, start), and the rows that name them."""

    tracks: Mapping[tuple[str, int], str]
    names: str

    def follow(self, flows: Frame, tracks: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
        """Move the flow ends that are on moved rows."""
        if not self.tracks:
            return tracks
        tracks = tracks.copy()
        starts = flows["ts_ns"]
        moved_starts = np.array(sorted({start for _, start in self.tracks}), np.int64)
        for row in np.flatnonzero(np.isin(starts, moved_starts)).tolist():
            tracks[row] = self.tracks.get((tracks[row], int(starts[row])), tracks[row])
        return tracks


def _move_crossing_rows(
    timed: Mapping[str, Frame], places: _TrackPlaces
) -> tuple[dict[str, npt.NDArray[np.object_]], _MovedRows]:
    """List the track of each interval by table; rows that cross others of their track move to further tracks."""
    tables = {name: rows for name, rows in timed.items() if "dur_ns" in rows.columns}
    if not tables:
        return {}, _MovedRows({}, "")
    texts = list(dict.fromkeys([*places.thread.tolist(), *places.queues.values()]))
    number_of = {text: number for number, text in enumerate(texts)}
    number = np.concatenate([_number_tracks(rows, places, number_of) for rows in tables.values()])
    start = np.concatenate([rows["ts_ns"] for rows in tables.values()])
    further = assign_nesting_tracks(number, start, np.concatenate([rows["dur_ns"] for rows in tables.values()]))
    tracks = np.array([*texts, ""], object)[number]
    moved = np.flatnonzero(further)
    new_tracks: dict[tuple[int, int], str] = {}
    names: list[str] = []
    for old, level in sorted(set(zip(number[moved].tolist(), further[moved].tolist(), strict=True))):
        pid, tid = (int(text) for text in re.findall(r"\d+", texts[old]))
        new_tid = _FURTHER_TID + len(new_tracks)
        new_tracks[old, level] = _format_track(pid, new_tid)
        label = f"{places.drawn[pid, tid][1] or 'thread ?'} (overlap {level})"
        names.append(name_track(pid, label, tid, what="thread", tid=new_tid))
    new_places: dict[tuple[str, int], str] = {}
    for row in moved.tolist():
        new_track = new_tracks[int(number[row]), int(further[row])]
        new_places.setdefault((tracks[row], int(start[row])), new_track)
        tracks[row] = new_track
    ends = np.cumsum([len(rows) for rows in tables.values()])[:-1]
    return dict(zip(tables, np.split(tracks, ends), strict=True)), _MovedRows(new_places, "".join(names))


def _format_interval_rows(
    name: str,
    rows: Frame,
    places: _TrackPlaces,
    arguments: RecordedArguments,
    tracks: npt.NDArray[np.object_] | None,
) -> Iterator[tuple[str, int, str]]:
    """Format intervals on these tracks, and allocator events, with all recorded arguments."""
    heads_of = None if name == "memory_ops" else _make_head_formatter(name, rows)
    for low in range(0, len(rows), ROWS_PER_CHUNK):
        part = rows.take(slice(low, low + ROWS_PER_CHUNK))
        queued = part if "stream" in rows.columns else None
        where = (places.thread[part["thread"]] if tracks is None else tracks[low : low + ROWS_PER_CHUNK]).tolist()
        begin = format_micros(part["ts_ns"] - places.lane.shift_ns)
        args = arguments.format_rows(part.integers("id"), queued)
        if heads_of is None:
            instants = zip(where, begin, args, strict=True)
            texts = map((_INSTANT + '%s,"ts":%s%s}').__mod__, instants)
        else:
            length = format_micros(part["dur_ns"])
            timed = zip(heads_of(part), where, begin, length, args, strict=True)
            texts = map('%s%s,"ts":%s,"dur":%s%s}'.__mod__, timed)
        yield name, len(part), "".join(texts)


_INSTANT = ',\n{"ph":"i","s":"t","name":"[memory]","cat":"cpu_instant_event",'


def _split_into_chunks(rows: Frame) -> Iterator[Frame]:
    """Split rows into the chunks that are formatted at a time."""
    for low in range(0, len(rows), ROWS_PER_CHUNK):
        yield rows.take(slice(low, low + ROWS_PER_CHUNK))


def _make_head_formatter(name: str, rows: Frame) -> Callable[[Frame], list[str]]:
    """Make a function that formats the start of some of the rows: phase, category and name."""
    names = _format_fragments("name", rows["name"].texts)
    column = {"host_ops": "cat", "device_ops": "kind"}.get(name)
    if column is None:
        categories = _format_fragments("cat", ["cuda_sync" if name == "syncs" else "gpu_user_annotation"])
    else:
        kinds = rows[column].texts
        categories = _format_fragments("cat", [_DEVICE_CATEGORY[kind] for kind in kinds] if column == "kind" else kinds)

    def heads(part: Frame) -> list[str]:
        code = np.zeros(len(part), np.int8) if column is None else part[column].codes
        cells = zip(categories[code].tolist(), names[part["name"].codes].tolist(), strict=True)
        return list(map(',\n{"ph":"X",%s%s'.__mod__, cells))

    return heads


def _format_fragments(key: str, values: Any) -> npt.NDArray[np.object_]:
    """Format `"key":"value",` for each value, then an empty text for none."""
    return np.array([*(f'"{key}":{quote_json(value)},' for value in values), ""], object)


def _format_queue_tracks(part: Frame, places: _TrackPlaces) -> list[str]:
    """Format the track of each row by its device and stream."""
    queues = part.group_by(*QUEUE)
    tracks = [places.queues[row["device"], row["stream"]] for row in queues.agg().rows(*QUEUE)]
    names: list[str] = np.array(tracks, object)[queues.number].tolist()
    return names


def _format_allocated(rows: Frame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format the allocated bytes of each device as a counter, after every allocation and free."""
    by = ("device_type", "device")
    for of_device in rows.filter(~rows.is_missing("allocated_bytes")).sort(*by).group_by(*by).frames():
        kind, device = (of_device.head(1).values(name)[0] for name in by)
        where = "CPU" if kind == 0 else f"device {_format_unknown(device)}"
        if kind == DRIVER:
            where += " (from the driver)"
        head = f',\n{{"ph":"C","name":{quote_json(f"allocated memory, {where}")},'
        head += f'"pid":{places.lane.pid(HOST)},"tid":0,"ts":'
        for part in _split_into_chunks(of_device):
            begin = format_micros(part["ts_ns"] - places.lane.shift_ns)
            cells = zip(begin, part.values("allocated_bytes"), strict=True)
            text = head + '%s,"args":{"bytes":%d}}'
            yield "allocated memory", len(part), "".join(map(text.__mod__, cells))


def _format_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _format_counters(rows: Frame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format counter samples; the last part of a counter's name is the argument of its value."""
    heads = []
    for name in rows["name"].texts:
        counter, dot, key = name.rpartition(".")
        counter = counter if dot else key
        head = f',\n{{"ph":"C","name":{quote_json(counter)},"pid":{places.lane.pid(HOST)},"tid":0'
        heads.append(f'{head},"args":{{{quote_json(key)}:')
    texts = np.array([*heads, ""], object)
    for chunk in _split_into_chunks(rows):
        value = chunk.number("value")
        part, value = chunk.filter(np.isfinite(value)), value[np.isfinite(value)]
        begin = format_micros(part["ts_ns"] - places.lane.shift_ns)
        head = texts[part["name"].codes].tolist()
        cells = zip(head, map(repr, value.tolist()), begin, strict=True)
        yield "counters", len(part), "".join(map('%s%s},"ts":%s}'.__mod__, cells))


def _format_windows(rows: Frame, places: _TrackPlaces) -> Iterator[tuple[str, int, str]]:
    """Format the spans that the profiler reports as recorded, as tracks among the annotations."""
    pid = places.lane.pid(NOTES)
    names = _format_fragments("name", rows["name"].texts)[rows["name"].codes]
    begin = format_micros(rows["ts_ns"] - places.lane.shift_ns)
    length = format_micros(rows["dur_ns"])
    # One track each, because they may overlap partially.
    tids = range(_LARGEST_TID, _LARGEST_TID + len(rows))
    text = f',\n{{"ph":"X","cat":"Trace",%s"pid":{pid},"tid":%d,"ts":%s,"dur":%s}}'
    cells = zip(names.tolist(), tids, begin, length, strict=True)
    yield "windows", len(rows), "".join(map(text.__mod__, cells))


def _format_flows(flows: Frame, ends: npt.NDArray[np.object_], lane: Lane) -> Iterator[tuple[str, int, str]]:
    """Format flow arrows between these tracks, with a new unique id per arrow."""
    is_known = ~flows.is_missing("flow")
    closed, ends = flows.filter(is_known), ends[is_known]
    texts = closed["cat"].texts
    # Viewers match arrows by category, name and id; the recorded name was the category.
    cats = _format_fragments("cat", texts) + _format_fragments("name", texts)
    cats[-1] = '"name":"flow",'
    ids = closed.group_by("cat", "flow").number + 1 + lane.trace_number * TRACE_ID_RANGE
    phases = {"start": '"s"', "step": '"t","bp":"e"', "end": '"f","bp":"e"'}
    phase_texts = np.array([phases[phase] for phase in closed["phase"].texts], object)
    for low in range(0, len(closed), ROWS_PER_CHUNK):
        part = closed.take(slice(low, low + ROWS_PER_CHUNK))
        cells = zip(
            phase_texts[part["phase"].codes].tolist(),
            cats[part["cat"].codes].tolist(),
            ids[low : low + ROWS_PER_CHUNK].tolist(),
            ends[low : low + ROWS_PER_CHUNK].tolist(),
            format_micros(part["ts_ns"] - lane.shift_ns),
            strict=True,
        )
        text = ',\n{"ph":%s,%s"id":%d,%s,"ts":%s}'
        yield "flows", len(part), "".join(map(text.__mod__, cells))


def _find_flow_tracks(flows: Frame, trace: Trace, places: _TrackPlaces) -> npt.NDArray[np.object_]:
    """Find the track of each flow end.

    A flow names its device only by the recorded thread, which is useless if that is a text (`stream 7`). The op on the
    device has the flow id as its correlation id.
    """
    thread = flows["thread"]
    names: npt.NDArray[np.object_] = places.thread[thread]
    columns = (*QUEUE, "correlation")
    ops = concat([_wrap_raw_table(trace, name).select(*columns) for name in ("device_ops", "syncs")])
    ops = ops.filter(~ops.is_missing("correlation")).distinct("correlation")
    away = ~places.own[thread] & ~flows.is_missing("flow")
    if not len(ops) or not away.any():
        return names
    ops = ops.sort("correlation")
    place, is_linked = look_up_keys(ops.integers("correlation"), flows.integers("flow"))
    hit = np.flatnonzero(away & is_linked)
    names[hit] = np.array([*_format_queue_tracks(ops, places), ""], object)[place[hit]]
    return names


def _select_flows(trace: Trace, window: DrawnWindow | None, *, is_part: bool) -> Frame:
    """Select the flow ends that are drawn: of a part of the trace, or of the `window`, only whole arrows."""
    flows = _wrap_raw_table(trace, "flows")
    if is_part or window is not None:
        flows = _keep_linked_flows(flows, trace)
    if window is not None:
        flows = flows.filter(keep_inner_flows(flows, window.touches(flows["ts_ns"], np.zeros(len(flows), np.int64))))
    return flows


def _keep_linked_flows(flows: Frame, trace: Trace) -> Frame:
    """Keep the arrows whose ends both start at an event that remains after the cut."""
    starts = np.concatenate([trace.numbers(name, "ts_ns") for name in ("host_ops", "device_ops")])
    ends = flows.filter(np.isin(flows["ts_ns"], starts) & ~flows.is_missing("cat") & ~flows.is_missing("flow"))
    return ends.filter(ends.group_by("cat", "flow").each(count_rows()) > 1)
