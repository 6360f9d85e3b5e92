"""Tasks of Ray by function and by worker, as a timeline of Ray records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.ray.tasks import RayRun, list_ray_runs, measure_ray_headline, shorten_worker_id
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.intervals import measure_group_unions, merge_intervals
from tracekit.model.report import Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import DUR
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.text.labels import choose_plural, make_natural_key
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.ray_tasks import make_ray_calls, make_ray_tasks

_PLACE = {
    "node": Column("category", "Address of the node."),
    "worker": Column("category", "Worker or driver, with its id in Ray."),
}

RAY_TASKS = Table(
    "ray_tasks",
    "one task of a Ray timeline",
    {
        **KEYS,
        **_PLACE,
        "actor": Column("category", "Name of the actor, where its creation is in the timeline."),
        "worker_role": Column("category", "Role of the worker, by the manifest of its process."),
        "worker_rank": Column("Int64", "Rank of the worker, by the manifest of its process."),
        "name": Column("category", "Function, such as Worker.update_actor."),
        "ts_ns": Column("int64", "Start, ns since the Unix epoch on the clock of the node."),
        "dur_ns": DUR,
        "arguments_ns": Column("Int64", "Fetching and deserializing its arguments, ns."),
        "execute_ns": Column("Int64", "Running the function, ns."),
        "outputs_ns": Column("Int64", "Storing its results, ns."),
        "submit_count": Column("int64", "Tasks submitted from its worker while it ran."),
        "is_shared": Column("bool", "Whether its worker runs several tasks at once: their parts are unknown."),
    },
)

RAY_CALLS = Table(
    "ray_calls",
    "the calls of Ray of one kind by one worker or the driver",
    {
        **KEYS,
        **_PLACE,
        "kind": Column("category", "submit | get | wait | put | other, as in `ray_rows`."),
        "count": Column("int64", "Rows."),
        "total_ns": Column("int64", "Their time, ns."),
    },
)

_ROWS = ("ts_ns", "dur_ns", "kind", "name", "actor", "node", "worker")
SLOWER = 1.1
"""Median of a worker's tasks over that of the middle worker from which the table names the worker."""


def measure(trace: Trace) -> Mapping[str, Any]:
    """Measure the tasks of a Ray timeline and the calls of Ray; empty for any other source."""
    count = trace.row_count("ray_rows")
    if not count:
        return {}
    rows = Frame({name: trace.array("ray_rows", name) for name in _ROWS}, count)
    calls = make_ray_calls(rows)
    tasks = {"ray_tasks": make_ray_tasks(rows, trace.source)} if rows.equals("kind", "task").any() else {}
    return {**tasks, **({"ray_calls": calls.columns} if len(calls) else {})}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Report the tasks of every timeline by function and by worker. None without a timeline."""
    if not measured.row_count("ray_tasks"):
        return ANALYSIS.skipped("the timeline of Ray has no task") if measured.row_count("ray_calls") else None
    runs = list_ray_runs(measured)
    return ANALYSIS.answered(
        metrics=lambda: measure_ray_headline(measured),
        sheets=lambda: select_filled_sheets(_make_function_table(measured, runs), _make_worker_table(measured, runs)),
        caveats=lambda: _list_timeline_caveats(runs),
    )


_BY_FUNCTION = """
    name | function | text | It runs on workers. The time of one that submits other tasks includes theirs.
    tasks | tasks | count
    workers | workers | count
    wall_ns | any running | ns | Time in which at least one worker runs it.
    share_ratio | share | ratio | Of the time from the first to the last task.
    median_ns | median | ns | Of a task, with fetching its arguments and storing its results.
    longest_ns | longest | ns
    slowest | slowest worker | text | By the median of its tasks, where that is 10 % above the middle worker's.
    arguments_ratio | arguments | ratio | Fetching and deserializing arguments, of the time of its tasks.
    outputs_ratio | outputs | ratio | Storing results, of the time of its tasks.
    first_ns | first | ns | Start of the first task, since the first of all.
    last_ns | last ends | ns | End of the last task, since the start of the first of all.
