"""What is allocated and never freed? Stacks that hold more from snapshot to snapshot, and of how many steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import plain, run_heading
from tracekit.job.memory_survivors import Kept, folded, kept
from tracekit.job.tables import sheet
from tracekit.model.keys import looked_up
from tracekit.model.labels import bounded
from tracekit.model.report import Heading, Metric, Section, Sheet
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
    found = trace.derived(survivors)
    grown = over_marks(trace)
    windows = found.windows.assign(
        step=pd.array([trace.source.step] * len(found.windows), dtype="Int64")
    )
    at_end = found.stacks.assign(
        basis="snapshot", step=pd.array([trace.source.step] * len(found.stacks), dtype="Int64")
    )
    every = pd.concat([at_end, grown.assign(basis="step")]) if len(grown) else at_end
    names = trace.derived(site_table)[["stack", "site"]].astype({"stack": "Int64"})
    every = looked_up(every, names, ["stack"])
    # A stack without frames has no row of its own.
    unnamed = np.where(every["stack"].isna(), NO_STACK, NO_FRAMES)
    every["site"] = every["site"].astype(object).where(every["site"].notna(), unnamed)
    largest = pd.concat([grown["stack"], at_end["stack"]]) if len(grown) else at_end["stack"]
    wanted = largest.dropna().unique()[:MAX_NAMED]
    every["frames"] = every["stack"].map(_frames(trace, wanted)).astype(object)
    every["frames"] = every["frames"].where(every["frames"].notna(), every["site"])
    return {
        "snapshot_windows": _columns(windows),
        "survivors": _columns(every),
        "survivor_blocks": _columns(found.blocks),
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
    windows = plain(measured["snapshot_windows"])
    found = kept(measured, thresholds.of("memory-growth"))
    most = int(windows["window"].max()) + 1 if windows["window"].notna().any() else 0
    within = bool((measured["survivors"]["basis"] == "step").any())
    if most < 3 and not within:
        reason = (
            f"{most} memory snapshots of one process in order of time, of at least 3 (better 8)"
            if most
            else "nothing tells that the snapshots are of one process, or their order (rank, process or step in their names, or times)"
        )
        return Section(ANALYSIS.id, ANALYSIS.title, "skipped", reason)
    metrics = [
        Metric("kept_stacks", len(found), "count", "lower", label="stacks that hold more from step to step and free nothing"),
        Metric("kept_bytes", sum(one.growth for one in found), "bytes", "lower", label="their growth, all processes"),
        Metric("snapshots", most, "count", label="most snapshots of one process"),
    ]  # fmt: skip
    return Section(
        ANALYSIS.id,
        ANALYSIS.title,
        metrics=tuple(metrics),
        sheets=(_sheet(measured, found),) if found else (),
        caveats=tuple(_caveats(windows, found)),
    )


def _sheet(measured: Measurements, found: Sequence[Kept]) -> Sheet:
    rows = pd.DataFrame(
        {
            "run": [one.process[0] for one in found],
            "who": [_who(one) for one in found],
            "site": [one.site for one in found],
            "growth": [one.growth for one in found],
            "per_step": [round(one.per_step) for one in found],
            "cohorts": [f"{one.cohorts} of {one.windows}" for one in found],
            "blocks": [one.blocks for one in found],
            "basis": ["snapshots" if one.basis == "snapshot" else "steps of one snapshot" for one in found],
            "warm_up": [one.warm_up for one in found],
            "frames": [one.frames for one in found],
        }
    )  # fmt: skip
    headings = (
        *run_heading(measured),
        Heading("who", "process"),
        Heading("site", "allocated at"),
        Heading("growth", "growth", "bytes", "Requested bytes, from the first time after warm-up to the last."),
        Heading("per_step", "per step", "bytes", "Per snapshot where steps are not numbered."),
        Heading("cohorts", "alive of", "text", "Blocks of how many snapshots (steps) are alive at the end."),
        Heading("blocks", "blocks", "count", "In use at the end."),
        Heading("basis", "compared"),
        Heading("warm_up", "warm-up", "count", "Left out at the beginning."),
        Heading("frames", "stack", "text", "Innermost first."),
    )  # fmt: skip
    caption = "Stacks that at no time hold less than before and whose blocks of several steps are still alive."
    return sheet("kept_stacks", "Stacks that only ever hold more", headings, rows, caption=caption)


def _who(one: Kept) -> str:
    """The process and device in words."""
    _, role, rank, _, pid, replica, device = one.process
    who = f"rank {rank}" if rank is not None else "rank ?" if pid is None else f"process {pid}"
    who += "" if replica is None else f" replica {replica}"
    who += "" if role is None else f" {role}"
    return who + ("" if device is None else f" GPU {device}")


def _caveats(windows: pd.DataFrame, found: Sequence[Kept]) -> Iterator[str]:
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
    if any(one.windows == 3 for one in found):
        yield "with three snapshots no warm-up can be left out: caches that fill up look the same"
    if found:
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
