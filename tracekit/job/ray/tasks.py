"""Tasks of a run as Ray recorded them: by function and by worker, and the time in which no task ran."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.tables.frame import Frame
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.trace import Measurements, derive_once

ID_LENGTH = 8
"""Characters of a worker's id that tables show."""


@dataclass(frozen=True, slots=True, eq=False)
class RayRun:
    """The tasks of one timeline, with the number of the worker of each.

    `workers` are their labels. `work` are the times with any task, other than tasks that submit others.
    """

    run: str | None
    source: str
    tasks: Frame
    worker: npt.NDArray[np.int64]
    workers: tuple[str, ...]
    start_ns: int
    end_ns: int
    work: Intervals

    @property
    def span_ns(self) -> int:
        """From the start of the first task to the end of the last."""
        return self.end_ns - self.start_ns

    @property
    def work_ns(self) -> int:
        """Time with any task, other than tasks that submit others."""
        return int((self.work.end - self.work.start).sum())


@derive_once
def list_ray_runs(measured: Measurements) -> list[RayRun]:
    """List the timelines of all runs, in the order of the sources."""
    rows = measured.frame("ray_tasks")
    return [_make_ray_run(tasks) for tasks in rows.group_by("run", "source").frames()]


def _make_ray_run(tasks: Frame) -> RayRun:
    """Make the record of one timeline."""
    groups = tasks.group_by("node", "worker")
    start = tasks.integers("ts_ns")
    end = start + tasks.integers("dur_ns")
    is_work = tasks.integers("submit_count") == 0
    return RayRun(
        tasks.values("run")[0],
        tasks.values("source")[0],
        tasks,
        groups.number,
        _label_workers(tasks.take(groups.first)),
        int(start.min()),
        int(end.max()),
        merge_intervals(start[is_work], end[is_work]),
    )


def _label_workers(firsts: Frame) -> tuple[str, ...]:
    """Label each worker by its role and rank, without them by its actor or the class of its task; equal labels get an id."""
    names = ("worker", "worker_role", "worker_rank", "actor", "name")
    labels = [_label_worker(row) for row in firsts.rows(*names)]
    counts = Counter(labels)
    ids = [shorten_worker_id(text) for text in firsts.values("worker")]
    return tuple(label if counts[label] == 1 else f"{label} ({id_})" for label, id_ in zip(labels, ids, strict=True))


def _label_worker(row: dict[str, Any]) -> str:
    """Label one worker, without its id."""
    if row["worker_rank"] is not None or row["worker_role"]:
        return join_phrase(row["worker_role"], format_numbered_word("rank", row["worker_rank"]))
    owner, dot, _ = (row["name"] or "").rpartition(".")
    return row["actor"] or (owner if dot else row["name"]) or "worker"


def shorten_worker_id(worker: str | None) -> str:
    """Shorten the id of a worker for tables.

    >>> shorten_worker_id("worker:0cbb7dc96a3b40c6"), shorten_worker_id("driver:01000000ffff"), shorten_worker_id("7")
    ('0cbb7dc9', 'driver', '7')
    """
    kind, colon, id_ = (worker or "").partition(":")
    return "driver" if kind == "driver" and colon else (id_ or kind)[:ID_LENGTH]


def measure_ray_headline(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the numbers of the first screen for one timeline: its span, and the share without a task."""
    runs = list_ray_runs(measured)
    if len(runs) != 1 or not runs[0].span_ns:
        return ()
    (run,) = runs
    idle = 1 - run.work_ns / run.span_ns
    return (
        Metric("ray_span", run.span_ns, "ns", label="first to last task"),
        Metric("ray_idle_ratio", idle, "ratio", "lower", label="no task running (but those that submit others)"),
    )
