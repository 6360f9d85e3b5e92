"""From a file to columns: rules 1 to 11 of RECOVERY.md, truncation, metadata and errors."""

import gzip
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from tracekit.model.errors import TraceFormatError
from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.scan import Json, ScanOptions, TraceScan
from tracekit.readers.chrome.stream import is_chrome_trace_head
from tracekit.readers.loss import DataLoss

EVENTS = [
    b'{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}',
    (
        b'{"ph": "X", "cat": "kernel", "name": "k\\u00e9", "pid": 0, "tid": 7, "ts": 10.001, "dur": 2,\n'
        b'  "args": {"stream": 7, "grid": [1, 2], "occ": 33.5}}'
    ),
    b'{"ph": "s", "id": 5, "pid": 7, "tid": "main", "ts": 11, "cat": "ac2g", "name": "ac2g"}',
    b'{"ph": "X", "cat": "cpu_op", "name": "a[\\"b\\"]", "pid": 7, "tid": 8, "ts": 12.5, "dur": 0.125}',
]
HEAD = b'\xef\xbb\xbf\n{"schemaVersion": 1, "with_stack": true,\n"traceEvents" : [\n'
TAIL = b'\n], "traceName": "t.json", "baseTimeNanoseconds": 1712195495000000001}\n'
DOCUMENT = HEAD + b",\n".join(EVENTS) + TAIL


@pytest.fixture
def read(tmp_path):
    """Scan a file with these bytes."""

    def scan(data: bytes, keep: ScanOptions = ScanOptions()) -> TraceScan:
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        return chrome_stream.scan_trace(path, keep, pure=True)

    return scan


def array_of(*events: bytes) -> bytes:
    return b"[" + b",".join(events) + b"]"


def values(codes) -> list:
    return [codes.values[code] if code >= 0 else None for code in codes.codes]


def arg(scan: TraceScan, key: str) -> dict:
    """The values of an args column by row."""
    column = scan.args[key]
    found = column.values.tolist()
    if column.categories is not None:
        found = [column.categories[code] for code in found]
    return dict(zip(column.rows.tolist(), found, strict=True))


# ---- columns


def test_every_event_and_key_is_in_the_columns(read):
    scan = read(DOCUMENT)
    assert values(scan.ph) == ["M", "X", "s", "X"]
    assert values(scan.cat) == [None, "kernel", "ac2g", "cpu_op"]
    assert values(scan.name) == ["process_name", "ké", "ac2g", 'a["b"]']
    assert values(scan.pid) == [7, 0, 7, 7]
    assert values(scan.tid) == [None, 7, "main", 8]
    assert scan.ts_ns[scan.has_ts].tolist() == [10001, 11000, 12500]
    assert scan.dur_ns[scan.has_dur].tolist() == [2000, 125]
    assert scan.has_ts.tolist() == [False, True, True, True]
    assert scan.has_dur.tolist() == [False, True, False, True]
    assert {key: arg(scan, key) for key in scan.args} == {
        "name": {0: "python"},
        "stream": {1: 7},
        "grid": {1: "[1,2]"},
        "occ": {1: 33.5},
    }
    assert list(scan.fields) == ["id"]
    assert scan.meta == {
        "schemaVersion": 1,
        "with_stack": True,
        "traceName": "t.json",
        "baseTimeNanoseconds": 1712195495000000001,
    }
    assert scan.losses == ()
    assert scan.size_bytes == len(DOCUMENT)


def test_a_bare_array_of_events_is_a_trace(read):
    assert values(read(b" \n" + array_of(*EVENTS)).ph) == ["M", "X", "s", "X"]


def test_gzip_is_told_by_content(read):
    assert read(gzip.compress(DOCUMENT)).size_bytes == len(DOCUMENT)


