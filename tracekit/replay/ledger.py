"""Critical path and ledger: who owns each nanosecond, found by walking back along the edges that decided."""

from __future__ import annotations

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, numbers, texts
from tracekit.model.tables.keys import group_arrays
from tracekit.replay.edges import DEVICE_KINDS, KINDS, Ints, Mask, Numbers, mark_kinds, split_rows
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.paths import SpentTime, Timing, walk_back
from tracekit.replay.steps import JobSteps


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """Edges that decided the end of the last step: the time `spent` in each, and the time before the first instant.

    The times add up to `length_ns`. `residual_ns` is the part of them that nothing explains.
    """

    spent: SpentTime
    before_ns: int
    length_ns: int
    residual_ns: int

    @property
    def residual_share(self) -> float:
        """Share of the path that no mechanism explains; 0 for an empty path."""
        return self.residual_ns / self.length_ns if self.length_ns else 0.0

    @property
    def covered_residual_share(self) -> float:
        """The same of the part of the path that is recorded."""
        covered_ns = self.length_ns - self.before_ns
        return self.residual_ns / covered_ns if covered_ns else 0.0


def find_critical_path(
    job: JobGraph,
    steps: JobSteps,
    timing: Timing | None = None,
    added: tuple[Numbers, Numbers] = (np.empty(0, np.int32), np.empty(0, np.int32)),
) -> CriticalPath:
    """Find the critical path from the begin of the first counted step to the last instant of the last one.

    Without steps, the path covers the whole recording. Edges that a change `added` follow those of the graph.
    """
    timing = timing or job.settled.timing
    time = timing.time
    if not len(time):
        return CriticalPath(SpentTime(np.empty(0, np.int32), np.empty(0, np.int64)), 0, 0, 0)
    if len(steps):
        at = steps.end[[int(time[steps.end].argmax())]]
        low = time[steps.begin].min()
    else:
        at, low = np.array([time.argmax()], np.int32), time.min()
    high = time[at]
    source = np.concatenate((job.edges.source, added[0])) if len(added[0]) else job.edges.source
    spent, before = walk_back(timing, source, at, np.array([low], np.int64), high)
    length = int(high[0] - low)
    assert int(spent.ns.sum()) + before == length, "the pieces of the critical path add up to it"
    return CriticalPath(spent, before, length, int(keep_unexplained(job, spent).ns.sum()))


def keep_unexplained(job: JobGraph, spent: SpentTime) -> SpentTime:
    """Keep the part of the time of each edge that nothing explains; edges that a change added have none."""
    known = spent.edge < len(job.edges.source)
    return SpentTime(spent.edge[known], np.minimum(spent.ns[known], job.settled.find_residuals(spent.edge[known])))


def list_path_pieces(job: JobGraph, steps: JobSteps) -> Frame:
    """List the recorded critical path piece by piece: columns source, pid, ts_ns (on the clock of the process), dur_ns, kind, name.

    Neighboring pieces of one owner are one. The last piece comes first.
    """
    process, kind, owner, begin, end = _list_owned_pieces(job, steps)
    keys = (process * len(KINDS) + kind) * (owner.max(initial=0) + 2) + owner + 1
    _, first, of_piece = np.unique(keys, return_index=True, return_inverse=True)
    owners = zip(process[first].tolist(), kind[first].tolist(), owner[first].tolist(), strict=True)
    names = [_name_edge_owner(job, *owned) for owned in owners]
    sources = [job.processes[place].source for place in process.tolist()]
    return Frame.from_columns(
        {
            "source": texts([origin.name for origin in sources]),
            "pid": numbers([origin.pid for origin in sources]),
            "ts_ns": begin + np.asarray(job.offset_ns, np.int64)[process],
            "dur_ns": end - begin,
            "kind": texts([KINDS[number] for number in kind.tolist()]),
            "name": texts([names[number] for number in of_piece.tolist()]),
        }
    )


