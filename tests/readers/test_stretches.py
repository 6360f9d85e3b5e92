"""An event array read in stretches by threads gives what one scanner makes of it, whatever the text."""

from __future__ import annotations

import gzip
import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers.native_scans import ALL, RAGGED, comparable, read
from scan_comparison import differences, scan_or_error

from tracekit.readers.chrome import events as chrome_events
from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome import stretches
from tracekit.readers.chrome.scan import MORE, ScanOptions
from tracekit.readers.chrome.scanner_c import NativeScanner


def appended(parts: list[bytes], keep: ScanOptions = ALL, scanner_count: int = 2) -> dict:
    """The columns of one scanner after which others, in turns, have read these parts of an array's inside."""
    scanner = NativeScanner(keep)
    others = [NativeScanner(keep) for _ in range(scanner_count)]
    for place, part in enumerate(parts):
        other = others[place % scanner_count]
        assert other.feed(part) == (len(part), MORE)
        scanner.append(other)
    return scanner.finish()


def is_same(columns: dict, others: dict) -> bool:
    orders = [[list(found["args"]), list(found["fields"])] for found in (columns, others)]
    return comparable(columns) == comparable(others) and orders[0] == orders[1]


def events_of(text: bytes) -> list[bytes]:
    """The elements of an array's inside, each with the comma before it."""
    scanner, found, start = NativeScanner(ALL), [], 0
    for end in range(len(text)):
        if text[end : end + 1] == b"}" and scanner.feed(text[start : end + 1])[0] == end + 1 - start:
            found.append(text[start : end + 1])
            start = end + 1
    return found


RAGGED_EVENTS = events_of(RAGGED)
"""39 elements with a bit of everything."""


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, len(RAGGED_EVENTS)), max_size=12), st.integers(1, 3))
def test_parts_put_together_are_what_one_scan_makes_of_them(cuts, scanner_count):
    bounds = [0, *sorted(cuts), len(RAGGED_EVENTS)]
    parts = [b"".join(RAGGED_EVENTS[a:b]) for a, b in itertools.pairwise(bounds)]
    keep = ScanOptions(skip_cats=("a",), keep_names=("a",))
    for kept in (ALL, keep):
        assert is_same(appended(parts, kept, scanner_count), read(b"".join(RAGGED_EVENTS), kept))


def test_a_column_of_several_kinds_is_one_whichever_part_has_which():
    values = ["1", "2.5", '"a"', "-7", '"b"', "[1]", '"a"', "18446744073709551615", "null", "3"]
    events = [b',{"args": {"k": %s, "m": %d}}' % (v.encode(), i) for i, v in enumerate(values)]
    whole = read(b"".join(events))
    for first in range(len(events) + 1):
        for last in range(first, len(events) + 1):
            parts = [b"".join(part) for part in (events[:first], events[first:last], events[last:])]
            assert is_same(appended(parts, scanner_count=1), whole)


def test_what_a_scanner_read_before_leaves_no_kind_behind():
    parts = [b'{"args": {"k": 1}}', b'{"args": {"k": "a"}}', b'{"args": {"k": 2.5}}']
    parts += [b'{"args": {"k": 1, "k": "b"}}', b'{"args": {"k": [1]}}{"args": {"k": 9}}'] * 2
    assert is_same(appended(parts, scanner_count=1), read(b"".join(parts)))


@pytest.mark.parametrize("count", [100, 127, 128, 300, 33_000])
def test_codes_are_as_wide_as_all_texts_together_need(count):
    events = [b'{"name": "n%d", "tid": %d}' % (i, i % 200) for i in range(count)]
    parts = [b"".join(events[i::3]) for i in range(3)]
    columns = appended(parts)
    assert is_same(columns, read(b"".join(parts)))
    assert columns["name"].codes.itemsize == (1 if count < 128 else 2 if count < 2**15 else 4)


def test_times_that_are_no_plain_numbers_keep_their_rows():
    parts = [b'{"ts": 1, "dur": "1e3"}', b'{"ts": "2e0"}{"ts": 1.-660, "dur": 2}', b'{"dur": 1e-3}']
    columns = appended(parts)
    assert is_same(columns, read(b"".join(parts)))
    assert columns["ts_ns"].tolist() == [1000, 2000, -1660, 0]
    assert columns["dur_ns"].tolist() == [1_000_000, 0, 2000, 1]


def test_only_another_scanner_that_keeps_the_same_can_be_appended():
    scanner = NativeScanner(ALL)
    with pytest.raises(RuntimeError, match="in use"):
        scanner.append(scanner)
    with pytest.raises(ValueError, match="do not keep the same"):
        scanner.append(NativeScanner(ScanOptions(skip_cats=("a",))))
    with pytest.raises(TypeError, match="only a scanner"):
        scanner._scanner.append(b"")
    over = NativeScanner(ALL)
    over.finish()
    with pytest.raises(ValueError, match="is over"):
        scanner.append(over)
    assert scanner.feed(b"{}") == (2, MORE)
    assert len(scanner.finish()["ts_ns"]) == 1


def test_a_scanner_says_how_much_it_still_knows():
    scanner, other = NativeScanner(ALL), NativeScanner(ALL)
    few = scanner.append(other)
    other.feed(b"".join(b'{"name": "%0999d"}' % i for i in range(1000)))
    assert scanner.append(other) - few >= 1_000_000


# ---- whole files


EVENT = (
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm%d", "pid": 12, "tid": "t", "ts": %d.250,'
    b' "dur": 3, "args": {"External id": %d, "Input Dims": [[%d, 2], []], "s": "a\\n"}}'
)
EVENTS = [EVENT % (i % 7, i, i, i % 5) for i in range(400)]
HEAD, TAIL = b'{"schemaVersion": 1, "traceEvents": [\n', b'\n], "traceName": "x"}'
DOCUMENT = HEAD + b",\n".join(EVENTS) + TAIL


