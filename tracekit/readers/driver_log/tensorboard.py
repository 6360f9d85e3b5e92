"""TensorBoard event files: scalars by step with their times, read without TensorFlow.

A file is a row of records: length (8 bytes), its checksum, an `Event` as protobuf, its checksum. An event has a time, a
step and a summary of values. Images, histograms and texts are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.errors import make_os_read_error
from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Source, Trace, Want
from tracekit.readers import unpack
from tracekit.readers.driver_log import make_log_trace
from tracekit.readers.driver_log.json_lines import convert_seconds_to_unix_ns
from tracekit.readers.driver_log.protobuf import BYTES, FIXED32, FIXED64, DamagedMessageError, read_varint, yield_fields
from tracekit.readers.driver_log.run_settings import describe_dependencies
from tracekit.readers.driver_log.values import MAX_STEP, LoggedValues
from tracekit.readers.lines import MAX_LINE_BYTES
from tracekit.readers.loss import DataLoss

__all__ = ["describe_dependencies", "read", "sniff"]

_HEAD, _FOOT = 12, 4
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _TENSOR_CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_FLOAT, _DOUBLE = 1, 2
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_SCALAR = compile_lazily(
    rb"(?s)\x09(.{8})(?:\x10(" + _VARINT + rb"))?\x2a" + _VARINT + rb"\x0a" + _VARINT + rb"\x0a(" + _VARINT + rb")"
    rb"(.*)\x15(.{4})\Z"
)
"""The usual event: one tag with a simple value."""

MAX_TAG_BYTES = 1200


def sniff(head: bytes) -> bool:
    """Check whether a file begins like an event file: the checksum of the first length is right, and an event follows."""
    if len(head) < _HEAD + 9 or head[_HEAD] != 0x09:
        return False
    length, checksum = struct.unpack_from("<QI", head)
    return int(length) <= MAX_LINE_BYTES and compute_masked_crc(head[:8]) == checksum


@dataclass(slots=True)
class _OpenRecord:
    """Values of one step that follow each other."""

    step: int = -1
    number: int = 0
    ts_ns: int | None = None
    values: dict[str, object] = field(default_factory=dict[str, object])


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the file as one Trace with the table `log_values`, in which `line` is the number of the event.

    Raises only `TraceFormatError`.
    """
    path = Path(source.path)
    for careful in (False, True):
        log, losses = LoggedValues(), list[DataLoss]()
        try:
            _add_events(unpack.unpack_blocks(path, losses, careful=careful, on_bytes=on_bytes), log)
            break
        except unpack.Unproven:
            continue
        except OSError as error:
            raise make_os_read_error(path, error) from error
    return make_log_trace(log, losses, source, want)


def _add_events(blocks: Iterator[bytes], log: LoggedValues) -> None:
    """Add the scalars of all events to the log. Values of one step that follow each other are one record."""
    current = _OpenRecord()
    for number, body in enumerate(_yield_bodies(blocks, log), 1):
        try:
            wall_time, step, scalars = parse_event(body)
        except DamagedMessageError:
            log.damaged += 1
            continue
        if not scalars:
            continue
        if step != current.step or not current.values.keys().isdisjoint(scalars):
            _close_record(current, log)
            current = _OpenRecord(step, number, convert_seconds_to_unix_ns(wall_time))
        current.values.update(scalars)
    _close_record(current, log)


def _close_record(record: _OpenRecord, log: LoggedValues) -> None:
    """Add the values of a step to the log."""
    if record.values and 0 <= record.step < MAX_STEP:
        log.add_record(record.number, record.step, record.values, record.ts_ns)


def _yield_bodies(blocks: Iterator[bytes], log: LoggedValues) -> Iterator[bytes]:
    """Yield the events whose checksums are right, except long ones. Counts damage; wrong lengths end the file."""
    rest, skip = b"", 0
    for block in blocks:
        data = rest + block
        if skip:
            passed = min(skip, len(data))
            data, skip = data[passed:], skip - passed
        spans, at = _find_spans(data)
        if at < 0:
            log.damaged += 1
        yield from _select_sound_bodies(data, spans, log)
        if at < 0:
            return
        rest = data[at:]
        if len(rest) >= _HEAD:
            length = struct.unpack_from("<Q", rest)[0] + _HEAD + _FOOT
            if length > MAX_LINE_BYTES:
                log.too_long += 1
                passed = min(length, len(rest))
                rest, skip = rest[passed:], length - passed
    if rest or skip:
        log.cut += 1


def _find_spans(data: bytes) -> tuple[list[tuple[int, int]], int]:
    """Find the whole events in `data`: (start and length of each body, end of the last; -1 where a length is damaged)."""
    spans: list[tuple[int, int]] = []
    at, end = 0, len(data)
    while at + _HEAD <= end:
        length, checksum = struct.unpack_from("<QI", data, at)
        if _compute_length_crc(length) != checksum:
            return spans, -1
        if length > MAX_LINE_BYTES or at + _HEAD + length + _FOOT > end:
            break
        spans.append((at + _HEAD, length))
        at += _HEAD + length + _FOOT
    return spans, at


