# Interface of the C scanner for `scanner_c.py`.

from typing import Self, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int32]

# Distinct raw texts: int64 offsets (number of texts + 1), and the bytes that they index.
Texts: TypeAlias = tuple[Block, Block]

# Raw key, kind, whether texts may be unused or out of order, int32 rows, values, uint8 kinds, texts.
# Kind 1: int64; 2: float64; 3: int32 codes of texts; 4: mixed, where each value is int64, the bits of
# a double, or a code, by its entry in the uint8 kinds.
Column: TypeAlias = tuple[bytes, int, bool, Block, Block, Block | None, Texts | None]

# Bytes per code, codes of all rows, texts.
Label: TypeAlias = tuple[int, Block, Texts | None]

# Memory filled by a scan: a writable buffer.
class Block:
    def __buffer__(self, flags: int, /) -> memoryview: ...

# Result of a scan; `skipped` counts the rows left out for each of `skip_cats`. A time is (int64
# nanoseconds, 0 if none; whether each row has one; texts that Python must parse).
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

# The strict layer of `RECOVERY.md`. Names are raw texts with their quotes, except `keep_names`: prefixes
# of the names whose rows are kept although their category is in `skip_cats`.
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
    # Moves the rows of `other`; returns the bytes of the texts that it still remembers.
    def append(self, other: Scanner, /) -> int: ...

# Returns the groups that occur, in order of first use; replaces `codes[i]` by the index of
# `groups[codes[i]]` among them. All are int32; -1, as a code or a group, stays -1.
def renumber(codes: Codes, groups: Codes, /) -> Block: ...

# Numbers the pairs of kind and value in order of first use: (int32 codes, distinct pairs). Each pair
# takes 9 bytes: its value, then its kind.
def distinct(kinds: npt.NDArray[np.uint8], values: Integers, /) -> tuple[Block, Block]: ...
