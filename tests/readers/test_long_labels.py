"""Names, categories and threads of a trace that are long texts are kept in part, by both scanners alike."""

import json
import re

import pytest

from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.scan import ScanOptions

try:
    from tracekit.readers.chrome.scanner_c import NativeScanner
except ImportError:
    NativeScanner = None

needs_native = pytest.mark.skipif(NativeScanner is None, reason="_scan is not built")
pytestmark = pytest.mark.parametrize("pure", [True, pytest.param(False, marks=needs_native)])

LONG = "x" * 20_000


@pytest.fixture
def scan(tmp_path, pure):
    def scanned(labels, key="name"):
        rows = [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1, key: label} for label in labels]
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": rows}))
        return getattr(chrome_stream.scan_trace(path, ScanOptions(), pure=pure), key)

    return scanned


@pytest.mark.parametrize("key", ["name", "cat", "tid", "pid"])
def test_long_labels_are_kept_in_part_and_stay_apart(scan, key):
    found = scan([LONG, LONG + "y", LONG, "x" * 8_192, "x" * 8_193], key)
    assert found.codes.tolist() == [0, 1, 0, 2, 3]
    assert [len(label) for label in found.values] == [8_192] * 4
    assert re.fullmatch(r"x+… \(20,000 characters, [0-9a-f]{16}\)", found.values[0])
    assert found.values[2] == "x" * 8_192


def test_a_label_that_reads_as_the_kept_part_of_another_is_the_same_value(scan):
    (kept,) = scan([LONG]).values
    found = scan([LONG, kept, "short"])
    assert found.codes.tolist() == [0, 0, 1]
    assert found.values == [kept, "short"]


def test_arrays_as_names_are_bounded_by_their_text(scan):
    (kept,) = scan([[LONG]]).values
    assert re.fullmatch(r'\["x+… \(20,004 characters, [0-9a-f]{16}\)', kept)
