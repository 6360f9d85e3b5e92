"""Scanner of the event array in pure Python, for machines where `_scan` could not be built.

The fast path parses a window of complete events with the standard json module, if json and the strict
layer agree on its text. The strict layer reads every other event itself.
"""

from __future__ import annotations

import gc
import json
import re
from typing import Any

from tracekit.readers.chrome import strict as chrome_strict
from tracekit.readers.chrome.python_rows import PythonRows
from tracekit.readers.chrome.scan import BAD, END, MAX_EVENT_BYTES, MORE, ScanOptions
from tracekit.readers.chrome.strict import Stop
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
