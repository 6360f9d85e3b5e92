"""Waits of ranks in collectives, the late rank and stage that cause them, and their cost (Q7, Q17 to Q19).

A rank group is the ranks of one role (and replica) of one run, which should work alike. A wait is lost time only
where the process could do nothing else. It is attributed to the work of the late rank since the last collective of
the same group, as far as the waiting rank did not spend as long on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.collectives.matching import compute_group_medians, match_collectives
from tracekit.job.frames import (
    clear_parts_of_numbered_steps,
    find_canonical_stages,
    sum_columns_by_keys,
    to_text_or_none,
)
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP_STEP,
    compute_medians_of_others,
    find_rows_in_steps,
    select_work_segments,
)
from tracekit.model.tables.arrays import make_frame
from tracekit.model.tables.keys import (
    find_matching_rows,
    group_arrays,
    group_column,
    group_rows_by,
    number_frames_alike,
)
from tracekit.model.trace import Measurements
from tracekit.process.collectives.names import SYNCHRONISING

Ints = npt.NDArray[np.int64]

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
    stage, late_rank, cause (canonical stage of the late rank; <NA> where its work in stages does not explain the wait)
    and lost_ns.
    """

    collectives: pd.DataFrame
    booked: pd.DataFrame
    stages: tuple[str, ...]
    by_stage: npt.NDArray[np.int64]


def attribute_collective_waits(measured: Measurements) -> CollectiveWaits:
    """Attribute the waits in collectives to late ranks and their stages; see `CollectiveWaits`.

    The lost time of one process never counts an instant twice.
    """
    return measured.derived(_attribute_collective_waits)


def _attribute_collective_waits(measured: Measurements) -> CollectiveWaits:
    measured.has("arrivals", "segments")
    if not measured.row_count("collectives"):
        return _make_empty_collective_waits()
    rows, matches = (clear_parts_of_numbered_steps(measured["collectives"]), match_collectives(measured))
    rows = pd.concat([rows, matches], axis=1)
    chosen = rows["wait_ns"].notna().to_numpy(np.bool_) & find_rows_in_steps(measured, rows)
    rows = rows[chosen].reset_index(drop=True)
    if not len(rows):
        return _make_empty_collective_waits()
    work, names, blocked = _measure_work_before_arrivals(measured, rows)
    rows["stage"] = find_canonical_stages(rows)
    wait = rows["wait_ns"].to_numpy(np.int64)
    free = rows["dur_ns"].to_numpy(np.int64) - wait
    lost = np.maximum(blocked - free, 0)
    rows["lost_ns"] = np.where(rows["trusted"], lost, 0)
    match = rows["match"].to_numpy(np.int64)
    total = work.sum(axis=1)
    rows["work_ns"] = total
    rows["excess_ns"] = np.maximum(total - compute_medians_of_others(total, match), 0)
    beyond = np.maximum(
        work - np.column_stack([compute_medians_of_others(work[:, k], match) for k in range(len(names))])
        if len(names)
        else work,
        0,
    )
    parts = _scale_rows_to_totals(beyond, rows["excess_ns"].to_numpy(np.int64))
    return CollectiveWaits(rows[[*_WAITING]], _attribute_lost_time(rows, work, names), tuple(names), parts)


def _make_empty_collective_waits() -> CollectiveWaits:
    """Make the empty result for measurements in which no rank can have waited."""
    texts, flags, times = np.empty(0, object), np.empty(0, np.bool_), np.empty(0, np.int64)
    kinds: dict[str, Any] = {
        **dict.fromkeys((*_WAITING, *_BOOKED), pd.arrays.IntegerArray(times, flags)),
        **dict.fromkeys(("run", "part", "role", "group", "stage", "cause"), texts),
        **dict.fromkeys(("trusted", "is_last"), flags),
        **dict.fromkeys(("lost_ns", "work_ns", "excess_ns"), times),
    }
    waiting, booked = (
        make_frame({name: kinds[name] for name in names}, 0) for names in (_WAITING, (*_BOOKED, "lost_ns"))
    )
    return CollectiveWaits(waiting, booked, (), times.reshape(0, 0))


