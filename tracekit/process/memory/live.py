"""Live memory of a device at one time: who allocated it, its purpose, and its age."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at
from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.keys import look_up_keys
from tracekit.model.tables.snapshots import BASES, ORIGINS, SITE_KINDS
from tracekit.model.trace import Trace
from tracekit.process.memory import windows as snapshot_windows
from tracekit.process.memory.call_sites import build_site_table
from tracekit.process.memory.replay import Replay

Ints = npt.NDArray[np.int64]

MAX_SITES = 200
"""Sites listed at one time at most: those with most bytes."""

_BY = ["origin", "kind", "site", "category", "basis"]
_NOTHING = ("", "N/A")
"""Texts in a history that mean "none"."""


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """Pieces in use at one time: `frame` has a row for each with its origin, site, category and age."""

    frame: pd.DataFrame
    total: int


def list_live_memory(trace: Trace, replay: Replay, entry: int) -> LiveMemory:
    """List the memory in use after an entry of the history (-1: before it)."""
    pieces = replay.pieces
    chosen = pieces.live(entry)
    row, block, born = pieces.row[chosen], pieces.block[chosen], pieces.born[chosen]
    stack, no_stack = find_allocation_stacks(trace, row, block)
    site, kind = look_up_sites(trace, stack, no_stack)
    place, _ = look_up_sites(trace, stack, no_stack, "place")
    category, basis = _find_memory_purpose(trace, replay, row, block, born)
    origin = np.where(row >= 0, 0, np.where(block >= 0, 1, 2))
    # For memory freed in the history only the stack of the free is recorded, so it is not looked up.
    nobody = origin == 2
    now = replay.ts_ns[max(entry, 0)] if len(replay.ts_ns) else 0
    since = replay.ts_ns[born] if len(replay.ts_ns) else np.zeros(len(born), np.int64)
    size = pieces.size[chosen]
    frame = pd.DataFrame(
        {
            "origin": np.array(ORIGINS, object)[origin],
            "kind": np.array(SITE_KINDS, object)[np.where(nobody, SITE_KINDS.index("unknown"), kind)],
            "site": site,
            "place": place,
            "category": category,
            "basis": basis,
            "stack": pd.arrays.IntegerArray(stack, no_stack | nobody),
            "size_bytes": size,
            "age_ns": pd.arrays.IntegerArray(now - since, np.full(len(born), not replay.timed) | (born < 0)),
        }
    )
    total = int(size.sum())
    assert total == replay.get_requested_bytes(entry), "what is in use is not what the history adds up to"
    return LiveMemory(frame, total)


def sum_live_memory_by_site(live_memory: LiveMemory) -> pd.DataFrame:
    """Sum live memory by site, largest first; the smallest share one row `rest`.

    Rows of `live_sites` without key columns.
    """
    frame = live_memory.frame
    per_stack = (
        frame.groupby([*_BY, "stack"], dropna=False, observed=True, sort=False)
        .agg(
            size_bytes=("size_bytes", "sum"),
            block_count=("size_bytes", "size"),
            oldest_ns=("age_ns", "max"),
            place=("place", "first"),
        )
        .reset_index()
        .sort_values("size_bytes", ascending=False, kind="stable")
    )
    grouped = per_stack.groupby(_BY, dropna=False, observed=True, sort=False)
    table = grouped.agg(
        stack=("stack", "first"),
        stack_count=("stack", "size"),
        block_count=("block_count", "sum"),
        size_bytes=("size_bytes", "sum"),
        oldest_ns=("oldest_ns", "max"),
        place=("place", "first"),
    ).reset_index()
    table["stack"] = table["stack"].astype("Int64")
    table["place"] = table["place"].astype(object).where(table["site"].notna(), None)
    sites = table["site"].where(table["site"].notna(), "").to_numpy(object)
    _, site_rank = np.unique(sites, return_inverse=True)
    order = np.lexsort((site_rank, -table["size_bytes"].to_numpy()))
    table = table.iloc[order].reset_index(drop=True)
    if len(table) > MAX_SITES:
        smaller = table.iloc[MAX_SITES - 1 :]
        last = pd.DataFrame(
            {
                "origin": ["rest"],
                "kind": ["unknown"],
                "site": [None],
                "category": [None],
                "basis": ["none"],
                "place": [None],
                "stack": pd.array([pd.NA], "Int64"),
                "oldest_ns": pd.array([smaller["oldest_ns"].max()], "Int64"),
                **{n: [int(smaller[n].sum())] for n in ("stack_count", "block_count", "size_bytes")},
            }
        )
        texts = dict.fromkeys([*_BY, "place"], object)
        table = pd.concat([table.iloc[: MAX_SITES - 1].astype(texts), last.astype(texts)])
    assert int(table["size_bytes"].sum()) == live_memory.total
    return table


def look_up_sites(trace: Trace, stack: Ints, missing: npt.NDArray[np.bool_], text: str = "site") -> tuple[Any, Ints]:
    """Look up the sites of stacks: (text of the site or `place`, None if unknown; code of its kind in SITE_KINDS)."""
    table = trace.derived(build_site_table)
    place, is_there = look_up_keys(table["stack"].to_numpy(), stack)
    empty, unknown = SITE_KINDS.index("empty"), SITE_KINDS.index("unknown")
    if not len(table):
        return np.full(len(stack), None, object), np.where(missing, unknown, empty)
    is_known = is_there & ~missing
    kinds = table["kind"].to_numpy(np.int64)
    site = table[text].to_numpy(object)[place]
    site[~is_known] = None
    return site, np.where(is_known, kinds[place], np.where(missing, unknown, empty))


def find_allocation_stacks(trace: Trace, row: Ints, block: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Find the stacks that allocated pieces: (stack of each piece, mask of pieces without a recorded stack)."""
    stack = np.zeros(len(row), np.int64)
    missing = np.ones(len(row), np.bool_)
    for name, rows_there in (("blocks", block), ("allocations", row)):
        column = trace.get(name)["stack"]
        present = rows_there >= 0
        values = column.iloc[rows_there[present]]
        is_known = values.notna().to_numpy()
        rows = present.nonzero()[0][is_known]
        stack[rows] = values.to_numpy(np.int64, na_value=0)[is_known]
        missing[rows] = False
    return stack, missing


