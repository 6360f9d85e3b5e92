"""Steps that ran again after a restart: their last tries count, and the first ones cost GPU-hours alone."""

import json

import numpy as np
import pytest
from training_logs import history, mlflow_store, offline_run, verl_line

from tracekit.job.log_files import join_log_parts
from tracekit.model.metrics import UNPROFILED
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline.comparing import compare_paths, read_step_logs
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

ONE = Options(jobs=1)
GPUS, RATE = 8, 100

CRASHED = {step: 450.0 if step > 20 else 45.0 for step in range(1, 25)}
"""Seconds by step of a start that died at step 24; its checkpoint is that of step 20, and its last 4 steps were slow."""
RESUMED = dict.fromkeys(range(21, 45), 45.0)

# 44 steps of 45 s and 4 tries of 450 s, on 8 GPUs.
KEPT_HOURS, LOST_HOURS = 44 * 45 * 8 / 3600, 4 * 450 * 8 / 3600


def values_of(seconds):
    return {
        "timing_s/gen": seconds * 2 / 3, "timing_s/update_actor": seconds / 3, "timing_s/step": seconds,
        "perf/total_num_tokens": seconds * RATE * GPUS, "perf/time_per_step": seconds, "perf/throughput": RATE,
    }  # fmt: skip


def write_console(folder):
    starts = "".join(verl_line(step, values_of(s)) for start in (CRASHED, RESUMED) for step, s in start.items())
    (folder / "train.log").write_text(starts)


def write_json_lines(folder):
    for name, start in (("first", CRASHED), ("second", RESUMED)):
        lines = (json.dumps({"step": step, "data": values_of(seconds)}) + "\n" for step, seconds in start.items())
        (folder / f"{name}.jsonl").write_text("".join(lines))


def write_wandb(folder):
    for name, start in (("100000", CRASHED), ("120000", RESUMED)):
        run = folder / "wandb" / f"offline-run-20260901_{name}-x7"
        run.mkdir(parents=True)
        rows = [history(values_of(seconds) | {"_step": step}, step) for step, seconds in start.items()]
        (run / "run-x7.wandb").write_bytes(offline_run(rows))


def write_mlflow(folder):
    rows = {
        run: [
            (name, value, time + 1000 * step, step)
            for step, seconds in start.items()
            for name, value in values_of(seconds).items()
        ]
        for run, start, time in (("a", CRASHED, 1_700_000_000_000), ("b", RESUMED, 1_700_010_000_000))
    }
    mlflow_store(folder / "mlruns.db", rows, dict.fromkeys(rows, ("grpo", 1)))


WRITERS = (write_console, write_json_lines, write_wandb, write_mlflow)


@pytest.fixture(params=WRITERS, ids=lambda write: write.__name__.removeprefix("write_"))
def restarted(request, tmp_path):
    request.param(tmp_path)
    return tmp_path


def test_the_first_line_counts_each_step_once_and_gives_the_price_of_the_others(restarted):
    report = analyze_uncached(restarted, ONE).report
    (line,) = [fact for fact in report.identity if "steps of verl" in fact]
    assert "44 steps of verl sync, 8 GPUs, restarted 1 time (4 steps run again: 4 GPU-hours)" in line


def test_means_are_of_last_tries_and_gpu_hours_of_all(restarted):
    sections = {section.id: section for section in analyze_uncached(restarted, ONE).report.sections}
    sheet = next(sheet for sheet in sections["run-log"].sheets if sheet.name == "logged_stages")
    names = [heading.name for heading in sheet.headings]
    rows = {row[names.index("stage")]: dict(zip(names, row, strict=True)) for row in sheet.rows}
    wall, again = rows.pop("(step, wall)"), rows.pop("(run again)")
    assert wall["mean_ns"] == wall["median_ns"] == 45 * 10**9
    assert rows["gen"]["mean_ns"] == 30 * 10**9
    assert again["gpu_hours"] == pytest.approx(LOST_HOURS)
    assert (again["mean_ns"], again["share_ratio"]) == (None, None)
    assert again["how"] == "first tries of 4 steps: 1,800 s in all"
    assert wall["gpu_hours"] == pytest.approx(KEPT_HOURS + LOST_HOURS)
    assert sum(row["gpu_hours"] for row in rows.values()) == pytest.approx(KEPT_HOURS)
    assert sum(row["share_ratio"] for row in rows.values()) == pytest.approx(1)


