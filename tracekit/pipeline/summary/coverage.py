"""Gaps in the headline: windows that do not match their GPU work, time that nothing explains, and steps that vary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracekit.job.frames import list_stage_ranges, phrase_run, summarize_step_walls
from tracekit.job.stages.periodic import sum_planned_stage_time
from tracekit.job.stages.windows import list_undamaged_rows
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.job.steps.step_kinds import MAX_WORK_DIFFERENCE, measure_device_work_of_steps
from tracekit.model import failed_questions
from tracekit.model.report import Metric, RunReplay, Section
from tracekit.model.tables.frame import Frame, count_rows, max_of, median_of, min_of, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

MIN_UNEXPLAINED_RATIO = 0.03
"""Unexplained time below this share of the step gets no sentence."""

MIN_VARIATION_RATIO = 0.03
"""Variation of the steps below this share of them gets no sentence."""

MIN_VARIATION_STEPS = 3
"""With fewer steps, none counts as typical."""

SOME_STEP_RULES = frozenset(("recompilation", "graph-capture", "start-up", "allocator-calls", "drift", "step-variance"))
"""Rules on events that only some steps contain, which explain why these are longer."""


def find_window_mismatches(measured: Measurements) -> tuple[str, ...]:
    """Report windows that do not match their GPU work: it runs outside of them, or covers only a part of them."""
    return _evaluate_if_sound(measured, _describe_mismatches)


def describe_variation(measured: Measurements, sections: Sequence[Section]) -> tuple[str, ...]:
    """For each run, describe how far the mean step exceeds the median, unless a finding describes that."""
    rules = {finding.rule for section in sections for finding in section.findings}
    if rules & SOME_STEP_RULES:
        return ()
    return _evaluate_if_sound(measured, _describe_longer_steps)


def measure_unexplained_ratio(replays: Sequence[RunReplay]) -> tuple[Metric, ...]:
    """Measure the share of the time that no dependency explains; empty without a replay, and for several runs."""
    if len(replays) != 1:
        return ()
    ratio = replays[0].unexplained_ratio
    return (Metric("unexplained_ratio", ratio, "ratio", "lower", label="unexplained"),)


def describe_unexplained_time(replays: Sequence[RunReplay]) -> tuple[str, ...]:
    """Describe the largest part of the time that no dependency explains, if there is much of it."""
    sentences = []
    for replay in replays:
        if replay.unexplained_ratio > MIN_UNEXPLAINED_RATIO:
            run = f" of {replay.run}" if len(replays) > 1 and replay.run else ""
            share = format_quantity(replay.unexplained_ratio, "ratio")
            sentences.append(f"{share} of the time{run} is unexplained: largest part {replay.unexplained_part}")
    return tuple(sentences)


def _evaluate_if_sound(measured: Measurements, part: Any) -> tuple[Any, ...]:
    """Evaluate one part of the summary; empty if it reads a table that failed or was not requested."""
    parts: tuple[Any, ...] = failed_questions.judge_if_sound_and_asked(measured, lambda whom: tuple(part(whom)), ())
    return parts


def _name_window(measured: Measurements) -> str:
    """Name the windows in a sentence."""
    walls = summarize_step_walls(measured).walls
    if find_run_start_ups(measured):
        return "time after start-up"
    is_capture = walls.equals("origin", "file") & walls.is_missing("step")
    return "capture" if is_capture.all() else "step"


def _describe_mismatches(measured: Measurements) -> Iterator[str]:
    if not (measured.row_count("gpu_time") and measured.row_count("steps")):
        return
    rows = measure_device_work_of_steps(measured)
    rows = rows.filter(~rows.equals("origin", "stage"))
    window_ns = float(rows["window_ns"].sum())
    if not window_ns:
        return
    unit, each = _name_window(measured), window_ns / len(rows)
    # A capture window is bounded by the work in it: it may begin after the launches of its work.
    is_marked = ~rows.equals("origin", "file")
    if float(rows["differ_ns"][is_marked].sum()) > MAX_WORK_DIFFERENCE * window_ns:
        inside, launched = (format_quantity(float(rows[name].mean()), "ns") for name in ("inside_ns", "launched_ns"))
        yield (
            f"GPUs are busy {inside} of a {unit} of {format_quantity(each, 'ns')}, but only {launched} with kernels launched in it: "
            f"the rest was launched in another {unit} or before the recording"
        )
        return
    yield from _describe_sparse_capture(measured, rows, unit)


def _describe_sparse_capture(measured: Measurements, rows: Frame, unit: str) -> Iterator[str]:
    """Describe single windows with GPU work in only a part of them: when it ran, and how busy the GPUs were then."""
    is_single = rows.group_by(*CAPTURE).each(count_rows()) == 1
    is_numbered_file = rows.equals("origin", "file") & ~rows.is_missing("step")
    if not len(rows) or not is_single.all() or is_numbered_file.any():
        return
    gpu_time = list_undamaged_rows(measured, "gpu_time")
    captures = gpu_time.filter(gpu_time.equals("window", "capture"))
    spans = captures.group_by(*CAPTURE).agg(
        begin_ns=min_of("ts_ns"),
        end_ns=max_of(captures["ts_ns"] + captures["window_ns"]),
        span_ns=sum_of("window_ns"),
        quiet_ns=sum_of("idle_ns"),
    )
    both = rows.join(spans, CAPTURE, optional=["pid"])
    span, window = float(both["span_ns"].sum()), float(both["window_ns"].sum())
    if not window or window - span <= MAX_WORK_DIFFERENCE * window:
        return
    busy = 1 - float(both["quiet_ns"].sum()) / span if span else 0.0
    lasting = float(both["dur_ns"].mean())
    from_ns = float((both["begin_ns"] - both["ts_ns"]).mean())
    until_ns = float((both["end_ns"] - both["ts_ns"]).mean())
    yield (
        f"GPU work covers {format_quantity(until_ns - from_ns, 'ns')} of the {unit} ({format_quantity(lasting, 'ns')}), starting "
        f"{format_quantity(max(from_ns, 0.0), 'ns')} into it; GPUs are busy {format_quantity(busy, 'ratio')} of that span"
    )


def _describe_longer_steps(measured: Measurements) -> Iterator[str]:
    for walls in summarize_step_walls(measured).walls.group_by("run").frames():
        # Scheduled stages, such as checkpoints, are not step variance.
        wall = walls["wall_ns"] - sum_planned_stage_time(measured, walls)
        if len(wall) < MIN_VARIATION_STEPS or _has_unlike_windows(walls):
            continue
        median = float(np.median(wall))
        excess = float(np.maximum(wall - median, 0).mean())
        share = excess / float(wall.mean()) if wall.any() else 0.0
        if share <= MIN_VARIATION_RATIO:
            continue
        run, step = (walls.values(name)[int(wall.argmax())] for name in ("run", "step"))
        which = "the longest step" if step is None else f"step {step}"
        took = f"{which} takes {format_quantity(float(wall.max()), 'ns')}, the median {format_quantity(median, 'ns')}"
        stage = _find_longer_stage(measured, run, step)
        yield (f"{format_quantity(share, 'ratio')} of the steps is variation: {took}{stage}{phrase_run(measured, run)}")


def _has_unlike_windows(walls: Frame) -> bool:
    """Check whether the windows are captures of unlike processes, not repetitions of one step."""
    return bool(walls.is_missing("step").all()) and len(walls.distinct("origin")) > 1


def _find_longer_stage(measured: Measurements, run: str | None, step: int | None) -> str:
    """Find the stage of a step that most exceeds its median over steps, and the rank with the longest one."""
    rows = list_stage_ranges(measured)
    rows = rows.filter(rows.equals("run", run))
    walls = rows.group_by("step", "canonical", "rank").agg(wall_ns=sum_of("dur_ns"))
    wall_ns = walls.number("wall_ns")
    walls = walls.with_columns(over_ns=wall_ns - walls.group_by("canonical").each(median_of(wall_ns)))
    walls = walls.filter(walls.equals("step", step))
    if step is None or not len(walls):
        return ""
    row = next(walls.take(walls["over_ns"].argmax(keepdims=True)).rows())
    rank = "" if row["rank"] is None else f", rank {row['rank']}"
    return f", largest part {format_quantity(row['over_ns'], 'ns')} in {row['canonical']}{rank}"
