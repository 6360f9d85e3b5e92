"""Offline runs of Weights & Biases (`run-ID.wandb`): the rows of their history, with times.

A file has a header of 7 bytes, then records in the log format of LevelDB: blocks of 32 KiB, and pieces with a checksum, a
length and a type. A record is protobuf. Only history is read: configuration and summary contain private names.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracekit.model.errors import make_os_read_error
from tracekit.model.trace import Source, Trace, Want
from tracekit.readers.driver_log import make_log_trace
from tracekit.readers.driver_log.json_lines import convert_seconds_to_unix_ns
from tracekit.readers.driver_log.protobuf import BYTES, DamagedMessageError, yield_fields
from tracekit.readers.driver_log.run_settings import describe_dependencies
from tracekit.readers.driver_log.values import MAX_STEP, LoggedValues
from tracekit.readers.file_bytes import FileBytes
from tracekit.readers.lines import MAX_LINE_BYTES

__all__ = ["describe_dependencies", "read", "sniff"]

MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES, _HEAD = 2**15, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CHECKSUMS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}
_HISTORY, _ITEM, _STEP = 2, 1, 2
_KEY, _NESTED_KEY, _JSON, _NUMBER = 1, 2, 16, 1
_LONGEST_JSON = 400
"""Longest text of a number; longer ones are images, tables and histograms."""

STEP_KEYS = ("train/global_step", "training/global_step", "rollout/step", "_step")
"""Steps of a row in order of preference: some trainers let W&B number the rows."""

OTHER_AXIS = "ray/ray_step"
"""Step of the rows that NeMo-RL logs about its machines: its numbers are not those of training."""


def sniff(head: bytes) -> bool:
    """Check whether a file begins like an offline run of Weights & Biases."""
    return head.startswith(MAGIC)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the history as one Trace with the table `log_values`, in which `line` is the number of the record.

    Raises only `TraceFormatError`.
    """
    path, log = Path(source.path), LoggedValues()
    try:
        with path.open("rb", buffering=0) as file:
            _add_history(_yield_records(FileBytes(file, on_bytes), log), log)
    except OSError as error:
        raise make_os_read_error(path, error) from error
    return make_log_trace(log, [], source, want)


def _yield_records(data: FileBytes, log: LoggedValues) -> Iterator[bytes]:
    """Yield whole records with right checksums; counts the others. Records over the size limit are skipped."""
    pieces: list[bytes] = []
    is_open = is_long = False
    for kind, piece in _yield_pieces(data, log):
        if kind in (_FULL, _FIRST):
            log.damaged += is_open
            pieces, is_open, is_long = [], True, False
        if not is_open:
            continue
        pieces.append(piece)
        if sum(map(len, pieces)) > MAX_LINE_BYTES:
            pieces, is_long = [], True
        if kind in (_FULL, _LAST):
            log.too_long += is_long
            if not is_long:
                yield b"".join(pieces)
            pieces, is_open = [], False
        elif kind == 0:
            log.damaged += 1
            pieces, is_open = [], False
    log.cut += is_open


def _yield_pieces(data: FileBytes, log: LoggedValues) -> Iterator[tuple[int, bytes]]:
    """Yield (type, bytes) of the pieces of all blocks; (0, nothing) where the rest of a block is damaged."""
    before = len(MAGIC)
    while block := _take_block(data):
        at, before = before, 0
        while at + _HEAD <= len(block):
            checksum, length, kind = struct.unpack_from("<IHB", block, at)
            piece = block[at + _HEAD : at + _HEAD + length]
            if kind not in _CHECKSUMS or len(piece) < length or zlib.crc32(piece, _CHECKSUMS[kind]) != checksum:
                if len(block) < _BLOCK_BYTES and len(piece) < length:
                    log.cut += 1
                elif block[at:].strip(b"\0"):
                    yield 0, b""
                break
            yield kind, piece
            at += _HEAD + length


def _take_block(data: FileBytes) -> bytes:
    """Take the next block; shorter at the end of the file."""
    block = b""
    while len(block) < _BLOCK_BYTES and (piece := data.take(_BLOCK_BYTES - len(block))):
        block += piece
    return block


def _add_history(records: Iterator[bytes], log: LoggedValues) -> None:
    """Add the rows of the history to the log."""
    for number, record in enumerate(records, 1):
        try:
            for key, wire, _, content in yield_fields(record):
                if (key, wire) == (_HISTORY, BYTES):
                    _add_row(_parse_row(content), number, log)
        except DamagedMessageError:
            log.damaged += 1


def _parse_row(history: bytes) -> dict[str, Any]:
    """Parse the numbers of a row by name. Raises `DamagedMessageError`."""
    row: dict[str, Any] = {}
    for key, wire, _, content in yield_fields(history):
        if (key, wire) == (_STEP, BYTES):
            row.setdefault(
                "_step", next((number for inner, _, number, _ in yield_fields(content) if inner == _NUMBER), 0)
            )
        elif (key, wire) == (_ITEM, BYTES):
            name, text = _parse_item(content)
            if len(text) <= _LONGEST_JSON:
                row[name] = _parse_json_number(text)
    return row


def _parse_item(item: bytes) -> tuple[str, bytes]:
    """Parse an item of a row: (name, JSON text). Raises `DamagedMessageError`."""
    names: list[str] = []
    text = b""
    for key, wire, _, content in yield_fields(item):
        if wire == BYTES and key in (_KEY, _NESTED_KEY):
            names.append(content[:_LONGEST_JSON].decode("utf-8", "replace"))
        elif wire == BYTES and key == _JSON:
            text = content
    return ".".join(names), text


def _parse_json_number(text: bytes) -> float | int | None:
    """Parse a number; None for other JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _add_row(row: Mapping[str, Any], number: int, log: LoggedValues) -> None:
    """Add one row to the log."""
    if OTHER_AXIS in row:
        return
    for key in STEP_KEYS:
        step = row.get(key)
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if isinstance(step, int) and 0 <= step < MAX_STEP:
            values = {name: value for name, value in row.items() if not name.startswith("_")}
            log.add_record(number, step, values, convert_seconds_to_unix_ns(row.get("_timestamp")))
            return
