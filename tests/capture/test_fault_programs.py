"""A training that goes wrong while it is profiled ends and computes as if it were not, and its traces are what they should be.

Needs a Python that has torch and Ray (`TRACEKIT_VERL_PYTHON`). `tests/benchmarks/capture_faults.py` puts the same programs
under verl's profiler beside it.
"""

import pytest
import verl_python
from fault_programs import FAULTS
from fault_traces import left_by

if verl_python.PYTHON:

    @pytest.mark.slow
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_training_that_goes_wrong_ends_as_unprofiled_and_keeps_its_trace(tmp_path, name):
        (tmp_path / "nobody").mkdir()
        (tmp_path / "capture").mkdir()
        unprofiled = left_by("nobody", name, tmp_path / "nobody")
        left = left_by("capture", name, tmp_path / "capture")
        assert unprofiled.exit == FAULTS[name].exit, unprofiled.stderr[-3000:]
        assert (left.exit, left.value) == (unprofiled.exit, unprofiled.value), left.stderr[-3000:]
        if FAULTS[name].traces is not None:
            assert left.counted() == sorted(FAULTS[name].traces, key=str)

    @pytest.mark.slow
    def test_a_process_that_leaves_without_farewell_has_a_manifest_that_says_so(tmp_path):
        assert left_by("capture", "an exit without farewell", tmp_path).open_manifests == 1

    @pytest.mark.slow
    def test_each_of_overlapping_coroutines_has_a_range_from_its_begin_to_its_end(tmp_path):
        (trace,) = left_by("capture", "overlapping coroutines", tmp_path).traces
        turns = sorted((start, start + length) for name, start, length in trace if name == "turns")
        assert sorted(range(3), key=lambda number: turns[number][1]) == [2, 0, 1]
        assert max(start for start, _ in turns) < min(end for _, end in turns)

    @pytest.mark.slow
    @pytest.mark.parametrize(("name", "outer"), [("a generator", "streams"), ("a coroutine", "waits")])
    def test_the_range_of_what_is_not_over_when_it_returns_holds_its_work(tmp_path, name, outer):
        (trace,) = left_by("capture", name, tmp_path).traces
        ((start, length),) = [(s, n) for called, s, n in trace if called == outer]
        works = [(s, n) for called, s, n in trace if called == "work"]
        assert all(start <= s and s + n <= start + length for s, n in works)
