"""Report of a noise calibration: spread between equal runs, and the smallest change they can show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import log1p
from typing import Any

import pandas as pd

from tracekit.compare.design import run_spans
from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import Side
from tracekit.job.tables import as_headings, sheet
from tracekit.model.metrics import STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE, titled
from tracekit.model.report import Report
from tracekit.model.stats.certainty import Spread
from tracekit.model.stats.noise import LEAST_RUNS, Noise
from tracekit.model.stats.outlook import detectable
from tracekit.model.stats.verdict import LEAST_EFFECT
from tracekit.model.units import show

LEVEL = 0.95


def noise_notes(side: Side) -> Iterator[str]:
    """Describe how the runs were made, by their recorded times: at once, or spread over time."""
    spans = sorted(run_spans(side))
    if len(spans) < 2:
        return
    overlap = any(later < end for (_, end), (later, _) in pairwise(spans))
    if overlap:
        yield "runs overlap in time: they may have slowed one another"
    length = show(spans[-1][1] - spans[0][0], "ns")
    yield f"the runs span {length}: drift over longer times, and other nodes, are not in this noise"


def resolves(noise: Noise, level: float = LEVEL) -> float | None:
    """Find the smallest change that one run per side calls a regression in 80 % of cases with this noise.

    None if the noise is not usable.
    """
    if not noise.usable:
        return None
    delta = max(log1p(LEAST_EFFECT), noise.sd)
    return detectable([Spread(2**0.5 * noise.sd, noise.df, drawn=False)], delta, level)


def report_noise(noise: NoiseFile, side: Side) -> Report:
    """Convert a calibration to a report, which every renderer accepts."""
    rows = list(_rows(noise, side))
    frame = pd.DataFrame(rows).sort_values(["order", "size"], kind="stable")
    return Report(
        title="noise",
        tool_version=noise.tool_version,
        identity=(f"{len(noise.runs)} runs of one setting", *_hardware(noise)),
        answer=_answer(frame.iloc[0], few=len(noise.runs) < LEAST_RUNS),
        overview=sheet(
            "overview",
            "How much equal runs differ",
            _HEADINGS,
            frame,
            caption=" · ".join(noise.notes),
        ),
    )


_HEADINGS = as_headings("""
    title | metric
    role | role
    runs | runs | count
    steps | fewest steps | count | Of one run.
    sd | spread | ratio | Standard deviation of the means of runs.
    resolves | smallest change | ratio | What one run a side can then show, in 80 % of cases.
""")


def _rows(noise: NoiseFile, side: Side) -> Iterator[dict[str, Any]]:
    """Make one row per metric, with the columns that rows are sorted by."""
    order = {UNPROFILED: 0, STEP_TIME: 1, STAGE_TIME: 2, UNPROFILED_STAGE: 3}
    for key, of_metric in noise.metrics.items():
        name, role, stage = key
        yield {
            "title": titled(name, stage),
            "role": role,
            "order": order[name],
            "size": -sum(map(sum, side.samples[key].values)),
            "runs": of_metric.runs,
            "steps": of_metric.steps,
            "sd": of_metric.sd,
            "resolves": resolves(of_metric),
        }


def _hardware(noise: NoiseFile) -> Iterator[str]:
    """Describe the hardware of the calibration."""
    if noise.fingerprint.get("gpu"):
        yield noise.fingerprint["gpu"]
    if noise.fingerprint.get("world_size"):
        yield f"world size {noise.fingerprint['world_size']}"


def _answer(first: pd.Series[Any], *, few: bool) -> str:
    """Describe the spread of the step, and the smallest change that it lets one detect."""
    text = f"runs differ by {show(first['sd'], 'ratio')} in the {first['title']} (one standard deviation)"
    if few:
        return f"{text}; intervals are widened by it from {LEAST_RUNS} runs on"
    if pd.isna(first["resolves"]):
        return text
    return f"{text}: one run a side shows changes from {show(first['resolves'], 'ratio')} on"
