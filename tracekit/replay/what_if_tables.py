"""Tables of a what-if report: changed work, the critical path, and the ledger of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.records import dataclass
from tracekit.model.report import Heading, Sheet
from tracekit.model.stages import get_stage_name, parse_profiler_step
from tracekit.model.tables.frame import from_rows
from tracekit.model.text.kernel_labels import shorten_kernel_name
from tracekit.model.units import format_quantity
from tracekit.replay.changing.apply import apply_change
from tracekit.replay.changing.selection import JobIndex
from tracekit.replay.edges import (
    COPY,
    DEVICE_KINDS,
    HOST_KINDS,
    KERNEL,
    KINDS,
    STREAM_WAIT,
    SYNC_RETURN,
    TRANSFER,
    Ints,
    Mask,
    Weights,
    split_rows,
)
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import CriticalPath, Ledger, keep_unexplained, name_owners
from tracekit.replay.paths import NEVER, UNLIMITED, SpentTime, join_spent_times, measure_slack, order_instants
from tracekit.replay.predict import Prediction, join_added
from tracekit.replay.steps import JobSteps

KIND_LABELS: Mapping[str, str] = {
    "host row": "host",
    "host gap": "no host activity",
    "call": "runtime call",
    "launch": "launch latency",
    "stream gap": "stream gap",
    "kernel": "kernel",
    "copy": "copy",
    "stream wait": "stream wait",
    "sync return": "sync return",
    "arrival": "arrival",
    "transfer": "collective",
    "launch queue": "launch queue",
    "hand-over": "thread hand-over",
    "overlap": "overlap",
    "own length": "collective",
    "changed": "added by a change",
}
"""Labels of the kinds of edges in tables."""

OTHERS, BEFORE, OUTSIDE = "other owners", "before the recording", "outside any stage"

STEP_MARK = "ProfilerStep"
"""Name for the marks of all steps: host time within a step in which nothing is recorded."""

MAX_PATH_ROWS, MAX_RANK_OWNERS, MAX_NEXT_OWNERS = 200, 20, 20

LEAST_SHOWN = 0.001
"""Share of the critical path from which on the owners of unexplained time are listed."""

Owner = tuple[int | None, str, str | None]
"""Rank, label of the kind, and name of the row or op."""


def count_steps(steps: JobSteps, begun_at: Mask | None = None) -> int:
    """Count steps once over all processes; captures without a number count where one process has most."""
    chosen = np.ones(len(steps), np.bool_) if begun_at is None else begun_at
    numbered = chosen & (steps.number >= 0)
    unnumbered = np.bincount(steps.process[chosen & (steps.number < 0)]).max(initial=0)
    return len(np.unique(steps.number[numbered])) + int(unnumbered)


def sum_owners(job: JobGraph, spent: SpentTime) -> dict[Owner, int]:
    """Sum times of edges by owner as tables name it, the largest first: marks of all steps are one owner."""
    owned: dict[Owner, int] = {}
    for row in name_owners(job, spent).rows("rank", "kind", "name", "ns"):
        owner = _make_owner(row["rank"], row["kind"], row["name"])
        owned[owner] = owned.get(owner, 0) + row["ns"]
    return _sort_owners(owned)


def _make_owner(rank: int | None, kind: str, name: str | None) -> Owner:
    return rank, KIND_LABELS[kind], STEP_MARK if name and parse_profiler_step(name) is not None else name


def describe_largest_residual(job: JobGraph, ledger: Ledger) -> str:
    """Describe the largest part of the time that nothing explains: `18 % stream gap before add, rank 0`; empty without any."""
    unexplained = join_spent_times([keep_unexplained(job, owed) for owed in ledger.owed])
    ranks: dict[tuple[str, str | None], dict[int | None, int]] = {}
    for (rank, kind, name), ns in sum_owners(job, unexplained).items():
        ranks.setdefault((kind, name), {})[rank] = ns
    window_ns = int(ledger.window_ns.sum())
    if not ranks or not window_ns:
        return ""
    (kind, name), by_rank = max(ranks.items(), key=lambda item: sum(item[1].values()))
    part = f"{format_quantity(sum(by_rank.values()) / window_ns, 'ratio')} {kind}"
    if name:
        part += f" {'before' if kind in ('stream gap', 'launch latency') else 'in'} {shorten_kernel_name(name)}"
    return f"{part}, rank {next(iter(by_rank))}" if len(by_rank) == 1 and len(job.processes) > 1 else part


def _sort_owners(owned: Mapping[Owner, int]) -> dict[Owner, int]:
    return dict(sorted(owned.items(), key=lambda item: (-item[1], str(item[0]))))


def make_replay_sheet(
    name: str, title: str, headings: Sequence[Heading], rows: Sequence[Sequence[Any]], caption: str = ""
) -> Sheet:
    """Make a table of rows in the order of the headings."""
    names = [heading.name for heading in headings]
    return make_sheet(name, title, headings, from_rows(names, rows), caption=caption)


_PATH = parse_headings("""
    rank | rank | id
    kind | kind
    name | row or op
    step_ns | per step | ns | Time on the critical path, per counted step.
    share | share | ratio | Of the critical path.
    slack_ns | slack | ns | By how much this work could grow off the critical path before it decides the end: the least of its instances.
    unexplained_ns | unexplained | ns | The part that no recorded or inferred dependency explains.
