"""What every peer is asked, asked of tracekit: where GPU time went, and for which kernels.

A module of its own because tracekit's workers import what they run by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

import tracekit
from tracekit.analyses.ops.kernels import summary
from tracekit.analyses.time.gpu_time import breakdown
from tracekit.model.trace import Source


def answer(path: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The device ops of a trace, the time breakdown of its GPUs, and the summary of its kernels."""
    trace = tracekit.load(path)
    columns = trace.tables.as_given()["device_ops"]
    return trace["device_ops"], breakdown(columns).frame(), summary(columns).frame()


def check_values(device_ops: pd.DataFrame, gpu_time: pd.DataFrame) -> dict[str, int]:
    """Figures that every peer must find as well."""
    of_kernels = device_ops["kind"].isin(["kernel", "collective"])
    return {
        "kernels": int(of_kernels.sum()),
        "kernel_ns": int(device_ops.loc[of_kernels, "dur_ns"].sum()),
        "busy_ns": int(gpu_time["busy_ns"].sum()),
    }


def answer_source(source: Source, advance: Callable[[int], None]) -> dict[str, int]:
    """The check values of one source: what a worker of the engine does."""
    device_ops, gpu_time, _ = answer(source.path)
    advance(source.size_bytes)
    return check_values(device_ops, gpu_time)
