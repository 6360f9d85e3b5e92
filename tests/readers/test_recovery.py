"""Damaged elements: rules 12 to 17 of RECOVERY.md, and every kind of damage seen in the wild."""

import json

import pytest

from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.places import ResumePoint, find_final_array_end, find_resume_point
from tracekit.readers.chrome.scan import ScanOptions, TraceScan
from tracekit.readers.loss import DataLoss

HEAD = b'{"schemaVersion": 1, "traceEvents": ['
TAIL = b'], "traceName": "t"}'
GOOD = b'{"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 2, "ts": 1.5, "args": {"a": 1}}'


@pytest.fixture
def read(tmp_path):
    """Scan the inside of an event array."""

    def scan(inside: bytes, head: bytes = HEAD, tail: bytes = TAIL) -> TraceScan:
        path = tmp_path / "trace.json"
        path.write_bytes(head + inside + tail)
        return chrome_stream.scan_trace(path, pure=True)

    return scan


def names(scan: TraceScan) -> list:
    return [scan.name.values[code] if code >= 0 else None for code in scan.name.codes]


def arg(scan: TraceScan, key: str):
    column = scan.args[key]
    if column.categories is None:
        return column.values.tolist()
    return [column.categories[code] for code in column.values]


def lost(scan: TraceScan) -> dict[str, tuple[int, int]]:
    """Count and size of every loss."""
    return {loss.kind: (loss.count, loss.size_bytes) for loss in scan.losses}


# ---- what the strict layer takes as it is


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (b'{"ph": "X", "name": "tab\tline\nzero\x00"}', "tab\tline\nzero\x00"),
        (b'{"ph": "X", "name": "caf\xe9"}', "caf\ufffd"),
        (rb'{"ph": "X", "name": "C:\Users\x\p.py(3)"}', r"C:\Users\x\p.py(3)"),
        (b'{"ph": "X", "name": "n", "args": {"a": 1, }, }', "n"),
        (b'{"ph": "X", "name": N/A}', None),
    ],
)
def test_odd_but_unambiguous_text_is_no_loss(read, event, name):
    scan = read(event + b",," + GOOD + b",")
    assert names(scan) == [name, "good"]
    assert scan.losses == ()


def test_bare_words_of_real_profilers_are_values(read):
    scan = read(b'{"ph":"X","args":{"a":N/A}},{"ph":"X","args":{"a":NaN}},{"ph":"X","args":{"a":-inf}}')
    assert [str(value) for value in arg(scan, "a")] == ["None", "nan", "-inf"]
    assert scan.losses == ()


def test_a_negative_remainder_is_a_time(read):
    assert read(b'{"ph": "X", "ts": 12.-660}').ts_ns.tolist() == [-12660]


# ---- rule 13


def test_elements_that_are_no_objects_are_passed_over(read):
    inside = b'1, "x, {", [1, [2]], null, -1.5e3, ' + GOOD + b", true"
    scan = read(inside)
    assert names(scan) == ["good"]
    assert scan.losses == (DataLoss("not-an-event", len(HEAD), 5 + 1, 1 + 6 + 8 + 4 + 6 + 4),)


def test_garbage_is_no_element(read):
    scan = read(GOOD + b", \x00\x01garbage{{{, " + GOOD)
    assert names(scan) == ["good", "good"]
    assert lost(scan) == {"damaged": (1, len(b"\x00\x01garbage{{{, "))}


# ---- rule 14


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (rb'{"ph": "X", "n\u0061me": "n"}', "n"),
        (b'{"ph": "X" "name": "n"}', "n"),
        (b'{"ph": "X",, "name": "n"}', "n"),
        (b'{"ph": "X", "name": "n", "args": {,}}', "n"),
        (b'{"ph": "X", "name": "say "hi" to", "pid": 1}', 'say "hi" to'),
        (b'{"ph": "X", "name": "f["a"], g{"b"}", "pid": 1}', 'f["a"], g{"b"}'),
        (b'{"ph": "X", "name": "ends in "quotes""}', 'ends in "quotes"'),
        (b'{"ph": "X", "name": "a "b" \\"c\\" \\u00e9", "pid": 1}', 'a "b" "c" é'),
        (b'{"ph": "X", "name": "line\n"two"", "pid": 1}', 'line\n"two"'),
        (rb'{"ph": "X", "name": "C:\new\", "pid": 1}', "C:\\new\\"),
        (rb'{"ph": "X", "name": "C:\new\"}', "C:\\new\\"),
        (rb'{"ph": "X", "name": "n", "args": {"path": "C:\temp\", "a": "D:\"}}', "n"),
    ],
)
def test_an_event_is_repaired_and_counted(read, event, name):
    scan = read(GOOD + b", " + event + b", " + GOOD)
    assert names(scan) == ["good", name, "good"]
    assert scan.losses == (DataLoss("repaired", len(HEAD + GOOD) + 2, 1, 0),)


