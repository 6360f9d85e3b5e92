"""Lines of text files: a byte-order mark, long lines, the last line without an end."""

import json

import pytest

from tracekit.model.trace import Source, Want
from tracekit.readers import driver_log, memory_log
from tracekit.readers.lines import MAX_LINE_BYTES, read_bounded_lines

BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(BOM + b"one\n" + BOM + b"two\nthree")
    assert list(read_bounded_lines(path, [], careful=False)) == [(1, "one"), (2, "\ufefftwo"), (3, "three")]
    path.write_bytes(BOM + b"alone")
    assert list(read_bounded_lines(path, [], careful=False)) == [(1, "alone")]


def test_a_line_over_the_limit_has_no_text_and_its_number(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(BOM + b"x" * (MAX_LINE_BYTES + 1) + b"\ntwo\n")
    assert list(read_bounded_lines(path, [], careful=False)) == [(1, None), (2, "two")]


@pytest.mark.parametrize("mark", [b"", BOM])
def test_no_log_loses_its_first_record_to_a_byte_order_mark(tmp_path, mark):
    steps = [{"step": step, "data": {"timing_s/step": 1.0 * step}} for step in range(3)]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(mark + "".join(json.dumps(step) + "\n" for step in steps).encode())
    (trace,) = driver_log.read(Source(path, path.name, "driver_log", "log"), Want())
    assert trace["log_values"]["step"].tolist() == [0, 1, 2]

    rows = [{"step": step, "memory_allocated_gb": 1.0 + step} for step in range(3)]
    path = tmp_path / "memory.jsonl"
    path.write_bytes(mark + "".join(json.dumps(row) + "\n" for row in rows).encode())
    (trace,) = memory_log.read(Source(path, path.name, "memory_log", "log"), Want())
    assert trace["memory_log"]["step"].tolist() == [0, 1, 2]
