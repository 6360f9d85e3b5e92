"""First screen of a comparison: its basis, its caveats, and a bar for every change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.amdahl import describe_largest_stage_effect
from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.work_units import name_samples
from tracekit.model.metrics import UNPROFILED
from tracekit.model.report import Cell, Heading, Sheet
from tracekit.model.units import format_quantity

FIRST_CAUTIONS = 6
"""Number of caveats on the first screen; the details list the others."""

_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def describe_comparison_basis(comparison: Comparison) -> tuple[str, ...]:
    """Describe the basis of the answer: sample sizes, the detectable change, and which data would show more.

    The stage with the largest effect on the step is listed between them.
    """
    step = comparison.headline
    seen, from_stage = "", list[str]()
    if comparison.verdict != "not comparable":
        seen = _describe_detectable_change(step)
        attributed = "profiled step" if step.name == UNPROFILED else "step"
        from_stage += describe_largest_stage_effect(comparison.changes, attributed)
    counts = ", ".join(part for part in (step.label, _format_sample_counts(step)) if part)
    lines = [" · ".join(part for part in (counts, seen) if part), *_describe_detection_chances(comparison), *from_stage]
    if comparison.needed:
        lines.append(comparison.needed[0].upper() + comparison.needed[1:])
    return tuple(lines)


def _describe_detectable_change(step: Change) -> str:
    """Describe the smallest change that these runs could have detected; empty if there is no interval."""
    if step.low is None:
        return ""
    if step.detectable is None:
        return "no change of any size could have been detected"
    return f"could have detected a change of ≥ {format_quantity(step.detectable, 'ratio')}"


def _describe_detection_chances(comparison: Comparison) -> Iterator[str]:
    """Describe in one line how often such runs detect a slower step; empty if they never do."""
    parts, is_possible = [], False
    for row in comparison.outlook:
        if row.runs == comparison.outlook[0].runs and row.change > 0:
            parts.append(f"{_format_probability(row.regression)} at +{row.change:.0%}")
            is_possible |= row.inconclusive < 1
    if is_possible:
        yield f"chance that a slower step is called slower: {', '.join(parts)}".replace("%", " %")


def _format_probability(share: float) -> str:
    """Format a probability in whole percent; 0 % and 100 % only if exact."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _format_sample_counts(step: Change) -> str:
    """Format the sample sizes: `3 v 3 runs × 5 steps`, or the steps per side if runs differ in length."""
    if not (step.base_runs and step.base_steps and step.opt_runs and step.opt_steps):
        return ""
    runs = f"{step.base_runs} v {step.opt_runs} runs"
    a_run = divmod(step.base_steps, step.base_runs)
    if a_run == divmod(step.opt_steps, step.opt_runs) and a_run[1] == 0:
        return f"{runs} × {a_run[0]:,} {name_samples(step.name, a_run[0])}"
    return f"{runs}, {step.base_steps:,} v {step.opt_steps:,} {name_samples(step.name)}"


def choose_first_cautions(comparison: Comparison) -> tuple[str, ...]:
    """Choose the most serious caveats; those that block a verdict come first."""
    return comparison.warnings[:FIRST_CAUTIONS]


def add_change_bars(sheet: Sheet) -> Sheet:
    """Add a bar to every change, scaled to the largest; full blocks take less time, hatched ones more."""
    names = [heading.name for heading in sheet.headings]
    if "difference" not in names or not sheet.rows:
        return sheet
    column = names.index("difference")
    changes = [_number_or_zero(row[column]) for row in sheet.rows]
    largest_change = max(abs(change) for change in changes)
    heading = Heading("bar", "size", doc="The change beside the largest: █ takes less, ▒ more.")
    rows = []
    for row, change in zip(sheet.rows, changes, strict=True):
        rows.append((*row, _draw_change_bar(change, largest_change)))
    return replace(sheet, headings=(*sheet.headings, heading), rows=tuple(rows))


def _number_or_zero(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _draw_change_bar(change: float, largest_change: float) -> str:
    """Draw a bar to an eighth of a character; for a regression to a whole one."""
    if not change or not largest_change:
        return ""
    eighths = max(round(abs(change) / largest_change * _BAR * 8), 1)
    if change > 0:
        return "▒" * max(round(eighths / 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
