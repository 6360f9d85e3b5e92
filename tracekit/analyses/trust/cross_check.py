"""Agreement of two profilers on the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import list_stage_rows, make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Heading, Metric, Section
from tracekit.model.tables.keys import inner_join, list_row_dicts
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
    rows = [row for name, read in _QUANTITIES.items() for row in _compare_tools(name, read, measured, check)]
    if not rows:
        return ANALYSIS.skipped(f"{tools[0]} answers; {tools[1]} saw the same ranks, but no step under the same number")
    frame = pd.DataFrame(rows)
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
    step = frame[frame["what"] == "step"]
    differs = bool((step["difference_ratio"].abs() > MAX_TOOL_DIFFERENCE_RATIO).any())
    caveat = f"the tools differ by more than {format_quantity(MAX_TOOL_DIFFERENCE_RATIO, 'ratio')} on the step: each slows a run in its own way, so compare shares, and walls of one tool only"
    metrics = tuple(
        Metric(
            "step_difference",
            float(row["difference_ratio"]),
            "ratio",
            "neither",
            label=f"step, {tools[1]} against {tools[0]}",
        )
        for row in list_row_dicts(step)
    )
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: (make_sheet("tools", f"{tools[0]} answers, {tools[1]} checks", headings, frame),),
        caveats=(caveat,) if differs else (),
    )


def _find_main_tool(measured: Measurements) -> str:
    """Find the tool that recorded most steps."""
    tools = measured["steps"]["tool"]
    return str(tools.mode().get(0, "?"))


def _list_step_times(measured: Measurements) -> pd.DataFrame:
    """List the times of steps."""
    rows = measured["steps"]
    rows = rows[rows["origin"] != "stage"]
    return rows.assign(what="step", value_ns=rows["dur_ns"])


def _list_stage_times(measured: Measurements) -> pd.DataFrame:
    """List the times of stages."""
    rows = list_stage_rows(measured)
    return rows.assign(what=rows["canonical"], value_ns=rows["dur_ns"])


def _list_gpu_busy_times(measured: Measurements) -> pd.DataFrame:
    """List the GPU busy times of steps."""
    rows = measured["gpu_time"]
    rows = rows[rows["window"] == "step"]
    return rows.assign(what="GPU busy", value_ns=rows["window_ns"] - rows["idle_ns"])


_QUANTITIES: Mapping[str, Callable[[Measurements], pd.DataFrame]] = {
    "steps": _list_step_times,
    "gpu_time": _list_gpu_busy_times,
    "stages": _list_stage_times,
}
"""Quantities that both tools record, by measured table."""


def _compare_tools(
    table: str, read: Callable[[Measurements], pd.DataFrame], measured: Measurements, check: Measurements
) -> Iterator[dict[str, object]]:
    """Compare one quantity: a row per run with the means over the pairs that both tools recorded."""
    if not (measured.has(table) and check.has(table)):
        return
    keys = [*_COMPARED_KEYS, "what"]
    sides = [
        rows.groupby(keys, dropna=False, sort=False)["value_ns"].sum().reset_index()
        for rows in (read(measured), read(check))
    ]
    of_first = sides[0].rename(columns={"value_ns": "value_ns_first"})
    of_second = sides[1].rename(columns={"value_ns": "value_ns_second"})
    both = inner_join(of_first, of_second, keys, optional=[name for name in keys if name != "step"])
    for (run, what), of_quantity in both.groupby(["run", "what"], sort=False):
        first, second = (float(of_quantity[f"value_ns_{side}"].mean()) for side in ("first", "second"))
        yield {
            "run": run,
            "what": what,
            "first_ns": first,
            "second_ns": second,
            "difference_ratio": second / first - 1 if first > 0 else None,
            "pairs": len(of_quantity),
        }


ANALYSIS = Analysis(
    id="cross-check",
    title="Do the tools agree?",
    reads=(),
    rests_on=("gpu_time", "slots"),
    measure=measure,
    judge=judge,
)
