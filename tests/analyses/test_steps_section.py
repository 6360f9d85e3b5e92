"""Where the step goes: walls over ranks and steps, by captures of every kind."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chrome_builder import annotation, kernel, launched, op, step, write

from tracekit import render
from tracekit.analyses.time import steps
from tracekit.model.metrics import METRICS
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("steps",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def report_on(tmp_path, files, **meta):
    """The report on these files, by name; a file is its rows, or (rows, rank)."""
    for name, content in files.items():
        rows, rank = content if isinstance(content, tuple) else (content, None)
        write(tmp_path / name, rows, rank=rank, world_size=2, **meta)
    return analyze_uncached(tmp_path, Options(jobs=1, questions=QUESTIONS)).report


def sheet(report, name):
    section = next(s for s in report.sections if s.id == "steps")
    found = next((s for s in section.sheets if s.name == name), None)
    if found is None:
        return []
    columns = [heading.name for heading in found.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in found.rows]


def column(report, name, key):
    return [row.get(key) for row in sheet(report, name)]


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def verl(scope, number, rank=0, part="", role="actor-rollout-ref"):
    """A file name as verl 0.9.1 writes it."""
    when = "20260101000000000"
    return f"{role}_{scope}_step{number}_rank{rank}-of-2_pid{7 + rank}_{when}{part}.json"


def test_a_step_is_as_long_as_its_longest_rank_and_the_step_is_the_mean(tmp_path):
    """Step 1: 100 and 120; step 2: 140 and 90. Mean of 120 and 140."""
    report = report_on(tmp_path, {
        "rank0.json": ([step(1, 0, 100), step(2, 100, 140)], 0),
        "rank1.json": ([step(1, 5, 120), step(2, 125, 90)], 1),
    })  # fmt: skip
    assert column(report, "steps", "wall_ns") == [120_000, 140_000]
    assert column(report, "steps", "ranks") == [2, 2]
    assert headline(report)["step_wall"] == 130_000


def test_a_step_known_by_its_files_lasts_from_the_first_to_the_last_of_its_processes(tmp_path):
    """The actor works 0-50, the critic 40-100: one step of 100, not 50 + 60."""
    report = report_on(tmp_path, {
        verl("train", 3): [op("a", 0, 10), op("b", 40, 10)],
        verl("train", 3, role="value-model"): [op("a", 40, 60)],
    })  # fmt: skip
    assert column(report, "steps", "wall_ns") == [100_000]
    assert column(report, "steps", "step") == [3]


def test_ranks_whose_clocks_have_no_epoch_are_not_put_on_one_axis(tmp_path):
    """Rank 0 counts 0-50 and rank 1 counts 1000-1070 of clocks of their own: the step is 70, not 1070."""
    files = {
        verl("train", 3, rank): ([annotation("gen", at, dur)], rank) for rank, at, dur in ((0, 0, 50), (1, 1000, 70))
    }
    report = report_on(tmp_path, files, base_ns=None)
    assert column(report, "steps", "wall_ns") == [70_000]
    assert column(report, "steps", "unattributed_ns") == [0]
    (tmp_path / "one").mkdir()
    assert column(report_on(tmp_path / "one", files), "steps", "wall_ns") == [1_070_000]


def test_stage_walls_are_longest_rank_then_mean_over_steps(tmp_path):
    """gen: 40 and 60 in step 1, 50 and 30 in step 2: 60 and 50, mean 55."""
    steps = [step(1, 0, 100), step(2, 100, 100)]
    report = report_on(tmp_path, {
        "rank0.json": ([*steps, annotation("gen", 0, 40), annotation("gen", 100, 50)], 0),
        "rank1.json": ([*steps, annotation("gen", 0, 60), annotation("gen", 100, 30)], 1),
    })  # fmt: skip
    (row,) = sheet(report, "stages")
    assert (row["wall_ns"], row["low_ns"], row["high_ns"]) == (55_000, 50_000, 60_000)
    assert (row["ranks"], row["steps"], row["instances"]) == (2, 2, 1)
    assert row["share_ratio"] == 0.55
    assert [cells[1] for cells in report.overview.rows] == [55_000]


def test_a_stage_that_runs_twice_in_a_step_takes_both_times(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 20), annotation("gen", 50, 30)]
    (row,) = sheet(report_on(tmp_path, {"rank0.json": rows}), "stages")
    assert (row["wall_ns"], row["instances"]) == (50_000, 2)


def test_what_no_stage_covers_is_said(tmp_path):
    """gen 0-30 and update 40-90 of 100; the mini-batch inside adds nothing."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 30), annotation("actor_update", 40, 50), annotation("mini_batch0", 45, 40),
    ]  # fmt: skip
    report = report_on(tmp_path, {"rank0.json": rows})
    assert column(report, "steps", "unattributed_ns") == [20_000]
    assert headline(report)["unattributed_ratio"] == pytest.approx(0.2)


