"""Where the change came from, as tables: the largest parts first, then in detail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.compare.comparison import Change
from tracekit.compare.kernels import CLASSES
from tracekit.compare.origins import Attribution, Row, Transfer, shortened
from tracekit.job.metric_kinds import UNPROFILED
from tracekit.model.report import Cell, Heading, Section, Sheet
from tracekit.model.units import MINUS, show

FIRST = 8
"""So many parts of the change stand on the first screen, and one row for all others."""

_MAINLY = 0.8
"""An effect that makes so much of both explains the change."""

_TIMES = (
    Heading("base", "before", "ns", "Time of its own in the mean step: mean over steps, runs and ranks."),
    Heading("opt", "after", "ns", "The same after."),
    Heading("difference", "change", "ns", "After less before; over all rows of a level it is the change of the step."),
    Heading("low", "from", "ns", "Lower end of the change's interval."),
    Heading("high", "to", "ns", "Upper end of the change's interval."),
)  # fmt: skip

_HOW = Heading(
    "how", "how", doc="Whether there are more or fewer of it, or each is longer or shorter; of communication what "
    "moving data and waiting for other ranks take more or less, hidden time included."
)  # fmt: skip


def overview(found: Attribution | None, step: Change) -> Sheet | None:
    """The parts of the change that stand on the first screen; None where nothing was attributed.

    `step` is what the answer is of: of un-profiled steps it is told that the parts are not of them.
    """
    if found is None or found.missing or not found.ops:
        return None
    title = f"{heading(step)} (adds up to {_signed(found.opt - found.base)})"
    caption = " ".join(
        filter(None, (profiled_only(found, step), _CAPTION, _PAIRS.get(found.paired or "")))
    )
    return replace(
        _sheet("overview", title, shortened(found.ops, FIRST), _moved(found)), caption=caption
    )


def heading(step: Change) -> str:
    """What the attribution is of, beside an answer about `step`."""
    of = " of profiled steps" if step.name == UNPROFILED else ""
    return f"Where the change{of} came from"


def profiled_only(found: Attribution, step: Change) -> str:
    """Which step the parts add up to where the answer is of another; nothing where it is of that one."""
    if step.name != UNPROFILED:
        return ""
    profiled = (
        f"{show(found.base, 'ns')} → {show(found.opt, 'ns')} ({_signed(found.opt - found.base)})"
    )
    answer = f"{show(step.base, 'ns')} → {show(step.opt, 'ns')} ({_signed(step.difference or 0.0)})"
    return (
        f"These are parts of the profiled step, {profiled}; the answer is of the un-profiled step, {answer}, "
        "whose parts nothing recorded."
    )


def sections(found: Attribution | None, stages: Sheet, step: Change) -> Iterable[Section]:
    """The attribution in detail, and `stages`, the table of stages that it takes the place of."""
    if found is None:
        return
    if found.missing:
        yield Section(
            "attribution", heading(step), "skipped", found.missing,
            caveats=(f"where the change came from is not told: {found.missing}",),
        )  # fmt: skip
        return
    yield Section("stages", "Step and stages", sheets=(stages,))
    tables = (
        _sheet("by-class", "By stage and class", found.stages),
        *_within(found),
        _sheet("by-op", "By op", found.ops, _moved(found)),
        _leaves(found.leaves),
        _replaced(found.replaced),
        _transfers(found.transfers),
    )
    yield Section(
        "attribution",
        f"{heading(step)}, in detail",
        sheets=tuple(sheet for sheet in tables if sheet.rows),
        caveats=(*filter(None, [profiled_only(found, step)]), *found.notes),
    )
    kernels = _kernels(found)
    if kernels is not None:
        yield kernels


def _sheet(
    name: str, title: str, rows: Sequence[Row], moved: Mapping[tuple[str, str], str] | None = None
) -> Sheet:
    """Rows by stage and what, with how each changed; `moved` says it of communication."""
    told = moved or {}
    staged = any(row.stage for row in rows)
    headings = (
        *([Heading("stage", "stage")] if staged else []),
        Heading("what", "what", doc="Ops by the outermost one, communication by the innermost; idle time by its cause."), *_TIMES, _HOW,
    )  # fmt: skip
    cells = [
        (
            *([row.stage] if staged else []),
            row.what,
            *_times(row),
            told.get((row.stage, row.what), _how(row)),
        )
        for row in rows
    ]
    return Sheet(name, title, headings, tuple(cells))


def _within(found: Attribution) -> Iterator[Sheet]:
    """The stages that changed most, one table each: the stage, then its ops, which add up to it."""
    moved = _moved(found)
    for number, one in enumerate(found.within, 1):
        mine = {("", what): text for (stage, what), text in moved.items() if stage == one.stage}
        change = one.opt - one.base
        whole = Row("", "all of it", one.base, one.opt, change, one.low, one.high, waiting=True)
        rows = [whole, *(replace(row, stage="") for row in one.rows)]
        title = f"Within {one.stage} (adds up to {_signed(change)})"
        caption = "The rows below the first add up to it. Mean over ranks; the table of stages tells of the longest one."
        yield replace(_sheet(f"within-{number}", title, rows, mine), caption=caption)


_PAIRS = {
    "step": "Intervals are of pairs of steps.",
    "run": "Intervals are of pairs of runs.",
}

_CAPTION = (
    "Each instant of a step counts once, for what took it; rows add up, their intervals do not. This is where the "
    "time went, not why: work that other work hides gains nothing when it gets shorter. Wait at step end: what the "
    "longest rank takes beyond the mean one."
)


def _times(row: Row) -> tuple[Cell, ...]:
    return (row.base, row.opt, row.difference, row.low, row.high)


def _how(row: Row) -> str:
    """The change in words; nothing of rows that are put together, of waiting, and where nothing changed."""
    if row.waiting:
        return ""
    if row.presence != "both":
        return row.presence
    effects = abs(row.by_count), abs(row.by_duration)
    if row.rows > 1 or not sum(effects) or row.difference == 0:
        return ""
    times = "more" if row.by_count > 0 else "fewer"
    each = "longer each" if row.by_duration > 0 else "shorter each"
    if effects[0] >= _MAINLY * sum(effects):
        return times
    return each if effects[1] >= _MAINLY * sum(effects) else f"{times}, {each}"


def _moved(found: Attribution) -> dict[tuple[str, str], str]:
    """For the row of each kind of collective that takes most time, what its transfer and its waits changed by."""
    told: dict[tuple[str, str], str] = {}
    for one in found.transfers:
        if not (one.base[0] or one.opt[0]):
            continue
        kind = one.op.replace("_", "")
        same = [
            (max(row.base, row.opt), row.stage, row.what)
            for row in found.ops
            if row.stage == one.stage and "communication" in row.what and kind in _plain(row.what)
        ]
        if same:
            parts = [_signed(one.opt[n] - one.base[n]) for n in (0, 1)]
            told.setdefault(max(same)[1:], f"transfer {parts[0]}, wait {parts[1]}")
    return told


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _signed(ns: float) -> str:
    text = show(abs(ns), "ns")
    return f"{MINUS}{text}" if ns < 0 else f"+{text}" if ns > 0 else text


def _leaves(rows: Sequence[Row]) -> Sheet:
    staged = any(row.stage for row in rows)
    headings = (
        *([Heading("stage", "stage")] if staged else []),
        Heading("what", "op path · kernel", doc="Ops on the host from outermost to innermost, then the kernel."),
        *_TIMES,
        Heading("base_count", "times before", "", "Per step and rank; of idle time its parts."),
        Heading("opt_count", "times after", "", "Per step and rank; of idle time its parts."),
        Heading("by_count", "by number", "ns", "What more or fewer of it make of the change."),
        Heading("by_duration", "by length", "ns", "What longer or shorter ones make of the change."),
        Heading("presence", "how"),
    )  # fmt: skip
    cells = [
        (
            *([row.stage] if staged else []), row.what, *_times(row), row.base_count, row.opt_count,
            row.by_count, row.by_duration, "" if row.presence == "both" else row.presence,
        )
        for row in rows
    ]  # fmt: skip
    return Sheet("by-kernel", "By op path and kernel", headings, tuple(cells))


def _replaced(rows: Sequence[Row]) -> Sheet:
    staged = any(row.stage for row in rows)
    headings = (
        *([Heading("stage", "stage")] if staged else []),
        Heading("what", "where: what it was → what it is"),
        *_TIMES,
    )
    cells = [(*([row.stage] if staged else []), row.what, *_times(row)) for row in rows]
    caption = "Names of one side alone, under an op that both sides hold, or alike but for numbers. Already counted above."
    return Sheet("replaced", "What was replaced", headings, tuple(cells), caption=caption)


def _transfers(rows: Sequence[Transfer]) -> Sheet:
    headings = (
        Heading("stage", "stage"), Heading("op", "collective"),
        Heading("base_transfer", "transfer before", "ns", "The shortest duration over ranks: moving the data."),
        Heading("opt_transfer", "transfer after", "ns", "The same after."),
        Heading("transfer", "change", "ns", "After less before."),
        Heading("base_wait", "wait before", "ns", "What ranks take beyond it: waiting for the last to come."),
        Heading("opt_wait", "wait after", "ns", "The same after."),
        Heading("wait", "change", "ns", "After less before."),
        Heading("alone", "not split", "ns", "Change of those that were matched with no other rank."),
    )  # fmt: skip
    cells = [
        (
            row.stage, row.op, row.base[0], row.opt[0], row.opt[0] - row.base[0],
            row.base[1], row.opt[1], row.opt[1] - row.base[1], row.opt[2] - row.base[2],
        )
        for row in rows
    ]  # fmt: skip
    caption = "Per step and rank; whole durations, also where other work hides them."
    title = "Communication: transfer, or waiting for other ranks?"
    return Sheet("transfers", title, headings, tuple(cells), caption=caption)


def _kernels(found: Attribution) -> Section | None:
    """The kernels that changed; None where none could be tested and none is on one side alone."""
    kernels = found.kernels
    word = "host ops" if kernels.on_host else "kernels"
    if not (kernels.changed or kernels.tested):
        return None
    headings = (
        Heading("name", "op" if kernels.on_host else "kernel"),
        Heading("kind", "class", doc="A shift that most of a class have in common is taken off before testing."),
        Heading("base", "before", "ns", "Time of its own in the mean step."),
        Heading("opt", "after", "ns", "The same after."),
        Heading("difference", "change", "ns", "After less before."),
        Heading("ratio", "before/after", "factor", "As measured; above 1 it takes less after."),
        Heading("corrected", "corrected", "factor", "Less the shift of its class."),
        Heading("q", "false share", "ratio", "Share of false ones among those up to this row's certainty."),
        Heading("presence", "how"),
    )  # fmt: skip
    cells = [
        (
            one.name, CLASSES.get(one.kind, one.kind), one.base, one.opt, one.difference, one.ratio,
            one.corrected, one.q, "" if one.presence == "both" else one.presence,
        )
        for one in kernels.changed
    ]  # fmt: skip
    unit = "run" if kernels.unit == "run" else "step"
    caption = (
        f"{kernels.tested:,} of {kernels.seen:,} {word} were tested, by {unit}; at most 5 % of those told changed by "
        "chance alone. New and gone ones take at least 0.1 % of the step."
    )
    without = ("no device was recorded: host ops are compared, by the innermost one",)
    sheet = Sheet("changed-kernels", f"Changed {word}", headings, tuple(cells), caption=caption)
    none = (f"{kernels.tested:,} {word} were tested, none changed beyond chance",)
    return Section(
        "kernels",
        f"Which {word} changed?",
        sheets=(sheet,) if cells else (),
        caveats=(*(without if kernels.on_host else ()), *(() if cells else none)),
    )
