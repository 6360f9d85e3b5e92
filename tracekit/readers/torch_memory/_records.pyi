# What the passes over records show to `columns.py` and `stacks.py`. Arrays have an item a row; `place` and `first` are of int64.

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

# How many rows were taken into `values` and `missing` (bool) before one that Python has to look at: all, or its place.
def integers(
    rows: list[dict[str, Any]], key: str, values: Ints, missing: npt.NDArray[np.bool_], /
) -> int: ...

# How many different objects (None for nothing) the rows have at a key: `place` is the number of each row's, in order
# of appearance, `first` the first row of each number.
def identified(rows: list[dict[str, Any]], key: str, place: Ints, first: Ints, /) -> int: ...

# The same for lists by the objects that they hold, and None.
def alike(lists: list[list[Any] | None], place: Ints, first: Ints, /) -> int: ...

# All of that in one pass: (how many rows have it, how many things) for each key that any row has or that is asked for; None
# where a row is none of a snapshot, for -1 things Python has to look at the key. Asked for are (key, values, missing) of
# integers, (key, place, first) of what `identified` tells apart, and the same of the lists that `alike` does.
def taken(
    rows: list[dict[str, Any]],
    integers: tuple[tuple[str, Ints, npt.NDArray[np.bool_]], ...],
    things: tuple[tuple[str, Ints, Ints], ...],
    stacks: tuple[tuple[str, Ints, Ints], ...],
    /,
) -> dict[str, tuple[int, int]] | None: ...
