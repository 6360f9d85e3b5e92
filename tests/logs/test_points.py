"""The numbers that are sent to other systems, and how the command says what it cannot do."""

import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.logs import SYSTEMS, send_report
from tracekit.logs.points import ExportedReport, extract_points, summarize_for_tracker
from tracekit.model.errors import TracekitError
from tracekit.model.report import Finding, Heading, Metric, Report, Saving, Sheet

EXAMPLE = Path(__file__).parents[2] / "examples/simulated_gpu/outputs/profile"
HEADINGS = tuple(Heading(name, name) for name in ("run", "rank", "step", "stage", "name", "value", "unit"))


def make_saving(number):
    """A second off the step, on top of those before it."""
    return Saving(number, 2e9, 1e9, 1e9, 3e9, 2e9, 3e9, 2e9, 2e9)


def of(*rows, **parts):
    return Report("t", "1", values=Sheet("values", "", HEADINGS, rows), **parts)


def test_values_of_the_job_stay_and_those_of_ranks_are_a_mean_and_a_largest():
    report = of(
        ("a", None, 3, None, "step_time", 2_000_000_000, "ns"),
        ("a", 0, 3, "gen", "gpu_idle", 1_000_000_000, "ns"),
        ("a", 1, 3, "gen", "gpu_idle", 3_000_000_000, "ns"),
        ("a", None, None, None, "step_time", 5, "ns"),
        ("a", 0, 3, None, "first_of_window", 1, "count"),
        ("a", 0, 4, None, "peak", None, "bytes"),
        ("a", 0, 4, None, "peak", 7, "bytes"),
    )
    assert {(p.name, p.step, p.value) for p in extract_points(report)} == {
        ("tracekit/step_time_s", 3, 2.0),
        ("tracekit/gen/gpu_idle_s/mean", 3, 2.0),
        ("tracekit/gen/gpu_idle_s/max", 3, 3.0),
        ("tracekit/peak_bytes/mean", 4, 7.0),
        ("tracekit/peak_bytes/max", 4, 7.0),
    }


def test_several_runs_are_told_apart():
    report = of(*((run, None, 1, None, "step_time", 10**9, "ns") for run in ("a", "b/c")))
    assert {point.name for point in extract_points(report)} == {
        "tracekit/a/step_time_s", "tracekit/b_c/step_time_s",
    }  # fmt: skip


def test_the_summary_has_the_headline_and_what_the_fixes_of_each_rule_save():
    findings = tuple(Finding("idle", "high", "c", "a", saving=make_saving(number)) for number in (1, 2))
    headline = (Metric("step", 3 * 10**9, "ns"), Metric("unknown", None, "ns"))
    section = tracekit.analyze(EXAMPLE).sections[0]
    report = of(headline=headline, sections=(type(section)("s", "s", findings=findings),))
    assert summarize_for_tracker(report) == {"tracekit/step_s": 3.0, "tracekit/saving/idle_s": 2.0}


def test_a_real_report_has_a_number_for_each_of_its_steps():
    report = tracekit.analyze(EXAMPLE)
    points = extract_points(report)
    times = {point.step: point.value for point in points if point.name == "tracekit/step_time_s"}
    values = report.tables["values"]
    told = values[(values["name"] == "step_time") & values["rank"].isna()]
    assert times == {int(step): value / 1e9 for step, value in zip(told["step"], told["value"], strict=True)}
    assert len(times) == 3


def test_a_system_that_is_unknown_or_missing_is_said_in_two_lines(monkeypatch):
    logged = ExportedReport("t", (), {}, "", "", "")
    with pytest.raises(TracekitError, match=r"no system 'tensorbord'.*did you mean"):
        send_report(logged, "tensorbord", "x", None)
    for system in SYSTEMS:
        monkeypatch.setitem(sys.modules, system.package, None)
        monkeypatch.delitem(sys.modules, f"tracekit.logs.{system.name}", raising=False)
        with pytest.raises(TracekitError, match=f"{system.name} needs the package") as caught:
            send_report(logged, system.name, "x", None)
        assert caught.value.hint == f"pip install {system.package}"


def test_a_target_without_a_system_is_refused():
    command = [sys.executable, "-m", "tracekit", "log", str(EXAMPLE), "--to", "runs.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "tracekit: --to 'runs.db' is not SYSTEM=TARGET",
        "          try: write tensorboard=DIR, mlflow=URI or wandb=PROJECT",
    ]
