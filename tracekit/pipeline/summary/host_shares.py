"""Parts of the step of a run without a device: ops, waits for collectives, and time without an op."""

from __future__ import annotations

from tracekit.job.idle_time.cpu_time import sum_cpu_time_by_stage
from tracekit.model.report import Metric
from tracekit.model.trace import Measurements

_HOST_SHARES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("host_op_ratio", "ops", ("op",)),
    ("host_collective_ratio", "waiting for collectives", ("wait",)),
    ("host_loader_ratio", "data loader", ("loader",)),
    ("host_gc_ratio", "garbage collection", ("gc",)),
    ("host_no_op_ratio", "no op (Python, waits)", ("python", "between", "silent")),
)
"""Parts of the step of a run without a device: metric, label, and activities (`CPU_ACTIVITIES`)."""

LEAST_HOST_SHARE = 0.01
"""Smaller parts of the step are left out of the headline."""


def measure_host_shares(measured: Measurements) -> list[Metric]:
    """Measure how the hosts of a run without a device spend the steps.

    Empty where any process has a device, and where nothing but ranges is recorded.
    """
    if measured.row_count("gpu_time") or not measured.row_count("cpu_time") or measured.facts.stages:
        return []
    rows = sum_cpu_time_by_stage(measured)
    total = float(rows["time_ns"].sum())
    times = {name: float(rows["time_ns"][rows.is_in("activity", parts)].sum()) for name, _, parts in _HOST_SHARES}
    has_work = any(times[name] for name in ("host_op_ratio", "host_collective_ratio"))
    return [
        Metric(name, times[name] / total, "ratio", "neither", label=label)
        for name, label, _ in _HOST_SHARES
        if has_work and times[name] >= LEAST_HOST_SHARE * total
    ]
