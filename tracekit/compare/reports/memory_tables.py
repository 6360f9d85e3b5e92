"""Memory comparison as a sentence, tables and a chart."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.memory_change import MemoryChange, MemoryLevel, MemoryPair, MemorySites, SiteChange
from tracekit.compare.reports.charts import make_waterfall
from tracekit.compare.snapshots.levels import judge_memory_level
from tracekit.compare.snapshots.sites import shorten_sites
from tracekit.job.report.tables import parse_headings, select_filled_sheets
from tracekit.model.report import Cell, Chart, Heading, Metric, Section, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity, format_signed

SHOWN, BARS, SHOWN_ELSEWHERE, SHOWN_PAIRS = 20, 10, 5, 50
"""Limits: sites per table, sites per chart, sites per other memory, pairs of snapshots."""

_WORDS = {"same": "same", "no change": "no change", "not comparable": "not comparable"}
"""Verdicts that precede the numbers; numbers alone show more and less."""

_CHANGED = (
    Heading("base", "before", "bytes"),
    Heading("opt", "after", "bytes"),
    Heading("difference", "change", "bytes", "After minus before."),
)
_STATES = {
    "": None,
    "same": None,
    "not told before": "new, or below the listed ones before",
    "not told after": "gone, or below the listed ones after",
}
_AT = {"peak": "at the peak", "end": "at the end"}

_PAIR_LEVELS = {
    "peak_requested": "peak",
    "peak_reserved": "peak reserved",
    "end_allocated": "allocated at the end",
    "end_reserved": "reserved at the end",
    "stranded": "stranded",
}
"""Levels in the table of processes and steps, and their column titles."""


def describe_memory_change(memory: MemoryChange, word: str | None = None) -> str:
    """Describe the change in memory: `memory: peak 1.03 GiB → 812 MiB (−21 %)`."""
    level = memory.headline
    name = level.title
    if level.name == "peak_requested":
        name = name.removesuffix(" requested")
    first = _WORDS.get(word or judge_memory_level(level), "")
    parts = [part for part in (first, f"{name} {_format_memory_level(level)}") if part]
    return f"memory: {' · '.join(parts)}"


def describe_memory_basis(memory: MemoryChange, headline: Change) -> tuple[str, ...]:
    """Describe the basis of the sentence; if the headline is a time, begin with the sentence itself."""
    lines = [describe_memory_change(memory)]
    if headline.unit == "bytes":
        lines = ["exact: one snapshot per side is enough"]
    if memory.median is not None:
        lines.append(f"memory of the median device: {_format_memory_level(memory.median)}")
    return tuple(lines)


def list_memory_figures(memory: MemoryChange) -> Iterator[Metric]:
    """List the numbers next to a headline on memory."""
    yield Metric("difference", memory.headline.difference, "bytes", "lower", label="change")
    if not memory.pairs:
        return
    change = memory.pairs[0].level("peak_reserved").difference
    if change is not None:
        yield Metric("reserved_difference", change, "bytes", "lower", label="change of the peak reserved")


def build_memory_section(comparison: Comparison) -> Iterator[Section]:
    """Build the section on memory; empty unless both sides have snapshots."""
    memory = comparison.memory
    if memory is None:
        return
    sheets = [
        make_memory_levels_sheet("memory-levels", memory),
        _make_memory_pairs_sheet(memory),
        *(_make_memory_sites_sheet(site) for site in memory.sites),
        *(_make_memory_categories_sheet(site) for site in memory.sites),
        _make_other_memories_sheet(memory),
    ]
    notes = memory.notes
    if comparison.headline.unit == "bytes":  # the first screen shows them
        notes = ()
    yield Section(
        "memory",
        "How did memory change?",
        sheets=select_filled_sheets(*(sheet for sheet in sheets if sheet)),
        caveats=(*_describe_compared_steps(memory), *notes, *_list_memory_caveats(memory)),
        charts=tuple(_build_memory_charts(comparison, memory)),
    )


def make_memory_levels_sheet(name: str, memory: MemoryChange) -> Sheet:
    """Make the table of every level of the first pair."""
    worst = MemoryPair("", None, None, "", "", (memory.headline,))
    if memory.pairs:
        worst = memory.pairs[0]
    headings = (
        Heading("title", "level"),
        *_CHANGED,
        Heading("share", "change, share", "ratio", "Relative to the value before."),
    )
    rows = [
        (level.title, level.base, level.opt, level.difference, level.share)
        for level in worst.levels
        if level.base is not None or level.opt is not None
    ]
    before = _name_snapshot_source(worst.base_source, worst.base_step)
    after = _name_snapshot_source(worst.opt_source, worst.opt_step)
    caption = f"{worst.who}: {before} → {after}"
    if len(memory.pairs) > 1:
        caption = f"Highest peak after the change, {caption}"
    return Sheet(name, "Memory before and after", headings, tuple(rows), caption=caption)


def _name_snapshot_source(source: str, step: int | None) -> str:
    """Name the file and step of a snapshot as far as they are known."""
    if step is None:
        return source or "a saved report"
    return f"{source} (step {step})" if source else f"step {step}"


def _make_memory_pairs_sheet(memory: MemoryChange) -> Sheet | None:
    """Make one row per memory and step, the highest peak after first; None for a single one."""
    if len(memory.pairs) < 2:
        return None
    headings = [Heading("who", "process"), Heading("step", "step", "id")]
    for name, title in _PAIR_LEVELS.items():
        headings.append(Heading(f"{name}_opt", f"{title}, after", "bytes"))
        headings.append(Heading(f"{name}_difference", f"{title}, change", "bytes"))
    headings.append(Heading("share", "change of the peak", "ratio", "Relative to the value before."))
    rows = [_format_memory_pair(pair) for pair in memory.pairs[:SHOWN_PAIRS]]
    columns = {}
    for heading, cells in zip(headings, zip(*rows, strict=True), strict=True):
        if set(cells) != {None}:  # leave out columns without numbers
            columns[heading] = cells
    return Sheet(
        "memory-pairs",
        "All processes and steps, highest peak first",
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        len(memory.pairs) + memory.omitted - len(rows),
    )


def _format_memory_pair(pair: MemoryPair) -> tuple[Cell, ...]:
    """Format one memory and step."""
    cells: list[Cell] = [pair.who, pair.opt_step]
    for name in _PAIR_LEVELS:
        level = pair.level(name)
        cells += [level.opt, level.difference]
    return (*cells, pair.level("peak_requested").share)


def _make_memory_sites_sheet(sites: MemorySites) -> Sheet:
    """Make the table of the sites that changed most and of unnamed ones.

    The rows add up to the change of the level.
    """
    headings = (
        *parse_headings("""
            site | place in the program | text | File and function; lines and folders are ignored.
            state | state
        """),
        *_CHANGED,
        Heading("base_blocks", "blocks before", "count"),
        Heading("opt_blocks", "blocks after", "count"),
    )
    change = format_signed(sites.opt - sites.base, "bytes", 4)
    return Sheet(
        f"memory-sites-{sites.moment}",
        f"Memory by allocation site {_AT[sites.moment]}, {sites.who}",
        headings,
        tuple(_format_memory_site(site) for site in shorten_sites(sites.rows, SHOWN)),
        caption=f"Requested bytes; the changes of all rows add up to {change}.",
    )


def _format_memory_site(site: SiteChange) -> tuple[Cell, ...]:
    """Format one site; values that a side does not record are left empty, not 0."""
    base: tuple[Cell, Cell] = (site.base_bytes, site.base_blocks)
    opt: tuple[Cell, Cell] = (site.opt_bytes, site.opt_blocks)
    bound = None
    if site.opt_most is not None:
        opt, bound = (None, None), site.opt_most
    if site.base_most is not None:
        base, bound = (None, None), site.base_most
    state = _STATES.get(site.state, site.state)
    if state and bound is not None:
        state = f"{state} (at most {format_quantity(bound, 'bytes')})"
    return (site.site, state, base[0], opt[0], site.difference, base[1], opt[1])


def _make_memory_categories_sheet(sites: MemorySites) -> Sheet | None:
    """Make the table of memory by category, which also adds up; None if no category is known."""
    if not sites.categories:
        return None
    rows = [
        (category.site, category.base_bytes, category.opt_bytes, category.difference)
        for category in shorten_sites(sites.categories, SHOWN)
    ]
    return Sheet(
        f"memory-categories-{sites.moment}",
        f"Memory by category {_AT[sites.moment]}, {sites.who}",
        (Heading("category", "for"), *_CHANGED),
        tuple(rows),
        caption=f"The changes add up to {format_signed(sites.opt - sites.base, 'bytes', 4)}.",
    )


def _make_other_memories_sheet(memory: MemoryChange) -> Sheet | None:
    """Make the table of the sites that changed most in other processes and on other devices."""
    headings = (
        Heading("who", "process"),
        Heading("site", "place in the program"),
        Heading("state", "state"),
        *_CHANGED,
    )
    rows: list[tuple[Cell, ...]] = []
    for sites in memory.elsewhere:
        places = [site for site in sites.rows if site.kind == "place" and site.difference]
        for site in places[:SHOWN_ELSEWHERE]:
            rows.append((sites.who, *_format_memory_site(site)[:5]))
    if not rows:
        return None
    moments = sorted({_AT[sites.moment] for sites in memory.elsewhere})
    title = f"Largest changes {' or '.join(moments)} elsewhere"
    return Sheet("memory-elsewhere", title, headings, tuple(rows))


def _describe_compared_steps(memory: MemoryChange) -> Iterator[str]:
    """List the steps that are compared."""
    steps = {pair.opt_step for pair in memory.pairs if pair.opt_step is not None and pair.base_step == pair.opt_step}
    numbers = sorted(steps)
    if numbers:
        more = " …" if len(numbers) > 10 else ""
        listed = ", ".join(str(number) for number in numbers[:10])
        yield f"the same steps of both sides are compared: {listed}{more}"


def _list_memory_caveats(memory: MemoryChange) -> Iterator[str]:
    """List the limits of the comparison."""
    before, after = memory.failed
    if before and before == after:
        yield f"memory ran out {before:,} {choose_plural(before, 'time')} on both sides"
    if any(site.kind == "rest" for sites in memory.sites for site in sites.rows):
        yield "a snapshot with many places lists only the largest: a listed place may own a little more memory among the rest"
    yield "bytes are requested bytes unless a heading says otherwise; snapshots cover PyTorch's allocator only"


def _build_memory_charts(comparison: Comparison, memory: MemoryChange) -> Iterator[Chart]:
    """Build the waterfall from the peak before to the peak after by site."""
    if not memory.sites:
        return
    sites = memory.sites[0]
    parts = [(site.site, float(site.difference)) for site in shorten_sites(sites.rows, BARS) if site.difference]
    if parts:
        name = (f"memory-{sites.moment}", f"Memory by allocation site {_AT[sites.moment]}", "memory")
        sides = (comparison.base, comparison.opt)
        yield make_waterfall(name, sides, (sites.base, sites.opt), parts, "bytes")


def _format_memory_level(level: MemoryLevel) -> str:
    """Format a level before and after, with the change as a share."""
    numbers = f"{format_quantity(level.base, 'bytes')} → {format_quantity(level.opt, 'bytes')}"
    return f"{numbers} ({format_signed(level.share, 'ratio', 2)})" if level.share else numbers