def test_slow_first_tries_are_no_finding(tmp_path):
    """The first tries of steps 21 to 24 took 10 times as long for as many tokens; steps vary by 1 % otherwise."""
    noise = np.random.default_rng(0).normal(1, 0.01, 100).tolist()
    text = ""
    for start in (CRASHED, RESUMED):
        for step, seconds in start.items():
            values = values_of(seconds * noise[step])
            text += verl_line(
                step, values | {"perf/total_num_tokens": 36_000, "perf/throughput": 4_500 / values["timing_s/step"]}
            )
    (tmp_path / "train.log").write_text(text)
    assert not analyze_uncached(tmp_path, ONE).report.findings


def test_compared_steps_are_last_tries(restarted):
    (log,) = read_step_logs([restarted], ONE)
    times = log.recorded.filter(log.recorded.is_in("name", (UNPROFILED,)))
    assert dict(zip(times.values("step"), times.values("value"), strict=True)) == dict.fromkeys(range(1, 45), 45e9)
    assert log.logged.log.step.tolist() == [*range(1, 45)]
    # 24 steps of each start: the first 3 warm up, also of the start whose last 4 ran again.
    assert log.logged.log.step[~log.logged.counted.steady].tolist() == [1, 2, 3, 21, 22, 23]


def test_a_restarted_run_compares_like_one_without_a_restart(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write_console(tmp_path / "a")
    whole = "".join(verl_line(step, values_of(45.0)) for step in range(1, 45))
    (tmp_path / "b" / "train.log").write_text(whole)
    found = compare_paths([tmp_path / "a"], [tmp_path / "b"], ONE).comparison
    (step,) = [change for change in found.changes if change.name == UNPROFILED]
    assert (step.base, step.opt) == (45e9, 45e9)


def rows_of(*rows):
    return from_rows(("source", "part", "step", "name", "value"), [("log", *row) for row in rows])


def list_tries(rows):
    return list(zip(rows.values("part"), rows.values("step"), rows.values("name"), strict=True))


def test_a_validation_before_the_first_step_of_a_resumed_run_is_not_a_try_of_its_step():
    """A run resumed at step 20 validates under this number before step 21."""
    joined = join_log_parts(
        rows_of(
            *((0, step, "timing_s/step", 45.0) for step in (19, 20, 21)),
            (1, 20, "val-core/acc", 0.5),
            (1, 21, "timing_s/step", 44.0),
        )
    )
    assert list_tries(joined.rows) == [(0, 19, "timing_s/step"), (0, 20, "timing_s/step"), (1, 21, "timing_s/step")]
    assert list_tries(joined.first_tries) == [(0, 21, "timing_s/step"), (1, 20, "val-core/acc")]


def test_the_last_try_of_a_step_that_no_part_times_is_in_its_last_part():
    joined = join_log_parts(rows_of((0, 1, "loss", 1.0), (0, 2, "loss", 1.0), (1, 2, "loss", 0.9)))
    assert list_tries(joined.rows) == [(0, 1, "loss"), (1, 2, "loss")]


def test_a_log_without_a_restart_has_no_first_tries():
    rows = rows_of((0, 1, "timing_s/step", 1.0), (0, 2, "timing_s/step", 1.0))
    joined = join_log_parts(rows)
    assert (len(joined.rows), len(joined.first_tries)) == (2, 0)


def test_a_start_that_ran_again_as_a_whole_is_a_restart(tmp_path):
    """No checkpoint was written before step 5 died: every row of the first part is a first try."""
    starts = (dict.fromkeys(range(1, 6), 45.0), dict.fromkeys(range(1, 13), 45.0))
    text = "".join(verl_line(step, values_of(s)) for start in starts for step, s in start.items())
    (tmp_path / "train.log").write_text(text)
    (log,) = read_step_logs([tmp_path], ONE)
    assert (log.logged.restarts, len(log.logged.first_tries_s)) == (1, 5)
    assert log.logged.counted.steady_count == 9


def test_only_profiled_last_tries_are_excluded_from_a_comparison(tmp_path):
    """Step 22 was profiled before the crash; its last try was not."""
    profiled = {"timing_s/start_profile": 2.0, "timing_s/stop_profile": 3.0}
    text = "".join(
        verl_line(step, values_of(s) | (profiled if (start is CRASHED and step in (10, 22)) else {}))
        for start in (CRASHED, RESUMED)
        for step, s in start.items()
    )
    (tmp_path / "train.log").write_text(text)
    (log,) = read_step_logs([tmp_path], ONE)
    assert log.profiled == {10}
