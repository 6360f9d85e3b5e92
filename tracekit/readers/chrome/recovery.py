"""Repair or skipping of elements that the strict layer rejects: rules 13 to 16 of `RECOVERY.md`.

Decisions depend only on the bytes between the element and the next resume point, and take time linear
in their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.chrome import strict
from tracekit.readers.chrome.places import LONGEST_SPACE, SPACE, ResumePoint, find_final_array_end
from tracekit.readers.chrome.strict import BROKEN, INCOMPLETE, Stop
from tracekit.readers.chrome.values import decode_escapes


class RecoveryAction(Enum):
    """Kinds of verdict on a rejected element."""

    MORE = "more bytes are needed to tell"
    PASS = "an element that is no event"  # noqa: S105
    REPAIRED = "an event, written out as plain JSON"
    RESUME = "damage, up to where an event starts"
    ARRAY_END = "damage, up to the end of the array"
    DAMAGED = "damage, and no place to go on in sight"
    TOO_LONG = "an element that is too long, and no place to go on in sight"
    CUT = "an element that the end of the text cuts"


@dataclass(frozen=True, slots=True)
class RecoveryVerdict:
    """The first `length` bytes are of kind `action`; `text` is the repaired event for the scanner.

    For DAMAGED, the bytes before `length` are valid, so brackets there do not end the array.
    """

    action: RecoveryAction
    length: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class _ElementBytes:
    """Bytes that may belong to an element; `is_open` if more of them may follow."""

    data: memoryview
    is_open: bool


def judge_element(
    data: memoryview, next_place: ResumePoint | int, *, at_end: bool, max_bytes: int, repair: bool = True
) -> RecoveryVerdict:
    """Judge the element at the start of `data`.

    `next_place` is the result of `find_resume_point` for `data` from 1. `at_end`: the text ends with `data`.
    """
    place = None
    limit = max_bytes
    if isinstance(next_place, ResumePoint) and next_place.position < max_bytes:
        place, limit = next_place, next_place.position
    too_long = place is None and len(data) >= max_bytes
    is_open = place is None and not at_end and not too_long
    segment = _ElementBytes(data=data[:limit], is_open=is_open)
    stop = Stop(BROKEN, 0)
    verdict = None
    if data[0] != 0x7B:
        verdict = _judge_non_object(data, segment, at_end=at_end)
    elif repair:
        verdict, stop = _try_to_repair(segment)
    if verdict is None:
        is_last = at_end and isinstance(next_place, int)
        return _judge_unreadable_element(data, stop, place, is_last=is_last, too_long=too_long)
    if is_open and isinstance(next_place, int) and verdict.length > next_place:
        return RecoveryVerdict(RecoveryAction.MORE)  # a resume point may still appear within the element
    return verdict


def _try_to_repair(segment: _ElementBytes) -> tuple[RecoveryVerdict | None, Stop]:
    """Try to write out the element as an event: (verdict or None, where form a. stopped).

    The verdict is a repaired event, or that more bytes are needed.
    """
    try:
        return RecoveryVerdict(RecoveryAction.REPAIRED, *_write_event(segment)), Stop(BROKEN, 0)
    except Stop as stop:
        needs_more = stop.reason == INCOMPLETE and segment.is_open
        return RecoveryVerdict(RecoveryAction.MORE) if needs_more else None, stop


def _judge_unreadable_element(
    data: memoryview, stop: Stop, place: ResumePoint | None, *, is_last: bool, too_long: bool
) -> RecoveryVerdict:
    """Judge an element that cannot be read; `stop` is where form a. stopped in it."""
    if place is not None:
        return RecoveryVerdict(RecoveryAction.ARRAY_END if place.ends_array else RecoveryAction.RESUME, place.position)
    if too_long and stop.reason == INCOMPLETE:
        return RecoveryVerdict(RecoveryAction.TOO_LONG)
    valid = stop.position
    if stop.reason == INCOMPLETE and not stop.in_string:
        valid = len(data)
    if is_last:
        return judge_text_end(data, valid)
    return RecoveryVerdict(RecoveryAction.DAMAGED, valid)


def judge_text_end(data: memoryview, valid: int) -> RecoveryVerdict:
    """Judge damage that reaches the end of the text: `]}` after the valid bytes, or a cut."""
    bracket = find_final_array_end(data)
    if bracket is not None and bracket >= valid:
        return RecoveryVerdict(RecoveryAction.ARRAY_END, bracket)
    return RecoveryVerdict(RecoveryAction.CUT, len(data))


def _judge_non_object(data: memoryview, segment: _ElementBytes, *, at_end: bool) -> RecoveryVerdict | None:
    """Judge an element that starts without a brace: skipped, more bytes needed, or None (damage)."""
    limit = len(segment.data)
    try:
        end = strict.find_value_end(data[: limit + 1], 0)  # one more byte shows where a bare value ends
    except Stop as stop:
        if stop.reason == INCOMPLETE and segment.is_open:
            return RecoveryVerdict(RecoveryAction.MORE)
        return None
    following = strict.skip_space(data[: end + LONGEST_SPACE + 1], end)
    if following == len(data) and not at_end:
        return RecoveryVerdict(RecoveryAction.MORE)
    if following == len(data) or (end <= limit and data[following] in b",]"):
        return RecoveryVerdict(RecoveryAction.PASS, end)
    return None


# ---- rule 14: the two forms in which an event is tried

_SEPARATORS = compile_lazily(rb"[ \t\n\r,]*+")
_STOP = compile_lazily(rb'["\\]')
_BACKSLASHES = compile_lazily(rb"\\++")
_CONTAINER_STOP = compile_lazily(rb'"|[\[{]++|[\]}]++')
_INNER_QUOTES = compile_lazily(rb'\\.|"', re.DOTALL)

_AFTER_OBJECT = rb"\}" + SPACE + rb"(?:[,}\]]|\Z)"
_ANY_KEY = rb'"(?:[^"\\]|\\.){0,256}+"' + SPACE + rb":"
_AFTER_KEY = compile_lazily(SPACE + rb":")
_AFTER_COMMA = SPACE + rb"(?:" + _AFTER_OBJECT + rb"|" + _ANY_KEY + rb")"
_AFTER_VALUE = compile_lazily(SPACE + rb"(?:" + _AFTER_OBJECT + rb"|," + _AFTER_COMMA + rb")", re.DOTALL)
_AFTER_ITEM = compile_lazily(SPACE + rb"[,\]}:]")
_AFTER_ESCAPED_ITEM = compile_lazily(SPACE + rb"(?:[\]}]|," + SPACE + rb'["\[{0-9])')
_LONGEST_CONTEXT_BYTES = 1024


def _write_event(segment: _ElementBytes) -> tuple[int, bytes]:
    """Write out an event in the first form that completes: (end, text); raises `Stop`.

    Form b. helps only if form a. paired the wrong quotes. The `Stop` is that of form a., unless more bytes
    may complete form b.
    """
    try:
        return _write_plain(segment)
    except Stop as stop:
        if stop.reason == INCOMPLETE and (segment.is_open or not stop.in_string):
            raise
        try:
            return _write_lenient(segment)
        except Stop as lenient:
            if lenient.reason == INCOMPLETE and segment.is_open:
                raise
            raise stop from None


def _write_plain(segment: _ElementBytes) -> tuple[int, bytes]:
    """Write out an event in form a.: as in the strict layer, but keys may have escapes and commas are optional."""

    def read_string(start: int, _after: re.Pattern[bytes]) -> tuple[int, bytes]:
        end = strict.find_string_end(segment.data, start)
        return end, bytes(segment.data[start + 1 : end - 1])

    def read_container(start: int) -> tuple[int, bytes]:
        end = strict.find_container_end(segment.data, start)
        return end, bytes(segment.data[start:end])

    return _EventWriter(segment.data, read_string, read_container).write_event()


def _write_lenient(segment: _ElementBytes) -> tuple[int, bytes]:
    """Write out an event in form b.: as form a., but a quote ends a string only where a string can end."""

    def read_string(start: int, after: re.Pattern[bytes]) -> tuple[int, bytes]:
        return _read_lenient_string(segment, start, after, after)

    def read_container(start: int) -> tuple[int, bytes]:
        return _read_lenient_container(segment, start)

    return _EventWriter(segment.data, read_string, read_container).write_event()


class _EventWriter:
    """Writer of an event as JSON that the strict layer accepts; the form determines how strings are read."""

    def __init__(
        self,
        data: memoryview,
        read_string: Callable[[int, re.Pattern[bytes]], tuple[int, bytes]],
        read_container: Callable[[int], tuple[int, bytes]],
    ) -> None:
        self.data = data
        self.read_string = read_string
        self.read_container = read_container

    def write_event(self) -> tuple[int, bytes]:
        """Write out the event at the start of the data: (end, text); raises `Stop`."""
        return self._write_object(0, is_event=True)

    def _write_object(self, position: int, *, is_event: bool) -> tuple[int, bytes]:
        """Write out an object member by member."""
        members: list[bytes] = []
        position += 1
        while True:
            position = strict.get_match_end(_SEPARATORS.match(self.data, position), position)
            first = strict.get_byte(self.data, position)
            if first == 0x7D:
                return position + 1, b"{" + b",".join(members) + b"}"
            if first != 0x22:
                raise Stop(BROKEN, position)
            position, key = self.read_string(position, _AFTER_KEY)
            position = strict.skip_space(self.data, position)
            if strict.get_byte(self.data, position) != 0x3A:
                raise Stop(BROKEN, position)
            position = strict.skip_space(self.data, position + 1)
            position, value = self._write_value(position, is_args=is_event and key == b"args")
            members.append(b'"' + _unescape_key(key) + b'":' + value)

    def _write_value(self, position: int, *, is_args: bool) -> tuple[int, bytes]:
        """Write out the value at a position."""
        first = strict.get_byte(self.data, position)
        if first == 0x22:
            end, content = self.read_string(position, _AFTER_VALUE)
            return end, b'"' + content + b'"'
        if first == 0x7B and is_args:
            return self._write_object(position, is_event=False)
        if first in b"[{":
            return self.read_container(position)
        end = strict.find_bare_end(self.data, position)
        return end, bytes(self.data[position:end])


def _unescape_key(key: bytes) -> bytes:
    r"""Remove the escapes from a key; `"` and `\`, which a key cannot contain, become `'` and `/`."""
    if b"\\" not in key:
        return key
    text = decode_escapes(key.decode("utf-8", "replace"))
    return text.replace('"', "'").replace("\\", "/").encode()


