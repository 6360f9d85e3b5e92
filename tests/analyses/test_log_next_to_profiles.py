"""A driver's log next to profiles: the first screen has the driver's step, and the stages that no trace has."""

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

PROFILE = Path(__file__).parents[2] / "examples" / "verl_cpu" / "outputs" / "profile"


def logged(name):
    """The values of one timer in the profiled steps, in ns."""
    (path,) = (Path(__file__).parents[2] / "examples" / "verl_cpu").rglob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["data"][name] * 1e9 for line in lines if line["step"] in (1, 2, 4)]


def test_the_first_table_has_the_stages_that_only_the_log_has():
    report = analyze_uncached(PROFILE, Options(jobs=1)).report
    names = [heading.name for heading in report.overview.headings]
    rows = {row[names.index("canonical")]: dict(zip(names, row, strict=True)) for row in report.overview.rows}
    reward = rows["reward (driver's log)"]
    assert reward["wall_ns"] == pytest.approx(fmean(logged("timing_s/reward")))
    assert reward["share_ratio"] == pytest.approx(fmean(logged("timing_s/reward")) / fmean(logged("timing_s/step")))
    assert (reward["role"], reward["ranks"]) == (None, None)
    # A stage of the traces has no second row.
    assert "gen (driver's log)" not in rows
    headline = {metric.name: metric.value for metric in report.headline}
    assert headline["driver_step"] == pytest.approx(fmean(logged("timing_s/step")))


def write_slower_log(folder, factor):
    """A copy of the sample whose log times each step longer by a factor."""
    sample = Path(__file__).parents[2] / "examples" / "verl_cpu"
    shutil.copytree(sample, folder)
    (path,) = folder.rglob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["data"]["timing_s/step"] *= factor
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_log_that_disagrees_with_the_profile_is_named_in_one_line(tmp_path):
    folder = write_slower_log(tmp_path / "run", 1.5)
    report = analyze_uncached(folder, Options(jobs=1)).report
    (line,) = [text for text in report.cautions if text.startswith("the profile shows")]
    (agreeing,) = [metric.value for metric in report.headline if metric.name == "driver_step"]
    assert agreeing == pytest.approx(1.5 * fmean(logged("timing_s/step")))
    assert "in 3 common steps" in line
    assert "−3" in line
    sample = analyze_uncached(PROFILE, Options(jobs=1)).report
    assert not any(text.startswith("the profile shows") for text in sample.cautions)
    comparison = compare_paths([folder], [folder], Options(jobs=1)).comparison
    assert any("the profile shows" in text for text in comparison.warnings)
