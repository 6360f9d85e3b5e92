"""Plan of the next recording for an inconclusive comparison, from the measured noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import VerdictOutlook
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.needed import ENOUGH_STEPS, MOST_RUNS, NeededRuns, compute_needed_runs, predict_run_spreads
from tracekit.model.stats.outlook import POWER, SILENT, compute_chances, find_detectable_change
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import compute_effect_threshold, list_caps
from tracekit.model.units import format_quantity

LARGER_EFFECTS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Larger changes to plan for, in ascending order, if a smaller one would need too many runs."""

_OFTEN = f"in {POWER:.0%} of cases".replace("%", " %")


PREDICTED_CHANGES = (0.0, 0.03, 0.05, 0.1)
"""True slowdowns whose verdicts are predicted."""


def predict_verdicts(ratio: Speedup, choices: ComparisonChoices) -> tuple[VerdictOutlook, ...]:
    """Predict the probability of each verdict, for these runs and for as many as `recommend_recording` asks for."""
    if not ratio.spreads:
        return ()
    delta = compute_effect_threshold(ratio, choices.min_effect)
    capped = list_caps(ratio, choices.assume_independent_steps)
    spreads = () if capped else ratio.spreads
    rows = _predict_verdicts_by_change(f"{ratio.base.runs} v {ratio.opt.runs}", spreads, delta, ratio.level)
    more = compute_needed_runs(ratio, effect=choices.min_effect).runs
    if more is not None and more > max(ratio.base.runs, ratio.opt.runs):
        rows += _predict_verdicts_by_change(f"{more} v {more}", predict_run_spreads(ratio, more), delta, ratio.level)
    return tuple(rows)


def _predict_verdicts_by_change(
    runs: str, spreads: Sequence[ErrorSpread], delta: float, level: float
) -> list[VerdictOutlook]:
    """Predict the verdicts for each of `CHANGES`."""
    return [_predict_verdict(runs, change, spreads, delta, level) for change in PREDICTED_CHANGES]


def _predict_verdict(
    runs: str, change: float, spreads: Sequence[ErrorSpread], delta: float, level: float
) -> VerdictOutlook:
    """Predict the verdicts for one true change; without spreads no verdict is possible."""
    estimated = bound = SILENT
    if spreads:
        estimated = compute_chances(log1p(change), spreads, delta, level)
        bound = compute_chances(log1p(change), spreads, delta, level, bound=True)
    return VerdictOutlook(
        runs,
        change,
        regression=estimated.regression,
        no_change=estimated.no_change,
        improvement=estimated.improvement,
        inconclusive=estimated.inconclusive,
        at_least=min(bound.regression, estimated.regression),
    )


def recommend_recording(ratio: Speedup, effect: float, *, treat_steps_as_runs: bool = False) -> str:
    """Describe the recording with which a comparison decides in 80 % of cases.

    It shows *no change* for equal sides, and states the size of change that it detects. If that takes too many
    runs, the plan is for the smallest larger change that is feasible. If the spread is unknown, the plan is to
    measure it. `treat_steps_as_runs` treats the steps of one run as independent runs.
    """
    if ratio.se is None or (ratio.se == 0.0 and ratio.low is None):
        return f"record several runs per side of at least {ENOUGH_STEPS} steps each: how much they vary is not known"
    within = format_quantity(effect, "ratio")
    plan = compute_needed_runs(ratio, effect=effect, accept_steps=treat_steps_as_runs)
    if text := format_recording_plan(plan):
        then = _describe_detected_change(ratio, effect, plan.runs)
        return f"record {text} per side: {_OFTEN} they show that nothing changed by {within}{then}"
    for larger in LARGER_EFFECTS:
        plan = compute_needed_runs(ratio, effect=effect, change=larger, accept_steps=treat_steps_as_runs)
        if larger > effect and (text := format_recording_plan(plan)):
            return (
                f"record {text} per side to show a change of {format_quantity(larger, 'ratio')} {_OFTEN}: that nothing changed"
                f" by {within} takes more than {MOST_RUNS} runs"
            )
    return (
        f"even {MOST_RUNS} runs per side would not show a change of {format_quantity(LARGER_EFFECTS[-1], 'ratio')}: find out first why"
        " steps and runs differ so much (tracekit analyze)"
    )


def format_recording_plan(plan: NeededRuns) -> str:
    """Format the steps or runs of a plan, as a range if the spread is uncertain; empty if it has neither."""
    unit = "pairs of " if plan.pairs else ""
    choices = []
    if plan.steps is not None:
        choices.append(f"{plan.steps:,} {unit}steps")
    if plan.runs is not None:
        choices.append(f"{_format_run_range(plan)} {unit}runs")
    return " or ".join(choices)


def _format_run_range(plan: NeededRuns) -> str:
    if plan.at_least:
        return f"at least {plan.runs}"
    if plan.most_runs is None:
        return f"{plan.runs} to more than {MOST_RUNS}"
    return f"{plan.runs}" if plan.most_runs == plan.runs else f"{plan.runs} to {plan.most_runs}"


def _describe_detected_change(ratio: Speedup, effect: float, runs: int | None) -> str:
    """Describe the change that so many runs also show, by the estimated spread.

    Empty without a number of runs.
    """
    if runs is None:
        return ""
    seen = find_detectable_change(
        predict_run_spreads(ratio, runs), compute_effect_threshold(ratio, effect), ratio.level, bound=False
    )
    return "" if seen is None else f", or a change of {format_quantity(seen, 'ratio')}"
