"""What recurs in a recording without step marks: kernels and annotated ranges, and how long until each comes again.

A window that somebody cut out of a run is no step. What repeats in it is a unit of work that another such window
can be held against.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.stages import is_collective
from tracekit.model.trace import Trace
from tracekit.process.repetition import pattern
from tracekit.process.steps import Steps, windows

Ints = npt.NDArray[np.int64]

LEAST_TIMES = 6
"""What comes less often has too few intervals to be a rhythm."""

MOST_NAMES, MOST_ROWS = 4, 200
"""Most names of a device or thread, those with most time; and most rows of each: beyond it recurrences are put together."""

LEAST_SPAN = 0.8
"""What recurs during less than this part of the recording does not pace it."""


def is_unmarked(steps: Steps, part: str | None) -> bool:
    """Whether no mark, file name or capture range of the program says which step a source is of."""
    numbered_capture = part is not None and part.startswith("capture")
    unnumbered = steps.origin == "file" and bool(steps.step.missing.all())
    return bool(len(steps)) and unnumbered and not numbered_capture


def recurrences(trace: Trace) -> pd.DataFrame | None:
    """One row a recurrence in a source without step marks, in order; None where there is none, and of any other source.

    kind: launch (a kernel on one device) or range (of one thread, numbers in its name as `#`). dur_ns: from the
    start of the first of `count` recurrences to the start of what follows them.
    """
    steps = trace.derived(windows).step_rows
    if not is_unmarked(steps, trace.source.part):
        return None
    least_span = LEAST_SPAN * float(steps.end_ns.max() - steps.ts_ns.min())
    parts = [*_launches(trace, least_span), *_ranges(trace, least_span)]
    return pd.concat(parts, ignore_index=True) if parts else None


def _launches(trace: Trace, least_span: float) -> Iterator[pd.DataFrame]:
    """The kernels of every device that recur."""
    ops = trace.get("device_ops")
    ops = ops[(ops["kind"] == "kernel").to_numpy()]
    device = ops["device"].to_numpy(np.int64, na_value=-1)
    names = ops["name"].cat.categories
    code: Ints = ops["name"].cat.codes.to_numpy().astype(np.int64)
    for key, starts in _recurring(ops, device, code, least_span):
        yield _rows("launch", str(names[key[1]]), None if key[0] < 0 else key[0], starts)


def _ranges(trace: Trace, least_span: float) -> Iterator[pd.DataFrame]:
    """The annotated ranges of every thread that recur; not those of single collectives."""
    ops = trace.get("host_ops")
    names = [str(name) for name in ops["name"].cat.categories]
    patterns = pd.Categorical([None if is_collective(name) else pattern(name) for name in names])
    codes: Ints = np.asarray([*patterns.codes, -1], np.int64)
    code: Ints = codes[ops["name"].cat.codes.to_numpy()]
    is_range = (ops["kind"] == "range").to_numpy() & (code >= 0)
    ops, code = ops[is_range], code[is_range]
    thread = ops["thread"].to_numpy(np.int64, na_value=-1)
    for key, starts in _recurring(ops, thread, code, least_span):
        yield _rows("range", str(patterns.categories[key[1]]), None, starts)


def _recurring(
    ops: pd.DataFrame, where: Ints, name: Ints, least_span: float
) -> Iterator[tuple[tuple[int, int], Ints]]:
    """((place, name), its starts in order) of those with most time in each place, if they come often enough."""
    start = ops["ts_ns"].to_numpy(np.int64)
    frame = pd.DataFrame(
        {"where": where, "name": name, "start": start, "ns": ops["dur_ns"].to_numpy()}
    )
    recurring = frame.groupby(["where", "name"], sort=True).agg(
        times=("start", "size"), first=("start", "min"), last=("start", "max"), ns=("ns", "sum")
    )
    recurring = recurring[
        (recurring["times"] >= LEAST_TIMES) & (recurring["last"] - recurring["first"] >= least_span)
    ]
    order = recurring.sort_values("ns", ascending=False, kind="stable")
    for place, code in order.groupby("where", sort=True).head(MOST_NAMES).index:
        yield (int(place), int(code)), np.sort(start[(where == place) & (name == code)])


def _rows(kind: str, name: str, device: int | None, starts: Ints) -> pd.DataFrame:
    """The rows of one thing that recurs; the last ones that fill no row are left out."""
    count = -(-(len(starts) - 1) // MOST_ROWS)
    edges = starts[::count]
    return pd.DataFrame(
        {
            "kind": kind,
            "name": name,
            "device": pd.array([device] * (len(edges) - 1), dtype="Int64"),
            "position": np.arange(len(edges) - 1),
            "ts_ns": edges[:-1],
            "dur_ns": np.diff(edges),
            "count": count,
        }
    )
