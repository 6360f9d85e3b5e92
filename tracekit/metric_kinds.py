"""What is compared: every metric that measuring records, with its direction and how ranks become one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tracekit.report import Better, Unit

Reduction = Literal["max", "mean", "sum"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One metric: how it is called, which way is better, and how the ranks of a step become one value.

    `exact` numbers (bytes, counts) do not vary with the machine: they are equal or not, without interval.
    `pieces` says how several records of one rank in one step become one: the highest of peaks, no sum of them.
    """

    title: str
    unit: Unit
    better: Better
    ranks: Reduction
    exact: bool = False
    pieces: Reduction = "sum"


METRICS: Mapping[str, Kind] = {
    "unprofiled_step_time": Kind("step, un-profiled", "ns", "lower", "max"),
    "step_time": Kind("step", "ns", "lower", "max"),
    "stage_time": Kind("stage", "ns", "lower", "max"),
    "unprofiled_stage_time": Kind("stage, un-profiled", "ns", "lower", "max"),
    "gpu_busy": Kind("GPU busy", "ns", "lower", "mean"),
    "gpu_idle": Kind("GPU idle", "ns", "lower", "mean"),
    "exposed_comm": Kind("exposed communication", "ns", "lower", "mean"),
    "exposed_copies": Kind("exposed copies", "ns", "lower", "mean"),
    "host_wait": Kind("GPU waits for the host", "ns", "lower", "mean"),
    "comm": Kind("communication", "ns", "lower", "mean"),
    "generation_wall": Kind("generation", "ns", "lower", "max"),
    "decode_pace": Kind("decode iteration", "ns", "lower", "mean", pieces="mean"),
    "time_per_token": Kind("step per token", "ns", "lower", "max"),
    "throughput": Kind("tokens per second and rank", "", "higher", "max"),
    "tokens": Kind("tokens", "count", "neither", "max", exact=True),
    "comm_count": Kind("collectives", "count", "lower", "sum", exact=True),
    "comm_bytes": Kind("collective bytes", "bytes", "lower", "sum", exact=True),
    "host_ops": Kind("host ops", "count", "lower", "sum", exact=True),
    "host_launches": Kind("launches", "count", "lower", "sum", exact=True),
    "device_peak_allocated": Kind(
        "peak allocated", "bytes", "lower", "max", exact=True, pieces="max"
    ),
    "device_peak_reserved": Kind(
        "peak reserved", "bytes", "lower", "max", exact=True, pieces="max"
    ),
    "host_peak_allocated": Kind(
        "host peak allocated", "bytes", "lower", "max", exact=True, pieces="max"
    ),
    "host_peak_reserved": Kind(
        "host peak reserved", "bytes", "lower", "max", exact=True, pieces="max"
    ),
}
"""By name; what is recorded under another name is not compared."""

STEP_TIME, STAGE_TIME = "step_time", "stage_time"
TOKENS, TIME_PER_TOKEN, THROUGHPUT = "tokens", "time_per_token", "throughput"
UNPROFILED, UNPROFILED_STAGE = "unprofiled_step_time", "unprofiled_stage_time"
"""Of logs of runs without a profiler; stages are those that no profile has."""

STEP_AND_STAGES = (UNPROFILED, STEP_TIME, STAGE_TIME, UNPROFILED_STAGE)
"""What a first screen shows."""


def titled(name: str, stage: str | None) -> str:
    """How a metric is called; a stage by its own name.

    >>> titled("step_time", None), titled("stage_time", "gen"), titled("unprofiled_stage_time", "gen")
    ('step', 'gen', 'gen, un-profiled')
    """
    if stage is None or name not in STEP_AND_STAGES:
        return METRICS[name].title
    return f"{stage}, un-profiled" if name == UNPROFILED_STAGE else stage
