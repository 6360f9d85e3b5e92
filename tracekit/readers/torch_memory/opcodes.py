"""Validation of a pickle, and its loading without resolving any name: accepts only what a memory snapshot consists of.

Loading runs about one instruction per byte. A snapshot needs 26 of the 68 instructions: dictionaries, lists, texts,
numbers, and pairs of small integers. None of them can name code. The remaining ways to attack the loader are blocked
too: declared lengths, memo indices, nested tuples, and integers that collide as keys.
"""

from __future__ import annotations

import _pickle
import gc
import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tracekit.model.errors import TraceFormatError, make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason

PROTOCOLS = (2, 3, 4, 5)


native: Any
try:
    native = import_module("tracekit.readers.torch_memory._harmless")
except ImportError:
    native = None
"""The scan written in C; None if not built."""

_NO_SNAPSHOT = "no snapshot needs it, so it was not loaded; it may be harmful"
_DAMAGED = "the file is cut off or damaged: copy it again"

_PER_CONTAINER, _PER_DICT, _FREE_CONTAINERS = 8, 16, 4096
"""Bytes per container (dictionary or list), bytes per dictionary, and containers allowed in addition.

In memory the smallest dictionary takes 250 bytes with its row; the smallest real one takes 23 bytes of a pickle.
"""


_AT_ONCE = 2**18
"""Bytes compared at once; they fit in the CPU cache."""


def _write_length_pattern(prefix: bytes, lengths: range) -> bytes:
    """Build a pattern of texts or numbers after a length byte."""
    cases = [re.escape(bytes([n])) + (b".{%d}" % n if n else b"") for n in lengths]
    return prefix + b"(?:" + b"|".join(cases) + b")"


def _compile_harmless_run(low_bytes: int) -> re.Pattern[bytes]:
    """Build the pattern of the longest run of harmless instructions; memo indices have up to `low_bytes` bytes.

    A pair (TUPLE2) is accepted only after two 32-bit integers. Tuples therefore cannot nest, which would overflow
    the stack when hashed, nor be chosen to collide. Integers are limited to 64 bits for the same reason.
    """
    small = rb"(?:K.|M..|J.{4})"
    place = b"r" + b"." * low_bytes + rb"\x00" * (4 - low_bytes)
    parts = (  # most frequent first, and repeated instructions as runs: halves the time
        rb"j....(?:j....)*+",  # LONG_BINGET
        rb"h.(?:h.)*+",  # BINGET
        rb"[\x94}\](eusaN\x88\x89]++",  # MEMOIZE, EMPTY_DICT, EMPTY_LIST, MARK; APPEND(S), SETITEM(S), NONE, booleans
        small + rb"(?:" + small + rb"\x86)?+",  # BININT1, BININT2, BININT; two of them with TUPLE2
        _write_length_pattern(rb"\x8a", range(8, -1, -1)),  # LONG1
        rb"\x8a\x09.{8}\x00",  # LONG1 of 2**63 to 2**64 - 1
        _write_length_pattern(rb"\x8c", range(256)),  # SHORT_BINUNICODE
        rb"q.",  # BINPUT
        rb"G.{8}",  # BINFLOAT
        place,  # LONG_BINPUT
    )
    return re.compile(rb"(?:" + rb"|".join(parts) + rb")*+", re.DOTALL)


def _make_skip_function(place_bytes: int) -> Callable[[bytes, int], int]:
    """Build a function of a pickle and an offset that finds the end of the longest run of harmless instructions."""
    if native is not None:
        return lambda data, offset: int(native.harmless_until(data, offset, place_bytes))
    pattern = _compile_harmless_run(place_bytes)

    def skip(data: bytes, offset: int) -> int:
        run = pattern.match(data, offset)
        assert run is not None, "the pattern matches nothing as well"
        return run.end()

    return skip


