"""Every event and argument of real files, by the C scanner, is what json reads."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
from readers.native_scans import values
from recorded import chrome_traces, open_text

from tracekit.readers.chrome.scan import END, Json, ScanOptions
from tracekit.readers.chrome.scanner_c import NativeScanner
from tracekit.readers.chrome.values import Number, format_compact_json


def expected_columns(events: list[dict]) -> list[dict]:
    """The events as json read them, values as the columns give them."""
    for event in events:
        args = event.pop("args", {})
        for key in event.keys() & {"ts", "dur"}:
            event[key] = int((Decimal(str(event[key])) * 1000).to_integral_value())
        for key in event.keys() - {"ts", "dur"}:
            event[key] = column_value(event[key])
        event["args"] = {key: column_value(args[key]) for key in args}
    return events


def column_value(parsed: object) -> object:
    if isinstance(parsed, Number):
        return float(parsed)
    return Json(format_compact_json(parsed)) if isinstance(parsed, list | dict) else parsed


def rebuilt(columns: dict) -> list[dict]:
    """The events that the columns hold."""
    events: list[dict] = [{"args": {}} for _ in columns["ts_ns"]]
    for name in ("ph", "cat", "name", "pid", "tid"):
        for event, value in zip(events, values(columns[name]), strict=True):
            event.update({} if value is None else {name: value})
    for name in ("ts", "dur"):
        for row in np.flatnonzero(columns[f"has_{name}"]).tolist():
            events[row][name] = int(columns[f"{name}_ns"][row])
    for key, column in columns["fields"].items():
        for row, value in zip(column.rows.tolist(), values(column), strict=True):
            events[row][key] = value
    for key, column in columns["args"].items():
        for row, value in zip(column.rows.tolist(), values(column), strict=True):
            events[row]["args"][key] = value
    return events


def exactly(events: list[dict]) -> list[str]:
    """Texts that are equal only for equal values of equal types."""
    return [
        repr([sorted(event["args"].items()), sorted((key, event[key]) for key in event.keys() - {"args"})])
        for event in events
    ]


def assert_read_as_json_reads(path):
    """How many events the file holds, all of which have the arguments that `json` finds."""
    content = open_text(path)
    events = json.JSONDecoder(parse_float=Number).decode(content.decode("utf-8"))["traceEvents"]
    start = content.index(b"[", content.index(b'"traceEvents"')) + 1
    scanner = NativeScanner(ScanOptions())
    assert scanner.feed(memoryview(content)[start:])[1] == END, path
    assert exactly(rebuilt(scanner.finish())) == exactly(expected_columns(events)), path
    return len(events)


SMALL_BYTES = 100_000


def real_files(*, small):
    """The real traces up to `SMALL_BYTES` (packed), or the larger ones."""
    return [path for path in chrome_traces() if (path.stat().st_size <= SMALL_BYTES) == small]


def test_every_event_and_arg_of_small_real_files_is_what_json_reads():
    assert sum(map(assert_read_as_json_reads, real_files(small=True))) > 10_000


@pytest.mark.slow
def test_every_event_and_arg_of_large_real_files_is_what_json_reads():
    assert sum(map(assert_read_as_json_reads, real_files(small=False))) > 100_000
