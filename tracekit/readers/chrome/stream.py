"""Scan of a Chrome trace from its file to columns: head, events and tail, for any input.

Decompression runs ahead in a thread. The scanner reads the events; an element that it rejects goes to `recovery`.
Metadata outside the events is parsed key by key: a broken key loses only itself. Raises only `TraceFormatError`.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tracekit.model.errors import make_format_error, make_os_read_error
from tracekit.model.inputs import unpacked_size
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.system.capacity import LARGE_FILE_BYTES, count_own_cores
from tracekit.readers import unpack
from tracekit.readers.chrome import strict, values
from tracekit.readers.chrome.events import TextWindow, read_events
from tracekit.readers.chrome.scan import MAX_EVENT_BYTES, JoiningScanner, Scanner, ScanOptions, TraceScan
from tracekit.readers.chrome.stretches import scan_stretches
from tracekit.readers.chrome.strict import Stop
from tracekit.readers.loss import DataLoss, ScanLosses

OUTSIDE_LIMIT = 64 * 2**20
"""Bytes of text kept before the event array, and after it."""

MOST_SCANNERS = 4
"""Most scanning threads: this many keep the thread that merges their results busy."""

BLOCK_BYTES = 2**20
"""Bytes of text read at a time."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_SPACE = rb"[ \t\n\r]{0,4096}+"
_EVENTS_KEY = re.compile(rb'"traceEvents"' + _SPACE + rb":" + _SPACE + rb"\[")
_LONGEST_EVENTS_KEY = 2 * 4096 + 32
_FIRST_BYTE = re.compile(rb"[^ \t\n\r]")
_ARRAY_OF_EVENTS = re.compile(rb'\[\s*\{\s*"')
_EVENT_KEY = re.compile(rb'"(?:ph|ts|dur|name|cat|pid|tid)"\s*:')
_TRACE_KEY = re.compile(rb'"(?:traceEvents|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')


