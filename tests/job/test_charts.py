"""Pictures of measurements: what is drawn where, exactly and bounded."""

import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.job import charts
from tracekit.pipeline.run import Options, analyze_uncached

DRAWING = ("data-quality", "steps", "gpu-time", "communication")


def report_of(folder, ranks, **meta):
    """The sections with these pictures, and what the clocks are compared by."""
    for rank, rows in ranks.items():
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks), **meta)
    return analyze_uncached(folder, Options(jobs=1, questions=DRAWING)).report


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


ALL_REDUCE = {
    "Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "Group size": 3, "dtype": "Float",
    "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]",
}  # fmt: skip


def meeting(ahead, lengths=(40, 55, 30), shared=True):
    """The rows of ranks whose clocks are `ahead`: `gen` of `lengths`, then three all-reduces that end together."""
    rows = {}
    for rank, (by, length) in enumerate(zip(ahead, lengths, strict=True)):
        rows[rank] = [step(1, by, 1000), annotation("gen", by + rank, length), annotation("ref", by + 100, 800)]
        for k, end in enumerate((200, 500, 900) if shared else ()):
            begin = end - 20 - 10 * rank
            rows[rank] += launched(
                "ncclDevKernel_AllReduce", begin + by - 5, begin + by, end - begin, 10 + k, **ALL_REDUCE
            )
    return rows  # fmt: skip


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=3, max_size=3), st.integers(0, 2), st.booleans(),
    st.sampled_from((1_000_000, -1_000_000, 1)),
)  # fmt: skip
def test_a_clock_that_is_off_changes_no_picture(tmp_path_factory, lengths, moved, epoch, by):
    """Where collectives tell by how much, also when the clocks count from no epoch."""
    pictures = []
    for ahead in ((0, 0, 0), tuple(by * (rank == moved) for rank in range(3))):
        base = {} if epoch else {"base_ns": None}
        rows = meeting([a + 2_000_000 for a in ahead], lengths)
        report = report_of(tmp_path_factory.mktemp("clocks"), rows, **base)
        pictures.append([chart(report, "steps", "gantt-1").marks, chart(report, "gpu-time", "utilisation").marks])
    assert pictures[0] == pictures[1]


def notes(folder, rows, **meta):
    report = report_of(folder, rows, **meta)
    found = (chart(report, "steps", "gantt-1").caption, chart(report, "gpu-time", "utilisation").caption)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(("ahead", "note"), [
    ((0, 0, 0), "none was found to be off."),
    ((0, 0, 1_000_000), "clock of rank 2 moved by −1,000 ms."),
    ((0, -2000, 300), "clock of rank 1 moved by 2.00 ms; clock of rank 2 moved by −300 µs."),
])  # fmt: skip
def test_a_picture_says_whose_clock_was_moved(tmp_path, ahead, note):
    assert notes(tmp_path, meeting(ahead)) == f"All on one clock: {note}"


def test_many_clocks_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "MAX_NAMED", 1)
    note = notes(tmp_path, meeting((0, -2000, 300)))
    assert note == "All on one clock: 2 of 3 moved, by up to 2.00 ms."


def test_the_clock_of_one_host_is_left_alone(tmp_path):
    """What its processes seem to be off by is when they left the collectives."""
    assert notes(tmp_path, meeting((0, 0, 300)), host_name="one") == "All on the clock of their host."


def test_clocks_without_anything_shared_stay_as_recorded(tmp_path):
    rows = {rank: [*mine, *launched("gemm", 1, 2, 9, 1)] for rank, mine in meeting((0, 0, 300), shared=False).items()}
    report = report_of(tmp_path, rows)
    found = chart(report, "steps", "gantt-1")
    assert found.caption == "Each on the clock of its host: the clocks were not compared."
    assert {(mark[0], mark[2]) for mark in found.marks if mark[1] == 0} == {
        (0, 0), (1, 1_000), (2, 302_000),
    }  # fmt: skip


def test_a_rank_that_shares_nothing_is_counted_as_not_compared(tmp_path):
    apart = meeting((0, 0, 0), shared=False)[2]
    rows = meeting((0, 5000, 0)) | {2: [*apart, *launched("gemm", 1, 2, 9, 1)]}
    note = "All on one clock: clock of rank 1 moved by −5.00 ms. Not compared: the clocks of 1."
    assert notes(tmp_path, rows) == note


def test_one_process_needs_no_word_about_clocks(tmp_path):
    found = chart(report_of(tmp_path, {0: two_ranks()[0]}), "steps", "gantt-1")
    assert found.caption == ""


def test_a_step_without_stages_has_no_picture(tmp_path):
    """The slowest step has none; the median of the three has one."""
    rows = [step(1, 0, 100), annotation("gen", 0, 50), step(2, 100, 300), step(3, 400, 110), annotation("gen", 400, 9)]
    report = report_of(tmp_path, {0: rows})
    titles = [c.title for s in report.sections if s.id == "steps" for c in s.charts]
    assert titles == ["Stages of step 3, the median step", "Wall of each step"]


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
    rows = [step(1, 0, 100), annotation("gen", 10, 40), step(2, 100, 60), annotation("gen", 100, 60)]
    found = chart(report_of(tmp_path, {0: rows}), "steps", "steps")
    assert found.rows == ("step 1", "step 2")
    assert found.series == ("in stages", "outside any stage")
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


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 400)), min_size=1, max_size=12))
def test_the_pieces_add_up_to_the_busy_time(tmp_path_factory, spans):
    rows = [op("a", 0, 1)]
    for number, (start, dur) in enumerate(spans):
        rows += launched("k", 0, start, dur, number + 1, stream=number % 3)
    path = write(tmp_path_factory.mktemp("bins") / "rank0.json", rows)
    measured = analyze_uncached(path, Options(jobs=1)).measurements
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
