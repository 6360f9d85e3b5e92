"""GPU time by device and stage: busy, idle, compute, communication, copies.

Definitions M2 to M5: compute = kernels; communication = collectives; exposed = while nothing of a higher class runs
(compute, then communication, then copies, then fills). Parts and idle add up to the window, in integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.charts import draw_device_bars, draw_gpu_utilisation
from tracekit.job.frames import make_label_headings, make_run_heading, phrase_run
from tracekit.job.gpu_shares import sum_gpu_time
from tracekit.job.idle_time.call_tree import IdleCulprit, find_culprit_of_window, sum_window_idle_by_holder
from tracekit.job.idle_time.causes import sum_judged_idle_by_cause
from tracekit.job.idle_time.host_collectives import phrase_awaited_rank
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_window_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.periodic import list_chore_keys
from tracekit.job.stages.windows import (
    StageWindow,
    list_judged_windows,
    list_undamaged_rows,
    sum_gpu_time_by_stage,
)
from tracekit.model.report import Answer, Better, Finding, Metric, Ranked, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Columns,
    concatenate_like_arrays,
    concatenate_parts,
    repeat_number,
    select_all_rows,
    select_rows,
    trim_all_texts,
    trim_texts,
)
from tracekit.model.tables.columns import DEVICE, OCCURRENCE, STAGE, STEP, TS
from tracekit.model.tables.frame import Frame
from tracekit.model.tables.keys import PROCESS, sum_by_keys
from tracekit.model.tables.slots import HOLDER_TITLES
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.device.busy import (
    bin_device_busy_time,
    break_down_device_windows,
    compute_busy_intervals,
    group_rows_by_device,
)
from tracekit.process.device.windows import DeviceWindows, align_windows_to_device
from tracekit.process.name_filters import make_narrow_coded, mark_wanted_names
from tracekit.process.steps.windows import StageWindows, StepWindows

GPU_TIME = Table(
    "gpu_time",
    "one device in one window, by time: the parts and idle add up to window_ns exactly",
    {
        **KEYS,
        "device": DEVICE,
        "window": Column("category", "capture | step | stage.", ("capture", "step", "stage")),
        "step": STEP,
        "stage": STAGE,
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "window_ns": Column("int64", "Length of the window, ns."),
        "compute_ns": Column("int64", "Compute kernels running."),
        "exposed_comm_ns": Column("int64", "Collectives running, no compute."),
        "exposed_memcpy_ns": Column("int64", "Copies running, neither compute nor collectives."),
        "exposed_memset_ns": Column("int64", "Fills running, nothing else."),
        "idle_ns": Column("int64", "Nothing running."),
        "comm_ns": Column("int64", "Collectives running, overlapped or exposed."),
        "overlap_ns": Column("int64", "Collectives and compute both running."),
        "op_count": Column("int64", "Device ops that touch the window."),
    },
)

BUSY_BINS = Table(
    "busy_bins",
    "an equal piece of one capture on one device",
    {
        **KEYS,
        "device": DEVICE,
        "ts_ns": TS,
        "window_ns": Column("int64", "Length of the piece; the last one may be shorter."),
        "busy_ns": Column("int64", "Any device op running in it."),
    },
)


def breakdown(device_ops: Columns) -> Columns:
    """Break down the time of each device from its first start to its last end; one row per device, times in ns.

    Columns: device, ts_ns, window_ns, compute_ns, exposed_comm_ns, exposed_memcpy_ns, exposed_memset_ns,
    idle_ns (these five add up to window_ns), comm_ns, overlap_ns, op_count, busy_ns.
    """
    read: Mapping[str, Any] = device_ops.arrays
    parts: list[dict[str, Array]] = []
    for number, rows in group_rows_by_device(read["device"]) or [(None, np.empty(0, np.int64))]:
        state = compute_busy_intervals(*(select_rows(read[name], rows) for name in ("ts_ns", "dur_ns", "kind")))
        whole = break_down_device_windows(state, state.start[:1], state.end[-1:])
        whole["op_count"][:] = len(rows)
        busy = whole["window_ns"] - whole["idle_ns"]
        parts.append({"device": repeat_number(number, len(busy)), **whole, "busy_ns": busy})
    result = concatenate_parts(parts)
    return Columns(len(result["device"]), result)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Break down the time of each device for the whole capture, every step and every stage."""
    moved: DeviceWindows = trace.derived(align_windows_to_device)
    steps, stages = moved.step_rows, moved.outer_ranges
    parts, bins = [], []
    device = trace.nullable("device_ops", "device")
    for number, rows in group_rows_by_device(device):
        start = trace.numbers("device_ops", "ts_ns")[rows]
        length = trace.numbers("device_ops", "dur_ns")[rows]
        state = compute_busy_intervals(start, length, select_rows(trace.texts("device_ops", "kind"), rows))
        pieces = bin_device_busy_time(state)
        bins.append({"device": repeat_number(number, len(pieces["ts_ns"])), **pieces})
        of_device = break_down_device_windows(
            state,
            np.concatenate((state.start[:1], steps.ts_ns, stages.ts_ns)),
            np.concatenate((state.end[-1:], steps.end_ns, stages.end_ns)),
        )
        of_device["op_count"][0] = len(rows)
        labels = _label_gpu_windows(steps, stages)
        count = len(of_device["ts_ns"])
        parts.append({"device": repeat_number(number, count), **labels, **of_device})
    if not parts:
        return {}
    gpu_time = trim_all_texts(concatenate_parts(parts))
    return {"gpu_time": gpu_time, "busy_bins": concatenate_parts(bins), "metrics": _sum_gpu_time_metrics(gpu_time)}


