"""Report of a noise calibration: spread between equal runs, and the smallest change they can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import log1p
from typing import Any

from tracekit.compare.differences import list_run_spans
from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import ComparedSide
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.metrics import STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE, get_metric_title
from tracekit.model.report import Report
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.noise import LEAST_RUNS, Noise
from tracekit.model.stats.outlook import find_detectable_change
from tracekit.model.stats.verdict import LEAST_EFFECT
from tracekit.model.tables.frame import from_rows
from tracekit.model.units import format_quantity


def list_noise_notes(side: ComparedSide) -> Iterator[str]:
    """Describe how the runs were made, by their recorded times: at once, or spread over time."""
    spans = sorted(list_run_spans(side))
    if len(spans) < 2:
        return
    overlap = any(later < end for (_, end), (later, _) in pairwise(spans))
    if overlap:
        yield "runs overlap in time: they may have slowed one another"
    length = format_quantity(spans[-1][1] - spans[0][0], "ns")
    yield f"the runs span {length}: drift over longer times, and other nodes, are not in this noise"


def find_resolvable_change(noise: Noise) -> float | None:
    """Find the smallest change that one run per side calls a regression in 80 % of cases with this noise.

    None if the noise is not usable.
    """
    if not noise.usable:
        return None
    delta = max(log1p(LEAST_EFFECT), noise.sd)
    return find_detectable_change([ErrorSpread(2**0.5 * noise.sd, noise.df, drawn=False)], delta, level=0.95)


def build_noise_report(noise: NoiseFile, side: ComparedSide) -> Report:
    """Convert a calibration to a report, which every renderer accepts."""
    rows = list(_make_noise_rows(noise, side))
    frame = from_rows([*rows[0]], [[*row.values()] for row in rows]).sort("order", "size")
    return Report(
        title="noise",
        tool_version=noise.tool_version,
        identity=(f"{len(noise.runs)} runs of one setting", *_describe_calibrated_hardware(noise)),
        answer=_describe_step_noise(next(frame.rows()), few=len(noise.runs) < LEAST_RUNS),
        overview=make_sheet(
            "overview", "How much equal runs differ", _HEADINGS, frame, caption=" · ".join(noise.notes)
        ),
    )


_HEADINGS = parse_headings("""
    title | metric
    role | role
    runs | runs | count
    steps | fewest steps | count | Of one run.
    sd | spread | ratio | Standard deviation of the means of runs.
    resolves | smallest change | ratio | What one run a side can then show, in 80 % of cases.
""")


def _make_noise_rows(noise: NoiseFile, side: ComparedSide) -> Iterator[dict[str, Any]]:
    """Make one row per metric, with the columns that rows are sorted by."""
    order = {UNPROFILED: 0, STEP_TIME: 1, STAGE_TIME: 2, UNPROFILED_STAGE: 3}
    for key, of_metric in noise.metrics.items():
        name, role, stage = key
        yield {
            "title": get_metric_title(name, stage),
            "role": role,
            "order": order[name],
            "size": -sum(sum(values) for values in side.samples[key].values),
            "runs": of_metric.runs,
            "steps": of_metric.steps,
            "sd": of_metric.sd,
            "resolves": find_resolvable_change(of_metric),
        }


def _describe_calibrated_hardware(noise: NoiseFile) -> Iterator[str]:
    """Describe the hardware of the calibration."""
    if noise.fingerprint.get("gpu"):
        yield noise.fingerprint["gpu"]
    if noise.fingerprint.get("world_size"):
        yield f"world size {noise.fingerprint['world_size']}"


def _describe_step_noise(first: Mapping[str, Any], *, few: bool) -> str:
    """Describe the spread of the step, and the smallest change that it lets one detect."""
    text = f"runs differ by {format_quantity(first['sd'], 'ratio')} in the {first['title']} (one standard deviation)"
    if few:
        return f"{text}; intervals are widened by it from {LEAST_RUNS} runs on"
    if first["resolves"] is None:
        return text
    return f"{text}: one run a side shows changes from {format_quantity(first['resolves'], 'ratio')} on"
