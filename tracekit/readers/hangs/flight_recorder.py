"""Flight-recorder dumps of torch.distributed, as pickle or JSON: the last collectives of one rank.

A dump does not contain its rank, which is in the file's name. Both forms have the same records; JSON has no stacks, writes
0 for unknown times, and texts for some numbers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, Frames, make_nullable_numbers
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers.chrome.values import is_too_deep, join_surrogates
from tracekit.readers.hangs.file_text import add_named_process, read_whole_file
from tracekit.readers.hangs.frames import CodeFrame, make_code_frame, write_stack

MAX_RECORDS, MAX_GROUPS, MAX_TEXT, MAX_SHAPES = 1_000_000, 10_000, 300, 64
"""Most records and groups of one dump; longest text; most shapes kept of one record."""

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_KEYS = (b"entries", b"pg_config", b"pg_status", b"collective_seq_id", b"record_id")
_ENOUGH_KEYS = 2
_OF_OTHERS = re.compile(rb"traceEvents|device_traces|segment_type")
_RANK_LIST = re.compile(r"\s*\[?\s*((?:[0-9]{1,7}\s*,\s*)*[0-9]{1,7})\s*,?\s*\]?\s*")
_COUNT = re.compile(r"-?[0-9]{1,18}")


def sniff(head: bytes) -> bool:
    """Check whether text begins like a flight-recorder dump. In JSON, the entries may precede all other keys.

    >>> sniff(b'{"entries": [{"record_id": 0')
    True
    """
    is_object = head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
    if not (is_object or _PICKLE.match(head)) or _OF_OTHERS.search(head):
        return False
    quoted = b'"%b"' if is_object else b"%b"
    return sum(quoted % key in head for key in _KEYS) >= _ENOUGH_KEYS


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the dump of one rank as one Trace. Raises only `TraceFormatError`."""
    data = read_whole_file(Path(source.path), on_bytes)
    root = _load_dump(data, source.path)
    entries = root.get("entries")
    if not isinstance(entries, list):
        raise make_format_error(source.path, Reason("no-dump", "no list of entries", Data(offset=0)))
    records = [entry for entry in entries[:MAX_RECORDS] if isinstance(entry, Mapping)]
    tables: dict[str, Columns] = {}
    if want.table("collective_records"):
        tables["collective_records"] = _make_records(records)
    if want.table("collective_groups"):
        tables["collective_groups"] = _make_groups(root, records, source.path)
    source = add_named_process(source, may_end_in_rank=True)
    meta = {"element_count": len(records), "absolute_time": True, "flight_recorder": _describe_dump(root)}
    return [Trace(source, Frames(tables), tuple(_note_lost_records(source, entries, records)), meta)]


def _describe_dump(root: Mapping[str, Any]) -> dict[str, str]:
    """Describe the versions of the format and of the library."""
    versions = {key: _get_text(root.get(key)) for key in ("version", "comm_lib_version")}
    return {key: text for key, text in versions.items() if text}


def _load_dump(data: bytes, path: Path) -> Mapping[str, Any]:
    """Load the object of a dump, in either form. Raises `TraceFormatError`."""
    if data[:1] == b"\x80":
        from tracekit.readers.hangs.pickled import (
            load_pickled_dump,
        )  # a trace does not wait for the reader of snapshots

        root = load_pickled_dump(data, path)
    else:
        root = _load_json(data, path)
    if not isinstance(root, Mapping):
        raise make_format_error(path, Reason("no-dump", "no dictionary of entries", Data(offset=0)))
    return root


