"""Shares of the whole capture, for findings about the time after a start-up that takes nearly all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tracekit.job.frames import summarize_step_walls
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.model import failed_questions
from tracekit.model.report import SEVERITIES, Finding, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

START_UP_DOMINATES_RATIO = 0.9
"""Start-up share of a capture from which the other findings cover almost none of it."""


def rescale_after_start_up(
    measured: Measurements, sections: Sequence[Section], thresholds: Thresholds
) -> list[Section]:
    """Rescale the findings after start-up to the whole capture, where start-up is nearly all of it.

    Otherwise a share of the short remainder would rank as high as a share of a step.
    """
    unscaled: dict[str | None, float] = {}
    scales = failed_questions.judge_if_sound(measured, _measure_after_start_up, unscaled)
    if all(scale == 1 for scale in scales.values()):
        return list(sections)
    return [_rescale_section(section, scales, thresholds) for section in sections]


def _measure_after_start_up(measured: Measurements) -> dict[str | None, float]:
    """Map each run to the share of its capture after start-up, or to 1 if start-up does not dominate."""
    of_runs = [prefix for prefix in find_run_start_ups(measured) if prefix.ratio >= START_UP_DOMINATES_RATIO]
    if not of_runs:
        return {}
    scales = dict.fromkeys(summarize_step_walls(measured).walls.values("run"), 1.0)
    return scales | {prefix.run: 1 - prefix.ratio for prefix in of_runs}


def _rescale_section(section: Section, scales: Mapping[str | None, float], thresholds: Thresholds) -> Section:
    def share(ratio: float | None, runs: Collection[object]) -> float | None:
        scale = max((scales[run] for run in scales if not runs or run in runs), default=1.0)
        return None if ratio is None else ratio * scale

    def rated(finding: Finding) -> Finding:
        ratio = share(finding.cost_ratio, {place.run for place in finding.places} - {None})
        if finding.rule == "start-up" or ratio is None:
            return finding
        severity = max(finding.severity, thresholds.severity(ratio), key=SEVERITIES.index)
        parts = tuple(map(rated, finding.parts))
        return replace(finding, severity=severity, cost_ratio=ratio, parts=parts)

    def priced(verdict: Verdict) -> Verdict:
        named: set[object] = set() if verdict.run is None else {verdict.run}
        ratio = share(verdict.price_ratio, named)
        return replace(verdict, price_ratio=ratio)

    return replace(section, findings=tuple(map(rated, section.findings)), verdicts=tuple(map(priced, section.verdicts)))
