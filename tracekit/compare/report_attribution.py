"""Attribution of a change as tables: the largest parts first, then the details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from tracekit.compare.comparison import Change
from tracekit.compare.kernels import CLASSES
from tracekit.compare.origins import (
    Attribution,
    KernelChange,
    KernelChanges,
    Row,
    Transfer,
    shortened,
)
from tracekit.job.tables import as_headings, with_rows
from tracekit.model.metrics import UNPROFILED
from tracekit.model.report import Cell, Heading, Section, Sheet
from tracekit.model.units import show, signed
from tracekit.process.collectives.names import op_of

FIRST = 8
"""Parts of the change on the first screen; one more row holds all others."""

_MAINLY = 0.8
"""Share of both effects from which one of them explains the change alone."""

_TIMES = as_headings("""
    base | before | ns | Time of its own in the mean step: mean over steps, runs and ranks.
    opt | after | ns | The same after.
    difference | change | ns | After less before; over all rows of a level it is the change of the step.
    low | from | ns | Lower end of the change's interval.
    high | to | ns | Upper end of the change's interval.
""")

_HOW = Heading(
    "how",
    "how",
    doc="Whether there are more or fewer of it, or each is longer or shorter; of communication what "
    "moving data and waiting for other ranks take more or less, hidden time included.",
)

_PAIRS = {
    "step": "Intervals are of pairs of steps.",
    "run": "Intervals are of pairs of runs.",
}

_CAPTION = (
    "Each instant of a step counts once, for what took it; rows add up, their intervals do not. This is where the "
    "time went, not why: work that other work hides gains nothing when it gets shorter. Wait at step end: what the "
    "longest rank takes beyond the mean one."
)

_CALLS = "Per step and rank; of idle time its parts."


def overview(origin: Attribution | None, step: Change) -> Sheet | None:
    """Make the first table of the attribution; None if nothing was attributed.

    `step` is the headline change. If it is the unprofiled step, the caption says that the parts are not its own.
    """
    if origin is None or origin.missing or not origin.ops:
        return None
    title = f"{heading(step)} (adds up to {signed(origin.opt - origin.base, 'ns')})"
    notes = (profiled_only(origin, step), _CAPTION, _PAIRS.get(origin.paired or ""))
    sheet = _sheet("overview", title, shortened(origin.ops, FIRST), _moved(origin))
    return replace(sheet, caption=" ".join(filter(None, notes)))


def heading(step: Change) -> str:
    """Title the attribution for a headline change of `step`."""
    profiled = " of profiled steps" if step.name == UNPROFILED else ""
    return f"Where the change{profiled} came from"


def profiled_only(origin: Attribution, step: Change) -> str:
    """Explain that the parts add up to the profiled step; empty if the headline is that step."""
    if step.name != UNPROFILED:
        return ""
    profiled = _both(origin.base, origin.opt, origin.opt - origin.base)
    answer = _both(step.base, step.opt, step.difference or 0.0)
    return (
        f"These are parts of the profiled step, {profiled}; the answer is of the un-profiled step, {answer}, "
        "whose parts nothing recorded."
    )


def _both(base: float | None, opt: float | None, difference: float) -> str:
    """Format both times and the change."""
    return f"{show(base, 'ns')} → {show(opt, 'ns')} ({signed(difference, 'ns')})"


def sections(origin: Attribution | None, stages: Sheet, step: Change) -> Iterator[Section]:
    """Build the attribution in detail, and `stages`, the table of stages that it replaces."""
    if origin is None:
        return
    if origin.missing:
        caveat = f"where the change came from is not told: {origin.missing}"
        yield Section("attribution", heading(step), "skipped", origin.missing, caveats=(caveat,))
        return
    yield Section("stages", "Step and stages", sheets=(stages,))
    tables = (
        _sheet("by-class", "By stage and class", origin.stages),
        *_within(origin),
        _sheet("by-op", "By op", origin.ops, _moved(origin)),
        _leaves(origin.leaves),
        _replaced(origin.replaced),
        _transfers(origin.transfers),
    )
    notes = (profiled_only(origin, step), *origin.notes)
    yield Section(
        "attribution",
        f"{heading(step)}, in detail",
        sheets=with_rows(*tables),
        caveats=tuple(filter(None, notes)),
    )
    yield from _kernels(origin)


def _sheet(
    name: str, title: str, rows: Sequence[Row], moved: Mapping[tuple[str, str], str] | None = None
) -> Sheet:
    """Make a table of rows by stage and item; `moved` describes the change of collectives."""
    what = Heading(
        "what",
        "what",
        doc="Ops by the outermost one, communication by the innermost; idle time by its cause.",
    )
    hows = moved or {}
    cells = []
    for row in rows:
        cells.append((row.what, *_times(row), hows.get((row.stage, row.what), _how(row))))
    return _staged(Sheet(name, title, (what, *_TIMES, _HOW), tuple(cells)), rows)


def _staged(sheet: Sheet, rows: Sequence[Row]) -> Sheet:
    """Add a stage column in front, if any row has a stage."""
    if not any(map(attrgetter("stage"), rows)):
        return sheet
    cells = [(row.stage, *cell) for row, cell in zip(rows, sheet.rows, strict=True)]
    headings = (Heading("stage", "stage"), *sheet.headings)
    return replace(sheet, headings=headings, rows=tuple(cells))


def _within(origin: Attribution) -> Iterator[Sheet]:
    """Make a table for each stage that changed most: the stage, then its ops, which add up to it."""
    moved = _moved(origin)
    for number, stage in enumerate(origin.within, 1):
        hows = {("", what): how for (name, what), how in moved.items() if name == stage.stage}
        change = stage.opt - stage.base
        total = Row(
            "", "all of it", stage.base, stage.opt, change, stage.low, stage.high, waiting=True
        )
        rows = [total, *(replace(row, stage="") for row in stage.rows)]
        title = f"Within {stage.stage} (adds up to {signed(change, 'ns')})"
        caption = "The rows below the first add up to it. Mean over ranks; the table of stages tells of the longest one."
        yield replace(_sheet(f"within-{number}", title, rows, hows), caption=caption)


def _times(row: Row) -> tuple[Cell, ...]:
    return (row.base, row.opt, row.difference, row.low, row.high)


def _how(row: Row) -> str:
    """Describe a change in words; empty for merged rows, waiting rows and unchanged rows."""
    if row.waiting:
        return ""
    if row.presence != "both":
        return row.presence
    by_count, by_duration = abs(row.by_count), abs(row.by_duration)
    effects = by_count + by_duration
    if row.rows > 1 or not effects or row.difference == 0:
        return ""
    times = "more" if row.by_count > 0 else "fewer"
    each = "longer each" if row.by_duration > 0 else "shorter each"
    if by_count >= _MAINLY * effects:
        return times
    return each if by_duration >= _MAINLY * effects else f"{times}, {each}"


def _moved(origin: Attribution) -> dict[tuple[str, str], str]:
    """Map the longest row of each kind of collective to the change of its transfer and wait."""
    moved: dict[tuple[str, str], str] = {}
    for collective in origin.transfers:
        if not (collective.base[0] or collective.opt[0]):
            continue
        rows = [row for row in origin.ops if _is_of(row, collective)]
        if rows:
            longest = max(rows, key=lambda row: (max(row.base, row.opt), row.stage, row.what))
            transfer = signed(collective.opt[0] - collective.base[0], "ns")
            wait = signed(collective.opt[1] - collective.base[1], "ns")
            place = (longest.stage, longest.what)
            moved.setdefault(place, f"transfer {transfer}, wait {wait}")
    return moved


def _is_of(row: Row, collective: Transfer) -> bool:
    """Check whether a row is this kind of collective in its stage."""
    if row.stage != collective.stage or "communication" not in row.what:
        return False
    op = op_of(row.what)
    if op == "other":  # kernels of SendRecv carry several kinds
        return collective.op.replace("_", "") in row.what.lower().replace("_", "")
    return op == collective.op


def _presence(row: Row | KernelChange) -> str:
    """Format the only side that has an item; empty if both have it."""
    return "" if row.presence == "both" else row.presence


def _leaves(rows: Sequence[Row]) -> Sheet:
    headings = (
        Heading(
            "what",
            "op path · kernel",
            doc="Ops on the host from outermost to innermost, then the kernel.",
        ),
        *_TIMES,
        Heading("base_count", "times before", "", _CALLS),
        Heading("opt_count", "times after", "", _CALLS),
        Heading("by_count", "by number", "ns", "What more or fewer of it make of the change."),
        Heading(
            "by_duration", "by length", "ns", "What longer or shorter ones make of the change."
        ),
        Heading("presence", "how"),
    )
    cells = []
    for row in rows:
        counts = (row.base_count, row.opt_count, row.by_count, row.by_duration)
        cells.append((row.what, *_times(row), *counts, _presence(row)))
    return _staged(Sheet("by-kernel", "By op path and kernel", headings, tuple(cells)), rows)


def _replaced(rows: Sequence[Row]) -> Sheet:
    headings = (Heading("what", "where: what it was → what it is"), *_TIMES)
    cells = tuple((row.what, *_times(row)) for row in rows)
    caption = "Names of one side alone, under an op that both sides hold, or alike but for numbers. Already counted above."
    return _staged(Sheet("replaced", "What was replaced", headings, cells, caption=caption), rows)


def _transfers(rows: Sequence[Transfer]) -> Sheet:
    headings = as_headings("""
        stage | stage
        op | collective
        base_transfer | transfer before | ns | The shortest duration over ranks: moving the data.
        opt_transfer | transfer after | ns | The same after.
        transfer | change | ns | After less before.
        base_wait | wait before | ns | What ranks take beyond it: waiting for the last to come.
        opt_wait | wait after | ns | The same after.
        wait | change | ns | After less before.
        alone | not split | ns | Change of those that were matched with no other rank.
    """)
    cells = []
    for row in rows:
        base_transfer, base_wait, base_alone = row.base
        opt_transfer, opt_wait, opt_alone = row.opt
        transfer = (base_transfer, opt_transfer, opt_transfer - base_transfer)
        wait = (base_wait, opt_wait, opt_wait - base_wait)
        cells.append((row.stage, row.op, *transfer, *wait, opt_alone - base_alone))
    caption = "Per step and rank; whole durations, also where other work hides them."
    title = "Communication: transfer, or waiting for other ranks?"
    return Sheet("transfers", title, headings, tuple(cells), caption=caption)


def _kernels(origin: Attribution) -> Iterator[Section]:
    """Build the section of changed kernels; empty if none could be tested and none is on one side only."""
    kernels = origin.kernels
    if not (kernels.changed or kernels.tested):
        return
    word = "host ops" if kernels.on_host else "kernels"
    caveats = []
    if kernels.on_host:
        caveats.append("no device was recorded: host ops are compared, by the innermost one")
    if not kernels.changed:
        caveats.append(f"{kernels.tested:,} {word} were tested, none changed beyond chance")
    yield Section(
        "kernels",
        f"Which {word} changed?",
        sheets=with_rows(_changed_kernels(kernels, word)),
        caveats=tuple(caveats),
    )


def _changed_kernels(kernels: KernelChanges, word: str) -> Sheet:
    """Make one row per kernel, or host op, that changed."""
    headings = (
        Heading("name", "op" if kernels.on_host else "kernel"),
        *as_headings("""
            kind | class | text | A shift that most of a class have in common is taken off before testing.
            base | before | ns | Time of its own in the mean step.
            opt | after | ns | The same after.
            difference | change | ns | After less before.
            ratio | before/after | factor | As measured; above 1 it takes less after.
            corrected | corrected | factor | Less the shift of its class.
            q | false share | ratio | Share of false ones among those up to this row's certainty.
            presence | how
        """),
    )
    cells = []
    for row in kernels.changed:
        kind = CLASSES.get(row.kind, row.kind)
        times = (row.base, row.opt, row.difference)
        tests = (row.ratio, row.corrected, row.q)
        cells.append((row.name, kind, *times, *tests, _presence(row)))
    caption = (
        f"{kernels.tested:,} of {kernels.seen:,} {word} were tested, by {kernels.unit}; at most 5 % of those told changed by "
        "chance alone. New and gone ones take at least 0.1 % of the step."
    )
    return Sheet("changed-kernels", f"Changed {word}", headings, tuple(cells), caption=caption)
