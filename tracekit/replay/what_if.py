"""Answers of `tracekit whatif`: the step with each change, the work that it touches, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.job.report.tables import parse_headings, select_filled_sheets
from tracekit.model.records import dataclass
from tracekit.model.report import Report, Section, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity, format_signed
from tracekit.model.version import VERSION
from tracekit.replay.contention import Contention
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import CriticalPath, close_ledger, find_critical_path
from tracekit.replay.plan import MOST_RESIDUAL, Plan
from tracekit.replay.predict import Prediction
from tracekit.replay.process_parts.host_load import HostContention, judge_host_contention
from tracekit.replay.steps import JobSteps, StepTimes, measure_step_times
from tracekit.replay.what_if_tables import (
    count_steps,
    find_least_slack,
    list_touched_edges,
    make_changed_stage_sheet,
    make_ledger_sheets,
    make_path_sheet,
    make_replay_sheet,
    make_touched_sheet,
    measure_path_cover,
)

OVERHEAD = "the prediction is of the profiled step: it includes profiler overhead"

LEAST_UNCOVERED = 0.01
"""Share of the critical path before the recording from which on a note mentions it."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """A replayed run: its steps as recorded, the predictions for the changes, and the critical path after them."""

    job: JobGraph
    steps: JobSteps
    recorded: StepTimes
    recorded_path: CriticalPath
    predictions: tuple[Prediction, ...]
    path: CriticalPath

    @property
    def unit(self) -> str:
        """Name of the unit of time: a capture without a step number is not called a step."""
        return "step" if (self.steps.number >= 0).any() else "capture"

    @property
    def residual_share(self) -> float:
        """Share of the recorded critical path that no dependency explains."""
        return measure_path_cover(self.steps, self.recorded_path, self.job.time).residual_share

    @property
    def contention(self) -> HostContention:
        """Competition of the processes for CPU cores."""
        processes = self.job.processes
        on_host = not any(len(graph.ops) for graph in processes)
        loads = [graph.load for graph in processes]
        return judge_host_contention([graph.source for graph in processes], loads, on_host=on_host)

    @property
    def refusal(self) -> str:
        """Reason why no step is predicted from this run; empty if it can be."""
        if self.residual_share > MOST_RESIDUAL:
            share, limit = (format_quantity(ratio, "ratio", 2) for ratio in (self.residual_share, MOST_RESIDUAL))
            return f"{share} of the critical path is unexplained, more than {limit}"
        if self.contention.state == "contended":
            return f"{self.contention.reason}: processes slow each other down"
        return ""


def answer_what_if(job: JobGraph, steps: JobSteps, predictions: Sequence[Prediction] = ()) -> WhatIf:
    """Collect the answer: the critical path as recorded, and after the last change."""
    recorded = find_critical_path(job, steps)
    path = recorded
    if predictions:
        path = find_critical_path(job, steps, predictions[-1].timing, predictions[-1].added)
    return WhatIf(job, steps, measure_step_times(steps, job.time), recorded, tuple(predictions), path)


def build_what_if_report(answer: WhatIf, title: str, facts: Sequence[str] = (), cautions: Sequence[str] = ()) -> Report:
    """Build the report of an answer: the changes, what they touch, the critical path, and the ledger of each rank."""
    return Report(
        title=title,
        tool_version=VERSION,
        identity=_list_identity(answer, facts),
        answer=_describe_answer(answer),
        overview=_list_predictions(answer) if answer.predictions else None,
        sections=tuple(_build_sections(answer)),
        cautions=(*cautions, *_list_cautions(answer)),
    )


def _list_identity(answer: WhatIf, facts: Sequence[str]) -> tuple[str, ...]:
    unexplained = format_quantity(answer.residual_share, "ratio")
    return (*(facts or _describe_run(answer)), f"{unexplained} of the critical path unexplained")


def _describe_run(answer: WhatIf) -> Iterator[str]:
    processes, steps = len(answer.job.processes), count_steps(answer.steps)
    yield f"{processes} {choose_plural(processes, 'process', 'processes')}"
    yield f"{steps} {choose_plural(steps, answer.unit)}"


def _describe_answer(answer: WhatIf) -> str:
    """Describe the step with all changes, or as recorded."""
    before = answer.recorded.mean_ns
    if not answer.predictions:
        return f"{answer.unit} {format_quantity(before, 'ns')} as recorded (no change was given)"
    after = answer.predictions[-1].step.mean_ns
    share = format_signed((after - before) / before, "ratio") if before else ""
    return (
        f"predicted {answer.unit}: {format_quantity(before, 'ns')} → {format_quantity(after, 'ns')} "
        f"({format_signed(after - before, 'ns')}, {share})"
    )


def _list_cautions(answer: WhatIf, plan: Plan | None = None) -> Iterator[str]:
    if answer.predictions or (plan is not None and plan.fixes):
        applied = plan.contention if plan is not None else None
        if answer.predictions and answer.predictions[-1].rescaled:
            applied = answer.predictions[-1].contention
        yield from _describe_constant_durations(applied)
        yield OVERHEAD
        if answer.contention.reason:
            yield answer.contention.reason
    if answer.job.unmatched:
        count = answer.job.unmatched
        yield (
            f"{count:,} {choose_plural(count, 'collective has', 'collectives have')} no partner among the recorded ranks: "
            "waits for other ranks count as part of the collective"
        )
    path = answer.path
    if path.length_ns and path.before_ns > LEAST_UNCOVERED * path.length_ns:
        covered = format_quantity(path.length_ns - path.before_ns, "ns")
        yield f"the critical path covers the last {covered}: no dependency leads from there to earlier recordings"


def list_plan_cautions(answer: WhatIf, plan: Plan) -> Iterator[str]:
    """List what limits a plan beyond what every prediction assumes: measured contention, and shared CPU cores."""
    if plan.contention is not None:
        yield _describe_contention(plan.contention)
    if answer.contention.reason:
        yield answer.contention.reason


def _describe_contention(applied: Contention) -> str:
    kernels = f"{applied.kernels:,} {choose_plural(applied.kernels, 'kernel')}"
    return f"kernels during communication take {applied.factor:.2f}× as long: measured on {kernels}, applied"


def _describe_constant_durations(applied: Contention | None) -> Iterator[str]:
    """Describe what the replay assumes of the length of kernels, and the contention that it applied."""
    if applied is None:
        yield "durations are constants: contention between kernels, clocks and caches are not modeled"
        return
    yield _describe_contention(applied)
    yield "durations are constants otherwise: contention between other kernels, clocks and caches are not modeled"


_CHANGES = parse_headings("""
    number | # | id
    change | change
    ops | ops | count | Device ops whose length changed.
    waits | waits | count | Waits that the change removed: of calls for the device, and between streams.
    host_ns | host time | ns | Host time taken off, over all ranks and recorded steps.
    step_ns | step | ns | Predicted step with this change and those before it.
    gain_ns | saved | ns | Against the step before this change.
    alone_ns | alone | ns | Saved by this change without the others.
