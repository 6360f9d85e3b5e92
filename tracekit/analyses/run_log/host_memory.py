"""Host memory by the log: growth over the steps, until Ray kills workers of a node that is almost full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.run_log.evidence import judge_logs, list_coverage_evidence, place_in_log
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.job.run_log.values import HOST_USED, Floats
from tracekit.model.report import Finding, Metric, Section, Verdict
from tracekit.model.stats.trend import GrowthLimits, label_growth, measure_growth
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

GIB = 2**30
KILL_RATIO = 0.95
"""Share of the node's memory at which Ray kills workers by default."""

_TOTAL = re.compile(r"ray/node\.\d{1,5}\.mem_total_gb")


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the values of the log."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge the growth of host memory; None without a log."""
    if not list_logged_steps(measured):
        return None

    def find(steps: LoggedSteps) -> Iterator[Finding | Verdict]:
        yield from _find_host_growth(steps, thresholds, phrase_run(measured, steps.log.run))

    return ANALYSIS.answered(judge_logs(measured, ANALYSIS.rules, find))


def _find_host_growth(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find the host memory that grows most over the steps of the last part of the log."""
    limit = thresholds.of("host-memory-growth")
    last_part = steps.log.part == steps.log.part[-1]
    found: list[tuple[float, str, Floats, str]] = []
    for name, values in steps.log.series.items():
        known = last_part & np.isfinite(values) & (values > 0)
        if HOST_USED.fullmatch(name) is None or known.sum() < limit["min_steps"]:
            continue
        level = float(np.median(values[known]))
        limits = _make_host_limits(limit, level)
        growth = measure_growth(steps.log.step[known].astype(np.float64), values[known], limits)
        label = label_growth(growth, limits)
        if label in ("likely", "strong") and growth.slope is not None:
            found.append((growth.slope.per_x, name, values[known], label))
    if not found:
        return
    slope, name, levels, evidence = max(found, key=lambda item: item[:2])
    steps_left = _count_steps_left(steps, slope, float(levels[-1]))
    ahead = "" if steps_left is None else f"; about {steps_left:,} steps are left until Ray kills workers"
    yield Finding(
        "host-memory-growth",
        "high" if steps_left is not None and steps_left < limit["near_steps"] else "medium",
        f"host memory grows by {format_quantity(slope * GIB, 'bytes')} per step, from {format_quantity(float(levels[0]) * GIB, 'bytes')} "
        f"to {format_quantity(float(levels[-1]) * GIB, 'bytes')} in {len(levels)} steps{ahead}{of_run}",
        "find the process that grows (ray memory, ps by RSS), then what it keeps: data loader workers, pinned buffers, caches, "
        "fragmented arenas (MALLOC_ARENA_MAX=2, malloc_trim); until then restart from a checkpoint in time",
        (
            Metric(
                "growth_bytes", round(slope * GIB), "bytes", "lower", label=f"per step, of {name}; evidence: {evidence}"
            ),
            Metric("steps_left", steps_left, "count", "higher", label="until 95 % of the node's memory"),
            Metric("steps_per_100_gib", 100 / slope, "", "higher", label="steps for each further 100 GiB"),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps),
        None,
        None,
        ("the memory of the whole host, everybody's processes included",) if "cpu_memory_used" in name else (),
    )


def _make_host_limits(limit: Mapping[str, float], level: float) -> GrowthLimits:
    """Make the limits of growth, in GiB: the slope is a share of the level per step, but at least an amount."""
    slope = max(limit["slope_gib"], limit["slope_ratio"] * level)
    return GrowthLimits(
        int(limit["min_steps"]),
        slope,
        0.0,
        limit["flat_gib"],
        limit["p_likely"],
        limit["p_strong"],
        limit["late_ratio"],
    )


def _count_steps_left(steps: LoggedSteps, slope: float, last: float) -> int | None:
    """Count the steps until the smallest node is 95 % full; None if no node's size is logged."""
    totals = [float(np.nanmax(values)) for name, values in steps.log.series.items() if _TOTAL.fullmatch(name)]
    if not totals:
        return None
    return max(int((KILL_RATIO * min(totals) - last) / slope), 0)


ANALYSIS = Analysis(
    id="log-host-memory",
    title="Does host memory grow, by the run's log?",
    reads=("log_values",),
    rests_on=("run_log", "run_settings"),
    rules=("host-memory-growth",),
    every_step=True,
    thresholds={
        "host-memory-growth": {
            # 15 steps after 3 that warm up. A start that saturates looks like a leak in half of the runs of 20 steps by
            # thirds alone; the test beside a level shift and the slope of the later half reject it.
            "min_steps": 18,
            # GiB per step,
            "slope_gib": 0.05,
            # and share of the level per step.
            "slope_ratio": 0.0002,
            # A range of so many GiB is flat.
            "flat_gib": 1.0,
            # Probability by chance below which growth is likely,
            "p_likely": 0.01,
            # or strong, if one jump does not explain it.
            "p_strong": 0.001,
            # Least slope of the later half, as a share of the whole slope.
            "late_ratio": 0.5,
            # Steps left below which the finding is high.
            "near_steps": 200,
        },
    },
    measure=measure,
    judge=judge,
)
