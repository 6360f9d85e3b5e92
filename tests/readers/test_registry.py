"""The registry of readers: which file is read by which, and what is imported for it."""

import subprocess
import sys
from itertools import product

import pytest
from chrome_builder import op, write

from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.readers import READERS

SPACES = (b"", b" ", b"\r\n\t ")
FIRST_KEYS = (
    b"segments",
    b"device_traces",
    b"allocator_settings",
    b"external_annotations",
    b"host_segments",
    b"host_traces",
)
FIRST_OF_SEGMENT = (b"device", b"address", b"total_size", b"segment_type", b"blocks")
STARTS = (
    *(
        space + b"{" + space + b'"' + key + b'"' + space + b': [{"device_traces": []'
        for space, key in product(SPACES, FIRST_KEYS)
    ),
    *(
        space + b"[" + space + b"{" + space + b'"' + key + b'": 0, "segment_type": "large"'
        for space, key in product(SPACES, FIRST_OF_SEGMENT)
    ),
    *(space + b"<script>add_local_files([" for space in SPACES),
    b"\x80\4\x95segments",
    b"[ [1735689600000000, 1735689600000001, ",
    b"\n[[1735689600000000],[[0" + b",1" * len(CATEGORIES) + b"]]]",
    b"[[-1, 1, 512, 0]]",
    b"SQLite format 3\0 and more",
    b"\0" * 600,
    b"NVIDIA Tegra Profiler Report 2025",
)


@pytest.mark.parametrize("start", STARTS)
def test_a_hint_leaves_out_nothing_that_its_reader_claims(start):
    claiming = [reader.name for reader in READERS if reader.sniff(start)]
    assert claiming
    assert claiming == [reader.name for reader in READERS if reader.claims(start)]


def test_who_has_a_trace_does_not_wait_for_what_reads_databases_or_snapshots(tmp_path):
    write(tmp_path / "trace.json", [op("aten::add", 0, 5)])
    code = (
        "import sys; from tracekit.readers.loading import load\n"
        f"load({str(tmp_path / 'trace.json')!r})\n"
        "print(*(name for name in sys.modules if name.startswith('tracekit.readers.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tracekit.readers.chrome" in done
    assert not [name for name in done if "nsys" in name or "torch_memory" in name]
