"""Pictures of measurements: what is drawn where, exactly and bounded."""

import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import charts
from tracekit.pipeline import Options, analyze


def report_of(folder, ranks, **meta):
    for rank, rows in ranks.items():
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks), **meta)
    return analyze(folder, Options(jobs=1)).report


def chart(report, section, chart_id):
    (found,) = [c for s in report.sections if s.id == section for c in s.charts if c.id == chart_id]
    return found


def two_ranks(late=7):
    """gen 0-40 and ref 50-70 of a step of 100; rank 1 does all of it `late` later."""
    return {
        rank: [step(1, at, 100), annotation("gen", at, 40), annotation("ref", at + 50, 20), op("a", at, 1)]
        for rank, at in ((0, 0), (1, late))
    }  # fmt: skip


def test_stages_of_all_ranks_stand_on_one_clock(tmp_path):
    found = chart(report_of(tmp_path, two_ranks()), "steps", "gantt-1")
    assert (found.kind, found.rows, found.series) == ("gantt", ("rank 0", "rank 1"), ("gen", "ref"))
    assert found.marks == (
        (0, 0, 0, 40_000), (0, 1, 50_000, 70_000), (1, 0, 7_000, 47_000), (1, 1, 57_000, 77_000),
    )  # fmt: skip


def test_without_an_epoch_every_process_begins_at_its_own_zero(tmp_path):
    found = chart(report_of(tmp_path, two_ranks(), base_ns=None), "steps", "gantt-1")
    assert [mark[2] for mark in found.marks] == [0, 50_000, 0, 50_000]
    assert "cannot be compared" in found.caption


def test_of_many_steps_the_slowest_and_the_median_are_drawn(tmp_path):
    durations, at, rows = (100, 130, 90, 110, 105), 0, []
    for number, dur in enumerate(durations, start=1):
        rows += [step(number, at, dur), annotation("gen", at, dur - 10)]
        at += dur
    report = report_of(tmp_path, {0: rows})
    titles = [c.title for s in report.sections if s.id == "steps" for c in s.charts]
    assert titles == [
        "Stages of step 2, the slowest step", "Stages of step 5, the median step", "Wall of each step",
    ]  # fmt: skip


def test_a_step_is_what_its_stages_cover_and_the_rest(tmp_path):
    rows = [
        step(1, 0, 100),
        annotation("gen", 10, 40),
        step(2, 100, 60),
        annotation("gen", 100, 60),
    ]
    found = chart(report_of(tmp_path, {0: rows}), "steps", "steps")
    assert found.rows == ("step 1", "step 2")
    assert found.series == ("in stages", "in no stage")
    assert found.marks == ((0, 0, 40_000), (0, 1, 60_000), (1, 0, 60_000), (1, 1, 0))


def test_ranks_sort_as_numbers(tmp_path):
    report = report_of(tmp_path, {rank: two_ranks()[0] for rank in range(11)})
    assert chart(report, "steps", "gantt-1").rows == tuple(f"rank {n}" for n in range(11))


def test_what_a_gpu_did_adds_up_to_its_window(tmp_path):
    """compute 0-50, a collective 40-70, a gap, compute 90-100."""
    rows = [
        step(1, 0, 100), *launched("gemm", 0, 0, 50, 1),
        *launched("ncclKernel", 1, 40, 30, 2, stream=9), *launched("gemm", 2, 90, 10, 3),
    ]  # fmt: skip
    report = report_of(tmp_path, {0: rows})
    found = chart(report, "gpu-time", "gpu-time")
    assert found.rows == ("rank 0",)
    assert found.marks == ((0, 0, 60_000), (0, 1, 20_000), (0, 4, 20_000))
    heat = chart(report, "gpu-time", "utilisation")
    assert (heat.marks[0][1], heat.marks[-1][2]) == (0, 100_000)
    busy = sum((end - start) * value for _, start, end, value in heat.marks)
    assert busy == pytest.approx(80_000)


def test_without_a_gpu_there_is_no_picture_of_one(tmp_path):
    report = report_of(tmp_path, two_ranks())
    assert not [c for s in report.sections if s.id == "gpu-time" for c in s.charts]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 400)), min_size=1, max_size=12))
def test_the_pieces_add_up_to_the_busy_time(tmp_path_factory, spans):
    rows = [op("a", 0, 1)]
    for number, (start, dur) in enumerate(spans):
        rows += launched("k", 0, start, dur, number + 1, stream=number % 3)
    path = write(tmp_path_factory.mktemp("bins") / "rank0.json", rows)
    measured = analyze(path, Options(jobs=1)).measurements
    bins, time = measured["busy_bins"], measured["gpu_time"]
    whole = time[time["window"] == "capture"]
    assert bins["busy_ns"].sum() == (whole["window_ns"] - whole["idle_ns"]).sum()
    assert bins["window_ns"].sum() == whole["window_ns"].sum()
    assert len(bins) <= 200
    assert ((bins["busy_ns"] >= 0) & (bins["busy_ns"] <= bins["window_ns"])).all()


def test_a_picture_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "MAX_MARKS", 3)
    found = chart(report_of(tmp_path, two_ranks()), "steps", "gantt-1")
    assert (len(found.marks), found.omitted) == (3, 1)
    # The first of the two shortest is what stays besides the two longest.
    assert [mark[3] - mark[2] for mark in found.marks] == [40_000, 20_000, 40_000]