def _load_json(data: bytes, path: Path) -> Any:
    """Parse JSON. Raises `TraceFormatError`."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if is_too_deep(text):
        raise make_format_error(path, Reason("no-dump", "nested too deeply", Data(offset=0)))
    try:
        return json.loads(text)
    except (MemoryError, RecursionError) as error:
        raise make_format_error(path, TOO_LARGE) from error
    except json.JSONDecodeError as error:
        reason = Reason("cut-dump", f"the JSON ends early or is damaged: {error.msg}", Data(offset=error.pos))
        raise make_format_error(path, reason, "copy it again", f"character {error.pos}") from error
    except ValueError as error:  # a number of too many digits
        raise make_format_error(path, Reason("no-dump", "not sound JSON", Data(offset=0))) from error


def _note_lost_records(source: Source, entries: Sequence[object], records: Sequence[object]) -> Iterator[Note]:
    """Yield notes on entries that are not records, and on a dump whose name has no rank."""
    lost = min(len(entries), MAX_RECORDS) - len(records)
    if lost:
        yield Note("data_loss", "log-line", "entries that are not records were passed over", source.name, lost)
    if len(entries) > MAX_RECORDS:
        message = f"records beyond the first {MAX_RECORDS:,} were left out"
        yield Note("warning", "log-cut", message, source.name, len(entries) - MAX_RECORDS)
    if not records:
        yield Note("info", "log-empty", "a flight-recorder dump without any record", source.name)
    if source.rank is None:
        message = "the name of this flight-recorder dump contains no rank (nccl_trace_rank_3): it is not compared"
        yield Note("warning", "no-rank", message, source.name)


def _make_records(records: Sequence[Mapping[str, Any]]) -> Columns:
    """Make the table of records."""
    names = [_split_operation(_get_text(record.get("profiling_name"))) for record in records]
    groups = list(map(_get_group, records))
    stacks = _write_stacks(records)
    columns: dict[str, Any] = {
        "record_id": _list_numbers(records, "record_id"),
        "group": list(map(itemgetter(0), groups)),
        "group_desc": list(map(itemgetter(1), groups)),
        "seq": _list_numbers(records, "collective_seq_id"),
        "p2p_seq": _list_numbers(records, "p2p_seq_id"),
        "backend": list(map(itemgetter(0), names)),
        "op": list(map(itemgetter(1), names)),
        "is_p2p": _list_flags(records, "is_p2p"),
        "input_sizes": [_write_shapes(record.get("input_sizes")) for record in records],
        "output_sizes": [_write_shapes(record.get("output_sizes")) for record in records],
        "dtypes": list(map(_write_types, records)),
        "state": [_get_text(record.get("state")) or None for record in records],
        "retired": _list_flags(records, "retired"),
        "created_ns": _list_record_times(records, "time_created_ns"),
        "started_ns": _list_record_times(records, "time_discovered_started_ns"),
        "completed_ns": _list_record_times(records, "time_discovered_completed_ns"),
        "dur_ns": make_nullable_numbers([_scale_duration(record.get("duration_ms")) for record in records]),
        "timeout_ns": make_nullable_numbers([_scale_milliseconds(record.get("timeout_ms")) for record in records]),
        "frame": list(map(itemgetter(0), stacks)),
        "stack": list(map(itemgetter(1), stacks)),
    }
    return TABLES["collective_records"].cast(columns, len(records))


def _list_flags(records: Sequence[Mapping[str, Any]], key: str) -> Any:
    """List the switches of one field; false if missing."""
    return np.array([record.get(key) is True for record in records], np.bool_)


def _make_groups(root: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: Path) -> Columns:
    """Make the table of groups: the status of each, by the name that its records give, and its members."""
    names = {_parse_count(record.get("pg_id")): _get_group(record) for record in records}
    config = root.get("pg_config")
    members, described = _list_configured_ranks(config if isinstance(config, Mapping) else {})
    rows = _list_status(root.get("pg_status"), names, described)
    for name in (*names.values(), *described.items()):
        if name[0]:
            rows.setdefault(name, (None, None, None))
    columns: dict[str, Any] = {
        "group": [name for name, _ in rows],
        "group_desc": [desc for _, desc in rows],
        "members": [members.get(name, "") for name, _ in rows],
        "last_enqueued": make_nullable_numbers([_count_from_zero(row[0]) for row in rows.values()]),
        "last_started": make_nullable_numbers([None if (row[1] or 0) < 0 else row[1] for row in rows.values()]),
        "last_completed": make_nullable_numbers([_count_from_zero(row[2]) for row in rows.values()]),
        "written_ns": make_nullable_numbers([_find_time_written(path)] * len(rows)),
    }
    return TABLES["collective_groups"].cast(columns, len(rows))


def _list_status(
    status: object, names: Mapping[int | None, tuple[str, str]], described: Mapping[str, str]
) -> dict[tuple[str, str], tuple[int | None, ...]]:
    """List the last collectives of each group by its name: enqueued, started, completed. -1 means none."""
    rows: dict[tuple[str, str], tuple[int | None, ...]] = {}
    for key, numbers in list(status.items())[:MAX_GROUPS] if isinstance(status, Mapping) else ():
        name = names.get(_parse_count(key)) or ((_get_text(key), described[key]) if key in described else None)
        if name is not None and isinstance(numbers, Mapping):
            events = ("enqueued", "started", "completed")
            rows[name] = tuple(_parse_count(numbers.get(f"last_{event}_collective")) for event in events)
    return rows


def _find_time_written(path: Path) -> int | None:
    """Find when a dump was written: a copy is later. It bounds how long a rank had waited."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def describe_dependencies(path: Path) -> tuple[str, ...]:
    """Describe when the dump was written, which is not in its bytes."""
    return (f"written {_find_time_written(path)}",)


def _count_from_zero(number: int | None) -> int | None:
    """Convert the -1 of a group without collectives to 0."""
    return None if number is None else max(number, 0)


