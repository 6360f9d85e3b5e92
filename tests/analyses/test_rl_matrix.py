"""Role, stage, step and rank: what the traces hold, what only the log knows, what neither explains."""

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from analyses.rl_report import by_stage, result, rows, section
from analyses.test_any_trace import FILES
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings

import tracekit
from tracekit.analyses.time import rl_matrix
from tracekit.job.driver_log import map_run_driver_logs, parse_timed_stage
from tracekit.job.frames import list_stage_ranges
from tracekit.job.stages.matrix import average_stages_by_rank, list_stage_cells, measure_stage_residuals
from tracekit.model.report import Chart
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.frame import from_rows, sum_of

QUESTIONS = ("driver-log", "rl-matrix")

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")


def verl(number, rank=0, scope="train", role="actor-rollout-ref", part=""):
    """A file name as verl 0.9.1 writes it."""
    when = "20260101000000000"
    return f"{role}_{scope}_step{number}_rank{rank}-of-2_pid{7 + rank}_{when}{part}.json"


def write_log(folder, steps, name="metrics.jsonl"):
    """A driver's log of {step: {timer: seconds}}."""
    folder.mkdir(parents=True, exist_ok=True)
    data = ({f"timing_s/{k}" if "/" not in k else k: v for k, v in t.items()} for t in steps.values())
    lines = [json.dumps({"step": n, "data": d}) for n, d in zip(steps, data, strict=True)]
    (folder / name).write_text("\n".join(lines) + "\n")


def states(found):
    """{stage: {step: state}} of the only run."""
    out = {}
    for row in list_stage_cells(found.measurements).rows("canonical", "step", "state"):
        out.setdefault(row["canonical"], {})[row["step"]] = row["state"]
    return out


def grpo(late=0):
    """A step of 100: log-probs 0-20, an update 30-90 (later by `late`)."""
    return [
        op("a", 0, 1), annotation("actor_compute_log_prob", 0, 20),
        annotation("actor_update", 30 + late, 60), op("b", 99, 1),
    ]  # fmt: skip


# Cells


def test_a_cell_is_measured_logged_not_applicable_or_missing(tmp_path):
    """Step 1 is in trace and log, step 2 in the trace alone, and there without its log-probs."""
    write(tmp_path / verl(1), grpo())
    write(tmp_path / verl(2), [r for r in grpo() if r["name"] != "actor_compute_log_prob"])
    write_log(tmp_path, {1: {"gen": 0.5, "old_log_prob": 0.3, "update_actor": 0.1, "step": 1.0}})
    assert states(result(tmp_path)) == {
        "old_log_prob": {1: "measured", 2: "missing"},
        "update_actor": {1: "measured", 2: "measured"},
        "gen": {1: "log", 2: "missing"},
        **{stage: {1: "not applicable", 2: "missing"}
           for stage in ("reward", "ref", "values", "adv", "update_critic", "update_weights")},
    }  # fmt: skip


def test_what_did_not_run_is_never_zero_and_says_why(tmp_path):
    write(tmp_path / verl(1), grpo())
    write_log(tmp_path, {1: {"gen": 0.5, "update_actor": 0.1}})
    found = result(tmp_path)
    row = next(r for r in rows(found.report, "rl-matrix", "matrix") if r["stage"] == "values")
    assert (row["mean"], row["step 1"], row["known from"]) == (None, None, "not applicable")
    why = by_stage(found.report, "rl-matrix", "not_measured", "why")
    assert "no critic" in why["values"]
    assert by_stage(found.report, "rl-matrix", "not_measured", "state")["gen"] == "only in log"
    assert by_stage(found.report, "rl-matrix", "not_measured", "in log")["gen"] == 500_000_000


def test_without_a_log_nothing_is_called_not_applicable(tmp_path):
    write(tmp_path / verl(1), grpo())
    found = result(tmp_path)
    assert {s for by_step in states(found).values() for s in by_step.values()} == {"measured"}
    assert any("no driver log" in text for text in section(found.report, "rl-matrix").caveats)
    assert section(found.report, "driver-log").status == "skipped"


def test_a_run_that_is_no_rl_run_has_no_stages_of_one(tmp_path):
    rows_ = [step(1, 0, 100), annotation("forward", 0, 40), annotation("backward", 40, 50), annotation("optimizer_step", 90, 5)]  # fmt: skip
    write(tmp_path / "rank0.json", rows_)
    assert set(states(result(tmp_path))) == {"forward", "backward", "optimizer"}