def test_without_stages_nothing_is_said_to_be_attributed(tmp_path):
    report = report_on(tmp_path, {"rank0.json": [step(1, 0, 100), op("a", 0, 5)]})
    assert column(report, "steps", "unattributed_ns") == [None]
    assert "unattributed_ratio" not in headline(report)
    assert report.overview is None


def test_stages_of_two_roles_cover_the_step_together_and_are_told_apart(tmp_path):
    """The actor updates 0-60 while the critic updates 40-100: nothing is left over."""
    report = report_on(tmp_path, {
        verl("train", 3): [annotation("actor_update", 0, 60)],
        verl("train", 3, role="value-model"): [annotation("train_batch", 40, 60)],
    })  # fmt: skip
    assert column(report, "steps", "unattributed_ns") == [0]
    rows = [(row["role"], row["canonical"], row["wall_ns"]) for row in sheet(report, "stages")]
    assert sorted(rows) == [
        ("actor-rollout-ref", "update_actor", 60_000), ("value-model", "update_critic", 60_000),
    ]  # fmt: skip


def test_a_critic_that_shares_the_workers_of_the_actor_is_told_from_it(tmp_path):
    """As verl's PPO trainer has it: the critic updates 0-40 in three batches, the actor 50-100 in a named stage."""
    report = report_on(tmp_path, {
        verl("train", 3): [
            annotation("train_batch", 0, 20), annotation("train_batch", 20, 10), annotation("critic/train_batch", 30, 10),
            annotation("actor_update", 50, 50),
        ],
    })  # fmt: skip
    assert column(report, "steps", "unattributed_ns") == [10_000]
    rows = [(row["role"], row["canonical"], row["wall_ns"]) for row in sheet(report, "stages")]
    assert sorted(rows) == [
        ("actor-rollout-ref", "update_actor", 50_000), ("actor-rollout-ref", "update_critic", 40_000),
    ]  # fmt: skip


def test_a_training_batch_in_a_mini_batch_is_an_update_as_long_as_that(tmp_path):
    """verl's critic marks nothing around its mini-batches: they last 0-40 and 60-100, the batches in them less."""
    report = report_on(tmp_path, {
        verl("train", 3, role="value-model"): [
            annotation("mini_batch0", 0, 40), annotation("train_batch", 1, 38), annotation("micro_batch0", 2, 30),
            annotation("mini_batch1", 60, 40), annotation("train_batch", 61, 38),
        ],
    })  # fmt: skip
    (row,) = sheet(report, "stages")
    assert (row["canonical"], row["wall_ns"], row["instances"]) == ("update_critic", 80_000, 2)
    assert column(report, "steps", "unattributed_ns") == [20_000]


def test_a_training_batch_within_an_update_is_a_part_of_it(tmp_path):
    report = report_on(tmp_path, {
        verl("train", 3): [annotation("actor_update", 0, 100), annotation("mini_batch0", 10, 80), annotation("train_batch", 20, 60)],
    })  # fmt: skip
    (row,) = sheet(report, "stages")
    assert (row["canonical"], row["wall_ns"]) == ("update_actor", 100_000)