def _attribute_lost_time(rows: pd.DataFrame, work: npt.NDArray[np.int64], names: list[str]) -> pd.DataFrame:
    """Attribute lost time by (unit, waiting rank and stage, late rank, its stage)."""
    last = np.flatnonzero(rows["is_last"].to_numpy(np.bool_))
    match = rows["match"].to_numpy(np.int64)
    late_row = np.full(int(match.max(initial=-1)) + 1, -1, np.int64)
    late_row[match[last]] = last
    lost = rows["lost_ns"].to_numpy(np.int64)
    waiting = np.flatnonzero((lost > 0) & (late_row[match] >= 0))
    late = late_row[match[waiting]]
    more = np.maximum(work[late] - work[waiting], 0)
    parts = _scale_rows_to_totals(more, np.minimum(lost[waiting], more.sum(axis=1)))
    unexplained = lost[waiting] - parts.sum(axis=1)
    assert (unexplained >= 0).all(), "no more than the wait may be booked"
    table = np.column_stack([parts, unexplained])
    entry, cause = np.nonzero(table)
    out = rows[[*RANK_GROUP_STEP, "rank", "stage"]].iloc[waiting[entry]].reset_index(drop=True)
    out["late_rank"] = rows["rank"].array[late[entry]]
    out["cause"] = np.array([*(name or None for name in names), None], object)[cause]
    out["lost_ns"] = table[entry, cause]
    assert int(out["lost_ns"].sum()) == int(lost[waiting].sum()), "every wait has its causes"
    return sum_columns_by_keys(out, _BOOKED, ["lost_ns"])


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


def _measure_work_before_arrivals(
    measured: Measurements, rows: pd.DataFrame
) -> tuple[npt.NDArray[np.int64], list[str], Ints]:
    """Measure work before each row: (own work by stage since the group's last collective, the stages, blocked time)."""
    worked = select_work_segments(measured)
    names = _list_wait_stages(worked)
    arrivals = measured["arrivals"]
    first = group_rows_by(arrivals, _ARRIVAL)[1]
    place = find_matching_rows(rows, arrivals.iloc[first], _ARRIVAL, optional=_ARRIVAL)
    arrived = place >= 0
    arrival = first[place[arrived]]
    met = np.array(arrivals["op"].isin(SYNCHRONISING), np.bool_)
    met[arrival] = True
    before = _sum_work_since_last_meeting(arrivals, met, worked, names)
    blocked = np.zeros(len(rows), np.int64)
    blocked[arrived] = arrivals["blocked_ns"].to_numpy(np.int64)[arrival]
    work = np.zeros((len(rows), len(names)), np.int64)
    work[arrived] = before[arrival]
    return work, names, blocked


_STRIP = ("run", "host", "source", "pid", "device")
"""Key of a line of segments: a process in a file, on one of its devices."""

_ARRIVAL = (*_STRIP, "group", "op", "ordinal")
"""Key of an arrival at a collective."""


def _sum_work_since_last_meeting(
    arrivals: pd.DataFrame, met: npt.NDArray[np.bool_], worked: pd.DataFrame, names: list[str]
) -> npt.NDArray[np.int64]:
    """Sum own work by stage since the group last met, for each arrival; `met` marks the arrivals that meet."""
    strips = number_frames_alike(_STRIP, arrivals, worked)
    strip = np.concatenate(strips)
    segment = np.concatenate([frame["segment"].to_numpy(np.int64) for frame in (arrivals, worked)])
    size = np.zeros(int(strip.max(initial=-1)) + 1, np.int64)
    np.maximum.at(size, strip, segment + 1)
    first = np.cumsum(size) - size
    line = first[strip] + segment
    came, done = line[: len(arrivals)], line[len(arrivals) :]
    table = np.zeros((int(size.sum()) + 1, len(names)), np.int64)
    number = {name: place for place, name in enumerate(names)}
    other = number.get(OTHER_STAGES, -1)
    stage, names_of = pd.factorize(worked["canonical"].to_numpy(object))
    places = [number.get(_name_stage_column(c), other) for c in (*names_of, None)]
    column = np.array(places, np.int64)[stage]
    np.add.at(table, (done + 1, column), worked["own_ns"].to_numpy(np.int64))
    table = table.cumsum(axis=0)
    of_strip = strip[: len(arrivals)]
    group, _ = group_arrays([of_strip, group_column(arrivals["group"])[0]])
    in_order = np.lexsort((came, group))
    in_order = in_order[met[in_order]]
    is_next = np.flatnonzero(np.diff(group[in_order]) == 0)
    begin = first[of_strip]
    begin[in_order[is_next + 1]] = came[in_order[is_next]] + 1
    work: npt.NDArray[np.int64] = table[came + 1] - table[begin]
    return work


