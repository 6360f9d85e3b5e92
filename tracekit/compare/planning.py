"""What should be recorded next, where a comparison could not tell? From the noise that was measured."""

from __future__ import annotations

from tracekit.stats.speedup import Speedup
from tracekit.stats.verdict import ENOUGH_STEPS, MOST_RUNS, Needed, needed
from tracekit.units import show

LARGER = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Changes that are planned for, from the least on, where too many runs would be needed to see a smaller one."""


def what_to_record(found: Speedup, effect: float) -> str:
    """What to record to resolve the least effect that matters, in words.

    Where nothing that can be recommended would resolve it, what resolves the least larger change that can
    be; where the spread is not known at all, what shows it.
    """
    if found.se is None or (found.se == 0.0 and found.low is None):
        return f"record several runs per side of at least {ENOUGH_STEPS} steps each: how much they vary is not known"
    plan = needed(found, effect=effect)
    if text := _ways(plan):
        return f"record {text} per side to resolve {show(effect, 'ratio')}"
    for larger in LARGER:
        if larger > effect and (text := _ways(needed(found, effect=larger))):
            much = show(effect, "ratio")
            return f"record {text} per side to resolve {show(larger, 'ratio')}: {much} would take more than {MOST_RUNS} runs"
    return (
        f"even {MOST_RUNS} runs per side would not resolve {show(LARGER[-1], 'ratio')}: find out first why steps"
        " and runs differ so much (tracekit analyze)"
    )


def _ways(plan: Needed) -> str:
    """How many steps or runs a plan takes; nothing where it has none."""
    unit = "pairs of " if plan.pairs else ""
    ways = []
    if plan.steps is not None and not plan.at_least:
        ways.append(f"{plan.steps:,} {unit}steps")
    if plan.runs is not None:
        ways.append(f"{'at least ' if plan.at_least else ''}{plan.runs} {unit}runs")
    return " or ".join(ways)