def _read_lenient_string(
    segment: _ElementBytes, start: int, after: re.Pattern[bytes], after_escaped: re.Pattern[bytes]
) -> tuple[int, bytes]:
    """Read the string at `start`: (end, content with inner quotes escaped).

    If a lone backslash precedes the closing quote, the text is read as a Windows path: its backslashes are
    ordinary bytes.
    """
    data = segment.data
    position = start + 1
    while True:
        stop = _STOP.search(data, position)
        if stop is None:
            raise Stop(INCOMPLETE, start, in_string=True)
        quote = stop.start()
        run = _BACKSLASHES.match(data, quote)
        escaped = run is not None and (run.end() - quote) % 2 == 1
        if run is not None:
            quote = run.end()
        if quote == len(data):
            raise Stop(INCOMPLETE, start, in_string=True)
        position = quote + 1
        if data[quote] != 0x22:
            position = quote + int(escaped)
            continue
        if segment.is_open and len(data) - position < _LONGEST_CONTEXT_BYTES:
            raise Stop(INCOMPLETE, start, in_string=True)
        if (after_escaped if escaped else after).match(data, position):
            content = bytes(data[start + 1 : quote])
            if escaped:
                return position, content.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            return position, _INNER_QUOTES.sub(_escape_quote, content)


def _escape_quote(match: re.Match[bytes]) -> bytes:
    """Escape a quote; keep an escape as it is."""
    return b'\\"' if match[0] == b'"' else match[0]


def _read_lenient_container(segment: _ElementBytes, start: int) -> tuple[int, bytes]:
    """Read the array or object at `start`: (end, text with quotes inside strings escaped)."""
    data = segment.data
    parts: list[bytes] = []
    depth, position = 0, start
    while True:
        stop = _CONTAINER_STOP.search(data, position)
        if stop is None:
            raise Stop(INCOMPLETE, len(data))
        first = data[stop.start()]
        if first == 0x22:
            parts.append(bytes(data[position : stop.end()]))
            position, content = _read_lenient_string(segment, stop.start(), _AFTER_ITEM, _AFTER_ESCAPED_ITEM)
            parts.append(content + b'"')
            continue
        length = stop.end() - stop.start()
        if first in b"[{":
            depth += length
        elif length >= depth:
            end = stop.start() + depth
            return end, b"".join([*parts, bytes(data[position:end])])
        else:
            depth -= length
        parts.append(bytes(data[position : stop.end()]))
        position = stop.end()
