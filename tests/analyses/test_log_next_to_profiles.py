"""A driver's log next to profiles: the first screen has the driver's step, and the stages that no trace has."""

import json
from pathlib import Path
from statistics import fmean

import pytest

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