def _find_memory_purpose(
    trace: Trace, replay: Replay, row: Ints, block: Ints, born: Ints
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Find the purpose of each piece: (category or None, basis of that knowledge)."""
    text = np.full(len(row), None, object)
    basis = np.full(len(row), BASES.index("none"), np.int64)
    for column, how in (("category", "recorded"), ("user_metadata", "metadata"), ("compile_context", "compiled")):
        for name, rows in (("allocations", row), ("blocks", block)):
            texts = _look_up_history_texts(trace.get(name)[column], rows)
            new = (basis == BASES.index("none")) & pd.notna(texts)
            text[new], basis[new] = texts[new], BASES.index(how)
    stages = snapshot_windows.list_snapshot_stages(trace, snapshot_windows.list_snapshot_steps(trace, replay))
    if len(stages) and replay.timed and len(replay.ts_ns):
        start = stages["ts_ns"].to_numpy()
        inside = find_window_at(start, start + stages["dur_ns"].to_numpy(), replay.ts_ns[born])
        new = (basis == BASES.index("none")) & (born >= 0) & (inside >= 0)
        names = stages["stage"].to_numpy(object)
        text[new], basis[new] = names[inside[new]], BASES.index("stage")
    return text, np.array(BASES, object)[basis]


def _look_up_history_texts(column: pd.Series[Any], rows: Ints) -> npt.NDArray[np.object_]:
    """Look up the text of each row; None for -1, a missing text, and texts that mean "none"."""
    names = [None if str(c) in _NOTHING else str(c) for c in column.cat.categories]
    codes = np.append(column.cat.codes.to_numpy().astype(np.int64), -1)
    texts: npt.NDArray[np.object_] = np.array([*names, None], object)[codes[rows]]
    return texts