"""


def _make_function_table(measured: Measurements, runs: Sequence[RayRun]) -> Sheet:
    """Make the table of one row per function, longest first."""
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        number = run.tasks.group_by("name").number
        of_run = [_summarize_function(run, number == place) for place in range(int(number.max()) + 1)]
        rows += sorted(of_run, key=lambda row: (-row[4], str(row[1])))
    headings = parse_headings(_BY_FUNCTION)
    frame = from_rows(("run", *(heading.name for heading in headings)), rows)
    caption = "As the driver sees them: a call of a worker group takes as long as its slowest worker."
    return make_sheet(
        "ray_functions", "Tasks of Ray by function", (*make_run_heading(measured), *headings), frame, caption=caption
    )


def _summarize_function(run: RayRun, among: npt.NDArray[np.bool_]) -> tuple[Any, ...]:
    """Summarize the tasks of one function: the cells of its row."""
    tasks, worker = run.tasks.filter(among), run.worker[among]
    start, dur = tasks.integers("ts_ns"), tasks.integers("dur_ns")
    wall = merge_intervals(start, start + dur)
    wall_ns = int((wall.end - wall.start).sum())
    submits = int(tasks.integers("submit_count").sum())
    name = tasks.values("name")[0]
    return (
        run.run,
        f"{name} (submits {submits:,} {choose_plural(submits, 'task')})" if submits else name,
        len(tasks),
        len(np.unique(worker)),
        wall_ns,
        wall_ns / run.span_ns if run.span_ns else None,
        round(float(np.median(dur))),
        int(dur.max()),
        _name_slowest_worker(run, worker, dur),
        _share_part(tasks, "arguments"),
        _share_part(tasks, "outputs"),
        int(start.min()) - run.start_ns,
        int((start + dur).max()) - run.start_ns,
    )


def _name_slowest_worker(run: RayRun, worker: npt.NDArray[np.int64], dur: npt.NDArray[np.int64]) -> str | None:
    """Name the worker with the highest median, and its excess over the middle worker; None if workers are alike."""
    numbers = np.unique(worker)
    if len(numbers) < 2:
        return None
    medians = np.array([np.median(dur[worker == number]) for number in numbers.tolist()])
    middle = float(np.median(medians))
    top = int(medians.argmax())
    if middle <= 0 or medians[top] < SLOWER * middle:
        return None
    return f"{run.workers[int(numbers[top])]} (+{format_quantity(medians[top] / middle - 1, 'ratio')})"


def _share_part(tasks: Frame, part: str) -> float | None:
    """Compute the share of one part in the time of the tasks whose parts are known; None without any."""
    known = ~tasks.is_missing(f"{part}_ns")
    total = int(tasks.integers("dur_ns")[known].sum())
    return float(tasks.integers(f"{part}_ns")[known].sum() / total) if total else None


_BY_WORKER = """
    worker | worker | text | Role and rank by the manifests of capture; without them the actor or the class, and its id in Ray.
    node | node
    tasks | tasks | count
    busy_ns | running tasks | ns | Time with at least one task.
    busy_ratio | share | ratio | Of the time from the first to the last task.
    submitted | submitted | count | Tasks that it submitted.
    submit_ns | submitting | ns
    get_ns | in ray.get and ray.wait | ns | Recorded with RAY_PROFILING=1.
    first_ns | first | ns | Start of its first task, since the first of all.
    last_ns | last ends | ns | End of its last task, since the start of the first of all.
"""


def _make_worker_table(measured: Measurements, runs: Sequence[RayRun]) -> Sheet:
    """Make the table of one row per worker, and of the driver."""
    rows: list[tuple[Any, ...]] = []
    calls = measured.frame("ray_calls")
    for run in runs:
        of_run = calls.filter(calls.equals("run", run.run) & calls.equals("source", run.source))
        by_worker: dict[tuple[Any, Any], dict[str, tuple[int, int]]] = {}
        for row in of_run.rows("node", "worker", "kind", "count", "total_ns"):
            by_worker.setdefault((row["node"], row["worker"]), {})[row["kind"]] = row["count"], row["total_ns"]
        rows += sorted(_list_worker_rows(run, by_worker), key=lambda row: make_natural_key(row[1]))
        rows += [
            (run.run, shorten_worker_id(worker), node, None, None, None, *_list_call_cells(made), None, None)
            for (node, worker), made in by_worker.items()
        ]
    headings = parse_headings(_BY_WORKER)
    frame = from_rows(("run", *(heading.name for heading in headings)), rows)
    return make_sheet("ray_workers", "Workers of Ray", (*make_run_heading(measured), *headings), frame)


def _list_worker_rows(
    run: RayRun, calls: dict[tuple[Any, Any], dict[str, tuple[int, int]]]
) -> Iterator[tuple[Any, ...]]:
    """List the rows of the workers that ran tasks, and take their calls out of `calls`."""
    start = run.tasks.integers("ts_ns")
    end = start + run.tasks.integers("dur_ns")
    count = len(run.workers)
    busy = measure_group_unions(start, end, run.worker, count)
    size = np.bincount(run.worker, minlength=count)
    first, last = np.full(count, run.end_ns), np.full(count, run.start_ns)
    np.minimum.at(first, run.worker, start)
    np.maximum.at(last, run.worker, end)
    places = run.tasks.group_by("node", "worker").agg()
    pairs = zip(places.values("node"), places.values("worker"), strict=True)
    for number, pair in enumerate(pairs):
        yield (
            run.run,
            run.workers[number],
            pair[0],
            int(size[number]),
            int(busy[number]),
            float(busy[number] / run.span_ns) if run.span_ns else None,
            *_list_call_cells(calls.pop(pair, {})),
            int(first[number]) - run.start_ns,
            int(last[number]) - run.start_ns,
        )


def _list_call_cells(calls: Mapping[str, tuple[int, int]]) -> tuple[int | None, int | None, int | None]:
    """List the cells on the calls of one worker: tasks submitted, time of submitting, time of waiting."""
    count, submit_ns = calls.get("submit", (None, None))
    waits = [calls[kind][1] for kind in ("get", "wait") if kind in calls]
    return count, submit_ns, sum(waits) if waits else None


def _list_timeline_caveats(runs: Sequence[RayRun]) -> Iterator[str]:
    """List the caveats on the times of tasks."""
    yield "queueing is not recorded: no row names the task that was submitted"
    if any(run.tasks.is_missing("worker_rank").all() for run in runs):
        yield "workers have no ranks: the manifests that capture writes next to its traces name them"
    shared = sum(len(np.unique(run.worker[run.tasks["is_shared"]])) for run in runs)
    if shared:
        verb = choose_plural(shared, "runs", "run")
        yield f"{shared:,} {choose_plural(shared, 'worker')} {verb} several tasks at once: their arguments and outputs are unknown"
    nodes = max(len(run.tasks.distinct("node")) for run in runs)
    if nodes > 1:
        yield f"every one of the {nodes:,} nodes has its own clock: times between nodes may be off"


ANALYSIS = Analysis(
    id="ray-tasks",
    title="Which tasks of Ray take the time, and on which workers?",
    reads=("ray_rows",),
    writes=(RAY_TASKS, RAY_CALLS),
    measure=measure,
    judge=judge,
)