def _list_configured_ranks(config: Mapping[Any, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """List the members and the description of each group in the configuration, by name. gloo's group has no name."""
    members: dict[str, str] = {}
    described: dict[str, str] = {}
    for key, group in list(config.items())[:MAX_GROUPS]:
        if not isinstance(group, Mapping):
            continue
        name = _get_text(group.get("name")) or _get_text(key)
        described[name] = _get_text(group.get("desc"))
        ranks = group.get("ranks")
        match = _RANK_LIST.fullmatch(ranks) if isinstance(ranks, str) else None
        if match is not None:
            numbers = sorted({int(rank) for rank in match[1].split(",")})
            members[name] = ",".join(map(str, numbers))
    return members, described


def _get_group(record: Mapping[str, Any]) -> tuple[str, str]:
    """Get the name and description of a record's group."""
    group = record.get("process_group")
    if isinstance(group, list | tuple) and len(group) >= 2:
        return _get_text(group[0]), _get_text(group[1])
    return "", ""


def _get_text(value: object) -> str:
    """Get a text, cut to the limit; empty for other values."""
    return join_surrogates(value[:MAX_TEXT]) if isinstance(value, str) else ""


def _split_operation(name: str) -> tuple[str | None, str]:
    """Split `nccl:_all_gather_base` into the library and the operation."""
    backend, colon, op = name.partition(":")
    return (backend, op) if colon else (None, name)


def _parse_count(value: object) -> int | None:
    """Parse a number, which JSON may give as text; None for other values."""
    if isinstance(value, str) and _COUNT.fullmatch(value):
        value = int(value)
    is_sound = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    return value if is_sound and isinstance(value, int) else None


def _list_numbers(records: Sequence[Mapping[str, Any]], key: str) -> Any:
    """List the numbers of one field."""
    return make_nullable_numbers([_parse_count(record.get(key)) for record in records])


def _list_record_times(records: Sequence[Mapping[str, Any]], key: str) -> Any:
    """List the times of one field; JSON writes 0 for unknown ones."""
    return make_nullable_numbers([_parse_count(record.get(key)) or None for record in records])


def _scale_milliseconds(value: object) -> int | None:
    """Convert milliseconds to ns."""
    number = _parse_count(value)
    return None if number is None or not 0 < number < 2**40 else number * 1_000_000


def _scale_duration(value: object) -> int | None:
    """Convert a duration in ms, which may have a fraction, to ns; None for other values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value * 1_000_000) if is_number and isinstance(value, int | float) and 0 <= value < 2**40 else None


def _write_shapes(shapes: object) -> str:
    """Write shapes as `[[1024], [8]]`; anything that is not a number becomes `?`."""
    if not isinstance(shapes, list | tuple):
        return ""
    texts = [_write_shape(shape) for shape in shapes[:MAX_SHAPES]]
    more = [f"… {len(shapes)} in all"] if len(shapes) > MAX_SHAPES else []
    return f"[{', '.join([*texts, *more])}]"


def _write_shape(shape: object) -> str:
    """Write one shape as `[4, 8]`."""
    if not isinstance(shape, list | tuple):
        return "?"
    numbers = [_parse_count(size) for size in shape[:MAX_SHAPES]]
    return f"[{', '.join('?' if number is None else str(number) for number in numbers)}]"


def _write_types(record: Mapping[str, Any]) -> str:
    """Write the types of inputs and outputs, as `Float → Float`."""
    sides = [record.get("input_dtypes"), record.get("output_dtypes")]
    texts = [list(dict.fromkeys(map(_get_text, side[:MAX_SHAPES]))) if isinstance(side, list) else [] for side in sides]
    return " → ".join(", ".join(side) for side in texts) if any(texts) else ""


def _write_stacks(records: Sequence[Mapping[str, Any]]) -> list[tuple[str | None, str | None]]:
    """Write the stack of every record; records of one call site share the text."""
    written: dict[tuple[CodeFrame, ...], tuple[str | None, str | None]] = {}
    stacks: list[tuple[str | None, str | None]] = []
    for record in records:
        frames = record.get("frames")
        key = tuple(_list_frames(frames if isinstance(frames, list) else []))
        if key not in written:
            written[key] = write_stack(key)
        stacks.append(written[key])
    return stacks


def _list_frames(frames: Sequence[object]) -> Iterator[CodeFrame]:
    """List the sound frames of a record, up to the limit."""
    for frame in frames[:MAX_SHAPES]:
        if isinstance(frame, Mapping):
            line = _parse_count(frame.get("line")) or 0
            name, file = frame.get("name"), frame.get("filename")
            if isinstance(name, str) and isinstance(file, str):
                yield make_code_frame(name, file, max(line, 0))