def test_validation_is_told_apart_from_the_step(tmp_path):
    write(tmp_path / verl(1), [*grpo(), annotation("testing", 91, 5)])
    found = result(tmp_path)
    assert "validation" in by_stage(found.report, "rl-matrix", "matrix", "known from")["test"]
    assert any("validation" in text for text in section(found.report, "rl-matrix").caveats)


def test_the_longest_rank_counts_and_ranges_of_one_rank_add_up(tmp_path):
    """Rank 0: 20 + 30 of reward in two ranges; rank 1: 45 in one."""
    write(tmp_path / verl(1), [annotation("reward", 0, 20), annotation("reward", 50, 30)])
    write(tmp_path / verl(1, rank=1), [annotation("reward", 0, 45)])
    (cell,) = list_stage_cells(result(tmp_path).measurements).rows()
    assert (cell["wall_ns"], cell["rank"], cell["ranks"], cell["instances"]) == (50_000, 0, 2, 2)


def test_many_steps_show_the_longest_ones(tmp_path):
    """Steps of 100, 110 … 190; six of them, the longest first."""
    starts = np.cumsum([0, *(100 + 10 * n for n in range(10))])
    rows_ = []
    for n in range(10):
        at = int(starts[n])
        rows_ += [step(n, at, 100 + 10 * n), annotation("gen", at, 50)]
    write(tmp_path / "rank0.json", rows_)
    report = result(tmp_path).report
    titles = [h.title for h in section(report, "rl-matrix").sheets[0].headings]
    assert titles[3:-1] == [f"step {n}" for n in (9, 8, 7, 6, 5, 4)]
    assert "6 longest of 10" in section(report, "rl-matrix").sheets[0].caption


# The rest (Q3)


def test_what_no_stage_covers_is_shown_by_step_and_by_rank(tmp_path):
    """Rank 0 is covered 0-20 and 30-90, rank 1 0-20 and 35-95: together 85 of 100."""
    write(tmp_path / verl(1), grpo())
    write(tmp_path / verl(1, rank=1), grpo(late=5))
    found = result(tmp_path)
    matrix = rows(found.report, "rl-matrix", "matrix")
    assert (matrix[-1]["stage"], matrix[-1]["step 1"]) == ("(outside any stage)", 15_000)
    ranks = rows(found.report, "rl-matrix", "ranks")
    assert (ranks[-1]["stage"], ranks[-1]["rank 0"], ranks[-1]["rank 1"]) == ("(outside any stage)", 20_000, 20_000)  # fmt: skip
    assert {m.name: m.value for m in section(found.report, "rl-matrix").metrics}["residual"] == 15_000


def test_the_rest_is_unknown_where_stages_were_captured_one_by_one(tmp_path):
    write(tmp_path / verl(1, scope="actor-update"), [annotation("actor_update", 0, 60)])
    write(tmp_path / verl(1, scope="ref-compute-log-prob"), [annotation("ref_compute_log_prob", 100, 30)])
    found = result(tmp_path)
    row = rows(found.report, "rl-matrix", "matrix")[-1]
    assert (row["stage"], row["mean"]) == ("(outside any stage)", None)
    assert "captured one by one" in row["known from"]
    assert not len(measure_stage_residuals(found.measurements))


def test_the_chart_of_a_rank_adds_up_to_its_step(tmp_path):
    """20 + 60 of stages and 20 of nothing."""
    write(tmp_path / verl(1), grpo())
    (chart,) = section(result(tmp_path).report, "rl-matrix").charts
    assert isinstance(chart, Chart)
    assert {chart.series[s]: value for _, s, value in chart.marks} == {
        "old_log_prob": 20_000, "update_actor": 60_000, "(outside any stage)": 20_000,
    }  # fmt: skip
    assert chart.rows == ("actor-rollout-ref rank 0",)


# The log


