"""Strict layer of `RECOVERY.md` for one element: slow, exact, without recursion.

It reads `memoryview`s by regular expressions only, to avoid copies of large buffers.
"""

from __future__ import annotations

import re
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily

INCOMPLETE, BROKEN = -1, -2
"""Reasons of a `Stop`: the data ended first; a byte did not fit."""

SPACE = rb"[ \t\n\r]*+"
BARE = rb"[0-9A-Za-z.+\-_/]++"

Data = bytes | memoryview

_SPACES = compile_lazily(SPACE)
_BARE = compile_lazily(BARE)
_STRING_STOP = compile_lazily(rb'["\\]')
_BACKSLASHES = compile_lazily(rb"\\++")
_NOT_QUOTE = compile_lazily(rb'[^"\\]*+')
_CONTAINER_STOP = compile_lazily(rb'["]|[\[{]++|[\]}]++')
_OPENING = b"[{"

_KEY = rb'"(?P<key>[^"\\]*+)"' + SPACE + rb":" + SPACE
_VALUE = rb'(?P<value>"[^"\\]*+"|' + BARE + rb")" + SPACE
MEMBER = compile_lazily(_KEY + _VALUE + rb"(?P<stop>[,}])")
"""The common member: a key, a string without escapes or a bare value, and the byte after it."""


@dataclass(slots=True)
class EventElement:
    """Members of an event as raw texts; `args` are the members of the last `args` object."""

    members: dict[bytes, bytes] = field(default_factory=dict)
    args: dict[bytes, bytes] = field(default_factory=dict)


class Stop(Exception):  # noqa: N818 - control flow, always caught
    """Early end of a parse at `position`: the data ended (`INCOMPLETE`) or a byte did not fit (`BROKEN`)."""

    def __init__(self, reason: int, position: int, *, in_string: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.in_string = in_string


def read_event(data: Data, start: int) -> tuple[int, EventElement]:
    """Read the event whose brace is at `start`: (end, members); raises `Stop`."""
    element = EventElement()
    position = _read_object_members(data, start + 1, element.members, element)
    return position, element


def find_string_end(data: Data, start: int) -> int:
    """Find the end of the string whose opening quote is at `start`; raises `Stop`."""
    position = start + 1
    end = len(data)
    while True:
        stop = _STRING_STOP.search(data, position)
        if stop is None:
            raise Stop(INCOMPLETE, start, in_string=True)
        position = stop.end()
        if data[position - 1] == 0x22:
            return position
        count = 1 + get_match_end(_BACKSLASHES.match(data, position), position) - position
        position += count - 1 + count % 2
        if position > end:
            raise Stop(INCOMPLETE, start, in_string=True)


def find_container_end(data: Data, start: int) -> int:
    """Find the end of the array or object that opens at `start`; raises `Stop`."""
    depth = 0
    position = start
    while True:
        stop = _CONTAINER_STOP.search(data, position)
        if stop is None:
            raise Stop(INCOMPLETE, len(data))
        position = stop.end()
        first = data[stop.start()]
        if first == 0x22:
            position = find_string_end(data, stop.start())
        elif first in _OPENING:
            depth += position - stop.start()
        else:
            closing = position - stop.start()
            if closing >= depth:
                return stop.start() + depth
            depth -= closing


def find_bare_end(data: Data, start: int) -> int:
    """Find the end of the bare value at `start`; raises `Stop`, also if the data ends with it."""
    bare = _BARE.match(data, start)
    if bare is None:
        raise Stop(BROKEN if start < len(data) else INCOMPLETE, start)
    if bare.end() == len(data):
        raise Stop(INCOMPLETE, len(data))
    return bare.end()


def find_value_end(data: Data, start: int) -> int:
    """Find the end of any value at `start`; raises `Stop`."""
    first = data[start] if start < len(data) else 0
    if first == 0x22:
        return find_string_end(data, start)
    if first in _OPENING:
        return find_container_end(data, start)
    return find_bare_end(data, start)


def skip_space(data: Data, position: int) -> int:
    """Find the next position that is not whitespace."""
    return get_match_end(_SPACES.match(data, position), position)


def get_match_end(match: re.Match[bytes] | None, otherwise: int) -> int:
    """Get the end of a match; `otherwise` if there is none."""
    if match is None:
        return otherwise
    return match.end()


def get_byte(data: Data, position: int) -> int:
    """Get the byte at a position; raises `Stop` at the end of the data."""
    if position >= len(data):
        raise Stop(INCOMPLETE, position)
    return data[position]


def _read_object_members(data: Data, position: int, members: dict[bytes, bytes], event: EventElement | None) -> int:
    """Read the members of an object into `members`; returns the position after its closing brace.

    `event` is given for the top level of an event, where `args` may open one more level.
    """
    position = skip_space(data, position)
    while get_byte(data, position) != 0x7D:
        common = MEMBER.match(data, position)
        if common is not None:
            key, value, stop = common["key"], common["value"], common["stop"]
            position = common.end()
        else:
            key, position = _read_member_key(data, position)
            value, position = _read_member_value(data, position, key, event)
            position = skip_space(data, position)
            stop = bytes((get_byte(data, position),))
            if stop not in b",}":
                raise Stop(BROKEN, position)
            position += 1
        members.pop(key, None)  # keep the order of last occurrences
        if value is not None:  # None for the object of `args`
            members[key] = value
            if event is not None and key == b"args":
                event.args = {}
        if stop == b"}":
            return position
        position = skip_space(data, position)
    return position + 1


def _read_member_key(data: Data, position: int) -> tuple[bytes, int]:
    """Read the raw key at a position: (key, position of its value)."""
    if get_byte(data, position) != 0x22:
        raise Stop(BROKEN, position)
    end = get_match_end(_NOT_QUOTE.match(data, position + 1), position + 1)
    if end >= len(data):
        raise Stop(INCOMPLETE, position, in_string=True)
    if data[end] != 0x22:
        raise Stop(BROKEN, end)
    colon = skip_space(data, end + 1)
    if get_byte(data, colon) != 0x3A:
        raise Stop(BROKEN, colon)
    return bytes(data[position + 1 : end]), skip_space(data, colon + 1)


def _read_member_value(data: Data, position: int, key: bytes, event: EventElement | None) -> tuple[bytes | None, int]:
    """Read the raw value at a position: (value or None for the object of `args`, end)."""
    if event is not None and key == b"args" and get_byte(data, position) == 0x7B:
        event.args = {}
        return None, _read_object_members(data, position + 1, event.args, None)
    end = find_value_end(data, position)
    return bytes(data[position:end]), end
