"""Allocation sites of two snapshots compared, by site and by category, adding up exactly.

A site is the file and function of the frame that names a stack. Moved lines and renamed folders do not
make a new site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracekit.compare.memory_change import MemorySites, Moment, SiteChange, SiteKind, SiteState
from tracekit.compare.snapshots.owners import END, PEAK, MemorySnapshot
from tracekit.job.memory.snapshots import UNTOLD, find_reason, name_site, take_snapshot
from tracekit.model.tables.frame import Frame, concat, sum_of, texts
from tracekit.model.text.labels import choose_plural

MAX_PLACES = 60
"""Most sites in one comparison: those that changed most."""

NO_CATEGORY = "not told"
"""Category of sites that have none."""

_SUMS = ["base_bytes", "opt_bytes", "base_blocks", "opt_blocks"]


def compare_memory_sites(base: MemorySnapshot, opt: MemorySnapshot, moment: Moment) -> MemorySites | None:
    """Compare the allocation sites of two snapshots at a moment; None if one does not record it.

    A snapshot names only its largest sites. A site without a name on one side may be among the smaller ones
    there, so it is neither new nor gone but has an upper bound.
    """
    level = PEAK if moment == "peak" else END
    base_total, opt_total = base.levels[level], opt.levels[level]
    before, after = _select_site_rows(base, moment), _select_site_rows(opt, moment)
    if base_total is None or opt_total is None or before is None or after is None:
        return None
    if not (_is_complete_site_table(before, base_total) and _is_complete_site_table(after, opt_total)):
        return None
    bounds = _sum_unnamed_sites(before), _sum_unnamed_sites(after)
    both = _stack_site_rows(before, after)
    sites = MemorySites(
        str(base.whose),
        moment,
        base_total,
        opt_total,
        rows=shorten_sites([_classify_site_change(row, *bounds) for row in _sum_sites(both, "kind", "name")]),
        categories=_list_category_changes(_sum_sites(both, "category")),
    )
    for rows in (sites.rows, sites.categories):
        change = sum(row.difference for row in rows)
        assert not rows or change == opt_total - base_total, "rows miss the change"
    return sites


def _list_category_changes(rows: Iterable[Mapping[str, Any]]) -> tuple[SiteChange, ...]:
    """List the categories of both sides; empty if no site has one."""
    categories = []
    for row in rows:
        kind: SiteKind = "untold" if row["category"] == NO_CATEGORY else "place"
        categories.append(_make_site_row(row["category"], kind, row))
    if all(category.kind == "untold" for category in categories):
        return ()
    return shorten_sites(categories)


def _select_site_rows(side: MemorySnapshot, moment: Moment) -> Frame | None:
    """Select the rows of `live_sites` of one snapshot with `name` and `kind`; None for a saved report."""
    if side.measured is None or side.row is None:
        return None
    rows = take_snapshot(side.measured.frame("live_sites"), side.row)
    rows = rows.filter(rows.equals("moment", moment))
    names, kinds = [], []
    for row in rows.rows("place", "site", "kind", "origin"):
        # Measurements saved before `place` had its own column have only `site`, which includes the line.
        place = row["site"] if row["place"] is None else row["place"]
        reason = find_reason(row["origin"], row["kind"])
        names.append(name_site(place, row["kind"], reason if reason in UNTOLD else "unknown"))
        unnamed_kind = "rest" if row["origin"] == "rest" else "untold"
        kinds.append(unnamed_kind if place is None else "place")
    categories = [NO_CATEGORY if category is None else category for category in rows.values("category")]
    return rows.with_columns(name=texts(names), kind=texts(kinds), category=texts(categories))


def _is_complete_site_table(rows: Frame, total: int) -> bool:
    """Check whether the rows add up to the level; those of saved measurements may not."""
    sizes = rows.values("size_bytes")
    return sum(sizes) == total and min(sizes, default=0) >= 0


def _stack_site_rows(base: Frame, opt: Frame) -> Frame:
    """Put the rows of both sides into one table, with the columns `_SUMS`: 0 on the other side."""
    before = base.with_columns(
        base_bytes=base["size_bytes"], base_blocks=base["block_count"], opt_bytes=0, opt_blocks=0
    )
    after = opt.with_columns(base_bytes=0, base_blocks=0, opt_bytes=opt["size_bytes"], opt_blocks=opt["block_count"])
    return concat([before, after]).select("kind", "name", "category", *_SUMS)


def _sum_sites(both: Frame, *by: str) -> Iterable[Mapping[str, Any]]:
    """Sum the bytes and blocks of each side by the columns `by`, in order of names."""
    sums = {name: sum_of(name) for name in _SUMS}
    return both.group_by(*by).agg(**sums).sort(*by).rows()


def _sum_unnamed_sites(rows: Frame) -> int | None:
    """Sum the bytes of sites too small to be named; None if every site has a name."""
    sizes = rows["size_bytes"][rows.equals("kind", "rest")]
    return int(sizes.sum()) if len(sizes) else None


def _classify_site_change(row: Mapping[str, Any], base_most: int | None, opt_most: int | None) -> SiteChange:
    """Make the row of one site, with its state and bounds."""
    site = _make_site_row(row["name"], row["kind"], row)
    if site.kind != "place":
        return site
    site = replace(site, state=_classify_site_state(row, base_most, opt_most))
    if not _has_site(row, "base"):
        site = replace(site, base_most=base_most)
    if not _has_site(row, "opt"):
        site = replace(site, opt_most=opt_most)
    return site


def _make_site_row(name: str, kind: SiteKind, row: Mapping[str, Any]) -> SiteChange:
    """Make a row of both sides without a state."""
    base, opt, base_blocks, opt_blocks = (row[column] for column in _SUMS)
    return SiteChange(name, kind, base, opt, opt - base, base_blocks, opt_blocks)


def _classify_site_state(row: Mapping[str, Any], base_most: int | None, opt_most: int | None) -> SiteState:
    """Classify the state of one site."""
    if not _has_site(row, "base"):
        return "new" if base_most is None else "not told before"
    if not _has_site(row, "opt"):
        return "gone" if opt_most is None else "not told after"
    if row["opt_bytes"] == row["base_bytes"]:
        return "same"
    return "grown" if row["opt_bytes"] > row["base_bytes"] else "shrunk"


def _has_site(row: Mapping[str, Any], side: str) -> bool:
    """Check whether a side names the site."""
    return bool(row[f"{side}_blocks"] or row[f"{side}_bytes"])


def shorten_sites(rows: Sequence[SiteChange], limit: int = MAX_PLACES) -> tuple[SiteChange, ...]:
    """Keep the `limit` sites that changed most, merge the others, and end with unnamed ones."""
    places = sorted(_select_site_kind(rows, "place"), key=_rank_site_change)
    smaller = [*places[limit:], *_select_site_kind(rows, "others")]
    joined = [_merge_site_rows(smaller)] if smaller else []
    return (*places[:limit], *joined, *_select_site_kind(rows, "untold"), *_select_site_kind(rows, "rest"))


def _select_site_kind(rows: Iterable[SiteChange], kind: SiteKind) -> list[SiteChange]:
    return [row for row in rows if row.kind == kind]


def _rank_site_change(site: SiteChange) -> tuple[int, int, str]:
    """Sort key: the largest change first, then the largest site after the change."""
    return (-abs(site.difference), -site.opt_bytes, site.site)


def _merge_site_rows(rows: Sequence[SiteChange]) -> SiteChange:
    """Merge several rows into one."""
    places = sum(row.places for row in rows)
    sums = {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    joined = _make_site_row(f"{places:,} {choose_plural(places, 'other')}", "others", sums)
    return replace(joined, places=places)
