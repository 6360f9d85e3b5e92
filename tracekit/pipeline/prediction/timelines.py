"""The timeline of a report: the page data of its processes, and the critical paths of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from tracekit.analyses.memory.card_holders import list_timeline
from tracekit.job.memory.card_timeline import list_engine_states
from tracekit.job.run_log.log_strips import build_log_blocks
from tracekit.model.inputs.page_blocks import PackedPage, pack_page_blocks
from tracekit.model.inputs.timeline import PathPieces, Timeline, TimelineProcess
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.model.trace import Measurements
from tracekit.pipeline.prediction.run_graphs import RunGraph
from tracekit.replay.ledger import list_path_pieces
from tracekit.replay.what_if_tables import KIND_LABELS


def make_timeline(measured: Measurements, critical: PathPieces | None) -> Timeline | None:
    """Make the timeline of measured processes; None if the data of none was asked for, or there is none.

    Where only logs of drivers were read, it has the steps and stages that they time.
    """
    processes = tuple(list_timeline_processes(measured))
    if not processes:
        return None
    engines = tuple(list_engine_states(list_timeline(measured))) if measured.row_count("card_holders") else ()
    return Timeline(processes, critical, causes=PAGE_CAUSES, engines=engines)


def list_timeline_processes(measured: Measurements) -> Iterator[TimelineProcess]:
    """List the page data of measured processes and of logs alone, with the labels of their sources."""
    of_logs = [PackedPage(blocks.source, pack_page_blocks(blocks)) for blocks in build_log_blocks(measured)]
    for page in (*measured.pages, *of_logs):
        source = page.source
        labels = (source.name, source.run, source.role, source.rank, source.host, source.pid)
        yield TimelineProcess(*labels, page.data)


def trace_critical_paths(graphs: Sequence[RunGraph]) -> PathPieces | None:
    """Trace the recorded critical path of each run, with kinds as tables name them; None without a run."""
    paths = [list_path_pieces(graph.job, graph.steps) for graph in graphs]
    if not paths:
        return None
    columns = {
        field.name: [value for path in paths for value in path.values(field.name)] for field in fields(PathPieces)
    }
    columns["kind"] = [KIND_LABELS[kind] for kind in columns["kind"]]
    return PathPieces(*map(tuple, columns.values()))
