"""Agreement of two profilers on the same steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracekit.analyses import Analysis
from tracekit.job.frames import list_stage_ranges, make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Heading, Metric, Section
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.frame import Frame, concat, count_rows, divide, mean_of, sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

MAX_TOOL_DIFFERENCE_RATIO = 0.05
"""Maximum difference of step walls to call two profilers equal; each profiler slows a run differently."""

_COMPARED_KEYS = ["run", "rank", "step"]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG001
    """Measure no table: `judge` reads the tables of other analyses."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:  # noqa: ARG001
    """Compare steps, stages and GPU busy time of two tools on the (rank, step) pairs that both recorded."""
    check = measured.check
    if check is None:
        return None
    tools = [_find_main_tool(measured), _find_main_tool(check)]
    compared = concat(
        [
            _compare_times(list_times(measured), list_times(check))
            for table, list_times in _QUANTITIES.items()
            if measured.has(table) and check.has(table)
        ]
    )
    if not len(compared):
        return ANALYSIS.skipped(
            f"results are from {tools[0]}; {tools[1]} recorded the same ranks, but no step with the same number"
        )
    headings = (
        *make_run_heading(measured),
        Heading("what", "what"),
        Heading("first_ns", tools[0], "ns", "Mean over the ranks and steps that both tools saw."),
        Heading("second_ns", tools[1], "ns", "The same, as the other tool recorded it."),
        *parse_headings("""
            difference_ratio | difference | ratio | Of the first.
            pairs | ranks × steps | count
        """),
    )
    differences = compared.number("difference_ratio")[compared.equals("what", "step")]
    differs = bool((abs(differences) > MAX_TOOL_DIFFERENCE_RATIO).any())
    caveat = f"the tools differ by more than {format_quantity(MAX_TOOL_DIFFERENCE_RATIO, 'ratio')} on the step: each slows a run differently. Compare shares, and wall times of one tool only"
    label = f"step, {tools[1]} against {tools[0]}"
    return ANALYSIS.answered(
        metrics=[Metric("step_difference", ratio, "ratio", "neither", label=label) for ratio in differences.tolist()],
        sheets=lambda: (make_sheet("tools", f"{tools[0]}, checked by {tools[1]}", headings, compared),),
        caveats=(caveat,) if differs else (),
    )


def _find_main_tool(measured: Measurements) -> str:
    """Find the tool that recorded most steps."""
    tools = measured.frame("steps").group_by("tool").agg(steps=count_rows())
    return next((tool for tool in tools.sort("steps", "tool", descending=["steps"]).values("tool") if tool), "?")


def _list_step_times(measured: Measurements) -> Frame:
    """List the times of steps."""
    steps = measured.frame("steps")
    steps = steps.filter(~steps.equals("origin", "stage"))
    return steps.with_columns(what="step", value_ns=steps["dur_ns"])


def _list_stage_times(measured: Measurements) -> Frame:
    """List the times of stages."""
    stages = list_stage_ranges(measured)
    return stages.with_columns(what=stages["canonical"], value_ns=stages["dur_ns"])


def _list_gpu_busy_times(measured: Measurements) -> Frame:
    """List the GPU busy times of steps."""
    gpu_time = measured.frame("gpu_time")
    steps = gpu_time.filter(gpu_time.equals("window", "step"))
    return steps.with_columns(what="GPU busy", value_ns=steps["window_ns"] - steps["idle_ns"])


_QUANTITIES: Mapping[str, Callable[[Measurements], Frame]] = {
    "steps": _list_step_times,
    "gpu_time": _list_gpu_busy_times,
    "stages": _list_stage_times,
}
"""Quantities that both tools record, by measured table."""


def _compare_times(first: Frame, second: Frame) -> Frame:
    """Compare the times of two tools: a row per run and quantity with the means over the pairs that both recorded."""
    keys = [*_COMPARED_KEYS, "what"]
    sums = first.group_by(*keys).agg(first_ns=sum_of("value_ns"))
    both = sums.join(second.group_by(*keys).agg(second_ns=sum_of("value_ns")), keys, optional=["run", "rank", "what"])
    by_quantity = both.group_by("run", "what")
    means = by_quantity.agg(first_ns=mean_of("first_ns"), second_ns=mean_of("second_ns"), pairs=count_rows())
    ratio = divide(means["second_ns"], means["first_ns"])
    return means.with_columns(difference_ratio=Nullable(ratio.values - 1, ratio.missing))


ANALYSIS = Analysis(
    id="cross-check",
    title="Do the tools agree?",
    reads=(),
    rests_on=("gpu_time", "slots"),
    measure=measure,
    judge=judge,
)
