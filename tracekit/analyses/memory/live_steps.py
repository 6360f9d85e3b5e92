"""Which sites hold memory at the end of every step? (memory snapshots)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.memory.snapshots import UNTOLD, name_site, snapshot_levels
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    concatenate_parts,
    make_nullable_numbers,
    repeat_text,
    select_all_rows,
)
from tracekit.model.tables.columns import STEP
from tracekit.model.tables.frame import Bools, Frame, Ints, sum_of, texts, where
from tracekit.model.tables.keys import PROCESS, group_arrays
from tracekit.model.tables.snapshots import DEVICE_KEYS, SITE_KINDS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.live import find_allocation_stacks, look_up_sites
from tracekit.process.memory.replay import Replay, add_memory_keys, concatenate_columns, replay_all_devices
from tracekit.process.memory.survivors import find_step_ends

_UNTOLD = ("none", "before", "freed", "empty", "unknown", "rest")
"""nothing is missing | before the history, without a stack | before it, freed in it | a stack without frames | no stack | beyond the cap."""

LIVE_STEPS = Table(
    "live_steps",
    "memory of one place in the program at the end of a step: the largest 60 of a snapshot, and the rest",
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

_OWNER = [*PROCESS, "replica", "memory", "device"]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the memory of every site when a step ends; in a file without marks of steps, at its end."""
    if not trace.has("allocations") and not trace.has("blocks"):
        return {}
    replays = trace.derived(replay_all_devices)
    parts = [add_memory_keys(replay, _sum_at_step_ends(trace, replay)) for replay in replays]
    return {"live_steps": concatenate_columns(parts)}


def _sum_at_step_ends(trace: Trace, replay: Replay) -> dict[str, Array]:
    """Sum the memory of one device by site at each end: `live_steps` without the columns of its process."""
    entries, ends = _find_step_ends(trace, replay)
    pieces = replay.pieces
    first = np.searchsorted(entries, pieces.born, "left")
    stop = np.searchsorted(entries, pieces.died, "left")
    alive = np.flatnonzero(first < stop)
    code, sites = _group_by_site(trace, replay, alive)
    held_bytes, count = np.zeros((2, len(sites["untold"]), len(entries) + 1), np.int64)
    for table, weight in ((held_bytes, pieces.size[alive]), (count, np.ones(len(alive), np.int64))):
        np.add.at(table, (code, first[alive]), weight)
        np.subtract.at(table, (code, stop[alive]), weight)
    held_bytes, count = (np.cumsum(table, axis=1)[:, :-1] for table in (held_bytes, count))
    assert held_bytes.sum(axis=0).tolist() == [replay.get_requested_bytes(int(entry)) for entry in entries]
    order = np.argsort(-held_bytes.max(axis=1, initial=0), kind="stable")
    largest, others_of = order[:MAX_SITES], order[MAX_SITES:]
    held_bytes, count = (np.vstack((t[largest], t[others_of].sum(axis=0))) for t in (held_bytes, count))
    other = {"site": repeat_text(None, 1), "kind": repeat_text("unknown", 1), "untold": repeat_text("rest", 1)}
    sites = concatenate_parts([select_all_rows(sites, largest), other])
    is_held = held_bytes > 0
    is_held[-1] |= ~is_held.any(axis=0)  # an end at which nothing is in use is one too
    place, end = np.nonzero(is_held)
    return {
        **select_all_rows(ends, end),
        **select_all_rows(sites, place),
        "size_bytes": held_bytes[place, end],
        "block_count": count[place, end],
    }


def _find_step_ends(trace: Trace, replay: Replay) -> tuple[Ints, dict[str, Array]]:
    """Find the ends of steps: (last entry of the history before each; `step`, `position` and `at_ns`)."""
    ends, numbers = find_step_ends(trace)
    if replay.timed and len(ends) >= 2:
        entries, times = np.searchsorted(replay.ts_ns, ends, "right") - 1, ends.tolist()
    else:
        entries, numbers = np.array([len(replay.rows) - 1]), [trace.source.step]
        times = [int(replay.ts_ns[-1]) if replay.timed else None]
    return entries, {
        "step": make_nullable_numbers(numbers),
        "position": np.arange(len(entries), dtype=np.int64),
        "at_ns": make_nullable_numbers(times),
    }


def _group_by_site(trace: Trace, replay: Replay, which: Ints) -> tuple[Ints, dict[str, Array]]:
    """Group pieces by site: (the number of each piece's site; `site`, `kind` and `untold`, why there is none, of each)."""
    row, block = replay.pieces.row[which], replay.pieces.block[which]
    stack = find_allocation_stacks(trace, row, block)
    site, _, kind = look_up_sites(trace, stack)
    freed = (row < 0) & (block < 0)
    untold = np.array([_UNTOLD.index(name) if name in _UNTOLD else 0 for name in SITE_KINDS], np.int64)[kind]
    untold = np.where(stack.missing & (row < 0), _UNTOLD.index("before"), untold)
    untold = np.where(freed, _UNTOLD.index("freed"), untold)
    is_named = (site.codes >= 0) & ~freed
    columns: dict[str, Array] = {
        "site": Coded(np.where(is_named, site.codes, -1), site.texts),
        "kind": Coded(np.where(freed, SITE_KINDS.index("unknown"), kind), SITE_KINDS),
        "untold": Coded(np.where(is_named, _UNTOLD.index("none"), untold), _UNTOLD),
    }
    code, first = group_arrays(list(columns.values()))
    return code, select_all_rows(columns, first)


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Show the memory by site and step of the process with the highest peak; None without memory snapshots."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    top = next(levels.rows())
    sites = _select_live_steps(measured.frame("live_steps"), top)
    ends = _order_step_ends(sites)
    if len(ends) < 2:
        return ANALYSIS.skipped("no process has two recorded step ends: see the memory in use at the end")
    processes = len(levels.group_by(*_OWNER))
    return ANALYSIS.answered(
        metrics=(Metric("step_ends", len(ends), "count", label="ends of steps"),),
        sheets=lambda: (_make_live_step_table(measured, sites, ends, top, processes),),
    )