def check_pickle(data: bytes, path: Path) -> int:
    """Validate a pickle and count its dictionaries. Raises `TraceFormatError` with the forbidden instruction and its byte."""
    size = len(data)
    if size < 2 or data[0] != 0x80 or data[1] not in PROTOCOLS:
        raise TraceFormatError(
            path,
            "not a pickle of protocol 2 to 5, as memory snapshots are",
            "torch.cuda.memory._dump_snapshot writes one",
            "byte 0",
            code="no-snapshot",
        )
    # Limits memo indices to the length of the file, because the loader allocates all indices below.
    skip = _make_skip_function(min((size.bit_length() - 1) // 8, 3))
    offset = 2
    while True:
        offset = skip(data, offset)
        code = data[offset : offset + 1]
        if code == b".":
            break
        offset = _find_instruction_end(data, offset, code, path)
    _check_pickle_padding(data, offset + 1, path)
    dicts, lists = _count_byte(data, b"}"), _count_byte(data, b"]")
    if has_too_many_containers(size, dicts, lists):
        problem = f"some {dicts + lists:,} dictionaries and lists in {size:,} bytes are no snapshot"
        raise build_too_many_error(path, problem)
    return dicts


def _count_byte(data: bytes, code: bytes) -> int:
    """Count a byte, four times faster than `bytes.count`, which searches for each occurrence."""
    count, code_number = 0, code[0]
    for start in range(0, len(data), _AT_ONCE):
        some = np.frombuffer(data, np.uint8, min(_AT_ONCE, len(data) - start), start)
        count += int(np.count_nonzero(some == code_number))
    return count


def has_too_many_containers(size: int, dicts: int, lists: int) -> bool:
    """Check whether a file of this size has more dictionaries and lists than any snapshot."""
    max_containers, most_dicts = size // _PER_CONTAINER, size // _PER_DICT
    return dicts + lists > max_containers + _FREE_CONTAINERS or dicts > most_dicts + _FREE_CONTAINERS


def _find_instruction_end(data: bytes, offset: int, code: bytes, path: Path) -> int:
    """Find the end of the instruction at `offset`, which has its own length or memo index."""
    size = len(data)
    if code == b"\x95" and offset + 9 <= size:  # FRAME
        if int.from_bytes(data[offset + 1 : offset + 9], "little") <= size - offset - 9:
            return offset + 9
        raise _build_cut_instruction_error(path, offset, code)
    if code == b"X" and offset + 5 <= size:  # BINUNICODE
        end = offset + 5 + int.from_bytes(data[offset + 1 : offset + 5], "little")
        if end <= size:
            return end
        raise _build_cut_instruction_error(path, offset, code)
    if code == b"r" and offset + 5 <= size:  # LONG_BINPUT
        if int.from_bytes(data[offset + 1 : offset + 5], "little") <= offset:
            return offset + 5
        problem = f"instruction {_name_instruction(code)} at byte {offset:,}: no such place in the memo"
        raise _build_no_snapshot_error(path, problem, offset)
    raise _build_instruction_error(data, offset, code, path)


def _build_instruction_error(data: bytes, offset: int, code: bytes, path: Path) -> TraceFormatError:
    """Build the error for where the scan stopped: end of file, a cut instruction, or a forbidden one."""
    if not code:
        return _build_cut_pickle_error(path, f"the pickle ends at byte {offset:,} without STOP", offset)
    name = _name_instruction(code)
    if code in _LENGTHS and _is_instruction_cut(data, offset, code):
        return _build_cut_instruction_error(path, offset, code)
    problem = f"instruction {name} at byte {offset:,} is not allowed"
    if code == b"\x86":
        problem += ": only a pair of small integers is"
    elif code == b"\x8a":
        problem += ": an integer of over 64 bits"
    elif code == b"\x80":
        problem += ": one file, one protocol"
    return _build_no_snapshot_error(path, problem, offset)


_LENGTHS = {b"h": 2, b"q": 2, b"K": 2, b"M": 3, b"J": 5, b"j": 5, b"r": 5, b"X": 5, b"G": 9, b"\x95": 9}
_COUNTED = (b"\x8a", b"\x8c")
_LENGTHS |= dict.fromkeys(_COUNTED, 2)
"""Fixed length in bytes of instructions that the end of the file may cut."""


def _is_instruction_cut(data: bytes, offset: int, code: bytes) -> bool:
    """Check whether the file ends inside the instruction."""
    length = _LENGTHS[code]
    if code in _COUNTED and offset + 1 < len(data):
        length += data[offset + 1]
    return offset + length > len(data)


def _build_cut_instruction_error(path: Path, offset: int, code: bytes) -> TraceFormatError:
    """Build the error for an instruction that exceeds the rest of the file."""
    problem = f"instruction {_name_instruction(code)} at byte {offset:,} goes beyond the end of the file"
    return _build_cut_pickle_error(path, problem, offset)


def _build_no_snapshot_error(path: Path, problem: str, offset: int) -> TraceFormatError:
    """Build the error for an instruction that snapshots never use."""
    reason = Reason("no-snapshot", problem, Data(offset=offset))
    return make_format_error(path, reason, _NO_SNAPSHOT, f"byte {offset}")


def _build_cut_pickle_error(path: Path, problem: str, offset: int) -> TraceFormatError:
    """Build the error for a pickle that ends too early."""
    data = Data(offset=offset)
    return TraceFormatError(path, problem, _DAMAGED, f"byte {offset}", code="cut-pickle", data=data)


def build_too_many_error(path: Path, problem: str) -> TraceFormatError:
    """Build the error for more dictionaries and lists than a snapshot can have."""
    hint = "it was not loaded: it may be harmful"
    return TraceFormatError(path, problem, hint, "shape", code="too-many")


def _check_pickle_padding(data: bytes, offset: int, path: Path) -> None:
    """Raise `TraceFormatError` unless only zero bytes follow the end of the pickle."""
    if data.count(0, offset) != len(data) - offset:
        problem = f"{len(data) - offset:,} bytes follow the end of the pickle"
        reason = Reason("no-snapshot", problem, Data(offset=offset))
        raise make_format_error(path, reason, "a snapshot is one pickle", f"byte {offset}")


def _name_instruction(code: bytes) -> str:
    """Look up the name of an instruction."""
    from pickletools import opcodes

    names = (op.name for op in opcodes if op.code.encode("latin-1") == code)
    return next(names, f"0x{code[0]:02x}")


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block: millions of new objects would trigger it thousands of times."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _RestrictedUnpickler(_pickle.Unpickler):
    """The C unpickler of the standard library, with all names refused."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse every name: a snapshot needs no classes or functions."""
        raise pickle.UnpicklingError(f"the name {module_name}.{global_name} is not allowed")

    def persistent_load(self, _pid: object, /) -> NoReturn:
        """Refuse persistent ids: a snapshot is self-contained."""
        raise pickle.UnpicklingError("references to other files are not allowed")


def unpickle(data: bytes, path: Path) -> Any:
    """Load the object of a pickle. Raises `TraceFormatError` if it does not load."""
    # A buffered reader returns large blocks even for protocols 2 and 3, which have no frames.
    stream = io.BufferedReader(io.BytesIO(data), 2**17)
    try:
        return _RestrictedUnpickler(stream).load()
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error
    except Exception as error:  # the loader raises whatever its operations raise
        problem = f"the pickle does not load: {type(error).__name__}: {str(error)[:200]}"
        reason = Reason("no-snapshot", " ".join(problem.split()))
        raise make_format_error(path, reason, "the file is damaged") from error
