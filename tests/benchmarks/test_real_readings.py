"""What a person reads from the raw rows of real profiles is what the report says."""

import os
from pathlib import Path

import pytest
from benchmarks import real_readings as readings

REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.slow
@pytest.mark.parametrize("reading", readings.READINGS, ids=lambda reading: reading.path)
def test_the_report_says_what_a_person_reads(reading):
    path = Path(REAL).parent / reading.path
    rows = readings.nsys(path) if path.suffix == ".sqlite" else readings.chrome(path)
    text, _ = reading.argued
    differences = readings.misses(reading, rows, readings.reported(path))
    assert [each for each in differences if not text or not each.startswith(text)] == []


def test_a_difference_is_seen():
    """A kernel of 60 in a window of 100, of which the report has 55, and another first cause."""
    rows = readings.Rows()
    rows.ops = [(0, 60, "sgemm", "kernel", 0, None), (90, 100, "ncclAllReduce", "kernel", 0, None)]
    reading = readings.Reading("", (), "launch-bound", "forward", "")
    ratios = {
        "compute_ratio": 0.55,
        "exposed_comm_ratio": 0.1,
        "copy_ratio": 0.0,
        "idle_ratio": 0.3,
    }
    headline = [
        {"name": name, "value": value} for name, value in {"step_wall": 102, **ratios}.items()
    ]
    kernels = {
        "name": "kernels",
        "headings": [{"name": "name"}, {"name": "total_ns"}],
        "rows": [["sgemm", 60]],
    }
    gaps = {
        "name": "idle_gaps",
        "headings": [{"name": "why"}, {"name": "dur_ns"}],
        "rows": [["other", 30]],
    }
    finding = {"rule": "drift", "claim": "longer", "recoverable_ns": 5, "severity": "low"}
    report = {
        "headline": headline,
        "sections": [{"sheets": [kernels, gaps], "findings": [finding]}],
    }
    assert readings.misses(reading, rows, report) == [
        "window 0.00 ms, not 0.00",
        "compute 55.0%, not 60.0%",
        "first is drift (longer), not launch-bound (forward)",
    ]
