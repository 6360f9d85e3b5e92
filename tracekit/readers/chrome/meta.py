"""Metadata outside the event array, parsed key by key: a broken key loses only itself."""

from __future__ import annotations

import json
import re
from typing import Any

from tracekit.model.records import dataclass
from tracekit.readers.chrome import strict, values
from tracekit.readers.chrome.strict import Stop

_SEPARATORS = re.compile(rb"[ \t\n\r,]*+")
_KEY = re.compile(rb'"(?:[^"\\]|\\.){0,4096}+"[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_NEXT_KEY = re.compile(rb',[ \t\n\r]*+(?="[^"\\]{0,4096}+"[ \t\n\r]*+:)')
EVENTS_KEY = "traceEvents"
MAX_VALUE_BYTES = 16 * 2**20
"""Largest array or object that is parsed: parsing takes many times its size in memory."""

_decode = json.JSONDecoder(strict=False).decode


@dataclass(frozen=True, slots=True)
class MetadataFault:
    """A key that was left out: its position and length in the text."""

    position: int
    length: int


def read_metadata_members(text: bytes) -> tuple[dict[str, Any], list[MetadataFault]]:
    """Parse the members of a top-level object without its braces: (values by key, keys left out).

    The text may end inside a member.
    """
    members: dict[str, Any] = {}
    faults: list[MetadataFault] = []
    position = 0
    while True:
        position = strict.get_match_end(_SEPARATORS.match(text, position), position)
        if position == len(text) or text[position] == 0x7D:
            return members, faults
        try:
            end, name, value = _read_metadata_member(text, position)
            members[name] = value
        except _UnreadableMember as unreadable:
            end = unreadable.end
            faults.append(MetadataFault(position, end - position))
        position = end


class _UnreadableMember(Exception):  # noqa: N818 - always caught in this module
    """A member that cannot be read, and the position where reading continues."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def _read_metadata_member(text: bytes, position: int) -> tuple[int, str, Any]:
    """Parse the member at a position: (end, name, value)."""
    key = _KEY.match(text, position)
    if key is None:
        raise _UnreadableMember(_find_next_key(text, position))
    try:
        end = strict.find_value_end(text, key.end())
    except Stop as stop:
        is_cut = stop.reason == strict.INCOMPLETE
        raise _UnreadableMember(len(text) if is_cut else _find_next_key(text, position)) from None
    name = str(values.decode_value(key[0][: key[0].rindex(b'"') + 1]))
    if name == EVENTS_KEY:  # a second event array is not read
        raise _UnreadableMember(end)
    try:
        return end, name, _parse_metadata_value(text[key.end() : end])
    except ValueError:
        raise _UnreadableMember(end) from None


def _find_next_key(text: bytes, position: int) -> int:
    """Find the position where the next member may start."""
    following = _NEXT_KEY.search(text, position + 1)
    if following is None:
        return len(text)
    return following.start()


def _parse_metadata_value(raw: bytes) -> Any:
    """Parse the text of a value; raise ValueError if it has none."""
    if raw.startswith((b"[", b"{")):
        if len(raw) > MAX_VALUE_BYTES:
            raise ValueError
        text = raw.decode("utf-8", "replace")
        if values.is_too_deep(text):
            raise ValueError
        try:
            return _decode(text)
        except RecursionError:
            raise ValueError from None
    value = values.decode_value(raw)
    if isinstance(value, str) and not raw.startswith(b'"') and not raw.lstrip(b"-").isdigit():
        raise ValueError
    return value
