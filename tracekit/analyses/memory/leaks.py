"""What is allocated and never freed? Stacks that hold more from snapshot to snapshot, and of how many steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import run_heading
from tracekit.job.memory.survivors import Kept, folded, kept
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import looked_up
from tracekit.model.labels import bounded
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.call_sites import frame_texts, site_table
from tracekit.process.memory.survivors import over_marks, survivors

NO_STACK, NO_FRAMES = "no stack was recorded", "no frame was recorded"

MAX_FRAMES, MAX_TEXT = 12, 1000
"""Most frames of one stack that are named, from the innermost out, and most characters of them all."""

MAX_NAMED = 4000
"""Of so many stacks of one source the frames are named; of those with less memory the site alone."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What a memory snapshot holds at its end by stack, and over the steps within it; nothing of other sources."""
    if not trace.has("blocks"):
        return {}
    survived = trace.derived(survivors)
    grown = over_marks(trace)
    windows = survived.windows.assign(
        step=pd.array([trace.source.step] * len(survived.windows), dtype="Int64")
    )
    at_end = survived.stacks.assign(
        basis="snapshot", step=pd.array([trace.source.step] * len(survived.stacks), dtype="Int64")
    )
    all_sites = pd.concat([at_end, grown.assign(basis="step")]) if len(grown) else at_end
    names = trace.derived(site_table)[["stack", "site"]].astype({"stack": "Int64"})
    all_sites = looked_up(all_sites, names, ["stack"])
    # A stack without frames has no row of its own.
    unnamed = np.where(all_sites["stack"].isna(), NO_STACK, NO_FRAMES)
    all_sites["site"] = all_sites["site"].astype(object).where(all_sites["site"].notna(), unnamed)
    largest = pd.concat([grown["stack"], at_end["stack"]]) if len(grown) else at_end["stack"]
    wanted = largest.dropna().unique()[:MAX_NAMED]
    all_sites["frames"] = all_sites["stack"].map(_frames(trace, wanted)).astype(object)
    all_sites["frames"] = all_sites["frames"].where(all_sites["frames"].notna(), all_sites["site"])
    return {
        "snapshot_windows": _columns(windows),
        "survivors": _columns(all_sites),
        "survivor_blocks": _columns(survived.blocks),
    }


def _frames(trace: Trace, wanted: Any) -> pd.Series[Any]:
    """The frames of each of these stacks in one text, innermost first, by stack."""
    stacks = trace.get("stacks")
    rows = stacks[stacks["stack"].isin(wanted)]
    rows = rows.sort_values(["stack", "depth"], kind="stable")
    rows = rows[rows.groupby("stack", sort=False).cumcount() < MAX_FRAMES]
    texts = pd.Series(frame_texts(rows, np.arange(len(rows))), dtype=object)
    return texts.groupby(rows["stack"].to_numpy(), sort=False).agg(_one_text)


def _one_text(frames: Iterable[str]) -> str:
    """The frames of one stack, in part where their names are too long for a line that anyone reads."""
    return bounded(" < ".join(frames), MAX_TEXT)


def _columns(frame: pd.DataFrame) -> Mapping[str, Any]:
    return {str(name): _array(frame[name]) for name in frame}


def _array(column: pd.Series[Any]) -> Any:
    return (
        column.to_numpy(object)
        if column.dtype == object or str(column.dtype) == "str"
        else column.array
    )


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """The stacks that only ever hold more, and blocks of several steps; None where no snapshot was read."""
    if not measured.has("snapshot_windows"):
        return None
    windows = measured["snapshot_windows"]
    leaks = kept(measured, thresholds.of("memory-growth"))
    window_count = int(windows["window"].max()) + 1 if windows["window"].notna().any() else 0
    within = bool((measured["survivors"]["basis"] == "step").any())
    if window_count < 3 and not within:
        reason = (
            f"{window_count} memory snapshots of one process in order of time, of at least 3 (better 8)"
            if window_count
            else "nothing tells that the snapshots are of one process, or their order (rank, process or step in their names, or times)"
        )
        return ANALYSIS.skipped(reason)
    metrics = [
        Metric(
            "kept_stacks",
            len(leaks),
            "count",
            "lower",
            label="stacks that hold more from step to step and free nothing",
        ),
        evidence("kept_bytes", sum(leak.growth for leak in leaks), "their growth, all processes"),
        Metric("snapshots", window_count, "count", label="most snapshots of one process"),
    ]
    return ANALYSIS.answered(
        metrics=tuple(metrics),
        sheets=lambda: [_sheet(measured, leaks)] if leaks else (),
        caveats=lambda: _caveats(windows, leaks),
    )


def _sheet(measured: Measurements, leaks: Sequence[Kept]) -> Sheet:
    rows = pd.DataFrame(
        {
            "run": [leak.process[0] for leak in leaks],
            "who": [_who(leak) for leak in leaks],
            "site": [leak.site for leak in leaks],
            "growth": [leak.growth for leak in leaks],
            "per_step": [round(leak.per_step) for leak in leaks],
            "cohorts": [f"{leak.cohorts} of {leak.windows}" for leak in leaks],
            "blocks": [leak.blocks for leak in leaks],
            "basis": [
                "snapshots" if leak.basis == "snapshot" else "steps of one snapshot"
                for leak in leaks
            ],
            "warm_up": [leak.warm_up for leak in leaks],
            "frames": [leak.frames for leak in leaks],
        }
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            site | allocated at
            growth | growth | bytes | Requested bytes, from the first time after warm-up to the last.
            per_step | per step | bytes | Per snapshot where steps are not numbered.
            cohorts | alive of | text | Blocks of how many snapshots (steps) are alive at the end.
            blocks | blocks | count | In use at the end.
            basis | compared
            warm_up | warm-up | count | Left out at the beginning.
            frames | stack | text | Innermost first.
        """),
    )
    caption = "Stacks that at no time hold less than before and whose blocks of several steps are still alive."
    return sheet("kept_stacks", "Stacks that only ever hold more", headings, rows, caption=caption)


def _who(one: Kept) -> str:
    """The process and device in words."""
    _, role, rank, _, pid, replica, device = one.process
    who = f"rank {rank}" if rank is not None else "rank ?" if pid is None else f"process {pid}"
    who += "" if replica is None else f" replica {replica}"
    who += "" if role is None else f" {role}"
    return who + ("" if device is None else f" GPU {device}")


def _caveats(windows: pd.DataFrame, leaks: Sequence[Kept]) -> Iterator[str]:
    """What limits the test."""
    unordered = int(windows["window"].isna().sum())
    if unordered:
        yield f"{unordered} snapshots are copies, of unknown processes, or cannot be put in order: not compared"
    overlaps = int(np.count_nonzero((windows["gap_ns"] <= 0).to_numpy(np.bool_, na_value=False)))
    if overlaps:
        yield f"{overlaps} histories overlap the one before: only what is later than that counts as new"
    omitted = int(windows["omitted_stack_count"].sum() + windows["omitted_block_count"].sum())
    if omitted:
        yield "some snapshots hold more stacks or blocks than are compared: the smallest are left out"
    if any(leak.windows == 3 for leak in leaks):
        yield "with three snapshots no warm-up can be left out: caches that fill up look the same"
    if leaks:
        yield "a cache or a buffer that is still being filled looks like a leak until it is full"


ANALYSIS = Analysis(
    id="leaks",
    title="What is allocated and never freed?",
    reads=("allocations", "blocks", "stacks", "annotations"),
    writes=("snapshot_windows", "survivor_blocks", "survivors"),
    measure=measure,
    fold=folded,
    judge=judge,
)
