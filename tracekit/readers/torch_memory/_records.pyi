# Interface of the C record passes to `columns.py` and `stacks.py`. Arrays have one item per row; `place` and `first` are int64.

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

# Count the rows read into `values` and `missing` (bool) before the first that Python must check; all rows if none.
def integers(rows: list[dict[str, Any]], key: str, values: Ints, missing: npt.NDArray[np.bool_], /) -> int: ...

# Count the distinct objects (None if absent) of the rows at a key: `place` is the number of each row's object, in order
# of appearance, `first` the first row of each number.
def identified(rows: list[dict[str, Any]], key: str, place: Ints, first: Ints, /) -> int: ...

# The same for lists, compared by the objects in them, and None.
def alike(lists: list[list[Any] | None], place: Ints, first: Ints, /) -> int: ...

# All of the above in one pass: (rows with the key, distinct objects) for each key that any row has or that is requested. -1
# objects: Python must check the key. None: a row is not a snapshot's. Requested are (key, values, missing) of integers,
# (key, place, first) of objects as in `identified`, and the same of lists as in `alike`.
def taken(
    rows: list[dict[str, Any]],
    integers: tuple[tuple[str, Ints, npt.NDArray[np.bool_]], ...],
    things: tuple[tuple[str, Ints, Ints], ...],
    stacks: tuple[tuple[str, Ints, Ints], ...],
    /,
) -> dict[str, tuple[int, int]] | None: ...
