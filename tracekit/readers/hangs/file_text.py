"""The whole content of a small file, decompressed and bounded, and the rank in its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tracekit.model.errors import make_format_error, make_os_read_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.model.trace import Source
from tracekit.readers import unpack
from tracekit.readers.loss import DataLoss

MAX_BYTES = 2**27
"""Largest file that is read. A dump of 2,000 records takes one to four MB."""

_FORMAT_SUFFIX = re.compile(r"(?:\.(?:pickle|pkl|json|bin|txt|log|dump|out))?(?:\.(?:gz|zst|xz|bz2|zip))?\Z")
_NAMED_RANK = re.compile(r"(?<![0-9A-Za-z])(?:global[-_]?)?rank[-_]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,6})\Z")
_NAMED_PID = re.compile(r"(?<![0-9A-Za-z])pid[-_]?([0-9]{1,10})(?![0-9])", re.IGNORECASE)


def read_whole_file(path: Path, on_bytes: Callable[[int], None] | None) -> bytes:
    """Read a file's bytes, decompressed. Raises `TraceFormatError` for one that is damaged or too large."""
    try:
        try:
            return _unpack_whole_file(path, on_bytes, careful=False)
        except unpack.Unproven:
            return _unpack_whole_file(path, on_bytes, careful=True)
    except OSError as error:
        raise make_os_read_error(path, error) from error
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error


def _unpack_whole_file(path: Path, on_bytes: Callable[[int], None] | None, *, careful: bool) -> bytes:
    """Decompress a whole file. Raises `TraceFormatError` for a loss or a file over the limit."""
    data = bytearray()
    losses: list[DataLoss] = []
    for block in unpack.unpack_blocks(path, losses, careful=careful, on_bytes=on_bytes):
        data += block
        if len(data) > MAX_BYTES:
            reason = Reason("too-many", f"over {MAX_BYTES:,} bytes", Data(count=len(data), most=MAX_BYTES))
            raise make_format_error(path, reason, "lower TORCH_FR_BUFFER_SIZE")
    if losses:
        problem = f"the compressed file is cut off or damaged at byte {losses[0].offset:,}"
        raise make_format_error(path, Reason("cut-dump", problem, Data(offset=losses[0].offset)), "copy it again")
    return bytes(data)


def add_named_process(source: Source, *, may_end_in_rank: bool = False) -> Source:
    """Add the rank and pid in the name of a file: `nccl_trace_rank_3`, `stacks_rank2_pid77.txt`.

    Users rename dumps, as in `nccl_trace_rank_container-node02_5`: with `may_end_in_rank`, a number at the end is the rank.
    """
    stem = _FORMAT_SUFFIX.sub("", source.path.name)
    ranks = set(_NAMED_RANK.findall(stem))
    if not ranks and may_end_in_rank:
        ranks = set(_LAST_NUMBER.findall(stem))
    pids = set(_NAMED_PID.findall(stem))
    if source.rank is None and len(ranks) == 1:
        source = replace(source, rank=int(ranks.pop()))
    if source.pid is None and len(pids) == 1:
        source = replace(source, pid=int(pids.pop()))
    return source
