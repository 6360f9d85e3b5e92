"""A question of your own: how long does an op, or a range of NVTX, take in every step?

tracekit analyze outputs/profile --question own_question.py

Change PATTERN, or start from here: `measure` sees one process of one file, `judge` the rows of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracekit.analyses import Analysis
from tracekit.model.report import Finding, Heading, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.steps.windows import find_steps_and_stages

PATTERN = r"Optimizer\.step"
"""What the name of an op or a range has to contain: a regular expression."""

NAMED_TIMES = Table(
    "named_times",
    "one op or range whose name matches, in one step",
    {
        **KEYS,
        "step": Column("Int64", "Number of the step, where there is one."),
        "name": Column("category", "Its name."),
        "dur_ns": Column("int64", "How long it took on the host, ns."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The rows of `named_times` of one process."""
    ops = trace["host_ops"]
    rows = ops[ops["name"].astype(str).str.contains(PATTERN, regex=True)]
    steps = trace.derived(find_steps_and_stages).step_rows
    return {
        "named_times": {
            "step": steps.number_at(rows["ts_ns"].to_numpy()),
            "name": rows["name"].array,
            "dur_ns": rows["dur_ns"].to_numpy(),
        }
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """The time of each name by rank and step; a finding where one step takes much longer than the median."""
    rows = measured["named_times"]
    if not len(rows):
        return Section(ANALYSIS.id, ANALYSIS.title, "skipped", f"no name contains {PATTERN!r}")
    by = ["rank", "step", "name"]
    sums = rows.groupby(by, observed=True, dropna=False)["dur_ns"].agg(["sum", "count"])
    sums = sums.reset_index()
    cells = tuple(
        (
            None if pd.isna(rank) else int(rank),
            None if pd.isna(step) else int(step),
            str(name),
            int(ns),
            int(count),
        )
        for rank, step, name, ns, count in sums.itertuples(index=False)
    )
    headings = (
        Heading("rank", "rank", "id"),
        Heading("step", "step", "id"),
        Heading("name", "name"),
        Heading("dur_ns", "time", "ns"),
        Heading("count", "calls", "count"),
    )
    longest, median = float(sums["sum"].max()), float(sums["sum"].median())
    limit = thresholds.of("uneven-named-time")["times_median"]
    claim = f"{PATTERN} takes {longest / median:.1f} times its median in one step" if median else ""
    uneven = (Finding("uneven-named-time", "info", claim, "look at that step"),)
    return Section(
        ANALYSIS.id,
        ANALYSIS.title,
        sheets=(Sheet("named_times", f"Time in {PATTERN}", headings, cells),),
        findings=uneven if median and longest > limit * median else (),
    )


ANALYSIS = Analysis(
    id="named-time",
    title="How long does an op take in every step?",
    reads=("host_ops",),
    writes=(NAMED_TIMES,),
    rules=("uneven-named-time",),
    thresholds={"uneven-named-time": {"times_median": 3}},
    measure=measure,
    judge=judge,
)
