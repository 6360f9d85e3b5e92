"""What stands beside the answer: what it rests on, what to keep in mind, and a bar for every change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.amdahl import largest
from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.work_units import counted_as
from tracekit.job.metric_kinds import UNPROFILED
from tracekit.model.report import Cell, Heading, Sheet
from tracekit.model.units import show

FIRST_CAUTIONS = 6
"""So many stand on the first screen; the others come with the details."""

_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def basis(found: Comparison) -> tuple[str, ...]:
    """What the answer rests on: how many runs and steps, what it would have seen, and what would see more.

    Between them the stage that alone changes the step most.
    """
    step = found.headline
    first = [", ".join(word for word in (step.label, _counted(step)) if word)]
    if found.verdict != "not comparable":
        first.append(_seen(step))
    plan = found.needed[:1].upper() + found.needed[1:]
    of = "profiled step" if step.name == UNPROFILED else "step"
    alone = () if found.verdict == "not comparable" else largest(found.changes, of)
    return (" · ".join(filter(None, first)), *_foretold(found), *alone, *([plan] if plan else []))


def _seen(step: Change) -> str:
    """The least change that these runs would have shown; nothing where there is no interval."""
    if step.low is None:
        return ""
    if step.detectable is None:
        return "no change of any size could have been detected"
    return f"could have detected a change of ≥ {show(step.detectable, 'ratio')}"


def _foretold(found: Comparison) -> Iterator[str]:
    """How often such runs call a change that is there slower, in one line; nothing where they never do."""
    rows = [one for one in found.outlook if one.runs == found.outlook[0].runs and one.change > 0]
    if any(one.inconclusive < 1 for one in rows):
        parts = (f"{_percent(one.regression)} at +{one.change:.0%}" for one in rows)
        yield f"chance that a slower step is called slower: {', '.join(parts)}".replace("%", " %")


def _percent(share: float) -> str:
    """A probability in whole percent; 0 and 100 only where they are."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _counted(step: Change) -> str:
    """`3 v 3 runs × 5 steps`, or the steps of each side where runs hold different numbers."""
    sides = ((step.base_runs, step.base_steps), (step.opt_runs, step.opt_steps))
    if not all(runs and steps for runs, steps in sides):
        return ""
    runs = f"{step.base_runs} v {step.opt_runs} runs"
    each = {(steps // runs, steps % runs) for runs, steps in sides}
    if len(each) == 1 and all(rest == 0 for _, rest in each):
        number = next(iter(each))[0]
        return f"{runs} × {number:,} {counted_as(step.name, number)}"
    return f"{runs}, {step.base_steps:,} v {step.opt_steps:,} {counted_as(step.name)}"


def cautions(found: Comparison) -> tuple[str, ...]:
    """What to keep in mind first: the gravest, what blocks a verdict before all."""
    return found.warnings[:FIRST_CAUTIONS]


def barred(sheet: Sheet) -> Sheet:
    """The changes with a bar for each, as long as its size beside the largest: full takes less, hatched more."""
    names = [heading.name for heading in sheet.headings]
    if "difference" not in names or not sheet.rows:
        return sheet
    changes = [_number(row[names.index("difference")]) for row in sheet.rows]
    most = max(map(abs, changes))
    heading = Heading("bar", "size", doc="The change beside the largest: █ takes less, ▒ more.")
    rows = tuple(
        (*row, _bar(change, most)) for row, change in zip(sheet.rows, changes, strict=True)
    )
    return replace(sheet, headings=(*sheet.headings, heading), rows=rows)


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _bar(change: float, most: float) -> str:
    """The bar to an eighth of a character; of a change for the worse to a whole one."""
    if not change or not most:
        return ""
    eighths = max(round(abs(change) / most * _BAR * 8), 1)
    if change > 0:
        return "▒" * max(round(eighths / 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
