"""Replaying a run: read it as dependency graphs, join these, and predict the step with changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracekit.discover.arguments import list_paths, split_label
from tracekit.job.steps.steady_steps import list_left_out_steps
from tracekit.model.errors import TracekitError
from tracekit.model.failed_questions import list_fault_cautions
from tracekit.model.inputs.saved_files import sniff_saved_form
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Report
from tracekit.model.trace import Measurements
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.memory import GivenChange, predict_memory
from tracekit.pipeline.prediction.predicting import plan_findings
from tracekit.pipeline.prediction.run_graphs import RunGraph, join_runs, lacks_graphs
from tracekit.pipeline.question_selection import describe_selection
from tracekit.pipeline.run_grouping.primary_tool import TIMING_TOOLS, select_primary_tool
from tracekit.pipeline.summary.screen import list_caveats, list_run_facts, list_unseen
from tracekit.replay.changes import ChangeError, RunChange, make_change, parse_change
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import JobSteps
from tracekit.replay.what_if import answer_what_if, build_plan_report, build_what_if_report

_ASK_MEMORY = "tracekit whatif --memory PATH predicts the peak of memory from snapshots"
_ANALYZE_LOG = "tracekit analyze PATH -v shows the step of an RL log under other schedules, as bounds"
_NAME_TRACES = "name Chrome traces of torch.profiler, or reports of Nsight Systems"


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedRun:
    """The graph of a run with its counted steps, its measurements, the facts of its first line, and caveats and gaps."""

    title: str
    graph: RunGraph
    facts: tuple[str, ...]
    measured: Measurements
    cautions: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def job(self) -> JobGraph:
        """The dependency graph."""
        return self.graph.job

    @property
    def steps(self) -> JobSteps:
        """The counted steps."""
        return self.graph.steps


def replay_run(
    paths: str | Path | Sequence[str | Path],
    options: Options = Options(),
    *,
    questions: tuple[str, ...] | None = ("steps",),
) -> ReplayedRun:
    """Build the dependency graph of the run at `paths`, and measure it for some questions (None: all).

    Raises `TracekitError` without a run, and for several.
    """
    arguments = list_paths(paths)
    chosen = replace(options, questions=questions, skip=(), details=False, graphs=True)
    if _are_saved(arguments):
        measured = pipeline.measure_all(arguments, replace(chosen, questions=None))
    else:
        measured = pipeline.measure(pipeline.discover_sources(paths, options), chosen)
    return replay_measured(measured, options)


def replay_measured(measured: Measurements, options: Options = Options()) -> ReplayedRun:
    """Join the graphs of measurements to that of their run, and list its counted steps.

    Raises `TracekitError` without a run, for several, and for graphs that are missing or damaged.
    """
    measured = select_primary_tool(measured)
    _require_one_run(measured)
    for graph in join_runs(measured):
        if options.steps and not (graph.steps.number >= 0).any():
            raise TracekitError("no step that was asked for is recorded", "tracekit inspect PATH lists the steps")
        facts, cautions = _list_facts(measured, options), (*list_fault_cautions(measured), *list_caveats(measured))
        cautions += (graph.caveat,) if graph.caveat else ()
        return ReplayedRun(measured.facts.title, graph, facts, measured, cautions, list_unseen(measured))
    if lacks_graphs(measured):
        raise TracekitError(
            "nothing to replay: these saved measurements contain no dependency graphs",
            "name the profile itself, or save its measurements again with --save",
        )
    raise TracekitError("nothing to replay: the traces contain neither host ops nor device work", _NAME_TRACES)


def _are_saved(arguments: Sequence[str | Path]) -> bool:
    """Check whether any argument is a file of saved measurements. Raises `TracekitError` for saved reports."""
    forms = {path: sniff_saved_form(path) for _, path in map(split_label, arguments)}
    for path, form in forms.items():
        if form not in (None, "measurements"):
            raise TracekitError(f"{path}: a saved report contains no events to replay", "name the profile itself")
    return any(forms.values())


def _require_one_run(measured: Measurements) -> None:
    """Raise `TracekitError` if the traces are of several runs, or there are none."""
    sources = [source for source in measured.sources if source.tool in TIMING_TOOLS]
    runs = sorted({source.run for source in sources})
    if len(runs) > 1:
        named = f"{', '.join(runs[:6])}{' …' if len(runs) > 6 else ''}"
        raise TracekitError(
            f"a replay needs one run, and {len(runs)} runs are here: {named}", "name the directory of one"
        )
    if not sources:
        advice = _advise_without_traces({source.reader for source in measured.sources})
        raise TracekitError("nothing to replay: no trace of host or device work is here", advice)


def _advise_without_traces(readers: Collection[str]) -> str:
    """Name the command that answers from files without traces, otherwise the files that a replay needs."""
    if "torch_memory" in readers:
        return _ASK_MEMORY
    return _ANALYZE_LOG if "driver_log" in readers else _NAME_TRACES


def _list_facts(measured: Measurements, options: Options) -> tuple[str, ...]:
    """List the facts of the first line as `tracekit analyze` does."""
    left_out = () if options.steps else list_left_out_steps(measured)
    asked = describe_selection(measured)
    return tuple(fact for fact in list_run_facts(measured, left_out) if fact != asked)


def predict_run(replay: ReplayedRun, changes: Sequence[RunChange]) -> Report:
    """Predict the step of a run with changes, one after the other. Raises `ChangeError`."""
    answer = answer_what_if(replay.job, replay.steps)
    if changes:
        if answer.refusal:
            raise ChangeError(
                f"nothing is predicted: {answer.refusal}",
                "run without --change for the critical path and the ledger as recorded",
            )
        answer = answer_what_if(replay.job, replay.steps, predict_changes(replay.job, replay.steps, changes))
    report = build_what_if_report(answer, f"Prediction: {replay.title}", replay.facts, replay.cautions)
    return replace(report, unseen=replay.unseen)


def plan_run(replay: ReplayedRun, findings: Sequence[Finding]) -> Report:
    """Plan the fixes of the findings that name a change: predict the step with one after the other."""
    recorded = answer_what_if(replay.job, replay.steps)
    changing = [finding for finding in findings if finding.changes]
    unplanned = [f"not predicted: {finding.rule} names no change" for finding in findings if not finding.changes]
    if refusal := replay.graph.refusal or recorded.refusal:
        changing, unplanned = [], [f"nothing is predicted: {refusal}"]
    plan, _ = plan_findings(replay.job, replay.steps, changing)
    unplanned += [f"not predicted: {changing[place].rule}: {problem}" for place, problem in plan.refused]
    report = build_plan_report(recorded, plan, unplanned, f"Plan: {replay.title}", replay.facts, replay.cautions)
    return replace(report, unseen=replay.unseen)


def ask_what_if(
    paths: str | Path | Sequence[str | Path], changes: Sequence[str | Mapping[str, Any] | RunChange], options: Options
) -> Report:
    """Replay the run at `paths` with changes, given as texts or fields; without changes, with the fixes of its findings.

    Raises `TracekitError`.
    """
    if not changes:
        replay = replay_run(paths, options, questions=None)
        report = pipeline.judge(replace(replay.measured, graphs=()), details=False)
        return plan_run(replay, [finding for finding in report.findings if finding.severity != "info"])
    parsed = [_read_change(change) for change in changes]
    return predict_run(replay_run(paths, options), parsed)


def ask_memory_what_if(
    paths: str | Path | Sequence[str | Path],
    changes: Sequence[GivenChange],
    options: Options,
    micro_batches: Sequence[int] = (),
) -> Report:
    """Replay the memory snapshots at `paths` with changes; without changes, with each that applies.

    Raises `TracekitError`.
    """
    return predict_memory(pipeline.discover_sources(paths, options).sources, changes, options, micro_batches)


def _read_change(change: str | Mapping[str, Any] | RunChange) -> RunChange:
    if isinstance(change, RunChange):
        return change
    return parse_change(change) if isinstance(change, str) else make_change(change)
