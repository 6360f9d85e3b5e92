"""Time resolution of a source."""

from __future__ import annotations

import numpy as np

from tracekit.model.trace import Trace

MICROSECOND = 1_000
"""Coarsest clock of any profiler, ns."""

FEW_FRACTIONS, ROWS_A_FRACTION = 10, 8
"""Coarse clock: at most this many distinct fractions of a microsecond, at least this many rows for each."""


def measure_time_resolution(trace: Trace) -> int:
    """Measure the finest difference between times of the host rows: 1 to 1,000 ns.

    A double that holds microseconds since 1970 resolves a quarter of a microsecond; some writers round to a
    tenth.
    """
    start = trace.numbers("host_ops", "ts_ns")
    if not len(start):
        return 1
    fractions = np.bincount((start - start[0]) % MICROSECOND, minlength=MICROSECOND).nonzero()[0]
    if len(fractions) <= FEW_FRACTIONS and len(start) >= ROWS_A_FRACTION * len(fractions):
        return int(np.diff(fractions, append=MICROSECOND).max())
    return int(np.gcd.reduce(np.append(fractions, MICROSECOND)))
