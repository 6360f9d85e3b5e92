"""Recorded ends are rounded: neighbours that overlap by the clock's resolution stay neighbours, at every place that nests."""

import numpy as np
import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.job.stages.durations import measure_stage_durations
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.process.calls.nesting import build_call_tree, measure_exclusive_host_times, measure_time_resolution
from tracekit.process.steps.windows import find_steps_and_stages
from tracekit.readers.loading import load

STAGES = ("gen", "ref", "update_actor")


def trace_of(folder, rows, **meta):
    """The trace of these rows."""
    return load(write(folder / "trace.json", rows, **meta))


@pytest.mark.parametrize(
    ("starts_us", "expected_ns"),
    [
        ([0, 17, 33, 1005], 1000),  # whole microseconds
        ([0, 17.5, 33.25, 1005.75], 250),  # a double of microseconds since 1970
        ([n * 3 + (0, 0.2, 0.5, 0.8)[n % 4] for n in range(64)], 300),  # the same in its shortest form
        ([0.001, 17.123, 33.456], 1),
        ([], 1),
    ],
)
def test_the_resolution_is_that_of_the_recorded_starts(tmp_path, starts_us, expected_ns):
    rows = [op("aten::add", at, 1) for at in starts_us]
    assert measure_time_resolution(trace_of(tmp_path, rows)) == expected_ns


@pytest.mark.parametrize(("unit_us", "overlap_us"), [(0.001, 0.001), (1, 1)])
def test_stages_that_overlap_by_rounding_are_neighbours(tmp_path, unit_us, overlap_us):
    """Three stages of 100 in a step of 300 µs, each recorded one unit longer than it is."""
    at = [unit_us, 100 + unit_us, 200 + unit_us]
    rows = [step(1, unit_us, 300), op("aten::add", 2 * unit_us, unit_us)]
    rows += [annotation(n, t, 100 + overlap_us) for n, t in zip(STAGES, at, strict=True)]
    trace = trace_of(tmp_path, rows)
    assert measure_time_resolution(trace) == unit_us * 1000
    found = find_steps_and_stages(trace).stages
    assert found["stage"].tolist() == list(STAGES)
    assert found["parent"].isna().all()
    assert found["step"].tolist() == [1, 1, 1]


def test_a_range_that_overlaps_by_more_is_inside(tmp_path):
    """3 µs of overlap at whole microseconds is not rounding."""
    rows = [step(1, 0, 300), annotation("gen", 0, 103), annotation("ref", 100, 200)]
    assert find_steps_and_stages(trace_of(tmp_path, rows)).stages["parent"].tolist()[1] == "gen"


def test_a_child_that_outlasts_its_parent_by_rounding_stays_inside(tmp_path):
    """A call of 2 µs that ends one unit after the op that made it; one of 50 µs likewise."""
    rows = [op("aten::mm", 0, 100), op("cudaLaunchKernel", 99, 2), op("aten::linear", 200, 100), op("aten::addmm", 251, 50)]  # fmt: skip
    trace = trace_of(tmp_path, rows)
    assert trace.derived(build_call_tree).parent.tolist() == [-1, 0, -1, 2]


def test_own_times_of_overlapping_neighbours_add_up_to_what_is_covered(tmp_path):
    """0–51 with 40–51 in it, 50–100: 100 µs are covered; what began last has the microsecond."""
    rows = [op("a", 0, 51), op("b", 40, 11), op("c", 50, 50)]
    trace = trace_of(tmp_path, rows)
    assert trace.derived(build_call_tree).parent.tolist() == [-1, 0, -1]
    assert measure_exclusive_host_times(trace).tolist() == [40_000, 10_000, 50_000]


def test_a_range_as_long_as_its_step_but_for_rounding_is_a_stage(tmp_path):
    """A name that is not known, 1 µs longer than the step."""
    rows = [step(1, 0, 100), annotation("my_stage", 0, 101), step(2, 150, 100), annotation("my_stage", 150, 100)]  # fmt: skip
    assert find_steps_and_stages(trace_of(tmp_path, rows)).stages["stage"].tolist() == ["my_stage", "my_stage"]


def test_validation_behind_a_step_that_ends_late_by_rounding_is_not_in_it(tmp_path):
    rows = [step(1, 0, 101), annotation("gen", 0, 100), annotation("testing", 100, 50), step(2, 150, 100)]  # fmt: skip
    found = find_steps_and_stages(trace_of(tmp_path, rows)).stages
    assert found["step"].isna().tolist() == [False, True]


def job_rows(unit, shifts):
    """Three steps of three stages with an op and a kernel each; the end of each range is off by its shift."""
    rows, at, number, shift = [], 0, 0, iter(shifts)
    for index in (1, 2, 3):
        begin = at
        for name, length in zip(STAGES, (300, 100, 500), strict=True):
            number += 1
            rows.append(annotation(name, at * unit, (length + next(shift)) * unit))
            rows.append(op("aten::mm", (at + 10) * unit, 20 * unit))
            rows += launched("gemm", (at + 12) * unit, (at + 40) * unit, (length - 60) * unit, number)
            at += length
        rows.append(step(index, begin * unit, (at - begin + next(shift)) * unit))
    return rows


def stages_and_shares(folder, rows):
    """(the stages with their steps and what encloses them, share of the step by stage)."""
    path = write(folder / "trace.json", rows, rank=0, world_size=1)
    measured = analyze_uncached(path, Options(jobs=1, questions=("steps",))).measurements
    stages, walls = measured["stages"], measure_stage_durations(measured)
    rows_of = stages[["step", "stage", "parent"]].astype(object).where(stages.notna(), None)
    return rows_of.to_numpy().tolist(), dict(zip(walls.values("canonical"), walls.values("share_ratio"), strict=True))


@settings(max_examples=25)
@given(st.sampled_from([0.001, 1]), st.lists(st.sampled_from([-1, 0, 1]), min_size=12, max_size=12))
def test_one_unit_of_jitter_on_ends_changes_no_stage_and_no_share(tmp_path_factory, unit, shifts):
    folder = tmp_path_factory.mktemp("jitter")
    expected, shares = stages_and_shares(folder, job_rows(unit, [0] * 12))
    got, jittered = stages_and_shares(folder, job_rows(unit, shifts))
    assert got == expected
    assert list(jittered) == list(shares)
    # Three of 900 units a step at most.
    assert np.allclose(list(jittered.values()), list(shares.values()), atol=3 / 900)
