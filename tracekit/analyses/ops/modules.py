"""Which modules of the model take the time? By nn.Module rows, annotations or recorded hierarchies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import plain, run_heading
from tracekit.job.tables import sheet
from tracekit.model.keys import looked_up, summed
from tracekit.model.report import Heading, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.launches import Launches, launches
from tracekit.process.modules import HIERARCHY, Modules, modules
from tracekit.process.shapes import calls, during, launch_threads
from tracekit.process.sound import sound_dur_ns

MODULES = Table(
    "modules",
    "one class of modules in one source",
    {
        **KEYS,
        "origin": Column(
            "category",
            "python (nn.Module rows) | range (annotations) | hierarchy (Module Hierarchy).",
            ("python", "range", "hierarchy"),
        ),
        "module": Column("category", "Class of the module, or the name of the range."),
        "instance_count": Column("int64", "Distinct modules of the class."),
        "count": Column("int64", "Calls; ops where only the hierarchy is recorded."),
        "total_ns": Column("Int64", "Wall time in its calls; nested calls counted once."),
        "self_ns": Column("int64", "The same outside modules that it calls."),
        "device_total_ns": Column("Int64", "Σ duration of device ops launched in its calls."),
        "device_ns": Column("Int64", "The same outside modules that it calls."),
        "launch_count": Column("Int64", "Device ops launched outside modules that it calls."),
    },
)


MAX_CLASSES = 2_000
"""Most classes of modules of one source: those with most time; the others are left out and counted."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Time and launched work of every class of modules, once for each way they are recorded."""
    parts = [_measured(trace, found) for found in trace.derived(modules)]
    if not parts:
        return {}
    frame = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    frame = frame[frame["count"] > 0]
    kept = frame.sort_values("self_ns", ascending=False, kind="stable").head(MAX_CLASSES)
    return {"modules": {str(name): kept[name].array for name in kept}}


def _measured(trace: Trace, found: Modules) -> dict[str, Any]:
    """The columns of `modules` for one way of recording."""
    count = len(found.classes)
    width = int(found.instance.max()) + 1
    pairs = np.unique(found.owner * width + found.instance)
    made = calls(trace, found.calls, found.owner, count)
    by_name = found.origin == "hierarchy"
    out: dict[str, Any] = {
        "origin": np.full(count, found.origin, object),
        "module": np.array(found.classes, object),
        "instance_count": np.bincount(pairs // width, minlength=count),
        "count": np.bincount(found.owner, minlength=count),
        # What a hierarchy names are ops: the time of a module's call is not recorded.
        "total_ns": pd.arrays.IntegerArray(made.total_ns, np.full(count, by_name)),
        "self_ns": summed(found.owner, found.self_ns, count),
    }
    mine = found.launcher
    if mine is None or not trace.has("device_ops"):
        unknown = pd.array([pd.NA] * count, dtype="Int64")
        return {**out, "device_total_ns": unknown, "device_ns": unknown, "launch_count": unknown}
    links: Launches = trace.derived(launches)
    dur = trace.derived(sound_dur_ns)
    total = during(made, launch_threads(trace), links.ts_ns, dur)[0]
    return {
        **out,
        "device_total_ns": pd.arrays.IntegerArray(total, np.full(count, by_name)),
        "device_ns": pd.array(summed(mine, dur, count), dtype="Int64"),
        "launch_count": pd.array(np.bincount(mine[mine >= 0], minlength=count), dtype="Int64"),
    }


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Modules of all processes pooled by class."""
    rows = plain(measured["modules"])
    if not len(rows):
        reason = (
            "no module is recorded or annotated: profile with with_stack=True (verl: put stack among the"
            " profiler's contents), which records every call of an nn.Module"
        )
        return Section(ANALYSIS.id, ANALYSIS.title, "skipped", reason)
    grouped = rows.groupby(["run", "origin", "module"], dropna=False, sort=False)
    pooled = grouped[["count", "self_ns"]].sum()
    pooled["instance_count"] = grouped["instance_count"].max()
    for name in ("total_ns", "device_total_ns", "device_ns", "launch_count"):
        pooled[name] = grouped[name].sum(min_count=1)
    pooled = pooled.reset_index()
    by = ["run", "origin"]
    pooled = looked_up(pooled, _gpu_ns(measured, rows), by, optional=by)
    whole = pooled["gpu_ns"].where(pooled["gpu_ns"] > 0)
    pooled["device_ratio"] = (pooled["device_ns"] / whole).astype("Float64")
    sheets = []
    for origin, mine in pooled.groupby("origin", sort=True):
        on_gpu = bool(mine["device_ns"].notna().any())
        by = ["device_ns", "self_ns"] if on_gpu else ["self_ns"]
        shown = mine.sort_values([*by, "module"], ascending=[*[False] * len(by), True], kind="stable")  # fmt: skip
        sheets.append(_sheet(measured, str(origin), shown))
    return Section(ANALYSIS.id, ANALYSIS.title, sheets=tuple(sheets))


def _gpu_ns(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """By run and origin `gpu_ns`: all GPU time of the sources that tell of modules so; NA where it is not known."""
    work = plain(measured["launches"]).groupby(["run", "source"], dropna=False)["dur_ns"].sum()
    told = rows.loc[rows["device_ns"].notna(), ["run", "origin", "source"]].drop_duplicates()
    gpu_ns = work.rename("gpu_ns").reset_index()
    told = looked_up(told, gpu_ns, ["run", "source"], optional=["run"])
    grouped = told.astype({"gpu_ns": "Int64"}).groupby(["run", "origin"], dropna=False)
    return grouped["gpu_ns"].sum(min_count=1).reset_index()


TITLES = {
    "python": "Modules by the calls that were recorded",
    "range": "Wrappers of modules that were annotated",
    "hierarchy": "Modules that operators name",
}


def _sheet(measured: Measurements, origin: str, rows: pd.DataFrame) -> Any:
    headings = (
        *run_heading(measured), Heading("module", "module"),
        Heading("instance_count", "instances", "count", "Distinct ones of the class in one source."),
        Heading("count", "ops" if origin == "hierarchy" else "calls", "count"),
        Heading("device_ns", "GPU self", "ns", "Σ duration of device ops launched in it, outside modules that it calls."),
        Heading("device_ratio", "share", "ratio", "GPU self of all GPU time of the sources that record modules."),
        Heading("device_total_ns", "GPU total", "ns", "The same with all modules that it calls."),
        Heading("launch_count", "launches", "count", "Launched outside modules that it calls."),
        Heading("self_ns", "host self", "ns", "Host time outside modules that it calls."),
        Heading("total_ns", "host total", "ns", "Nested calls counted once."),
    )  # fmt: skip
    caption = "Over all processes and steps."
    shares = rows.groupby("run", dropna=False)["device_ratio"].sum(min_count=1).dropna()
    if len(shares) == 1:
        caption += f" {show(float(shares.iloc[0]), 'ratio')} of the GPU time was launched in calls of modules."  # fmt: skip
    caption += " A backward pass runs outside the calls of modules and is not in it."
    return sheet(f"modules_{origin}", TITLES[origin], headings, rows, caption=caption)


ANALYSIS = Analysis(
    id="modules",
    title="Which modules of the model take the time?",
    reads=("host_ops", "device_ops"),
    args=(HIERARCHY,),
    writes=(MODULES,),
    rests_on=("launches",),
    measure=measure,
    judge=judge,
)