def test_timers_are_the_stages_that_traces_know():
    assert parse_timed_stage("timing_s/sync_rollout_weights") == "update_weights"
    assert parse_timed_stage("timing/train/prepare_for_generation/transfer_and_update_weights") == "update_weights"  # fmt: skip
    assert parse_timed_stage("timing_s/rollouter/validate_time") == "test"
    assert parse_timed_stage("timing/train/data_processing") == "data_processing"
    assert parse_timed_stage("timing/train/idle/validation") == "test"
    for name in ("timing_s/step", "timing_s/stop_profile", "perf/throughput",
                 "timing_s/agent_loop/generate_sequences/mean", "timing/train/total_step_time"):  # fmt: skip
        assert parse_timed_stage(name) is None


def test_profiled_steps_are_compared_with_their_own_timers_and_others_stand_apart(tmp_path):
    """The update takes 60 µs in the trace of step 1; logged 90 µs there, 40 and 50 µs in the steps not profiled."""
    write(tmp_path / verl(1), grpo())
    write_log(tmp_path, {n: {"update_actor": us * 1e-6, "step": 2e-4} for n, us in ((1, 90), (2, 40), (3, 50))})  # fmt: skip
    (row,) = [r for r in rows(result(tmp_path).report, "driver-log", "log") if r["stage"] == "update_actor"]  # fmt: skip
    assert (row["trace"], row["log, same steps"], row["log, other steps"], row["other steps"]) == (
        60_000, 90_000, 45_000, 2,
    )  # fmt: skip
    assert row["log / trace"] == pytest.approx(1.5)


def test_the_count_of_a_profiler_joins_no_step_of_the_log(tmp_path):
    """`ProfilerStep#1` is not step 1 of the run: the log's median stands for it."""
    write(tmp_path / "rank0.json", [step(1, 0, 100), annotation("actor_update", 0, 90)])
    write_log(tmp_path, {1: {"gen": 5.0}, 2: {"gen": 1.0}, 3: {"gen": 2.0}})
    found = result(tmp_path)
    assert by_stage(found.report, "rl-matrix", "not_measured", "in log")["gen"] == 2_000_000_000
    assert any("do not identify their steps" in t for t in section(found.report, "rl-matrix").caveats)


def test_timers_within_one_another_count_once(tmp_path):
    write_log(tmp_path, {1: {"update_weights": 2.0, "param_sync": 1.5, "step": 3.0}})
    found = result(tmp_path).measurements
    (log,) = map_run_driver_logs(found).values()
    assert log.map_stage_ns("update_weights") == {1: 2_000_000_000}
    assert log.step_ns == {1: 3_000_000_000}


def test_of_two_logs_of_a_run_one_is_used_and_the_other_named(tmp_path):
    write(tmp_path / verl(1), grpo())
    write_log(tmp_path, {1: {"gen": 1.0, "reward": 2.0}}, "all.jsonl")
    write_log(tmp_path, {1: {"gen": 9.0}}, "few.jsonl")
    found = result(tmp_path)
    assert by_stage(found.report, "rl-matrix", "not_measured", "in log")["gen"] == 1_000_000_000
    assert "1 more log file of the same run was not used" in section(found.report, "driver-log").caveats


def test_tokens_per_second_are_those_logged_over_the_walls_traced(tmp_path):
    """5 tokens in 100 µs."""
    write(tmp_path / verl(1), grpo())
    write_log(tmp_path, {1: {"perf/total_num_tokens": 5, "gen": 1}, 2: {"perf/total_num_tokens": 900}})
    metrics = {m.name: m.value for m in section(result(tmp_path).report, "driver-log").metrics}
    assert metrics["tokens_per_s"] == pytest.approx(50_000)


def test_a_log_alone_gives_the_steps_as_the_driver_timed_them(tmp_path):
    write_log(tmp_path, {1: {"gen": 1.0, "update_actor": 3.0}, 2: {"gen": 2.0, "update_actor": 3.0}})
    found = result(tmp_path / "metrics.jsonl")
    table = {r["stage"]: r for r in rows(found.report, "rl-matrix", "matrix")}
    assert (table["gen"]["step 1"], table["gen"]["step 2"]) == (1_000_000_000, 2_000_000_000)
    assert table["gen"]["known from"] == "only in log"
    assert found.report.findings == ()


def test_impossible_times_are_no_times(tmp_path):
    write_log(tmp_path, {1: {"gen": -1.0, "reward": 1e12, "adv": 1.0}})
    found = result(tmp_path).measurements
    assert found["logged"]["dur_ns"].isna().sum() == 2
    (log,) = map_run_driver_logs(found).values()
    assert log.stage_times.values("canonical") == ["adv"]


