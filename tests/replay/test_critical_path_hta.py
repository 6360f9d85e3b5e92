"""The critical path on the traces of HTA's own tests: it is the whole window on each, and its table is as committed."""

import os
from pathlib import Path

import pytest
from benchmarks.critical_path_hta import CASES, TABLE, format_line, measure_path, read_lines

REAL = os.environ.get("TRACEKIT_REAL_DATA")
LINES = read_lines(TABLE.read_text("utf-8"))


def test_the_table_has_both_paths_of_every_trace():
    assert set(LINES) == {(name, tool) for name in CASES for tool in ("whatif", "HTA")}


def test_the_path_is_the_whole_window_on_every_trace():
    assert {LINES[name, "whatif"].split()[4] for name in CASES} == {"100.0%"}


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="no real data")
@pytest.mark.parametrize("name", CASES)
def test_the_path_and_its_parts_are_those_of_the_table(name):
    """Measuring asserts that the pieces add up to the window."""
    measured = measure_path(Path(REAL).parent / CASES[name].path, CASES[name])
    assert measured.length == measured.window
    assert format_line(name, "whatif", measured.window, measured.parts) == LINES[name, "whatif"]
