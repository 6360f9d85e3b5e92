"""Logs of several runs on the first screen: a column per run where they fit, else a row per run with its main values."""

import json

import numpy as np
import pytest

from tracekit.pipeline import analyze
from tracekit.render.options import RenderOptions
from tracekit.render.text import render_text

QUESTIONS = ("run-log",)


def write_log(folder, step_s, gen_s, more=None, steps=12):
    """Write a log of equal steps of verl; `more` has further values of steps."""
    folder.mkdir(parents=True)
    rows = []
    for step in range(1, steps + 1):
        data = {"timing_s/step": step_s, "timing_s/gen": gen_s, "timing_s/update_actor": 20.0}
        data |= {"perf/total_num_tokens": 1600, "perf/throughput": 1600 / step_s / 4, "perf/mfu/actor": 0.4}
        rows.append(json.dumps({"step": step, "data": data | (more or {}).get(step, {})}))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def screen(report, width=100):
    return render_text(report, RenderOptions(width=width))


def test_three_runs_are_columns_and_stages_rows(tmp_path):
    for name, step_s, gen_s in (("a", 100.0, 70.0), ("b", 80.0, 50.0), ("c", 60.0, 30.0)):
        write_log(tmp_path / name, step_s, gen_s)
    write_log(tmp_path / "d", 90.0, 40.0, {step: {"timing_s/reward": 25.0} for step in range(1, 13)})
    report = analyze(tmp_path, questions=QUESTIONS)
    assert [heading.title for heading in report.overview.headings] == ["stage", "a", "b", "c", "d"]
    rows = {row[0]: [cell if cell is None else cell / 1e9 for cell in row[1:]] for row in report.overview.rows}
    assert list(rows) == ["(step, wall)", "(step, median)", "gen", "update_actor", "reward", "(in no timer)"]
    assert rows["(step, wall)"] == rows["(step, median)"] == [100, 80, 60, 90]
    assert rows["gen"] == [70, 50, 30, 40]
    assert rows["reward"] == [None, None, None, 25]
    assert rows["(in no timer)"] == [10, 10, 10, 5]
    text = screen(report)
    assert "each 12 steps of verl sync, 4 GPUs · 4 runs" in text.replace("\n", " ")
    assert "rows shown" not in text
    assert not report.headline


@pytest.mark.parametrize(("count", "name"), [(5, "run"), (2, "a_name_of_a_run_of_more_than_thirty_characters")])
def test_more_runs_than_columns_are_rows(tmp_path, count, name):
    for number in range(count):
        write_log(tmp_path / f"{name}{number}", 100.0 + number, 70.0)
    overview = analyze(tmp_path, questions=QUESTIONS).overview
    names = [heading.name for heading in overview.headings]
    rows = [dict(zip(names, row, strict=True)) for row in overview.rows]
    assert [row["run"] for row in rows] == [f"{name}{number}" for number in range(count)]
    for number, row in enumerate(rows):
        step_s = 100 + number
        assert (row["median_ns"], row["mean_ns"], row["gpus"]) == (step_s * 10**9, step_s * 10**9, 4)
        assert row["work_per_s_per_gpu"] == pytest.approx(400 / step_s)
        assert row["longest"] == "gen"
        assert row["longest_ratio"] == pytest.approx(70 / step_s)
        assert row["gpu_hours"] == pytest.approx(step_s * 12 * 4 / 3600)


def test_a_row_of_the_screen_fits_in_100_columns(tmp_path):
    for name in ("a_run_of_23_characters1", "a_run_of_23_characters2", "a_run_of_23_characters3"):
        write_log(tmp_path / name, 100.0, 70.0)
    report = analyze(tmp_path, questions=QUESTIONS)
    assert next(heading.name for heading in report.overview.headings) == "stage"
    text = screen(report)
    assert "Not shown at this width" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_machine_readable_report_has_all_values_of_all_runs(tmp_path):
    for number in range(5):
        write_log(tmp_path / f"run{number}", 100.0, 70.0)
    sheets = {sheet.name: sheet for sheet in analyze(tmp_path, questions=QUESTIONS).section("run-log").sheets}
    assert len(sheets["logged_runs"].rows) == 5
    assert len(sheets["logged_stages"].rows) == 5 * 4


def test_the_command_that_compares_names_the_files_of_two_runs_of_one_trainer(tmp_path):
    for name in ("b", "c"):
        write_log(tmp_path / name, 100.0, 70.0)
    write_log(tmp_path / "a", 100.0, 70.0, {1: {"fully_async/x": 1}})
    caption = analyze(tmp_path, questions=QUESTIONS).overview.caption
    command = caption.partition("To compare two runs: ")[2]
    files = [str(tmp_path / name / "metrics.jsonl") for name in ("b", "c")]
    assert command == f"tracekit compare {files[0]} {files[1]}"


def test_runs_of_different_trainers_have_no_command(tmp_path):
    write_log(tmp_path / "a", 100.0, 70.0, {1: {"fully_async/x": 1}})
    write_log(tmp_path / "b", 100.0, 70.0)
    assert "tracekit compare" not in analyze(tmp_path, questions=QUESTIONS).overview.caption


def test_the_caption_names_the_stages_that_are_averaged_over_all_steps(tmp_path):
    """The mean of 9 steps without the first 3, but of all 12 for a validation in every fourth: 3 · 40 s / 12."""
    write_log(tmp_path / "log", 100.0, 70.0, {step: {"timing_s/testing": 40.0} for step in (4, 8, 12)})
    overview = analyze(tmp_path, questions=QUESTIONS).overview
    assert "Mean of 9 steps without the first 3 (test: of all 12)." in overview.caption
    rows = {row[0]: row[1] for row in overview.rows}
    assert rows["test"] == 10 * 10**9 == np.mean([40 if step % 4 == 0 else 0 for step in range(1, 13)]) * 1e9


def test_a_caption_without_periodic_stages_names_none(tmp_path):
    write_log(tmp_path / "log", 100.0, 70.0)
    assert "Mean of 9 steps without the first 3. " in analyze(tmp_path, questions=QUESTIONS).overview.caption