def _label_gpu_windows(steps: StepWindows, stages: StageWindows) -> dict[str, Array]:
    """Make the columns window, step, stage and occurrence for the capture, the steps and the stages, in this order."""
    sizes = (1, len(steps), len(stages))
    no_stage = np.full(1 + len(steps), -1)
    return {
        "window": make_narrow_coded(np.repeat(np.arange(3), sizes), ("capture", "step", "stage")),
        "step": concatenate_like_arrays([repeat_number(None, 1), steps.step, stages.step]),
        "stage": Coded(np.concatenate((no_stage, stages.stage.codes)), stages.stage.texts),
        "occurrence": np.concatenate((np.zeros(1, np.int32), steps.occurrence, stages.occurrence)),
    }


GPU_SHARE_HEADINGS = parse_headings("""
    busy_ratio | busy | ratio | Any device op running, of the window.
    compute_ratio | compute | ratio | Compute kernels running, of the window.
    exposed_comm_ratio | exposed comm | ratio | Collectives running without compute, of the window.
    exposed_memcpy_ratio | copies | ratio | Copies running, neither compute nor collectives, of the window.
    exposed_memset_ratio | fills | ratio | Fills running, nothing else, of the window.
    idle_ratio | idle | ratio | Nothing running, of the window.
    overlap_ratio | overlap | ratio | Share of collective time with compute running; — without collectives.
""")


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report GPU time by device and by stage; judge R01."""
    if not measured.row_count("gpu_time"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    rows = list_undamaged_rows(measured, "gpu_time")
    captures = rows.filter(rows.equals("window", "capture"))
    if not len(captures):
        return ANALYSIS.skipped("every source with GPU activity is damaged: missing rows would look idle")
    idling = _find_idle_stages(measured, thresholds)
    return ANALYSIS.answered(
        metrics=lambda: _list_gpu_share_metrics(captures),
        sheets=lambda: select_filled_sheets(*_make_gpu_time_tables(measured, captures)),
        findings=tuple(
            _report_low_utilization(measured, of_one_cause, thresholds)
            for of_one_cause in _group_idle_stages_by_cause(measured, idling)
        ),
        verdicts=tuple(_list_minor_idle_verdicts(measured, idling, thresholds)),
        charts=lambda: (*draw_device_bars(measured, captures), *draw_gpu_utilisation(measured)),
    )


def _list_gpu_share_metrics(captures: Frame) -> Iterator[Metric]:
    """List the shares of busy, idle and exposed time over all captures."""
    (total,) = sum_gpu_time(captures).rows()
    for heading in GPU_SHARE_HEADINGS:
        better: Better = "lower" if heading.name in _LOWER_IS_BETTER else "higher"
        yield Metric(heading.name, total[heading.name], "ratio", better, label=heading.title)


DEVICE_HEADINGS = parse_headings("""
    rank | rank | id
    device | GPU | id
    window_ns | window | ns | First start to last end of device work, summed over sources.
