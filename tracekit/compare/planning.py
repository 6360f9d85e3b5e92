"""What should be recorded next, where a comparison could not tell? From the noise that was measured."""

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
"""Changes that are planned for, from the least on, where too many runs would be needed to see a smaller one."""

_OFTEN = f"in {POWER:.0%} of cases".replace("%", " %")


CHANGES = (0.0, 0.03, 0.05, 0.1)
"""True changes for the worse whose verdicts are foretold."""


def outlook(found: Speedup, choices: Choices) -> tuple[Outlook, ...]:
    """How probable each verdict was with these runs, and is with as many as `what_to_record` asks for at least."""
    if not found.spreads:
        return ()
    delta = threshold(found, choices.min_effect)
    runs = f"{found.base.runs} v {found.opt.runs}"
    if why_capped(found, choices.assume_independent_steps):
        rows = [_row(runs, change, (), delta, found.level) for change in CHANGES]
    else:
        rows = [_row(runs, change, found.spreads, delta, found.level) for change in CHANGES]
    more = needed(found, effect=choices.min_effect).runs
    if more is not None and more > max(found.base.runs, found.opt.runs):
        spreads = runs_of(found, more)
        rows += [
            _row(f"{more} v {more}", change, spreads, delta, found.level) for change in CHANGES
        ]
    return tuple(rows)


def _row(
    runs: str, change: float, spreads: Sequence[Spread], delta: float, level: float
) -> Outlook:
    """The probabilities at one true change; without spreads nothing may be said."""
    said = bound = SILENT
    if spreads:
        said = chances(log1p(change), spreads, delta, level)
        bound = chances(log1p(change), spreads, delta, level, bound=True)
    least = min(bound.regression, said.regression)
    return Outlook(
        runs, change, said.regression, said.no_change, said.improvement, said.inconclusive, least
    )


def what_to_record(found: Speedup, effect: float, *, alone: bool = False) -> str:
    """What to record so that a comparison decides in 80 % of cases, in words.

    That is: says *no change* of sides that are equal, and names a change from a size on that is told too. Where that
    takes too many runs, what calls the least larger change that can be; where the spread is not known at all, what
    shows it. `alone` says that steps of one run may stand for runs.
    """
    if found.se is None or (found.se == 0.0 and found.low is None):
        return f"record several runs per side of at least {ENOUGH_STEPS} steps each: how much they vary is not known"
    within = show(effect, "ratio")
    plan = needed(found, effect=effect, alone=alone)
    if text := ways(plan):
        then = "" if plan.runs is None else _called(found, effect, plan.runs)
        return f"record {text} per side: {_OFTEN} they show that nothing changed by {within}{then}"
    for larger in LARGER:
        plan = needed(found, effect=effect, change=larger, alone=alone)
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
    """How many steps or runs a plan takes, as a range where the spread is not sure; nothing where it has none."""
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


def _called(found: Speedup, effect: float, runs: int) -> str:
    """The change that so many runs show as well, as the spread was estimated."""
    seen = detectable(runs_of(found, runs), threshold(found, effect), found.level, bound=False)
    return "" if seen is None else f", or a change of {show(seen, 'ratio')}"
