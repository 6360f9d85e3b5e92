"""Steps and stages: wall by time, device work by launch (definition M8; R30)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.charts import draw_stage_gantts, draw_step_strips
from tracekit.job.frames import (
    STEP_BOUNDS,
    STEP_ORIGINS,
    UNIT,
    clear_redundant_parts,
    list_stage_ranges,
    make_label_headings,
    make_run_heading,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.longer_steps import LongerPause, find_longer_pause, measure_device_walls
from tracekit.job.report.instances import list_step_runs, pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.durations import measure_stage_durations
from tracekit.job.stages.periodic import describe_periodic_stages, sum_planned_stage_time
from tracekit.job.stages.windows import STAGE_KEY
from tracekit.job.steps.steady_steps import drop_left_out_steps, list_left_out_steps
from tracekit.job.steps.warm_up import DroppedStep
from tracekit.model.failed_questions import has_faults, judge_if_sound
from tracekit.model.report import Finding, Heading, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import repeat_text
from tracekit.model.tables.columns import DEVICE, OCCURRENCE, STAGE, STEP, TS, WORK
from tracekit.model.tables.frame import (
    Frame,
    count_rows,
    divide,
    max_of,
    mean_of,
    narrow_whole_numbers,
    sum_of,
    texts,
    where,
)
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity, format_ranges
from tracekit.process.device.windows import DeviceWindows, align_windows_to_device
from tracekit.process.device.work_per_window import find_work_ends, measure_work_per_window
from tracekit.process.steps.recurrences import list_recurrences
from tracekit.process.steps.windows import StageWindows, StepsAndStages, StepWindows, find_steps_and_stages

STEPS = Table(
    "steps",
    "one step in one source",
    {
        **KEYS,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "origin": Column(
            "category",
            "profiler (ProfilerStep) | range (the program's own `step n`) | without step marks, a repetition: iteration (of an engine), repeat (an annotated range), graph (launches of one) | file (the source is the step) | stage (it is one stage of it).",
            STEP_ORIGINS,
        ),
        "name": Column("category", "Name of the repetition, without step marks; with # for numbers."),
        "ts_ns": TS,
        "dur_ns": Column(
            "int64",
            "Wall time on the host, ns; where the host runs ahead in most steps, until its device work is done.",
        ),
        "start_up_ns": Column(
            "int64", "Start-up before it, in a recording without step marks: recorded, but not part of it."
        ),
        "skew_ns": Column(
            "int64", "Before that, a collective waited for a rank that had not started recording; not part of it."
        ),
        **WORK,
        "work_end_ns": Column("Int64", "When the last of these device ops ended; <NA> without any."),
    },
)

STAGES = Table(
    "stages",
    "one annotated range on the step thread",
    {
        **KEYS,
        "step": STEP,
        "stage": STAGE,
        "parent": Column("category", "Enclosing range, if any."),
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Wall time on the host, ns."),
        **WORK,
    },
)

RECURRENCES = Table(
    "recurrences",
    "one recurring kernel or range, in a source without step marks",
    {
        **KEYS,
        "kind": Column("category", "launch (a kernel) | range (annotated).", ("launch", "range")),
        "name": Column("category", "Name as recorded; of ranges with # for numbers."),
        "device": DEVICE,
        "position": Column("int64", "Which in order, from 0."),
        "ts_ns": TS,
        "dur_ns": Column("int64", "From its start to the start of the next one, ns."),
        "count": Column("int64", "Recurrences in that time: beyond 200 rows several are one."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the steps and stages of one source, each with the device work launched inside it.

    Where the host runs ahead of its device, `ts_ns` and `dur_ns` are those of the device work.
    """
    recorded: StepsAndStages = trace.derived(find_steps_and_stages)
    on_device: DeviceWindows = trace.derived(align_windows_to_device)
    tables: dict[str, Mapping[str, Any]] = {}
    spans: StepWindows | StageWindows
    shown: StepWindows | StageWindows
    for name, spans, shown in (
        ("steps", recorded.step_rows, on_device.step_rows),
        ("stages", recorded.stage_rows, on_device.stage_rows),
    ):
        work = measure_work_per_window(trace, spans.ts_ns, spans.end_ns)
        tables[name] = {**shown.arrays, **work}
    steps = recorded.step_rows
    tables["steps"] = {
        **tables["steps"],
        "work_end_ns": find_work_ends(trace, steps.ts_ns, steps.end_ns),
        "name": repeat_text(recorded.step_rows.name, len(recorded.step_rows)),
        **recorded.step_rows.before,
    }
    recurring = list_recurrences(trace)
    if recurring is not None:
        tables["recurrences"] = recurring
    return tables


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report walls of steps and stages over ranks; judge R30."""
    every_step = summarize_step_walls(measured)
    if not every_step.count:
        return ANALYSIS.skipped("no step, stage or host activity was recorded")
    left_out = list_left_out_steps(measured)
    of_all = measured
    measured = drop_left_out_steps(measured, left_out)
    steps = summarize_step_walls(measured)
    # Only a failed measurement can keep the charts from being drawn; it is reported as a caveat.
    are_drawn = not has_faults(measured) or judge_if_sound(measured, draw_stage_gantts, None) is not None
    undrawn = "an error in tracekit: the stages of single steps could not be drawn"
    metrics = (
        Metric("step_wall", steps.step_ns, "ns", "lower", *_find_wall_range(steps.walls), "step", STEP_BOUNDS),
        Metric("steps", steps.count, "count"),
    )
    timed = measure_device_walls(of_all, left_out)
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: select_filled_sheets(
            _make_step_wall_table(of_all, every_step.walls, left_out), *_make_stage_and_range_tables(measured)
        ),
        findings=tuple(_find_step_variance(measured, timed, thresholds)),
        caveats=(*_caveat_nsys_step_numbers(measured), *([] if are_drawn else [undrawn])),
        verdicts=tuple(_list_runs_with_few_steps(measured, timed, thresholds)),
        charts=lambda: (*(judge_if_sound(measured, draw_stage_gantts, None) or ()), *draw_step_strips(measured)),
    )


def _make_stage_and_range_tables(measured: Measurements) -> Iterator[Sheet]:
    """Make the tables of stages and of annotated ranges; none without stages."""
    stages = measure_stage_durations(measured)
    if len(stages):
        yield _make_stage_wall_table(measured, stages)
        yield _make_annotated_range_table(measured)


def _caveat_nsys_step_numbers(measured: Measurements) -> Iterator[str]:
    """List caveats on nsys captures, whose numbers count captures rather than training steps."""
    rows = measured.frame("steps")
    ranges = rows.filter(rows.equals("tool", "nsys") & ~rows.is_missing("part"))
    if ranges.is_missing("step").any():
        yield (
            "the number in the name of a report counts the captures of its process: the n-th of every rank "
            "are taken for one step, and which training step that was is not recorded"
        )
    if not ranges.is_missing("step").all():
        yield (
            "the number in the name of a report counts the captures of its process: the ranges `step n` in it identify its training steps"
        )


def _find_wall_range(walls: Frame) -> tuple[float | None, float | None]:
    """Find the shortest and longest wall; None for a single step."""
    wall = walls["wall_ns"]
    return (float(wall.min()), float(wall.max())) if len(wall) > 1 else (None, None)


def _make_step_wall_table(measured: Measurements, walls: Frame, left_out: Sequence[DroppedStep]) -> Sheet:
    """Make the table of steps with wall and unattributed time, and the reason for each step that does not count."""
    reasons: dict[tuple[str, int | None, str | None], str] = {
        (step.run, step.step, step.part): step.reason for step in left_out
    }
    keys = [(row["run"] or "", row["step"], row["part"]) for row in walls.rows(*UNIT)]
    unattributed_ns = walls["wall_ns"] - walls.integers("attributed_ns")
    step_rows = walls.with_columns(
        unattributed_ns=where(~walls.is_missing("attributed_ns"), unattributed_ns),
        origin=texts([STEP_ORIGIN_TITLES[origin] for origin in walls.values("origin")]),
        left_out=texts([reasons.get(key) for key in keys]),
    )
    headings = (
        *make_run_heading(measured),
        Heading("step", "step", "id"),
        *((Heading("part", "capture"),) if not step_rows.is_missing("part").all() else ()),
        *parse_headings("""
            wall_ns | wall | ns | Longest rank; see 'from'.
            unattributed_ns | unattributed | ns | Part of the wall outside any stage; — without annotated stages.
            ranks | ranks | count
            origin | from
        """),
        *((Heading("left_out", "reason"),) if left_out else ()),
    )
    return make_sheet("steps", "Steps", headings, step_rows)


STEP_ORIGIN_TITLES = {
    "profiler": "ProfilerStep annotations",
    "range": "the program's own ranges, named `step n`",
    "iteration": "the engine's iterations, from one to the next",
    "repeat": "annotated ranges that repeat, from one to the next",
    "graph": "launches of a graph, from one to the next",
    "file": "first to last activity recorded",
    "stage": "stages captured one by one: the time between them was not recorded",
}
"""Ways in which the wall of a step is known, in words."""


def _make_stage_wall_table(measured: Measurements, stages: Frame) -> Sheet:
    """Make the table of stages by wall, with the device work launched in them."""
    names = ("launch_count", "work_busy_ns")
    work = list_stage_ranges(measured).group_by(*STAGE_KEY).agg(**{name: sum_of(name) for name in names})
    table = stages.join(work, STAGE_KEY, "left", optional=STAGE_KEY)
    per_step = {name: narrow_whole_numbers(divide(table[name], table["rank_steps"])) for name in names}
    table = table.with_columns(**per_step, instances=narrow_whole_numbers(table["instances"]))
    table = table.sort("spread_ns", descending=["spread_ns"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            wall_ns | wall | ns | Host wall per step: longest rank, mean over the steps that have the stage.
            share_ratio | of step | ratio | Of all steps, including steps without it.
            low_ns | shortest | ns | Shortest step.
            high_ns | longest | ns | Longest step.
            work_busy_ns | GPU work | ns | Device work launched in it, per step and rank; may run after it, so it may exceed the wall.
            launch_count | launches | count | Device ops launched per step and rank.
            instances | times | count | Times the stage ran per step.
            ranks | ranks | count
            steps | steps | count | Steps that have the stage.
        """),
    )
    title = "Stages: wall by time, GPU work by launch"
    return make_sheet("stages", title, headings, table, caption=describe_periodic_stages(measured))