""")


@dataclass(frozen=True, slots=True)
class PathCover:
    """The part of the critical path for which something is recorded: its length and its steps."""

    ns: int
    steps: int
    residual_share: float


def measure_path_cover(steps: JobSteps, path: CriticalPath, time: Ints) -> PathCover:
    """Measure how much of the critical path is recorded, with the time of each instant.

    The path ends where no dependency leads further back.
    """
    covered = path.length_ns - path.before_ns
    share = path.residual_ns / covered if covered else 0.0
    if not path.before_ns or not len(steps):
        return PathCover(covered, max(count_steps(steps), 1), share)
    ends = time[steps.end]
    return PathCover(covered, max(count_steps(steps, ends > ends.max() - covered), 1), share)


def make_path_sheet(job: JobGraph, path: CriticalPath, cover: PathCover, slack: Mapping[Owner, int]) -> Sheet:
    """List the critical path by owner, per counted step, and the owners off it with the least slack.

    The rows add up to the path. `slack` is the least slack of each owner off the path, ascending.
    """
    is_added = path.spent.edge >= len(job.edges.source)
    owned = sum_owners(job, SpentTime(path.spent.edge[~is_added], path.spent.ns[~is_added]))
    if added := int(path.spent.ns[is_added].sum()):
        owned[None, KIND_LABELS["changed"], None] = added
    unexplained = sum_owners(job, keep_unexplained(job, path.spent))
    rows = [(*owner, ns, slack.get(owner), unexplained.get(owner, 0)) for owner, ns in owned.items()]
    listed, rest = rows[:MAX_PATH_ROWS], rows[MAX_PATH_ROWS:]
    if rest:
        sums = sum(row[3] for row in rest), None, sum(row[5] for row in rest)
        listed.append((None, OTHERS, f"{len(rest)} more", *sums))
    listed += [(*owner, 0, slack[owner], 0) for owner in slack if owner not in owned][:MAX_NEXT_OWNERS]
    cells: list[tuple[Any, ...]] = [
        (*owner, ns / cover.steps, ns / max(cover.ns, 1), off_path, of_residual / cover.steps)
        for *owner, ns, off_path, of_residual in listed
    ]
    headings = _PATH if cover.residual_share >= LEAST_SHOWN else _PATH[:-1]
    return make_replay_sheet("critical_path", "Critical path by owner", headings, cells)


_RANKS = parse_headings("""
    role | role
    rank | rank | id
    window_ns | window | ns | Per counted step: from the begin of the first to the end of the last.
    work_ns | device work | ns | Time in which a device of the rank worked. A collective works from the arrival of its last rank on.
    rest_ns | rest | ns | Time without device work.
    rest | share | ratio | Time without device work, of the window.
    name | largest owner of the rest
