"""Detection of traces from which rows were removed after the recording, by trace filters or samplers.

torch numbers the operators of a recording one by one (`External id`). In a complete trace, most numbers
are consecutive. If at least every second one is missing, rows were removed. Idle time, counts and
shares then differ from those of the run.
"""

from __future__ import annotations

import numpy as np

from tracekit.model.codes import FILTERED_ROWS, Data
from tracekit.model.trace import Note
from tracekit.model.units import format_quantity
from tracekit.readers.chrome.tables import ChromeRows, take_sparse_integers

_KEYS = ("External id", "external id")
_LEAST_OPS = 100


def note_filtered(rows: ChromeRows, source: str) -> Note | None:
    """Note the share of operators left in a filtered trace; None for a complete trace."""
    column = next((rows.args[key] for key in _KEYS if key in rows.args), None)
    positions = rows.find_rows("op", "range")
    if column is None or len(positions) < _LEAST_OPS:
        return None
    numbers = take_sparse_integers(column, positions)
    known = np.unique(numbers.values[~numbers.missing])
    if len(known) < _LEAST_OPS or known[-1] - known[0] < 2 * len(known):
        return None
    if np.median(np.diff(known)) < 2:
        return None
    recorded = int(known[-1] - known[0]) + 1
    left = format_quantity(len(known) / recorded, "ratio")
    message = f"rows were removed after the recording: {left} of the operators are left"
    count = recorded - len(known)
    return Note("warning", FILTERED_ROWS, message, source, count, data=Data(left=len(known)))