""")
STAGE_HEADINGS = parse_headings("""
    canonical | stage
    window_ns | wall Σ | ns | Wall of the stage, summed over ranks, GPUs and steps.
""")


def _make_gpu_time_tables(measured: Measurements, captures: Frame) -> tuple[Sheet, Sheet]:
    """Make the tables of GPU time by device and by stage."""
    labels = make_label_headings(measured)
    by_device = make_sheet(
        "gpu_time",
        "GPU time by device",
        (*labels, *DEVICE_HEADINGS, *GPU_SHARE_HEADINGS),
        sum_gpu_time(captures, *PROCESS, "device").sort("busy_ratio"),
        caption="By time, within the window from the first to the last device op of each source; parts and idle add up to it.",
        ranked=Ranked("busy_ratio", "low"),
    )
    by_stage = make_sheet(
        "gpu_time_stages",
        "GPU time by stage",
        (*labels, *STAGE_HEADINGS, *GPU_SHARE_HEADINGS),
        sum_gpu_time_by_stage(measured),
        caption="GPU activity while the host was in the stage. Work launched late in a stage may run after it.",
    )
    return by_device, by_stage


_LOWER_IS_BETTER = ("exposed_comm_ratio", "exposed_memcpy_ratio", "exposed_memset_ratio", "idle_ratio")


def _find_idle_stages(measured: Measurements, thresholds: Thresholds) -> list[StageWindow]:
    """Find stages whose GPUs are mostly idle; steps or the whole capture where no stage is known.

    A whole capture counts only if a known place of the program kept the GPU idle between its work. Otherwise it may be
    idle because another role uses the GPU.
    """
    limit = thresholds.of("low-gpu-utilization")
    idle_windows, chores = [], list_chore_keys(measured)
    for window in list_judged_windows(measured):
        row = window.gpu_time
        share = window.per_step(float(row["window_ns"]))[1]
        if (
            row["op_count"] == 0
            or row["window_ns"] == 0
            or 1 - _measure_lasting_idle(measured, window) / int(row["window_ns"]) >= limit["busy_ratio"]
            or (share or 0.0) < limit["stage_ratio"]
            or window.key in chores
            or (window.origin == "file" and not _is_idle_by_host(measured, window))
        ):
            continue
        idle_windows.append(window)
    return idle_windows


def _measure_lasting_idle(measured: Measurements, window: StageWindow) -> int:
    """Measure the idle time of a window without that of first calls, which later steps do not have."""
    starting_ns = 0
    if measured.has("idle"):
        starting_ns = sum_judged_idle_by_cause(measured).get((*window.key, "host_start_up"), 0)
    return int(window.gpu_time["idle_ns"]) - starting_ns


def _is_idle_by_host(measured: Measurements, window: StageWindow) -> bool:
    """Check whether one known place of the host takes most of the window's idle time before its last device work ended."""
    culprit = _find_idle_culprit(measured, window)
    if culprit is None or culprit.holder in ("nothing", "device"):
        return False
    after_ns = sum_judged_idle_by_cause(measured).get((*window.key, "after_last"), 0)
    return 2 * (culprit.idle_ns - after_ns) >= int(window.gpu_time["idle_ns"])


def _group_idle_stages_by_cause(measured: Measurements, idling: list[StageWindow]) -> list[list[StageWindow]]:
    """Group stages of one run and role by the place or kind of wait that keeps them idle, most idle stage first.

    A stage without a known cause is a group of its own.
    """
    by_cause: dict[object, list[StageWindow]] = {}
    for window in idling:
        culprit = _find_idle_culprit(measured, window)
        cause: object = window.key
        if culprit is not None:
            cause = (*window.owner, culprit.holder, culprit.place)
        by_cause.setdefault(cause, []).append(window)
    return [sorted(part, key=lambda window: -int(window.gpu_time["idle_ns"])) for part in by_cause.values()]


def _find_idle_culprit(measured: Measurements, window: StageWindow) -> IdleCulprit | None:
    """Find the host activity that most of a stage's idle time was spent in; None if unknown."""
    if not measured.has("idle_blame", "idle_frames"):
        return None
    return find_culprit_of_window(measured, window)


