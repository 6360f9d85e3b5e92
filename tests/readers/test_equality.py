"""Both scanners give equal columns and losses, for any bytes and however the text is cut."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import chrome_traces, open_text
from scan_comparison import differences, real_documents, scan_or_error

from tracekit.model.trace import Source, Want
from tracekit.readers import chrome
from tracekit.readers.chrome import events as chrome_events
from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.pure import PureScanner
from tracekit.readers.chrome.scan import BAD, END, MORE, ScanOptions

try:
    from tracekit.readers.chrome.scanner_c import NativeScanner
except ImportError:
    NativeScanner = None

DATA = Path(__file__).parents[1] / "data"

needs_native = pytest.mark.skipif(NativeScanner is None, reason="_scan is not built")
SCANNERS = [PureScanner, pytest.param(NativeScanner, marks=needs_native)]

EVENT = (
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 12, "tid": "t", "ts": 17.250,'
    b' "dur": 3, "args": {"External id": %d, "Input Dims": [[1, 2], []], "w": %d.5, "s": "a\\n"}}'
)
DOCUMENT = (
    b'{"schemaVersion": 1, "traceEvents": [\n'
    + b",\n".join(EVENT % (i, i % 3) for i in range(40))
    + b'\n], "traceName": "x"}'
)
PIECES = [
    b'{"ph":"X"}', b'{"ph":"X","name":"a","ts":1.5,"args":{"k":1}}', b",", b" ", b"\n", b"]", b"[", b"{",
    b"}", b'"', b"\\", b":", b"1", b"-0", b"1.0", b"1.50", b"null", b"N/A", b"NaN", b"true", b'"a"',
    b'"ph":', b'"name":', b'"args":', b'"args":{', b'"k":', b'"pid":', b'"ts":', b'"cat":', b'"id":',
    b"\xff", b"\x00", b'"\\u0061"', b'"\\ud800"', b'"C:\\a\\"', b"18446744073709551615", b"1e999",
    b'],"traceName":1', b"]}", b'"a\\u0062":', b"[1,{}]", b'{"a":[', b'{"a":1,"a":2}', b'""',
]  # fmt: skip


@needs_native
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=40), block=st.integers(1, 60))
def test_any_text_is_read_alike_in_blocks_of_any_size(tmp_path, monkeypatch, pieces, block):
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + b"".join(pieces))
    pure = scan_or_error(path, ScanOptions(), pure=True)
    with monkeypatch.context() as patch:
        patch.setattr(chrome_stream, "BLOCK_BYTES", block)
        native = scan_or_error(path, ScanOptions(), pure=False)
    assert differences(pure, native) == []


@needs_native
@pytest.mark.parametrize("seed", range(60))
def test_damaged_text_is_read_alike(tmp_path, seed):
    rng = random.Random(seed)
    data = bytearray(DOCUMENT)
    for _ in range(rng.choice((1, 2, 8))):
        start = rng.randrange(len(data))
        data[start : start + rng.choice((0, 0, 1, 30))] = rng.choice(PIECES)
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(bytes(data)) if seed % 5 == 0 else bytes(data))
    keep = ScanOptions(skip_args=("w",), skip_cats=("a",)) if seed % 3 == 0 else ScanOptions()
    pure, native = (scan_or_error(path, keep, pure=pure) for pure in (True, False))
    assert differences(pure, native) == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30), block=st.integers(1, 80), bridge=st.integers(1, 20))
def test_the_size_of_blocks_changes_nothing(tmp_path, monkeypatch, pieces, block, bridge):
    path = tmp_path / "trace.json"
    path.write_bytes(b"[" + b"".join(pieces) + b"," + EVENT % (1, 2) + b"]")
    whole = scan_or_error(path, ScanOptions(), pure=True)
    with monkeypatch.context() as patch:
        patch.setattr(chrome_stream, "BLOCK_BYTES", block)
        patch.setattr(chrome_events, "BRIDGE_BYTES", bridge)
        assert differences(whole, scan_or_error(path, ScanOptions(), pure=True)) == []


@pytest.mark.parametrize("scanner_class", SCANNERS)
def test_an_element_that_the_data_cuts_is_left_for_the_next_call(scanner_class):
    text = b' , {"a": [1, "]"], "args": {"b": "\\"", "c": 1}} ,'
    start, end = text.index(b"{"), text.rindex(b"}") + 1
    for cut in range(len(text) + 1):
        consumed, state = scanner_class(ScanOptions()).feed(text[:cut])
        assert state == MORE
        if start < cut < end:
            assert consumed == start


@pytest.mark.parametrize("scanner_class", SCANNERS)
@pytest.mark.parametrize(
    ("text", "consumed", "state"),
    [
        (b"", 0, MORE),
        (b" {} ]x", 5, END),
        (b"{},1", 3, BAD),
        (b"{},}", 3, BAD),
        (b'{},{"a\\u0062": 1}', 3, BAD),
        (b'{},{"a": 1 2}', 3, BAD),
        (b'{},{"a": }', 3, BAD),
        (b"{},{,}", 3, BAD),
        (b'{},{"a": 1', 3, MORE),
        (b'{},{"a": "x"', 3, MORE),
        (b'{},{"a" ', 3, MORE),
        (b'{},{"a": 1,}]', 13, END),
        (b'{},{"a": 1,,}', 3, BAD),
    ],
)
def test_where_and_why_a_scanner_stops(scanner_class, text, consumed, state):
    assert scanner_class(ScanOptions()).feed(text) == (consumed, state)
    assert scanner_class(ScanOptions()).feed(memoryview(bytearray(text))) == (consumed, state)


@pytest.mark.parametrize("scanner_class", SCANNERS)
def test_the_longest_element_that_is_read(scanner_class):
    text = b'{"a": "' + b"x" * 90 + b'"}'
    assert scanner_class(ScanOptions(), len(text)).feed(text) == (len(text), MORE)
    assert scanner_class(ScanOptions(), len(text) - 1).feed(text) == (0, BAD)
    assert scanner_class(ScanOptions(), 50).feed(text[:49]) == (0, MORE)
    assert scanner_class(ScanOptions(), 50).feed(text[:50]) == (0, BAD)


@pytest.mark.parametrize("split", [1, 7, 64, 1000])
def test_json_windows_and_the_strict_layer_give_the_same_columns(tmp_path, split):
    # Fed in small pieces the scanner sees one event at a time and never uses the json module.
    path = tmp_path / "trace.json"
    path.write_bytes(DOCUMENT)
    whole = chrome_stream.scan_trace(path, pure=True)
    scanner = PureScanner(ScanOptions())
    events = DOCUMENT[DOCUMENT.index(b"[\n") + 1 :]
    rest = b""
    for start in range(0, len(events), split):
        rest += events[start : start + split]
        consumed, state = scanner.feed(rest)
        rest = rest[consumed:]
        if state == END:
            break
    columns = scanner.finish()
    piecewise = type(whole)(**columns, meta=whole.meta, losses=whole.losses, size_bytes=whole.size_bytes)
    assert differences(whole, piecewise) == []


def traces(root: Path) -> list[Path]:
    """The traces below a folder; what lies in `memory` are timelines of another form."""
    return sorted(path for path in root.glob("**/*.json.gz") if "memory" not in path.parts)


def is_sound(path: Path) -> bool:
    """Whether the standard library reads a trace to its end."""
    try:
        json.loads(gzip.decompress(path.read_bytes()))
    except (ValueError, EOFError):
        return False
    return True


@needs_native
def test_the_traces_beside_the_tests_are_read_alike():
    for path in traces(DATA):
        pure, native = (scan_or_error(path, ScanOptions(), pure=pure) for pure in (True, False))
        assert differences(pure, native) == [], path
        assert pure.losses == () or not is_sound(path), path
        # A reader notes each loss, and no other one.
        (trace, *_) = chrome.read(Source(path, path.name, "torch", "chrome"), Want())
        noted = {note.code for note in trace.notes} & chrome.LOSSES.keys()
        assert noted == {loss.kind for loss in pure.losses}, path


@pytest.mark.slow
@needs_native
@needs_native
@pytest.mark.parametrize("small", [True, False])
def test_all_real_traces_are_read_alike_and_without_loss(small):
    for path in chrome_traces():
        if (path.stat().st_size <= 300_000) == small:
            pure, native = (scan_or_error(path, ScanOptions(), pure=pure) for pure in (True, False))
            assert differences(pure, native) == [], path
            assert pure.losses == (), path


def test_documents_cut_from_real_traces_lose_nothing(tmp_path):
    path = tmp_path / "trace.json"
    for trace in chrome_traces()[:10]:
        for document in list(real_documents(open_text(trace), 20000))[:5]:
            path.write_bytes(document)
            assert chrome_stream.scan_trace(path, pure=True).losses == ()
