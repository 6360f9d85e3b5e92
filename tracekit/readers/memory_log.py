"""Logs of GPU memory by step: JSON lines or CSV with a process's allocated and reserved memory.

The column name gives the unit (`allocated_gb`, `memory/allocated_mb`, `reserved_bytes.all.current`).
Without one, whole and large numbers are bytes. Smaller numbers are 10**9 bytes in rows as NeMo-RL's
guide logs them (`allocated, cached, max_allocated, max_cached`); otherwise they are left out.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.discover.names import read_name
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Array, Frames, Nullable, make_nullable_numbers, mask_value, select_all_rows
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.process.memory.names import UNITS, parse_memory_quantity
from tracekit.process.name_filters import make_narrow_coded
from tracekit.readers import driver_log
from tracekit.readers.driver_log import json_lines
from tracekit.readers.lines import MAX_LINE_BYTES, note_log_losses, read_log
from tracekit.readers.loss import DataLoss

MAX_VALUES = 2_000_000
"""Most values kept from one log."""

MAX_COLUMNS, MAX_DEPTH, MAX_TEXT = 1_000, 4, 200
"""Limits: columns of a row, nesting depth of its objects, characters kept of a point's name."""

MAX_RANKS = 10_000
"""Most ranks read from one log."""

MAX_BYTES = 2**50

