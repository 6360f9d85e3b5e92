"""What became of memory, as a sentence, tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.memory import word_of
from tracekit.compare.memory_change import Level, MemoryChange, Pair, SiteChange, Sites
from tracekit.compare.memory_sites import shortened
from tracekit.compare.pictures import fall
from tracekit.model.report import Cell, Chart, Heading, Metric, Section, Sheet
from tracekit.model.units import MINUS, show

SHOWN, BARS, SHOWN_ELSEWHERE, SHOWN_PAIRS = 20, 10, 5, 50
"""Most places of one snapshot in a table and in a picture, of each of other memories, and most pairs of snapshots."""

_WORDS = {"same": "same", "no change": "no change", "not comparable": "not comparable"}
"""Words that stand before the numbers; of more and less these say enough."""

_CHANGED = (
    Heading("base", "before", "bytes"),
    Heading("opt", "after", "bytes"),
    Heading("difference", "change", "bytes", "After less before."),
)
_STATES = {
    "": None,
    "same": None,
    "not told before": "new, or among the smaller ones before",
    "not told after": "gone, or among the smaller ones after",
}
_AT = {"peak": "at the peak", "end": "at the end"}


def sentence(found: MemoryChange, word: str | None = None) -> str:
    """What became of memory: `memory: peak 1.03 GiB → 812 MiB (−21 %)`."""
    level = found.headline
    name = level.title.removesuffix(" requested") if level.name == "peak_requested" else level.title
    first = _WORDS.get(word or word_of(level), "")
    numbers = f"{name} {show(level.base, 'bytes')} → {show(level.opt, 'bytes')}"
    return f"memory: {f'{first} · ' if first else ''}{numbers}{_percent(level)}"


def basis(found: MemoryChange, headline: Change) -> tuple[str, ...]:
    """What the sentence rests on; before it, where the answer is of time, the sentence itself."""
    alone = headline.unit == "bytes"
    lines = ["exact: one snapshot a side suffices" if alone else sentence(found)]
    if found.median is not None:
        level = found.median
        numbers = f"{show(level.base, 'bytes')} → {show(level.opt, 'bytes')}"
        lines.append(f"memory of the median device: {numbers}{_percent(level)}")
    return tuple(lines)


def figures(found: MemoryChange) -> Iterator[Metric]:
    """The numbers beside an answer that is of memory."""
    level = found.headline
    yield Metric("difference", level.difference, "bytes", "lower", label="change")
    for reserved in (pair.level("peak_reserved") for pair in found.pairs[:1]):
        if reserved.difference is not None:
            yield Metric("reserved_difference", reserved.difference, "bytes", "lower", label="change of the peak reserved")  # fmt: skip


def overview(found: MemoryChange) -> Sheet:
    """The levels of the worst memory, which stand on the first screen."""
    return _levels("overview", found)


def section(found: Comparison) -> Iterator[Section]:
    """The section on memory; none where not both sides have snapshots."""
    memory = found.memory
    if memory is None:
        return
    beside = found.headline.unit != "bytes"  # else the first screen tells what was compared
    sheets = [
        _levels("memory-levels", memory),
        _pairs(memory),
        *(_sites(one) for one in memory.sites),
        *(sheet for one in memory.sites if (sheet := _categories(one)) is not None),
        _elsewhere(memory),
    ]
    yield Section(
        "memory",
        "What became of memory?",
        sheets=tuple(sheet for sheet in sheets if sheet is not None and sheet.rows),
        caveats=(*_steps(memory), *(memory.notes if beside else ()), *_caveats(memory)),
        charts=tuple(_charts(found, memory)),
    )


def _levels(name: str, found: MemoryChange) -> Sheet:
    """Every level of the first pair."""
    worst = found.pairs[0] if found.pairs else Pair("", None, None, "", "", (found.headline,))
    headings = (Heading("title", "level"), *_CHANGED, Heading("share", "change, share", "ratio", "Of what it was before."))  # fmt: skip
    rows = [
        (one.title, one.base, one.opt, one.difference, one.share)
        for one in worst.levels
        if one.base is not None or one.opt is not None
    ]
    several = "the one with the highest peak after, " if len(found.pairs) > 1 else ""
    caption = f"{several}{worst.who}: {_source(worst.base_source, worst.base_step)} → {_source(worst.opt_source, worst.opt_step)}"  # fmt: skip
    return Sheet(name, "Memory before and after", headings, tuple(rows), caption=caption)


def _source(source: str, step: int | None) -> str:
    told = "" if step is None else f"step {step}"
    return f"{source} ({told})" if source and told else source or told or "a saved report"


def _pairs(found: MemoryChange) -> Sheet | None:
    """One row a memory and step, the highest peak after first; None of a single one."""
    if len(found.pairs) < 2:
        return None
    names = {
        "peak_requested": "peak", "peak_reserved": "peak reserved", "end_allocated": "allocated at the end",
        "end_reserved": "reserved at the end", "stranded": "stranded",
    }  # fmt: skip
    headings = (
        Heading("who", "process"),
        Heading("step", "step", "id"),
        *(
            Heading(f"{name}_{part}", f"{title}, {word}", "bytes")
            for name, title in names.items()
            for part, word in (("opt", "after"), ("difference", "change"))
        ),
        Heading("share", "change of the peak", "ratio", "Of what it was before."),
    )
    rows: list[tuple[Cell, ...]] = []
    for pair in found.pairs[:SHOWN_PAIRS]:
        levels = [pair.level(name) for name in names]
        parts = [value for level in levels for value in (level.opt, level.difference)]
        rows.append((pair.who, pair.opt_step, *parts, levels[0].share))
    known = [at for at, _ in enumerate(headings) if any(row[at] is not None for row in rows)]
    return Sheet(
        "memory-pairs",
        "Every process and step, the highest peak after first",
        tuple(headings[at] for at in known),
        tuple(tuple(row[at] for at in known) for row in rows),
        len(found.pairs) + found.omitted - len(rows),
    )


def _sites(found: Sites) -> Sheet:
    """The places in the program that changed most, and what has none; the rows add up to the change of the level."""
    rows = shortened(found.rows, SHOWN)
    headings = (
        Heading("site", "place in the program", doc="File and function; lines and folders do not tell places apart."),
        Heading("state", "is"),
        *_CHANGED,
        Heading("base_blocks", "blocks before", "count"),
        Heading("opt_blocks", "blocks after", "count"),
    )  # fmt: skip
    change = _signed(found.opt - found.base)
    return Sheet(
        f"memory-sites-{found.moment}",
        f"What holds it {_AT[found.moment]}, {found.who}",
        headings,
        tuple(_site_cells(one) for one in rows),
        caption=f"Requested bytes; the changes of all rows add up to {change}.",
    )


def _site_cells(one: SiteChange) -> tuple[Cell, ...]:
    """One place; what is not known of a side is left open and not 0."""
    base, opt = (
        (None, None) if most is not None else (size, blocks)
        for most, size, blocks in (
            (one.base_most, one.base_bytes, one.base_blocks),
            (one.opt_most, one.opt_bytes, one.opt_blocks),
        )
    )
    most = one.base_most if one.base_most is not None else one.opt_most
    state = _STATES.get(one.state, one.state)
    bound = "" if most is None else f" (at most {show(most, 'bytes')})"
    return (one.site, f"{state}{bound}" if state else None, base[0], opt[0], one.difference, base[1], opt[1])  # fmt: skip


def _categories(found: Sites) -> Sheet | None:
    """What the memory is for, which adds up as well; None where nothing tells it."""
    if not found.categories:
        return None
    rows = shortened(found.categories, SHOWN)
    return Sheet(
        f"memory-categories-{found.moment}",
        f"What it is for {_AT[found.moment]}, {found.who}",
        (Heading("category", "for"), *_CHANGED),
        tuple((one.site, one.base_bytes, one.opt_bytes, one.difference) for one in rows),
        caption=f"The changes add up to {_signed(found.opt - found.base)}.",
    )


def _elsewhere(found: MemoryChange) -> Sheet | None:
    """The places that changed most in other processes and on other devices."""
    headings = (Heading("who", "process"), Heading("site", "place in the program"), Heading("state", "is"), *_CHANGED)  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for one in found.elsewhere:
        places = [row for row in one.rows if row.kind == "place" and row.difference]
        rows += [(one.who, *_site_cells(row)[:5]) for row in places[:SHOWN_ELSEWHERE]]
    if not rows:
        return None
    moments = sorted({_AT[one.moment] for one in found.elsewhere})
    title = f"What changed most {' or '.join(moments)} elsewhere"
    return Sheet("memory-elsewhere", title, headings, tuple(rows))


def _steps(found: MemoryChange) -> Iterator[str]:
    """Which steps are compared."""
    steps = sorted({one.opt_step for one in found.pairs if one.base_step == one.opt_step and one.opt_step is not None})  # fmt: skip
    if steps:
        few = ", ".join(map(str, steps[:10])) + (" …" if len(steps) > 10 else "")
        yield f"the same steps of both sides are compared: {few}"


def _caveats(found: MemoryChange) -> Iterator[str]:
    """What limits the comparison."""
    before, after = found.failed
    if before is not None and after is not None and before == after and before:
        yield f"memory ran out {before:,} {'time' if before == 1 else 'times'} on both sides"
    if any(one.kind == "rest" for sites in found.sites for one in sites.rows):
        yield "a snapshot with more places names its largest ones: those that are named may hold a little more among the smaller ones"
    yield "bytes are as requested unless a heading says otherwise; what lies outside PyTorch's allocator is in no snapshot"


def _charts(found: Comparison, memory: MemoryChange) -> Iterator[Chart]:
    """From the peak before to the peak after, place by place."""
    for one in memory.sites[:1]:
        parts = [
            (row.site, float(row.difference)) for row in shortened(one.rows, BARS) if row.difference
        ]
        if parts:
            name = (f"memory-{one.moment}", f"What holds it {_AT[one.moment]}", "memory")
            yield fall(name, (found.base, found.opt), (one.base, one.opt), parts, "bytes")


def _percent(level: Level) -> str:
    """The change as a share, in brackets; nothing where there is none."""
    if not level.share:
        return ""
    sign = MINUS if level.share < 0 else "+"
    return f" ({sign}{show(abs(level.share), 'ratio', 2)})"


def _signed(size: int) -> str:
    """A change of bytes with its sign."""
    text = show(abs(size), "bytes", 4)
    return f"{MINUS}{text}" if size < 0 else f"+{text}" if size > 0 else text