def test_a_repaired_event_keeps_its_other_values_exact(read):
    scan = read(
        b'{"ph": "X", "name": "a "b"", "pid": 7, "ts": 1712195495519689.047, "dur": 1e-1,'
        b' "id": [1, "x "y" z"], "args": {"n": 18446744073709551615, "s": "\\u00e9\xff"}}'
    )
    assert (scan.pid.values, scan.ts_ns.tolist(), scan.dur_ns.tolist()) == ([7], [1712195495519689047], [100])
    assert arg(scan, "n") == [2**64 - 1]
    assert arg(scan, "s") == ["é\ufffd"]
    assert json.loads(scan.fields["id"].categories[0]) == [1, 'x "y" z']


def test_a_path_within_an_array_is_repaired(read):
    scan = read(rb'{"ph": "X", "args": {"p": ["C:\a\", "D:\"]}, "name": "n"}')
    assert json.loads(arg(scan, "p")[0]) == ["C:\\a\\", "D:\\"]


def test_a_key_that_cannot_be_written_plainly_is_written_otherwise(read):
    assert arg(read(rb'{"ph": "X", "args": {"a\"b\\c": 5}}'), "a'b/c") == [5]


def test_an_event_is_not_repaired_across_the_start_of_the_next(read):
    scan = read(b'{"ph": "X", "name": "cut off, ' + GOOD + b", " + GOOD)
    assert names(scan) == ["good", "good"]
    assert lost(scan) == {"damaged": (1, len(b'{"ph": "X", "name": "cut off, '))}


# ---- rule 15


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"ph": "X", "args": {"a": 1}, ',
        b'{"ph": "X", "name": "n", "args": {"dims": [[[[1]}}, ',
        b'{"ph": , "name": "n"}, ',
        b"} , ",
        b'"stray, ',
        b"[1, 2, ",
    ],
)
def test_damage_costs_only_what_it_touches(read, damaged):
    scan = read(GOOD + b", " + damaged + GOOD + b", " + GOOD)
    assert names(scan) == ["good"] * 3
    assert scan.losses == (DataLoss("damaged", len(HEAD + GOOD) + 2, 1, len(damaged)),)
    assert scan.meta == {"schemaVersion": 1, "traceName": "t"}


def test_damage_in_the_last_event_leaves_the_tail(read):
    scan = read(GOOD + b', {"ph": "X", "name": "never closed')
    assert names(scan) == ["good"]
    assert lost(scan) == {"damaged": (1, len(b'{"ph": "X", "name": "never closed'))}
    assert scan.meta["traceName"] == "t"


@pytest.mark.parametrize("end", [b"\n]\n}\n", b"]}"])
def test_the_last_brackets_of_the_text_end_the_array(read, end):
    damaged = b'{"ph": "X", "args": {"dims": [1]}'
    scan = read(GOOD + b", " + damaged + (b"\n" if end != b"]}" else b""), tail=end)
    assert names(scan) == ["good"]
    assert list(lost(scan)) == ["damaged"]


def test_brackets_that_the_element_uses_itself_do_not_end_the_array(read):
    cut = b'{"ph": "X", "args": {"dims": [1]}'
    scan = read(GOOD + b", " + cut, tail=b"")
    assert scan.losses == (DataLoss("truncated", len(HEAD + GOOD) + 2, 1, len(cut)),)


def test_objects_in_an_array_are_not_taken_for_events(read):
    damaged = b'{"ph": "X", "args": {"l": [{"id": 1}, {"name": "x"}, 5 5}, "x", '
    scan = read(damaged + GOOD)
    assert names(scan) == ["good"]
    assert list(lost(scan)) == ["damaged"]


def place(text: bytes, start: int = 0):
    return find_resume_point(memoryview(text), start, at_end=True)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b'xx{"ph":1', 2),
        (b'xx{ \n"ph" :1', 2),
        (b'xx{"name":1,"ph":1', 2),
        (b'xx{"name":1},{"id":2,"ph":1', 13),
        (b'"args":{"ph":1},{"ph":1', 16),
        (b'"args" : {"id":1},{"ts":1,"ph":"X"', 18),
    ],
)
def test_an_event_starts_at_a_key_of_events_that_is_no_value(text, position):
    assert place(text) == ResumePoint(position)