def _list_owned_pieces(job: JobGraph, steps: JobSteps) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """List the process, kind and owner of each piece of the recorded critical path, its begin and its end."""
    path, begin, end = _walk_path(job, steps) if len(steps) else (np.empty(0, np.int64),) * 3
    process = job.process_of(job.edges.target[path]).astype(np.int64)
    # An arrival at a collective is of no process: the piece is of the process that it came from.
    process = np.where(process < len(job.processes), process, job.process_of(job.edges.source[path]))
    kind, owner = job.edges.kind[path].astype(np.int64), job.edges.owner[path].astype(np.int64)
    changes = (np.diff(process) != 0) | (np.diff(kind) != 0) | (np.diff(owner) != 0)
    # The walk is backwards: the first edge of an owner has the end of its piece, the last one the begin.
    first = np.flatnonzero(np.append(np.ones(min(len(path), 1), np.bool_), changes))
    last = np.append(first[1:], len(path))[: len(first)] - 1
    return process[first], kind[first], owner[first], begin[last], end[first]


def _walk_path(job: JobGraph, steps: JobSteps) -> tuple[Ints, Ints, Ints]:
    """Walk the recorded critical path back: each edge that took time, with the begin and end of its time."""
    timing = job.settled.timing
    time, decider, source = timing.time.tolist(), timing.decider.tolist(), job.edges.source.tolist()
    low, here = int(timing.time[steps.begin].min()), int(steps.end[timing.time[steps.end].argmax()])
    rows: list[tuple[int, int, int]] = []
    until = time[here]
    while until > low and decider[here] >= 0:
        edge = decider[here]
        here = source[edge]
        begin = max(time[here], low)
        if begin < until:
            rows.append((edge, begin, until))
            until = begin
    path, begins, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return path, begins, ends


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """Time of every process within its steps: `window_ns` = `work_ns` + the sum of `owed` of its row.

    `owed[p]` is the time of process p in which its devices did not work, by the edge that owns it; what came before
    the first instant is `before_ns`.
    """

    process: Ints
    window_ns: Ints
    work_ns: Ints
    owed: tuple[SpentTime, ...]
    before_ns: Ints


def close_ledger(job: JobGraph, steps: JobSteps, timing: Timing | None = None) -> Ledger:
    """Find the owner of all time of each process, from its first counted step to its last, in which its devices did not work.

    A collective works from the arrival of its last member on. A hole ends where work begins: the edges that decided
    that instant own it, back to the begin of the hole.
    """
    timing = timing or job.settled.timing
    time = timing.time
    processes = np.unique(steps.process) if len(steps) else np.arange(len(job.processes))
    columns: list[tuple[int, int, SpentTime, int]] = []
    met = split_rows(np.where(job.meeting.op >= 0, job.meeting.process, -1), len(job.processes))
    for process in processes.tolist():
        low, high, last = _find_window(job, steps, time, process)
        begin, end, instant = _list_work(job, time, process, met[process])
        holes, work = _find_holes(begin, end, instant, (low, high, last))
        spent, before = walk_back(timing, job.edges.source, *holes)
        assert high - low == work + int(spent.ns.sum()) + before, "the ledger closes to the nanosecond"
        columns.append((high - low, work, spent, before))
    window, work_ns, owed, before_ns = zip(*columns, strict=True) if columns else ((), (), (), ())
    return Ledger(
        processes,
        np.array(window, np.int64),
        np.array(work_ns, np.int64),
        tuple(owed),
        np.array(before_ns, np.int64),
    )


def measure_residual_ratio(job: JobGraph, ledger: Ledger) -> float:
    """Measure the share of all windows that no dependency explains."""
    window_ns = int(ledger.window_ns.sum())
    unexplained = sum(int(keep_unexplained(job, owed).ns.sum()) for owed in ledger.owed)
    return unexplained / window_ns if window_ns else 0.0


def _find_window(job: JobGraph, steps: JobSteps, time: Ints, process: int) -> tuple[int, int, int]:
    """Find the window of a process: begin, end, and the instant at its end."""
    rows = np.flatnonzero(steps.process == process)
    if len(rows):
        last = int(steps.end[rows][time[steps.end[rows]].argmax()])
        return int(time[steps.begin[rows]].min()), int(time[last]), last
    mine = np.arange(job.first[process], job.first[process + 1])
    if not len(mine):
        return 0, 0, 0
    last = int(mine[time[mine].argmax()])
    return int(time[mine].min()), int(time[last]), last


def _list_work(job: JobGraph, time: Ints, process: int, mine: Ints) -> tuple[Ints, Ints, Numbers]:
    """List when the ops of a process work, with the rows of its meetings: begin, end, and the instant that decided the begin."""
    graph = job.processes[process]
    first = int(job.first[process]) + graph.host_count
    instant = (first + 2 * np.arange(len(graph.ops))).astype(np.int32)
    end = time[instant + 1]
    begins_at = instant.copy()
    meeting = job.meeting
    op = meeting.op[mine] - job.first_op[process]
    arrives = time[meeting.arrival[mine]] > time[instant[op]]
    begins_at[op[arrives]] = meeting.arrival[mine[arrives]]
    return time[begins_at], end, begins_at