""")

_LEDGER = parse_headings("""
    role | role
    rank | rank | id | The rank whose devices did not work.
    owner_rank | owner's rank | id | The rank that owns this time.
    kind | kind
    name | row or op
    step_ns | per step | ns
    share | share | ratio | Of the window of the rank.
""")


def make_ledger_sheets(job: JobGraph, steps: JobSteps, ledger: Ledger) -> tuple[Sheet, Sheet]:
    """List the windows of the ranks, and the owners of the time in which their devices did not work."""
    count = max(count_steps(steps), 1)
    ranks, rows = [], []
    for (role, rank), places in _group_processes(job, ledger).items():
        window, work = (int(column[places].sum()) for column in (ledger.window_ns, ledger.work_ns))
        owned = sum_owners(job, join_spent_times([ledger.owed[place] for place in places]))
        if before := int(ledger.before_ns[places].sum()):
            owned = _sort_owners({**owned, (rank, BEFORE, None): before})
        per_step, of_window = window / count, max(window, 1)
        rest = window - work
        largest = _describe_owner(next(iter(owned), None), rank)
        ranks.append((role, rank, per_step, work / count, rest / count, rest / of_window, largest))
        rows += [
            (role, rank, owner_rank, kind, name, ns / count, ns / of_window)
            for (owner_rank, kind, name), ns in _limit_owners(owned).items()
        ]
    rows.sort(key=lambda row: (row[3] == OTHERS, -row[5]))
    return (
        make_replay_sheet("ranks", "Device work by rank", _RANKS, ranks),
        make_replay_sheet("ledger", "Owners of the rest", _LEDGER, rows),
    )


def _group_processes(job: JobGraph, ledger: Ledger) -> dict[tuple[str | None, int | None], list[int]]:
    """Group the places of the ledger by role and rank: a rank may have one recording per step or stage."""
    groups: dict[tuple[str | None, int | None], list[int]] = {}
    for place, process in enumerate(ledger.process.tolist()):
        source = job.processes[process].source
        groups.setdefault((source.role, source.rank), []).append(place)
    return groups


def _limit_owners(owned: Mapping[Owner, int]) -> dict[Owner, int]:
    """Keep the largest owners, and sum the others."""
    rows = list(owned.items())
    listed, rest = dict(rows[:MAX_RANK_OWNERS]), rows[MAX_RANK_OWNERS:]
    if rest:
        listed[None, OTHERS, f"{len(rest)} more"] = sum(ns for _, ns in rest)
    return listed


def _describe_owner(owner: Owner | None, rank: int | None) -> str | None:
    if owner is None:
        return None
    owner_rank, kind, name = owner
    of_rank = f" of rank {owner_rank}" if owner_rank is not None and owner_rank != rank else ""
    return f"{kind}{of_rank}{f': {name}' if name else ''}"


_TOUCHED = parse_headings("""
    number | # | id
    kind | kind
    name | row or op
    pieces | pieces | count | Ops, waits, or stretches of host time.
    before_ns | before | ns | Their length before the change, over all ranks and recorded steps.
    after_ns | after | ns | Their length after the change.
    waits | waits dropped | count | Waits that the change removed.
""")

_STAGES = parse_headings("""
    number | # | id
    stage | stage
    device_ns | device time | ns | Change of the length of ops, over all ranks and recorded steps.
    host_ns | host time | ns | Change of host time, over all ranks and recorded steps.
    waits | waits dropped | count | Waits that the change removed.
