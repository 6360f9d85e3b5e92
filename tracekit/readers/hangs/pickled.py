"""Loading of a flight recorder's pickle without resolving any name.

`pickle.load` would run any code that the file names. A dump needs no name at all: texts, numbers, lists, pairs and
dictionaries with texts as keys. Dumps in torch's own words are recognized by a pattern and then loaded by the standard
library's C loader, with all names refused. All others are loaded by a machine of our own, which knows 30 instructions and
refuses every other one, with the byte where it is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tracekit.model.errors import TraceFormatError, make_format_error
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.readers.chrome.values import join_surrogates
from tracekit.readers.torch_memory.opcodes import has_too_many_containers, unpickle

PROTOCOLS = (2, 3, 4, 5)

_CUT = "the dump was cut off while it was written, or copied in part: use another rank's, or dump again"


def _compile_plain_dump() -> re.Pattern[bytes]:
    """Build the pattern of a dump in torch's own words.

    A pair follows two texts or values of the memo and is never put there: so pairs cannot nest, which would overflow the
    stack or take forever when one is a key.
    """
    lengths = [re.escape(bytes([n])) + rb"\x00\x00\x00" + (b".{%d}" % n if n else b"") for n in range(256)]
    put = rb"(?:q.|r...\x00|\x94)"
    item = rb"(?:h.|j...\x00|X(?:" + b"|".join(lengths) + rb")" + put + rb"?+)"
    longs = [re.escape(bytes([n])) + (b".{%d}" % n if n else b"") for n in range(9)]
    parts = (
        item + item + rb"\x86(?![qr\x94])",
        item,
        rb"[}\](euasN\x88\x89]++",
        rb"K.|M..|J.{4}|G.{8}",
        rb"\x8a(?:" + b"|".join(longs) + rb"|\x09.{8}\x00)",
        put,
    )
    return re.compile(rb"\x80[\x02-\x05](?:" + rb"|".join(parts) + rb")*+\.", re.DOTALL)


_PLAIN = _compile_plain_dump()


class _PickleError(Exception):
    """Any fault of the pickle, before it is known where."""


class _Machine:
    """State of the loader: the rest of the bytes, the stack with its marks, and the memo."""

    __slots__ = ("data", "marks", "memo", "offset", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 2
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        """Take the next bytes."""
        end = self.offset + count
        if end > len(self.data):
            raise EOFError
        piece = self.data[self.offset : end]
        self.offset = end
        return piece

    def number(self, size: int) -> int:
        """Take an unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def pop_marked(self) -> list[Any]:
        """Pop the values above the last mark."""
        if not self.marks:
            raise _PickleError("no mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def pop(self) -> Any:
        """Pop one value, not below a mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise _PickleError("an empty stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """Get the value at the top, which is a list or dictionary."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise _PickleError(f"no {kind.__name__} to fill")
        return self.stack[-1]


def load_pickled_dump(data: bytes, path: Path) -> Any:
    """Load the object of a pickle. Raises `TraceFormatError` for any instruction that a dump does not need."""
    if len(data) < 2 or data[0] != 0x80 or data[1] not in PROTOCOLS:
        raise make_format_error(
            path, Reason("no-dump", "not a pickle of protocol 2 to 5", Data(offset=0)), "", "byte 0"
        )
    if has_too_many_containers(len(data), data.count(b"}"), data.count(b"]")):
        reason = Reason("no-dump", "more dictionaries and lists than any dump", Data(offset=0))
        raise make_format_error(path, reason, "it was not loaded: it may be harmful")
    if _PLAIN.fullmatch(data):
        try:
            return unpickle(data, path)
        except TraceFormatError:
            pass  # the machine finds the byte
    return _run_machine(data, path)


def _run_machine(data: bytes, path: Path) -> Any:
    """Load a pickle instruction by instruction. Raises `TraceFormatError` with the byte of a fault."""
    machine = _Machine(data)
    stack, steps = machine.stack, _STEPS
    at = machine.offset
    try:
        while True:
            at = machine.offset
            code = data[at]
            machine.offset = at + 1
            if code == _STOP:
                break
            step = steps.get(code)
            if step is None:
                _refuse_instruction(path, code, at)
            step(machine)
    except (EOFError, IndexError) as error:
        problem = f"the dump ends at byte {len(data):,}, in the middle"
        raise make_format_error(path, Reason("cut-dump", problem, Data(offset=at)), _CUT, f"byte {at}") from error
    except _PickleError as fault:
        reason = Reason("no-dump", f"no dump of a flight recorder: {fault} at byte {at:,}", Data(offset=at))
        raise make_format_error(path, reason, "", f"byte {at}") from fault
    if len(stack) != 1 or machine.marks:
        reason = Reason("no-dump", f"no dump of a flight recorder: {len(stack)} objects", Data(offset=at))
        raise make_format_error(path, reason, "", f"byte {at}")
    return stack[0]


def _refuse_instruction(path: Path, code: int, offset: int) -> NoReturn:
    """Raise the error for an instruction that no dump needs."""
    from pickletools import opcodes

    name = next((op.name for op in opcodes if op.code.encode("latin-1") == bytes([code])), f"0x{code:02x}")
    reason = Reason("no-dump", f"instruction {name} at byte {offset:,} is not allowed", Data(offset=offset))
    raise make_format_error(path, reason, "no dump needs it, so it was not loaded; it may be harmful", f"byte {offset}")


def _push_text(length_bytes: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        text = machine.take(machine.number(length_bytes)).decode("utf-8", "replace")
        machine.stack.append(join_surrogates(text))

    return push


def _push_unsigned(size: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        machine.stack.append(machine.number(size))

    return push


def _push_integer(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _push_long(machine: _Machine) -> None:
    size = machine.number(1)
    value = int.from_bytes(machine.take(size), "little", signed=True)
    if not -(2**63) <= value < 2**64:
        raise _PickleError("an integer of over 64 bits")
    machine.stack.append(value)


def _push_float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _push_value(value: bool | tuple[()] | None) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        machine.stack.append(value)

    return push


def _push_list(machine: _Machine) -> None:
    machine.stack.append([])


def _push_dictionary(machine: _Machine) -> None:
    machine.stack.append({})


def _set_mark(machine: _Machine) -> None:
    machine.marks.append(len(machine.stack))


def _append_one(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _append_many(machine: _Machine) -> None:
    values = machine.pop_marked()
    machine.top(list).extend(values)


def _set_pairs(machine: _Machine, values: list[Any]) -> None:
    target = machine.top(dict)
    if len(values) % 2:
        raise _PickleError("a key without a value")
    keys = values[::2]
    if not all(type(key) is str for key in keys):
        raise _PickleError("a key that is not a text")
    target.update(zip(keys, values[1::2], strict=True))


def _set_one(machine: _Machine) -> None:
    value = machine.pop()
    _set_pairs(machine, [machine.pop(), value])


def _set_many(machine: _Machine) -> None:
    _set_pairs(machine, machine.pop_marked())


def _make_tuple(count: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(values)))

    return make


def _make_marked_tuple(machine: _Machine) -> None:
    machine.stack.append(tuple(machine.pop_marked()))


def _put(index_bytes: int) -> Callable[[_Machine], None]:
    def put(machine: _Machine) -> None:
        index = machine.number(index_bytes)
        if not machine.stack:
            raise _PickleError("an empty stack")
        machine.memo[index] = machine.stack[-1]

    return put


def _put_next(machine: _Machine) -> None:
    if not machine.stack:
        raise _PickleError("an empty stack")
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(index_bytes: int) -> Callable[[_Machine], None]:
    def get(machine: _Machine) -> None:
        index = machine.number(index_bytes)
        if index not in machine.memo:
            raise _PickleError("no such place in the memo")
        machine.stack.append(machine.memo[index])

    return get


def _skip_frame(machine: _Machine) -> None:
    machine.take(8)


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("h"): _get(1),
    ord("j"): _get(4),
    ord("q"): _put(1),
    ord("r"): _put(4),
    0x94: _put_next,
    ord("X"): _push_text(4),
    0x8C: _push_text(1),
    ord("K"): _push_unsigned(1),
    ord("M"): _push_unsigned(2),
    ord("J"): _push_integer,
    0x8A: _push_long,
    ord("G"): _push_float,
    ord("N"): _push_value(value=None),
    0x88: _push_value(value=True),
    0x89: _push_value(value=False),
    ord("]"): _push_list,
    ord("}"): _push_dictionary,
    ord(")"): _push_value(value=()),
    ord("("): _set_mark,
    ord("a"): _append_one,
    ord("e"): _append_many,
    ord("s"): _set_one,
    ord("u"): _set_many,
    0x85: _make_tuple(1),
    0x86: _make_tuple(2),
    0x87: _make_tuple(3),
    ord("t"): _make_marked_tuple,
    0x95: _skip_frame,
}
"""Every instruction that a dump may contain, by its byte: none names code."""
