"""Reader of PyTorch caching-allocator snapshots (`torch.cuda.memory._dump_snapshot`).

Snapshots are pickles, which may run any code if loaded normally. `bytes` finds the pickle, `opcodes` refuses every
instruction that a snapshot does not need and loads the rest without resolving any name, `tables` checks each part, and
`balance` the consistency of the whole. `json` loads snapshots that were saved as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE
from tracekit.model.tables.arrays import Columns, Frames, Nullable
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.process.memory.replay import is_synthetic_segments
from tracekit.readers.chrome.values import join_surrogates
from tracekit.readers.torch_memory import balance as snapshot_balance
from tracekit.readers.torch_memory import bytes as snapshot_bytes
from tracekit.readers.torch_memory import json as snapshot_json
from tracekit.readers.torch_memory.opcodes import check_pickle, pause_collector, unpickle
from tracekit.readers.torch_memory.tables import SnapshotTables, make_snapshot_tables

MAX_SETTINGS, MAX_TEXT = 1000, 1000
"""Most allocator settings kept (nested settings are counted separately), and the longest text among them."""

_MOST_NAMED = 12
_ELEMENTS = ("allocations", "memory_segments", "blocks", "annotations")


def sniff(head: bytes) -> bool:
    """Check whether a file begins like a memory snapshot, or like the HTML page that `_memory_viz` writes of one."""
    return snapshot_bytes.is_pickled_snapshot(head) or snapshot_json.is_json_snapshot(head)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the single Trace of the file, with the tables of `want`. Raises only `TraceFormatError`.

    `on_bytes` is called with the bytes of the file read so far.
    """
    path = Path(source.path)
    data = snapshot_bytes.read_pickle(path, on_bytes)
    size = len(data)
    # Free the bytes before building the tables, and the objects before the collector runs again.
    with pause_collector():
        if data[:4096].lstrip()[:1] in (b"{", b"["):
            root, max_dicts = snapshot_json.load_json_snapshot(data, path)
        else:
            max_dicts = check_pickle(data, path)
            root = unpickle(data, path)
        del data
        snapshot, settings = _convert_snapshot(root, path, max_dicts)
        simulated = _get_simulation_label(root)
        del root
    balances = snapshot_balance.compute_balances(snapshot.tables)
    notes = snapshot_balance.note_inconsistencies(balances, snapshot.tables, settings, source.name)
    meta = {
        "absolute_time": _has_absolute_times(snapshot.tables),
        "entry_count": len(snapshot.tables.get("allocations", ())),
        "element_count": sum(len(snapshot.tables.get(name, ())) for name in _ELEMENTS),
        "text_bytes": size,
        "allocator_settings": settings,
        "balances": snapshot_balance.describe_balances(balances),
    }
    if simulated:
        meta["simulated"] = simulated
    tables = Frames({name: table for name, table in snapshot.tables.items() if want.table(name)})
    odd = (*_note_snapshot_of_profile(snapshot, source.name), *_note_unknown_elements(snapshot, source.name))
    return [Trace(source, tables, (*notes, *odd), meta)]


def _convert_snapshot(root: object, path: Path, max_dicts: int) -> tuple[SnapshotTables, dict[str, Any]]:
    """Convert a snapshot's objects to (tables, allocator settings)."""
    try:
        return make_snapshot_tables(root, path, max_dicts), _read_allocator_settings(root)
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error


def _read_allocator_settings(root: object) -> dict[str, Any]:
    """Read the recorded allocator settings, including the history's capacity that newer versions record."""
    if type(root) is not dict:
        return {}
    settings = root.get("allocator_settings")
    recorded: dict[str, object] = {}
    if type(settings) is dict:
        recorded = {str(key): value for key, value in islice(settings.items(), MAX_SETTINGS)}
    for key in ("trace_alloc_max_entries", "trace_alloc_overflowed"):
        if key in root:
            recorded.setdefault(key, root[key])
    # One dictionary or list may be referenced many times, so the limit counts all references.
    left = MAX_SETTINGS
    plain: dict[str, Any] = {}
    for key, value in recorded.items():
        plain[_clean_setting_text(key)] = _simplify_setting(value, left)
        if isinstance(value, dict | list):
            left -= len(value)
    return plain


def _simplify_setting(value: object, max_values: int) -> object:
    """Convert a setting to a plain value: one level of lists and dictionaries, at most `max_values` values."""
    if type(value) is dict:
        inner = islice(value.items(), max(max_values, 0))
        return {_clean_setting_text(str(k)): _simplify_setting(v, 0) for k, v in inner if type(v) not in (dict, list)}
    if type(value) is list:
        return [_simplify_setting(v, 0) for v in value[: max(max_values, 0)] if type(v) not in (dict, list)]
    if type(value) is str:
        return _clean_setting_text(value)
    if type(value) in (int, float, bool):
        return value
    return None


def _clean_setting_text(text: str) -> str:
    """Limit a text's length and replace lone surrogates."""
    return join_surrogates(text[:MAX_TEXT])


def _get_simulation_label(root: object) -> str:
    """Read the label of a simulated snapshot. Empty for a real one."""
    if type(root) is not dict:
        return ""
    label = root.get("simulated")
    if type(label) is str:
        return _clean_setting_text(label)
    return "SIMULATED" if label is True else ""


def _has_absolute_times(tables: Mapping[str, Columns]) -> bool:
    """Check whether times are Unix times. False if no time was recorded."""
    for name in ("allocations", "annotations"):
        times = tables[name]["ts_ns"] if name in tables else None
        if isinstance(times, Nullable) and times.values[~times.missing].max(initial=0) > 10**17:
            return True
    return False


def _note_snapshot_of_profile(snapshot: SnapshotTables, name: str) -> list[Note]:
    """Note a snapshot that torch made from a profile (`_profile_to_snapshot`), not from its allocator."""
    segments = snapshot.tables.get("memory_segments")
    if segments is None or not is_synthetic_segments(segments.arrays):
        return []
    message = (
        "made from a profile, not by the allocator: its segments and free blocks are made up and not judged, "
        "its categories are the profiler's guess, and the device behind the last GPU is the host (0: without a GPU)"
    )
    return [Note("info", "from-profile", message, name)]


def _note_unknown_elements(snapshot: SnapshotTables, name: str) -> list[Note]:
    """Build one note on everything that was not understood."""
    unknown: Counter[str] = snapshot.unknown
    if not unknown:
        return []
    counted = [f"{_clean_setting_text(what)} ({count:,})" for what, count in sorted(unknown.items())]
    message = f"not understood and left aside: {', '.join(counted[:_MOST_NAMED])}"
    if len(counted) > _MOST_NAMED:
        message += f" and {len(counted) - _MOST_NAMED:,} more"
    return [Note("info", "not-understood", message, name, int(np.sum(list(unknown.values()))))]