def _report_low_utilization(measured: Measurements, stages: list[StageWindow], thresholds: Thresholds) -> Finding:
    """Report R01: idle time of stages with one cause."""
    window = stages[0]
    window_ns, idle_ns = (sum(int(stage.gpu_time[name]) for stage in stages) for name in ("window_ns", "idle_ns"))
    idle, _ = window.per_step(idle_ns)
    lasting, ratio = window.per_step(sum(_measure_lasting_idle(measured, stage) for stage in stages))
    holder = _explain_idle_stages(measured, stages)
    named, _ = window.per_step(min(holder.named_ns, idle_ns))
    return Finding(
        "low-gpu-utilization",
        thresholds.severity(ratio),
        _describe_busy_stages(stages, phrase_run(measured, window.run)) + holder.words,
        holder.advice,
        (
            make_evidence_metric("busy_ratio", 1 - idle_ns / window_ns, "busy", better="higher"),
            make_evidence_metric("idle_ns", round(idle), "idle per step"),
            *((make_evidence_metric("named_ns", round(named), "with a known cause"),) if named else ()),
        ),
        tuple(stage.place for stage in stages),
        round(lasting),
        ratio,
        is_catch_all=not named,
        instances=pick_window_instances(measured, {stage.key for stage in stages}, "idle_ns"),
    )


MAX_NAMED_IDLE_STAGES = 3
"""Maximum number of stages in the claim; further ones are counted."""


def _describe_busy_stages(stages: list[StageWindow], run: str) -> str:
    """Describe the busy share of each stage; `run` ends each stage's name and is written once."""
    shares = []
    named = MAX_NAMED_IDLE_STAGES if len(stages) > MAX_NAMED_IDLE_STAGES + 1 else len(stages)
    for stage in stages[:named]:
        name = stage.name.removesuffix(run)
        shares.append(f"{format_quantity(stage.gpu_time['busy_ratio'], 'ratio')} of {name}")
    if unnamed_stages := stages[named:]:
        busiest = max(float(stage.gpu_time["busy_ratio"]) for stage in unnamed_stages)
        shares.append(f"at most {format_quantity(busiest, 'ratio')} of {len(unnamed_stages)} other stages")
    if len(shares) == 1:
        return f"GPUs are busy {shares[0]}{run}"
    return f"GPUs are busy {', '.join(shares[:-1])} and {shares[-1]}{run}"


class IdleExplanation(NamedTuple):
    """Cause of most of the idle time: the end of a claim, the advice, and the idle time with a named cause in ns."""

    words: str
    advice: str
    named_ns: int = 0


def _explain_idle_stages(measured: Measurements, windows_: list[StageWindow]) -> IdleExplanation:
    """Explain the idle time of these stages."""
    advice = "check the host's activity meanwhile: synchronizing calls, data loading, many short kernels"
    if not measured.has("idle_blame", "idle_frames"):
        return IdleExplanation("", advice)
    window = windows_[0]
    idle_ns = int(window.gpu_time["idle_ns"])
    culprits = [find_culprit_of_window(measured, each) for each in windows_]
    culprit = culprits[0]
    if culprit is None:
        return IdleExplanation(_describe_idle_kinds(measured, window, idle_ns), advice)
    named_ns = sum(each.idle_ns for each in culprits if each)
    spent = _format_idle_of_wall(windows_, named_ns)
    if culprit.holder == "device":
        return IdleExplanation(
            f": {spent}, {culprit.place.strip('()')}",
            "find the cause of the wait: other streams, events, other processes on the GPU",
            named_ns,
        )
    if culprit.holder == "nothing":
        return IdleExplanation(
            f": {spent} with {culprit.place.strip('()')}",
            "record the host's activity: with_stack=True, ranges (NVTX), or CPU samples",
        )
    waiting = phrase_awaited_rank(measured, culprit, window.owner, window.canonical)
    return IdleExplanation(
        f": {spent} in {culprit.place}{waiting}", f"shorten it, or run it ahead of the step: {culprit.place}", named_ns
    )


def _format_idle_of_wall(windows_: list[StageWindow], idle_ns: int) -> str:
    """Format an idle time next to the length of these stages, both per step."""
    wall_ns = sum(float(window.gpu_time["window_ns"]) for window in windows_)
    per_step = windows_[0].per_step
    return f"{format_quantity(per_step(idle_ns)[0], 'ns')} of {format_quantity(per_step(wall_ns)[0], 'ns')} idle"


