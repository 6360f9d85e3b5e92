"""What is in use at the end of every step, and who asked for it? (memory snapshots)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import in_run, text_or_none
from tracekit.job.memory.snapshots import NATIVE, UNTOLD, snapshot_levels
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import PROCESS, joined
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.columns import STEP
from tracekit.model.tables.snapshots import DEVICE_KEYS, SITE_KINDS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.live import sites_of, stacks_of
from tracekit.process.memory.replay import Replay, replays
from tracekit.process.memory.survivors import step_ends
from tracekit.process.memory.tables import columns, whose

_UNTOLD = ("none", "before", "freed", "empty", "unknown", "rest")
"""nothing is missing | before the history, without a stack | before it, freed in it | a stack without frames | no stack | beyond the cap."""

LIVE_STEPS = Table(
    "live_steps",
    "what one place in the program holds when a step ends: the largest 60 of a snapshot, and the rest",
    {
        **DEVICE_KEYS,
        "step": STEP,
        "position": Column("int64", "Which end of a step in the snapshot, from 0."),
        "at_ns": Column("Int64", "When it ended, ns since the Unix epoch."),
        "site": Column("category", "The frame that names the stack; <NA>: not known."),
        "kind": Column("category", " | ".join(SITE_KINDS) + ".", SITE_KINDS),
        "untold": Column("category", " | ".join(_UNTOLD) + ": why there is no site.", _UNTOLD),
        "size_bytes": Column("int64", "Requested bytes."),
        "block_count": Column("int64", "Blocks."),
    },
)


MAX_SITES = 60
"""Most places in the program that one snapshot tells apart: those with most bytes at any end of a step."""

MAX_SHOWN, MAX_COLUMNS = 20, 10
"""Most places and most steps in the sheet."""

Ints = npt.NDArray[np.int64]

_OWNER = [*PROCESS, "replica", "memory", "device"]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What every place in the program holds when a step ends; of a file without marks of steps, at its end."""
    if not trace.has("allocations") and not trace.has("blocks"):
        return {}
    parts = [_held(trace, replay).assign(**whose(replay)) for replay in trace.derived(replays)]
    return {"live_steps": columns(parts)}


def _held(trace: Trace, replay: Replay) -> pd.DataFrame:
    """The rows of `live_steps` of one device, but for whose."""
    ends = _ends(trace, replay)
    entries = ends["entry"].to_numpy(np.int64)
    pieces = replay.pieces
    first = np.searchsorted(entries, pieces.born, "left")
    stop = np.searchsorted(entries, pieces.died, "left")
    alive = np.flatnonzero(first < stop)
    code, named = _owners(trace, replay, alive)
    held_bytes, count = np.zeros((2, len(named), len(entries) + 1), np.int64)
    for table, weight in ((held_bytes, pieces.size[alive]), (count, np.ones(len(alive), np.int64))):
        np.add.at(table, (code, first[alive]), weight)
        np.subtract.at(table, (code, stop[alive]), weight)
    held_bytes, count = (np.cumsum(table, axis=1)[:, :-1] for table in (held_bytes, count))
    assert held_bytes.sum(axis=0).tolist() == [replay.held(int(entry)) for entry in entries]
    order = np.argsort(-held_bytes.max(axis=1, initial=0), kind="stable")
    largest, others_of = order[:MAX_SITES], order[MAX_SITES:]
    held_bytes, count = (
        np.vstack((t[largest], t[others_of].sum(axis=0))) for t in (held_bytes, count)
    )
    other = pd.DataFrame({"site": [None], "kind": ["unknown"], "untold": ["rest"]}, dtype=object)
    named = pd.concat([named.iloc[largest], other], ignore_index=True)
    is_held = held_bytes > 0
    is_held[-1] |= ~is_held.any(axis=0)  # an end at which nothing is in use is one too
    place, end = np.nonzero(is_held)
    return pd.DataFrame(
        {
            **{name: ends[name].array[end] for name in ("step", "position", "at_ns")},
            **{str(name): named[name].to_numpy(object)[place] for name in named},
            "size_bytes": held_bytes[place, end],
            "block_count": count[place, end],
        }
    )


def _ends(trace: Trace, replay: Replay) -> pd.DataFrame:
    """The ends of steps in order: `step`, `position`, `at_ns`, and `entry`, the last one of the history before it."""
    ends, numbers = step_ends(trace)
    if replay.timed and len(ends) >= 2:
        entry = np.searchsorted(replay.ts_ns, ends, "right") - 1
        times = pd.array(ends, dtype="Int64")
    else:
        entry, numbers = np.array([len(replay.rows) - 1]), [trace.source.step]
        times = pd.array([replay.ts_ns[-1] if replay.timed else pd.NA], dtype="Int64")
    return pd.DataFrame(
        {
            "step": pd.array(numbers, dtype="Int64"),
            "position": np.arange(len(entry), dtype=np.int64),
            "at_ns": times,
            "entry": entry.astype(np.int64),
        }
    )


