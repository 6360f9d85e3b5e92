"""How finely the times of a source were recorded."""

from __future__ import annotations

import numpy as np

from tracekit.model.trace import Trace

MICROSECOND = 1_000
"""The coarsest clock of any profiler, ns."""

FEW_FRACTIONS, ROWS_A_FRACTION = 10, 8
"""Most different fractions of a microsecond, and fewest rows with each, of a coarse clock."""


def resolution_ns(trace: Trace) -> int:
    """The finest difference between times of the host rows, ns: from 1 to 1,000.

    Microseconds since 1970 in a double are a quarter of one apart; some writers round them to a tenth.
    """
    start = trace.numbers("host_ops", "ts_ns")
    if not len(start):
        return 1
    fractions = np.bincount((start - start[0]) % MICROSECOND, minlength=MICROSECOND).nonzero()[0]
    if len(fractions) <= FEW_FRACTIONS and len(start) >= ROWS_A_FRACTION * len(fractions):
        return int(np.diff(fractions, append=MICROSECOND).max())
    return int(np.gcd.reduce(np.append(fractions, MICROSECOND)))
