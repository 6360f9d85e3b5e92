"""The metrics that are measured and compared, each with its title, unit, better direction and reduction over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from tracekit.model.errors import SchemaError
from tracekit.model.records import dataclass
from tracekit.model.report import Better, Unit
from tracekit.model.tables.arrays import Coded
from tracekit.model.text.kernel_labels import shorten_kernel_name

Reduction = Literal["max", "mean", "sum"]


@dataclass(frozen=True, slots=True)
class MetricKind:
    """One metric: title, unit, better direction, and how the ranks of a step reduce to one value.

    `exact` numbers (bytes, counts) do not vary with the machine: they are equal or not, without a confidence interval.
    `pieces` is the reduction over several records of one rank in one step: the maximum of peaks, not their sum.
    """

    title: str
    unit: Unit
    better: Better
    ranks: Reduction
    exact: bool = False
    pieces: Reduction = "sum"


METRICS: Mapping[str, MetricKind] = {
    "unprofiled_step_time": MetricKind("step, un-profiled", "ns", "lower", "max"),
    "step_time": MetricKind("step", "ns", "lower", "max"),
    "stage_time": MetricKind("stage", "ns", "lower", "max"),
    "unprofiled_stage_time": MetricKind("stage, un-profiled", "ns", "lower", "max"),
    "window_time": MetricKind("recording", "ns", "neither", "max"),
    "range_cadence": MetricKind("range", "ns", "lower", "mean", pieces="mean"),
    "launch_cadence": MetricKind("launch", "ns", "lower", "mean", pieces="mean"),
    "gpu_busy": MetricKind("GPU busy", "ns", "lower", "mean"),
    "gpu_idle": MetricKind("GPU idle", "ns", "lower", "mean"),
    "exposed_comm": MetricKind("exposed communication", "ns", "lower", "mean"),
    "exposed_copies": MetricKind("exposed copies", "ns", "lower", "mean"),
    "host_wait": MetricKind("GPU waits for the host", "ns", "lower", "mean"),
    "comm": MetricKind("communication", "ns", "lower", "mean"),
    "generation_wall": MetricKind("generation", "ns", "lower", "max"),
    "decode_pace": MetricKind("decode iteration", "ns", "lower", "mean", pieces="mean"),
    "time_per_token": MetricKind("time per token", "ns", "lower", "max"),
    "time_per_sample": MetricKind("time per sample", "ns", "lower", "max"),
    "time_per_image": MetricKind("time per image", "ns", "lower", "max"),
    "throughput": MetricKind("tokens per second and rank", "", "higher", "max"),
    "samples_per_second": MetricKind("samples per second and rank", "", "higher", "max"),
    "images_per_second": MetricKind("images per second and rank", "", "higher", "max"),
    "tokens": MetricKind("tokens", "count", "neither", "max", exact=True),
    "samples": MetricKind("samples", "count", "neither", "max", exact=True),
    "images": MetricKind("images", "count", "neither", "max", exact=True),
    "comm_count": MetricKind("collectives", "count", "lower", "sum", exact=True),
    "comm_bytes": MetricKind("collective bytes", "bytes", "lower", "sum", exact=True),
    "engine_throughput": MetricKind("generated tokens/s", "", "higher", "mean", pieces="mean"),
    "engine_running": MetricKind("requests running", "", "neither", "mean", pieces="mean"),
    "engine_waiting": MetricKind("requests waiting", "", "lower", "mean", pieces="mean"),
    "engine_kv_ratio": MetricKind("KV cache in use", "ratio", "neither", "mean", pieces="mean"),
    "engine_preemptions": MetricKind("preemptions per minute", "", "lower", "mean", pieces="mean"),
    "ray_span": MetricKind("first to last task of Ray", "ns", "lower", "max"),
    "ray_function_time": MetricKind("any of its tasks running", "ns", "lower", "max"),
    "ray_task_time": MetricKind("task, median", "ns", "lower", "max", pieces="mean"),
    "ray_function_count": MetricKind("tasks", "count", "neither", "sum", exact=True),
    "sm_active": MetricKind("SMs active", "ratio", "higher", "mean", pieces="mean"),
    "tensor_active": MetricKind("tensor cores active", "ratio", "higher", "mean", pieces="mean"),
    "host_ops": MetricKind("host ops", "count", "lower", "sum", exact=True),
    "host_launches": MetricKind("launches", "count", "lower", "sum", exact=True),
    "device_peak_allocated": MetricKind("peak allocated", "bytes", "lower", "max", exact=True, pieces="max"),
    "device_peak_requested": MetricKind("peak requested", "bytes", "lower", "max", exact=True, pieces="max"),
    "device_peak_reserved": MetricKind("peak reserved", "bytes", "lower", "max", exact=True, pieces="max"),
    "device_end_requested": MetricKind(
        "in use at the end, requested", "bytes", "lower", "max", exact=True, pieces="max"
    ),
    "device_end_allocated": MetricKind("allocated at the end", "bytes", "lower", "max", exact=True, pieces="max"),
    "device_end_reserved": MetricKind("reserved at the end", "bytes", "lower", "max", exact=True, pieces="max"),
    "device_end_stranded": MetricKind("stranded at the end", "bytes", "lower", "max", exact=True, pieces="max"),
    "driver_peak_allocated": MetricKind("peak from the driver", "bytes", "lower", "max", exact=True, pieces="max"),
    "host_peak_allocated": MetricKind("host peak allocated", "bytes", "lower", "max", exact=True, pieces="max"),
    "host_peak_reserved": MetricKind("host peak reserved", "bytes", "lower", "max", exact=True, pieces="max"),
    "out_of_memory": MetricKind("times out of memory", "count", "lower", "sum", exact=True),
}
"""All metrics by name; values recorded under other names are not compared."""


def fill_metric_units(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add unit and better direction to rows of the table `metrics`, if they are not given.

    Raises `SchemaError` for a name that is not in `METRICS` and comes without them.
    """
    if "unit" in columns and "better" in columns:
        return columns
    recorded = columns["name"]
    if isinstance(recorded, Coded):
        recorded = np.array([*recorded.texts, None], object)[recorded.codes]
    names = np.asarray(recorded, object).tolist()
    for name in set(names):
        if name not in METRICS:
            raise SchemaError(f"metrics: {name!r} has no unit and direction")
    kinds = [METRICS[name] for name in names]
    units: list[Unit] = [kind.unit for kind in kinds]
    directions: list[Better] = [kind.better for kind in kinds]
    return {"unit": units, "better": directions, **columns}


