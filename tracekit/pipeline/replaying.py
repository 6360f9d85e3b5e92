"""Replaying a run: read it as dependency graphs, join these, and predict the step with changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tracekit.discover.arguments import list_paths, split_label
from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.job.steps.steady_steps import list_left_out_steps
from tracekit.job.steps.warm_up import DroppedStep
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.graph_columns import GraphKey, get_graph_key
from tracekit.model.inputs.saved_files import sniff_saved_form
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Report
from tracekit.model.trace import GraphColumns, Measurements, Source, Want
from tracekit.model.units import format_quantity
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.pipeline.question_selection import describe_selection
from tracekit.pipeline.run_grouping.primary_tool import TIMING_TOOLS, select_primary_tool
from tracekit.pipeline.summary.screen import list_run_facts
from tracekit.pipeline.wire_format.column_coding import DamagedGraphError
from tracekit.pipeline.wire_format.packed_graphs import unpack_graph
from tracekit.replay.changes import ChangeError, RunChange, make_change, parse_change
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.plan import Fix, plan_fixes
from tracekit.replay.predict import predict_changes
from tracekit.replay.process_graph import READS, ProcessGraph, build_process_graph
from tracekit.replay.steps import JobSteps, list_job_steps, list_whole_recordings
from tracekit.replay.what_if import MOST_RESIDUAL, answer_what_if, build_plan_report, build_what_if_report

_NAME_TRACES = "name Chrome traces of torch.profiler, or reports of Nsight Systems"
_MEASURE_AGAIN = "name the profile itself, or save its measurements again with --save"


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedRun:
    """The graph of a run, its counted steps, and the facts of its first line."""

    title: str
    job: JobGraph
    steps: JobSteps
    facts: tuple[str, ...]
    measured: Measurements


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
    is_saved = _are_saved(arguments)
    chosen = replace(options, questions=questions, skip=(), details=False, graphs=True)
    if is_saved:
        files = None
        measured = pipeline.measure_all(arguments, replace(chosen, questions=None))
    else:
        discovery = pipeline.discover_sources(paths, options)
        files = discovery.sources
        measured = pipeline.measure(discovery, chosen)
    replayed = replay_measured(measured, options, files)
    if replayed is None:
        raise TracekitError("nothing to replay: these saved measurements contain no dependency graphs", _MEASURE_AGAIN)
    return replayed


def replay_measured(
    measured: Measurements, options: Options = Options(), files: Sequence[Source] | None = None
) -> ReplayedRun | None:
    """Join the graphs of measurements to that of their run, and list its counted steps.

    Sources measured without a graph are read again from `files`; without `files` the answer is then None.
    Raises `TracekitError` without a run, for several, and for graphs that cannot be read.
    """
    measured = select_primary_tool(measured)
    sources = _select_timed_sources(measured)
    known = {graph.key: graph for graph in measured.graphs}
    missing = {get_graph_key(source) for source in sources} - known.keys()
    if missing and files is None:
        return None
    names = {name for name, _, _ in missing}
    unread = [source for source in files or () if source.name in names]
    again = {get_graph_key(graph.source): graph for graph in _read_graphs(unread, options)} if unread else {}
    job = join_processes(_iterate_graphs(sources, known, again))
    if not job.processes:
        raise TracekitError("nothing to replay: the traces contain neither host ops nor device work", _NAME_TRACES)
    steps = _list_counted_steps(job, measured, parse_optional_numbers(options.steps))
    return ReplayedRun(measured.facts.title, job, steps, _list_facts(measured, options), measured)


def _iterate_graphs(
    sources: Sequence[Source], known: Mapping[GraphKey, GraphColumns], again: dict[GraphKey, ProcessGraph]
) -> Iterator[ProcessGraph]:
    """Iterate over the graphs of processes that recorded work, each with the source as it was measured."""
    for source in sources:
        key = get_graph_key(source)
        graph = _unpack_known_graph(known[key]) if key in known else again.pop(key, None)
        if graph is not None:
            yield replace(graph, source=source)
            del graph


def _unpack_known_graph(columns: GraphColumns) -> ProcessGraph | None:
    """Unpack the graph of a process; None if it recorded no work. Raises `TracekitError` for damaged columns."""
    try:
        return unpack_graph(columns)
    except DamagedGraphError as error:
        raise TracekitError(f"{columns.source.name}: not readable as a graph: {error}", _MEASURE_AGAIN) from error


def _read_graphs(files: Sequence[Source], options: Options) -> list[ProcessGraph]:
    """Read files as dependency graphs. Raises `TracekitError` if one cannot be read."""
    work = partial(build_source_graphs, ranks=parse_optional_numbers(options.ranks))
    graphs: list[ProcessGraph] = []
    with show_progress_line(sys.stderr, "replaying", enabled=options.progress) as on_progress:
        for outcome in local.run_locally(work, files, jobs=options.jobs, on_progress=on_progress):
            if outcome.failure is not None:
                raise TracekitError(f"{outcome.source.name}: {outcome.failure.problem}", outcome.failure.hint)
            graphs += outcome.value or ()
    return graphs


def _are_saved(arguments: Sequence[str | Path]) -> bool:
    """Check whether any argument is a file of saved measurements. Raises `TracekitError` for saved reports."""
    forms = {path: sniff_saved_form(path) for _, path in map(split_label, arguments)}
    for path, form in forms.items():
        if form not in (None, "measurements"):
            raise TracekitError(f"{path}: a saved report contains no events to replay", "name the profile itself")
    return any(forms.values())


def build_source_graphs(
    source: Source, advance: Advance, *, ranks: frozenset[int] | None = None
) -> tuple[ProcessGraph, ...]:
    """Read one source and build the graph of each of its processes that records work."""
    want = Want(tables=READS, python=True, modules=True)
    traces = pipeline.read_source(source, advance, want, ranks=ranks)
    return tuple(build_process_graph(trace) for trace in traces if trace.has("host_ops") or trace.has("device_ops"))


def _select_timed_sources(measured: Measurements) -> list[Source]:
    """Select the traces of the one run. Raises `TracekitError` if there are several runs or none."""
    sources = [source for source in measured.sources if source.tool in TIMING_TOOLS]
    runs = sorted({source.run for source in sources})
    if len(runs) > 1:
        named = f"{', '.join(runs[:6])}{' …' if len(runs) > 6 else ''}"
        raise TracekitError(
            f"a replay needs one run, and {len(runs)} runs are here: {named}", "name the directory of one"
        )
    if not sources:
        raise TracekitError("nothing to replay: no trace of host or device work is here", _NAME_TRACES)
    return sources


def _list_counted_steps(job: JobGraph, measured: Measurements, chosen: frozenset[int] | None) -> JobSteps:
    """List the steps that count in `tracekit analyze`, or those chosen. Raises `TracekitError` if none is recorded."""
    left_out = () if chosen is not None else list_left_out_steps(measured)
    steps = list_job_steps(job, lambda process, number: _counts(job, process, number, left_out, chosen))
    if chosen is not None and not len(steps):
        raise TracekitError("no step that was asked for is recorded", "tracekit inspect PATH lists the steps")
    return steps if len(steps) else list_whole_recordings(job)


def _counts(
    job: JobGraph, process: int, number: int | None, left_out: Sequence[DroppedStep], chosen: frozenset[int] | None
) -> bool:
    """Check whether a step counts."""
    source = job.processes[process].source
    if chosen is not None:
        return number in chosen
    return not any(
        step.step == number and (step.run or "") == (source.run or "") and step.part in (None, source.part)
        for step in left_out
    )


def _list_facts(measured: Measurements, options: Options) -> tuple[str, ...]:
    """List the facts of the first line as `tracekit analyze` does."""
    left_out = () if options.steps else list_left_out_steps(measured)
    asked = describe_selection(measured)
    return tuple(fact for fact in list_run_facts(measured, left_out) if fact != asked)


def predict_run(replay: ReplayedRun, changes: Sequence[RunChange]) -> Report:
    """Predict the step of a run with changes, one after the other. Raises `ChangeError`."""
    answer = answer_what_if(replay.job, replay.steps)
    if changes:
        share = answer.residual_share
        if share > MOST_RESIDUAL:
            raise ChangeError(
                _phrase_unexplained_share(share),
                "run without --change: the critical path lists the owners of the unexplained time",
            )
        answer = answer_what_if(replay.job, replay.steps, predict_changes(replay.job, replay.steps, changes))
    return build_what_if_report(answer, f"Prediction: {replay.title}", replay.facts)


def _phrase_unexplained_share(share: float) -> str:
    limit = format_quantity(MOST_RESIDUAL, "ratio", 2)
    return f"{format_quantity(share, 'ratio', 2)} of the critical path is unexplained, more than {limit}: nothing is predicted"


def plan_run(replay: ReplayedRun, findings: Sequence[Finding]) -> Report:
    """Plan the fixes of the findings that name a change: predict the step with one after the other."""
    recorded = answer_what_if(replay.job, replay.steps)
    share = recorded.residual_share
    fixes = [make_fix(finding) for finding in findings if finding.changes]
    unplanned = [f"not predicted: {finding.rule} names no change" for finding in findings if not finding.changes]
    if share > MOST_RESIDUAL:
        fixes, unplanned = [], [_phrase_unexplained_share(share)]
    plan = plan_fixes(replay.job, replay.steps, fixes)
    unplanned += [f"not predicted: {fixes[place].name}: {problem}" for place, problem in plan.refused]
    return build_plan_report(recorded, plan, unplanned, f"Plan: {replay.title}", replay.facts)


def make_fix(finding: Finding) -> Fix:
    """Make the fix of a finding."""
    return Fix(f"{finding.rule}: {finding.claim}", tuple(map(parse_change, finding.changes)))


def ask_what_if(
    paths: str | Path | Sequence[str | Path], changes: Sequence[str | Mapping[str, Any] | RunChange], options: Options
) -> Report:
    """Replay the run at `paths` with changes, given as texts or fields; without changes, with the fixes of its findings.

    Raises `TracekitError`.
    """
    if not changes:
        replay = replay_run(paths, options, questions=None)
        report = pipeline.judge(replay.measured, details=False)
        return plan_run(replay, [finding for finding in report.findings if finding.severity != "info"])
    parsed = [_read_change(change) for change in changes]
    return predict_run(replay_run(paths, options), parsed)


def _read_change(change: str | Mapping[str, Any] | RunChange) -> RunChange:
    if isinstance(change, RunChange):
        return change
    return parse_change(change) if isinstance(change, str) else make_change(change)