def test_columns_have_the_kinds_that_their_values_need(read):
    events = [
        b'{"args": {"i": 1, "u": 1, "f": 1.5, "mix": 1, "s": "1", "neg": -1, "b": true, "j": [1]}}',
        (
            b'{"args": {"i": -2, "u": 18446744073709551615, "f": NaN, "mix": 1.0, "s": "x",'
            b' "neg": 18446744073709551615, "b": null, "j": "[1]"}}'
        ),
        (b'{"args": {"i": 1, "u": 2, "f": -0.0, "mix": true, "s": "1", "neg": -1, "b": true, "j": [ 1 ]}}'),
        b'{"args": {"mix": "1"}}, {"args": {"mix": 1e0}}, {"args": {"mix": -0.0}}',
        b'{"args": {"mix": 0.0}}, {"args": {"mix": nan}}, {"args": {"mix": -nan}}',
    ]
    scan = read(array_of(*events))
    assert {key: column.values.dtype.name for key, column in scan.args.items()} == {
        "i": "int64",
        "u": "uint64",
        "f": "float64",
        "mix": "int32",
        "s": "int32",
        "neg": "int32",
        "b": "int32",
        "j": "int32",
    }
    assert scan.args["u"].values.tolist() == [1, 2**64 - 1, 2]
    assert math.copysign(1, scan.args["f"].values[2]) == -1
    assert repr(scan.args["mix"].categories) == "[1, 1.0, True, '1', -0.0, 0.0, nan]"
    assert scan.args["mix"].values.tolist() == [0, 1, 2, 3, 1, 4, 5, 6, 6]
    assert scan.args["neg"].categories == [-1, 2**64 - 1]
    assert [type(value) for value in scan.args["j"].categories] == [Json, str]
    assert scan.args["j"].values.tolist() == [0, 1, 0]


def test_rule_10_the_last_of_equal_keys_wins(read):
    scan = read(
        array_of(
            b'{"ph": "X", "ph": "M", "ts": 1, "ts": "x", "args": {"a": 1, "b": 1, "a": 2}}',
            b'{"args": {"a": 1}, "args": {"c": 3}}',
            b'{"args": {"a": 1}, "args": 5}',
            b'{"args": 5, "args": {"d": 4}}',
            b'{"args": {"\xff": 1, "\xfe": 2, "\xff": 3}}',
        )
    )
    assert values(scan.ph)[0] == "M"
    assert not scan.has_ts.any()
    assert {key: arg(scan, key) for key in scan.args} == {
        "a": {0: 2},
        "b": {0: 1},
        "c": {1: 3},
        "d": {3: 4},
        "\ufffd": {4: 3},
    }
    assert scan.fields["args"].rows.tolist() == [2]


def test_rule_11_labels_take_any_value_and_ids_keep_integers_apart(read):
    scan = read(
        array_of(
            b'{"ph": 1, "cat": null, "name": [1, 2], "pid": 1, "tid": "1"}',
            b'{"ph": "1", "cat": true, "name": "[1,2]", "pid": "1", "tid": true}',
            b'{"ph": 1.0, "cat": "true", "name": 1e0, "pid": 1.0, "tid": null}',
        )
    )
    assert values(scan.ph) == ["1", "1", "1.0"]
    assert values(scan.cat) == [None, "true", "true"]
    assert values(scan.name) == ["[1,2]", "[1,2]", "1.0"]
    assert values(scan.pid) == [1, "1", "1.0"]
    assert values(scan.tid) == ["1", "true", None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"[1, {]} ", "[1, {]}"),  # rule 8: brackets are counted alike
        (b'["]", "\\"]"]', '["]","\\"]"]'),
        (b"a+b-c_d/e.F", "a+b-c_d/e.F"),  # rule 9
        (b'"a\\\\"', "a\\"),  # rule 7
    ],
)
def test_rules_7_to_9_where_values_end(read, value, text):
    scan = read(array_of(b'{"args": {"k": ' + value + b'}, "id": 1}'))
    assert arg(scan, "k") == {0: text}
    assert scan.losses == ()


def test_only_asked_for_args_are_kept(read):
    assert set(read(DOCUMENT, ScanOptions(args=("stream", "none"))).args) == {"stream"}
    assert set(read(DOCUMENT, ScanOptions(skip_args=("stream", "name"))).args) == {"grid", "occ"}
    assert set(read(DOCUMENT, ScanOptions(args=("stream", "occ"), skip_args=("occ",))).args) == {"stream"}