_STEPS = (*json_lines.STEP_KEYS, "iteration", "iter")
_RANKS = ("rank", "global_rank")
_DEVICES = ("device", "gpu", "local_rank")
_POINTS = ("description", "point", "phase", "stage", "tag", "label", "name")
_GUIDE = frozenset({"allocated", "cached", "max_allocated", "max_cached"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}(?:\.0*)?\Z")

Row = Mapping[str, object]


def sniff(head: bytes) -> bool:
    """Check whether text begins like a memory log: JSON lines or CSV with memory sizes for each step."""
    if not head or b"\0" in head or driver_log.is_json_trace_head(head):
        return False
    return _has_memory_rows(head.decode("utf-8", "replace")) and not driver_log.sniff(head)


def _has_memory_rows(text: str) -> bool:
    """Check whether one of the first lines, or a CSV header, names a memory size and the step."""
    first, *more = "".join(islice(StringIO(text), 51)).splitlines() or [""]
    if first.startswith("{"):
        rows = [_parse_flat_json_line(line) for line in (first, *more)]
        return any(row is not None and _is_memory_row(row) for row in rows)
    header = _parse_csv_header(first)
    return header is not None and _is_memory_row(dict.fromkeys(header))


def _is_memory_row(row: Row) -> bool:
    """Check whether a row has a memory size and a step, or the columns of NeMo-RL's guide."""
    keys = {key.lower() for key in row}
    has_amount = any(parse_memory_quantity(key) is not None for key in row)
    return has_amount and (not keys.isdisjoint(_STEPS) or keys >= _GUIDE)


def _parse_csv_header(line: str) -> list[str] | None:
    """Parse the column names in the first line of a CSV; None if the line is not a header."""
    if len(line) > MAX_LINE_BYTES:
        return None
    for delimiter in (",", ";", "\t"):
        fields = _split_csv_line(line.removeprefix("\ufeff"), delimiter)
        if fields is not None and 2 <= len(fields) <= MAX_COLUMNS and all(fields):
            return [name.strip() for name in fields]
    return None


def _split_csv_line(line: str, delimiter: str) -> list[str] | None:
    """Split a CSV line into fields; None if it is malformed."""
    try:
        return next(iter(csv.reader([line.rstrip("\r")], delimiter=delimiter)), None)
    except csv.Error:
        return None


def _parse_flat_json_line(line: str) -> dict[str, object] | None:
    """Parse a JSON line into a flat dictionary; None for anything else.

    Names within nested objects are prefixed with the names of these objects.
    """
    logged = json_lines.parse_json_object(line)
    return None if logged is None else dict(_flatten_logged_object(logged, "", 0))


def _flatten_logged_object(values: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield the (name, value) pairs of an object and of the objects in it, up to `MAX_DEPTH` levels down.

    Nested names are prefixed with their object's name, except for `data`.
    """
    for key, value in islice(values.items(), MAX_COLUMNS):
        if not isinstance(value, dict):
            yield prefix + key, value
        elif depth < MAX_DEPTH:
            yield from _flatten_logged_object(value, "" if key == "data" else f"{prefix}{key}/", depth + 1)


@dataclass(slots=True)
class _MemoryLog:
    """Memory sizes parsed so far, as columns, and counts of skipped input.

    `name` and `point` index the dictionaries `names` and `points`.
    """

    line: list[int] = field(default_factory=list[int])
    logged_ns: list[int | None] = field(default_factory=list["int | None"])
    step: list[int | None] = field(default_factory=list["int | None"])
    rank: list[int | None] = field(default_factory=list["int | None"])
    device: list[int | None] = field(default_factory=list["int | None"])
    point: list[int] = field(default_factory=list[int])
    name: list[int] = field(default_factory=list[int])
    value: list[float] = field(default_factory=list[float])
    names: dict[str, int] = field(default_factory=dict[str, int])
    points: dict[str, int] = field(default_factory=dict[str, int])
    ranks: set[int | None] = field(default_factory=set["int | None"])
    looked: dict[str, bool] = field(default_factory=dict[str, bool])
    """Whether each name looked at so far names a memory size."""
    too_long: int = 0
    damaged: int = 0
    unsound: int = 0
    over: int = 0

    def is_amount(self, name: str) -> bool:
        """Check whether a column name names a memory size."""
        if name not in self.looked and len(self.looked) < MAX_COLUMNS:
            self.looked[name] = parse_memory_quantity(name) is not None
        return self.looked.get(name, False)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace per rank, with the table `memory_log`.

    Raises only `TraceFormatError`.
    """
    log, losses = read_log(Path(source.path), _MemoryLog, _add_memory_lines, on_bytes)
    columns, unknown = _convert_memory_log(log)
    ranks = columns.pop("rank")
    notes = tuple(_note_skipped_memory_lines(log, losses, unknown, source.name, empty=not len(ranks)))
    facts = read_name(tuple(source.name.split("/")))
    traces: list[Trace] = []
    for rank in _list_logged_ranks(ranks):
        rows = mask_value(ranks, rank).nonzero()[0]
        number = facts.rank if rank is None else rank
        who = replace(source, rank=number, role=facts.role, pid=facts.pid, host=facts.host)
        of_rank = select_all_rows(columns, rows) if len(rows) else {}
        tables = Frames({"memory_log": TABLES["memory_log"].cast(of_rank)} if want.table("memory_log") else {})
        meta = {"element_count": len(rows), "absolute_time": False}
        traces.append(Trace(who, tables, notes, meta))
        notes = ()  # attach the log's notes to the first Trace only
    return traces


def _list_logged_ranks(ranks: Nullable) -> list[int | None]:
    """List the ranks in ascending order, then None if rows lack one or there are none."""
    known = find_distinct(ranks.values[~ranks.missing]).tolist()
    return [*known, None] if ranks.missing.any() or not known else known


def _add_memory_lines(rows: Iterator[tuple[int, str | None]], log: _MemoryLog) -> None:
    """Add the memory sizes of all lines to the log."""
    header: list[str] | None = None
    for number, line in rows:
        if line is None:
            log.too_long += 1
        elif line.startswith("{"):
            row = _parse_flat_json_line(line)
            if row is None:
                log.damaged += 1
            else:
                _add_memory_row(row, number, log)
        elif header is None:
            header = _parse_csv_header(line) or [""]
            delimiter = _find_csv_delimiter(line, len(header))
        elif line.strip():
            fields = _split_csv_line(line, delimiter)
            if fields is None or len(fields) != len(header):
                log.damaged += 1
            else:
                _add_memory_row(dict(zip(header, fields, strict=True)), number, log)


def _find_csv_delimiter(line: str, width: int) -> str:
    """Find the delimiter that splits a CSV header into `width` columns."""
    for delimiter in (",", ";", "\t"):
        if len(_split_csv_line(line, delimiter) or ()) == width:
            return delimiter
    return ","


def _add_memory_row(row: Row, number: int, log: _MemoryLog) -> None:
    """Add the memory sizes of one row to the log."""
    lower = {key.lower(): value for key, value in row.items()}
    rank = _find_whole_number(lower, _RANKS)
    if rank not in log.ranks and len(log.ranks) >= MAX_RANKS:
        log.over += 1
        return
    log.ranks.add(rank)
    step, device = _find_whole_number(lower, _STEPS), _find_whole_number(lower, _DEVICES)
    logged_ns, point = _parse_row_time(lower), _find_step_point(lower)
    for name, value in row.items():
        if not log.is_amount(name):
            continue
        amount = _parse_logged_amount(value)
        if amount is None or not math.isfinite(amount) or amount < 0:
            log.unsound += 1
            continue
        if len(log.value) >= MAX_VALUES:
            log.over += 1
            continue
        log.line.append(number)
        log.logged_ns.append(logged_ns)
        log.step.append(step)
        log.rank.append(rank)
        log.device.append(device)
        log.point.append(log.points.setdefault(point, len(log.points)) if point else -1)
        log.name.append(log.names.setdefault(name, len(log.names)))
        log.value.append(amount)


def _parse_row_time(row: Row) -> int | None:
    """Parse the time of a row in Unix ns, from the first of its time columns that is a number."""
    numbers = [_parse_logged_amount(row.get(key)) for key in json_lines.TIME_KEYS]
    seconds = next((number for number in numbers if number is not None), None)
    return json_lines.convert_seconds_to_unix_ns(seconds)


def _find_step_point(row: Row) -> str:
    """Find the name of a row's point in the step; empty if it has none."""
    for key in _POINTS:
        text = row.get(key)
        if isinstance(text, str) and text:
            return _SURROGATE.sub("\ufffd", text[:MAX_TEXT])
    return ""


def _parse_logged_amount(value: object) -> float | None:
    """Convert a number, or its text, to float; None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf


def _find_whole_number(row: Row, keys: Sequence[str]) -> int | None:
    """Find the first of these columns whose value is a whole number of at least 0."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str) and _INTEGER.match(value.strip()):
            value = int(value.strip().partition(".")[0])
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
            return value
    return None


def _convert_memory_log(log: _MemoryLog) -> tuple[dict[str, Any], list[str]]:
    """Convert the log to (the columns of the table and `rank`, names of sizes in an unknown unit)."""
    name, value = np.array(log.name, np.int64), np.array(log.value, np.float64)
    guide = {name.lower() for name in log.names} >= _GUIDE
    factors, quantities, unknown = list[float](), list[str](), list[str]()
    for code, text in enumerate(log.names):
        amount = parse_memory_quantity(text)
        assert amount is not None, "only amounts are kept"
        quantity, unit = amount
        unit = unit or _infer_memory_unit(value[name == code], guide=guide)
        if not unit:
            unknown.append(text)
        factors.append(float(unit or 0))
        quantities.append(quantity)
    factor = np.array(factors)[name]
    with np.errstate(over="ignore"):  # sizes of damaged lines may overflow; left out below
        size = value * factor
    sound = (factor > 0) & (size < MAX_BYTES)
    log.unsound += int(((factor > 0) & ~sound).sum())
    columns: dict[str, Array] = {
        "line": np.array(log.line, np.int64),
        "logged_ns": make_nullable_numbers(log.logged_ns),
        "step": make_nullable_numbers(log.step),
        "device": make_nullable_numbers(log.device),
        "point": make_narrow_coded(np.array(log.point, np.int64), list(log.points)),
        "quantity": make_narrow_coded(name, quantities),
        "size_bytes": np.where(sound, np.rint(size), 0).astype(np.int64),
        "rank": make_nullable_numbers(log.rank),
    }
    return select_all_rows(columns, sound), unknown


def _infer_memory_unit(values: np.ndarray[Any, Any], *, guide: bool) -> int | None:
    """Infer the unit, in bytes, of values whose name has none; None if unknown.

    Whole and large numbers are bytes; smaller ones are 10**9 bytes in rows of NeMo-RL's guide.
    """
    if not len(values):
        return None
    if float(values.max()) >= UNITS["mb"]:
        return 1 if bool((values == np.rint(values)).all()) else None
    return UNITS["gb"] if guide else None


def _note_skipped_memory_lines(
    log: _MemoryLog, losses: list[DataLoss], unknown: list[str], source: str, *, empty: bool
) -> Iterator[Note]:
    """Yield notes on skipped lines and values."""
    named = _SURROGATE.sub("\ufffd", ", ".join(name[:MAX_TEXT] for name in unknown[:8]))
    no_unit = f"amounts of memory in no known unit were left out: {named}"
    unsound = "amounts that are no number, negative or impossible were left out"
    over = f"values beyond the first {MAX_VALUES:,}, or ranks beyond {MAX_RANKS:,}, were left out"
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-unit", no_unit, len(unknown)),
        ("warning", "log-line", "lines that are no whole row were passed over", log.damaged),
        ("warning", "log-long-line", "lines of over 1 MiB were passed over", log.too_long),
        ("info", "log-not-finite", unsound, log.unsound),
        ("warning", "log-cut", over, log.over),
        ("info", "log-empty", "a log of memory without any amount", int(empty)),
    )
    return note_log_losses(losses, counts, source)
