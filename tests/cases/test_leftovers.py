"""Small remainders after start-up, and real profiles that hold almost nothing else."""

import os
from pathlib import Path

import pytest

import tracekit

REAL_DATA = os.environ.get("TRACEKIT_REAL_DATA")
needs_real_data = pytest.mark.skipif(not REAL_DATA, reason="TRACEKIT_REAL_DATA is not set")


@needs_real_data
def test_a_capture_of_nothing_but_start_up_says_so():
    """236 ms: 194 without any row, two launches of 17.4 and 17.8, one allocation of 3.6; device work of 6 µs."""
    path = Path(REAL_DATA) / "nsys" / "GindaChen_nsys-ai" / "mock.sqlite"
    first = tracekit.analyze(path).findings[0]
    assert first.rule == "start-up"
    assert first.recoverable_ns == pytest.approx(233e6, rel=0.01)
    assert "start of the program 194 ms (no calls), loading code 35.2 ms" in first.claim
    assert first.advice.startswith("record later: nsys profile --capture-range")


@needs_real_data
def test_a_first_op_that_waits_for_the_context_is_start_up():
    """2,187 of 3,154 µs in the first `aten::empty`, without a call below it; its launch follows after 3 µs."""
    path = Path(REAL_DATA).parent / "more" / "chrome" / "hta" / "critical_path" / "cuda_event_sync"
    if not path.exists():
        pytest.skip("not among these data")
    first = tracekit.analyze(path).findings[0]
    assert (first.rule, first.recoverable_ns) == ("start-up", 2_187_000)
    assert "first allocations 2.19 ms (aten::empty)" in first.claim
    assert first.advice.startswith("record later: torch.profiler.schedule")


@needs_real_data
@pytest.mark.parametrize("name", ["alexnet", "simple_add"])
def test_little_work_after_long_start_up_ranks_low(name):
    """41 of 43 s and 37 of 42 s of start-up: nothing else is worth 1 % of the capture."""
    path = Path(REAL_DATA) / "chrome" / "hta" / "critical_path" / name
    if not path.exists():
        path = Path(REAL_DATA).parent / "more" / "chrome" / "hta" / "critical_path" / name
    if not path.exists():
        pytest.skip("not among these data")
    first, *others = tracekit.analyze(path).findings
    assert (first.rule, first.severity) == ("start-up", "high")
    assert others
    assert {other.severity for other in others} == {"info"}