def _select_live_steps(sites: Frame, top: Mapping[str, Any]) -> Frame:
    """Select the memory of one process; only one of its snapshots if others may be of another process."""
    for name in _OWNER:
        sites = sites.filter(sites.equals(name, top[name]))
    within = bool((sites["position"] > 0).any())
    is_known = top["rank"] is not None or top["pid"] is not None
    if is_known or not (within or sites.is_missing("step").any()):
        return sites
    return sites.filter(sites.equals("source", top["source"]))


def _order_step_ends(sites: Frame) -> Frame:
    """List the ends of steps in order of time: `source`, `position`, `step`; none where the order is unknown."""
    ends = sites.distinct("source", "position").select("source", "position", "step", "at_ns")
    by = [name for name in ("at_ns", "step") if not ends.is_missing(name).any()][:1]
    if not by and len(ends.distinct("source")) > 1:
        return ends.head(0)
    ends = ends.sort(*by, "source", "position")
    # A step that was recorded again counts once, as it was last.
    later = ends.group_by("step").position(np.arange(len(ends))[::-1])
    return ends.filter(ends.is_missing("step") | (later == 0))


def _make_live_step_table(
    measured: Measurements, sites: Frame, ends: Frame, top: Mapping[str, Any], processes: int
) -> Sheet:
    """Make a row for each site and a column for each end of a step; the first row is all memory in use."""
    count = len(ends)
    shown = np.unique(np.linspace(0, count - 1, min(count, MAX_COLUMNS)).round().astype(np.int64))
    names, size, is_known = _spread_by_end(sites, ends)
    # A snapshot with more sites than it tells apart may hold some of any of them among the smaller ones.
    rest = names.index(UNTOLD["rest"]) if UNTOLD["rest"] in names else -1
    is_known |= size[rest] == 0 if rest >= 0 else True
    order = np.argsort(-size.max(axis=1), kind="stable")
    order = order[order != rest][:MAX_SHOWN]
    total, always = size.sum(axis=0), np.ones(count, np.bool_)
    others = total - size[order].sum(axis=0)
    names = ["in use", *(names[site] for site in order), "all others"]
    size = np.vstack([total, size[order], others])
    is_known = np.vstack([always, is_known[order], always])
    change = where(is_known[:, 0] & is_known[:, -1], size[:, -1] - size[:, 0])
    columns = {f"end_{end}": where(is_known[:, end], size[:, end]) for end in shown.tolist()}
    table = Frame.from_columns({"where": texts(names), "change": change, **columns})
    if not others.any():
        table = table.head(len(table) - 1)
    steps = [
        f"end {place}" if step is None else f"step {step}" for place, step in enumerate(ends.values("step"), start=1)
    ]
    headings = (
        *parse_headings("""
            where | place in the program
            change | first to last | bytes
        """),
        *(Heading(f"end_{end}", steps[end], "bytes", "As requested, when it ended.") for end in shown.tolist()),
    )
    caption = "Requested bytes."
    if len(shown) < count:
        caption += f" {len(shown)} of {count} steps: the first, the last and some in between."
    if processes > 1:
        caption += f" The process with the highest peak, of {processes}."
    title = f"In use at the end of each step, {top['who']}{phrase_run(measured, top['run'])}"
    return make_sheet("live_steps", title, headings, table, caption=caption)


def _spread_by_end(sites: Frame, ends: Frame) -> tuple[list[str], Ints, Bools]:
    """Return (names of sites, the bytes of each at each end of a step, whether they were recorded)."""
    places = ends.select("source", "position").with_columns(end=np.arange(len(ends)))
    sites = sites.join(places, ["source", "position"])
    named = [name_site(row["site"], row["kind"], row["untold"]) for row in sites.rows("site", "kind", "untold")]
    sites = sites.with_columns(name=texts(named))
    sums = sites.group_by("name", "end").agg(size_bytes=sum_of("size_bytes"))
    names = sums.distinct("name").sort("name").values("name")
    cell = sums.dense_rank("name"), sums["end"]
    size, is_known = (np.zeros((len(names), len(ends)), np.int64), np.zeros((len(names), len(ends)), np.bool_))
    size[cell], is_known[cell] = sums["size_bytes"], True
    return names, size, is_known


ANALYSIS = Analysis(
    id="live-steps",
    title="Which memory stays in use at the end of every step?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(LIVE_STEPS,),
    rests_on=("snapshot_levels",),
    measure=measure,
    judge=judge,
)
