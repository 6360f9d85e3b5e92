# What the C scanner shows to `native.py`.

from typing import Self, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int32]

# Distinct raw texts: int64 offsets, one more than there are texts, and the bytes they point into.
Texts: TypeAlias = tuple[Block, Block]

# Raw key, kind, whether texts may be unused or out of order, int32 rows, values, uint8 kinds, texts.
# Kind 1: int64; 2: float64; 3: int32 codes of texts; 4: int64, each with one of these kinds of its
# own (then the bits of a double, or a code).
Column: TypeAlias = tuple[bytes, int, bool, Block, Block, Block | None, Texts | None]

# How many bytes a code takes, the codes of all rows, their texts.
Label: TypeAlias = tuple[int, Block, Texts | None]

# Memory that a scan has filled: a writable buffer.
class Block:
    def __buffer__(self, flags: int, /) -> memoryview: ...

# All that a scan has read; `skipped` counts the rows left out, for each of `skip_cats`. A time is
# int64 nanoseconds, 0 where there are none; where there are; and the texts left to Python.
class Taken(TypedDict):
    ph: Label
    cat: Label
    name: Label
    pid: Label
    tid: Label
    ts: tuple[Block, Block, Column | None]
    dur: tuple[Block, Block, Column | None]
    args: list[Column]
    fields: list[Column]
    skipped: list[int]

# The strict layer of `RECOVERY.md`; names are raw texts with their quotes, but for `keep_names`: they are
# how the name of a row may begin that stays although its category is in `skip_cats`.
class Scanner:
    def __new__(
        cls,
        args: tuple[bytes, ...] | None,
        skip_args: tuple[bytes, ...],
        skip_cats: tuple[bytes, ...],
        max_event_bytes: int,
        keep_names: tuple[bytes, ...] = (),
        keep_fields: bool = True,
        /,
    ) -> Self: ...
    def feed(self, data: Buffer, /) -> tuple[int, int]: ...
    def finish(self) -> Taken: ...
    # The other has no rows then, but goes on to know texts: of so many bytes.
    def append(self, other: Scanner, /) -> int: ...

# The groups that occur, by first use; `codes[i]` becomes the place of `groups[codes[i]]` there. All
# are int32; -1, as a code or a group, stays -1.
def renumber(codes: Codes, groups: Codes, /) -> Block: ...

# (int32 codes, pairs): the pairs of a kind and a value are numbered by their first use; each distinct
# one is 9 bytes of `pairs`, its value and its kind.
def distinct(kinds: npt.NDArray[np.uint8], values: Integers, /) -> tuple[Block, Block]: ...
