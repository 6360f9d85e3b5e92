"""Which memory is allocated and never freed? Stacks that hold more from snapshot to snapshot, with blocks of many steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.memory.survivors import KeptStack, find_kept_stacks, fold_snapshots
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    concatenate_like_arrays,
    concatenate_parts,
    repeat_number,
    repeat_text,
    trim_texts,
)
from tracekit.model.tables.frame import Frame, Ints, from_rows
from tracekit.model.tables.keys import count_earlier_members, group_arrays, look_up_keys
from tracekit.model.text.labels import format_numbered_word, join_phrase, name_rank_or_pid, truncate_with_hash
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.allocation_stages import find_survivor_stages
from tracekit.process.memory.call_sites import format_frames
from tracekit.process.memory.live import look_up_sites
from tracekit.process.memory.survivors import find_growing_stacks, find_surviving_memory
from tracekit.process.name_filters import look_up_names

NO_STACK, NO_FRAMES = "no stack was recorded", "no frame was recorded"

MAX_FRAMES, MAX_TEXT = 12, 1000
"""Most frames of one stack that are named, from the innermost out, and most characters of them all."""

MAX_NAMED = 4000
"""Of so many stacks of one source the frames are named; of those with less memory the site alone."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the memory at the end of a snapshot by stack, and over the steps within it."""
    if not trace.has("blocks"):
        return {}
    survived, grown = trace.derived(find_surviving_memory), find_growing_stacks(trace)
    windows, stacks = survived.windows, survived.stacks
    windows_step, stacks_step = (repeat_number(trace.source.step, len(part["device"])) for part in (windows, stacks))
    parts = [{**stacks, "step": stacks_step, "basis": repeat_text("snapshot", len(stacks_step))}]
    if grown:
        parts.append({**grown, "basis": repeat_text("step", len(grown["stack"]))})
    return {
        "snapshot_windows": {**windows, "step": windows_step},
        "survivors": _name_survivors(trace, parts, survived.blocks),
        "survivor_blocks": survived.blocks,
    }


def _name_survivors(trace: Trace, parts: Sequence[Mapping[str, Any]], blocks: Mapping[str, Any]) -> dict[str, Array]:
    """Join parts of the table `survivors`, with the site, the frames and the stage of each stack."""
    table = TABLES["survivors"]
    rows = concatenate_parts([table.cast_arrays(part, len(part["stack"]), tuple(KEYS)) for part in parts])
    # The stacks that grow within the snapshot come first.
    stack = concatenate_like_arrays([part["stack"] for part in reversed(parts)])
    recorded = stack.values[~stack.missing]
    keys, frames = _join_frames(trace, recorded[group_arrays([recorded])[1]][:MAX_NAMED])
    stack = rows["stack"]
    site = look_up_sites(trace, stack)[0]
    # A stack without frames has no site.
    unnamed = len(site.texts) + np.where(stack.missing, 0, 1)
    site = Coded(np.where(site.codes < 0, unnamed, site.codes), (*site.texts, NO_STACK, NO_FRAMES))
    place, is_named = look_up_keys(keys, stack.values)
    codes = np.where(is_named & ~stack.missing, place, len(frames) + site.codes)
    return {
        **rows,
        "site": trim_texts(site),
        "frames": trim_texts(Coded(codes, (*frames, *site.texts))),
        "stage": find_survivor_stages(trace, stack, blocks),
    }


