"""The dependency graph of each run, from the graphs of its processes, with the steps that count."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.job.frames import find_damaged_sources
from tracekit.job.steps.steady_steps import Steps, list_left_out_steps
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.graph_columns import GraphKey, get_graph_key
from tracekit.model.inputs.note_codes import FILTERED_ROWS
from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass
from tracekit.model.trace import GraphColumns, Measurements, Want
from tracekit.pipeline.measure_source import read_source
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.pipeline.run_grouping.primary_tool import TIMING_TOOLS
from tracekit.pipeline.wire_format.column_coding import DamagedGraphError
from tracekit.pipeline.wire_format.packed_graphs import build_graph_columns, unpack_graph
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.process_graph import READS, ProcessGraph
from tracekit.replay.steps import JobSteps, list_job_steps, list_whole_recordings

_MEASURE_AGAIN = "name the profile itself, or save its measurements again with --save"


@dataclass(frozen=True, slots=True, eq=False)
class RunGraph:
    """The graph of one run, and its counted steps: the whole recording of each process where no step counts.

    `refusal` is the reason why no fix is predicted from its files; empty if enough are whole. Lost rows are lost dependencies.
    `caveat` names the incomplete files, which are not part of the graph; empty if there are none.
    """

    run: str | None
    job: JobGraph
    steps: JobSteps
    refusal: str = ""
    caveat: str = ""


def add_missing_graphs(measured: Measurements, files: Sequence[Source], options: Options) -> Measurements:
    """Read again the traces whose measurements have no graph, and add their graphs.

    A file that cannot be read again has none.
    """
    known = {graph.key for graph in measured.graphs}
    missing = {source.name for source in _list_timed_sources(measured) if get_graph_key(source) not in known}
    unread = [source for source in files if source.name in missing]
    if not unread:
        return measured
    work = partial(build_source_graphs, ranks=parse_optional_numbers(options.ranks))
    added = list(measured.graphs)
    with show_progress_line(sys.stderr, "reading graphs", enabled=options.progress) as on_progress:
        for outcome in local.run_locally(work, unread, jobs=options.jobs, on_progress=on_progress):
            added += (graph for graph in outcome.value or () if graph.key not in known)
    return replace(measured, graphs=tuple(added))


def build_source_graphs(
    source: Source, advance: Advance, *, ranks: frozenset[int] | None = None
) -> tuple[GraphColumns, ...]:
    """Read one source and build the graph of each of its processes."""
    traces = read_source(source, advance, Want(tables=READS, python=True, modules=True), ranks=ranks)
    return tuple(map(build_graph_columns, traces))


def join_runs(measured: Measurements, excluded: Steps | None = None) -> list[RunGraph]:
    """Join the graphs of each run whose traces all have one; the steps are those that count in the measurements.

    An incomplete file counts as one that was not recorded, as long as most files of its run are whole.
    Steps that a caller `excluded` replace those that do not count. Runs without recorded work are left out.
    Raises `TracekitError` for damaged graphs.
    """
    chosen = _list_chosen_steps(measured) if measured.facts.has_chosen_steps else None
    if excluded is not None:
        left_out = excluded
    else:
        left_out = () if chosen is not None else list_left_out_steps(measured)
    known = {graph.key: graph for graph in measured.graphs}
    by_run: dict[str | None, list[Source]] = {}
    for source in _list_timed_sources(measured):
        by_run.setdefault(source.run, []).append(source)
    joined, removed, damaged = [], _list_sources_without_rows(measured), find_damaged_sources(measured)
    for run, sources in by_run.items():
        if all(get_graph_key(source) in known for source in sources):
            names = [source.name for source in sources]
            refusal, caveat = _explain_lost_rows(names, damaged, removed)
            used = [source for source in sources if source.name not in damaged] if caveat else sources
            graph = _join_run(run, _iterate_graphs(used, known), left_out, chosen)
            joined += [replace(graph, refusal=refusal, caveat=caveat)] if graph.job.processes else []
    return joined


def _explain_lost_rows(
    names: Sequence[str], damaged: AbstractSet[str | None], removed: AbstractSet[str | None]
) -> tuple[str, str]:
    """Explain the files of a run that lack rows: (refusal, caveat). With a caveat the run is predicted from its whole files."""
    filtered = [name for name in names if name in removed]
    if filtered:
        return f"rows were removed from {filtered[0]}, and with them dependencies", ""
    incomplete = [name for name in names if name in damaged]
    if not incomplete:
        return "", ""
    if 2 * len(incomplete) >= len(names):
        return f"{incomplete[0]} is incomplete, and with it the dependencies that it recorded", ""
    if len(incomplete) == 1:
        return "", f"{incomplete[0]} is incomplete: fixes are predicted as if it was not recorded"
    return (
        "",
        f"{len(incomplete)} of {len(names)} files are incomplete: fixes are predicted as if they were not recorded",
    )


def _list_sources_without_rows(measured: Measurements) -> set[str | None]:
    """List the sources from which rows were removed."""
    return {note.source for note in measured.notes if note.code == FILTERED_ROWS}


def _iterate_graphs(sources: Sequence[Source], known: Mapping[GraphKey, GraphColumns]) -> Iterator[ProcessGraph]:
    """Iterate over the graphs of processes that recorded work, each with the source as it was measured."""
    for source in sources:
        graph = _unpack_known_graph(known[get_graph_key(source)])
        if graph is not None:
            yield replace(graph, source=source)
            del graph


def lacks_graphs(measured: Measurements) -> bool:
    """Check whether a trace was measured without its graph."""
    known = {graph.key for graph in measured.graphs}
    return any(get_graph_key(source) not in known for source in _list_timed_sources(measured))


def _list_timed_sources(measured: Measurements) -> list[Source]:
    """List the sources with times of host and device work."""
    return [source for source in measured.sources if source.tool in TIMING_TOOLS]


def _unpack_known_graph(columns: GraphColumns) -> ProcessGraph | None:
    """Unpack the graph of a process; None if it recorded no work. Raises `TracekitError` for damaged columns."""
    try:
        return unpack_graph(columns)
    except DamagedGraphError as error:
        raise TracekitError(f"{columns.source.name}: not readable as a graph: {error}", _MEASURE_AGAIN) from error


def _list_chosen_steps(measured: Measurements) -> frozenset[object]:
    """List the numbers of the steps that a person chose."""
    return frozenset(measured.frame("steps").values("step")) if measured.row_count("steps") else frozenset()


def _join_run(
    run: str | None, processes: Iterable[ProcessGraph], left_out: Steps, chosen: frozenset[object] | None
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
