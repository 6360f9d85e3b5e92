"""Which modules of the model take the time? By nn.Module rows, annotations or recorded hierarchies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, concatenate_parts, repeat_number, select_all_rows
from tracekit.model.tables.frame import Frame, divide, first_of, max_of, sum_of
from tracekit.model.tables.keys import find_distinct, sum_by_group
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.ops.modules import HIERARCHY, RecordedModules, find_recorded_modules
from tracekit.process.ops.shapes import find_launch_threads, merge_calls, sum_during_calls

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
"""Most classes of modules of one source; those with least time are left out."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up time and launched work of every class of modules, once per way to record them."""
    parts = [_sum_modules(trace, recorded) for recorded in trace.derived(find_recorded_modules)]
    if not parts:
        return {}
    columns: dict[str, Any] = dict(concatenate_parts(parts))
    is_called = np.flatnonzero(columns["count"] > 0)
    largest = np.argsort(-columns["self_ns"][is_called], kind="stable")[:MAX_CLASSES]
    return {"modules": select_all_rows(columns, is_called[largest])}


def _sum_modules(trace: Trace, recorded: RecordedModules) -> dict[str, Any]:
    """Make the columns of `modules` for one way to record them."""
    count = len(recorded.classes)
    width = int(recorded.instance.max()) + 1
    pairs = find_distinct(recorded.owner * width + recorded.instance)
    call_sums = merge_calls(trace, recorded.calls, recorded.owner, count)
    is_hierarchy = recorded.origin == "hierarchy"
    out: dict[str, Any] = {
        "origin": np.full(count, recorded.origin, object),
        "module": np.array(recorded.classes, object),
        "instance_count": np.bincount(pairs // width, minlength=count),
        "count": np.bincount(recorded.owner, minlength=count),
        # A hierarchy names ops: the time of a module's call is not recorded.
        "total_ns": _mark_known(call_sums.total_ns, is_known=not is_hierarchy),
        "self_ns": sum_by_group(recorded.owner, recorded.self_ns, count),
    }
    launcher = recorded.launcher
    if launcher is None or not trace.has("device_ops"):
        unknown = repeat_number(None, count)
        return {**out, "device_total_ns": unknown, "device_ns": unknown, "launch_count": unknown}
    links: Launches = trace.derived(find_launches)
    dur = trace.numbers("device_ops", "dur_ns")
    total = sum_during_calls(call_sums, find_launch_threads(trace), links.ts_ns, dur)[0]
    return {
        **out,
        "device_total_ns": _mark_known(total, is_known=not is_hierarchy),
        "device_ns": _mark_known(sum_by_group(launcher, dur, count)),
        "launch_count": _mark_known(np.bincount(launcher[launcher >= 0], minlength=count)),
    }


def _mark_known(values: npt.NDArray[np.int64], *, is_known: bool = True) -> Nullable:
    """Make a column of numbers that is known or missing in all rows."""
    return Nullable(values * is_known, np.full(len(values), not is_known))


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Pool modules of all processes by class."""
    classes = measured.frame("modules")
    if not len(classes):
        reason = (
            "no module is recorded or annotated: profile with with_stack=True (verl: put stack among the"
            " profiler's contents), which records every call of an nn.Module"
        )
        return ANALYSIS.skipped(reason)
    pooled = _pool_modules(measured, classes)
    return ANALYSIS.answered(sheets=lambda: _make_module_sheets(measured, pooled))


SUMMED = ("count", "self_ns", "total_ns", "device_total_ns", "device_ns", "launch_count")


def _pool_modules(measured: Measurements, classes: Frame) -> Frame:
    """Pool classes of modules over processes: one row per run, origin and class, with its share of GPU time."""
    sums = {name: sum_of(name) for name in SUMMED}
    by_class = classes.group_by("run", "origin", "module")
    pooled = by_class.agg(**sums, instance_count=max_of("instance_count"))
    gpu_ns = _sum_gpu_ns(measured, classes)
    pooled = pooled.join(gpu_ns, ["run", "origin"], how="left", optional=["run", "origin"])
    return pooled.with_columns(device_ratio=divide(pooled["device_ns"], pooled["gpu_ns"]))


def _sum_gpu_ns(measured: Measurements, classes: Frame) -> Frame:
    """Add up as `gpu_ns` all GPU time of the sources of modules, by run and origin."""
    by_source = measured.frame("launches").group_by("run", "source").agg(gpu_ns=sum_of("dur_ns"))
    on_gpu = classes.filter(~classes.is_missing("device_ns"))
    sources = on_gpu.group_by("run", "origin", "source").agg()
    sources = sources.join(by_source, ["run", "source"], how="left", optional=["run"])
    return sources.group_by("run", "origin").agg(gpu_ns=sum_of("gpu_ns"))


def _make_module_sheets(measured: Measurements, pooled: Frame) -> Iterator[Sheet]:
    """List modules, one sheet per way to record them."""
    for origin in sorted(TITLES):
        classes = pooled.filter(pooled.equals("origin", origin))
        if not len(classes):
            continue
        on_gpu = not classes.is_missing("device_ns").all()
        costs = ["device_ns", "self_ns"] if on_gpu else ["self_ns"]
        classes = classes.sort(*costs, "module", descending=costs)
        yield _make_module_sheet(measured, origin, classes)


TITLES = {
    "python": "Modules by the calls that were recorded",
    "range": "Wrappers of modules that were annotated",
    "hierarchy": "Modules that operators name",
}


def _make_module_sheet(measured: Measurements, origin: str, modules: Frame) -> Sheet:
    """List the modules of one origin, with the share of GPU time that their calls launched."""
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            module | module
            instance_count | instances | count | Distinct ones of the class in one source.
        """),
        Heading("count", "ops" if origin == "hierarchy" else "calls", "count"),
        *parse_headings("""
            device_ns | GPU self | ns | Σ duration of device ops launched in it, outside modules that it calls.
            device_ratio | share | ratio | GPU self of all GPU time of the sources that record modules.
            device_total_ns | GPU total | ns | The same with all modules that it calls.
            launch_count | launches | count | Launched outside modules that it calls.
            self_ns | host self | ns | Host time outside modules that it calls.
            total_ns | host total | ns | Nested calls counted once.
        """),
    )
    caption = "Over all processes and steps."
    by_run = modules.group_by("run").agg(device_ns=sum_of("device_ns"), gpu_ns=first_of("gpu_ns"))
    share = divide(by_run["device_ns"], by_run["gpu_ns"])
    shares = share.values[~share.missing].tolist()
    if len(shares) == 1:
        caption += f" {format_quantity(shares[0], 'ratio')} of the GPU time was launched in calls of modules."
    caption += " Backward passes run outside these calls and are not included."
    return make_sheet(f"modules_{origin}", TITLES[origin], headings, modules, caption=caption)


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