""")


def _list_predictions(answer: WhatIf) -> Sheet:
    """List the changes with the predicted steps."""
    rows, before = [], answer.recorded.mean_ns
    touched_edges = list_touched_edges(answer.job, answer.predictions)
    for prediction, edges in zip(answer.predictions, touched_edges, strict=True):
        step, touched = prediction.step.mean_ns, prediction.touched
        change, waits = prediction.change.describe(), int(edges.is_dropped.sum())
        gain, alone = before - step, answer.recorded.mean_ns - prediction.alone_ns
        rows.append((edges.number, change, touched.ops, waits, touched.host_ns, step, gain, alone))
        before = step
    return make_replay_sheet("changes", f"Predicted {answer.unit}s", _CHANGES, rows)


def build_plan_report(
    answer: WhatIf,
    plan: Plan,
    unplanned: Sequence[str],
    title: str,
    facts: Sequence[str] = (),
    cautions: Sequence[str] = (),
) -> Report:
    """Build the report of a plan: the fixes in order, their changes, the critical path, and the ledger of each rank."""
    fixes = (Section("fixes", "Changes of the fixes", sheets=(_list_changes_of_fixes(plan),)),) if plan.fixes else ()
    return Report(
        title=title,
        tool_version=VERSION,
        identity=_list_identity(answer, facts),
        answer=_describe_plan(answer, plan),
        overview=_list_fixes(plan) if plan.fixes else None,
        sections=(*fixes, *_build_sections(answer)),
        cautions=(*cautions, *_list_cautions(answer, plan), *unplanned),
    )


def _describe_plan(answer: WhatIf, plan: Plan) -> str:
    """Describe the step after all fixes."""
    recorded = format_quantity(plan.recorded_ns, "ns")
    if answer.refusal:
        return f"{answer.unit} {recorded} as recorded; nothing is predicted"
    if not plan.fixes:
        return f"{answer.unit} {recorded} as recorded; no fix of a finding can be replayed"
    count, last = len(plan.fixes), plan.step_ns
    share = format_signed((last - plan.recorded_ns) / plan.recorded_ns, "ratio") if plan.recorded_ns else ""
    return (
        f"predicted {answer.unit} with {count} {choose_plural(count, 'fix', 'fixes')}: {recorded} → "
        f"{format_quantity(last, 'ns')} ({format_signed(last - plan.recorded_ns, 'ns')}, {share})"
    )


_PLAN = parse_headings("""
    number | # | id
    fix | finding
    step_ns | step | ns | Predicted step with this fix and those before it.
    gain_ns | saved | ns | Against the step before this fix.
    alone_ns | alone | ns | Saved by this fix without the others.
    last_ns | after all others | ns | Saved once all other fixes are made.
    behind | behind | text | The earlier fix that leaves this one little to save.
