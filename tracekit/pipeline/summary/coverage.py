"""Gaps in the headline: windows that do not match their GPU work, and time that no finding explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import (
    aggregate_by_keys,
    find_equal_rows,
    list_stage_rows,
    phrase_run,
    split_by_run,
    summarize_job_steps,
    to_int_or_none,
)
from tracekit.job.stages.periodic import measure_planned_stage_time
from tracekit.job.stages.windows import read_undamaged_table
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.job.steps.step_kinds import MAX_WORK_DIFFERENCE, list_steps_with_device_work
from tracekit.model import failed_questions
from tracekit.model.report import Metric, Section
from tracekit.model.tables.keys import CAPTURE, left_join
from tracekit.model.tables.slots import CAUSE_TITLES, CPU_ACTIVITY_TITLES
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.pipeline.summary.screen import has_split_runs
from tracekit.pipeline.summary.unexplained_time import UnexplainedTime, has_judged_rules, measure_unexplained_time

MIN_UNEXPLAINED_RATIO = 0.03
"""Unexplained time below this share of the step gets no sentence."""

NO_OPS = "between calls (ops were not recorded)"
"""Name of the time between ops if no op was recorded."""

CAUSE_PHRASES: Mapping[str, str] = {
    **{cause: title for cause, (title, _) in CAUSE_TITLES.items()},
    **{activity: title for activity, (title, _) in CPU_ACTIVITY_TITLES.items()},
    "host_silent": "no host activity",
    "other": "launched but not started (cause unknown)",
}
"""The name of each cause in a sentence."""

MIN_VARIATION_STEPS = 3
"""With fewer steps, none counts as typical."""

SOME_STEP_RULES = frozenset(("recompilation", "graph-capture", "start-up", "allocator-calls", "drift"))
"""Rules on events that only some steps contain, which explain why these are longer."""


def find_window_mismatches(measured: Measurements) -> tuple[str, ...]:
    """Report windows that do not match their GPU work: it runs outside of them, or covers only a part of them."""
    return _evaluate_if_sound(measured, _describe_mismatches)


def describe_unexplained_time(measured: Measurements, sections: Sequence[Section]) -> tuple[str, ...]:
    """Describe the idle, waiting and step-to-step time that no finding covers, if it is large enough."""

    def parts(whom: Measurements) -> tuple[str, ...]:
        times = _include_start_up(whom, measure_unexplained_time(whom, sections))
        sentences = (
            _describe_unexplained(whom, each, sections) for each in times if each.ratio > MIN_UNEXPLAINED_RATIO
        )
        longer_steps = _describe_variation(whom, sections) if has_judged_rules(whom, sections) else ()
        return tuple(chain(sentences, longer_steps))

    return _evaluate_if_sound(measured, parts)


def measure_unexplained_ratio(measured: Measurements, sections: Sequence[Section]) -> tuple[Metric, ...]:
    """Sum the idle and waiting share of the steps that no finding covers; empty if neither was measured."""

    def part(whom: Measurements) -> tuple[Metric, ...]:
        times = _include_start_up(whom, [] if has_split_runs(whom) else measure_unexplained_time(whom, sections))
        if not times:
            return ()
        ratio = sum(each.ratio for each in times)
        return (Metric("unexplained_ratio", ratio, "ratio", "lower", label="unexplained"),)

    return _evaluate_if_sound(measured, part)


def _include_start_up(measured: Measurements, times: list[UnexplainedTime]) -> list[UnexplainedTime]:
    """Rescale the times to captures including their start-up, which is explained, like the shares of the headline."""
    of_runs = find_run_start_ups(measured)
    step_ns = float(summarize_job_steps(measured).walls["wall_ns"].sum())
    if not of_runs or not step_ns:
        return times
    before_ns = sum(each.start_up_ns * summarize_job_steps(measured).select_run(each.run).count for each in of_runs)
    longer = 1 + before_ns / step_ns
    return [replace(each, window_ns=each.window_ns * longer) for each in times]


def _evaluate_if_sound(measured: Measurements, part: Any) -> tuple[Any, ...]:
    """Evaluate one part of the summary; empty if it reads a table that failed or was not requested."""
    parts: tuple[Any, ...] = failed_questions.judge_if_sound(
        measured, lambda whom: failed_questions.judge_if_asked(whom, lambda m: tuple(part(m)), ()), ()
    )
    return parts


def _name_window(measured: Measurements) -> str:
    """Name the windows in a sentence."""
    walls = summarize_job_steps(measured).walls
    if find_run_start_ups(measured):
        return "time after start-up"
    is_capture = (walls["origin"] == "file").all() and walls["step"].isna().all()
    return "capture" if is_capture else "step"


def _describe_mismatches(measured: Measurements) -> Iterator[str]:
    if not (measured.row_count("gpu_time") and measured.row_count("steps")):
        return
    rows = list_steps_with_device_work(measured)
    rows = rows[(rows["origin"] != "stage").to_numpy(np.bool_)]
    window_ns = float(rows["window_ns"].sum())
    if not window_ns:
        return
    unit, each = _name_window(measured), window_ns / len(rows)
    # A capture window is bounded by the work in it: it may begin after the launches of its work.
    is_marked = (rows["origin"] != "file").to_numpy(np.bool_)
    if float(rows["differ_ns"][is_marked].sum()) > MAX_WORK_DIFFERENCE * window_ns:
        inside, launched = (format_quantity(float(rows[name].mean()), "ns") for name in ("inside_ns", "launched_ns"))
        yield (
            f"GPUs are busy {inside} of a {unit} of {format_quantity(each, 'ns')}, but only {launched} with kernels launched in it: "
            f"the rest was launched in another {unit} or before the recording"
        )
        return
    yield from _describe_sparse_capture(measured, rows, unit)


def _describe_sparse_capture(measured: Measurements, rows: pd.DataFrame, unit: str) -> Iterator[str]:
    """Describe single windows with GPU work in only a part of them: when it ran, and how busy the GPUs were then."""
    by_source = rows.groupby([*CAPTURE], dropna=False, sort=False)["ts_ns"].transform("size")
    numbered_file = (rows["origin"] == "file") & rows["step"].notna()
    single = rows[((by_source == 1) & ~numbered_file).to_numpy(np.bool_)]
    if len(single) < len(rows) or not len(rows):
        return
    gpu_time = read_undamaged_table(measured, "gpu_time")
    captures = gpu_time[(gpu_time["window"] == "capture").to_numpy(np.bool_)]
    captures = captures.assign(end_ns=captures["ts_ns"] + captures["window_ns"], span_ns=captures["window_ns"])
    spans = aggregate_by_keys(
        captures,
        [*CAPTURE],
        begin_ns=("ts_ns", "min"),
        end_ns=("end_ns", "max"),
        span_ns=("span_ns", "sum"),
        quiet_ns=("idle_ns", "sum"),
    )
    both = left_join(single.drop(columns=["idle_ns"]), spans, CAPTURE, optional=["pid"])
    both = both[both["span_ns"].notna().to_numpy(np.bool_)]
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


def _describe_unexplained(measured: Measurements, time: UnexplainedTime, sections: Sequence[Section]) -> str:
    """Describe the size of unexplained time, and its largest part: cause, rank and stage."""
    part, cells = time.largest, time.cells
    cause = _name_cause(measured, part["cause"])
    what, largest = ("idle time", [f"{format_quantity(part['ratio'], 'ratio')} {cause}"] if cause else [])
    if time.kind == "waiting":
        what, largest = "waiting for collectives" if cause else "exposed communication", []
    if part["rank"] is not None and len(set(cells["rank"].dropna())) > 1:
        largest.append(f"rank {int(part['rank'])}")
    if cells["stage"].notna().any():
        largest.append(str(part["stage"] or "outside any stage"))
    sentence = f"{format_quantity(time.ratio, 'ratio')} {what} is unexplained"
    if largest:
        sentence += f": largest part {', '.join(largest)}"
    return sentence + (_explain_clear_communication(sections) if time.kind == "waiting" else "")


def _name_cause(measured: Measurements, cause: str | None) -> str:
    """Name a cause in a sentence."""
    is_between = cause == "host_none" and measured.row_count("host_counts") > 0
    if is_between and not measured["host_counts"]["leaf_count"].sum():
        return NO_OPS
    return CAUSE_PHRASES.get(cause or "", cause or "")


def _explain_clear_communication(sections: Sequence[Section]) -> str:
    """Explain why communication has no finding, with the rule's reason for the largest exposure."""
    verdicts = [
        verdict
        for section in sections
        for verdict in section.verdicts
        if verdict.rule == "exposed-communication"
        if verdict.answer == "clear" and verdict.reason
    ]
    if not verdicts:
        return ""
    return f"; {max(verdicts, key=lambda verdict: verdict.price_ns or 0).reason}"


