"""GPU metrics as exporters before schema 3.7 wrote them: one JSON object per sample, among the generic events.

The form is documented in the User Guide of nsys 2023.4, "Exporting and Querying Data" under GPU Metrics: at
`rawTimestamp`, in ns of the session, `{"SM Active": "52", …}`, numbers as text. Its "Generic Events" (SQLite examples)
shows that the description of an event source has a `Name` (`FTrace`); scripts for nsys 2023.1 look for `GpuMetrics`.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.trace import Note
from tracekit.readers.chrome.values import join_surrogates
from tracekit.readers.nsys.content import MAX_NS, ExportClock
from tracekit.readers.nsys.numbering import assign_limited_code
from tracekit.readers.nsys.samples import GPU_MASK, GpuSamples, Part, join_sample_parts, name_metric_series
from tracekit.readers.nsys.sqlite.blocks import EndlessRows, limit_row_count
from tracekit.readers.nsys.sqlite.connection import (
    ExportDatabase,
    count_possible_rows,
    get_row_id_alias,
    has_table_columns,
    is_page_damage,
    quote_identifier,
    record_table_damage,
)
from tracekit.readers.nsys.sqlite.database import read_small_table, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]

TABLE, TYPES, SOURCES = "GENERIC_EVENTS", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_SOURCES"

MAX_TEXT = 8192
"""Most characters of a sample that are read; a real one has about 600."""

MAX_SETS, MAX_NAMES = 1_000, 100_000
"""Most different sets of metrics, and most series names per file. A GPU records one set."""

_BLOCK = 2048
_MAX_TYPES = 1024
_SOURCE = re.compile(r"gpu ?metrics", re.IGNORECASE)
_TIMES = ("timestamp", "rawTimestamp")
_NO_METRICS = frozenset({"", "type", "gpu id", "gpuid"})
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(slots=True)
class _JsonSamples:
    """Samples read so far, and counts of dropped samples by cause."""

    base_ns: int
    parts: list[Part] = field(default_factory=list[Part])
    code_of: dict[str, int] = field(default_factory=dict[str, int])
    sets: set[str] = field(default_factory=set[str])
    no_number: Counter[int] = field(default_factory=Counter[int])
    """Count per name code of values that are not numbers. A key that never has a number is not a metric."""
    untimed: int = 0
    unreadable: int = 0
    over: int = 0


def read(db: ExportDatabase, clock: ExportClock) -> GpuSamples | None:
    """Read the samples of all GPUs, named `GPU <number> <metric>`; None if none were recorded.

    Values keep their recorded unit: per cent, or a count. Keys without a numeric value are not metrics.
    """
    types = _find_metric_event_types(db)
    if not types:
        return None
    samples = _JsonSamples(clock.base_ns)
    seen = 0
    for ts, type_, texts_ in _read_event_blocks(db, types):
        seen += len(texts_)
        object_rows, objects = _decode_samples(texts_)
        samples.unreadable += len(texts_) - len(objects)
        _add_json_samples(samples, ts[object_rows], type_[object_rows], objects)
    if not seen:
        return None
    with_numbers = set[int]()
    for _, _, codes, _ in samples.parts:
        with_numbers.update(np.unique(codes).tolist())
    no_number = sum(samples.no_number[code] for code in with_numbers)
    unreadable = "records of GPU metrics whose JSON cannot be read were left out"
    over = "records of GPU metrics of yet another set of names were left out"
    counts = (
        ("no-time", "samples of GPU metrics without a usable time were left out", samples.untimed),
        ("no-name", "samples of GPU metrics without a name or a value were left out", no_number),
        ("bad-json", unreadable, samples.unreadable),
        ("too-many", over, samples.over),
    )
    return join_sample_parts(samples.parts, list(samples.code_of), counts)


def note_unread_generic_events(db: ExportDatabase) -> list[Note]:
    """Note the generic events that are not GPU metrics. Empty if there are none."""
    if not has_table_columns(db, TABLE, "typeId"):
        return []
    of_metrics = ", ".join(str(number) for number in _find_metric_event_types(db))
    where = f"typeId NOT IN ({of_metrics})" if of_metrics else "1"
    try:
        (count,) = db.connection.execute(f"SELECT count(*) FROM {TABLE} WHERE {where}").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_page_damage(error):
            raise
        return []
    text = "generic events of other kinds than GPU metrics (FTrace, ETW, …) are not read"
    return [Note("info", "generic-events", text, count=count)] if count else []


def _find_metric_event_types(db: ExportDatabase) -> list[int]:
    """Find the generic event types whose source is GPU metrics sampling."""
    has_columns = has_table_columns(db, TABLE, "typeId", "data") and any(
        has_table_columns(db, TABLE, name) for name in _TIMES
    )
    if not has_columns or not has_table_columns(db, TYPES, "typeId", "sourceId"):
        return []
    listed = read_small_table(db, SOURCES, ("sourceId", "data", "nameId"), limit=10_000)
    names = read_texts_by_id(db, "StringIds", "id", "value", [i for *_, i in listed if isinstance(i, int)])
    sources = {
        source
        for source, data, name in listed
        if isinstance(source, int) and _SOURCE.fullmatch(_parse_source_name(data) or names.get(name, ""))
    }
    of_type = read_small_table(db, TYPES, ("typeId", "sourceId"))
    types = {t for t, source in of_type if isinstance(t, int) and source in sources}
    return sorted(types)[:_MAX_TYPES]


def _parse_source_name(data: object) -> str:
    """Parse the name from a source description. Empty if it has none."""
    if not isinstance(data, str):
        return ""
    name = (_decode_sample(data) or {}).get("Name")
    return name if isinstance(name, str) else ""


def _read_event_blocks(db: ExportDatabase, types: Sequence[int]) -> Iterator[tuple[Ints, Ints, list[str | None]]]:
    """Yield (recorded time, type, text) of the samples in blocks; `MISSING` and None for unusable values.

    The time is the session time if recorded. Exporters that did not know it wrote 0; then the raw time is the session time.
    """
    present = [name for name in _TIMES if has_table_columns(db, TABLE, name)]
    fallbacks = [f"nullif({quote_identifier(name)}, 0)" for name in present] + [quote_identifier(present[-1])]
    time = f"coalesce({', '.join(fallbacks)})"
    sql = (
        f"SELECT iif(typeof({time}) = 'integer', {time}, {MISSING}), typeId,"
        f" iif(typeof(data) = 'text' AND length(data) <= {MAX_TEXT}, data, NULL) FROM {TABLE} NOT INDEXED"
        f" WHERE typeId IN ({', '.join(str(number) for number in types)}) ORDER BY {get_row_id_alias(db.columns[TABLE])}"
    )
    seen = 0
    try:
        cursor = db.connection.execute(sql)
        while part := cursor.fetchmany(_BLOCK):
            seen += len(part)
            limit_row_count(seen, count_possible_rows(db))
            time_, type_, text = zip(*part, strict=True)
            yield np.array(time_, np.int64), np.array(type_, np.int64), list(text)
    except (sqlite3.DatabaseError, EndlessRows) as error:
        record_table_damage(db, TABLE, error, seen)


def _refuse_json_constant(constant: str) -> float:
    """Raise `ValueError` for NaN and Infinity."""
    raise ValueError(constant)


_decode = json.JSONDecoder(parse_constant=_refuse_json_constant).decode


def _decode_sample(text: str) -> dict[str, Any] | None:
    """Decode a JSON object; None for anything else."""
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _decode_samples(texts_: list[str | None]) -> tuple[Ints, list[dict[str, Any]]]:
    """Decode all texts: (rows that are an object, the objects). Decodes one by one only if some text is damaged."""
    text_rows = np.flatnonzero(np.array([bool(text) for text in texts_], np.bool_))
    recorded_texts = [text for text in texts_ if text]
    try:
        # The zeros detect a text that contains more or less than one value.
        parsed = _decode(f"[{',0,'.join(recorded_texts)}]")
    except (ValueError, RecursionError):
        parsed = []
    objects = parsed[::2]
    sound = len(parsed) == max(2 * len(recorded_texts) - 1, 0) and not any(parsed[1::2])
    if sound and set(map(type, objects)) <= {dict}:
        return text_rows, objects
    decoded = [_decode_sample(text) for text in recorded_texts]
    object_rows = [row for row, record in enumerate(decoded) if record is not None]
    return text_rows[object_rows], [record for record in decoded if record is not None]


def _add_json_samples(samples: _JsonSamples, ts: Ints, type_: Ints, objects: list[dict[str, Any]]) -> None:
    """Add the samples of one block. Samples with the same keys are parsed together."""
    if not objects:
        return
    rows_of_set: dict[str, list[int]] = {}
    for row, sample in enumerate(objects):
        rows_of_set.setdefault(f"{len(sample)}\x1f" + "\x1f".join(sample), []).append(row)
    for text, rows in rows_of_set.items():
        if text not in samples.sets and len(samples.sets) >= MAX_SETS:
            samples.over += len(rows)
            continue
        samples.sets.add(text)
        names = [join_surrogates(key) for key in objects[rows[0]]]
        values = _parse_sample_values([objects[row] for row in rows], len(names))
        metric = np.array([name.lower() not in _NO_METRICS for name in names], np.bool_)
        for type_number in np.unique(type_[rows]).tolist():
            of_series = type_[rows] == type_number
            series = [name_metric_series(type_number, name) for name in names]
            coded = np.array([assign_limited_code(samples.code_of, name, MAX_NAMES) for name in series], np.int32)
            times, numbers = ts[rows][of_series], values[of_series][:, metric]
            _add_gpu_samples(samples, times, type_number, coded[metric], numbers)


def _add_gpu_samples(
    samples: _JsonSamples, ts: Ints, type_: int, codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64]
) -> None:
    """Add samples of one GPU: a row per time, a column per metric."""
    timed = (ts > -MAX_NS) & (ts < MAX_NS)
    samples.untimed += int((~timed).sum()) * len(codes)
    numbers = np.isfinite(values) & (codes >= 0)
    no_number = (timed[:, None] & ~numbers).sum(axis=0)
    for code, count in zip(codes.tolist(), no_number.tolist(), strict=True):
        samples.no_number[code] += count
    keep = (numbers & timed[:, None]).ravel()
    times = np.repeat(ts + samples.base_ns, len(codes))[keep]
    gpu = np.full(len(times), type_ & GPU_MASK, np.int16)
    samples.parts.append((times, gpu, np.tile(codes, len(ts))[keep], values.ravel()[keep]))


def _parse_sample_values(objects: list[dict[str, Any]], width: int) -> npt.NDArray[np.float64]:
    """Parse the values of objects with the same keys into a matrix, one row per object. NaN for non-numbers."""
    text = ",".join(map(str, chain.from_iterable(map(dict.values, objects))))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            numbers: npt.NDArray[np.float64] = np.fromstring(text, np.float64, sep=",")
    except (DeprecationWarning, ValueError):
        numbers = np.empty(0)
    if len(numbers) != len(objects) * width:
        members = chain.from_iterable(map(dict.values, objects))
        numbers = np.fromiter(map(_parse_metric_value, members), np.float64, len(objects) * width)
    return numbers.reshape(len(objects), width)


def _parse_metric_value(value: object) -> float:
    """Parse a number or numeric text; NaN for anything else."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
