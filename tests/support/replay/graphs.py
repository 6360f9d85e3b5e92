"""Hand-made runs, replayed: times of ops and calls as recorded and after changes, in whole microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from chrome_builder import BASE_NS, annotation, kernel, launch, op, write

import tracekit.analyses  # noqa: F401 - the registry of questions
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.run_graphs import build_source_graphs
from tracekit.pipeline.wire_format.packed_graphs import unpack_graph
from tracekit.replay.changes import RunChange, make_change
from tracekit.replay.changing.apply import Touched
from tracekit.replay.edges import KINDS
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.paths import Timing
from tracekit.replay.predict import predict_changes
from tracekit.replay.process_graph import ProcessGraph
from tracekit.replay.steps import list_job_steps


def read_graphs(path) -> list[ProcessGraph]:
    """Read every source at a path as dependency graphs."""
    discovery = pipeline.discover_sources(path, Options(cache=False))
    columns = [each for source in discovery.sources for each in build_source_graphs(source, lambda _: None)]
    return [graph for graph in map(unpack_graph, columns) if graph is not None]


@dataclass
class ReplayedJob:
    """A job and the times of its instants, recorded or after changes."""

    job: JobGraph
    timing: Timing
    touched: tuple[Touched, ...] = ()

    def after(self, *changes) -> ReplayedJob:
        """Replay with changes, given as fields or made."""
        made = [change if isinstance(change, RunChange) else make_change(change) for change in changes]
        predictions = predict_changes(self.job, list_job_steps(self.job), made)
        return replace(self, timing=predictions[-1].timing, touched=tuple(each.touched for each in predictions))

    def _find_op(self, name, rank, nth) -> int:
        """The start of the n-th op of a name on a rank."""
        (place,) = [number for number, graph in enumerate(self.job.processes) if graph.source.rank in (rank, None)]
        graph = self.job.processes[place]
        names = [graph.ops.name.texts[code] for code in graph.ops.name.codes]
        found = [number for number, text in enumerate(names) if text == name][nth]
        return int(self.job.first[place]) + graph.host_count + 2 * found

    def start(self, name, rank=0, nth=0) -> float:
        """When an op starts, in µs."""
        return (int(self.timing.time[self._find_op(name, rank, nth)]) - BASE_NS) / 1_000

    def end(self, name, rank=0, nth=0) -> float:
        """When an op ends, in µs."""
        return (int(self.timing.time[self._find_op(name, rank, nth) + 1]) - BASE_NS) / 1_000

    def host(self, us, rank=0, thread=0) -> float:
        """When the host comes to the instant that was recorded at a time, in µs; `thread` counts by thread id."""
        (place,) = [number for number, graph in enumerate(self.job.processes) if graph.source.rank in (rank, None)]
        graph = self.job.processes[place]
        threads = np.unique(graph.thread)
        asked = (graph.time[: graph.host_count] == BASE_NS + round(us * 1_000)) & (graph.thread == threads[thread])
        (found,) = np.flatnonzero(asked)
        return (int(self.timing.time[int(self.job.first[place]) + found]) - BASE_NS) / 1_000

    def unexplained(self) -> float:
        """The time of all edges that nothing explains, in µs."""
        return int(self.job.settled.residual.ns.sum()) / 1_000

    def count_edges(self, kind) -> int:
        """How many edges of a kind there are."""
        return int((self.job.edges.kind == KINDS.index(kind)).sum())


def replay_rows(folder, *ranks: Sequence[dict], **meta) -> ReplayedJob:
    """Write one trace per rank and join their graphs."""
    for rank, rows in enumerate(ranks):
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks), **meta)
    job = join_processes(read_graphs(folder))
    return ReplayedJob(job, job.settled.timing)


def runtime(name, ts, dur, correlation, tid=100):
    """A runtime call."""
    return launch(ts, correlation, dur=dur, tid=tid, name=name)


def aten(name, ts, dur, *rows, tid=100):
    """An op of the host and the rows in it."""
    return [op(name, ts, dur, tid=tid), *rows]


def issue(name, at, start, dur, correlation, stream=7, tid=100, call=4):
    """A kernel and its launch, which takes 4 µs."""
    return [launch(at, correlation, dur=call, tid=tid), kernel(name, start, dur, correlation, stream=stream)]


def meet(at, start, dur, correlation, number, *, ranks=(0, 1), stream=20, kind="AllReduce", group="0", tid=100):
    """An NCCL collective of a group and its launch."""
    about = {
        "Collective name": COLLECTIVES[kind],
        "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": len(ranks), "dtype": "Float",
        "Process Group Name": group, "Process Group Description": "default_pg", "Process Group Ranks": str(list(ranks)),
        "Seq": number,
    }  # fmt: skip
    name = f"ncclDevKernel_{kind}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [launch(at, correlation, dur=4, tid=tid), kernel(name, start, dur, correlation, stream=stream, **about)]


COLLECTIVES = {"AllReduce": "allreduce", "AllGather": "_allgather_base", "ReduceScatter": "_reduce_scatter_base"}


def collective_name(kind="AllReduce") -> str:
    """The kernel of a collective from `meet`."""
    return f"ncclDevKernel_{kind}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def shorten(name, factor=0.5, **where) -> dict:
    """The change that multiplies the length of ops."""
    return {"do": "scale", "on": "device", "op": f"^{name}$", "factor": factor, **where}


def stage(name, ts, dur):
    """A range around work."""
    return annotation(name, ts, dur)
