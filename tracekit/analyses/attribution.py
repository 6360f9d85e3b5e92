"""Who launched the GPU's work? Device op to call, op and stage; what cannot be linked is counted (M7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.derived.launches import LINKS, Launches, launches
from tracekit.derived.soundness import sound_dur_ns
from tracekit.derived.steps import Windows, windows
from tracekit.pooling import label_headings, plain, run_heading
from tracekit.report import Heading, Metric, Section
from tracekit.sheets import sheet
from tracekit.stages import canonical
from tracekit.thresholds import Thresholds
from tracekit.trace import Measurements, Trace

ID, TITLE = "attribution", "Who launched the GPU's work?"
NEEDS = ("device_ops", "host_ops")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Device ops of this source by link, launching call and outermost stage at the launch."""
    device = trace.get("device_ops")
    if not len(device):
        return {}
    links: Launches = trace.derived(launches)
    host = trace.get("host_ops")
    names = host["name"].cat.categories.to_numpy(object)
    call = np.where(links.call >= 0, links.call, links.op)
    codes = host["name"].cat.codes.to_numpy()
    frame = pd.DataFrame(
        {
            "link": np.array(LINKS, object)[links.link],
            "call": _named(names, codes, call),
            "stage": _stage_at(trace, links),
            "count": 1,
            "dur_ns": trace.derived(sound_dur_ns),
        }
    )
    grouped = frame.groupby(["link", "call", "stage"], dropna=False, sort=True)[
        ["count", "dur_ns"]
    ].sum()
    table = grouped.reset_index()
    return {"launches": {str(name): table[name].array for name in table}}


def _named(names: Any, codes: Any, rows: Any) -> Any:
    """The recorded name of each row; None for row -1."""
    if not len(codes):
        return np.full(len(rows), None, object)
    return np.where(rows >= 0, np.array([*names, None], object)[codes[rows]], None)


def _stage_at(trace: Trace, links: Launches) -> Any:
    """The outermost stage during which each launch happened, on whatever thread; None outside."""
    found: Windows = trace.derived(windows)
    stages = found.stages[found.stages["parent"].isna()]
    start = stages["ts_ns"].to_numpy()
    out = np.full(len(links.ts_ns), None, object)
    if not len(start):
        return out
    at = np.searchsorted(start, links.ts_ns, side="right") - 1
    end = start + stages["dur_ns"].to_numpy()
    inside = links.linked & (at >= 0) & (links.ts_ns < end[at])
    out[inside] = stages["stage"].to_numpy(object)[at[inside]]
    return out


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """How much of the GPU's work is linked, and which stages and calls launched it."""
    rows = plain(measured["launches"])
    if not len(rows):
        return Section(ID, TITLE, "skipped", "no GPU activity was recorded")
    whole, count = int(rows["dur_ns"].sum()), int(rows["count"].sum())
    unlinked = rows[rows["link"] == "unlinked"]
    metrics = (
        Metric(
            "linked_ratio",
            1 - int(unlinked["count"].sum()) / count,
            "ratio",
            "higher",
            label="device ops linked",
        ),
        Metric("unlinked_count", int(unlinked["count"].sum()), "count", "lower", label="unlinked"),
        Metric(
            "unlinked_ns", int(unlinked["dur_ns"].sum()), "ns", "lower", label="unlinked GPU time"
        ),
    )
    rows["stage"] = [
        "(unlinked)"
        if link == "unlinked"
        else "(outside any stage)"
        if pd.isna(stage)
        else canonical(str(stage), None if pd.isna(role) else str(role))
        for link, stage, role in zip(rows["link"], rows["stage"], rows["role"], strict=True)
    ]
    rows["call"] = rows["call"].where(rows["call"].notna(), "(unknown)")
    run = run_heading(measured)
    shared = (
        Heading("dur_ns", "GPU Σ", "ns", "Σ duration of device ops, over all processes and steps."),
        Heading("share_ratio", "share", "ratio", "Of the Σ duration of all device ops."),
        Heading("count", "device ops", "count"),
    )
    by_stage = _pooled(rows, ["run", "role", "stage"], whole)
    by_call = _pooled(rows, ["run", "link", "call"], whole)
    sheets = (
        sheet(
            "launched_by_stage",
            "GPU work by the stage that launched it",
            (*label_headings(measured), Heading("stage", "stage"), *shared),
            by_stage,
        ),
        sheet(
            "launched_by_call",
            "GPU work by launching call",
            (*run, Heading("call", "call"), Heading("link", "linked by"), *shared),
            by_call,
        ),
    )
    return Section(ID, TITLE, metrics=metrics, sheets=sheets)


def _pooled(rows: pd.DataFrame, by: list[str], whole: int) -> pd.DataFrame:
    pooled = rows.groupby(by, dropna=False, sort=False)[["count", "dur_ns"]].sum().reset_index()
    pooled["share_ratio"] = pooled["dur_ns"] / whole if whole else None
    return pooled.sort_values(["dur_ns", by[-1]], ascending=[False, True], kind="stable")