# No GPU is spoken of, nothing breaks


def test_a_run_without_a_gpu_reads_as_one(tmp_path):
    write(tmp_path / verl(1), grpo())
    report = result(tmp_path).report
    text = tracekit.render(report, "md")
    mine = text[text.index("Which role, stage and rank") :].split("</details>")[0]
    assert "GPU" not in mine


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(FILES)
def test_any_trace_with_any_log_has_an_answer(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("any")
    for rank, (name, content, base_ns) in enumerate(files):
        write(folder / name.format(rank), content, base_ns=base_ns)
    write_log(folder, {1: {"gen": 0.1, "step": 0.2}, 2: {"update_actor": 0.1}})
    found = result(folder).measurements
    rest = measure_stage_residuals(found)
    assert (rest["residual_ns"] <= rest["wall_ns"]).all()
    cells = list_stage_cells(found)
    assert (cells.equals("state", "measured") == ~cells.is_missing("wall_ns")).all()


def test_files_in_any_order_and_another_clock_give_the_same(tmp_path):
    for folder, base in (("a", 1_700_000_000 * 10**9), ("b", 1_800_000_000 * 10**9)):
        for rank in (0, 1):
            write(tmp_path / folder / verl(1, rank=rank), grpo(late=rank), base_ns=base)
    one, other = (list(list_stage_cells(result(tmp_path / f).measurements).drop("run").rows()) for f in "ab")
    assert one == other


def test_steps_on_a_gpu_have_the_same_walls(tmp_path):
    write(tmp_path / verl(1), [*grpo(), *launched("k", 1, 2, 500, 1)])
    assert by_stage(result(tmp_path).report, "rl-matrix", "matrix", "step 1")["update_actor"] == 60_000


# Real runs


@pytest.mark.slow
@needs_data
def test_real_verl_runs_hold_the_roles_stages_ranks_steps_and_instances_of_their_manifest():
    root = Path(REAL) / "chrome/verl_cpu"
    manifest = json.loads((root / "manifest.json").read_text())
    for profile in sorted(root.glob("*/outputs/profile")):
        entries = [e for e in manifest if e["file"].startswith(f"{profile.parts[-3]}/")]
        expected = Counter()
        for entry in entries:
            role = "value-model" if "value-model" in entry["file"] else "actor-rollout-ref"
            role = role if "actor-rollout-ref" in entry["file"] or role == "value-model" else None
            for name, count in entry["stages"].items():
                expected[(role, get_canonical_stage(name, role), entry["dist_rank"])] += count
        found = Counter()
        measured = result(profile).measurements
        for row in list_stage_ranges(measured).rows("role", "canonical", "rank"):
            found[tuple(row.values())] += 1
        # A scheduled capture holds mini-batches only; one that is named after its stage is that stage.
        scheduled = {key: n for key, n in found.items() if key not in expected}
        assert not scheduled or "schedule" in str(profile), scheduled
        assert {key: found[key] for key in expected} == dict(expected), profile
        steps = {n for n in list_stage_cells(measured).values("step") if n is not None}
        named = {int(p.split("_step")[1].split("_")[0]) for e in entries if "_step" in (p := e["file"])}
        assert named <= steps


GLOO = ("base_run1", "base_run2", "base_run3", "opt_run1", "opt_run2", "opt_run3", "straggler")


@needs_data
@pytest.mark.parametrize(
    "run", [pytest.param(n, marks=() if n in ("opt_run1", "straggler") else pytest.mark.slow) for n in GLOO]
)
def test_real_gloo_runs_have_the_walls_that_were_timed_without_the_profiler(run):
    """Within 1 % or 1 ms, the median over all ranks and steps."""
    folder = Path(REAL) / "chrome/gloo_cpu" / run
    truth = json.loads((folder / "ground_truth.json").read_text())
    measured = result(folder).measurements
    by_stage = list_stage_ranges(measured).group_by("rank", "step", "canonical").agg(dur_ns=sum_of("dur_ns"))
    found = {(row["rank"], row["step"], row["canonical"]): row["dur_ns"] for row in by_stage.rows()}
    for stage in truth["stages"]:
        told = {(r["rank"], n + 1): s["stage_ns"][stage] for r in truth["ranks"] for n, s in enumerate(r["steps"])}  # fmt: skip
        off = [float(found[(*key, stage)]) - ns for key, ns in told.items()]
        typical = float(np.median(list(told.values())))
        assert abs(np.median(off)) <= max(0.01 * typical, 1e6), (stage, np.median(off))
    assert set(average_stages_by_rank(measured).values("rank")) - {None} == {r["rank"] for r in truth["ranks"]}


# Words


@pytest.mark.parametrize(
    ("walls", "state"),
    [
        ([("stage", 5), ("stage", None)], "not recorded: stages were captured one by one"),
        ([("stage", None), ("file", None)], "no stage is annotated in the traces"),
        ([("file", None), ("file", 5)], "step less all stages of all processes"),
    ],
)
def test_how_the_time_outside_stages_is_known_is_said(walls, state):
    assert rl_matrix._describe_residual_state(from_rows(("origin", "attributed_ns"), walls)) == state


@pytest.mark.parametrize(
    ("stages", "cells", "words"),
    [
        (("gen", "gen"), ("measured", "measured"), "in trace"),
        (("gen", "gen", "gen"), ("log", "measured", "measured"), "2 of 3 in trace; 1 of 3 only in log"),
        ((rl_matrix.VALIDATION,), ("missing",), "missing (validation, not part of a training step)"),
        ((rl_matrix.VALIDATION, "gen"), ("missing", "missing"), "missing"),
    ],
)
def test_the_states_of_cells_are_counted_unless_all_are_alike(stages, cells, words):
    rows_ = from_rows(("canonical", "state"), list(zip(stages, cells, strict=True)))
    assert rl_matrix._describe_cell_states(rows_) == words


def test_the_longest_steps_have_columns_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(rl_matrix, "MAX_COLUMNS", 2)
    walls = from_rows(("unit", "wall_ns"), [("step 1", 5), ("step 2", 9), ("step 3", 7), ("step 2", 1)])
    caption = "Host wall of the longest rank."
    few = rl_matrix._choose_matrix_columns(walls.head(2), walls)
    assert few == (["step 1", "step 2"], caption)
    many = rl_matrix._choose_matrix_columns(walls, walls.head(0))
    assert many == (["step 2", "step 3"], f"{caption} The 2 longest of 3 steps, the longest first.")
    logged = rl_matrix._choose_matrix_columns(walls.head(0), walls)
    assert logged == (["step 1", "step 2"], f"{caption} The first 2 of 3 steps.")


@pytest.mark.parametrize(("columns", "shown"), [(1, ["rank 1"]), (2, ["rank 0", "rank 1"])])
def test_the_ranks_with_most_time_have_columns(tmp_path, monkeypatch, columns, shown):
    monkeypatch.setattr(rl_matrix, "MAX_COLUMNS", columns)
    for rank in (0, 1):
        rows_ = [step(1, 0, 100 + 50 * rank), annotation("actor_update", 5, 50 + 50 * rank), op("a", 6, 5)]
        write(tmp_path / f"rank{rank}.json", rows_, rank=rank, world_size=2)
    sheets = section(result(tmp_path).report, "rl-matrix").sheets
    (ranks,) = [sheet for sheet in sheets if sheet.name == "ranks"]
    assert [heading.title for heading in ranks.headings if heading.title.startswith("rank ")] == shown
    assert ("The 1 of 2 ranks with most time." in ranks.caption) == (columns == 1)


def test_a_period_of_the_log_is_said_where_no_trace_tells_it(monkeypatch):
    of_log = [
        SimpleNamespace(canonical=name, sentence=lambda _, name=name: f"{name} in every 5th step")
        for name in ("validation", "save")
    ]
    monkeypatch.setattr(rl_matrix, "list_periodic_stages", lambda _: [SimpleNamespace(run="a", canonical="save")])
    monkeypatch.setattr(rl_matrix, "map_run_driver_logs", lambda _: {"a": None})
    monkeypatch.setattr(rl_matrix, "find_logged_periodic_stages", lambda *_: of_log)
    monkeypatch.setattr(rl_matrix, "describe_periodic_stages", lambda _: "save in every 2nd step.")
    words = "save in every 2nd step. validation in every 5th step (driver's log)."
    assert rl_matrix._describe_stage_periods(None) == words
