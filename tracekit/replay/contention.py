"""Contention of kernels with communication: how much longer kernels take while a collective transfers on their device.

It is measured where kernels of the same work are recorded both alone and during a collective. A replay that moves or removes a
collective changes the length of the kernels that ran at the same time, and of those that run at the same time then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.replay.edges import KERNEL, Ints, Mask, split_rows
from tracekit.replay.job_graph import JobGraph

Floats = npt.NDArray[np.float64]

ALONE, BESIDE = 0.02, 0.5
"""A kernel runs alone if a collective covers at most the first share of its time, and during a collective from the second share on."""
LEAST_ALONE = 3
"""Kernels of the same work that have to run alone, for the usual length of the others."""
ALIKE = 0.2
"""Kernels of the same name, grid and shapes that run alone do different work if the middle half of their lengths spreads by more."""
LEAST_BESIDE, LEAST_OF_NAME = 20, 12
"""Kernels during collectives that a factor needs: for all kernels, and for those of one name."""
LEAST_FACTOR = 1.03
SIGMAS = 3.0
"""Kernels that take longer during a collective have to outnumber the others by this many standard deviations of a fair coin."""
MOST_LOST = 0.9
"""A larger share of time is not lost to contention: such kernels take over ten times as long for another reason."""
LEAST_CHANGE_NS = 200
"""Smaller changes of a length are not made."""


@dataclass(frozen=True, slots=True, eq=False)
class Contention:
    """How much longer kernels take during a collective: `factor` is the median over `kernels` that were compared.

    Per op of the job: `device` (over all processes), `edge` that is its length (-1: not a kernel), its `share` of time lost
    during a collective, and its length `alone_ns`.
    """

    factor: float
    kernels: int
    device: Ints
    edge: Ints
    share: Floats
    alone_ns: Floats


def measure_contention(job: JobGraph) -> Contention | None:
    """Measure how much longer kernels take during collectives; None where that is not recorded often enough."""
    if not any(graph.ops.is_collective.any() for graph in job.processes):
        return None
    device, edge = _join_devices(job), _find_length_edges(job)
    time, start = job.time, _list_starts(job)
    length = (time[start + 1] - time[start]).astype(np.float64)
    kernels = np.flatnonzero((edge >= 0) & (length > 0))
    transfers = _list_transfers(job, time, device)
    beside = _measure_beside(transfers, device, time, start, kernels) / length[kernels]
    whole = _measure_beside(_list_collective_spans(job, time, device), device, time, start, kernels) / length[kernels]
    usual = _find_lengths_alone(_number_work(job)[kernels], length[kernels], whole <= ALONE)
    compared = np.flatnonzero((usual > 0) & (beside >= BESIDE))
    lost = (length[kernels[compared]] - usual[compared]) / (length[kernels[compared]] * beside[compared])
    lost = np.minimum(lost, MOST_LOST)
    if not _is_significant(lost, LEAST_BESIDE):
        return None
    name = _number_op_names(job)[kernels]
    share = np.zeros(len(start))
    share[kernels] = _find_lost_shares(name, name[compared], lost)
    covered = np.zeros(len(start))
    covered[kernels] = beside
    typical = float(np.median(lost))
    return Contention(1 / (1 - typical), len(compared), device, edge, share, length * (1 - share * covered))


def _find_lost_shares(name: Ints, compared: Ints, lost: Floats) -> Floats:
    """Find the share of time that each kernel loses during a collective: by its name, or by all kernels."""
    share = np.full(len(name), max(float(np.median(lost)), 0.0))
    for number in np.unique(compared).tolist():
        of_name = lost[compared == number]
        if len(of_name) >= LEAST_OF_NAME:
            is_slower = _is_significant(of_name, LEAST_OF_NAME)
            share[name == number] = float(np.median(of_name)) if is_slower else 0.0
    return share


def _is_significant(lost: Floats, least: int) -> bool:
    """Check whether enough kernels take longer during a collective, and by enough."""
    count = len(lost)
    if count < least or float(np.median(lost)) < 1 - 1 / LEAST_FACTOR:
        return False
    return bool((lost > 0).sum() >= count / 2 + SIGMAS * np.sqrt(count) / 2)


def _find_lengths_alone(work: Ints, length: Floats, is_alone: Mask) -> Floats:
    """Find the median length of kernels of the same work that ran alone; 0 for too few, or if their lengths are not alike.

    Persistent kernels have one grid for products of any size: without shapes their lengths are the only difference.
    """
    usual = np.zeros(len(work))
    rows = np.flatnonzero(is_alone & (work >= 0))
    order = rows[np.lexsort((length[rows], work[rows]))]
    if not len(order):
        return usual
    begin = np.flatnonzero(np.diff(work[order], prepend=-1))
    count = np.diff(np.append(begin, len(order)))
    low, middle, high = (length[order[begin + count * part // 4]] for part in (1, 2, 3))
    is_alike = (count >= LEAST_ALONE) & (high - low <= ALIKE * middle)
    middle = np.where(is_alike, middle, 0.0)
    of_work = np.zeros(int(work.max()) + 1)
    of_work[work[order[begin]]] = middle
    known = work >= 0
    usual[known] = of_work[work[known]]
    return usual


def rescale_kernels(job: JobGraph, contention: Contention, weight: Ints, time: Ints) -> Ints:
    """Compute the weights of the edges with kernels as long as the collectives at the same time let them be, at the times of a replay.

    `weight` are those of the changes. A kernel that a change makes shorter has less work.
    """
    start, edges = _list_starts(job), job.edges
    recorded = np.maximum(edges.weight[contention.edge], 1)
    work = contention.alone_ns * (np.maximum(weight[contention.edge], 0) / recorded)
    chosen = (contention.edge >= 0) & (contention.share > 0) & (work > 0)
    transfers = _list_transfers(job, time, contention.device)
    rescaled = weight.copy()
    rows = np.flatnonzero(chosen)
    for busy, of_device in zip(transfers, split_rows(contention.device[rows], len(transfers)), strict=True):
        mine = rows[of_device]
        for share in np.unique(contention.share[mine]).tolist():
            ops = mine[contention.share[mine] == share]
            length = _stretch_work(busy, time[start[ops]], work[ops], share)
            old = weight[contention.edge[ops]]
            changed = np.abs(length - old) > LEAST_CHANGE_NS
            rescaled[contention.edge[ops[changed]]] = length[changed]
    return rescaled


def _stretch_work(busy: Intervals, start: Ints, work: Floats, share: float) -> Ints:
    """Find how long each kernel takes from its start on, if it loses a share of the time in which a collective transfers."""
    if not len(busy.start):
        return np.round(work).astype(np.int64)
    origin = min(int(busy.start[0]), int(start.min()))
    points = np.stack((busy.start, busy.end), 1).reshape(-1) - origin
    lost = np.zeros(len(points))
    lost[1::2] = (busy.end - busy.start) * share
    # Work done up to each point; it grows by 1 per ns outside of transfers, and by 1 - share within.
    done = points - np.cumsum(lost)
    far = float(points[-1]) + float(work.max()) / (1 - share) + float(start.max() - origin) + 1.0
    times = np.concatenate(([-1.0], points, [far]))
    done = np.concatenate(([done[0] - points[0] - 1.0], done, [done[-1] + far - points[-1]]))
    begin = (start - origin).astype(np.float64)
    end = np.interp(np.interp(begin, times, done) + work, done, times)
    length: Ints = np.round(end - begin).astype(np.int64)
    return length


def _list_starts(job: JobGraph) -> Ints:
    """List the instant at which each op of the job starts; it ends with the next one."""
    parts = [
        int(first) + graph.host_count + 2 * np.arange(len(graph.ops))
        for first, graph in zip(job.first[:-1], job.processes, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _join_ops(parts: Sequence[npt.NDArray[np.integer]], *, apart: bool) -> Ints:
    """Join numbers of all processes, -1 for none; `apart`: those of different processes differ."""
    joined, above = [], 0
    for part in parts:
        joined.append(np.where(part >= 0, part.astype(np.int64) + above, -1))
        above += int(part.max(initial=-1)) + 1 if apart else 0
    return np.concatenate(joined) if joined else np.empty(0, np.int64)


def _join_devices(job: JobGraph) -> Ints:
    return _join_ops([graph.work.device for graph in job.processes], apart=True)


def _number_work(job: JobGraph) -> Ints:
    return _join_ops([graph.work.number for graph in job.processes], apart=True)


def _number_op_names(job: JobGraph) -> Ints:
    """Number the names of the ops over all processes."""
    numbers: dict[str, int] = {}
    parts = []
    for graph in job.processes:
        of_text = [numbers.setdefault(text, len(numbers)) for text in graph.ops.name.texts]
        parts.append(np.array([*of_text, -1], np.int64)[graph.ops.name.codes])
    return _join_ops(parts, apart=False)


def _find_length_edges(job: JobGraph) -> Ints:
    """Find the edge that is the length of each kernel; -1 for copies and collectives."""
    edges = job.edges
    edge = np.full(int(job.first_op[-1]), -1, np.int64)
    rows = np.flatnonzero(edges.kind == KERNEL)
    edge[edges.owner[rows]] = rows
    return edge


def _list_transfers(job: JobGraph, time: Ints, device: Ints) -> list[Intervals]:
    """List when collectives transfer on each device: from the arrival of the last rank on."""
    begin = time[_list_starts(job)]
    meeting = job.meeting
    mine = np.flatnonzero(meeting.op >= 0)
    begin[meeting.op[mine]] = np.maximum(begin[meeting.op[mine]], time[meeting.arrival[mine]])
    return [*_merge_by_device(job, begin, time, device)]


def _list_collective_spans(job: JobGraph, time: Ints, device: Ints) -> list[Intervals]:
    """List when collectives are on each device, waits for other ranks included."""
    return [*_merge_by_device(job, time[_list_starts(job)], time, device)]


def _merge_by_device(job: JobGraph, begin: Ints, time: Ints, device: Ints) -> Iterator[Intervals]:
    """Merge the intervals of the collectives of each device, from the given begins to their ends."""
    end = time[_list_starts(job) + 1]
    is_collective = np.concatenate([graph.ops.is_collective for graph in job.processes])
    rows = np.flatnonzero(is_collective & (end > begin))
    for of_device in split_rows(device[rows], int(device.max(initial=-1)) + 1):
        mine = rows[of_device]
        yield merge_intervals(begin[mine], end[mine])


def _measure_beside(busy: list[Intervals], device: Ints, time: Ints, start: Ints, ops: Ints) -> Floats:
    """Measure how long each op runs within the intervals of its device."""
    beside = np.zeros(len(ops))
    for intervals, mine in zip(busy, split_rows(device[ops], len(busy)), strict=True):
        instants = start[ops[mine]]
        beside[mine] = measure_coverage(intervals, time[instants], time[instants + 1])
    return beside
