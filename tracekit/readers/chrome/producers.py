"""Program that wrote a Chrome trace, counts of rows not read, and detection of rows removed after the recording.

The first two serve `process.recording_kind`. Trace filters and samplers remove rows: torch numbers the operators of a
recording one by one (`External id`). In a complete trace, most numbers are consecutive. If at least every second one is
missing, rows were removed. Idle time, counts and shares then differ from those of the run.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import FILTERED_ROWS, Data
from tracekit.model.trace import Note
from tracekit.model.units import format_quantity
from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY
from tracekit.readers.chrome.scan import TraceScan
from tracekit.readers.chrome.tables import ChromeRows, find_process_names, take_sparse_integers

_OWN_KEYS = frozenset({"schemaVersion", "deviceProperties", "distributedInfo", "trace_id", "traceName"})
"""Keys outside the events that identify a trace of PyTorch's profiler."""

_EBPF = re.compile(r"(?<![a-z])e?bpf", re.IGNORECASE)
_TENSORFLOW = re.compile(r"/job:\w+/replica:\d+|/(?:device:)?(?:GPU|CPU):\d+ (?:Compute|Tensors)")
_JAX = re.compile(r"\A/(?:device:|host:)|\bXLA\b")
_MAX_LABELS = 1_000

NO_CATEGORY = "no category"
"""Label of rows without a category, in a process without a name."""


def count_recorded_rows(scan: TraceScan, rows: ChromeRows) -> dict[str, Any]:
    """Count the rows of a trace for `Trace.meta`.

    `complete_count`: rows with a duration, without the profiler's own span. `unread_counts`: the rows among
    them whose category is not read, by category. `producer` is set only if another program than
    PyTorch's profiler wrote the trace.
    """
    begins = [code for code, phase in enumerate(scan.ph.values) if phase in ("X", "B")]
    complete = np.isin(scan.ph.codes, begins)
    unread = rows.is_of("other") & complete
    count = int((complete & ~rows.is_of("window")).sum()) + sum(scan.skipped.values())
    facts: dict[str, Any] = {"complete_count": count}
    if unread.any():
        facts["unread_counts"] = _count_unread_by_label(scan, rows, unread)
    is_event = ~rows.is_of("meta")
    if is_event.any() and not (scan.skipped or _OWN_KEYS & scan.meta.keys() or _has_profiler_category(scan)):
        facts["producer"] = _identify_producer(scan, rows)
    return facts


def _has_profiler_category(scan: TraceScan) -> bool:
    """Check whether any row has a category of PyTorch's profiler."""
    return any(str(value).lower() in CLASS_OF_CATEGORY for value in scan.cat.values)


def _count_unread_by_label(scan: TraceScan, rows: ChromeRows, unread: npt.NDArray[np.bool_]) -> dict[str, int]:
    """Count unread rows by category, or by the name of their process if they have none."""
    counts: Counter[str] = Counter()
    codes, number = np.unique(scan.cat.codes[unread], return_counts=True)
    for code, count in zip(codes.tolist(), number.tolist(), strict=True):
        if code >= 0:
            counts[str(scan.cat.values[code])] += count
    bare = unread & (scan.cat.codes < 0)
    if bare.any():
        names = find_process_names(rows)
        of_process, number = np.unique(rows.thread_process[rows.thread[bare]], return_counts=True)
        for process, count in zip(of_process.tolist(), number.tolist(), strict=True):
            counts[names.get(process, NO_CATEGORY)] += count
    return dict(counts.most_common(_MAX_LABELS))


def _identify_producer(scan: TraceScan, rows: ChromeRows) -> str:
    """Identify the other program that wrote the trace, as a kind of recording."""
    processes = list(find_process_names(rows).values())
    categories = [value for value in scan.cat.values if isinstance(value, str)]
    told = [*processes, *categories, *_list_metadata_strings(scan.meta)]
    if any(_EBPF.search(text) for text in told):
        return "ebpf"
    if any(_TENSORFLOW.search(name) for name in processes):
        return "tensorflow"
    if any(_JAX.search(name) for name in processes):
        return "jax"
    return "chrome-json"


def _list_metadata_strings(meta: dict[str, Any]) -> list[str]:
    """List keys and strings of the metadata outside the events, one level deep."""
    texts = []
    for key, value in meta.items():
        values = value.values() if isinstance(value, dict) else (value,)
        texts += [key, *(text for text in values if isinstance(text, str))]
    return texts


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