@pytest.mark.parametrize("text", [b'{"ph"', b'{"name":1}', b'{"foo":1,"ph":1', b':{"ph":1', b""])
def test_other_objects_are_no_places(text):
    assert place(text) == len(text)


def test_an_event_that_names_its_phase_too_late_is_no_place():
    assert place(b'{"name":"' + b"x" * 70000 + b'","ph":1') == 70017


def test_the_array_ends_before_a_known_top_level_key():
    assert place(b'xx ] , "traceName" : 1') == ResumePoint(3, ends_array=True)
    assert place(b'xx ] , "unknown" : 1') == 20


def test_only_final_brackets_end_the_array():
    assert find_final_array_end(memoryview(b"xx ] } \n")) == 3
    assert find_final_array_end(memoryview(b"xx ] } x")) is None


def test_places_are_found_whatever_of_the_text_is_at_hand():
    text = b'x,{"name":1,"args":{"id":2}},' + b" " * 50 + b'{"id":[{"ts":1,"ph":2}]},{"ph":1}'
    for length in range(len(text)):
        found = find_resume_point(memoryview(text[:length]), 0, at_end=False)
        if isinstance(found, ResumePoint):
            assert found == place(text)
        else:
            assert found <= place(text).position


# ---- rules 12, 16 and 17


def test_an_element_that_is_too_long_is_left_out(read, monkeypatch):
    monkeypatch.setattr(chrome_stream, "MAX_EVENT_BYTES", 200)
    long = b'{"ph": "X", "name": "' + b"x" * 300 + b'"}, '
    scan = read(GOOD + b", " + long + GOOD)
    assert names(scan) == ["good", "good"]
    assert lost(scan) == {"too-long": (1, len(long))}


def test_an_element_of_the_greatest_length_is_read(read, monkeypatch):
    monkeypatch.setattr(chrome_stream, "MAX_EVENT_BYTES", len(GOOD))
    assert read(GOOD + b", " + GOOD).losses == ()
    monkeypatch.setattr(chrome_stream, "MAX_EVENT_BYTES", len(GOOD) - 1)
    assert "too-long" in lost(read(b'{"ph":1},' + GOOD + b',{"ph":1}'))


def test_a_repaired_event_that_grows_too_long_is_damage(read, monkeypatch):
    event = b'{"ph": "X", "name": "' + b'"' * 40 + b'x"}'
    monkeypatch.setattr(chrome_stream, "MAX_EVENT_BYTES", len(event) + 10)
    assert lost(read(b'{"ph":1},' + event + b',{"ph":1}')) == {"damaged": (1, len(event) + 1)}


@pytest.mark.parametrize("cut", [b'{"ph', b'{"ph": "X", "name": "n', b'{"ph": "X", x', b"{", b"nul"])
def test_an_element_that_the_end_cuts_is_truncation(read, cut):
    scan = read(GOOD + b", " + cut, tail=b"")
    assert scan.losses == (DataLoss("truncated", len(HEAD + GOOD) + 2, 1, len(cut)),)


HOSTILE = {
    "nested events": b'{"ph":',
    "open events": b'{"ph":1,',
    "open arrays in events": b'{"ph":[1,',
    "missing colons": b'{"ph":[1],"x"',
    "nested arrays": b'{"id":[',
    "quotes": b'"',
    "backslashes": b"\\",
    "escaped quotes": b'\\"',
    "numbers": b"1,",
    "empty events": b"{},",
    "crumbs": b'{"ph":1}x',
    "braces": b"{",
    "brackets": b"[",
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("start", [b"", b'{"ph":"X","name":"'], ids=["array", "string"])
def test_hostile_text_costs_no_more_than_its_length(read, unit, start):
    # Not timed: were the work quadratic, this would take minutes.
    scan = read(GOOD + b", " + start + unit * (2**17 // len(unit)) + b", " + GOOD + b", " + GOOD)
    assert names(scan)[0] == "good"


def test_only_what_is_kept_is_counted_after_damage(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(HEAD + GOOD + b', {"ph": "X", "cat": "cpu_op" "name": "n"}' + TAIL)
    scan = chrome_stream.scan_trace(path, ScanOptions(skip_cats=("cpu_op",)), pure=True)
    assert (len(scan.ts_ns), scan.skipped) == (0, {"cpu_op": 2})
