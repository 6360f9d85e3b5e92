"""Tasks of a Ray timeline with their parts, and the calls of Ray that workers and the driver made."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import compute_running_max
from tracekit.model.tables.arrays import Coded, Nullable, select_rows
from tracekit.model.tables.frame import Frame, count_rows, sum_of, texts
from tracekit.model.trace import Source

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PARTS = ("arguments", "execute", "outputs")
CALLS = ("submit", "get", "wait", "put", "other")


def make_ray_tasks(rows: Frame, source: Source) -> dict[str, Any]:
    """Make the columns of `ray_tasks`: a row per task, with its parts and the rank of its worker.

    A worker that runs several tasks at once (an async or threaded actor) does not record whose the parts are.
    """
    number = rows.group_by("node", "worker").number
    is_task = rows.equals("kind", "task")
    order = np.flatnonzero(is_task)[np.lexsort((rows["ts_ns"][is_task], number[is_task]))]
    tasks, worker = rows.take(order), number[order]
    start, end = tasks.integers("ts_ns"), tasks.integers("ts_ns") + tasks.integers("dur_ns")
    shared = _mark_overlapping_workers(start, end, worker)[worker] if len(tasks) else np.zeros(0, np.bool_)
    found = _find_tasks_of_rows(rows, number, start, end, worker)
    columns: dict[str, Any] = {part: _sum_task_part(rows, found, rows.equals("kind", part), shared) for part in PARTS}
    submits = found[rows.equals("kind", "submit") & (found >= 0)]
    return {
        **{name: tasks[name] for name in ("node", "worker", "name", "ts_ns", "dur_ns")},
        "actor": _spread_actors(tasks, worker),
        **_find_worker_ranks(tasks["worker"], source),
        **{f"{part}_ns": columns[part] for part in PARTS},
        "submit_count": np.bincount(submits, minlength=len(tasks)).astype(np.int64),
        "is_shared": shared,
    }


def _find_tasks_of_rows(rows: Frame, number: Ints, start: Ints, end: Ints, worker: Ints) -> Ints:
    """Find the task that each row begins in: the last one that started on its worker, if it still runs; -1 without one.

    Tasks are in the order of workers and starts.
    """
    if not len(start):
        return np.full(len(rows), -1, np.int64)
    ts = rows.integers("ts_ns")
    # Dense numbers of the times leave room for the worker in one key.
    times, place = np.unique(np.concatenate([start, ts]), return_inverse=True)
    key = np.concatenate([worker, number]) * len(times) + place
    before = np.searchsorted(key[: len(start)], key[len(start) :], side="right") - 1
    is_inside = (before >= 0) & (worker[before] == number) & (ts <= end[before])
    return np.where(is_inside, before, -1)


def _mark_overlapping_workers(start: Ints, end: Ints, worker: Ints) -> Bools:
    """Mark the workers that ran several tasks at once."""
    latest = compute_running_max(end, worker)
    overlaps = (worker[1:] == worker[:-1]) & (start[1:] < latest[:-1])
    marks = np.zeros(int(worker.max()) + 1, np.bool_)
    marks[worker[1:][overlaps]] = True
    return marks


def _sum_task_part(rows: Frame, found: Ints, is_part: Bools, shared: Bools) -> Nullable:
    """Sum one part of each task; unknown without a row, and on workers with several tasks at once."""
    among = is_part & (found >= 0)
    total, count = np.zeros(len(shared), np.int64), np.bincount(found[among], minlength=len(shared))
    np.add.at(total, found[among], rows.integers("dur_ns")[among])
    return Nullable(total, (count == 0) | shared)


def _spread_actors(tasks: Frame, worker: Ints) -> Coded:
    """Spread the name of each actor, which only the row of its creation has, over the tasks of its worker."""
    actor: Coded = tasks["actor"]
    of_worker = np.full(int(worker.max(initial=0)) + 1, -1, np.int32)
    is_named = actor.codes >= 0
    of_worker[worker[is_named]] = actor.codes[is_named]
    return Coded(of_worker[worker], actor.texts)


def _find_worker_ranks(workers: Coded, source: Source) -> dict[str, Any]:
    """Find the role and rank of each task's worker by the manifests next to the timeline."""
    known = {account.ray_worker: account for account in source.accounts if account.ray_worker}
    accounts = [known.get(text.partition(":")[2]) for text in workers.texts]
    ranks = [None if account is None else account.rank for account in accounts]
    roles = texts([None if account is None else account.role for account in accounts])
    rank = Nullable(np.array([r or 0 for r in ranks], np.int64), np.array([r is None for r in ranks], np.bool_))
    return {"worker_role": select_rows(roles, workers.codes), "worker_rank": select_rows(rank, workers.codes)}


def make_ray_calls(rows: Frame) -> Frame:
    """Sum the calls of Ray and the other rows of each worker and of the driver, by kind."""
    rows = rows.filter(rows.is_in("kind", CALLS))
    return rows.group_by("node", "worker", "kind").agg(count=count_rows(), total_ns=sum_of("dur_ns"))