@pytest.fixture
def scans(tmp_path, monkeypatch):
    """Scan these bytes one after another, and in stretches of about so many bytes; (the first, the other, how many)."""

    def scan_both(data: bytes, stretch_bytes: int = 2000, block_bytes: int = 700, threads: int = 3):
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        monkeypatch.setattr(chrome_stream, "LARGE_FILE_BYTES", 0)
        monkeypatch.setattr(chrome_stream, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(chrome_events, "BRIDGE_BYTES", block_bytes // 9)
        monkeypatch.setattr(stretches, "STRETCH_BYTES", stretch_bytes)
        monkeypatch.setattr(stretches, "LONGEST_STRETCH_BYTES", 4 * stretch_bytes)
        joined = []
        append = NativeScanner.append

        def counting(self, other):
            joined.append(other)
            return append(self, other)

        monkeypatch.setattr(NativeScanner, "append", counting)
        monkeypatch.setattr(chrome_stream, "count_own_cores", lambda: 1)
        alone = scan_or_error(path, ALL, pure=False)
        assert not joined
        monkeypatch.setattr(chrome_stream, "count_own_cores", lambda: threads)
        together = scan_or_error(path, ALL, pure=False)
        monkeypatch.setattr(NativeScanner, "append", append)
        assert not [t for t in threading.enumerate() if t.name.startswith("tracekit")]
        return alone, together, len(joined)

    return scan_both


def test_a_file_is_read_in_stretches_to_its_end(scans):
    alone, together, stretch_count = scans(DOCUMENT)
    assert differences(alone, together) == []
    assert [*together.args] == [*alone.args]
    assert len(together.ts_ns) == len(EVENTS)
    assert together.meta["traceName"] == "x"
    assert stretch_count > 20


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: gzip.compress(data)[:-100]])
def test_a_packed_file_leaves_one_core_to_its_unpacking(scans, pack):
    alone, together, stretch_count = scans(pack(DOCUMENT), threads=2)
    assert differences(alone, together) == []
    assert stretch_count == 0
    alone, together, stretch_count = scans(pack(DOCUMENT), threads=3)
    assert differences(alone, together) == []
    assert stretch_count > 20


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len(DOCUMENT)),
    st.integers(0, 60),
    st.sampled_from([b"", b"}", b'"', b"\\", b"]", b'],"traceName":1', b"{", b'{"ph":"X"},', b"\0"]),
    st.integers(300, 4000),
    st.integers(100, 3000),
)
def test_damage_anywhere_costs_the_same_and_is_told_the_same(scans, at, removed, put, stretch_bytes, block_bytes):
    data = DOCUMENT[:at] + put + DOCUMENT[at + removed :]
    alone, together, _ = scans(data, stretch_bytes, block_bytes)
    assert differences(alone, together) == []


def test_what_only_looks_like_the_start_of_an_event_is_found_out(scans):
    inner = b'[0, {"ph": "X", "name": "inner", "ts": 1}, {"name": "other", "ph": "X"}]'
    events = [b'{"ph": "X", "name": "a", "ts": %d, "args": {"k": %s}}' % (i, inner) for i in range(300)]
    alone, together, stretch_count = scans(HEAD + b",".join(events) + TAIL)
    assert differences(alone, together) == []
    assert len(together.ts_ns) == 300
    assert stretch_count >= 1


def test_after_a_stretch_that_is_not_read_whole_all_else_is_read_one_after_another(scans):
    bad = [*EVENTS[:200], b'{"ph": "X", "name": oops!, "ts": 1}', *EVENTS[200:]]
    alone, together, stretch_count = scans(HEAD + b",\n".join(bad) + TAIL)
    assert differences(alone, together) == []
    assert [loss.kind for loss in together.losses] == ["damaged"]
    assert len(together.ts_ns) == 400
    whole_file = len(DOCUMENT) // 2000
    assert whole_file // 4 < stretch_count < whole_file * 3 // 4


def test_a_text_in_which_no_event_seems_to_start_is_read_all_the_same(scans):
    events = [b'{"zzz": %d, "ph": "X", "name": "a", "ts": 1}' % i for i in range(2000)]
    alone, together, _ = scans(HEAD + b",".join(events) + TAIL)
    assert differences(alone, together) == []
    assert len(together.ts_ns) == 2000


def test_an_event_longer_than_a_stretch_is_read_whole(scans):
    long = b'{"ph": "X", "name": "long", "ts": 5, "args": {"s": "%s"}}' % (b"x" * 30_000)
    events = [*EVENTS[:100], long, *EVENTS[100:]]
    alone, together, _ = scans(HEAD + b",".join(events) + TAIL)
    assert differences(alone, together) == []
    assert len(together.ts_ns) == 401


def test_a_scanner_that_knows_too_many_texts_is_replaced(scans, monkeypatch):
    monkeypatch.setattr(stretches, "KNOWN_BYTES", 0)
    alone, together, stretch_count = scans(DOCUMENT)
    assert differences(alone, together) == []
    assert stretch_count > 20


def test_too_many_rows_and_no_memory_end_the_scan(scans, monkeypatch):
    def fails(self, other):
        raise MemoryError

    monkeypatch.setattr(NativeScanner, "append", fails)
    monkeypatch.setattr(chrome_stream, "LARGE_FILE_BYTES", 0)
    with pytest.raises(MemoryError):
        scans(DOCUMENT)
    assert not [t for t in threading.enumerate() if t.name.startswith("tracekit")]
