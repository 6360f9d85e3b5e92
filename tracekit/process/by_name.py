"""Rows by their recorded names: each name is looked at once, however many rows have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]


def named(column: pd.Series[Any], rows: Ints) -> npt.NDArray[np.object_]:
    """The recorded names at these positions of a name column; None for -1 and for rows without a name."""
    names = np.array([*column.cat.categories, None], object)
    texts: npt.NDArray[np.object_] = names[np.append(column.cat.codes.to_numpy(), -1)[rows]]
    return texts


def is_named(column: pd.Series[Any], wanted: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Whether the name of each row of a name column is wanted; False for a row without one."""
    chosen = [*(bool(wanted(str(name))) for name in column.cat.categories), False]
    chosen_rows: npt.NDArray[np.bool_] = np.array(chosen, np.bool_)[column.cat.codes.to_numpy()]
    return chosen_rows
