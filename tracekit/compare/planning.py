"""Plan of the next recording for an inconclusive comparison, from the measured noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p

from tracekit.compare.changes import Choices
from tracekit.compare.comparison import Outlook
from tracekit.model.stats.certainty import Spread
from tracekit.model.stats.needed import ENOUGH_STEPS, MOST_RUNS, Needed, needed, runs_of
from tracekit.model.stats.outlook import POWER, SILENT, chances, detectable
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import threshold, why_capped
from tracekit.model.units import show

LARGER = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Larger changes to plan for, in ascending order, if a smaller one would need too many runs."""

_OFTEN = f"in {POWER:.0%} of cases".replace("%", " %")


CHANGES = (0.0, 0.03, 0.05, 0.1)
"""True slowdowns whose verdicts are predicted."""


def outlook(ratio: Speedup, choices: Choices) -> tuple[Outlook, ...]:
    """Predict the probability of each verdict, for these runs and for as many as `what_to_record` asks for."""
    if not ratio.spreads:
        return ()
    delta = threshold(ratio, choices.min_effect)
    capped = why_capped(ratio, choices.assume_independent_steps)
    spreads = () if capped else ratio.spreads
    rows = _rows(f"{ratio.base.runs} v {ratio.opt.runs}", spreads, delta, ratio.level)
    more = needed(ratio, effect=choices.min_effect).runs
    if more is not None and more > max(ratio.base.runs, ratio.opt.runs):
        rows += _rows(f"{more} v {more}", runs_of(ratio, more), delta, ratio.level)
    return tuple(rows)


def _rows(runs: str, spreads: Sequence[Spread], delta: float, level: float) -> list[Outlook]:
    """Predict the verdicts for each of `CHANGES`."""
    return [_row(runs, change, spreads, delta, level) for change in CHANGES]


def _row(
    runs: str, change: float, spreads: Sequence[Spread], delta: float, level: float
) -> Outlook:
    """Predict the verdicts for one true change; without spreads no verdict is possible."""
    estimated = bound = SILENT
    if spreads:
        estimated = chances(log1p(change), spreads, delta, level)
        bound = chances(log1p(change), spreads, delta, level, bound=True)
    return Outlook(
        runs,
        change,
        regression=estimated.regression,
        no_change=estimated.no_change,
        improvement=estimated.improvement,
        inconclusive=estimated.inconclusive,
        at_least=min(bound.regression, estimated.regression),
    )


def what_to_record(ratio: Speedup, effect: float, *, alone: bool = False) -> str:
    """Describe the recording with which a comparison decides in 80 % of cases.

    It shows *no change* for equal sides, and states the size of change that it detects. If that takes too many
    runs, the plan is for the smallest larger change that is feasible. If the spread is unknown, the plan is to
    measure it. `alone` treats the steps of one run as independent runs.
    """
    if ratio.se is None or (ratio.se == 0.0 and ratio.low is None):
        return f"record several runs per side of at least {ENOUGH_STEPS} steps each: how much they vary is not known"
    within = show(effect, "ratio")
    plan = needed(ratio, effect=effect, alone=alone)
    if text := ways(plan):
        then = _called(ratio, effect, plan.runs)
        return f"record {text} per side: {_OFTEN} they show that nothing changed by {within}{then}"
    for larger in LARGER:
        plan = needed(ratio, effect=effect, change=larger, alone=alone)
        if larger > effect and (text := ways(plan)):
            return (
                f"record {text} per side to show a change of {show(larger, 'ratio')} {_OFTEN}: that nothing changed"
                f" by {within} takes more than {MOST_RUNS} runs"
            )
    return (
        f"even {MOST_RUNS} runs per side would not show a change of {show(LARGER[-1], 'ratio')}: find out first why"
        " steps and runs differ so much (tracekit analyze)"
    )


def ways(plan: Needed) -> str:
    """Format the steps or runs of a plan, as a range if the spread is uncertain; empty if it has neither."""
    unit = "pairs of " if plan.pairs else ""
    choices = []
    if plan.steps is not None:
        choices.append(f"{plan.steps:,} {unit}steps")
    if plan.runs is not None:
        choices.append(f"{_range(plan)} {unit}runs")
    return " or ".join(choices)


def _range(plan: Needed) -> str:
    if plan.at_least:
        return f"at least {plan.runs}"
    if plan.most_runs is None:
        return f"{plan.runs} to more than {MOST_RUNS}"
    return f"{plan.runs}" if plan.most_runs == plan.runs else f"{plan.runs} to {plan.most_runs}"


def _called(ratio: Speedup, effect: float, runs: int | None) -> str:
    """Describe the change that so many runs also show, by the estimated spread.

    Empty without a number of runs.
    """
    if runs is None:
        return ""
    seen = detectable(runs_of(ratio, runs), threshold(ratio, effect), ratio.level, bound=False)
    return "" if seen is None else f", or a change of {show(seen, 'ratio')}"