def _name_stage_column(canonical: object) -> str:
    """Name the column of a stage; the step, where there are no stages, has the empty name."""
    return to_text_or_none(canonical) or ""


def _list_wait_stages(worked: pd.DataFrame) -> list[str]:
    """List the stages with most own work, in order of names, and one for all others."""
    sums = sum_columns_by_keys(worked, ["canonical"], ["own_ns"])
    sums["name"] = list(map(_name_stage_column, sums["canonical"]))
    sums = sums.sort_values(["own_ns", "name"], ascending=[False, True])
    names = sorted(sums["name"].iloc[:MAX_STAGES])
    if len(sums) > MAX_STAGES:
        names.append(OTHER_STAGES)
    return names


def estimate_wait_savings(measured: Measurements) -> pd.DataFrame:
    """Estimate how much shorter each step would be if the last rank always came with the median (Q19).

    One row per (unit, rank group): saved_ns and collectives (their number). Of several process groups the one that saves
    most counts, as time lost in one is often lost again in the next.
    """
    return measured.derived(_estimate_wait_savings).copy()


def sum_waits_for_missing_rank(measured: Measurements) -> pd.DataFrame:
    """Sum the waits of all recorded ranks for one that was not recorded: held_ns per (unit, rank group)."""
    return measured.derived(_sum_waits_for_missing_rank)


def _sum_waits_for_missing_rank(measured: Measurements) -> pd.DataFrame:
    rows = attribute_collective_waits(measured).collectives
    number, first = np.unique(rows["match"].to_numpy(np.int64), return_index=True)
    out = rows.iloc[first][[*RANK_GROUP_STEP]].reset_index(drop=True)
    least_ns = np.full(len(number), np.iinfo(np.int64).max)
    place = np.searchsorted(number, rows["match"].to_numpy(np.int64))
    np.minimum.at(least_ns, place, rows["lost_ns"].to_numpy(np.int64))
    out["held_ns"] = least_ns
    return sum_columns_by_keys(out[least_ns > 0], [*RANK_GROUP_STEP], ["held_ns"])


def estimate_savings_by_match(measured: Measurements) -> pd.DataFrame:
    """Estimate the time saved per matched collective.

    Columns: RANK_GROUP_STEP, group, match, late_rank (<NA> where none is trusted), late_device, saved_ns.
    """
    return measured.derived(_estimate_savings_by_match)


def _estimate_savings_by_match(measured: Measurements) -> pd.DataFrame:
    rows = attribute_collective_waits(measured).collectives
    number, first = np.unique(rows["match"].to_numpy(np.int64), return_index=True)
    out = rows.iloc[first][[*RANK_GROUP_STEP, "group", "match"]].reset_index(drop=True)
    place = np.searchsorted(number, rows["match"].to_numpy(np.int64))
    last = np.flatnonzero(rows["is_last"].to_numpy(np.bool_))
    late = np.full(len(number), -1, np.int64)
    late[place[last]] = last
    for name in ("rank", "device"):
        out[f"late_{name}"] = rows[name].array[late]
        out[f"late_{name}"] = out[f"late_{name}"].where(late >= 0)
    lost = rows["lost_ns"].to_numpy(np.int64)
    out["saved_ns"] = compute_group_medians(lost, place, len(number)) if len(rows) else lost
    return out


def _estimate_wait_savings(measured: Measurements) -> pd.DataFrame:
    rows = estimate_savings_by_match(measured).assign(collectives=1)
    by_group = sum_columns_by_keys(rows, [*RANK_GROUP_STEP, "group"], ["saved_ns", "collectives"])
    by_group = by_group.sort_values(["saved_ns", "group"], ascending=[False, True], kind="stable")
    return by_group.drop_duplicates([*RANK_GROUP_STEP]).drop(columns="group").reset_index(drop=True)
