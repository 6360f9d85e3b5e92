"""Attribution of a change as tables: the largest parts first, then the details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.compare.comparison import Change
from tracekit.compare.wall_time.attribution import RESIDUAL_TITLES
from tracekit.compare.wall_time.attribution_rows import (
    Attribution,
    AttributionRow,
    KernelChange,
    KernelChanges,
    TransferChange,
    shorten_attribution_rows,
)
from tracekit.compare.wall_time.kernels import SHIFT_CLASSES
from tracekit.compare.wall_time.slot_table import SHARED_UNITS, STEP_END
from tracekit.compare.work_units import name_samples
from tracekit.job.report.tables import parse_headings, select_filled_sheets
from tracekit.model.metrics import LAUNCH_CADENCE, RANGE_CADENCE, UNPROFILED
from tracekit.model.report import Cell, Heading, Section, Sheet
from tracekit.model.text.kernel_labels import shorten_kernel_name
from tracekit.model.units import format_quantity, format_signed
from tracekit.process.collectives.names import parse_collective_op

FIRST_SCREEN_KERNELS = 4
"""Kernels named below the first table."""

FIRST_SCREEN_PARTS = 8
"""Parts of the change on the first screen; one more row sums up all others."""

_MAINLY = 0.8
"""Share of both effects from which one of them explains the change alone."""

_TIMES = parse_headings("""
    base | before | ns | Exclusive time in the mean step: mean over steps, runs and ranks.
    opt | after | ns | Exclusive time in the mean step after the change.
    difference | change | ns | After minus before; the rows of a table add up to the change of the step.
    low | CI low | ns | Lower end of the confidence interval of the change.
    high | CI high | ns | Upper end of the confidence interval of the change.
