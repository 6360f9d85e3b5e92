"""The dependency graph of each run, from the graphs of its processes, with the steps that count."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.job.steps.steady_steps import Steps, list_left_out_steps
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements, Want
from tracekit.pipeline.measure_source import read_source
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.process_graph import ProcessGraph, build_process_graph
from tracekit.replay.steps import JobSteps, list_job_steps, list_whole_recordings

TIMED_TOOLS = ("torch", "nsys")

_GRAPH_TABLES = frozenset(
    {"host_ops", "device_ops", "device_ranges", "syncs", "windows", "threads", "python_calls", "memory_ops"}
)


@dataclass(frozen=True, slots=True, eq=False)
class RunGraph:
    """The graph of one run, and its counted steps: the whole recording of each process where no step counts."""

    run: str | None
    job: JobGraph
    steps: JobSteps


def read_graphs(measured: Measurements, sources: Sequence[Source], options: Options) -> list[ProcessGraph]:
    """Read those of the sources that were measured, and build their graphs. Raises `TracekitError`."""
    names = {source.name for source in measured.sources if source.tool in TIMED_TOOLS}
    work = partial(build_source_graphs, ranks=parse_optional_numbers(options.ranks))
    graphs: list[ProcessGraph] = []
    files = [source for source in sources if source.name in names]
    with show_progress_line(sys.stderr, "replaying", enabled=options.progress) as on_progress:
        for outcome in local.run_locally(work, files, jobs=options.jobs, on_progress=on_progress):
            if outcome.failure is not None:
                raise TracekitError(f"{outcome.source.name}: {outcome.failure.problem}", outcome.failure.hint)
            graphs += outcome.value or ()
    return graphs


def build_source_graphs(
    source: Source, advance: Advance, *, ranks: frozenset[int] | None = None
) -> tuple[ProcessGraph, ...]:
    """Read one source and build the graph of each of its processes that records work."""
    want = Want(tables=_GRAPH_TABLES, python=True, modules=True)
    traces = read_source(source, advance, want, ranks=ranks)
    return tuple(build_process_graph(trace) for trace in traces if trace.has("host_ops") or trace.has("device_ops"))


def join_runs(measured: Measurements, graphs: Iterable[ProcessGraph]) -> list[RunGraph]:
    """Join the graphs of the processes of each run; the steps are those that count in the measurements."""
    chosen = _list_chosen_steps(measured) if measured.facts.has_chosen_steps else None
    left_out: Steps = () if chosen is not None else list_left_out_steps(measured)
    by_run: dict[str | None, list[ProcessGraph]] = {}
    for graph in _identify_graphs(graphs, measured.sources):
        by_run.setdefault(graph.source.run, []).append(graph)
    return [_join_run(run, processes, left_out, chosen) for run, processes in by_run.items()]


def _list_chosen_steps(measured: Measurements) -> frozenset[object]:
    """List the numbers of the steps that a person chose."""
    return frozenset(measured.frame("steps").values("step")) if measured.row_count("steps") else frozenset()


def _identify_graphs(graphs: Iterable[ProcessGraph], sources: Sequence[Source]) -> Iterator[ProcessGraph]:
    """Give each graph the source as it was measured; drop processes that were not, and those of other tools."""
    known: Mapping[tuple[Any, ...], Source] = {
        (source.name, source.pid, source.rank): source for source in sources if source.tool in TIMED_TOOLS
    }
    for graph in graphs:
        source = known.get((graph.source.name, graph.source.pid, graph.source.rank))
        if source is not None:
            yield replace(graph, source=source)


def _join_run(
    run: str | None, processes: Sequence[ProcessGraph], left_out: Steps, chosen: frozenset[object] | None
) -> RunGraph:
    job = join_processes(processes)

    def is_counted(process: int, number: int | None) -> bool:
        if chosen is not None:
            return number in chosen
        source = job.processes[process].source
        return not any(
            step.step == number and (step.run or "") == (source.run or "") and step.part in (None, source.part)
            for step in left_out
        )

    steps = list_job_steps(job, is_counted)
    return RunGraph(run, job, steps if len(steps) else list_whole_recordings(job))
