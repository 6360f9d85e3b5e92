"""The same collective on several ranks: which rows belong together, whose clock is off, who waited (M13, Q17).

Rows match by their recorded sequence number, else by their order in the step where every rank shows
equally many. A rank that shows fewer is aligned at the end if the sizes leave no doubt; else nothing is.
Clocks are compared where they must agree: the ends of collectives that no rank leaves before all have come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import UNIT, units
from tracekit.model.keys import first_of_each, numbered_alike, of_keys
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import framed
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CLOCK = ("run", "role", "replica", "rank")
"""What one clock belongs to. A rank of another role, or of another replica, is another process."""

_TEAM = (*UNIT, "tool", "role", "replica", "group", "op", "on_host")

UNEVEN_OPS = ("all_to_all", "gather", "scatter", "send", "recv", "other")
"""Operations whose sizes differ between ranks by design."""

REASONS = {
    "rank": "the rank is not known",
    "alone": "no other rank shows it",
    "several": "several processes or devices claim one rank",
    "counts": "the ranks show different numbers of them, and the sizes do not tell which are missing",
    "sizes": "the ranks show different sizes",
}
"""Why a row matches nothing, in words."""


@dataclass(frozen=True, slots=True)
class Matching:
    """`rows` are those of `matched`, `clocks` those of `clocks`."""

    rows: pd.DataFrame
    clocks: pd.DataFrame


def matched(measured: Measurements) -> pd.DataFrame:
    """One row a row of `collectives`, in its order.

    `match` (Int64) numbers the collective across ranks, <NA> where `reason` (of `REASONS`) says why not;
    `members` ranks show it. `transfer_ns`: its shortest duration. For synchronising ones on comparable
    clocks `skew_ns`: from first to last start; `wait_ns`: from the own start to the last, at most the
    own duration. `trusted`: whether the skew exceeds the uncertainty of the clocks; only then is one rank
    `is_last`.
    """
    return measured.derived(_solve).rows


def clocks(measured: Measurements) -> pd.DataFrame:
    """One row a process whose collectives matched: run, role, replica, rank, offset_ns (Int64: its clock
    less that of the first rank it can be compared with), uncertainty_ns (median absolute
    deviation of the ends behind it), count (of them) and set (number of the connected ranks).
    """
    return measured.derived(_solve).clocks


def _nothing() -> Matching:
    """What is known where no collective was recorded."""
    texts, flags = np.empty(0, object), np.empty(0, np.bool_)
    numbers = pd.arrays.IntegerArray(np.empty(0, np.int64), flags)
    rows = {
        **dict.fromkeys(("match", "members"), numbers),
        "reason": texts,
        **dict.fromkeys(("transfer_ns", "wait_ns", "skew_ns"), numbers),
        **dict.fromkeys(("trusted", "is_last"), flags),
    }
    states = {
        **dict.fromkeys(("run", "role"), texts),
        **dict.fromkeys(("replica", "rank", "offset_ns", "uncertainty_ns", "count"), numbers),
        "set": numbers,
    }
    return Matching(framed(rows, 0), framed(states, 0))


def _solve(measured: Measurements) -> Matching:
    if not len(measured.columns("collectives")):
        return _nothing()
    rows = units(measured["collectives"])
    rows["on_host"] = rows["device"].isna()
    index, team, reason = _numbered(rows)
    is_matched = reason == ""
    pair = pd.DataFrame({"team": team, "index": index})[is_matched]
    match = np.full(len(rows), -1, np.int64)
    match[is_matched] = pair.groupby(["team", "index"], sort=True).ngroup().to_numpy()
    members = np.bincount(match[is_matched], minlength=1)[match]
    is_single = is_matched & (members < 2)
    reason[is_single], is_matched = "alone", is_matched & ~is_single
    match[is_matched] = np.unique(match[is_matched], return_inverse=True)[1]
    match[~is_matched] = -1
    who, ranks = _members(rows)
    start = rows["ts_ns"].to_numpy(np.int64)
    dur = rows["dur_ns"].to_numpy(np.int64)
    sync = is_matched & rows["synchronising"].to_numpy(np.bool_) & (dur > 0)
    state = _clocks(match[sync], who[sync], (start + dur)[sync], len(ranks))
    reason[is_matched] = None
    out = pd.DataFrame(
        {
            "match": pd.arrays.IntegerArray(match, ~is_matched),
            "members": pd.arrays.IntegerArray(np.where(is_matched, members, 0), ~is_matched),
            "reason": reason,
        }
    )
    transfer = np.zeros(len(rows), np.int64)
    transfer[is_matched] = pd.Series(dur[is_matched]).groupby(match[is_matched]).transform("min")
    out["transfer_ns"] = pd.arrays.IntegerArray(transfer, ~is_matched)
    timed = _waits(match, who, start, dur, sync, state)
    table = pd.concat([ranks, state], axis=1)
    return Matching(
        pd.concat([out, timed], axis=1), table[table["count"] > 0].reset_index(drop=True)
    )


# Which rows are the same collective


def _numbered(rows: pd.DataFrame) -> tuple[Ints, Ints, npt.NDArray[np.object_]]:
    """(position within its team, number of the team, why it has none) of each row.

    A team are the rows that could match: one operation of one group in one step of one run.
    """
    (team,) = numbered_alike(_TEAM, rows, in_order=True)
    reason = np.full(len(rows), "", object)
    reason[rows["rank"].isna().to_numpy()] = "rank"
    frame = pd.DataFrame(
        {
            "team": team,
            "rank": rows["rank"].to_numpy(np.int64, na_value=-1),
            "process": of_keys(rows, ("host", "pid", "device"))[0],
            "source": of_keys(rows, ["source"])[0],
            "start": rows["ts_ns"].to_numpy(np.int64),
            "ordinal": rows["ordinal"].to_numpy(np.int64, na_value=0),
            "seq": rows["seq"].to_numpy(np.int64, na_value=-1),
            "size": rows["size_bytes"].to_numpy(np.int64, na_value=-1),
            "even": ~rows["op"].isin(UNEVEN_OPS).to_numpy(np.bool_),
        }
    )
    frame["first"] = frame.groupby("source")["start"].transform("min")
    by_rank = frame.groupby(["team", "rank"])
    frame["index"] = (
        frame.sort_values(["first", "ordinal", "start", "size"], kind="stable")
        .groupby(["team", "rank"])
        .cumcount()
        .reindex(frame.index)
    )
    reason[(by_rank["process"].transform("nunique") > 1).to_numpy() & (reason == "")] = "several"
    by_seq = ((frame["seq"] >= 0).groupby(frame["team"]).transform("all")).to_numpy()
    _number_by_seq(frame, reason, by_seq & (reason == ""))
    _number_by_order(frame, reason, ~by_seq & (reason == ""))
    return frame["index"].to_numpy(np.int64), frame["team"].to_numpy(np.int64), reason


def _tuples(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(frame.itertuples(index=False, name=None))


def _number_by_seq(frame: pd.DataFrame, reason: npt.NDArray[np.object_], chosen: Bools) -> None:
    """Position = sequence number; several of one number (a coalesced call) in order, if equally many."""
    rows = frame[chosen]
    if not len(rows):
        return
    several = rows.sort_values("index").groupby(["team", "rank", "seq"]).cumcount()
    if several.any():
        count = rows.groupby(["team", "seq", "rank"])["index"].transform("size")
        of_seq = count.groupby([rows["team"], rows["seq"]])
        odd = of_seq.transform("min") != of_seq.transform("max")
        reason[np.flatnonzero(chosen)[odd.to_numpy()]] = "counts"
    # Pairs of numbers as one: which numbers they are does not matter, only which are equal.
    pairs = pd.DataFrame({"seq": rows["seq"], "part": several})
    frame.loc[chosen, "index"] = pairs.groupby(["seq", "part"], sort=True).ngroup()


def _number_by_order(frame: pd.DataFrame, reason: npt.NDArray[np.object_], chosen: Bools) -> None:
    """Position = order in the step, if all ranks show equally many or can be aligned; sizes must agree."""
    ordered = frame[chosen]
    if not len(ordered):
        return
    count = ordered.groupby(["team", "rank"])["index"].transform("size")
    by_team = count.groupby(ordered["team"])
    uneven = by_team.transform("min") != by_team.transform("max")
    for _, rows in ordered[uneven].groupby("team"):
        shift = _aligned_at_end(rows)
        if shift is None:
            reason[rows.index] = "counts"
        else:
            frame.loc[rows.index, "index"] += rows["rank"].map(shift)
    ordered = frame[chosen & (reason == "") & frame["even"].to_numpy()]
    size = ordered.groupby(["team", "index"])["size"]
    reason[ordered.index[(size.transform("min") != size.transform("max")).to_numpy()]] = "sizes"


def _aligned_at_end(rows: pd.DataFrame) -> dict[int, int] | None:
    """By how much each rank's rows are to be moved so that the ends align; None if that is not certain.

    Certain: what a shorter rank shows has the sizes of the end of the longest, and not of its beginning.
    """
    if not rows["even"].all():
        return None
    rows = rows.sort_values("index")
    rank, size = rows["rank"].to_numpy(np.int64), rows["size"].to_numpy(np.int64)
    sizes = {int(number): size[rank == number] for number in np.unique(rank)}
    longest = max(sizes.values(), key=len)
    shift = {}
    for member, member_sizes in sizes.items():
        missing = len(longest) - len(member_sizes)
        if not np.array_equal(member_sizes, longest[missing:]):
            return None
        if missing and np.array_equal(member_sizes, longest[: len(member_sizes)]):
            return None
        shift[member] = missing
    return shift


# Whose clock is off by how much


def _members(rows: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """(number of its process for each row, the keys of each process), in a fixed order."""
    (who,) = numbered_alike(CLOCK, rows, in_order=True)
    first = first_of_each(who, int(who.max(initial=-1)) + 1)
    return who, rows[[*CLOCK]].iloc[first].reset_index(drop=True)


def _clocks(match: Ints, who: Ints, end: Ints, count: int) -> pd.DataFrame:
    """Per process offset_ns, uncertainty_ns, count, set and reference, from the ends of what it shares.

    Each set of ranks that share collectives is a star around its lowest; the stars are joined at the
    processes they share, the most certain comparison first.
    """
    edges = _edges(match, who, end)
    parent = list(range(count))
    offset, spread, shared = [0] * count, [0] * count, [0] * count
    links: dict[int, list[tuple[int, int, int]]] = {}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for hub, node, median, mad, number in _tuples(
        edges.sort_values(["spread", "count", "hub", "node"], ascending=[True, False, True, True])
    ):
        if root(hub) != root(node):
            low, high = sorted((root(hub), root(node)))
            parent[high] = low
            links.setdefault(hub, []).append((node, median, mad))
            links.setdefault(node, []).append((hub, -median, mad))
        shared[hub], shared[node] = max(shared[hub], number), max(shared[node], number)
    for start in range(count):
        if root(start) != start:
            continue
        seen, todo = {start}, [start]
        while todo:
            node_at = todo.pop()
            for other, median, mad in links.get(node_at, []):
                if other not in seen:
                    seen.add(other)
                    offset[other], spread[other] = offset[node_at] + median, spread[node_at] + mad
                    todo.append(other)
    reference = list(map(root, range(count)))
    return pd.DataFrame(
        {
            "offset_ns": pd.array(offset, dtype="Int64"),
            "uncertainty_ns": pd.array(spread, dtype="Int64"),
            "count": shared,
            "set": reference,
        }
    )


def _edges(match: Ints, who: Ints, end: Ints) -> pd.DataFrame:
    """One row a (hub, node): the median of end(node) − end(hub) over what both took part in, and its spread."""
    columns = ["hub", "node", "median", "spread", "count"]
    if not len(match):
        return pd.DataFrame(columns=columns, dtype=np.int64)
    frame = pd.DataFrame({"match": match, "who": who, "end": end}).sort_values(["match", "who"])
    is_later = frame["match"].duplicated().to_numpy()
    star = np.cumsum(~is_later) - 1
    node, ends = frame["who"].to_numpy(np.int64), frame["end"].to_numpy(np.int64)
    later = (ends - ends[~is_later][star])[is_later]
    key = pd.DataFrame({"hub": node[~is_later][star][is_later], "node": node[is_later]})
    number = np.asarray(key.groupby(["hub", "node"], sort=True).ngroup(), np.int64)
    pairs = key.groupby(["hub", "node"], sort=True).size().reset_index(name="count")
    middle = middles(later, number, len(pairs))
    spread = middles(np.abs(later - middle[number]), number, len(pairs))
    return pairs.assign(median=middle, spread=spread)[columns]


def middles(values: Ints, group: Ints, count: int) -> Ints:
    """The median of each group 0 … count-1 in whole numbers, rounded down; each group has a value."""
    order = np.lexsort((values, group))
    values, group = values[order], group[order]
    size = np.bincount(group, minlength=count)
    begin = np.cumsum(size) - size
    low, high = values[begin + (size - 1) // 2], values[begin + size // 2]
    middle: Ints = low + (high - low) // 2
    return middle


# Who waited for whom


def _waits(
    match: Ints, who: Ints, start: Ints, dur: Ints, sync: Bools, state: pd.DataFrame
) -> pd.DataFrame:
    """wait_ns, skew_ns, trusted and is_last of each row; unknown where nothing is left to compare with."""
    count = len(match)
    wait, skew = np.zeros(count, np.int64), np.zeros(count, np.int64)
    timed = np.zeros(count, np.bool_)
    trusted, last = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    rows = np.flatnonzero(sync)
    if len(rows):
        place = who[rows]
        frame = pd.DataFrame(
            {
                "came": start[rows] - state["offset_ns"].to_numpy(np.int64)[place],
                "spread": state["uncertainty_ns"].to_numpy(np.int64)[place],
            }
        )
        by = frame.groupby(match[rows])
        latest = by["came"].transform("max")
        skew[rows] = latest - by["came"].transform("min")
        wait[rows] = np.minimum(latest - frame["came"], dur[rows])
        timed[rows] = by["came"].transform("size") > 1
        trusted[rows] = (skew[rows] > by["spread"].transform("max")) & timed[rows]
        at_end = (frame["came"] == latest).to_numpy()
        is_single = pd.Series(at_end).groupby(match[rows]).transform("sum") == 1
        last[rows] = at_end & is_single & trusted[rows]
    return pd.DataFrame(
        {
            "wait_ns": pd.arrays.IntegerArray(wait, ~timed),
            "skew_ns": pd.arrays.IntegerArray(skew, ~timed),
            "trusted": trusted,
            "is_last": last,
        }
    )
