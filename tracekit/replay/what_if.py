"""Answers to what-if questions: the step with each change, what the change touches, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.records import dataclass
from tracekit.model.report import Report, Section, Sheet
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity, format_signed
from tracekit.model.version import VERSION
from tracekit.replay.edges import COPY, HOST_KINDS, KERNEL, TRANSFER, Ints
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import CriticalPath, close_ledger, find_critical_path, name_owners
from tracekit.replay.plan import Plan
from tracekit.replay.predict import Prediction
from tracekit.replay.selection import JobIndex
from tracekit.replay.steps import JobSteps, StepTimes, measure_step_times

MOST_RESIDUAL = 0.2
"""No step is predicted where a larger share of the critical path has no explanation."""

MAX_PATH_ROWS = 200


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """A replayed run: its steps as recorded, the predictions for the changes, and the critical path after them."""

    job: JobGraph
    steps: JobSteps
    recorded: StepTimes
    recorded_path: CriticalPath
    predictions: tuple[Prediction, ...]
    path: CriticalPath


def answer_what_if(job: JobGraph, steps: JobSteps, predictions: Sequence[Prediction] = ()) -> WhatIf:
    """Collect the answer: the critical path as recorded, and after the last change."""
    recorded = find_critical_path(job, steps)
    path = recorded
    if predictions:
        path = find_critical_path(job, steps, predictions[-1].timing, predictions[-1].added)
    return WhatIf(job, steps, measure_step_times(steps, job.time), recorded, tuple(predictions), path)


def build_what_if_report(answer: WhatIf, title: str, notes: Sequence[str] = ()) -> Report:
    """Build the report of an answer: the changes, what they touch, the critical path, and the ledger of each rank."""
    return Report(
        title=title,
        tool_version=VERSION,
        identity=tuple(_describe_run(answer)),
        answer=_describe_answer(answer),
        overview=_list_changes(answer) if answer.predictions else None,
        sections=tuple(_build_sections(answer)),
        cautions=(*notes, *_list_cautions(answer)),
    )


def _describe_run(answer: WhatIf) -> Iterator[str]:
    processes = len(answer.job.processes)
    yield f"{processes} {choose_plural(processes, 'process', 'processes')}"
    numbers = {int(number) for number in answer.steps.number}
    count = len(numbers)
    yield f"{count} {choose_plural(count, 'step')} of {format_quantity(answer.recorded.mean_ns, 'ns')}"
    yield f"{format_quantity(answer.recorded_path.residual_share, 'ratio')} of the critical path unexplained"


def _describe_answer(answer: WhatIf) -> str:
    """Describe the step with all changes, or what the step consists of."""
    before = answer.recorded.mean_ns
    if not answer.predictions:
        return f"the step takes {format_quantity(before, 'ns')}; no change was given"
    after = answer.predictions[-1].step.mean_ns
    share = format_signed((after - before) / before, "ratio") if before else ""
    return (
        f"predicted: {format_quantity(before, 'ns', 4)} → {format_quantity(after, 'ns', 4)} per step "
        f"({format_signed(after - before, 'ns')}, {share})"
    )


def _list_cautions(answer: WhatIf, *, is_predicted: bool = False) -> Iterator[str]:
    if answer.predictions or is_predicted:
        yield (
            "work is assumed to last as long as recorded: kernels that slow each other down, clocks and caches are not modeled"
        )
    if answer.job.unmatched:
        count = answer.job.unmatched
        yield (
            f"{count} {choose_plural(count, 'collective')} matched no other rank: their waits for other ranks count as transfer"
        )


_CHANGES = parse_headings("""
    number | # | count
    change | change
    ops | ops | count | Device ops whose length or launch changed.
    waits | waits | count | Calls whose wait for the device was dropped or moved.
    host_ns | host time | ns | Host time taken off, over all ranks and steps.
    step_ns | step | ns | Predicted step with this change and those before it.
    gain_ns | saved | ns | Against the step before this change.
    alone_ns | alone | ns | Saved by this change alone.
