"""Rows by their recorded names: each name is looked at once, however many rows have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.tables.arrays import Coded, bare

Ints = npt.NDArray[np.int64]


def named(column: Coded | pd.Series[Any], rows: Ints) -> npt.NDArray[np.object_]:
    """The recorded names at these positions of a name column; None for -1 and for rows without a name."""
    names = _coded(column)
    texts: npt.NDArray[np.object_] = np.array([*names.texts, None], object)[codes_at(names, rows)]
    return texts


def codes_at(names: Coded, rows: Ints) -> Ints:
    """The codes of the names at these positions; -1 for -1 and for rows without a name."""
    codes: Ints = np.append(names.codes, -1)[rows]
    return codes


def is_named(
    column: Coded | pd.Series[Any], wanted: Callable[[str], object]
) -> npt.NDArray[np.bool_]:
    """Whether the name of each row of a name column is wanted; False for a row without one."""
    names = _coded(column)
    chosen = [*(bool(wanted(name)) for name in names.texts), False]
    chosen_rows: npt.NDArray[np.bool_] = np.array(chosen, np.bool_)[names.codes]
    return chosen_rows


def _coded(column: Coded | pd.Series[Any]) -> Coded:
    names = column if isinstance(column, Coded) else bare(column.array)
    assert isinstance(names, Coded), "names are coded"
    return names