def test_single_stage_files_make_a_step_of_what_was_captured(tmp_path):
    """gen 0-30 and, after a pause that nobody recorded, the update 1000-1050: 80 of captured stages."""
    report = report_on(tmp_path, {
        verl("rollout-generate", 3): [annotation("rollout_generate", 0, 30)],
        verl("actor-update", 3): [annotation("actor_update", 1000, 50)],
    })  # fmt: skip
    (row,) = sheet(report, "steps")
    assert (row["wall_ns"], row["unattributed_ns"]) == (80_000, 0)
    assert "the time between them was not recorded" in row["origin"]
    assert report.headline[0].label == "captured stages"
    assert "unattributed_ratio" not in headline(report)
    assert [(r["canonical"], r["wall_ns"]) for r in sheet(report, "stages")] == [
        ("update_actor", 50_000), ("gen", 30_000),
    ]  # fmt: skip


def test_mini_batches_captured_alone_are_their_stage(tmp_path):
    """Of four mini-batches a schedule records the second and the fourth, without the range around them."""
    report = report_on(tmp_path, {
        verl("actor-update", 2, part="_mb1"): [annotation("mini_batch1", 0, 20)],
        verl("actor-update", 2, part="_mb3"): [annotation("mini_batch3", 60, 25)],
    })  # fmt: skip
    (row,) = sheet(report, "stages")
    assert (row["canonical"], row["wall_ns"], row["instances"]) == ("update_actor", 45_000, 2)
    assert column(report, "steps", "wall_ns") == [45_000]


def test_mini_batches_of_a_whole_step_are_no_stage(tmp_path):
    report = report_on(tmp_path, {verl("train", 2, part="_mb1"): [annotation("mini_batch1", 0, 20)]})
    assert sheet(report, "stages") == []
    assert [row["stage"] for row in sheet(report, "ranges")] == []
    assert column(report, "steps", "wall_ns") == [20_000]


def continuous(*starts):
    """Log-probs for 30 and an update for 50, beginning at each of these times, and a last op at the end."""
    rows = [annotation(name, at + after, dur) for at in starts
            for name, after, dur in (("actor_compute_log_prob", 0, 30), ("actor_update", 40, 50))]  # fmt: skip
    return [*rows, op("aten::mm", starts[-1] + 95, 5)]


def test_a_capture_of_several_steps_is_divided_where_its_first_stage_begins_anew(tmp_path):
    """Named by its first step, 4; the second begins at 120 and ends with the capture at 220."""
    report = report_on(tmp_path, {verl("train", 4): continuous(0, 120)})
    assert [(r["step"], r["wall_ns"], r["unattributed_ns"]) for r in sheet(report, "steps")] == [
        (4, 120_000, 40_000), (5, 100_000, 20_000),
    ]  # fmt: skip
    assert {r["canonical"]: (r["wall_ns"], r["steps"]) for r in sheet(report, "stages")} == {
        "update_actor": (50_000, 2), "old_log_prob": (30_000, 2),
    }  # fmt: skip
    assert report.identity[2:4] == ("actor-rollout-ref", "steps 4, 5")


def test_stages_that_do_not_come_equally_often_divide_nothing(tmp_path):
    rows = [*continuous(0, 120), annotation("actor_update", 230, 10)]
    report = report_on(tmp_path, {verl("train", 4): rows})
    assert column(report, "steps", "step") == [4]


def test_gpu_work_is_by_launch_and_per_step_and_rank(tmp_path):
    """Two ranks, two steps: 60 of work launched in gen each time, although it runs after gen's 10."""
    rows = [step(1, 0, 100), step(2, 100, 100), annotation("gen", 0, 10), annotation("gen", 100, 10)]
    rows += [*launched("k", 1, 20, 60, 1), *launched("k", 101, 120, 60, 2)]
    report = report_on(tmp_path, {f"rank{r}.json": (rows, r) for r in (0, 1)})
    (row,) = sheet(report, "stages")
    assert (row["work_busy_ns"], row["launch_count"], row["wall_ns"]) == (60_000, 1, 10_000)


def test_a_rank_that_missed_a_step_does_not_dilute_the_work(tmp_path):
    """Rank 1 recorded step 1 only: 60 of work in each of three (rank, step) pairs."""
    one = [step(1, 0, 100), annotation("gen", 0, 10), *launched("k", 1, 20, 60, 1)]
    two = [step(2, 100, 100), annotation("gen", 100, 10), *launched("k", 101, 120, 60, 2)]
    report = report_on(tmp_path, {"rank0.json": ([*one, *two], 0), "rank1.json": (one, 1)})
    (row,) = sheet(report, "stages")
    assert (row["work_busy_ns"], row["launch_count"]) == (60_000, 1)