def test_of_other_keys_nothing_is_kept_unless_it_is_asked_for(read):
    plain = b'{"traceEvents":[{"ph":"s","id":7,"bp":"e","args":[1]},{"ph":"X","args":{"k":2},"x":"\\u0061"},{"id":-0,"args":3}]}'
    assert set(read(plain).fields) == {"id", "bp", "args", "x"}
    scan = read(plain, ScanOptions(fields=False))
    assert (values(scan.ph), scan.fields) == (["s", "X", None], {})
    assert scan.args["k"].values.tolist() == [2]


@pytest.mark.parametrize(("count", "dtype"), [(127, np.int8), (128, np.int16), (32767, np.int16), (32768, np.int32)])
def test_codes_take_as_few_bytes_as_so_many_values_need(read, count, dtype):
    names = [f"n{i}" for i in range(count)]
    events = ",".join(f'{{"name":"{name}"}}' for name in [*names, "n0", names[-1]])
    scan = read(b'{"traceEvents":[' + events.encode() + b",{}]}")
    assert scan.name.codes.dtype == dtype
    assert scan.name.codes.tolist() == [*range(count), 0, count - 1, -1]
    assert scan.name.values == names


def test_many_spellings_of_one_value_take_the_bytes_of_one(read):
    spellings = ["".join(("a", "\\u0061")[i >> k & 1] for k in range(9)) for i in range(300)]
    events = ",".join(f'{{"name":"{spelling}"}}' for spelling in spellings)
    scan = read(b'{"traceEvents":[' + events.encode() + b"]}")
    assert (scan.name.values, scan.name.codes.dtype) == (["a" * 9], np.int8)
    assert scan.name.codes.tolist() == [0] * 300


def test_skipped_categories_leave_no_trace(read):
    scan = read(DOCUMENT, ScanOptions(skip_cats=("kernel", "ac2g", "none")))
    assert values(scan.cat) == [None, "cpu_op"]
    assert "ké" not in scan.name.values
    assert (scan.skipped, dict(scan.fields)) == ({"kernel": 1, "ac2g": 1}, {})
    assert set(scan.args) == {"name"}


# ---- truncation


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_at_any_byte_gives_all_complete_events(read, packed):
    ends, position = [], len(HEAD)
    for event in EVENTS:
        ends.append(position + len(event))
        position = ends[-1] + 2
    array_end = DOCUMENT.index(b"\n], ") + 2
    data = gzip.compress(DOCUMENT, 0) if packed else DOCUMENT
    for cut in range(len(data)):
        text = DOCUMENT[: max(0, min(cut - 15, len(DOCUMENT)))] if packed else DOCUMENT[:cut]
        complete = sum(end <= len(text) for end in ends)
        if b"[" not in text or (complete == 0 and len(text) < array_end):
            with pytest.raises(TraceFormatError):
                read(data[:cut])
            continue
        scan = read(data[:cut])
        assert len(scan.ts_ns) == complete
        found = {loss.kind: loss for loss in scan.losses}
        assert ("gzip-truncated" in found) == packed
        if len(text) >= array_end:
            assert found.keys() <= {"gzip-truncated", "metadata"}
        else:
            start = len(text[: ends[complete - 1]]) + len(re.match(rb"[\s,]*", text[ends[complete - 1] :])[0])
            assert found["truncated"] == DataLoss("truncated", start, 1, len(text) - start)


def test_a_text_without_closing_bracket_is_truncated_by_nothing(read):
    data = HEAD + b",\n".join(EVENTS)
    assert read(data).losses == (DataLoss("truncated", len(data), 1, 0),)


# ---- head, tail and metadata


def test_rule_3_the_array_may_stand_anywhere(read):
    scan = read(b'{"wrapped": {"traceEvents"\n:\t[' + EVENTS[0] + b'], "a": 1}}')
    assert len(scan.ts_ns) == 1
    assert scan.meta == {"a": 1}
    assert [loss.kind for loss in scan.losses] == ["metadata"]


def test_rule_4_a_key_that_does_not_parse_costs_only_itself(read):
    head = rb'{"a": 1, "b": [1 2], "c": "C:\Users", "d": oops, "e": 18446744073709551615, '
    tail = b', "a": 2, "f": {"g": [1.5, null]}, h, "i": N/A, "j": "cut'
    scan = read(head + b'"traceEvents": [' + EVENTS[0] + b"]" + tail)
    assert scan.meta == {"a": 2, "c": r"C:\Users", "e": 2**64 - 1, "f": {"g": [1.5, None]}, "i": None}
    (loss,) = scan.losses
    assert (loss.kind, loss.offset, loss.count) == ("metadata", head.index(b'"b"'), 4)


