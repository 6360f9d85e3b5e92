"""What holds more or less memory: two snapshots compared by place in the program and by category, adding up exactly.

A place is the file and the function of the frame that names a stack: moved lines and folders that are called
otherwise make no new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tracekit.compare.memory_change import Moment, SiteChange, SiteKind, Sites, SiteState
from tracekit.compare.memory_snapshots import END, PEAK, Snapshot
from tracekit.job.frames import plain
from tracekit.job.memory_snapshots import NATIVE, UNTOLD, of_snapshot, untold

MAX_PLACES = 60
"""Most places of one comparison: those that changed most."""

NOT_TOLD = "not told"
"""The category of what nothing tells a category of."""

_SUMS = ["base_bytes", "opt_bytes", "base_blocks", "opt_blocks"]


def site_changes(base: Snapshot, opt: Snapshot, moment: Moment) -> Sites | None:
    """What holds the memory of both snapshots at a moment; None where one does not tell it.

    Only the largest places of a snapshot have a name, so that one of them may be among the smaller ones of the
    other: it is neither new nor gone then, and has a bound.
    """
    level = PEAK if moment == "peak" else END
    totals = base.levels[level], opt.levels[level]
    before, after = _rows(base, moment), _rows(opt, moment)
    if totals[0] is None or totals[1] is None or before is None or after is None:
        return None
    if not (_sound(before, totals[0]) and _sound(after, totals[1])):
        return None
    most = _smaller(before), _smaller(after)
    both = _joined(before, after, ["kind", "name"])
    named = [_change(row, *most) for row in both.to_dict("records")]
    categories = _joined(before, after, ["category"])
    told = [
        _row(str(row["category"]), "place" if row["category"] != NOT_TOLD else "untold", row)
        for row in categories.to_dict("records")
    ]
    if all(one.kind == "untold" for one in told):
        told = []
    found = Sites(str(base.whose), moment, totals[0], totals[1], shortened(named), shortened(told))
    change = found.opt - found.base
    for part in (found.rows, found.categories):
        assert not part or sum(one.difference for one in part) == change, "rows miss the change"
    return found


def _rows(side: Snapshot, moment: Moment) -> pd.DataFrame | None:
    """The rows of `live_sites` of one snapshot with `name` and `kind`; None of a saved report."""
    if side.measured is None or side.row is None:
        return None
    rows = of_snapshot(plain(side.measured["live_sites"]), pd.Series(side.row))
    rows = rows[rows["moment"] == moment]
    # Measurements that were saved before places had a column of their own tell the site with its line.
    place = rows["place"].where(rows["place"].notna(), rows["site"])
    native = np.where(rows["kind"] == "native", NATIVE, "")
    reasons = [untold(row) for row in rows.itertuples(index=False)]
    words = pd.Series([UNTOLD.get(r, UNTOLD["unknown"]) for r in reasons], rows.index, dtype=object)
    known = place.notna()
    return rows.assign(
        name=(place.astype(object) + native).where(known, words),
        kind=np.where(known, "place", np.where(rows["origin"] == "rest", "rest", "untold")),
        category=rows["category"].astype(object).where(rows["category"].notna(), NOT_TOLD),
    )


def _sound(rows: pd.DataFrame, total: int) -> bool:
    """Whether the rows add up to the level; those of saved measurements need not."""
    size = rows["size_bytes"]
    return int(size.astype(object).sum()) == total and bool((size >= 0).all())


def _joined(base: pd.DataFrame, opt: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The sums of both sides by what they have in common, nothing as 0; in order of names."""
    sums = [
        rows.groupby(by, sort=True)[["size_bytes", "block_count"]]
        .sum()
        .set_axis([f"{side}_bytes", f"{side}_blocks"], axis=1)
        for side, rows in (("base", base), ("opt", opt))
    ]
    index = sums[0].index.union(sums[1].index)
    both = pd.concat([one.reindex(index, fill_value=0) for one in sums], axis=1)
    return both.sort_index().reset_index()


def _smaller(rows: pd.DataFrame) -> int | None:
    """The bytes of a side that are in no place with a name, being small; None where every place has one."""
    rest = rows.loc[rows["kind"] == "rest", "size_bytes"]
    return int(rest.sum()) if len(rest) else None


def _change(row: dict[Any, Any], base_most: int | None, opt_most: int | None) -> SiteChange:
    """One row of both sides, with what became of it."""
    kind: SiteKind = row["kind"]
    if kind != "place":
        return _row(str(row["name"]), kind, row)
    return _row(
        str(row["name"]),
        kind,
        row,
        _state(row, base_most, opt_most),
        None if _held(row, "base") else base_most,
        None if _held(row, "opt") else opt_most,
    )


def _row(
    name: str,
    kind: SiteKind,
    row: dict[Any, Any],
    state: SiteState = "",
    base_most: int | None = None,
    opt_most: int | None = None,
) -> SiteChange:
    base, opt, base_blocks, opt_blocks = (int(row[column]) for column in _SUMS)
    return SiteChange(
        name, kind, base, opt, opt - base, base_blocks, opt_blocks, state, base_most, opt_most
    )


def _state(row: dict[Any, Any], base_most: int | None, opt_most: int | None) -> SiteState:
    """What became of one place."""
    if not _held(row, "base"):
        return "new" if base_most is None else "not told before"
    if not _held(row, "opt"):
        return "gone" if opt_most is None else "not told after"
    change = row["opt_bytes"] - row["base_bytes"]
    return "grown" if change > 0 else "shrunk" if change < 0 else "same"


def _held(row: dict[Any, Any], side: str) -> bool:
    """Whether a side names the place."""
    return bool(row[f"{side}_blocks"] or row[f"{side}_bytes"])


def shortened(rows: Sequence[SiteChange], most: int = MAX_PLACES) -> tuple[SiteChange, ...]:
    """The `most` places that changed most, the others as one row, and at the end what has no name."""
    places = sorted(
        (one for one in rows if one.kind == "place"),
        key=lambda one: (-abs(one.difference), -one.opt_bytes, one.site),
    )
    others = [*places[most:], *(one for one in rows if one.kind == "others")]
    ends = [one for kind in ("untold", "rest") for one in rows if one.kind == kind]
    return (*places[:most], *([_together(others)] if others else []), *ends)


def _together(rows: Sequence[SiteChange]) -> SiteChange:
    """Several rows as one."""
    sums = {name: sum(getattr(one, name) for one in rows) for name in _SUMS}
    count = sum(one.places for one in rows)
    found = _row(f"{count:,} {'other' if count == 1 else 'others'}", "others", sums)
    return replace(found, places=count)
