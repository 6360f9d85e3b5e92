"""Logs of a few steps: no change at equal length where the fits leave two degrees of freedom or fewer."""

import json

import numpy as np
import pytest

from tracekit.model.stats.equal_length import LEAST_DF, compare_at_equal_length
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options


def write_log(folder, seed, steps):
    """Write a log of varied lengths; the first step is left out of comparisons where six or more are logged."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        tokens = 1e6 * rng.uniform(0.8, 1.2)
        step_s = (60 + 1e-4 * tokens) * (1 + rng.normal(0, 0.02))
        data = {"timing_s/step": step_s, "timing_s/gen": step_s * 0.6, "perf/total_num_tokens": tokens}
        rows.append(json.dumps({"step": step, "data": data}))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("steps", [3, 4])
def test_three_or_four_steps_have_no_change_at_equal_length(tmp_path, steps):
    """Four steps less two parameters leave at most two degrees of freedom."""
    sides = [write_log(tmp_path / name, seed, steps) for seed, name in enumerate("ab")]
    found = compare_paths([sides[0]], [sides[1]], Options(jobs=1)).comparison
    whole = found.lengths.changes[0]
    assert (whole.stage, whole.change, whole.low, whole.high) == (None, None, None, None)
    assert whole.word == "inconclusive"
    assert whole.note == f"{steps} steady steps are too few for an interval"
    assert f"no verdict at equal length: {whole.note}" in found.warnings
    assert np.isfinite([whole.raw, whole.per_token]).all()


def test_forty_steps_have_a_change_and_an_interval(tmp_path):
    sides = [write_log(tmp_path / name, seed, 40) for seed, name in enumerate("ab")]
    found = compare_paths([sides[0]], [sides[1]], Options(jobs=1)).comparison
    whole = found.lengths.changes[0]
    assert whole.low < whole.change < whole.high
    assert not any("too few" in warning for warning in found.warnings)


def test_intervals_above_the_least_degrees_of_freedom_are_narrow():
    """Of 2,000 pairs of 5 steps with 2 % of noise, determined intervals are below 100 % wide, others reach more."""
    rng = np.random.default_rng(7)
    widths = {True: [], False: []}
    for _ in range(2_000):
        x = [rng.uniform(1, 1.5, (5, 1)) for _ in range(2)]
        t = [(60 + 100 * lengths[:, 0]) * (1 + 0.02 * rng.standard_normal(5)) for lengths in x]
        change = compare_at_equal_length((x[0], t[0]), (x[1], t[1]))
        assert change.is_determined == (change.df > LEAST_DF)
        widths[change.is_determined].append(change.high - change.low)
    assert min(map(len, widths.values())) > 100
    assert max(widths[True]) < 1 < max(widths[False])
