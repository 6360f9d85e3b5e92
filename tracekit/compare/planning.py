"""Plan of the next recording for an inconclusive comparison, from the measured noise."""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, log1p

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import VerdictOutlook
from tracekit.model.stats.needed import (
    ENOUGH_STEPS,
    LEAST_RUNS_OF_PLAN,
    MOST_RUNS,
    NeededRuns,
    compute_needed_runs,
    find_confirmable_spread,
)
from tracekit.model.stats.outlook import (
    MANY_COMPARISONS,
    SILENT,
    DrawnComparisons,
    PlannedRuns,
    WordChances,
    compute_chances,
    draw_comparisons,
)
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import (
    ComparisonVerdict,
    can_comparison_show_change,
    compute_effect_threshold,
    list_caps,
)
from tracekit.model.units import format_quantity

PREDICTED_CHANGES = (0.0, 0.03, 0.05, 0.1)
"""True slowdowns whose verdicts are predicted."""

_OFTEN = "in 8 of 10 cases"


def predict_verdicts(ratio: Speedup, choices: ComparisonChoices) -> tuple[VerdictOutlook, ...]:
    """Predict the probability of each verdict, for these runs and for as many as `recommend_recording` asks for."""
    if not ratio.spreads:
        return ()
    delta = compute_effect_threshold(ratio, choices.min_effect)
    independent = choices.assume_independent_steps
    drawn = None
    if not list_caps(ratio, independent):
        drawn = draw_comparisons(ratio, repetitions=MANY_COMPARISONS, steps_are_runs=independent)
    rows = list(_predict_verdicts_by_change(ratio.base.runs, ratio.opt.runs, drawn, delta))
    fewest = min(ratio.base.runs, ratio.opt.runs)
    more = (
        LEAST_RUNS_OF_PLAN
        if 1 < fewest < LEAST_RUNS_OF_PLAN
        else compute_needed_runs(ratio, effect=choices.min_effect).runs
    )
    if more is not None and more > max(ratio.base.runs, ratio.opt.runs):
        drawn = draw_comparisons(ratio, PlannedRuns(more, more), repetitions=MANY_COMPARISONS)
        if drawn is not None:
            rows += _predict_verdicts_by_change(more, more, drawn, delta)
    return tuple(rows)


def _predict_verdicts_by_change(
    base_runs: int, opt_runs: int, drawn: DrawnComparisons | None, delta: float
) -> Iterator[VerdictOutlook]:
    """Predict the verdicts for each of `PREDICTED_CHANGES`; without drawn comparisons no verdict is possible."""
    for change in PREDICTED_CHANGES:
        chances: WordChances = SILENT if drawn is None else compute_chances(log1p(change), drawn, delta)
        yield VerdictOutlook(
            f"{base_runs} v {opt_runs}",
            change,
            regression=chances.regression,
            no_change=chances.no_change,
            improvement=chances.improvement,
            inconclusive=chances.inconclusive,
            at_least=chances.low,
            at_most=chances.high,
        )


def recommend_recording(
    ratio: Speedup, verdict: ComparisonVerdict, effect: float, *, treat_steps_as_runs: bool = False
) -> str:
    """Recommend the recording with which an inconclusive comparison decides, in sentences.

    The observed change is first, then the runs needed to rule out a change of `effect`.
    `treat_steps_as_runs` treats the steps of one run as independent runs.
    """
    fewest = min(ratio.base.runs, ratio.opt.runs)
    if ratio.se is None or (ratio.se == 0.0 and ratio.low is None):
        return (
            f"Record {LEAST_RUNS_OF_PLAN} runs per side of at least {ENOUGH_STEPS} steps each: run-to-run noise is"
            " unknown."
        )
    if fewest == 1 and ratio.design != "paired runs" and not treat_steps_as_runs:
        return _recommend_several_runs(ratio, effect)
    if _seems_changed(ratio) and not treat_steps_as_runs and not can_comparison_show_change(ratio):
        more = LEAST_RUNS_OF_PLAN - fewest
        return "One more run per side decides." if more == 1 else f"{more} more runs per side decide."
    if fewest == 2 and ratio.design == "runs":
        return "Record 2 more runs per side: two are too few to plan with."
    if ratio.is_odd:
        return "A few outliers dominate the spread. Find out why they are slow before you plan more runs."
    return _recommend_more_runs(ratio, verdict, effect, treat_steps_as_runs=treat_steps_as_runs)


def _seems_changed(ratio: Speedup) -> bool:
    """Whether the interval excludes equal sides."""
    return ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high


def _recommend_several_runs(ratio: Speedup, effect: float) -> str:
    """Recommend several runs in place of one on a side."""
    both = max(ratio.base.runs, ratio.opt.runs) == 1
    first = "One run per side cannot separate a change from run-to-run noise."
    if not both:
        first = "One run on a side does not show the run-to-run noise."
    delta = compute_effect_threshold(ratio, effect)
    spread = expm1(find_confirmable_spread(ratio.log_ratio, delta, ratio.level))
    if abs(ratio.log_ratio) <= delta or spread < 0.001:
        return f"{first} Record {LEAST_RUNS_OF_PLAN} per side."
    return (
        f"{first} A change this large would be confirmed by {LEAST_RUNS_OF_PLAN} per side, if equal runs differ by less than"
        f" {format_quantity(spread, 'ratio')}."
    )


def _recommend_more_runs(
    ratio: Speedup, verdict: ComparisonVerdict, effect: float, *, treat_steps_as_runs: bool
) -> str:
    """Recommend the runs that confirm the change that was seen, and those that show that nothing changed."""
    seen = verdict.worse is not None and abs(verdict.worse) > compute_effect_threshold(ratio, effect)
    sentences = []
    if seen and verdict.worse is not None:
        plan = compute_needed_runs(
            ratio, effect=effect, change=expm1(abs(verdict.worse)), accept_steps=treat_steps_as_runs
        )
        if text := format_recording_plan(plan, ratio):
            sentences.append(f"{text} per side confirm a change this large {_OFTEN}")
    plan = compute_needed_runs(ratio, effect=effect, accept_steps=treat_steps_as_runs)
    within = format_quantity(effect, "ratio")
    if text := format_recording_plan(plan, ratio):
        sentences.append(f"{text} per side rule out a change of {within} {_OFTEN}")
    if not sentences:
        return (
            f"Even {MOST_RUNS} runs per side like these would not rule out a change of {within}: reduce the run-to-run"
            " noise first."
        )
    return f"If the runs to come are like these, {'; '.join(sentences)}."


def format_recording_plan(plan: NeededRuns, ratio: Speedup) -> str:
    """Format the steps or runs of a plan; empty if it has neither. Few runs leave a range."""
    unit = "pairs of " if plan.pairs else ""
    choices = []
    if plan.steps is not None:
        choices.append(f"{plan.steps:,} {unit}steps")
    if plan.runs is not None:
        is_rough = min(ratio.base.runs, ratio.opt.runs) < LEAST_RUNS_OF_PLAN
        runs = f"{plan.runs}"
        if is_rough and plan.most_runs != plan.runs:
            runs += f" to {plan.most_runs}" if plan.most_runs else f" to more than {MOST_RUNS}"
        choices.append(f"{runs} {unit}runs")
    return " or ".join(choices)