""")


def _list_changes(answer: WhatIf) -> Sheet:
    """List the changes with the predicted steps."""
    rows, before = [], answer.recorded.mean_ns
    for number, prediction in enumerate(answer.predictions, 1):
        step = prediction.step.mean_ns
        touched = prediction.touched
        gain, alone = before - step, answer.recorded.mean_ns - prediction.alone_ns
        rows.append(
            (number, prediction.change.describe(), touched.ops, touched.waits, touched.host_ns, step, gain, alone)
        )
        before = step
    names = [heading.name for heading in _CHANGES]
    return make_sheet("changes", "Predicted steps", _CHANGES, from_rows(names, rows))


def build_plan_report(
    answer: WhatIf, plan: Plan, unplanned: Sequence[str], title: str, notes: Sequence[str] = ()
) -> Report:
    """Build the report of a plan: the fixes in order, their changes, the critical path, and the ledger of each rank."""
    return Report(
        title=title,
        tool_version=VERSION,
        identity=tuple(_describe_run(answer)),
        answer=_describe_plan(plan),
        overview=_list_fixes(plan) if plan.fixes else None,
        sections=(
            *(
                (Section("fixes", "Changes of the fixes", sheets=(_list_changes_of_fixes(plan),)),)
                if plan.fixes
                else ()
            ),
            *_build_sections(answer),
        ),
        cautions=(*notes, *_list_cautions(answer, is_predicted=bool(plan.fixes)), *unplanned),
    )


def _describe_plan(plan: Plan) -> str:
    """Describe the step after all fixes."""
    recorded = format_quantity(plan.recorded_ns, "ns", 4)
    if not plan.fixes:
        return f"the step takes {recorded}; no finding names a change that can be replayed"
    count, last = len(plan.fixes), plan.fixes[-1].step_ns
    share = format_signed((last - plan.recorded_ns) / plan.recorded_ns, "ratio") if plan.recorded_ns else ""
    fixes = f"{count} {choose_plural(count, 'fix', 'fixes')}"
    return (
        f"predicted: {recorded} → {format_quantity(last, 'ns', 4)} per step ({share}) with the {fixes} of the findings"
    )


_PLAN = parse_headings("""
    number | # | count
    fix | finding
    step_ns | step | ns | Predicted step with this fix and those before it.
    gain_ns | saves | ns | Against the step before this fix.
    alone_ns | alone | ns | Saved by this fix alone.
    last_ns | after all others | ns | Saved once all other fixes are made.
    behind | behind | text | The earlier fix that leaves this one little to save.
""")


def _list_fixes(plan: Plan) -> Sheet:
    """List the planned fixes, the one that saves most first."""
    rows = [
        (
            number,
            fix.fix.name,
            fix.step_ns,
            fix.gain_ns,
            fix.alone_ns,
            fix.last_ns,
            f"#{fix.behind}" if fix.behind else None,
        )
        for number, fix in enumerate(plan.fixes, 1)
    ]
    return make_sheet("plan", "Plan: fix one finding after the other", _PLAN, from_rows([h.name for h in _PLAN], rows))


_FIXES = parse_headings("""
    number | # | count
    change | change | text | As `tracekit whatif --change` reads it.
""")


def _list_changes_of_fixes(plan: Plan) -> Sheet:
    """List what each fix changes."""
    rows = [(number, change.describe()) for number, fix in enumerate(plan.fixes, 1) for change in fix.fix.changes]
    return make_sheet("fixes", "What each fix changes", _FIXES, from_rows([h.name for h in _FIXES], rows))


_TOUCHED = parse_headings("""
    number | # | count
    stage | stage
    device_ns | device time | ns | Change of the length of ops, over all ranks and steps.
    host_ns | host time | ns | Change of host time, over all ranks and steps.
""")

_PATH = parse_headings("""
    rank | rank | id
    kind | kind
    name | row or op
    step_ns | per step | ns | Time on the critical path, per counted step.
    share | share | ratio | Of the critical path.
