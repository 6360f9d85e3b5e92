"""Replaying a run: read it again as dependency graphs, join these, and predict the step with changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.job.steps.steady_steps import list_left_out_steps
from tracekit.job.steps.warm_up import DroppedStep
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.trace import Measurements, Source, Want
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache.saved_measurements import sniff_saved_form
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.pipeline.run_grouping.primary_tool import select_primary_tool
from tracekit.replay.changes import ChangeError, RunChange, make_change, parse_change
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.predict import predict_changes
from tracekit.replay.process_graph import ProcessGraph, build_process_graph
from tracekit.replay.steps import JobSteps, list_job_steps
from tracekit.replay.what_if import MOST_RESIDUAL, answer_what_if, build_what_if_report

_GRAPH_TABLES = frozenset(
    {"host_ops", "device_ops", "device_ranges", "syncs", "windows", "threads", "python_calls", "memory_ops"}
)
TIMED_TOOLS = ("torch", "nsys")


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedRun:
    """The graph of a run and its counted steps."""

    title: str
    job: JobGraph
    steps: JobSteps
    notes: tuple[str, ...]


def replay_run(paths: str | Path | Sequence[str | Path], options: Options = Options()) -> ReplayedRun:
    """Build the dependency graph of the run at `paths`. Raises `TracekitError` if there is none, or several."""
    _refuse_saved([paths] if isinstance(paths, (str, Path)) else paths)
    discovery = pipeline.discover_sources(paths, options)
    chosen = replace(options, questions=("steps",), skip=(), steps=None, details=False)
    measured = select_primary_tool(pipeline.measure(discovery, chosen))
    sources = _select_timed_sources(measured)
    names = {source.name for source in sources}
    work = partial(build_source_graphs, ranks=parse_optional_numbers(options.ranks))
    graphs: list[ProcessGraph] = []
    files = [source for source in discovery.sources if source.name in names]
    with show_progress_line(sys.stderr, "replaying", enabled=options.progress) as on_progress:
        for outcome in local.run_locally(work, files, jobs=options.jobs, on_progress=on_progress):
            if outcome.failure is not None:
                raise TracekitError(f"{outcome.source.name}: {outcome.failure.problem}", outcome.failure.hint)
            graphs += outcome.value or ()
    identified = _identify_graphs(graphs, sources)
    if not identified:
        raise TracekitError("no trace here records host or device work", "name traces of torch.profiler or nsys")
    job = join_processes(identified)
    chosen_steps = parse_optional_numbers(options.steps)
    steps = _list_counted_steps(job, measured, chosen_steps)
    return ReplayedRun(discovery.title, job, steps, _describe_left_out(measured) if chosen_steps is None else ())


def _refuse_saved(paths: Sequence[str | Path]) -> None:
    """Raise `TracekitError` for saved measurements and reports: they contain no rows to replay."""
    for path in paths:
        form = sniff_saved_form(Path(path))
        if form is not None:
            what = "saved measurements" if form == "measurements" else "a saved report"
            raise TracekitError(f"{path}: {what} cannot be replayed", "name the profile that it was made of")


def build_source_graphs(
    source: Source, advance: Advance, *, ranks: frozenset[int] | None = None
) -> tuple[ProcessGraph, ...]:
    """Read one source and build the graph of each of its processes that records work."""
    want = Want(tables=_GRAPH_TABLES, python=True, modules=True)
    traces = pipeline.read_source(source, advance, want, ranks=ranks)
    return tuple(build_process_graph(trace) for trace in traces if trace.has("host_ops") or trace.has("device_ops"))


def _select_timed_sources(measured: Measurements) -> list[Source]:
    """Select the traces of the one run. Raises `TracekitError` if there are several runs or none."""
    sources = [source for source in measured.sources if source.tool in TIMED_TOOLS]
    runs = sorted({source.run for source in sources})
    if len(runs) > 1:
        raise TracekitError(f"{len(runs)} runs are here: {', '.join(runs[:6])}", "name one of them")
    if not sources:
        raise TracekitError("no trace is here", "name traces of torch.profiler or nsys")
    return sources


def _identify_graphs(graphs: Sequence[ProcessGraph], sources: Sequence[Source]) -> list[ProcessGraph]:
    """Give each graph the source as it was measured; drop processes that were not."""
    known: Mapping[tuple[Any, ...], Source] = {(source.name, source.pid, source.rank): source for source in sources}
    found = [(known.get((graph.source.name, graph.source.pid, graph.source.rank)), graph) for graph in graphs]
    return [replace(graph, source=source) for source, graph in found if source is not None]


def _list_counted_steps(job: JobGraph, measured: Measurements, chosen: frozenset[int] | None) -> JobSteps:
    """List the steps that count in `tracekit analyze`, or those chosen. Raises `TracekitError` if none is recorded."""
    left_out = () if chosen is not None else list_left_out_steps(measured)
    steps = list_job_steps(job, lambda process, number: _counts(job, process, number, left_out, chosen))
    if chosen is not None and not len(steps):
        raise TracekitError("none of these steps is recorded", "tracekit inspect PATH lists the steps")
    return steps


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


def _describe_left_out(measured: Measurements) -> tuple[str, ...]:
    """Describe the steps that do not count."""
    steps = sorted({step.step for step in list_left_out_steps(measured) if step.step is not None})
    return (f"left out, as in `tracekit analyze`: step {', '.join(map(str, steps))}",) if steps else ()


def predict_run(replay: ReplayedRun, changes: Sequence[RunChange]) -> Report:
    """Predict the step of a run with changes, one after the other. Raises `ChangeError`."""
    recorded = answer_what_if(replay.job, replay.steps)
    share = recorded.recorded_path.residual_share
    if changes and share > MOST_RESIDUAL:
        raise ChangeError(
            f"{share:.0%} of the critical path has no recorded cause: no step can be predicted",
            "without --change the critical path and the ledger are shown",
        )
    predictions = predict_changes(replay.job, replay.steps, changes)
    answer = answer_what_if(replay.job, replay.steps, predictions)
    return build_what_if_report(answer, f"What if: {replay.title}", replay.notes)


def ask_what_if(
    paths: str | Path | Sequence[str | Path], changes: Sequence[str | Mapping[str, Any] | RunChange], options: Options
) -> Report:
    """ReplayedRun the run at `paths` with changes, given as texts or fields. Raises `TracekitError`."""
    parsed = [_read_change(change) for change in changes]
    return predict_run(replay_run(paths, options), parsed)


def _read_change(change: str | Mapping[str, Any] | RunChange) -> RunChange:
    if isinstance(change, RunChange):
        return change
    return parse_change(change) if isinstance(change, str) else make_change(change)