def _describe_variation(measured: Measurements, sections: Sequence[Section]) -> Iterator[str]:
    """For each run, describe how far the mean step exceeds the median, if no finding covers it."""
    findings = [finding for section in sections for finding in section.findings]
    if any(finding.rule == "step-variance" for finding in findings):
        return
    covered = sum(f.recoverable_ns or 0 for f in findings if f.rule in SOME_STEP_RULES)
    for run, walls in split_by_run(summarize_job_steps(measured).walls):
        # Scheduled stages, such as checkpoints, are not step variance.
        wall = walls["wall_ns"].to_numpy(np.float64) - measure_planned_stage_time(measured, walls)
        if len(wall) < MIN_VARIATION_STEPS or _has_unlike_windows(walls):
            continue
        median = float(np.median(wall))
        excess = float(np.maximum(wall - median, 0).mean()) - covered
        share = excess / float(wall.mean()) if wall.any() else 0.0
        if share <= MIN_UNEXPLAINED_RATIO:
            continue
        longest = walls.iloc[int(wall.argmax())]
        step = to_int_or_none(longest["step"])
        which = "the longest step" if step is None else f"step {step}"
        took = f"{which} takes {format_quantity(float(wall.max()), 'ns')}, the median {format_quantity(median, 'ns')}"
        stage = _find_longer_stage(measured, run, step)
        yield (
            f"{format_quantity(share, 'ratio')} step-to-step time is unexplained: {took}"
            f"{stage}{phrase_run(measured, run)}"
        )


