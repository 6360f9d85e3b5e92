"""Scanner of the event array in pure Python, for machines where `_scan` could not be built.

The fast path parses a window of complete events with the standard json module, if json and the strict
layer agree on its text. The strict layer reads every other event itself.
"""

from __future__ import annotations

import gc
import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tracekit.readers.chrome import strict as chrome_strict
from tracekit.readers.chrome import values
from tracekit.readers.chrome.python_columns import KeyedColumns, LabelColumn, TimeColumn, convert_parsed_value
from tracekit.readers.chrome.scan import BAD, END, MAX_EVENT_BYTES, MORE, ScanOptions
from tracekit.readers.chrome.strict import EventElement, Stop
from tracekit.readers.chrome.values import Number

SMALLEST_WINDOW, LARGEST_WINDOW = 2**12, 2**17
"""Window sizes in bytes: doubled after each success of json and halved after each failure, to keep damage cheap."""

MOST_TRIES = 16
"""Most closing braces examined as the end of a window."""

_SEPARATORS = re.compile(rb"[ \t\n\r,]*+")
_BOUNDARY = re.compile(rb'\}[ \t\n\r]*+,[ \t\n\r]*+(?=\{[ \t\n\r]*+["}])')
_REST_OF_ESCAPED_STRING = re.compile(rb'\\.[^"\\]*+(?:\\.[^"\\]*+)*+"([ \t\n\r]*+:)?', re.DOTALL)
_MINUS_ZERO = re.compile(rb"-0[ \t\n\r,\]}]")
_LONE_SURROGATE = re.compile(rb"\\\\u[dD]|\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
_BRACE, _BRACKET_END = 0x7B, 0x5D

_parse = json.JSONDecoder(parse_float=Number, parse_constant=Number, strict=False).decode


class PureScanner:
    """Scanner in Python; its columns are the same as those of the scanner in C."""

    def __init__(self, keep: ScanOptions, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._window = LARGEST_WINDOW
        self._rows = PythonRows(keep)

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Read the complete events in `data`: (bytes consumed, state), see `Scanner`."""
        view = memoryview(data)
        position, end = 0, len(view)
        while True:
            position = chrome_strict.get_match_end(_SEPARATORS.match(view, position), position)
            if position == end:
                return position, MORE
            if view[position] == _BRACKET_END:
                return position + 1, END
            if view[position] != _BRACE:
                return position, BAD
            fast_end = self._take_window(view, position)
            if fast_end > position:
                position = fast_end
                continue
            try:
                event_end, element = chrome_strict.read_event(view, position)
            except Stop as stop:
                cut = stop.reason == chrome_strict.INCOMPLETE
                short = end - position < self._max_event_bytes
                return position, MORE if cut and short else BAD
            if event_end - position > self._max_event_bytes:
                return position, BAD
            self._rows.add_element(element)
            position = event_end

    def finish(self) -> dict[str, object]:
        """Return the columns under their names in `TraceScan`."""
        return self._rows.finish()

    def _take_window(self, view: memoryview, start: int) -> int:
        """Read the events at `start` that json accepts; returns the position after them, `start` if none."""
        while True:
            size = min(self._window, self._max_event_bytes)
            chunk = bytes(view[start : start + size])
            end = _find_last_boundary(chunk)
            if end and self._takes(chunk[:end]):
                self._window = min(self._window * 2, LARGEST_WINDOW)
                return start + end
            if self._window <= SMALLEST_WINDOW:
                return start
            self._window //= 2
            if not end:
                return start

    def _takes(self, chunk: bytes) -> bool:
        """Parse events with json and add them to the columns; returns whether it could."""
        was_enabled = gc.isenabled()
        gc.disable()  # else it repeatedly searches thousands of new objects for cycles
        try:
            events = _parse_event_window(chunk)
            if events is not None:
                self._rows.add_parsed(events)
            return events is not None
        finally:
            if was_enabled:
                gc.enable()


def _find_last_boundary(chunk: bytes) -> int:
    """Find the position after a late `}` in a chunk that a comma and another object follow; 0 if none."""
    position = len(chunk)
    for _ in range(MOST_TRIES):
        position = chunk.rfind(b"}", 0, position)
        if position < 0:
            break
        if _BOUNDARY.match(chunk, position):
            return position + 1
    return 0


def _parse_event_window(chunk: bytes) -> list[dict[str, Any]] | None:
    """Parse the events of a chunk with json; None if the strict layer may read it differently."""
    if b"\\" in chunk and not _has_compatible_escapes(chunk):
        return None
    if b"-0" in chunk and _MINUS_ZERO.search(chunk):  # json drops the sign of -0
        return None
    text = "[" + chunk.decode("utf-8", "replace") + "]"
    try:
        events: list[Any] = _parse(text)
    except (ValueError, RecursionError):
        return None
    return events if set(map(type, events)) == {dict} else None


def _has_compatible_escapes(chunk: bytes) -> bool:
    """Check whether JSON with escapes means the same in the strict layer.

    No key may contain an escape, and no surrogate may be alone. Each match starts at the first backslash of
    a string and consumes the string, so every string is checked once.
    """
    if _LONE_SURROGATE.search(chunk):
        return False
    return not any(match[1] for match in _REST_OF_ESCAPED_STRING.finditer(chunk))


class PythonRows:
    """Columns of the rows read so far."""

    def __init__(self, keep: ScanOptions) -> None:
        self.keep_args = None if keep.args is None else frozenset(keep.args)
        self.skip_args = frozenset(keep.skip_args)
        self.skip_cats = frozenset(keep.skip_cats)
        self.keep_names, self.keep_fields = keep.keep_names, keep.fields
        self.labels = {n: LabelColumn(values.format_label, str) for n in ("ph", "cat", "name")}
        self.labels |= {n: LabelColumn(values.convert_to_id, int, str) for n in ("pid", "tid")}
        self.times = {"ts": TimeColumn(), "dur": TimeColumn()}
        self.args, self.fields = KeyedColumns(), KeyedColumns()
        self.skipped: dict[str, int] = {}
        self.count = 0

    def add_element(self, element: EventElement) -> None:
        """Append an event that the strict layer read."""
        raw = element.members
        name_text = raw.get(b"name", b"")
        name = None
        if self.keep_names and name_text.startswith(b'"'):
            name = values.decode_value(name_text)
        if self._skips(values.decode_label(raw.get(b"cat", b"null")), name):
            return
        for key, labels in self.labels.items():
            labels.add(values.decode_value(raw.pop(key.encode(), b"null")))
        for key, times in self.times.items():
            times.add(values.parse_raw_time(raw.pop(key.encode(), b"null")))
        for key, value in _decode_member_keys(element.args).items():
            if self._wants(key):
                self.args.column(key).add(self.count, values.decode_value(value))
        for key, value in _decode_member_keys(raw).items() if self.keep_fields else ():
            self.fields.column(key).add(self.count, values.decode_value(value))
        self.count += 1

    def add_parsed(self, events: list[dict[str, Any]]) -> None:
        """Append events that the json module parsed, column by column because that is fastest."""
        if self.skip_cats:
            events = self._without_skipped(events)
        for name, column in (self.labels | self.times).items():
            column.extend([event.pop(name, None) for event in events])
        args_shapes: _ObjectsByKeys = defaultdict(_SameKeyObjects)
        fields_shapes: _ObjectsByKeys = defaultdict(_SameKeyObjects)
        for row, event in enumerate(events, self.count):
            args = event.get("args")
            if type(args) is dict:
                del event["args"]
                args_shapes[tuple(args)].add(row, args)
            if event and self.keep_fields:
                fields_shapes[tuple(event)].add(row, event)
        for key, rows, parsed in _transpose_objects(args_shapes):
            if self._wants(key):
                self.args.column(key).extend(rows, parsed)
        for key, rows, parsed in _transpose_objects(fields_shapes):
            self.fields.column(key).extend(rows, parsed)
        self.count += len(events)

    def _without_skipped(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Filter out the events whose category is skipped, and count them."""
        cats, skips = self.skip_cats, self._skips
        return [
            event
            for event in events
            # The first line decides nearly all rows without a call.
            if (type(cat := event.get("cat")) is str and cat not in cats)
            or not skips(_convert_parsed_label(cat), event.get("name"))
        ]

    def finish(self) -> dict[str, object]:
        """Return the columns under their names in `TraceScan`."""
        columns: dict[str, object] = {n: labels.finish() for n, labels in self.labels.items()}
        for name, times in self.times.items():
            columns[f"{name}_ns"], columns[f"has_{name}"] = times.finish()
        columns |= {"args": self.args.finish(), "fields": self.fields.finish()}
        columns["skipped"] = self.skipped
        return columns

    def _skips(self, cat: str | None, name: Any) -> bool:
        """Check whether a row of this category and name is skipped; count it if so."""
        if cat is None or cat not in self.skip_cats:
            return False
        if self.keep_names and type(name) is str and name.startswith(self.keep_names):
            return False
        self.skipped[cat] = self.skipped.get(cat, 0) + 1
        return True

    def _wants(self, key: str) -> bool:
        """Check whether the argument of this key is kept."""
        return (self.keep_args is None or key in self.keep_args) and key not in self.skip_args


class _SameKeyObjects:
    """Objects with the same keys in the same order, and their rows."""

    __slots__ = ("objects", "rows")

    def __init__(self) -> None:
        self.rows = array("i")
        self.objects: list[dict[str, Any]] = []

    def add(self, row: int, members: dict[str, Any]) -> None:
        """Append an object."""
        self.rows.append(row)
        self.objects.append(members)


_ObjectsByKeys = defaultdict[tuple[str, ...], _SameKeyObjects]


def _transpose_objects(shapes: _ObjectsByKeys) -> Iterator[tuple[str, array[int], tuple[Any, ...]]]:
    """Yield (key, rows, value of each row) for every key of every shape."""
    for keys, shape in shapes.items():
        values_by_key = zip(*map(dict.values, shape.objects), strict=True)
        for key, parsed in zip(keys, values_by_key, strict=True):
            yield key, shape.rows, parsed


def _convert_parsed_label(parsed: Any) -> str | None:
    """Convert a parsed category to its label; None if absent."""
    return parsed if type(parsed) is str else values.format_label(convert_parsed_value(parsed))


def _decode_member_keys(members: dict[bytes, bytes]) -> dict[str, bytes]:
    """Decode the keys of members; of equal keys, the last one wins."""
    return {values.decode_key(raw_key): value for raw_key, value in members.items()}