def _select_sound_bodies(data: bytes, spans: list[tuple[int, int]], log: LoggedValues) -> Iterator[bytes]:
    """Yield the bodies with the right checksum; counts the others."""
    sound = check_bodies(data, spans)
    log.damaged += int((~sound).sum())
    for (start, length), is_sound in zip(spans, sound.tolist(), strict=True):
        if is_sound:
            yield data[start : start + length]


def parse_event(body: bytes) -> tuple[float, int, dict[str, object]]:
    """Parse an event: (time in Unix seconds, step, scalars by tag). Raises `DamagedMessageError`."""
    match = _SCALAR.match(body)
    if match and len(match[4]) < 128 and match[3][0] == len(match[4]):
        tag = match[4].decode("utf-8", "replace")
        step = read_varint(match[2], 0)[0] if match[2] else 0
        return struct.unpack("<d", match[1])[0], step, {tag: struct.unpack("<f", match[5])[0]}
    wall_time, step = 0.0, 0
    scalars: dict[str, object] = {}
    for key, wire, number, value in yield_fields(body):
        if (key, wire) == (_WALL_TIME, FIXED64):
            wall_time = struct.unpack("<d", value)[0]
        elif key == _STEP:
            step = number
        elif (key, wire) == (_SUMMARY, BYTES):
            scalars |= _parse_summary(value)
    return wall_time, step, scalars


def _parse_summary(summary: bytes) -> dict[str, object]:
    """Parse the scalars of a summary."""
    scalars: dict[str, object] = {}
    for key, wire, _, value in yield_fields(summary):
        if (key, wire) != (_VALUE, BYTES):
            continue
        tag, number = b"", None
        for inner, inner_wire, _, content in yield_fields(value):
            if (inner, inner_wire) == (_TAG, BYTES):
                tag = content[:MAX_TAG_BYTES]
            elif (inner, inner_wire) == (_SIMPLE_VALUE, FIXED32):
                number = struct.unpack("<f", content)[0]
            elif (inner, inner_wire) == (_TENSOR, BYTES):
                number = _parse_scalar_tensor(content)
        if tag and number is not None:
            scalars[tag.decode("utf-8", "replace")] = number
    return scalars


def _parse_scalar_tensor(tensor: bytes) -> float | None:
    """Parse a tensor of one float or double; None for any other."""
    dtype, content = 0, b""
    for key, _, number, value in yield_fields(tensor):
        if key == _DTYPE:
            dtype = number
        elif key in (_TENSOR_CONTENT, _FLOATS, _DOUBLES):
            content = value
    form = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}.get((dtype, len(content)))
    return struct.unpack(form, content)[0] if form else None


# Checksums: CRC-32C, rotated and shifted by a constant, as in TFRecord files.

_POLYNOMIAL, _MASK_DELTA, _ALL = 0x82F63B78, 0xA282EAD8, 0xFFFFFFFF


@cache
def make_crc_table() -> npt.NDArray[np.uint32]:
    """Make the table of CRC-32C by byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


def compute_masked_crc(data: bytes) -> int:
    """Compute the masked CRC-32C of a few bytes.

    >>> hex(compute_masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    return int(_compute_masked_crcs(np.frombuffer(data, np.uint8)[None, :])[0])


@lru_cache(4096)
def _compute_length_crc(length: int) -> int:
    """Compute the checksum of a record's length; most records of a file have one of a few lengths."""
    return compute_masked_crc(struct.pack("<Q", length))


def _compute_masked_crcs(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Compute the masked CRC-32C of each row of equally long data."""
    table = make_crc_table()
    crc = np.full(len(rows), _ALL, np.uint32)
    for column in range(rows.shape[1]):
        crc = table[(crc ^ rows[:, column]) & 0xFF] ^ (crc >> 8)
    crc = crc ^ np.uint32(_ALL)
    return (((crc >> 15) | (crc << 17)) + np.uint32(_MASK_DELTA)).astype(np.uint32)


def check_bodies(data: bytes, spans: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Check the checksum behind each body. Bodies of one length are checked at once."""
    octets = np.frombuffer(data, np.uint8)
    placed: Any = np.array(spans, np.int64).reshape(-1, 2)
    sound = np.zeros(len(placed), bool)
    for length in np.unique(placed[:, 1]).tolist():
        rows = np.flatnonzero(placed[:, 1] == length)
        starts = placed[rows, 0]
        bodies = octets[starts[:, None] + np.arange(length)]
        stored = octets[(starts + length)[:, None] + np.arange(4)].copy().view("<u4")[:, 0]
        sound[rows] = _compute_masked_crcs(bodies) == stored
    return sound