""")


@dataclass(frozen=True, slots=True)
class TouchedEdges:
    """Edges that one change altered: their places, weights before and after without removed time, and dropped waits."""

    number: int
    rows: Ints
    before_ns: Ints
    after_ns: Ints
    is_dropped: Mask


def list_touched_edges(job: JobGraph, predictions: Sequence[Prediction]) -> Iterator[TouchedEdges]:
    """List the edges that each change altered, against the changes before it."""
    edges, before = job.edges, job.edges.weight
    for number, prediction in enumerate(predictions, 1):
        after = prediction.weight
        rows = np.flatnonzero(before != after)
        waits = np.isin(edges.kind[rows], (SYNC_RETURN, STREAM_WAIT))
        dropped = waits & (before[rows] > NEVER) & (after[rows] <= NEVER)
        yield TouchedEdges(number, rows, np.maximum(before[rows], 0), np.maximum(after[rows], 0), dropped)
        before = after


def make_touched_sheet(job: JobGraph, predictions: Sequence[Prediction]) -> Sheet:
    """List the rows and ops that each change touches, the largest difference first."""
    cells = []
    for touched in list_touched_edges(job, predictions):
        edges, count = touched.rows.astype(np.int32), np.ones(len(touched.rows), np.int64)
        counts = count, touched.before_ns, touched.after_ns, touched.is_dropped.astype(np.int64)
        sums: dict[tuple[str, str | None], list[int]] = {}
        for place, column in enumerate(counts):
            for (_, kind, name), value in sum_owners(job, SpentTime(edges, column)).items():
                sums.setdefault((kind, name), [0, 0, 0, 0])[place] += value
        listed = sorted(sums.items(), key=lambda item: (item[1][2] - item[1][1], -item[1][0], str(item[0])))
        cells += [(touched.number, *owner, *values) for owner, values in listed]
    return make_replay_sheet("touched", "Rows and ops that each change touches", _TOUCHED, cells)


def make_changed_stage_sheet(job: JobGraph, predictions: Sequence[Prediction]) -> Sheet:
    """List the altered time and dropped waits by change and stage; no rows if no stage is recorded."""
    index, edges = JobIndex(job), job.edges
    is_host = np.isin(edges.kind, HOST_KINDS)
    is_device = np.isin(edges.kind, (KERNEL, COPY, TRANSFER))
    cells: list[tuple[Any, ...]] = []
    for touched in list_touched_edges(job, predictions):
        rows = touched.rows
        at = job.time[edges.target[rows]] - 1
        of_op = is_device[rows] & (edges.owner[rows] >= 0)
        at[of_op] = index.op_at_ns[edges.owner[rows[of_op]]]
        change = touched.after_ns - touched.before_ns
        parts = (change * is_device[rows], change * is_host[rows], touched.is_dropped.astype(np.int64))
        sums: dict[str, list[int]] = {}
        stages = _find_stage_names(job, index.find_edge_processes(rows), at)
        for stage, *values in zip(stages, *(part.tolist() for part in parts), strict=True):
            known = sums.setdefault(stage or OUTSIDE, [0, 0, 0])
            known[:] = [old + new for old, new in zip(known, values, strict=True)]
        listed = sorted(sums.items(), key=lambda item: (item[1][0] + item[1][1], -item[1][2]))
        cells += [(touched.number, stage, *values) for stage, values in listed if any(values)]
    has_stages = any(cell[1] != OUTSIDE for cell in cells)
    return make_replay_sheet("stages", "Changed time by stage", _STAGES, cells if has_stages else [])


def _find_stage_names(job: JobGraph, process: Ints, time: Ints) -> list[str | None]:
    """Name the outermost stage of each process at a time, as in reports; None outside any."""
    names: npt.NDArray[np.object_] = np.full(len(time), None, object)
    for graph, mine in zip(job.processes, split_rows(process, len(job.processes)), strict=True):
        if len(mine) and len(graph.stages):
            row = graph.stages.row_at(time[mine])
            source, stages = graph.source, graph.stages.stage.texts
            named = [get_stage_name(stage, source.role, source.scope) for stage in (*stages, None)]
            texts = np.array(named, object)
            names[mine] = texts[np.append(graph.stages.stage.codes, -1)[row]]
    listed: list[str | None] = names.tolist()
    return listed


def find_least_slack(
    job: JobGraph, steps: JobSteps, predictions: Sequence[Prediction], path: CriticalPath
) -> dict[Owner, int]:
    """Find the least slack of the work of each owner off the critical path, after all changes; the least first.

    Owners that cannot delay the end are left out.
    """
    edges = job.edges
    if not len(edges.source):
        return {}
    slack_ns = _measure_slack_to_end(job, steps, predictions)
    is_free = (slack_ns < UNLIMITED) & (edges.weight > 0)
    is_free[path.spent.edge[path.spent.edge < len(edges.source)]] = False
    least = _find_least_by_owner(job, slack_ns, is_free)
    return dict(sorted(least.items(), key=lambda item: (item[1], str(item[0]))))


def _measure_slack_to_end(job: JobGraph, steps: JobSteps, predictions: Sequence[Prediction]) -> Ints:
    """Measure the slack of the edges between the begin and the end of the critical path; `UNLIMITED` for others."""
    timing, ordering = job.settled.timing, job.settled.ordering
    source, target, weight = job.edges.source, job.edges.target, job.edges.weight
    if predictions:
        timing, index, weights = predictions[-1].timing, JobIndex(job), Weights(weight.copy())
        for prediction in predictions:
            apply_change(index, weights, prediction.change)
        added = join_added(weights)
        source, target = np.concatenate((source, added[0])), np.concatenate((target, added[1]))
        weight, ordering = np.concatenate((weights.weight, added[2])), order_instants(len(job.time), source, target)
        # Edges that decided have the weight that the replay used, also where contention changed the length of kernels.
        decided = np.flatnonzero(timing.decider >= 0)
        edges = timing.decider[decided]
        weight[edges] = timing.time[decided] - timing.time[source[edges]]
    time = timing.time
    ends, begin = (steps.end, time[steps.begin].min()) if len(steps) else (np.arange(len(time)), time.min())
    slack = measure_slack(ordering, source, target, weight, time, int(ends[time[ends].argmax()]))
    return np.where(time[job.edges.target] > begin, slack[: len(job.edges.source)], UNLIMITED)


def _find_least_by_owner(job: JobGraph, slack_ns: Ints, chosen: Mask) -> dict[Owner, int]:
    """Find the least slack of the chosen edges of each owner."""
    edges, least, used = job.edges, dict[Owner, int](), np.flatnonzero(chosen)
    process = job.process_of(edges.target[used])
    is_arrival = process == len(job.processes)
    process[is_arrival] = job.process_of(edges.source[used[is_arrival]])
    for number, rows in enumerate(split_rows(process, len(job.processes))):
        graph = job.processes[number]
        for kind, of_kind in enumerate(split_rows(edges.kind[used[rows]], len(KINDS))):
            mine, is_device = used[rows[of_kind]], kind in DEVICE_KINDS
            name = graph.ops.name if is_device else graph.paths.name
            owner = edges.owner[mine] - (job.first_op if is_device else job.first_path)[number]
            codes = np.append(name.codes, -1)[np.where(edges.owner[mine] >= 0, owner, -1)]
            lowest = np.full(len(name.texts) + 1, UNLIMITED, np.int64)
            np.minimum.at(lowest, codes, slack_ns[mine])
            for code in np.flatnonzero(lowest < UNLIMITED).tolist():
                key = _make_owner(graph.source.rank, KINDS[kind], (*name.texts, None)[code])
                least[key] = min(least.get(key, UNLIMITED), int(lowest[code]))
    return least