def is_chrome_trace_head(head: bytes) -> bool:
    """Check whether a text that starts with these bytes (64 KiB suffice) is likely a Chrome trace."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"{"):
        return _TRACE_KEY.search(text) is not None
    return _ARRAY_OF_EVENTS.match(text) is not None and _EVENT_KEY.search(text) is not None


def scan_trace(
    path: Path,
    keep: ScanOptions = ScanOptions(),
    *,
    pure: bool | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> TraceScan:
    """Scan a trace file into columns.

    `pure` selects the scanner in Python; by default it is used only if the one in C is missing or
    `TRACEKIT_PURE=1` is set. `on_bytes` is called with the number of file bytes read so far.
    """
    make_scanner = _choose_scanner(pure)
    try:
        try:
            return _scan_trace_once(path, keep, make_scanner, on_bytes, careful=False)
        except unpack.Unproven:
            return _scan_trace_once(path, keep, make_scanner, on_bytes, careful=True)
    except OSError as error:
        raise make_os_read_error(path, error) from error


_NO_EVENTS_LIST = Reason("no-events-list", "not a Chrome trace: there is no array of events")
_NOTHING_WHOLE = Reason("no-events-list", "the event array contains no complete event")


class _FinishingScanner(Scanner, Protocol):
    """Scanner that can return its columns."""

    def finish(self) -> dict[str, Any]:
        """Return the columns under their names in `TraceScan`."""


def _choose_scanner(pure: bool | None) -> Callable[[ScanOptions, int], _FinishingScanner]:
    """Choose the scanner; the one in C is imported only here."""
    if pure is None:
        pure = os.environ.get("TRACEKIT_PURE") == "1"
        if not pure:
            try:
                from tracekit.readers.chrome.scanner_c import NativeScanner
            except ImportError:
                pure = True
    elif not pure:
        from tracekit.readers.chrome.scanner_c import NativeScanner
    if pure:
        from tracekit.readers.chrome.pure import PureScanner

        return PureScanner
    return NativeScanner


def _scan_trace_once(
    path: Path,
    keep: ScanOptions,
    make_scanner: Callable[[ScanOptions, int], _FinishingScanner],
    on_bytes: Callable[[int], None] | None,
    *,
    careful: bool,
) -> TraceScan:
    """Scan a trace file once, with or without `careful` decompression."""
    losses = ScanLosses()
    packing_losses: list[DataLoss] = []  # complete only once all blocks are read
    blocks = unpack.unpack_blocks(path, packing_losses, size=BLOCK_BYTES, careful=careful, on_bytes=on_bytes)
    cores = count_own_cores() if path.stat().st_size >= LARGE_FILE_BYTES else 1
    text = TextWindow(prefetch_blocks(blocks) if cores > 1 else blocks)
    head, head_offset = _read_trace_head(path, text)
    scanner = make_scanner(keep, MAX_EVENT_BYTES)
    thread_count = _count_scan_threads(path, cores)
    if thread_count > 1 and isinstance(scanner, JoiningScanner):
        another: Any = partial(make_scanner, keep, MAX_EVENT_BYTES)
        text = scan_stretches(text, scanner, another, thread_count)
    tail = b""
    tail_offset = text.offset
    if read_events(text, scanner, losses, MAX_EVENT_BYTES):
        tail_offset = text.offset
        tail = _read_trace_tail(text, losses)
    losses.extend(packing_losses)
    columns = scanner.finish()
    columns["skipped"] = dict(sorted(columns["skipped"].items()))
    if not len(columns["ts_ns"]) and not columns["skipped"] and losses.of_events():
        raise make_format_error(path, _nothing_whole(packing_losses))
    meta = _parse_trace_metadata(head, head_offset, losses) | _parse_trace_metadata(tail, tail_offset, losses)
    return TraceScan(**columns, meta=meta, losses=losses.finish(), size_bytes=text.offset)


def _count_scan_threads(path: Path, cores: int) -> int:
    """Choose the number of scanning threads; decompression of a packed file occupies another core."""
    if cores == 1:
        return 1
    with path.open("rb", buffering=0) as file:
        is_packed = unpack.is_packed(file.read(unpack.LONGEST_MAGIC))
    return min(MOST_SCANNERS, cores - is_packed)


def _read_trace_head(path: Path, text: TextWindow) -> tuple[bytes, int]:
    """Read the text before the event array: (text, its offset). The text is then inside the array."""
    text.grow()
    while len(text.view) < len(BYTE_ORDER_MARK) and not text.at_end:
        text.grow()
    if text.view[:3] == BYTE_ORDER_MARK:
        text.drop(len(BYTE_ORDER_MARK))
    start = text.offset
    searched = 0
    while True:
        view = text.view[:OUTSIDE_LIMIT]
        first = _FIRST_BYTE.search(view)
        if first is not None and first[0] == b"[":
            text.drop(first.end())
            return b"", start
        key = _EVENTS_KEY.search(view, searched)
        if key is not None:
            brace = 0 if first is None else first.start()
            head = bytes(view[brace : key.start()]).removeprefix(b"{")
            text.drop(key.end())
            return head, start + key.start() - len(head)
        if text.at_end or len(view) == OUTSIDE_LIMIT:
            raise make_format_error(path, _NO_EVENTS_LIST)
        searched = max(0, len(view) - _LONGEST_EVENTS_KEY)
        text.grow()


def _nothing_whole(packing_losses: Sequence[DataLoss]) -> Reason:
    """Explain a file without a complete event; its packing may be the cause."""
    kinds = [loss.kind for loss in packing_losses]
    if "packed-bomb" in kinds:
        what, remedy = f"{unpacked_size.BOMB}, without a complete event so far", "unpack it first"
        return Reason("archive", f"{what}: {remedy}", Data(what=what, remedy=remedy))
    if kinds:
        return replace(_NOTHING_WHOLE, text=f"{_NOTHING_WHOLE.text}: {unpack.LOSSES[kinds[0]]}")
    return _NOTHING_WHOLE


def _read_trace_tail(text: TextWindow, losses: ScanLosses) -> bytes:
    """Read the text after the event array, up to the limit. The text is then at its end."""
    start = text.offset
    parts: list[bytes] = []
    room = OUTSIDE_LIMIT
    while True:
        tail = bytes(text.view[:room])
        parts.append(tail)
        room -= len(tail)
        text.drop(len(text.view))
        if text.at_end:
            break
        text.grow()
    if text.offset - start > OUTSIDE_LIMIT:
        cut = start + OUTSIDE_LIMIT
        losses.add("metadata", cut, text.offset - cut)
    return b"".join(parts)


def _parse_trace_metadata(text: bytes, offset: int, losses: ScanLosses) -> dict[str, Any]:
    """Parse the keys and values of a head or tail that starts at `offset`."""
    members, faults = read_metadata_members(text)
    for fault in faults:
        losses.add("metadata", offset + fault.position, fault.length)
    return members


BLOCKS_AHEAD = 4
"""Most blocks that the thread may read ahead; bounds its memory."""

_POLL_SECONDS = 0.1
"""Interval at which a waiting producer checks whether its consumer has stopped."""


def prefetch_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same blocks in the same order, read ahead by a thread.

    An exception that `blocks` raises is raised here after the blocks before it.
    The thread ends with the iteration, even if the caller abandons it half-way.
    """
    handed: queue.Queue[bytes | BaseException | None] = queue.Queue(BLOCKS_AHEAD)
    given_up = threading.Event()

    def hand_over(item: bytes | BaseException | None) -> bool:
        while not given_up.is_set():
            try:
                handed.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for block in blocks:
                if not hand_over(block):
                    break
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            hand_over(error)
        else:
            hand_over(None)
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=produce, name="tracekit-inflate", daemon=True)
    thread.start()
    try:
        while (item := handed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        given_up.set()
        thread.join()


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
