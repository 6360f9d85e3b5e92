"""Bridge between frames of judges and pandas, for callers that still judge with pandas.

Each judge that moves to `model.tables.frame` removes its calls; the module goes with the last of them.
"""

from __future__ import annotations

import numpy as np

from tracekit.model.lazy_pandas import pd
from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.tables.keys import list_python_values


def to_frame(rows: pd.DataFrame) -> Frame:
    """Wrap the columns of a pandas frame; objects are texts."""
    columns = dict(Columns.from_frame(rows).arrays)
    for name, array in columns.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "O":
            columns[name] = texts(list_python_values(array))
    return Frame(columns, len(rows))


def to_pandas(rows: Frame) -> pd.DataFrame:
    """Make a pandas frame: texts are objects, NaN if missing; numbers that may be missing are nullable."""
    return Columns(len(rows), rows.columns).judged()
