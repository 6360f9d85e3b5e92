"""What a table of stages says beyond the change of each: in how many steps it is, and what it makes of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracekit.compare.amdahl import ASSUMES
from tracekit.compare.comparison import Change
from tracekit.job.metric_kinds import STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE
from tracekit.model.report import Heading, Sheet

_STEP_OF = {STAGE_TIME: STEP_TIME, UNPROFILED_STAGE: UNPROFILED}

_SOME = "Times of a stage are of the steps that hold it."


def with_stage_columns(sheet: Sheet, changes: Sequence[Change]) -> Sheet:
    """The sheet, one row a change, with the columns that there is something to say in, and what they mean."""
    told = [_in_steps(change, changes) for change in changes]
    headings, added, captions = [], [], []
    if any(told):
        headings.append(Heading("steps", "in steps", doc="In how many of the steps that count."))
        added.append(told)
        captions.append(_SOME)
    if any(change.step_ratio is not None for change in changes):
        headings += [
            Heading("step_ratio", "step from this alone", "factor", "Before over after, if only this stage changed."),
            Heading("step_low", "from", "factor", "Lower end of the interval."),
            Heading("step_high", "to", "factor", "Upper end of the interval."),
        ]  # fmt: skip
        added += [[getattr(c, name) for c in changes] for name in ("step_ratio", "step_low", "step_high")]  # fmt: skip
        captions.append(ASSUMES)
    if not headings:
        return sheet
    rows = tuple(
        (*row, *more) for row, more in zip(sheet.rows, zip(*added, strict=True), strict=True)
    )
    caption = " ".join(filter(None, (sheet.caption, *captions)))
    return replace(sheet, headings=(*sheet.headings, *headings), rows=rows, caption=caption)


def _in_steps(change: Change, changes: Sequence[Change]) -> str:
    """`3 of 6 before, 6 of 6 after` of a stage that some steps lack; nothing of others."""
    step = next((c for c in changes if c.name == _STEP_OF.get(change.name)), None)
    if step is None:
        return ""
    pairs = (
        (change.base_steps, step.base_steps, "before"),
        (change.opt_steps, step.opt_steps, "after"),
    )
    if all(some >= whole for some, whole, _ in pairs if some):
        return ""
    return ", ".join(f"{some:,} of {whole:,} {when}" for some, whole, when in pairs if some)