def test_an_op_longer_than_the_capture_is_no_work_of_a_stage(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 50), *launched("k", 1, 20, 30, 1)]
    rows += launched("corrupt", 5, 60, 10_000, 2)
    (row,) = sheet(report_on(tmp_path, {"rank0.json": rows}), "stages")
    assert (row["work_busy_ns"], row["launch_count"]) == (30_000, 1)


def test_the_null_stream_of_rocm_is_a_stream(tmp_path):
    """Its number is 0: its kernels belong to the step that launched them all the same."""
    rows = [step(1, 0, 100), annotation("gen", 0, 50), *launched("k", 1, 20, 30, 1, stream=0)]
    (row,) = sheet(report_on(tmp_path, {"rank0.json": rows}), "stages")
    assert (row["work_busy_ns"], row["launch_count"]) == (30_000, 1)


def test_steps_without_any_length_have_no_share(tmp_path):
    report = report_on(tmp_path, {"rank0.json": [step(1, 5, 0), annotation("gen", 5, 0)]})
    assert headline(report) == {"step_wall": 0}
    assert [r for r in report.remarks if r.severity == "error"] == []


def test_without_a_gpu_there_are_no_columns_of_gpu_work(tmp_path):
    report = report_on(tmp_path, {"rank0.json": [step(1, 0, 100), annotation("gen", 0, 50)]})
    (row,) = sheet(report, "stages")
    assert not {"work_busy_ns", "launch_count"} & set(row)


def test_ranks_that_are_not_known_are_not_counted_as_none(tmp_path):
    report = report_on(tmp_path, {"trace.json": [step(1, 0, 100)]})
    assert "ranks" not in sheet(report, "steps")[0]


def test_steps_of_two_runs_are_not_mixed(tmp_path):
    for run, dur in (("a", 100), ("b", 300)):
        write(tmp_path / run / "rank0.json", [step(1, 0, dur)], rank=0, world_size=1)
    report = analyze_uncached([tmp_path / "a", tmp_path / "b"], Options(jobs=1, questions=QUESTIONS)).report
    assert [(r["run"], r["wall_ns"]) for r in sheet(report, "steps")] == [
        ("a", 100_000), ("b", 300_000),
    ]  # fmt: skip


def test_a_trace_of_a_device_alone_is_one_capture(tmp_path):
    report = report_on(tmp_path, {"rank0.json": [kernel("k", 10, 30), kernel("k", 60, 40)]})
    (row,) = sheet(report, "steps")
    assert row["wall_ns"] == 90_000


def test_what_is_never_compared_is_not_among_the_values_for_a_later_compare(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 20), annotation("gen", 50, 30)]
    write(tmp_path / "rank0.json", rows, rank=0)
    values = analyze_uncached(tmp_path, Options(jobs=1)).report.values
    names = [heading.name for heading in values.headings]
    found = [dict(zip(names, cells, strict=True)) for cells in values.rows]
    assert [(v["name"], v["stage"], v["value"]) for v in found if v["name"].endswith("_time")] == [
        ("step_time", None, 100_000), ("stage_time", "gen", 50_000),
    ]  # fmt: skip
    assert {v["name"] for v in found} <= set(METRICS)


SCENARIOS = ("v080_discrete", "v090_discrete", "v091_discrete", "v091_schedule_discrete")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_real_single_stage_files_add_up_to_their_known_spans(scenario):
    """The manifest gives each file's span in tenths of a millisecond, worked out when it was written."""
    if REAL is None:
        pytest.skip("real profiles are not here")
    root = Path(REAL) / "chrome" / "verl_cpu"
    files = json.loads((root / "manifest.json").read_text())
    spans = [f["span_ms"] for f in files if f["file"].startswith(scenario + "/")]
    report = analyze_uncached(root / scenario / "outputs" / "profile", Options(jobs=1, questions=QUESTIONS)).report
    (row,) = sheet(report, "steps")
    assert row["wall_ns"] / 1e6 == pytest.approx(sum(spans), abs=0.05 * len(spans) + 0.01)
    assert row["unattributed_ns"] < 0.01 * row["wall_ns"]