def _owners(trace: Trace, replay: Replay, which: Ints) -> tuple[Ints, pd.DataFrame]:
    """(the number of each piece's place in the program; `site`, `kind` and `untold`, why there is none, of each)."""
    row, block = replay.pieces.row[which], replay.pieces.block[which]
    stack, missing = stacks_of(trace, row, block)
    site, kind = sites_of(trace, stack, missing)
    freed = (row < 0) & (block < 0)
    why = np.array([*SITE_KINDS, "before", "freed"], object)
    number = np.where(missing & (row < 0), len(SITE_KINDS), kind)
    number = np.where(freed, len(SITE_KINDS) + 1, number)
    named = pd.notna(site) & ~freed
    frame = pd.DataFrame(
        {
            "site": np.where(named, site, None),
            "kind": why[np.where(freed, SITE_KINDS.index("unknown"), kind)],
            "untold": np.where(named, "none", why[number]),
        },
        dtype=object,
    )
    groups = frame.groupby([*frame], dropna=False, sort=False).ngroup()
    code = groups.to_numpy().astype(np.int64)
    return code, frame.iloc[np.unique(code, return_index=True)[1]].reset_index(drop=True)


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """What the places of the process with the highest peak hold step by step; None where no snapshot was read."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    top = levels.iloc[0]
    rows = _of_process(measured["live_steps"], top)
    ends = _in_order(rows)
    if len(ends) < 2:
        reason = "no two ends of steps are told of for one process: see what is in use at the end"
        return ANALYSIS.skipped(reason)
    processes = len(levels.drop_duplicates(_OWNER))
    metrics = (Metric("step_ends", len(ends), "count", label="ends of steps"),)
    return ANALYSIS.answered(
        metrics=metrics, sheets=lambda: (_sheet(measured, rows, ends, top, processes),)
    )


def _of_process(rows: pd.DataFrame, top: pd.Series[Any]) -> pd.DataFrame:
    """The rows about the memory of one process, of one of its snapshots where nothing tells that others are its own."""
    same = pd.Series(data=True, index=rows.index)
    for name in _OWNER:
        value = top[name]
        same &= rows[name].isna() if pd.isna(value) else rows[name].eq(value).fillna(value=False)
    of_process = rows[same.to_numpy(bool)]
    within = bool((of_process["position"] > 0).any())
    is_known = not (pd.isna(top["rank"]) and pd.isna(top["pid"]))
    if is_known or (not within and bool(of_process["step"].notna().all())):
        return of_process
    source = str(top["source"])
    return of_process[(of_process["source"] == source).to_numpy(bool)]


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The ends of steps in order of time: `source`, `position`, `step`; none where nothing tells the order."""
    ends = rows.drop_duplicates(["source", "position"])[["source", "position", "step", "at_ns"]]
    by = next((name for name in ("at_ns", "step") if bool(ends[name].notna().all())), None)
    if by is None and len(set(ends["source"])) > 1:
        return ends.iloc[:0]
    ends = ends.sort_values([*([by] if by else []), "source", "position"], kind="stable")
    repeated = ends["step"].notna() & ends.duplicated("step", keep="last")
    return ends[~repeated].reset_index(drop=True)


def _sheet(
    measured: Measurements,
    rows: pd.DataFrame,
    ends: pd.DataFrame,
    top: pd.Series[Any],
    processes: int,
) -> Sheet:
    """A row for each place, a column for each end of a step; the first row is all that is in use."""
    count = len(ends)
    columns = np.unique(np.linspace(0, count - 1, min(count, MAX_COLUMNS)).round().astype(np.int64))
    top_rows = joined(
        rows,
        ends.assign(end=np.arange(count))[["source", "position", "end"]],
        ["source", "position"],
    )
    top_rows["where"] = [_said(row) for row in top_rows.itertuples(index=False)]
    wide = top_rows.pivot_table("size_bytes", "where", "end", "sum").reindex(columns=range(count))
    wide = wide.astype("Int64")
    total = wide.sum()
    rest_name = UNTOLD["rest"]
    # A snapshot with more places than it tells apart may hold some of any of them among the smaller ones.
    filled = wide.fillna(0)
    if rest_name in wide.index:
        all_told = (filled.loc[rest_name] == 0).to_numpy(bool)
        wide.loc[:, all_told] = filled.loc[:, all_told]
    else:
        wide = filled
    highest = filled.max(axis=1).drop(rest_name, errors="ignore")
    order = highest.sort_values(ascending=False, kind="stable").index[:MAX_SHOWN]
    other_bytes = (total - filled.loc[order].sum()).astype("Int64")
    table = pd.concat(
        [total.to_frame("in use").T, wide.loc[order], other_bytes.to_frame("all others").T]
    )
    if not other_bytes.any():
        table = table.drop("all others")
    table = table.astype("Int64")
    change = table[count - 1] - table[0]
    table = table[columns.tolist()].rename(columns={int(i): f"end_{i}" for i in columns})
    frame = table.assign(change=change, where=table.index).reset_index(drop=True)
    numbers = ends["step"].tolist()
    names = [f"end {i + 1}" if pd.isna(n) else f"step {int(n)}" for i, n in enumerate(numbers)]
    headings = (
        *as_headings("""
            where | place in the program
            change | first to last | bytes
        """),
        *(Heading(f"end_{i}", names[i], "bytes", "As requested, when it ended.") for i in columns),
    )
    some_sites = (
        ""
        if len(columns) == count
        else f" {len(columns)} of {count} steps: the first, the last and some between."
    )
    others_too = "" if processes == 1 else f" The process with the highest peak, of {processes}."
    title = f"In use at the end of each step, {top['who']}{in_run(measured, top['run'])}"
    return sheet(
        "live_steps", title, headings, frame, caption=f"As requested.{some_sites}{others_too}"
    )


def _said(row: Any) -> str:
    """The place in the program, or why there is none."""
    site = text_or_none(row.site)
    if site is None:
        return UNTOLD[str(row.untold)]
    return f"{site}{NATIVE if row.kind == 'native' else ''}"


ANALYSIS = Analysis(
    id="live-steps",
    title="What is in use at the end of every step?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(LIVE_STEPS,),
    rests_on=("snapshot_levels",),
    measure=measure,
    judge=judge,
)