""")


def _list_fixes(plan: Plan) -> Sheet:
    """List the planned fixes, the one that saves most first."""
    rows = [
        (
            planned.saving.number,
            planned.fix.name,
            planned.saving.step_ns,
            planned.saving.after_ns,
            planned.saving.alone_ns,
            planned.saving.last_ns,
            f"#{planned.saving.behind}" if planned.saving.behind else None,
        )
        for planned in plan.fixes
    ]
    return make_replay_sheet("plan", "Fixes of the findings, one after the other", _PLAN, rows)


_FIXES = parse_headings("""
    number | # | id
    change | change | text | As `tracekit whatif --change` reads it.
""")


def _list_changes_of_fixes(plan: Plan) -> Sheet:
    """List the changes of each fix."""
    rows = [(number, change.describe()) for number, fix in enumerate(plan.fixes, 1) for change in fix.fix.changes]
    return make_replay_sheet("fixes", "Changes by fix", _FIXES, rows)


def _build_sections(answer: WhatIf) -> Iterator[Section]:
    """Build the sections: changed work, critical path, and ledger."""
    job, steps = answer.job, answer.steps
    if answer.predictions:
        touched = make_touched_sheet(job, answer.predictions), make_changed_stage_sheet(job, answer.predictions)
        yield Section("touched", "Changed work", sheets=select_filled_sheets(*touched))
    after = " after the changes" if answer.predictions else ""
    time = answer.predictions[-1].timing.time if answer.predictions else job.time
    cover = measure_path_cover(steps, answer.path, time)
    slack = find_least_slack(job, steps, answer.predictions, answer.path)
    yield Section("critical_path", f"Critical path{after}", sheets=(make_path_sheet(job, answer.path, cover, slack),))
    sheets = make_ledger_sheets(job, steps, close_ledger(job, steps))
    yield Section("ledger", "Time without device work by owner, as recorded", sheets=select_filled_sheets(*sheets))
