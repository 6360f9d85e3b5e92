"""Agreement of two profilers on the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import run_heading, stage_rows
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import joined, row_dicts
from tracekit.model.report import Heading, Metric, Section
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show

SAME = 0.05
"""Maximum difference of step walls to call two profilers equal; each profiler slows a run differently."""

_AT = ["run", "rank", "step"]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG001
    """Measure no table: `judge` reads the tables of other analyses."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:  # noqa: ARG001
    """Compare steps, stages and GPU busy time of two tools on the (rank, step) pairs that both recorded."""
    check = measured.check
    if check is None:
        return None
    tools = [_tool(measured), _tool(check)]
    rows = [
        row for name, read in _QUANTITIES.items() for row in _compared(name, read, measured, check)
    ]
    if not rows:
        reason = (
            f"{tools[0]} answers; {tools[1]} saw the same ranks, but no step under the same number"
        )
        return ANALYSIS.skipped(reason)
    frame = pd.DataFrame(rows)
    headings = (
        *run_heading(measured),
        Heading("what", "what"),
        Heading("first_ns", tools[0], "ns", "Mean over the ranks and steps that both tools saw."),
        Heading("second_ns", tools[1], "ns", "The same, as the other tool recorded it."),
        *as_headings("""
            difference_ratio | difference | ratio | Of the first.
            pairs | ranks × steps | count
        """),
    )
    step = frame[frame["what"] == "step"]
    differs = bool((step["difference_ratio"].abs() > SAME).any())
    caveat = f"the tools differ by more than {show(SAME, 'ratio')} on the step: each slows a run in its own way, so compare shares, and walls of one tool only"
    metrics = tuple(
        Metric(
            "step_difference",
            float(row["difference_ratio"]),
            "ratio",
            "neither",
            label=f"step, {tools[1]} against {tools[0]}",
        )
        for row in row_dicts(step)
    )
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: (sheet("tools", f"{tools[0]} answers, {tools[1]} checks", headings, frame),),
        caveats=(caveat,) if differs else (),
    )


def _tool(measured: Measurements) -> str:
    """Find the tool that recorded most steps."""
    tools = measured["steps"]["tool"]
    return str(tools.mode().get(0, "?"))


def _steps(measured: Measurements) -> pd.DataFrame:
    """List the times of steps."""
    rows = measured["steps"]
    rows = rows[rows["origin"] != "stage"]
    return rows.assign(what="step", value_ns=rows["dur_ns"])


def _stages(measured: Measurements) -> pd.DataFrame:
    """List the times of stages."""
    rows = stage_rows(measured)
    return rows.assign(what=rows["canonical"], value_ns=rows["dur_ns"])


def _busy(measured: Measurements) -> pd.DataFrame:
    """List the GPU busy times of steps."""
    rows = measured["gpu_time"]
    rows = rows[rows["window"] == "step"]
    return rows.assign(what="GPU busy", value_ns=rows["window_ns"] - rows["idle_ns"])


_QUANTITIES: Mapping[str, Callable[[Measurements], pd.DataFrame]] = {
    "steps": _steps,
    "gpu_time": _busy,
    "stages": _stages,
}
"""Quantities that both tools record, by measured table."""


def _compared(
    table: str,
    read: Callable[[Measurements], pd.DataFrame],
    measured: Measurements,
    check: Measurements,
) -> Iterator[dict[str, object]]:
    """Compare one quantity: a row per run with the means over the pairs that both tools recorded."""
    if not (measured.has(table) and check.has(table)):
        return
    keys = [*_AT, "what"]
    sides = [
        rows.groupby(keys, dropna=False, sort=False)["value_ns"].sum().reset_index()
        for rows in (read(measured), read(check))
    ]
    of_first = sides[0].rename(columns={"value_ns": "value_ns_first"})
    of_second = sides[1].rename(columns={"value_ns": "value_ns_second"})
    both = joined(of_first, of_second, keys, optional=[name for name in keys if name != "step"])
    for (run, what), of_quantity in both.groupby(["run", "what"], sort=False):
        first, second = (
            float(of_quantity[f"value_ns_{side}"].mean()) for side in ("first", "second")
        )
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