""")

_HOW = Heading(
    "how",
    "how",
    doc="Whether the number or the length of the calls changed. For communication: the change of the transfer "
    "and of the wait for other ranks, including overlapped time.",
)

_PAIRS = {"step": "Confidence intervals use pairs of steps.", "run": "Confidence intervals use pairs of runs."}

_SUM = "Each instant of a step is counted once, so the changes add up."
_SUM_WITH_INTERVALS = (
    "Each instant of a step is counted once, so the changes add up; their confidence intervals do not."
)
_WHERE_NOT_WHY = (
    "The table shows where the time went, not why: shortening work that overlaps with other work saves nothing."
)
_STEP_END = "Wait at step end: how much longer the last rank takes than the mean rank."

_CALLS = "Calls per step and rank; for idle time, the number of gaps."


def make_attribution_overview(origin: Attribution | None, step: Change) -> Sheet | None:
    """Make the first table of the attribution; None if nothing was attributed.

    `step` is the headline change. If it is the unprofiled step, the caption says that the parts are not its own.
    """
    if origin is None or origin.missing or not origin.ops:
        return None
    change = format_signed(origin.opt - origin.base, "ns")
    per_unit = f" per {_name_unit(step)}" if step.name in SHARED_UNITS else ""
    title = f"{title_attribution(step)} (adds up to {change}{per_unit})"
    kernels = summarize_kernel_changes(origin.kernels)
    rows = shorten_attribution_rows(origin.ops, FIRST_SCREEN_PARTS)
    sheet = _make_attribution_sheet("overview", title, rows, _describe_collective_changes(origin))
    has_intervals = any(row.low is not None for row in rows)
    notes = (
        explain_profiled_parts(origin, step),
        kernels,
        _SUM_WITH_INTERVALS if has_intervals else _SUM,
        _WHERE_NOT_WHY,
        _STEP_END if any(row.what == RESIDUAL_TITLES[STEP_END] for row in rows) else "",
        _PAIRS.get(origin.paired or ""),
    )
    return replace(sheet, caption=" ".join(note for note in notes if note))


def _name_unit(step: Change) -> str:
    """Name the unit of work that stands for a step."""
    if step.name in (RANGE_CADENCE, LAUNCH_CADENCE):
        return name_samples(step.name, 1)
    return step.title.removeprefix("time per ")


def title_attribution(step: Change) -> str:
    """Title the attribution for a headline change of `step`."""
    profiled = " of profiled steps" if step.name == UNPROFILED else ""
    return f"Where the change{profiled} came from"


def explain_profiled_parts(origin: Attribution, step: Change) -> str:
    """Explain what the parts add up to if that is not the step of the headline; empty if it is."""
    if step.name in SHARED_UNITS:
        return f"No step marks: the recorded time is divided, and the table is per {_name_unit(step)}."
    if step.name != UNPROFILED:
        return ""
    profiled = _format_times_and_change(origin.base, origin.opt, origin.opt - origin.base)
    answer = _format_times_and_change(step.base, step.opt, step.difference or 0.0)
    return (
        f"The table splits the profiled step, {profiled}. The verdict is about the un-profiled step, {answer}, "
        "whose parts were not recorded."
    )


def _format_times_and_change(base: float | None, opt: float | None, difference: float) -> str:
    """Format both times and the change."""
    return f"{format_quantity(base, 'ns')} → {format_quantity(opt, 'ns')} ({format_signed(difference, 'ns')})"


def build_attribution_sections(origin: Attribution | None, stages: Sheet, step: Change) -> Iterator[Section]:
    """Build the attribution in detail, and `stages`, the table of stages that it replaces."""
    if origin is None:
        return
    if origin.missing:
        caveat = f"no attribution: {origin.missing}"
        yield Section("attribution", title_attribution(step), "skipped", origin.missing, caveats=(caveat,))
        return
    yield Section("stages", "Step and stages", sheets=(stages,))
    tables = (
        _make_attribution_sheet("by-class", "By stage and class", origin.stages),
        *_make_stage_sheets(origin),
        _make_attribution_sheet("by-op", "By op", origin.ops, _describe_collective_changes(origin)),
        _make_kernel_paths_sheet(origin.leaves),
        _make_replaced_sheet(origin.replaced),
        _make_transfers_sheet(origin.transfers),
    )
    notes = (explain_profiled_parts(origin, step), *origin.notes)
    yield Section(
        "attribution",
        f"{title_attribution(step)}, in detail",
        sheets=select_filled_sheets(*tables),
        caveats=tuple(note for note in notes if note),
    )
    yield from _build_kernels_section(origin)


def _make_attribution_sheet(
    name: str, title: str, rows: Sequence[AttributionRow], moved: Mapping[tuple[str, str], str] | None = None
) -> Sheet:
    """Make a table of rows by stage and item; `moved` describes the change of collectives."""
    what = Heading("what", "what", doc="Outermost op, innermost collective, or cause of idle time.")
    hows = moved or {}
    cells = []
    for row in rows:
        cells.append((row.what, *_get_row_times(row), hows.get((row.stage, row.what), _describe_row_change(row))))
    sheet = Sheet(name, title, (what, *_TIMES, _HOW), tuple(cells))
    if all(row.low is None and row.high is None for row in rows):
        sheet = _drop_sheet_columns(sheet, ("low", "high"))
    return _add_stage_column(sheet, rows)


def _drop_sheet_columns(sheet: Sheet, names: Sequence[str]) -> Sheet:
    """Drop columns of a table by name."""
    kept = [place for place, heading in enumerate(sheet.headings) if heading.name not in names]
    rows = tuple(tuple(row[place] for place in kept) for row in sheet.rows)
    return replace(sheet, headings=tuple(sheet.headings[place] for place in kept), rows=rows)


def _add_stage_column(sheet: Sheet, rows: Sequence[AttributionRow]) -> Sheet:
    """Add a stage column in front, if any row has a stage."""
    if not any(row.stage for row in rows):
        return sheet
    cells = [(row.stage, *cell) for row, cell in zip(rows, sheet.rows, strict=True)]
    headings = (Heading("stage", "stage"), *sheet.headings)
    return replace(sheet, headings=headings, rows=tuple(cells))


def _make_stage_sheets(origin: Attribution) -> Iterator[Sheet]:
    """Make a table for each stage that changed most: the stage, then its ops, which add up to it."""
    moved = _describe_collective_changes(origin)
    for number, stage in enumerate(origin.within, 1):
        hows = {("", what): how for (name, what), how in moved.items() if name == stage.stage}
        change = stage.opt - stage.base
        total = AttributionRow("", "total", stage.base, stage.opt, change, stage.low, stage.high, waiting=True)
        rows = [total, *(replace(row, stage="") for row in stage.rows)]
        title = f"Within {stage.stage} (adds up to {format_signed(change, 'ns')})"
        caption = "The other rows add up to the first. Mean over ranks; the table of stages shows the slowest rank."
        yield replace(_make_attribution_sheet(f"within-{number}", title, rows, hows), caption=caption)


def _get_row_times(row: AttributionRow) -> tuple[Cell, ...]:
    return (row.base, row.opt, row.difference, row.low, row.high)


def _describe_row_change(row: AttributionRow) -> str:
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


def _describe_collective_changes(origin: Attribution) -> dict[tuple[str, str], str]:
    """Map the longest row of each kind of collective to the change of its transfer and wait."""
    moved: dict[tuple[str, str], str] = {}
    for collective in origin.transfers:
        if not (collective.base[0] or collective.opt[0]):
            continue
        rows = [row for row in origin.ops if _is_row_of_collective(row, collective)]
        if rows:
            longest = max(rows, key=lambda row: (max(row.base, row.opt), row.stage, row.what))
            transfer = format_signed(collective.opt[0] - collective.base[0], "ns")
            wait = format_signed(collective.opt[1] - collective.base[1], "ns")
            place = (longest.stage, longest.what)
            moved.setdefault(place, f"transfer {transfer}, wait {wait}{_name_straggler(collective)}")
    return moved


def _name_straggler(collective: TransferChange) -> str:
    """Name the rank for which the wait changed, if it explains most of that change; else empty."""
    if collective.waited_for is None:
        return ""
    rank, before, after = collective.waited_for
    wait = collective.opt[1] - collective.base[1]
    explains = abs(after - before) >= _MAINLY * abs(wait) and (after - before) * wait > 0
    return f" for rank {rank}" if explains else ""


def _is_row_of_collective(row: AttributionRow, collective: TransferChange) -> bool:
    """Check whether a row is this kind of collective in its stage."""
    if row.stage != collective.stage or "communication" not in row.what:
        return False
    op = parse_collective_op(row.what)
    if op == "other":  # kernels of SendRecv carry several kinds
        return collective.op.replace("_", "") in row.what.lower().replace("_", "")
    return op == collective.op


def _format_presence(row: AttributionRow | KernelChange) -> str:
    """Format the only side that has an item; empty if both have it."""
    return "" if row.presence == "both" else row.presence


def _make_kernel_paths_sheet(rows: Sequence[AttributionRow]) -> Sheet:
    headings = (
        Heading("what", "op path · kernel", doc="Ops on the host from outermost to innermost, then the kernel."),
        *_TIMES,
        Heading("base_count", "times before", "", _CALLS),
        Heading("opt_count", "times after", "", _CALLS),
        Heading("by_count", "by number", "ns", "Part of the change from more or fewer calls."),
        Heading("by_duration", "by length", "ns", "Part of the change from longer or shorter calls."),
        Heading("presence", "how"),
    )
    cells = []
    for row in rows:
        counts = (row.base_count, row.opt_count, row.by_count, row.by_duration)
        cells.append((row.what, *_get_row_times(row), *counts, _format_presence(row)))
    return _add_stage_column(Sheet("by-kernel", "By op path and kernel", headings, tuple(cells)), rows)


def _make_replaced_sheet(rows: Sequence[AttributionRow]) -> Sheet:
    headings = (Heading("what", "where: before → after"), *_TIMES)
    cells = tuple((row.what, *_get_row_times(row)) for row in rows)
    caption = (
        "Names that only one side has, under an op that both have, or that differ in numbers only. Also counted above."
    )
    return _add_stage_column(Sheet("replaced", "Replaced ops and kernels", headings, cells, caption=caption), rows)


def _make_transfers_sheet(rows: Sequence[TransferChange]) -> Sheet:
    headings = parse_headings("""
        stage | stage
        op | collective
        base_transfer | transfer before | ns | Shortest duration over ranks: moving the data.
        opt_transfer | transfer after | ns | The same after.
        transfer | change | ns | After minus before.
        base_wait | wait before | ns | Time beyond the transfer: waiting for the last rank.
        opt_wait | wait after | ns | The same after.
        wait | change | ns | After minus before.
        alone | not split | ns | Change of collectives without a match on another rank.
    """)
    cells = []
    for row in rows:
        base_transfer, base_wait, base_alone = row.base
        opt_transfer, opt_wait, opt_alone = row.opt
        transfer = (base_transfer, opt_transfer, opt_transfer - base_transfer)
        wait = (base_wait, opt_wait, opt_wait - base_wait)
        cells.append((row.stage, row.op, *transfer, *wait, opt_alone - base_alone))
    caption = "Per step and rank; whole durations, including overlapped time."
    title = "Communication: transfer or wait"
    return Sheet("transfers", title, headings, tuple(cells), caption=caption)


def _build_kernels_section(origin: Attribution) -> Iterator[Section]:
    """Build the section of kernels, those that changed most first; empty if neither side recorded any."""
    kernels = origin.kernels
    if not kernels.largest:
        return
    word = "host ops" if kernels.on_host else "kernels"
    caveats = []
    if kernels.on_host:
        caveats.append("no device was recorded: innermost host ops are compared")
    if kernels.tested and not kernels.changed:
        caveats.append(f"{kernels.tested:,} {word} were tested; none changed beyond chance")
    yield Section(
        "kernels",
        f"Which {word} changed?",
        sheets=select_filled_sheets(_make_kernel_changes_sheet(kernels, word)),
        caveats=tuple(caveats),
    )


def _make_kernel_changes_sheet(kernels: KernelChanges, word: str) -> Sheet:
    """Make one row per kernel, or host op, the largest change first."""
    headings = (
        Heading("name", "op" if kernels.on_host else "kernel"),
        *parse_headings("""
            kind | class | text | A shift that most kernels of a class share is removed before testing.
            base | before | ns | Exclusive time in the mean step.
            opt | after | ns | Exclusive time in the mean step after the change.
            difference | change | ns | After minus before.
            ratio | before/after | factor | As measured; above 1 the kernel takes less time after.
            corrected | corrected | factor | Without the shift of its class.
            q | false share | ratio | Share of false positives among rows at least as certain as this one.
            certain | beyond chance | text | Whether the change exceeds chance; empty if it could not be tested.
            presence | how
        """),
    )
    changed = {(row.name, row.kind) for row in kernels.changed}
    cells = []
    for row in kernels.largest:
        kind = SHIFT_CLASSES.get(row.kind, row.kind)
        certain = "yes" if (row.name, row.kind) in changed else "no" if row.q is not None else ""
        tests = (row.ratio, row.corrected, row.q, certain)
        cells.append((row.name, kind, row.base, row.opt, row.difference, *tests, _format_presence(row)))
    caption = f"{kernels.tested:,} of {kernels.seen:,} {word} were tested, by {kernels.unit}"
    if changed:
        caption += "; at most 5 % of the rows marked as beyond chance changed by chance alone"
    caption += "."
    if any(row.presence in ("new", "gone") for row in kernels.largest):
        caption += " New and removed ones count from 0.1 % of the step."
    return Sheet("kernels", f"{word.capitalize()} by change", headings, tuple(cells), caption=caption)


def summarize_kernel_changes(kernels: KernelChanges) -> str:
    """Summarize the kernels that changed most: `Kernels: flash_fwd −31.6 ms · …`; empty if none did."""
    rows = [row for row in kernels.largest[:FIRST_SCREEN_KERNELS] if row.difference]
    names = [shorten_kernel_name(row.name) for row in rows]
    kinds = [name.partition(" (")[0] for name in names]
    names = [kind if kinds.count(kind) == 1 else name for name, kind in zip(names, kinds, strict=True)]
    parts = [f"{name} {format_signed(row.difference, 'ns')}" for name, row in zip(names, rows, strict=True)]
    return f"{'Host ops' if kernels.on_host else 'Kernels'}: {' · '.join(parts)}." if parts else ""
