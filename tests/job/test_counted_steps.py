"""The steps that count: told apart by their device work, the same in headline, means, findings and comparisons."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, launch, launched, memcpy, op, step, write

from tracekit.analyses.time.repeats import select_steady_samples
from tracekit.job.steps.steady_steps import drop_left_out_steps, list_left_out_steps
from tracekit.job.steps.warm_up import _AHEAD, _EMPTY, _OPENING
from tracekit.model.metrics import STEP_TIME
from tracekit.pipeline.run import Options, analyze_uncached

REAL = os.environ.get("TRACEKIT_REAL_DATA")
AHEAD, EMPTY, FIRST = _AHEAD, _EMPTY, _OPENING


def run_of(walls, works, *, launches=10):
    """Steps of these walls (µs), in each of which kernels of so long together are launched; the device works in order."""
    rows, at, free = [], 0, 0
    for number, (wall, work) in enumerate(zip(walls, works, strict=True), 1):
        rows += [step(number, at, wall), op("aten::forward", at + 1, max(wall - 2, 1))]
        each = work // launches
        for place in range(launches if work else 0):
            begin = max(free, at + 2 + place)
            correlation = 1000 * number + place
            rows += launched("gemm", at + 2 + place, begin, each, correlation)
            free = begin + each
        at += wall
    return rows


def analysis(tmp_path, rows, **options):
    return analyze_uncached(write(tmp_path / "rank0.json", rows), Options(**options))


def told(result):
    return [(s.step, s.reason) for s in list_left_out_steps(result.measurements)]


def headline(result):
    return {metric.name: metric.value for metric in result.report.headline}


def test_steps_whose_host_ran_ahead_do_not_count(tmp_path):
    """As in a real capture: the host queues two steps, and from the third on every step lasts as long as its work."""
    result = analysis(tmp_path, run_of([35, 72, 96, 95, 97], [90] * 5))
    assert told(result) == [(1, AHEAD), (2, AHEAD)]
    assert headline(result)["step_wall"] == pytest.approx(96_000)
    text = " ".join(result.report.identity)
    assert "steps 3–5 of 1–5 (1, 2: out of step with its device work: the host ran ahead)" in text


def test_steps_that_a_person_chose_all_count(tmp_path):
    result = analysis(tmp_path, run_of([35, 72, 96, 95, 97], [90] * 5), steps="2-4")
    assert told(result) == []
    assert headline(result)["step_wall"] == pytest.approx((72 + 96 + 95) * 1000 / 3)


def test_comparisons_rest_on_the_same_steps(tmp_path):
    result = analysis(tmp_path, run_of([35, 72, 96, 95, 97], [90] * 5))
    samples, left_out, _ = select_steady_samples(result.measurements)
    assert [step for _, step, _ in samples[STEP_TIME, None, None].steps[0]] == [3, 4, 5]
    assert [(s.step, s.reason) for s in left_out.steps] == told(result)


def test_a_stub_at_the_end_holds_no_step(tmp_path):
    result = analysis(tmp_path, run_of([900, 5], [150, 0]))
    assert told(result) == [(2, EMPTY)]
    assert headline(result)["step_wall"] == 900_000


def test_a_last_step_that_is_really_short_counts(tmp_path):
    """As many launches as the others, in a third of the time."""
    result = analysis(tmp_path, run_of([900, 900, 900, 300], [150, 150, 150, 60]))
    assert told(result) == [(1, FIRST)]
    assert headline(result)["step_wall"] == pytest.approx(700_000)


@pytest.mark.parametrize("place", [1, 3])
def test_a_step_that_holds_only_host_work_on_purpose_counts(tmp_path, place):
    """As long as the others, in the middle or at the end."""
    works = [150] * 4
    works[place] = 0
    result = analysis(tmp_path, run_of([900] * 4, works))
    assert told(result) == [(1, FIRST)]


def test_a_recording_of_a_host_alone_stays_as_it_is(tmp_path):
    rows = [row for row in run_of([100, 200, 300], [0] * 3) if row["cat"] != "kernel"]
    result = analysis(tmp_path, rows)
    assert told(result) == []
    assert headline(result)["step_wall"] == 200_000


def test_of_two_steps_with_like_work_both_count(tmp_path):
    result = analysis(tmp_path, run_of([600, 620], [150, 150]))
    assert told(result) == []
    assert headline(result)["step_wall"] == 610_000


def test_steps_of_a_host_that_runs_ahead_in_most_are_those_of_its_device(tmp_path):
    """The host waits for the device in every second step: its walls mean nothing, those of the work do.

    The work of each is done at 92, 182 | 292, 382 | 492, 582 and the host's waits end at 200, 400, 600: the steps are 92
    and 108 long in turns. The first does not count.
    """
    result = analysis(tmp_path, run_of([20, 180] * 3, [90] * 6))
    assert told(result) == [(1, FIRST)]
    assert headline(result)["step_wall"] == (3 * 108 + 2 * 92) * 1000 / 5
    assert not any("work of one step runs in another" in text for text in result.report.cautions)


def test_what_is_summed_over_a_whole_recording_is_divided_by_all_its_steps(tmp_path):
    """A copy of 4 MiB from pageable memory in each of five steps, of which three count: 4 MiB a step; kernels hide it."""
    rows = run_of([35, 72, 96, 96, 96], [40] * 5)
    starts = [0, 35, 107, 203, 299]
    for number, at in enumerate(starts):
        rows += [launch(at + 20, 9000 + number, name="cudaMemcpyAsync")]
        rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at + 21, 14, 4 << 20, 9000 + number)]
    result = analysis(tmp_path, rows)
    (found,) = [f for s in result.report.sections for f in s.findings if f.rule == "pageable-copies"]
    values = {metric.name: metric.value for metric in found.evidence}
    assert (values["pageable_bytes"], found.cost_ns) == (4 << 20, 0)


def test_the_table_of_steps_shows_every_step_with_its_reason(tmp_path):
    result = analysis(tmp_path, run_of([900, 900, 900, 5], [150, 150, 150, 0]))
    (section,) = [s for s in result.report.sections if s.id == "steps"]
    (sheet,) = [s for s in section.sheets if s.name == "steps"]
    names = [heading.name for heading in sheet.headings]
    rows = [dict(zip(names, row, strict=True)) for row in sheet.rows]
    assert [(row["step"], row["left_out"]) for row in rows] == [
        (1, FIRST), (2, None), (3, None), (4, EMPTY)
    ]  # fmt: skip


def test_where_every_step_counts_the_measurements_are_the_same(tmp_path):
    measured = analysis(tmp_path, run_of([600, 620], [150, 150])).measurements
    assert drop_left_out_steps(measured, ()) is measured


def test_the_last_window_of_what_repeats_has_no_end_of_its_own(tmp_path):
    rows = []
    for n in range(4):
        rows += [annotation(f"execute_context_0(0)_generation_{n}(8)", 100 * n, 40)]
        rows += launched("gemm", 100 * n + 2, 100 * n + 5, 80, 1 + n)
    result = analysis(tmp_path, rows)
    assert [step for step, _ in told(result)] == [4]
    (metric,) = [m for m in result.report.headline if m.name == "step_wall"]
    assert (metric.value, metric.label) == (100_000, "step (iterations execute_context…)")


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
@pytest.mark.parametrize(
    ("file", "wall_us", "left_out"),
    [
        # By an own reading of the rows: 95.697, 95.551 and 95.699 ms; 94.6 ms of work are launched in steps of 35.1 and 72.1.
        ("data/chrome/hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 95_649, [101, 102]),
        ("more/chrome/hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz", 9_288, [2]),
        ("data/chrome/hta/trace_filter/sampled_rank-0.json.gz", 615_120, []),
        ("more/chrome/hta/df_index_resolver/df_index_resolver.json.gz", 347_988, [2]),
    ],
)  # fmt: skip
def test_steps_of_real_captures(file, wall_us, left_out):
    result = analyze_uncached(Path(str(REAL)).parent / file, Options())
    assert [step for step, _ in told(result)] == left_out
    assert headline(result)["step_wall"] / 1000 == pytest.approx(wall_us, abs=1)
