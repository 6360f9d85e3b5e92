"""Timelines of Ray's tasks: when each task ran on each worker, in the format of Chrome traces.

`ray timeline` and `ray.timeline()` write a list whose rows name node and worker as text; the dashboard's download
numbers both and names the numbers in rows of metadata. The Chrome scanner reads the rows.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Frames, trim_texts
from tracekit.model.text.labels import make_displayable
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers.chrome import note_scan_losses
from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY
from tracekit.readers.chrome.scan import Codes, ScanOptions, TraceScan
from tracekit.readers.chrome.stream import scan_trace
from tracekit.readers.lines import note_log_losses

MAX_NAME = 300
"""Longest name of a task or a worker kept, in characters."""

KINDS: Mapping[str, str] = {
    "submit_task": "submit",
    "task:deserialize_arguments": "arguments",
    "task:execute": "execute",
    "task:store_outputs": "outputs",
    "ray.get": "get",
    "ray.wait": "wait",
    "ray.put": "put",
}
"""Kind of a row by its category. A task itself has the category `task::` with its function; others are of users."""

_OF_RAY = frozenset((*KINDS, "worker_idle", "wait_for_function", "fetch_and_run_function", "register_remote_function"))
_TASK = "task:"
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,300})"')
_WORKER = re.compile(rb'"tid"\s*:\s*"(?:worker|driver):[0-9a-f]{8}|"task_id"\s*:\s*"[0-9a-f]{16}')
_LONGEST_NS = 2**61

Rows = npt.NDArray[np.int64]
"""Row numbers of a scan."""


def sniff(head: bytes) -> bool:
    """Check whether text begins like a Ray timeline: a bare list, with Ray's categories and none of a profiler.

    Hundreds of rows of the driver may come first. They are Ray's where they name workers or tasks as Ray does.

    >>> sniff(b'[{"cat": "task::Worker.step", "ph": "X"}]'), sniff(b'[{"cat": "cpu_op", "ph": "X"}]')
    (True, False)
    """
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return False
    categories = {category.decode("utf-8", "replace") for category in _CATEGORY.findall(head)}
    if any(category.lower() in CLASS_OF_CATEGORY for category in categories):
        return False
    if any(category.startswith(_TASK) for category in categories):
        return True
    return not _OF_RAY.isdisjoint(categories) and _WORKER.search(head) is not None


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the timeline as one Trace with the table `ray_rows`.

    Raises only `TraceFormatError`.
    """
    keep = ScanOptions(args=("name",), fields=False)
    scan = scan_trace(Path(source.path), keep, on_bytes=on_bytes)
    is_row = _mark_values(scan.ph, lambda phase: phase == "X")
    is_sound = is_row & scan.has_ts & scan.has_dur & (scan.dur_ns >= 0) & (scan.dur_ns < _LONGEST_NS)
    is_sound &= (scan.ts_ns >= 0) & (scan.ts_ns < _LONGEST_NS)
    rows = np.flatnonzero(is_sound)
    tables = {"ray_rows": _make_ray_rows(scan, rows)} if want.table("ray_rows") and len(rows) else {}
    notes = _note_unread_ray_rows(scan, int(is_row.sum()) - len(rows), len(rows), source.name)
    meta = {"element_count": len(rows), "absolute_time": bool(len(rows)) and int(scan.ts_ns[rows].max()) > 10**17}
    return [Trace(source, Frames(tables), tuple(notes), meta)]


def _note_unread_ray_rows(scan: TraceScan, bad: int, count: int, name: str) -> Iterator[Note]:
    """Yield notes on damage and on rows without usable times."""
    yield from note_scan_losses(scan.losses, name)
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "no-time", "rows without a usable start and duration were left out", bad),
        ("info", "log-empty", "a timeline of Ray without any task", int(not count)),
    )
    yield from note_log_losses((), counts, name)


def _make_ray_rows(scan: TraceScan, rows: Rows) -> Columns:
    """Make the table `ray_rows` from these rows of the scan."""
    category = [str(value) for value in scan.cat.values]
    kinds = TABLES["ray_rows"].columns["kind"].values
    of_kind = np.array([*(kinds.index(_find_row_kind(text)) for text in category), kinds.index("other")], np.int8)
    named = [_split_task_category(text) for text in category]
    nodes, workers = (
        _map_numbered_names(scan, "process_name", scan.pid),
        _map_numbered_names(scan, "thread_name", scan.tid),
    )
    return TABLES["ray_rows"].cast(
        {
            "id": np.arange(len(rows), dtype=np.int32),
            "ts_ns": scan.ts_ns[rows],
            "dur_ns": scan.dur_ns[rows],
            "kind": Coded(of_kind[scan.cat.codes[rows]], kinds),
            "name": _code_scanned_texts(scan.cat, [name for name, _ in named], rows),
            "actor": _code_scanned_texts(scan.cat, [actor for _, actor in named], rows),
            "node": _code_scanned_texts(scan.pid, [nodes.get(n, str(v)) for n, v in enumerate(scan.pid.values)], rows),
            "worker": _code_scanned_texts(
                scan.tid, [workers.get(n, str(v)) for n, v in enumerate(scan.tid.values)], rows
            ),
        },
        len(rows),
    )


def _find_row_kind(category: str) -> str:
    """Find the kind of a row by its category."""
    return "task" if category.startswith("task::") else KINDS.get(category, "other")


def _split_task_category(category: str) -> tuple[str, str | None]:
    """Split the category of a row: (function of the task, name of the actor, which only its creation gives).

    >>> _split_task_category("task::Worker.step"), _split_task_category("task::pool_0:1:Worker.__init__")
    (('Worker.step', None), ('Worker.__init__', 'pool_0:1'))
    >>> _split_task_category("submit_task")
    ('submit_task', None)
    """
    if not category.startswith("task::"):
        return category, None
    actor, _, function = category.removeprefix("task::").rpartition(":")
    return function, actor or None


def _map_numbered_names(scan: TraceScan, row_name: str, column: Codes) -> dict[int, str]:
    """Map codes of nodes or workers to the names that rows of metadata give to their numbers; {} without any."""
    names = scan.args.get("name")
    if names is None or names.categories is None or row_name not in scan.name.values:
        return {}
    is_named = _mark_values(scan.name, lambda value: value == row_name) & _mark_values(scan.ph, lambda v: v == "M")
    given = np.flatnonzero(is_named[names.rows])
    codes = column.codes[names.rows[given]].tolist()
    texts = (names.categories[code] for code in names.values[given].tolist())
    return {code: text.removeprefix("Node ") for code, text in zip(codes, texts, strict=True) if isinstance(text, str)}


def _mark_values(column: Codes, wanted: Callable[[object], bool]) -> npt.NDArray[np.bool_]:
    """Mark the rows with a wanted value; a row without a value is not wanted."""
    marks: npt.NDArray[np.bool_] = np.array([*map(wanted, column.values), False], np.bool_)[column.codes]
    return marks


def _code_scanned_texts(column: Codes, by_value: Sequence[str | None], rows: Rows) -> Coded:
    """Code the text of each row: `by_value` of its code, cut to `MAX_NAME` characters; missing without one."""
    shown = [None if text is None else make_displayable(text)[:MAX_NAME] for text in by_value]
    distinct = tuple(dict.fromkeys(text for text in shown if text is not None))
    place = {text: code for code, text in enumerate(distinct)}
    codes = np.array([*(-1 if text is None else place[text] for text in shown), -1], np.int32)
    return trim_texts(Coded(codes[column.codes[rows]], distinct))
