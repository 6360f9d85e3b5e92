"""Report of a noise calibration: spread between equal runs, and the smallest change they can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log1p
from typing import Any

from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import ComparedSide
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.sessions import has_overlapping_runs
from tracekit.model.metrics import STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE, get_metric_title
from tracekit.model.report import Report
from tracekit.model.stats.needed import LEAST_RUNS_OF_PLAN
from tracekit.model.stats.noise import LEAST_RUNS, Noise
from tracekit.model.stats.outlook import PlannedRuns, draw_runs, find_detectable_change
from tracekit.model.stats.verdict import LEAST_EFFECT
from tracekit.model.tables.frame import from_rows
from tracekit.model.units import format_quantity


def list_noise_notes(side: ComparedSide) -> Iterator[str]:
    """List the notes on the runs, and how they were made by their recorded times: at once, or spread over time."""
    yield from side.notes
    if len(side.spans) < 2:
        return
    if has_overlapping_runs(side.spans):
        yield "runs overlap in time: they may have slowed each other"
    length = max(end for _, _, end in side.spans) - min(start for _, start, _ in side.spans)
    yield (
        f"the runs span {format_quantity(length, 'ns')}: drift over longer times, and other nodes, are not in this noise"
    )


def find_resolvable_change(noise: Noise) -> float | None:
    """Find the smallest change that `LEAST_RUNS_OF_PLAN` runs per side call a regression in 80 % of cases with this noise.

    None if the noise is not usable.
    """
    earlier = noise.list_earlier_runs([])
    if earlier is None:
        return None
    shared = noise.sd, noise.df
    planned = PlannedRuns(LEAST_RUNS_OF_PLAN, LEAST_RUNS_OF_PLAN)
    return find_detectable_change(draw_runs((shared, shared), planned, earlier, level=0.95), log1p(LEAST_EFFECT))


def build_noise_report(noise: NoiseFile, side: ComparedSide) -> Report:
    """Convert a calibration to a report, which every renderer accepts."""
    rows = list(_make_noise_rows(noise, side))
    frame = from_rows([*rows[0]], [[*row.values()] for row in rows]).sort("order", "size")
    return Report(
        title="noise",
        tool_version=noise.tool_version,
        identity=(f"{len(noise.runs)} runs of one setting", *_describe_calibrated_hardware(noise)),
        answer=_describe_step_noise(next(frame.rows()), few=len(noise.runs) < LEAST_RUNS),
        overview=make_sheet("overview", "Noise of equal runs", _HEADINGS, frame, caption=" · ".join(noise.notes)),
    )


_HEADINGS = parse_headings("""
    title | metric
    role | role
    runs | runs | count
    steps | fewest steps | count | Of one run.
    sd | spread | ratio | Standard deviation of the means of runs.
    resolves | smallest change | ratio | What four runs per side detect in 80 % of cases; empty above 100 %.
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
            "resolves": _keep_detectable_change(find_resolvable_change(of_metric)),
        }


def _describe_calibrated_hardware(noise: NoiseFile) -> Iterator[str]:
    """Describe the hardware of the calibration."""
    if noise.fingerprint.get("gpu"):
        yield noise.fingerprint["gpu"]
    if noise.fingerprint.get("world_size"):
        yield f"world size {noise.fingerprint['world_size']}"


def _keep_detectable_change(change: float | None) -> float | None:
    """Keep a detectable change up to 100 %; larger ones promise nothing."""
    return change if change is not None and change <= 1 else None


def _describe_step_noise(first: Mapping[str, Any], *, few: bool) -> str:
    """Describe the spread of the step, and the smallest change that it lets one detect."""
    text = f"runs differ by {format_quantity(first['sd'], 'ratio')} in {first['title']} (standard deviation)"
    if few:
        return f"{text}; intervals are widened by it from {LEAST_RUNS} runs on"
    if first["resolves"] is None:
        return f"{text}: {LEAST_RUNS_OF_PLAN} runs per side cannot detect changes below 100 %" if first["sd"] else text
    return f"{text}: {LEAST_RUNS_OF_PLAN} runs per side detect changes of {format_quantity(first['resolves'], 'ratio')} or more"
