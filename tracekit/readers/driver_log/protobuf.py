"""Fields of protobuf messages, without their schema: enough to find numbers and texts at known places."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}


class DamagedMessageError(ValueError):
    """The bytes are not a protobuf message."""


def yield_fields(message: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    r"""Yield (field number, wire type, number of a varint, bytes of the others) for each field of a message.

    Raises `DamagedMessageError`.

    >>> list(yield_fields(b"\x10\x96\x01\x2a\x02hi"))
    [(2, 0, 150, b''), (5, 2, 0, b'hi')]
    """
    at, end = 0, len(message)
    while at < end:
        key, at = read_varint(message, at)
        wire = key & 7
        if wire == VARINT:
            number, at = read_varint(message, at)
            yield key >> 3, wire, number, b""
            continue
        if wire == BYTES:
            width, at = read_varint(message, at)
        else:
            width = _WIDTHS.get(wire, -1)
        if width < 0 or at + width > end:
            raise DamagedMessageError
        yield key >> 3, wire, 0, message[at : at + width]
        at += width


def read_varint(message: bytes, place: int) -> tuple[int, int]:
    r"""Read the varint at a position: (its value, the position after it). Raises `DamagedMessageError`.

    >>> read_varint(b"\x96\x01", 0)
    (150, 2)
    """
    value = shift = 0
    for byte in message[place : place + 10]:
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise DamagedMessageError