def test_metadata_is_read_whatever_its_nesting(read):
    deep = b"[" * 100000 + b"]" * 100000
    scan = read(b'{"deep": ' + deep + b', "a": 1, "traceEvents": [], "b": ' + deep + b"}")
    assert scan.meta == {"a": 1}


def test_a_second_event_array_is_a_loss(read):
    scan = read(b'{"traceEvents": [], "traceEvents": [1], "a": 1}')
    assert scan.meta == {"a": 1}
    assert [loss.kind for loss in scan.losses] == ["metadata"]


def test_a_long_tail_is_cut(read, monkeypatch):
    monkeypatch.setattr(chrome_stream, "OUTSIDE_LIMIT", 100)
    tail = b', "a": 1, "b": "' + b"x" * 200 + b'"}'
    scan = read(b'{"traceEvents": []' + tail)
    assert scan.meta == {"a": 1}
    assert scan.losses == (DataLoss("metadata", 18 + 10, 2, 90 + len(tail) - 100),)
    assert scan.size_bytes == 18 + len(tail)


# ---- errors


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b",
        b"{}",
        b"null",
        b"\xef\xbb\xbf",
        b'{"traceEvents": {}}',
        b'{"traceEvents": [',
        b"[",
        b"[[1, 2], [3, 4]]",
        b"[1",
        b'{"traceEvents": [{"ph": "X", "na',
        gzip.compress(DOCUMENT, mtime=0)[:12],
        gzip.compress(b"{}", mtime=0),
        bytes(range(256)) * 10,
    ],
)
def test_what_is_no_trace_raises_the_one_documented_error(read, data):
    with pytest.raises(TraceFormatError):
        read(data)


def test_an_empty_event_array_is_a_trace_without_events(read):
    scan = read(b'{"traceEvents": [ , ], "a": 1}')
    assert (len(scan.ts_ns), scan.losses, scan.meta) == (0, (), {"a": 1})
    assert scan.ph.codes.dtype == np.int8


def test_no_array_within_the_limit_is_no_trace(read, monkeypatch):
    monkeypatch.setattr(chrome_stream, "OUTSIDE_LIMIT", len(HEAD) - 10)
    with pytest.raises(TraceFormatError, match="no array of events"):
        read(DOCUMENT)


def test_files_that_cannot_be_read_raise_the_documented_error(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(TraceFormatError, match="cannot be read"):
            chrome_stream.scan_trace(path, pure=True)


# ---- the choice of the scanner, progress, sniffing


def test_the_environment_can_ask_for_python_only(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(DOCUMENT)
    code = (
        "import sys; from pathlib import Path; from tracekit.readers.chrome.stream import scan_trace;"
        f"print(len(scan_trace(Path({str(path)!r})).ts_ns), [m for m in sys.modules if 'native' in m or '_scan' in m"
        " and 'tracekit' in m])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"TRACEKIT_PURE": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "4 []\n"


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(DOCUMENT))
    seen: list[int] = []
    chrome_stream.scan_trace(path, pure=True, on_bytes=seen.append)
    assert seen[-1] == path.stat().st_size


@pytest.mark.parametrize(
    "head",
    [
        DOCUMENT,
        DOCUMENT[: len(HEAD)],
        array_of(*EVENTS),
        b' [ {"name": "x", "ph": "X"',
        b'{"deviceProperties": [' + b"1," * 40000,
        json.dumps({"traceEvents": []}).encode(),
    ],
)
def test_the_beginning_of_a_trace_is_recognised(head):
    assert is_chrome_trace_head(head[: 2**16])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{}",
        b"[]",
        b"[[1695123, 0, [1, 0], 512], [1695124, 1, [2, 0], 512]]",
        b'[{"size": 1, "address": 2}]',
        b'{"segments": [], "device_traces": []}',
        b"\x80\x04\x95",
        b"SQLite format 3\0",
    ],
)
def test_other_formats_are_not_taken_for_traces(head):
    assert not is_chrome_trace_head(head)