def test_a_real_continuous_capture_holds_its_steps():
    if REAL is None:
        pytest.skip("real profiles are not here")
    path = Path(REAL) / "chrome" / "verl_cpu" / "v091_e2e_continuous" / "outputs" / "profile"
    report = analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report
    assert column(report, "steps", "step") == [1, 2, 4]
    assert {row["canonical"] for row in sheet(report, "stages")} == {
        "gen", "old_log_prob", "ref", "update_actor",
    }  # fmt: skip
    assert {row["steps"] for row in sheet(report, "stages")} == {3}


def test_the_answer_says_what_its_bounds_are_in_every_form(tmp_path):
    """Two steps, of 100 and 140."""
    report = report_on(tmp_path, {"rank0.json": ([step(1, 0, 100), step(2, 100, 140)], 0)})
    assert "120 µs (steps 100–140 µs)" in render(report, "text")
    assert "120 µs (steps 100–140 µs)" in render(report, "md")
    assert "120 µs (steps 100–140 µs)" in render(report, "html")


def test_one_step_has_no_bounds(tmp_path):
    report = report_on(tmp_path, {"rank0.json": ([step(1, 0, 100)], 0)})
    assert "(steps" not in render(report, "md")


@pytest.mark.parametrize("runs", [("a", "b"), ("a",)])
def test_of_several_runs_each_verdict_and_finding_names_its_own_once(tmp_path, runs):
    """In each run ten steps of 100, of which one takes 300; beside them one of a single step."""
    for run in runs:
        at, rows = 0, []
        for number in range(10):
            rows.append(step(number, at, 300 if number == 5 else 100))
            at += 300 if number == 5 else 100
        write(tmp_path / run / "rank0.json", rows, rank=0)
    write(tmp_path / "short" / "rank0.json", [step(1, 0, 100)], rank=0)
    given = [f"{run}={tmp_path / run}" for run in (*runs, "short")]
    section = next(
        s for s in analyze_uncached(given, Options(jobs=1, questions=QUESTIONS)).report.sections if s.id == "steps"
    )
    claims = [found.claim for found in section.findings if found.rule == "step-variance"]
    assert [claim.count("(run ") for claim in claims] == [1] * len(runs)
    assert {claim.split("(run ")[1] for claim in claims} == {f"{run})" for run in runs}
    assert [(v.run, v.reason) for v in section.verdicts] == [("short", "1 of at least 4 steps")]


def test_one_run_is_not_named(tmp_path):
    report = report_on(tmp_path, {"rank0.json": ([step(1, 0, 100)], 0)})
    section = next(s for s in report.sections if s.id == "steps")
    assert [(v.run, v.reason) for v in section.verdicts] == [(None, "1 of at least 4 steps")]


@pytest.mark.parametrize("names", [
    ("execute_context_1(9)_generation_0(0)", "execute_context_0(0)_generation_1(1)"),
    ("step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]"),
    ("entire_frame_compile (dynamo_timed)", "code_gen (dynamo_timed)"),
])  # fmt: skip
def test_iterations_and_compilation_are_no_stages(tmp_path, names):
    """The stages of the file: none; of the ranges as recorded: all."""
    rows = [annotation(name, 50 * at, 40) for at, name in enumerate(names)]
    report = report_on(tmp_path, {"rank0.json": (rows, 0)})
    assert report.overview is None
    assert column(report, "stages", "canonical") == []


# R30


def variance(tmp_path, *lengths):
    """What R30 finds, and its verdicts, on marked steps of these µs."""
    rows, at = [], 0
    for number, length in enumerate(lengths, 1):
        rows += [step(number, at, length), op("aten::mm", at, length)]
        at += length
    report = report_on(tmp_path, {"rank0.json": rows})
    section = next(s for s in report.sections if s.id == "steps")
    verdicts = [(v.answer, v.reason, v.price_ns) for v in section.verdicts if v.rule == "step-variance"]
    return [finding for finding in report.findings if finding.rule == "step-variance"], verdicts


