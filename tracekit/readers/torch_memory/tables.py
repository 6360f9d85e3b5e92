"""Conversion of a memory snapshot's objects, checked key by key, to the tables declared in `model/tables/snapshots.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Coded, Columns, Nullable, select_rows
from tracekit.model.tables.snapshots import ACTIONS, MEMORIES, STATES
from tracekit.readers.torch_memory.columns import (
    Ints,
    SnapshotRecords,
    build_shape_error,
    get_record_values,
    join_records,
    list_record_keys,
    mark_none_values,
    read_addresses,
    read_bounded_integers,
    read_byte_sizes,
    read_distinct_texts,
    read_keys_natively,
    read_pool_ids,
    read_record_texts,
    read_record_times,
    require_numbers,
)
from tracekit.readers.torch_memory.stacks import SnapshotStacks, make_stack_column, make_stacks_table

USER_DEFINED = "user_defined"
"""Action by which torch 2.4 recorded annotations; the annotation is the name of a frame."""

_TOP = frozenset(
    (
        *("segments", "device_traces", "allocator_settings", "external_annotations"),
        *("host_segments", "host_traces", "trace_alloc_max_entries", "trace_alloc_overflowed"),
        *("categories", "version", "skip_actions", "simulated"),
    )
)
_ENTRY = frozenset(
    (
        *("action", "addr", "device_free", "size", "stream", "time_us", "frames"),
        *("forward_frames", "compile_context", "user_metadata", "pool_id", "category"),
        *("internal_metadata", "version"),
    )
)
_SEGMENT = frozenset(
    (
        *("device", "address", "total_size", "allocated_size", "active_size", "requested_size"),
        *("stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"),
    )
)
_BLOCK = frozenset(
    (
        *("address", "size", "requested_size", "state", "frames", "forward_frames", "history"),
        *("compile_context", "user_metadata", "category", "internal_metadata", "version"),
    )
)
_HISTORY = frozenset({"addr", "real_size", "frames"})
_ANNOTATION = frozenset({"stage", "name", "device", "time_us"})

_STATE_OF = {
    "active_allocated": "active",
    "active_pending_free": "pending_free",
    "active_awaiting_free": "pending_free",
    "inactive": "inactive",
}
_STAGE_OF = {"START": "start", "END": "end"}
_MOST_DEVICES = 1024
_MOST_COUNTED = 20
"""Most distinct unknown keys or words counted separately."""
_LONGEST = 100
"""Most characters kept of an unknown key."""


@dataclass(slots=True)
class SnapshotTables:
    """Tables of one snapshot, and counts of unknown elements by place and name."""

    tables: dict[str, Columns] = field(default_factory=dict[str, Columns])
    unknown: Counter[str] = field(default_factory=Counter[str])


def make_snapshot_tables(root: object, path: Path, max_dicts: int) -> SnapshotTables:
    """Build the tables of a snapshot with at most `max_dicts` dictionaries. Raises `TraceFormatError` for an invalid part."""
    top = {"segments": root} if type(root) is list else root
    if type(top) is not dict or not ({"segments", "device_traces", *_HOST} & top.keys()):
        raise build_shape_error(path, "top", "no dictionary with segments or device_traces")
    snapshot, stacks = SnapshotTables(), SnapshotStacks(path)
    _count_unknown_keys(snapshot, "", SnapshotRecords(path, [top], lambda _: "top", [0]), _TOP)
    ranges = _make_annotations(snapshot, top, path, max_dicts)
    traces = _collect_histories(top, path, max_dicts)
    if traces is not None:
        _make_allocations(snapshot, stacks, *traces, ranges)
    _make_segments(snapshot, stacks, top, path, max_dicts)
    if ranges:
        snapshot.tables["annotations"] = concatenate_table_parts(TABLES["annotations"], ranges)
    if stacks.recorded:
        snapshot.tables["stacks"] = make_stacks_table(stacks)
    snapshot.unknown.update(stacks.unknown)
    return snapshot


_HOST = ("host_segments", "host_traces")


def _count_unknown_keys(
    snapshot: SnapshotTables, place: str, entries: SnapshotRecords, known_keys: frozenset[str]
) -> set[str]:
    """List all keys of the records. Counts the unknown ones."""
    keys = list_record_keys(entries)
    odd = sorted(keys - known_keys)
    for key in odd[:_MOST_COUNTED]:
        snapshot.unknown[f"{place}{key[:_LONGEST]}"] += sum(key in row for row in entries.rows)
    if len(odd) > _MOST_COUNTED:
        snapshot.unknown[f"{place}* (other keys)"] += len(odd) - _MOST_COUNTED
    return keys


def _count_unknown_words(
    snapshot: SnapshotTables, what: str, column: tuple[npt.NDArray[np.int32], list[str]], known_words: Container[str]
) -> None:
    """Count the rows whose text is not a known word."""
    codes, names = column
    odd = [code for code, name in enumerate(names) if name not in known_words]
    if not odd:
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(names)).tolist()
    for code in odd[:_MOST_COUNTED]:
        snapshot.unknown[f"{what} {names[code][:_LONGEST]}"] += counts[code]
    if len(odd) > _MOST_COUNTED:
        other_count = sum(counts[code] for code in odd[_MOST_COUNTED:])
        snapshot.unknown[f"{what} * (others)"] += other_count


def _collect_histories(
    top: Mapping[str, Any], path: Path, max_dicts: int
) -> tuple[SnapshotRecords, Ints, npt.NDArray[np.bool_]] | None:
    """Collect the histories of all devices and the host: (entries, device of each group, whether it is the host's)."""
    names: list[str] = []
    groups: list[object] = []
    device: list[int] = []
    for key in ("device_traces", "host_traces"):
        lists = top.get(key)
        if lists is None:
            continue
        if type(lists) is not list:
            raise build_shape_error(path, key, "expected a list")
        if key == "host_traces" and not any(type(each) is list for each in lists):
            lists = [lists]
        if len(lists) > _MOST_DEVICES:
            raise build_shape_error(path, key, f"{len(lists):,} devices")
        groups += lists
        for number in range(len(lists)):
            names.append(f"{key}[{number}]")
            device.append(number if key == "device_traces" else -1)
    entries = join_records(path, names.__getitem__, groups, max_dicts) if groups else None
    if entries is None or not entries.rows:
        return None
    return entries, np.array(device, np.int64), np.array(device, np.int64) < 0


def _make_allocations(
    snapshot: SnapshotTables,
    stacks: SnapshotStacks,
    entries: SnapshotRecords,
    device: Ints,
    host: npt.NDArray[np.bool_],
    ranges: list[Columns],
) -> None:
    """Build the table `allocations`. User-defined actions of torch 2.4 are annotations and go to `ranges`."""
    entries = read_keys_natively(entries, _INTEGERS, _THINGS, _LISTS)
    group = np.repeat(np.arange(len(device)), entries.lengths())
    codes, names = read_distinct_texts(entries, "action")
    if (codes < 0).any():
        where = entries.place(int((codes < 0).argmax()))
        raise build_shape_error(entries.path, f"{where}.action", "expected text, found nothing")
    if USER_DEFINED in names:
        is_range = codes == names.index(USER_DEFINED)
        ranges.append(_make_user_annotations(entries, is_range, device[group]))
        entries, codes, group = _drop_records(entries, is_range), codes[~is_range], group[~is_range]
    keys = _count_unknown_keys(snapshot, "device_traces[][].", entries, _ENTRY)
    _count_unknown_words(snapshot, "action", (codes, names), {*ACTIONS[:-1], USER_DEFINED})
    number = device[group]
    columns: dict[str, Any] = {
        "memory": Coded(host[group].astype(np.int8), MEMORIES),
        "device": Nullable(np.maximum(number, 0), number < 0),
        "action": _code_closed_texts(codes, [a if a in ACTIONS else "other" for a in names], ACTIONS),
        **_make_planned_columns(entries, keys, _OF_ENTRIES),
        **_make_context_columns(stacks, entries, keys),
    }
    snapshot.tables["allocations"] = TABLES["allocations"].cast(columns, len(group))


_INTEGERS = ("time_us", "addr", "size", "device_free", "stream")
_THINGS = ("action", "pool_id", "compile_context", "user_metadata", "category")
_LISTS = ("frames", "forward_frames")
"""Keys of the history that a single native pass reads."""

_Plan = tuple[tuple[str, str, Callable[[SnapshotRecords, str], Any]], ...]
"""Columns to build: name, source key, and converter."""

_OF_ENTRIES: _Plan = (
    ("ts_ns", "time_us", read_record_times),
    ("address", "addr", read_addresses),
    ("size_bytes", "size", read_byte_sizes),
    ("device_free_bytes", "device_free", read_byte_sizes),
    ("stream", "stream", read_addresses),
    ("pool", "pool_id", read_pool_ids),
)


def _make_context_columns(stacks: SnapshotStacks, entries: SnapshotRecords, keys: set[str]) -> dict[str, Any]:
    """Build the columns that actions and blocks share: stacks and context."""
    stack = partial(make_stack_column, stacks)
    plan: _Plan = (
        ("stack", "frames", stack),
        ("forward_stack", "forward_frames", stack),
        ("compile_context", "compile_context", read_record_texts),
        ("user_metadata", "user_metadata", read_record_texts),
        ("category", "category", read_record_texts),
    )
    return _make_planned_columns(entries, keys, plan)


def _make_planned_columns(entries: SnapshotRecords, keys: set[str], plan: _Plan) -> dict[str, Any]:
    """Build the columns whose key any record has."""
    columns: dict[str, Any] = {}
    for name, key, make in plan:
        if key in keys:
            columns[name] = make(entries, key)
    return columns


def _make_segments(
    snapshot: SnapshotTables, stacks: SnapshotStacks, top: Mapping[str, Any], path: Path, max_dicts: int
) -> None:
    """Build the tables `memory_segments` and `blocks`, if recorded."""
    names = [key for key in ("segments", "host_segments") if key in top]
    if not names:
        return
    segments = join_records(path, names.__getitem__, [top[key] for key in names], max_dicts)
    keys = _count_unknown_keys(snapshot, "segments[].", segments, _SEGMENT)
    count = len(segments.rows)
    on_host = np.repeat([key == "host_segments" for key in names], segments.lengths())
    memory = Coded(on_host.astype(np.int8), MEMORIES)
    device = read_bounded_integers(segments, "device", 0, 2**31)
    start = require_numbers(segments, "address", read_addresses(segments, "address"), "an integer of 64 bits")
    columns: dict[str, Any] = {
        "memory": memory,
        "device": device,
        "address": start,
        **_make_planned_columns(segments, keys, _OF_SEGMENTS),
        **_make_planned_columns(segments, keys, (("stack", "frames", partial(make_stack_column, stacks)),)),
    }
    snapshot.tables["memory_segments"] = TABLES["memory_segments"].cast(columns, count)
    lists = [[] if blocks is None else blocks for blocks in get_record_values(segments, "blocks")]
    inner = join_records(path, lambda i: f"{segments.place(i)}.blocks", lists, max_dicts) if lists else None
    if inner is None:
        snapshot.tables["blocks"] = TABLES["blocks"].no_rows()
        return
    segment = np.repeat(np.arange(count, dtype=np.int32), inner.lengths())
    outer = {
        "segment": segment,
        "memory": select_rows(memory, segment),
        "device": select_rows(device, segment),
    }
    _make_blocks(snapshot, stacks, inner, outer, select_rows(start, segment))


def _make_blocks(
    snapshot: SnapshotTables,
    stacks: SnapshotStacks,
    entries: SnapshotRecords,
    outer: dict[str, Any],
    start: Nullable,
) -> None:
    """Build the table `blocks`. `start` is the segment address of each block."""
    keys = _count_unknown_keys(snapshot, "segments[].blocks[].", entries, _BLOCK)
    codes, names = read_distinct_texts(entries, "state")
    _count_unknown_words(snapshot, "state", (codes, names), _STATE_OF)
    size = require_numbers(entries, "size", read_byte_sizes(entries, "size"), "a number of bytes")
    address = read_addresses(entries, "address")
    before: Ints = np.cumsum(size.values)
    before -= size.values
    first = np.array(entries.starts, np.int64)[outer["segment"]]
    follows = start.values + before - before[first] if len(before) else before
    start_of_block = np.where(address.missing, follows, address.values)
    columns = {
        **outer,
        "address": Nullable(start_of_block, address.missing & start.missing),
        "size_bytes": size,
        **_make_planned_columns(entries, keys, (("requested_bytes", "requested_size", read_byte_sizes),)),
        "state": _code_closed_texts(codes, [_STATE_OF.get(name, "other") for name in names], STATES),
        **_make_context_columns(stacks, entries, keys),
    }
    if "history" in keys:  # torch 2.0: the owners of the block, latest first
        last = _take_last_owner(entries, "history")
        _count_unknown_keys(snapshot, "segments[].blocks[].history[].", last, _HISTORY)
        columns.setdefault("stack", make_stack_column(stacks, last, "frames"))
        columns.setdefault("requested_bytes", read_byte_sizes(last, "real_size"))
    snapshot.tables["blocks"] = TABLES["blocks"].cast(columns, len(entries.rows))


def _take_last_owner(entries: SnapshotRecords, key: str) -> SnapshotRecords:
    """Take the first entry of each row's list; an empty record if there is none."""
    lists = get_record_values(entries, key)
    rows: list[Any] = []
    for row, each in enumerate(lists):
        if each is not None and (type(each) is not list or (each and type(each[0]) is not dict)):
            raise build_shape_error(entries.path, f"{entries.place(row)}.{key}", "expected a list of dictionaries")
        rows.append(each[0] if each else {})
    return SnapshotRecords(entries.path, rows, entries.name_of, entries.starts)


def _make_annotations(snapshot: SnapshotTables, top: Mapping[str, Any], path: Path, max_dicts: int) -> list[Columns]:
    """Build the annotations table from `external_annotations`, in a list; empty if not recorded."""
    if top.get("external_annotations") is None:
        return []
    entries = join_records(path, ["external_annotations"].__getitem__, [top["external_annotations"]], max_dicts)
    _count_unknown_keys(snapshot, "external_annotations[].", entries, _ANNOTATION)
    codes, names = read_distinct_texts(entries, "stage")
    columns = {
        "ts_ns": read_record_times(entries, "time_us"),
        "device": read_bounded_integers(entries, "device", -(2**31), 2**31),
        "stage": _code_closed_texts(codes, [_STAGE_OF.get(n, "other") for n in names], _STAGES),
        "name": read_record_texts(entries, "name"),
    }
    return [TABLES["annotations"].cast(columns, len(entries.rows))]


_STAGES = ("start", "end", "other")


def _make_user_annotations(entries: SnapshotRecords, is_range: npt.NDArray[np.bool_], device: Ints) -> Columns:
    """Build the annotations from torch 2.4's actions: the frame's name is START or END, its file the annotation."""
    rows = list(compress(entries.rows, is_range))
    first: list[Any] = []
    for place, row in zip(np.flatnonzero(is_range).tolist(), rows, strict=True):
        frames = row.get("frames")
        first.append(frames[0] if type(frames) is list and frames else {})
        if type(first[-1]) is not dict:
            raise build_shape_error(entries.path, f"{entries.place(place)}.frames", "expected dictionaries")
    first_frames = SnapshotRecords(entries.path, first, lambda _: "frames of user_defined", [0])
    codes, names = read_distinct_texts(first_frames, "name")
    number = device[is_range]
    ranges = SnapshotRecords(entries.path, rows, lambda _: "user_defined", [0])
    columns = {
        "ts_ns": read_record_times(ranges, "time_us"),
        "device": Nullable(np.maximum(number, 0), number < 0),
        "stage": _code_closed_texts(codes, [_STAGE_OF.get(n, "other") for n in names], _STAGES),
        "name": read_record_texts(first_frames, "filename"),
    }
    return TABLES["annotations"].cast(columns, len(rows))


def _drop_records(entries: SnapshotRecords, is_removed: npt.NDArray[np.bool_]) -> SnapshotRecords:
    """Drop the marked records."""
    before: Ints = np.cumsum(is_removed) - is_removed
    starts = np.array([*entries.starts, len(entries.rows)], np.int64)
    gone = np.append(before, np.count_nonzero(is_removed))[starts]
    shifted_starts = (starts - gone)[:-1]
    return SnapshotRecords(
        entries.path, list(compress(entries.rows, ~is_removed)), entries.name_of, shifted_starts.tolist()
    )


def _read_booleans(entries: SnapshotRecords, key: str) -> Nullable:
    """Read booleans as 1 and 0, missing if not recorded."""
    recorded = get_record_values(entries, key)
    for row, value in enumerate(recorded):
        if type(value) not in (bool, type(None)):
            raise build_shape_error(entries.path, f"{entries.place(row)}.{key}", "expected a truth value")
    return Nullable(np.fromiter(map(bool, recorded), np.int64, len(recorded)), mark_none_values(recorded))


_OF_SEGMENTS: _Plan = (
    ("size_bytes", "total_size", read_byte_sizes),
    ("allocated_bytes", "allocated_size", read_byte_sizes),
    ("active_bytes", "active_size", read_byte_sizes),
    ("requested_bytes", "requested_size", read_byte_sizes),
    ("stream", "stream", read_addresses),
    ("kind", "segment_type", read_record_texts),
    ("pool", "segment_pool_id", read_pool_ids),
    ("expandable", "is_expandable", _read_booleans),
)


def _code_closed_texts(codes: npt.NDArray[np.int32], names: Iterable[str], closed: tuple[str, ...]) -> Coded:
    """Code texts of a closed set, from codes of `names`. Missing names become `other`."""
    place = np.array([*(closed.index(name) for name in names), closed.index("other")], np.int8)
    return Coded(place[codes], closed)
