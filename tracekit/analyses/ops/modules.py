"""Which modules of the model take the time? By nn.Module rows, annotations or recorded hierarchies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import run_heading
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import distinct, looked_up, summed
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, all_at_rows, repeated_number, stacked
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.ops.modules import HIERARCHY, Modules, modules
from tracekit.process.ops.shapes import calls, during, launch_threads

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
    parts = [_measured(trace, recorded) for recorded in trace.derived(modules)]
    if not parts:
        return {}
    columns: dict[str, Any] = dict(stacked(parts))
    is_called = np.flatnonzero(columns["count"] > 0)
    largest = np.argsort(-columns["self_ns"][is_called], kind="stable")[:MAX_CLASSES]
    return {"modules": all_at_rows(columns, is_called[largest])}


def _measured(trace: Trace, recorded: Modules) -> dict[str, Any]:
    """The columns of `modules` for one way of recording."""
    count = len(recorded.classes)
    width = int(recorded.instance.max()) + 1
    pairs = distinct(recorded.owner * width + recorded.instance)
    call_sums = calls(trace, recorded.calls, recorded.owner, count)
    by_name = recorded.origin == "hierarchy"
    out: dict[str, Any] = {
        "origin": np.full(count, recorded.origin, object),
        "module": np.array(recorded.classes, object),
        "instance_count": np.bincount(pairs // width, minlength=count),
        "count": np.bincount(recorded.owner, minlength=count),
        # What a hierarchy names are ops: the time of a module's call is not recorded.
        "total_ns": _known(call_sums.total_ns, is_known=not by_name),
        "self_ns": summed(recorded.owner, recorded.self_ns, count),
    }
    launcher = recorded.launcher
    if launcher is None or not trace.has("device_ops"):
        unknown = repeated_number(None, count)
        return {**out, "device_total_ns": unknown, "device_ns": unknown, "launch_count": unknown}
    links: Launches = trace.derived(launches)
    dur = trace.numbers("device_ops", "dur_ns")
    total = during(call_sums, launch_threads(trace), links.ts_ns, dur)[0]
    return {
        **out,
        "device_total_ns": _known(total, is_known=not by_name),
        "device_ns": _known(summed(launcher, dur, count)),
        "launch_count": _known(np.bincount(launcher[launcher >= 0], minlength=count)),
    }


def _known(values: npt.NDArray[np.int64], *, is_known: bool = True) -> Nullable:
    """Numbers that no row lacks, or that all rows do."""
    return Nullable(values * is_known, np.full(len(values), not is_known))


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Modules of all processes pooled by class."""
    if not measured.row_count("modules"):
        reason = (
            "no module is recorded or annotated: profile with with_stack=True (verl: put stack among the"
            " profiler's contents), which records every call of an nn.Module"
        )
        return ANALYSIS.skipped(reason)
    rows = measured["modules"]
    grouped = rows.groupby(["run", "origin", "module"], dropna=False, sort=False)
    pooled = grouped[["count", "self_ns"]].sum()
    pooled["instance_count"] = grouped["instance_count"].max()
    for name in ("total_ns", "device_total_ns", "device_ns", "launch_count"):
        pooled[name] = grouped[name].sum(min_count=1)
    pooled = pooled.reset_index()
    by = ["run", "origin"]
    pooled = looked_up(pooled, _gpu_ns(measured, rows), by, optional=by)
    gpu_ns = pooled["gpu_ns"].where(pooled["gpu_ns"] > 0)
    pooled["device_ratio"] = (pooled["device_ns"] / gpu_ns).astype("Float64")
    return ANALYSIS.answered(sheets=lambda: _sheets(measured, pooled))


def _sheets(measured: Measurements, pooled: pd.DataFrame) -> Iterator[Sheet]:
    """A table of each way in which modules are told of."""
    for origin, of_origin in pooled.groupby("origin", sort=True):
        on_gpu = bool(of_origin["device_ns"].notna().any())
        by = ["device_ns", "self_ns"] if on_gpu else ["self_ns"]
        ordered = of_origin.sort_values(
            [*by, "module"], ascending=[*[False] * len(by), True], kind="stable"
        )
        yield _sheet(measured, str(origin), ordered)


def _gpu_ns(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """By run and origin `gpu_ns`: all GPU time of the sources that tell of modules so; NA where it is not known."""
    work = measured["launches"].groupby(["run", "source"], dropna=False)["dur_ns"].sum()
    sources = rows.loc[rows["device_ns"].notna(), ["run", "origin", "source"]].drop_duplicates()
    gpu_ns = work.rename("gpu_ns").reset_index()
    sources = looked_up(sources, gpu_ns, ["run", "source"], optional=["run"])
    grouped = sources.astype({"gpu_ns": "Int64"}).groupby(["run", "origin"], dropna=False)
    return grouped["gpu_ns"].sum(min_count=1).reset_index()


TITLES = {
    "python": "Modules by the calls that were recorded",
    "range": "Wrappers of modules that were annotated",
    "hierarchy": "Modules that operators name",
}


def _sheet(measured: Measurements, origin: str, rows: pd.DataFrame) -> Any:
    headings = (
        *run_heading(measured),
        *as_headings("""
            module | module
            instance_count | instances | count | Distinct ones of the class in one source.
        """),
        Heading("count", "ops" if origin == "hierarchy" else "calls", "count"),
        *as_headings("""
            device_ns | GPU self | ns | Σ duration of device ops launched in it, outside modules that it calls.
            device_ratio | share | ratio | GPU self of all GPU time of the sources that record modules.
            device_total_ns | GPU total | ns | The same with all modules that it calls.
            launch_count | launches | count | Launched outside modules that it calls.
            self_ns | host self | ns | Host time outside modules that it calls.
            total_ns | host total | ns | Nested calls counted once.
        """),
    )
    caption = "Over all processes and steps."
    shares = rows.groupby("run", dropna=False)["device_ratio"].sum(min_count=1).dropna()
    if len(shares) == 1:
        caption += f" {show(float(shares.iloc[0]), 'ratio')} of the GPU time was launched in calls of modules."
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
