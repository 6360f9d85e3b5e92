"""Waits of ranks in collectives, the late rank and stage that cause them, and their cost (Q7, Q17 to Q19).

A rank group is the ranks of one role (and replica) of one run, which should work alike. A wait is lost time only
where the process could do nothing else. It is attributed to the work of the late rank since the last collective of
the same group, as far as the waiting rank did not spend as long on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.collectives.matching import list_matched_collectives
from tracekit.job.frames import clear_redundant_parts, name_stages
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP_STEP,
    compute_medians_of_others,
    find_rows_in_steps,
    select_work_segments,
)
from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    Ints,
    first_of,
    median_of,
    min_of,
    number_alike,
    sum_of,
    texts,
)
from tracekit.model.trace import Measurements, derive_once
from tracekit.process.collectives.names import SYNCHRONISING

MAX_STAGES = 15
"""Most stages that waits are attributed to by name; the rest are one."""

OTHER_STAGES = "(other stages)"


_WAITING = (
    *(*RANK_GROUP_STEP, *MEMBER, "group", "stage", "match", "trusted", "is_last", "lost_ns"),
    *("work_ns", "excess_ns"),
)
_BOOKED = (*RANK_GROUP_STEP, "rank", "stage", "late_rank", "cause")
"""Columns of `CollectiveWaits.collectives`, and keys of `CollectiveWaits.booked`."""


class CollectiveWaits(NamedTuple):
    """`collectives`: one row per matched collective of one member; `booked`: lost time by cause.

    `collectives` has RANK_GROUP_STEP, MEMBER, group, stage (canonical, at its issue), match, trusted, is_last, lost_ns,
    work_ns (own work since the last collective of the group) and excess_ns (the part beyond the median of the others).
    `by_stage` divides the excess of each of its rows, by position, among `stages`. `booked` has RANK_GROUP_STEP, rank,
    stage, late_rank, cause (canonical stage of the late rank; missing where its work in stages does not explain the wait)
    and lost_ns.
    """

    collectives: Frame
    booked: Frame
    stages: tuple[str, ...]
    by_stage: npt.NDArray[np.int64]


@derive_once
def attribute_collective_waits(measured: Measurements) -> CollectiveWaits:
    """Attribute the waits in collectives to late ranks and their stages; see `CollectiveWaits`.

    The lost time of one process never counts an instant twice.
    """
    measured.has("arrivals", "segments")
    rows = clear_redundant_parts(list_matched_collectives(measured))
    rows = rows.filter(~rows.is_missing("wait_ns") & find_rows_in_steps(measured, rows))
    work, names, blocked = _measure_work_before_arrivals(measured, rows)
    lost = np.maximum(blocked - (rows["dur_ns"] - rows.integers("wait_ns")), 0)
    match, total = rows.integers("match"), work.sum(axis=1)
    excess = np.maximum(total - compute_medians_of_others(total, match), 0)
    rows = rows.with_columns(
        stage=name_stages(rows), lost_ns=np.where(rows["trusted"], lost, 0), work_ns=total, excess_ns=excess
    )
    beyond = np.zeros_like(work)
    for stage in range(len(names)):
        beyond[:, stage] = np.maximum(work[:, stage] - compute_medians_of_others(work[:, stage], match), 0)
    parts = _scale_rows_to_totals(beyond, excess)
    return CollectiveWaits(rows.select(*_WAITING), _attribute_lost_time(rows, work, names), tuple(names), parts)


def _attribute_lost_time(rows: Frame, work: npt.NDArray[np.int64], names: list[str]) -> Frame:
    """Attribute lost time by (unit, waiting rank and stage, late rank, its stage)."""
    last = np.flatnonzero(rows["is_last"])
    match, lost = rows.integers("match"), rows["lost_ns"]
    late_row = np.full(int(match.max(initial=-1)) + 1, -1, np.int64)
    late_row[match[last]] = last
    waiting = np.flatnonzero((lost > 0) & (late_row[match] >= 0))
    late = late_row[match[waiting]]
    more = np.maximum(work[late] - work[waiting], 0)
    parts = _scale_rows_to_totals(more, np.minimum(lost[waiting], more.sum(axis=1)))
    unexplained = lost[waiting] - parts.sum(axis=1)
    assert (unexplained >= 0).all(), "no more than the wait may be booked"
    table = np.column_stack([parts, unexplained])
    entry, cause = np.nonzero(table)
    booked = rows.take(waiting[entry]).with_columns(
        late_rank=select_rows(rows["rank"], late[entry]),
        cause=select_rows(texts([*(name or None for name in names), None]), cause),
        lost_ns=table[entry, cause],
    )
    assert int(booked["lost_ns"].sum()) == int(lost[waiting].sum()), "every wait has its causes"
    return booked.group_by(*_BOOKED).agg(lost_ns=sum_of("lost_ns"))


def _scale_rows_to_totals(parts: npt.NDArray[np.int64], total: Ints) -> npt.NDArray[np.int64]:
    """Scale each row of `parts` to add up to `total` in integers; a row without parts stays 0."""
    if not parts.size:
        return parts
    sums = parts.sum(axis=1)
    ratio = np.divide(total, sums, out=np.zeros(len(sums)), where=sums > 0)
    shares: npt.NDArray[np.int64] = np.floor(parts * ratio[:, None]).astype(np.int64)
    row = np.arange(len(sums))
    shares[row, parts.argmax(axis=1)] += np.where(sums > 0, total - shares.sum(axis=1), 0)
    return shares


def _measure_work_before_arrivals(measured: Measurements, rows: Frame) -> tuple[npt.NDArray[np.int64], list[str], Ints]:
    """Measure work before each row: (own work by stage since the group's last collective, the stages, blocked time)."""
    worked = select_work_segments(measured)
    names = _list_wait_stages(worked)
    arrivals = measured.frame("arrivals")
    places = arrivals.select(*_ARRIVAL).with_columns(arrival=np.arange(len(arrivals))).distinct(*_ARRIVAL)
    joined = rows.select(*_ARRIVAL).join(places, _ARRIVAL, "left", optional=_ARRIVAL)
    arrived, arrival = ~joined.is_missing("arrival"), joined.integers("arrival")
    arrival = arrival[arrived]
    met = arrivals.is_in("op", SYNCHRONISING)
    met[arrival] = True
    before = _sum_work_since_last_meeting(arrivals, met, worked, names)
    blocked = np.zeros(len(rows), np.int64)
    blocked[arrived] = arrivals["blocked_ns"][arrival]
    work = np.zeros((len(rows), len(names)), np.int64)
    work[arrived] = before[arrival]
    return work, names, blocked


_STRIP = ("run", "host", "source", "pid", "device")
"""Key of a line of segments: a process in a file, on one of its devices."""

_ARRIVAL = (*_STRIP, "group", "op", "ordinal")
"""Key of an arrival at a collective."""


def _sum_work_since_last_meeting(arrivals: Frame, met: Bools, worked: Frame, names: list[str]) -> npt.NDArray[np.int64]:
    """Sum own work by stage since the group last met, for each arrival; `met` marks the arrivals that meet."""
    strip = np.concatenate(number_alike(_STRIP, arrivals, worked))
    segment = np.concatenate([arrivals["segment"], worked["segment"]])
    size = np.zeros(int(strip.max(initial=-1)) + 1, np.int64)
    np.maximum.at(size, strip, segment + 1)
    first = np.cumsum(size) - size
    line = first[strip] + segment
    came, done = line[: len(arrivals)], line[len(arrivals) :]
    table = np.zeros((int(size.sum()) + 1, len(names)), np.int64)
    number = {name: place for place, name in enumerate(names)}
    other = number.get(OTHER_STAGES, -1)
    stages = worked.group_by("canonical")
    places = [number.get(stage or "", other) for stage in stages.agg().values("canonical")]
    column = np.array(places, np.int64)[stages.number]
    np.add.at(table, (done + 1, column), worked["own_ns"])
    table = table.cumsum(axis=0)
    of_strip = strip[: len(arrivals)]
    group = arrivals.with_columns(strip=of_strip).group_by("strip", "group").number
    in_order = np.lexsort((came, group))
    in_order = in_order[met[in_order]]
    is_next = np.flatnonzero(np.diff(group[in_order]) == 0)
    begin = first[of_strip]
    begin[in_order[is_next + 1]] = came[in_order[is_next]] + 1
    work: npt.NDArray[np.int64] = table[came + 1] - table[begin]
    return work


def _list_wait_stages(worked: Frame) -> list[str]:
    """List the stages with most own work, in order of names, and one for all others.

    The step, where there are no stages, has the empty name.
    """
    sums = worked.group_by("canonical").agg(own_ns=sum_of("own_ns"))
    sums = sums.with_columns(name=texts([stage or "" for stage in sums.values("canonical")]))
    names = sums.sort("own_ns", "name", descending=["own_ns"]).values("name")
    return [*sorted(names[:MAX_STAGES]), *([OTHER_STAGES] if len(names) > MAX_STAGES else [])]


@derive_once
def sum_waits_for_last_rank(measured: Measurements) -> Frame:
    """Sum the waits of the median rank for the last one over the collectives of each step (Q19).

    One row per (unit, rank group): lost_ns. Of several process groups the one with the longest waits counts, as time lost
    in one is often lost again in the next. Rules judge by this cost; the replay predicts what a fix saves.
    """
    by_match = attribute_collective_waits(measured).collectives.sort("match").group_by("match")
    keys = (*RANK_GROUP_STEP, "group")
    waits = by_match.agg(**{name: first_of(name) for name in keys}, lost_ns=median_of("lost_ns"))
    by_group = waits.group_by(*keys).agg(lost_ns=sum_of("lost_ns"))
    return by_group.sort("lost_ns", "group", descending=["lost_ns"]).distinct(*RANK_GROUP_STEP).drop("group")


@derive_once
def sum_waits_for_missing_rank(measured: Measurements) -> Frame:
    """Sum the waits of all recorded ranks for one that was not recorded: held_ns per (unit, rank group)."""
    by_match = attribute_collective_waits(measured).collectives.sort("match").group_by("match")
    least = by_match.agg(**{name: first_of(name) for name in RANK_GROUP_STEP}, held_ns=min_of("lost_ns"))
    least = least.filter(least["held_ns"] > 0)
    return least.group_by(*RANK_GROUP_STEP).agg(held_ns=sum_of("held_ns"))