def _find_holes(
    begin: Ints, end: Ints, instant: Numbers, window: tuple[int, int, int]
) -> tuple[tuple[Numbers, Ints, Ints], int]:
    """Find the holes between work: ((instant at the end, begin, end of each), time at work)."""
    low, high, last = window
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    lasting = np.flatnonzero(end > begin)
    order = lasting[np.argsort(begin[lasting], kind="stable")]
    begin, end, instant = begin[order], end[order], instant[order]
    busy_until = np.maximum.accumulate(np.concatenate(([low], end)))
    starts = np.append(begin, high)
    is_hole = starts > busy_until
    at = np.append(instant, np.int32(last))[is_hole].astype(np.int32)
    from_, to = busy_until[is_hole], starts[is_hole]
    return (at, from_, to), high - low - int((to - from_).sum())


def name_owners(job: JobGraph, spent: SpentTime) -> Frame:
    """Sum times of edges by owner, largest first: columns rank, kind, name, ns; rows without time are left out."""
    edges, used = job.edges, spent.edge[spent.ns > 0]
    process = job.process_of(edges.target[used])
    is_arrival = process == len(job.processes)
    process[is_arrival] = job.process_of(edges.source[used[is_arrival]])
    owned: dict[tuple[int | None, str, str | None], int] = {}
    device = mark_kinds(edges.kind[used], *DEVICE_KINDS)
    name, names = _number_owner_names(job, process, device, edges.owner[used])
    ranks = [graph.source.rank for graph in job.processes]
    known_ranks = {rank: number for number, rank in enumerate(dict.fromkeys(ranks))}
    rank = np.array([known_ranks[each] for each in ranks], np.int64)[process]
    number, first = group_arrays([rank, edges.kind[used], name])
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, number, spent.ns[spent.ns > 0])
    keys = zip(process[first].tolist(), edges.kind[used[first]].tolist(), name[first].tolist(), strict=True)
    for (place, kind, number_of_name), ns in zip(keys, sums.tolist(), strict=True):
        owned[ranks[place], KINDS[kind], names[number_of_name]] = ns
    rows = sorted(owned.items(), key=lambda item: (-item[1], str(item[0])))
    return Frame.from_columns(
        {
            "rank": numbers([key[0] for key, _ in rows]),
            "kind": texts([key[1] for key, _ in rows]),
            "name": texts([key[2] for key, _ in rows]),
            "ns": np.array([ns for _, ns in rows], np.int64),
        }
    )


def _number_owner_names(
    job: JobGraph, process: Ints, device: Mask, owner: Numbers
) -> tuple[Ints, tuple[str | None, ...]]:
    """Number the names of the rows and ops that own edges: (number of each edge's, names); None where nothing is recorded."""
    numbered: dict[str | None, int] = {None: 0}
    number = np.zeros(len(owner), np.int64)
    part = 2 * process + device
    order = np.argsort(part, kind="stable")
    order = order[owner[order] >= 0]
    begins = np.flatnonzero(np.diff(part[order], prepend=-1))
    for rows in np.split(order, begins[1:]) if len(begins) else ():
        place, is_device = divmod(int(part[rows[0]]), 2)
        graph = job.processes[place]
        name = (graph.ops if is_device else graph.paths).name
        codes = name.codes[owner[rows] - (job.first_op if is_device else job.first_path)[place]]
        used = np.unique(codes).tolist()
        of_code = np.zeros(len(name.texts) + 1, np.int64)
        of_code[used] = [numbered.setdefault(name.texts[code] if code >= 0 else None, len(numbered)) for code in used]
        number[rows] = of_code[codes]
    return number, tuple(numbered)


def _name_edge_owner(job: JobGraph, process: int, kind: int, owner: int) -> str | None:
    """Name the row or op that owns an edge; None if nothing is recorded there."""
    if owner < 0:
        return None
    graph = job.processes[process]
    if kind in DEVICE_KINDS:
        name, place = graph.ops.name, owner - int(job.first_op[process])
    else:
        name, place = graph.paths.name, owner - int(job.first_path[process])
    code = int(name.codes[place])
    return name.texts[code] if code >= 0 else None