""")

_LEDGER = parse_headings("""
    rank | rank | id
    window_ns | window | ns | From the begin of the first counted step to the end of the last.
    work_ns | work | ns | Time in which a device of the rank worked; collectives count from the last arrival on.
    kind | owner of the rest
    owner_rank | owner's rank | id
    name | row or op
    ns | time | ns
    share | share | ratio | Of the window.
""")


def _build_sections(answer: WhatIf) -> Iterator[Section]:
    """Build the sections: what changed by stage, the critical path, and the ledger."""
    if answer.predictions:
        yield Section("touched", "What the changes touch", sheets=(_list_touched_stages(answer),))
    after = " after the changes" if answer.predictions else ""
    yield Section("critical_path", f"Critical path{after}", sheets=(_list_path(answer),))
    yield Section("ledger", "Where each rank's time went, as recorded", sheets=(_list_ledger(answer),))


def _list_touched_stages(answer: WhatIf) -> Sheet:
    """List the altered time by change and stage."""
    job, edges = answer.job, answer.job.edges
    index = JobIndex(job)
    sums: dict[tuple[int, str | None], list[int]] = {}
    before = edges.weight
    for number, prediction in enumerate(answer.predictions, 1):
        after = prediction.weight
        for place, kinds in enumerate(((KERNEL, COPY, TRANSFER), HOST_KINDS)):
            rows = np.flatnonzero((before != after) & np.isin(edges.kind, kinds))
            at = job.time[edges.target[rows]] - 1 if place else index.op_at_ns[edges.owner[rows]]
            change = np.maximum(after[rows], 0) - np.maximum(before[rows], 0)
            stages = _find_stage_names(job, index.edge_process[rows], at)
            for stage, ns in zip(stages, change.tolist(), strict=True):
                sums.setdefault((number, stage), [0, 0])[place] += ns
        before = after
    in_order = sorted(sums.items(), key=lambda item: (item[0][0], sum(item[1])))
    listed = [(number, stage, *both) for (number, stage), both in in_order]
    return make_sheet("touched", "Changed time by stage", _TOUCHED, from_rows([h.name for h in _TOUCHED], listed))


def _find_stage_names(job: JobGraph, process: Ints, time: Ints) -> list[str | None]:
    """Name the outermost stage of each process at a time; None outside any."""
    names: npt.NDArray[np.object_] = np.full(len(time), None, object)
    for number, graph in enumerate(job.processes):
        mine = np.flatnonzero(process == number)
        if len(mine) and len(graph.stages):
            row = graph.stages.row_at(time[mine])
            texts = np.array([*graph.stages.stage.texts, None], object)
            names[mine] = texts[np.append(graph.stages.stage.codes, -1)[row]]
    listed: list[str | None] = names.tolist()
    return listed


def _list_path(answer: WhatIf) -> Sheet:
    """List the critical path by owner, per counted step."""
    owned = name_owners(answer.job, answer.path.spent_ns[: len(answer.job.edges.source)])
    length = answer.path.length_ns
    count = max(len({int(number) for number in answer.steps.number}), 1)
    ns = owned["ns"]
    frame = owned.with_columns(step_ns=ns / count, share=ns / max(length, 1))
    shown = frame.head(MAX_PATH_ROWS)
    return make_sheet("critical_path", "Critical path by owner", _PATH, shown)


def _list_ledger(answer: WhatIf) -> Sheet:
    """List the largest owners of the time in which each rank's devices did not work."""
    ledger = close_ledger(answer.job, answer.steps)
    rows: list[tuple[Any, ...]] = []
    for place, process in enumerate(ledger.process.tolist()):
        rank = answer.job.processes[process].source.rank
        window, work = int(ledger.window_ns[place]), int(ledger.work_ns[place])
        owned: Frame = name_owners(answer.job, ledger.owed_ns[place])
        for row in owned.head(20).rows("rank", "kind", "name", "ns"):
            rows.append(
                (rank, window, work, row["kind"], row["rank"], row["name"], row["ns"], row["ns"] / max(window, 1))
            )
    return make_sheet("ledger", "Owners of idle time", _LEDGER, from_rows([h.name for h in _LEDGER], rows))