def _has_unlike_windows(walls: pd.DataFrame) -> bool:
    """Check whether the windows are captures of unlike processes, not repetitions of one step."""
    return bool(walls["step"].isna().all()) and len(set(walls["origin"])) > 1


def _find_longer_stage(measured: Measurements, run: object, step: int | None) -> str:
    """Find the stage of a step that most exceeds its median over steps, and the rank with the longest one."""
    rows = list_stage_rows(measured)
    rows = rows[find_equal_rows(rows["run"], run).to_numpy(np.bool_)]
    if step is None or not len(rows):
        return ""
    by = ["step", "canonical", "rank"]
    walls = aggregate_by_keys(rows, by, wall_ns=("dur_ns", "sum"))
    of_step = walls["step"].eq(step).fillna(value=False).to_numpy(np.bool_)
    usual = walls.groupby("canonical")["wall_ns"].median()
    there = walls[of_step]
    if not len(there):
        return ""
    over = there["wall_ns"].to_numpy(np.float64) - usual.reindex(there["canonical"]).to_numpy()
    row = there.iloc[int(over.argmax())]
    rank = "" if pd.isna(row["rank"]) else f", rank {int(row['rank'])}"
    return f", largest part {format_quantity(float(over.max()), 'ns')} in {row['canonical']}{rank}"