def _describe_idle_kinds(measured: Measurements, window: StageWindow, idle_ns: int) -> str:
    """Describe the three kinds of activity with most idle time, as the end of a claim."""
    shares = [
        f"{HOLDER_TITLES[kind][0]} {format_quantity(ns / idle_ns, 'ratio')}"
        for kind, ns in sum_window_idle_by_holder(measured, window)[:3]
    ]
    return f"; idle time by kind: {', '.join(shares)}" if shares else ""


CLEAR: Answer = "clear"
UNJUDGED: Answer = "insufficient data"

MIN_EXPLAINED_IDLE_RATIO = 0.03
"""Minimum idle time of a stage, as a share of the step, to explain it without a finding."""


def _list_minor_idle_verdicts(
    measured: Measurements, idling: list[StageWindow], thresholds: Thresholds
) -> Iterator[Verdict]:
    """List verdicts on stages that R01 does not report but that are idle for long.

    A whole capture that is not busy enough is never "clear": its GPUs may be idle by design.
    """
    judged = [window.key for window in idling]
    windows_ = [
        window
        for window in list_judged_windows(measured)
        if window.key not in judged
        and (window.per_step(float(window.gpu_time["idle_ns"]))[1] or 0.0) >= MIN_EXPLAINED_IDLE_RATIO
    ]
    if not windows_ or not measured.has("idle_blame", "idle_frames"):
        return
    required = thresholds.of("low-gpu-utilization")["busy_ratio"]
    reasons: dict[tuple[Answer, str | None], list[str]] = {}
    prices: dict[tuple[Answer, str | None], tuple[float, float]] = {}
    for window in windows_:
        idle_ns, share = window.per_step(float(window.gpu_time["idle_ns"]))
        ratio = share or 0.0
        run = window.run if make_run_heading(measured) else None
        where, answer = f"the step in {window.name}", CLEAR
        if window.origin == "file":
            where = window.name
            answer = CLEAR if window.gpu_time["busy_ratio"] >= required else UNJUDGED
        price, price_ratio = prices.get((answer, run), (0.0, 0.0))
        prices[answer, run] = price + idle_ns, price_ratio + ratio
        reasons.setdefault((answer, run), []).append(
            f"GPUs are idle {format_quantity(ratio, 'ratio')} of {where}"
            + _describe_idle_kinds(measured, window, int(window.gpu_time["idle_ns"]))
        )
    for (answer, run), texts in reasons.items():
        price, ratio = prices[answer, run]
        yield Verdict(ANALYSIS.rules[0], answer, ". ".join(texts), run, round(price), ratio)


def _sum_gpu_time_metrics(gpu_time: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sum busy, idle and exposed time by step and stage as `metrics` rows, for compare and gates."""
    rows = np.flatnonzero(mark_wanted_names(gpu_time["window"], ("step", "stage").__contains__))
    windows_ = select_all_rows(gpu_time, rows)
    keys = {name: windows_[name] for name in ("window", "step", "stage", "occurrence")}
    times = {
        "gpu_busy": windows_["window_ns"] - windows_["idle_ns"],
        "exposed_comm": windows_["exposed_comm_ns"],
        "exposed_copies": windows_["exposed_memcpy_ns"],
        "gpu_idle": windows_["idle_ns"],
    }
    sums: Any = sum_by_keys(keys, times)
    size = len(sums["occurrence"])
    return {
        "step": concatenate_like_arrays([sums["step"]] * len(times)),
        "stage": concatenate_like_arrays([trim_texts(sums["stage"])] * len(times)),
        "name": trim_texts(Coded(np.repeat(np.arange(len(times)), size), tuple(times))),
        "value": np.concatenate([sums[name] for name in times]).astype(np.float64),
    }


ANALYSIS = Analysis(
    id="gpu-time",
    title="Where did each GPU's time go?",
    reads=("device_ops",),
    writes=(GPU_TIME, BUSY_BINS, "metrics"),
    metrics=("gpu_busy", "gpu_idle", "exposed_comm", "exposed_copies"),
    rests_on=("collectives", "idle", "idle_blame", "idle_frames"),
    rules=("low-gpu-utilization",),
    thresholds={
        "low-gpu-utilization": {
            # A stage is reported when its GPUs are busy for less than this share of it,
            "busy_ratio": 0.80,
            # and the stage takes at least this share of the step.
            "stage_ratio": 0.02,
        }
    },
    measure=measure,
    judge=judge,
    whole_recording=True,
)