def _join_frames(trace: Trace, wanted: Ints) -> tuple[Ints, list[str]]:
    """Join the frames of each of these stacks to one text, innermost first: (ascending stacks, their texts)."""
    stack = trace.numbers("stacks", "stack")
    rows = np.isin(stack, wanted).nonzero()[0]
    rows = rows[np.lexsort((trace.numbers("stacks", "depth")[rows], stack[rows]))]
    rows = rows[count_earlier_members(stack[rows]) < MAX_FRAMES]
    names = look_up_names(format_frames(trace, rows), np.arange(len(rows))).tolist()
    keys, first = np.unique(stack[rows], return_index=True)
    bounds = pairwise([*first.tolist(), len(rows)])
    return keys, [truncate_with_hash(" < ".join(names[begin:end]), MAX_TEXT) for begin, end in bounds]


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """List stacks that only ever hold more; None without memory snapshots."""
    if not measured.has("snapshot_windows"):
        return None
    windows = measured.frame("snapshot_windows")
    leaks = find_kept_stacks(measured, thresholds.of("memory-growth"))
    window_count = int(windows.integers("window", missing=-1).max(initial=-1)) + 1
    within = bool(measured.frame("survivors").equals("basis", "step").any())
    if window_count < 3 and not within:
        reason = (
            f"{window_count} memory snapshots of one process in order of time, of at least 3 (better 8)"
            if window_count
            else "the process and order of the snapshots are unknown (no rank, process or step in their names, and no times)"
        )
        return ANALYSIS.skipped(reason)
    kept_label = "stacks that keep more from step to step and free nothing"
    return ANALYSIS.answered(
        metrics=(
            Metric("kept_stacks", len(leaks), "count", "lower", label=kept_label),
            make_evidence_metric("kept_bytes", sum(leak.growth for leak in leaks), "their growth, all processes"),
            Metric("snapshots", window_count, "count", label="most snapshots of one process"),
        ),
        sheets=lambda: [_make_leak_table(measured, leaks)] if leaks else (),
        caveats=lambda: _list_leak_caveats(windows, leaks),
    )


_LEAK_HEADINGS = parse_headings("""
    who | process
    site | allocated at
    stage | in stage | text | Stage that allocates it: by ranges of the snapshot, or by functions of the stack.
    growth | growth | bytes | Requested bytes, from the first time after warm-up to the last.
    per_step | per step | bytes | Per snapshot where steps are not numbered.
    cohorts | alive of | text | Blocks of how many snapshots (steps) are alive at the end.
    blocks | blocks | count | In use at the end.
    basis | compared
    warm_up | warm-up | count | Left out at the beginning.
    frames | stack | text | Innermost first.
""")


def _make_leak_table(measured: Measurements, leaks: Sequence[KeptStack]) -> Sheet:
    basis = {"snapshot": "snapshots", "step": "steps of one snapshot"}
    rows = [
        (
            leak.process[0],
            _name_leak_owner(leak),
            leak.site,
            leak.stage,
            leak.growth,
            round(leak.per_step),
            f"{leak.cohorts} of {leak.windows}",
            leak.blocks,
            basis[leak.basis],
            leak.warm_up,
            leak.frames,
        )
        for leak in leaks
    ]
    names = ["run", *(heading.name for heading in _LEAK_HEADINGS)]
    table = from_rows(names, rows)
    caption = "Stacks whose memory in use never falls. Alive of few snapshots: larger blocks replace those before."
    headings = (*make_run_heading(measured), *_LEAK_HEADINGS)
    return make_sheet("kept_stacks", "Stacks that only grow", headings, table, caption=caption)


def _name_leak_owner(leak: KeptStack) -> str:
    """Name the process and device of a stack: `rank 3 actor GPU 0`."""
    _, role, rank, _, pid, replica, device = leak.process
    words = (name_rank_or_pid(rank, pid), format_numbered_word("replica", replica), role)
    return join_phrase(*words, format_numbered_word("GPU", device)) or "a process"


def _list_leak_caveats(windows: Frame, leaks: Sequence[KeptStack]) -> Iterator[str]:
    """List the limits of the test."""
    if unordered := int(windows.is_missing("window").sum()):
        yield f"{unordered} snapshots are copies, of unknown processes, or cannot be put in order: not compared"
    if overlaps := int((windows.number("gap_ns") <= 0).sum()):
        yield f"{overlaps} histories overlap the previous one: only later entries count as new"
    if windows["omitted_stack_count"].any() or windows["omitted_block_count"].any():
        yield "some snapshots exceed the limit of stacks or blocks: the smallest are left out"
    if any(leak.windows == 3 for leak in leaks):
        yield "with three snapshots no warm-up can be left out: caches that fill up look the same"
    if leaks:
        yield "a cache or buffer that is still being filled looks like a leak"


ANALYSIS = Analysis(
    id="leaks",
    title="Which code allocates memory and never frees it?",
    reads=("allocations", "blocks", "stacks", "annotations"),
    writes=("snapshot_windows", "survivor_blocks", "survivors"),
    measure=measure,
    fold=fold_snapshots,
    judge=judge,
)