ENGINE_METRICS = (
    "engine_throughput",
    "engine_running",
    "engine_waiting",
    "engine_kv_ratio",
    "engine_preemptions",
)
"""Metrics of rollout engines by their logs, in the order of tables; their samples are windows of time, not steps."""

RAY_METRICS = RAY_SPAN, RAY_FUNCTION_TIME, RAY_TASK_TIME, RAY_FUNCTION_COUNT = (
    "ray_span",
    "ray_function_time",
    "ray_task_time",
    "ray_function_count",
)
"""Metrics of timelines of Ray: one value per timeline; the stage of the last three is a function."""

OVER_DEVICES = frozenset(("gpu_busy", "gpu_idle", "exposed_comm", "exposed_copies", "host_wait", "comm"))
"""Times of a rank that are summed over its devices, so they may exceed the step."""

STEP_TIME, STAGE_TIME = "step_time", "stage_time"
UNPROFILED, UNPROFILED_STAGE = "unprofiled_step_time", "unprofiled_stage_time"
"""Metrics from logs of runs without a profiler; stages are those that no profile has."""

WINDOW = "window_time"
"""Length of a source without step marks; not a step, and not comparable on its own."""

WITHOUT_WORK, RAN_AHEAD, CUT_OFF = WORK_MARKS = ("without_device_work", "ran_ahead", "cut_off")
"""Marks of steps by their device work; not metrics, as nothing is compared by them."""

RANGE_CADENCE, LAUNCH_CADENCE = "range_cadence", "launch_cadence"
"""Time between starts of a range or kernel that recurs in a source without step marks; the stage is its name."""

OUT_OF_MEMORY = "out_of_memory"
"""Number of OOMs in a run, as far as snapshot histories show; belongs to no step."""

STEP_AND_STAGES = (UNPROFILED, STEP_TIME, STAGE_TIME, UNPROFILED_STAGE)
"""Metrics of the first screen."""

PER_WORK: Mapping[str, tuple[str, str]] = {
    "tokens": ("time_per_token", "throughput"),
    "samples": ("time_per_sample", "samples_per_second"),
    "images": ("time_per_image", "images_per_second"),
}
"""Unit of work of a step → (time per unit, units per second and rank)."""

BY_WORK = frozenset(name for names in PER_WORK.values() for name in names)
"""Metrics per token, sample or image, or per second."""


def grows_with_work(name: str) -> bool:
    """Whether the metric grows with the tokens, samples or images per step: a time that is neither per unit nor a pace.

    >>> [grows_with_work(name) for name in ("step_time", "gpu_busy", "time_per_token", "decode_pace")]
    [True, True, False, False]
    """
    kind = METRICS.get(name)
    return kind is not None and kind.unit == "ns" and kind.pieces == "sum" and name not in BY_WORK


def make_devices_caption(names: Iterable[str]) -> str:
    """Build the caption of a table of metrics that are sums over devices; empty if no device was recorded.

    >>> make_devices_caption(["comm", "gpu_busy", "host_ops"]), make_devices_caption(["comm"])
    ('communication, GPU busy: mean over ranks, summed over the devices of a rank.', '')
    """
    recorded = dict.fromkeys(names)
    titles = [METRICS[name].title for name in recorded if name in OVER_DEVICES]
    caption = f"{', '.join(titles)}: mean over ranks, summed over the devices of a rank."
    return caption if "gpu_busy" in recorded else ""


def get_metric_title(name: str, stage: str | None) -> str:
    """Get the display name of a metric; stage metrics use the stage's name.

    >>> get_metric_title("step_time", None), get_metric_title("stage_time", "gen"), get_metric_title("unprofiled_stage_time", "gen")
    ('step', 'gen', 'gen, un-profiled')
    >>> get_metric_title("launch_cadence", "void flash::flash_fwd_kernel<Traits<128>>(Params)")
    'launch of attention (flash_fwd_kernel)'
    """
    if stage is not None and name == RANGE_CADENCE:
        return f"range {stage}"
    if stage is not None and name == LAUNCH_CADENCE:
        return f"launch of {shorten_kernel_name(stage)}"
    if stage is None or name not in STEP_AND_STAGES:
        return METRICS[name].title
    return f"{stage}, un-profiled" if name == UNPROFILED_STAGE else stage