def _make_annotated_range_table(measured: Measurements) -> Sheet:
    """Make the table of annotated ranges by recorded name and parent, including nested ranges such as micro-batches."""
    ranges = (
        measured.frame("stages")
        .group_by("run", "role", "parent", "stage")
        .agg(count=count_rows(), total_ns=sum_of("dur_ns"), mean_ns=mean_of("dur_ns"), max_ns=max_of("dur_ns"))
        .sort("total_ns", "stage", descending=["total_ns"])
    )
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            parent | inside
            stage | range
            count | count | count
            total_ns | total | ns | Σ wall over all processes and steps.
            mean_ns | mean | ns
            max_ns | longest | ns
        """),
    )
    return make_sheet("ranges", "Annotated ranges as recorded", headings, ranges)


def _list_runs_with_few_steps(measured: Measurements, walls: Frame, thresholds: Thresholds) -> Iterator[Verdict]:
    """List verdicts on runs with fewer steps than R30 requires."""
    need = int(thresholds.of("step-variance")["min_steps"])
    several = bool(make_run_heading(measured))
    for of_run in walls.group_by("run").frames():
        if len(of_run) < need:
            reason = f"{len(of_run)} of at least {need} steps"
            named = of_run.values("run")[0] if several else None
            yield Verdict("step-variance", "insufficient data", reason, named, *_compute_excess_over_median(of_run))


def _compute_excess_over_median(walls: Frame) -> tuple[int | None, float | None]:
    """Compute the mean excess of steps over their median: (ns, share of the mean step); None without any."""
    wall = walls.number("wall_ns")
    excess = float(np.maximum(wall - np.median(wall), 0).mean()) if len(wall) else 0.0
    return (round(excess), excess / float(wall.mean())) if excess else (None, None)


def _find_step_variance(measured: Measurements, walls: Frame, thresholds: Thresholds) -> list[Finding]:
    """Find R30: steps that differ so much that their mean is misleading."""
    limit = thresholds.of("step-variance")
    findings = []
    for of_run in walls.group_by("run").frames():
        # Remove scheduled stages: validation every fifth step is not variance.
        wall = of_run.number("wall_ns") - sum_planned_stage_time(measured, of_run)
        if len(wall) < limit["min_steps"]:
            continue
        median, mean = float(np.median(wall)), float(wall.mean())
        if not median:
            continue
        variation = float(wall.std(ddof=1)) / mean
        reasons = list(_list_variance_reasons(wall, median, variation, limit))
        if not reasons:
            continue
        excess = float(np.maximum(wall - median, 0).sum() / len(wall))
        run, longest = of_run.values("run")[0], of_run.values("step")[int(wall.argmax())]
        long_steps = of_run.filter(wall > (float(wall.min()) + float(wall.max())) / 2)
        pause = find_longer_pause(measured, of_run, long_steps)
        if pause is not None and pause.more_ns < MIN_EXPLAINED_VARIANCE_RATIO * (float(wall.max()) - median):
            pause = None
        findings.append(
            Finding(
                "step-variance",
                thresholds.severity(excess / mean),
                f"{reasons[0]}{_explain_long_steps(pause, long_steps)}{phrase_run(measured, run)}",
                PAUSE_ADVICE if pause else VARIANCE_ADVICE,
                (
                    Metric("max_over_median", float(wall.max()) / median, "", "lower", label="longest over median"),
                    Metric("variation", variation, "ratio", "lower", label="standard deviation over mean"),
                ),
                (Place(source=None, step=longest),),
                round(excess),
                excess / mean,
                tuple(reasons[1:]),
                is_catch_all=True,
                changes=tuple(write_change("equalise", on, across="step") for on in ("device", "host")),
                instances=_pick_steps(measured, of_run.with_columns(cost=wall)),
            )
        )
    return findings


def _pick_steps(measured: Measurements, walls: Frame) -> tuple[Instance, ...]:
    """Pick the longest step and a median one, without their planned stages, on the rank where each is longest."""
    steps = list_step_runs(measured, walls.values("run")[0]).sort("dur_ns", descending=["dur_ns"])
    steps = clear_redundant_parts(steps).distinct(*UNIT)
    return pick_instances(steps.join(walls.select(*UNIT, "cost"), UNIT, optional=UNIT), "cost")


MIN_EXPLAINED_VARIANCE_RATIO = 0.5
"""Minimum share of the excess of a long step that a host pause must cover to explain it."""

VARIANCE_ADVICE = (
    "profile after warm-up; compare the longest step with a median one "
    "(recompilation, garbage collection, longer sequences)"
)
PAUSE_ADVICE = (
    "record the host's activity there with with_stack=True; look for recompilation (TORCH_LOGS=recompiles), "
    "garbage collection (gc.freeze), checkpoints and logging"
)


def _list_variance_reasons(
    wall: npt.NDArray[np.float64], median: float, variation: float, limit: Mapping[str, float]
) -> Iterator[str]:
    """List the limits that the steps of a run exceed, as claims."""
    over, first = float(wall.max()) / median, float(wall[0]) / median
    if over > limit["max_over_median"]:
        yield f"the longest step takes {over:.2f} times the median"
    if variation > limit["variation"]:
        yield f"steps vary by {format_quantity(variation, 'ratio')} (standard deviation over mean)"
    if first > limit["first_over_median"]:
        yield f"the first step takes {first:.1f} times the median: warm-up"


def _explain_long_steps(pause: LongerPause | None, long_steps: Frame) -> str:
    """Explain long steps by a longer host pause, as the end of a claim; empty without such a pause."""
    if pause is None:
        return ""
    steps = [step for step in long_steps.values("step") if step is not None]
    where = f" in {choose_plural(len(steps), 'step')} {format_ranges(set(steps))}" if steps else ""
    return f":{where}{',' * bool(where)} {pause.words}"


ANALYSIS = Analysis(
    id="steps",
    title="Where does the step go?",
    reads=("host_ops", "device_ops", "device_ranges"),
    writes=(STEPS, STAGES, RECURRENCES),
    rests_on=("arrivals", "collectives", "gpu_time", "segments", "slots"),
    rules=("step-variance",),
    thresholds={
        "step-variance": {
            # Minimum number of steps.
            "min_steps": 4,
            # Longest step over the median step.
            "max_over_median": 1.3,
            # Standard deviation over the mean.
            "variation": 0.10,
            # The first step over the median step: warm-up.
            "first_over_median": 3.0,
        }
    },
    every_step=True,
    measure=measure,
    judge=judge,
)