def test_steps_that_differ_are_reported_from_four_on(tmp_path):
    """100, 110, 100 and 150: median 105, mean 115; 45 + 5 beyond the median are 12.5 a step."""
    (found,), verdicts = variance(tmp_path / "four", 100, 110, 100, 150)
    spread = np.sqrt((15**2 + 5**2 + 15**2 + 35**2) / 3)
    assert verdicts == []
    assert found.claim == "the longest step takes 1.43 times the median"
    assert found.caveats == (f"steps vary by {100 * spread / 115:.0f} % (standard deviation over mean)",)
    evidence = {metric.name: metric.value for metric in found.evidence}
    assert evidence == {"max_over_median": pytest.approx(150 / 105), "variation": pytest.approx(spread / 115)}
    assert (found.cost_ns, found.places[0].step) == (12_500, 4)
    assert found.cost_ratio == pytest.approx(12.5 / 115)
    # Of 110, 100 and 150 the median is 110: 40 of three steps.
    found, verdicts = variance(tmp_path / "three", 110, 100, 150)
    assert (found, verdicts) == ([], [("insufficient data", "3 of at least 4 steps", 13_333)])


LIMITS = {"max_over_median": 1.3, "variation": 0.1, "first_over_median": 3.0}


@pytest.mark.parametrize(
    ("walls", "variation", "reasons"),
    [
        ([100, 100, 130], 0.1, []), ([300, 1000, 100], 0.0, ["the longest step takes 10.00 times the median"]),
        ([100, 131, 100], 0.1, ["the longest step takes 1.31 times the median"]),
        ([100, 100, 100], 0.11, ["steps vary by 11 % (standard deviation over mean)"]),
        ([310, 100, 100], 0.0,
         ["the longest step takes 3.10 times the median", "the first step takes 3.1 times the median: warm-up"]),
    ],
)  # fmt: skip
def test_a_limit_itself_is_no_reason(walls, variation, reasons):
    assert list(steps._list_variance_reasons(np.array(walls, float), 100.0, variation, LIMITS)) == reasons


def test_the_excess_of_steps_is_the_mean_beyond_their_median():
    def excess(*walls):
        return steps._compute_excess_over_median(from_rows(("wall_ns",), [(wall,) for wall in walls]))

    assert excess(100, 160, 100) == (20, pytest.approx(1 / 6))
    assert excess(100, 100) == excess() == (None, None)


def test_long_steps_are_named_before_what_the_host_does_in_them():
    pause = SimpleNamespace(words="the host pauses")
    numbered = from_rows(("step",), [(3,), (4,), (None,)])
    assert steps._explain_long_steps(pause, numbered) == ": in steps 3, 4, the host pauses"
    assert steps._explain_long_steps(pause, numbered.head(1)) == ": in step 3, the host pauses"
    assert steps._explain_long_steps(pause, from_rows(("step",), [(None,)])) == ": the host pauses"
    assert steps._explain_long_steps(None, numbered) == ""


def test_the_range_of_walls_is_that_of_several_steps(tmp_path):
    rows = [step(1, 0, 500), step(2, 500, 140), step(3, 640, 90)]
    rows += [row for at in (0, 500, 640) for row in launched("k", at + 5, at + 10, 20, at + 1)]
    report = report_on(tmp_path, {"rank0.json": rows})
    section = next(s for s in report.sections if s.id == "steps")
    wall, count = section.metrics
    assert (wall.name, wall.value, wall.low, wall.high) == ("step_wall", 115_000, 90_000, 140_000)
    assert (count.name, count.value) == ("steps", 2)
    assert column(report, "steps", "left_out") == ["warm-up step", None, None]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("nsys", "1", None)], ["n-th"]), ([("nsys", "1", 7)], ["`step n`"]),
        ([("nsys", "1", None), ("nsys", "2", 7)], ["n-th", "`step n`"]),
        ([("nsys", None, 7), ("torch", "1", 7), ("torch", "1", None)], []),
    ],
)  # fmt: skip
def test_what_the_number_of_a_report_counts_is_said_of_nsys_captures(rows, said):
    measured = SimpleNamespace(frame=lambda _: from_rows(("tool", "part", "step"), rows))
    caveats = list(steps._caveat_nsys_step_numbers(measured))
    assert len(caveats) == len(said)
    assert all(words in caveat for words, caveat in zip(said, caveats, strict=True))
