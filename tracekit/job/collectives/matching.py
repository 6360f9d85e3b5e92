"""Matching of collectives across ranks, clock offsets between ranks, and waits (M13, Q17).

Rows match by their recorded sequence number. Without one they match by their order in the step, if every rank shows
equally many. A rank that shows fewer is aligned at the end if message sizes leave no doubt; otherwise its team stays
unmatched. Clock offsets come from the ends of collectives that no rank leaves before all have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import UNIT, clear_redundant_parts
from tracekit.job.groups import find_group_maxima, find_group_minima, find_mixed_groups, number_rows_within_groups
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, Nullable
from tracekit.model.tables.frame import Bools, Frame, Ints, count_distinct_of, max_of, min_of, where
from tracekit.model.tables.keys import find_distinct, group_arrays, number_keys
from tracekit.model.trace import Measurements
from tracekit.process.collectives.names import ROOTED

CLOCK = ("run", "role", "replica", "rank")
"""Owner of one clock. A rank of another role or replica is another process."""

_TEAM = (*UNIT, "tool", "role", "replica", "group", "op", "on_host")

UNEVEN_OPS = ("all_to_all", "gather", "scatter", "send", "recv", "other")
"""Operations whose message sizes differ between ranks by design."""

REASONS = {
    "rank": "the rank is not known",
    "alone": "no other rank recorded it",
    "several": "several processes or devices claim one rank",
    "counts": "the ranks recorded different numbers, and sizes do not identify the missing ones",
    "sizes": "the ranks recorded different sizes",
}
"""Reasons why a row is unmatched, in words."""


@dataclass(frozen=True, slots=True)
class CollectiveMatching:
    """Result of matching: `rows` of `list_matched_collectives`, `clocks` of `measure_clock_offsets`."""

    rows: Frame
    clocks: Frame


def list_matched_collectives(measured: Measurements) -> Frame:
    """List the rows of `collectives`, in their order, with what matching them across ranks adds.

    - `match` numbers the collective; missing where `reason` (a value of `REASONS`) applies.
    - `members`: number of ranks that show it.
    - `transfer_ns`: the shortest duration, less the wait of all ranks for a rank that was not recorded.
    - `skew_ns` and `wait_ns`: for synchronizing collectives, and rooted ones in which all ranks met, on comparable clocks.
      `skew_ns` is the time from first to last start. `wait_ns` is the time from the own start to the last, at most the
      own duration, plus the wait of all for a missing rank.
    - `trusted`: whether the skew exceeds the clock uncertainty; only then is one rank `is_last`.
    """
    return measured.derived(_solve_collective_matching).rows


def measure_clock_offsets(measured: Measurements) -> Frame:
    """Measure the clock offset of each process whose collectives matched.

    Columns: run, role, replica, rank, offset_ns (its clock less that of the first rank it can be compared with),
    uncertainty_ns (median absolute deviation of the ends), count (of the ends) and set (number of the connected ranks).
    """
    return measured.derived(_solve_collective_matching).clocks


def _solve_collective_matching(measured: Measurements) -> CollectiveMatching:
    """Match the collectives and measure the clocks of all processes."""
    recorded = measured.frame("collectives")
    rows = clear_redundant_parts(recorded).with_columns(on_host=recorded.is_missing("device"))
    position, team, why = _assign_collective_positions(rows)
    is_matched = why == _MATCHED
    match = np.full(len(rows), -1, np.int64)
    match[is_matched] = _number_pairs(team[is_matched], position[is_matched])
    members = np.bincount(match[is_matched], minlength=1)[match]
    is_single = is_matched & (members < 2)
    why[is_single], is_matched = _WHY["alone"], is_matched & ~is_single
    match[is_matched] = number_keys(match[is_matched])[1]
    match[~is_matched] = -1
    who, clocks = rows.dense_rank(*CLOCK), rows.select(*CLOCK).sort(*CLOCK).distinct(*CLOCK)
    start, dur = rows["ts_ns"], rows["dur_ns"]
    sync = is_matched & rows["synchronising"] & (dur > 0)
    state = _join_clock_stars(match[sync], who[sync], (start + dur)[sync], len(clocks))
    rooted = is_matched & rows.is_in("op", ROOTED) & (dur > 0)
    host = rows.group_by("host").number
    met = sync | _find_rooted_meetings(match, who, start, dur, rooted, host, state)
    transfer = np.zeros(len(rows), np.int64)
    matched_rows = match[is_matched]
    shortest = find_group_minima(matched_rows, dur[is_matched], int(match.max(initial=-1)) + 1)
    transfer[is_matched] = shortest[matched_rows]
    held = _estimate_missing_rank_waits(rows, match, met, members, transfer)
    transfer -= held
    wait, skew, trusted, is_last = _compute_collective_waits(match, who, start, dur, met, state)
    # A wait for a missing rank needs no clock; no recorded rank is then the last.
    is_held = held > 0
    of_rows: dict[str, Array] = {
        "match": where(is_matched, match),
        "members": where(is_matched, members),
        "reason": Coded(why - 1, tuple(REASONS)),
        "transfer_ns": where(is_matched, transfer),
        "wait_ns": Nullable(wait.values + held, wait.missing & ~is_held),
        "skew_ns": skew,
        "trusted": trusted | is_held,
        "is_last": is_last & ~is_held,
    }
    clocks = clocks.with_columns(**state)
    return CollectiveMatching(recorded.with_columns(**of_rows), clocks.filter(clocks["count"] > 0))


def _number_pairs(first: Ints, second: Ints) -> Ints:
    """Assign a number to each distinct pair, from 0 on, in their order."""
    return number_keys(first * (int(second.max(initial=0)) + 1) + second)[1]


# Matching rows to collectives


class _ShownCollectives(NamedTuple):
    """Columns of the rows as arrays; `position` is the position within the team, `of_rank` numbers each (team, rank)."""

    team: Ints
    rank: Ints
    of_rank: Ints
    position: Ints
    seq: Ints
    size: Ints
    is_even: Bools


_MATCHED = 0
"""Value of a matched row in place of the number of a reason."""

_WHY = {reason: number for number, reason in enumerate(REASONS, 1)}


def _assign_collective_positions(rows: Frame) -> tuple[Ints, Ints, npt.NDArray[np.int8]]:
    """Assign each row its position in its team: (position, team number, number of the reason why it has none).

    A team is the set of rows that could match: one operation of one group in one step of one run.
    """
    team = rows.with_columns(role=_mask_shared_roles(rows)).dense_rank(*_TEAM)
    seq, size = rows.integers("seq", -1), rows.integers("size_bytes", -1)
    rows = rows.with_columns(team=team, seq=seq, begin=rows.group_by("source").each(min_of("ts_ns")))
    of_rank = rows.group_by("team", "rank")
    position = of_rank.position(np.lexsort((size, rows["ts_ns"], rows.integers("ordinal"), rows["begin"])))
    is_even = ~rows.is_in("op", UNEVEN_OPS)
    shown = _ShownCollectives(team, rows.integers("rank", -1), of_rank.number, position, seq, size, is_even)
    why = np.full(len(rows), _MATCHED, np.int8)
    process = rows.group_by("host", "pid", "device").number
    why[of_rank.each(count_distinct_of(process)) > 1] = _WHY["several"]
    why[rows.is_missing("rank")] = _WHY["rank"]
    by_seq = rows.group_by("team").each(min_of("seq")) >= 0
    _position_by_sequence_number(shown, why, np.flatnonzero(by_seq & (why == _MATCHED)))
    _position_by_order_in_step(shown, why, np.flatnonzero(~by_seq & (why == _MATCHED)))
    return position, team, why


def _mask_shared_roles(rows: Frame) -> Array:
    """Return the role of each row, missing where a group spans roles, like one of trainers and generators.

    Each rank of such a group has one role, and its size has room for the ranks of all roles.
    """
    of_group = rows.group_by("run", "tool", "replica", "group")
    of_rank = rows.group_by("run", "tool", "replica", "group", "rank")
    role = rows.group_by("role").number
    most_roles_of_rank = of_group.each(max_of(of_rank.each(count_distinct_of(role))))
    spans = (of_group.each(count_distinct_of(role)) > 1) & (most_roles_of_rank == 1)
    size = rows.integers("group_size")
    spans &= of_group.each(count_distinct_of(of_rank.number)) <= of_group.each(min_of(size))
    return where(~spans, rows["role"])


def _position_by_sequence_number(columns: _ShownCollectives, why: npt.NDArray[np.int8], rows: Ints) -> None:
    """Set positions to sequence numbers; equal numbers (a coalesced call) by order, if all ranks show equally many."""
    seq, part = columns.seq[rows], np.zeros(len(rows), np.int64)
    of_seq, calls = group_arrays([columns.of_rank[rows], seq])
    if len(calls) < len(rows):
        part = number_rows_within_groups(of_seq, np.argsort(columns.position[rows], kind="stable"))
        count = np.bincount(of_seq)[of_seq]
        in_team, first = group_arrays([columns.team[rows], seq])
        why[rows[find_mixed_groups(in_team, count, len(first))[in_team]]] = _WHY["counts"]
    # Only equality matters: encode each pair as one number.
    columns.position[rows] = _number_pairs(number_keys(seq)[1], part)


def _position_by_order_in_step(columns: _ShownCollectives, why: npt.NDArray[np.int8], rows: Ints) -> None:
    """Set positions by order in the step, if counts agree or ranks can be aligned; sizes must agree."""
    if not len(rows):
        return
    team, of_rank = columns.team[rows], columns.of_rank[rows]
    count = np.bincount(of_rank)[of_rank]
    uneven = np.flatnonzero(find_mixed_groups(team, count, int(team.max()) + 1)[team])
    uneven = uneven[np.argsort(team[uneven], kind="stable")]
    for places in np.split(rows[uneven], np.flatnonzero(np.diff(team[uneven])) + 1):
        shift = _find_end_alignment(columns, places)
        if shift is None:
            why[places] = _WHY["counts"]
        else:
            columns.position[places] += shift
    rows = rows[(why[rows] == _MATCHED) & columns.is_even[rows]]
    number, first = group_arrays([columns.team[rows], columns.position[rows]])
    why[rows[find_mixed_groups(number, columns.size[rows], len(first))[number]]] = _WHY["sizes"]


def _find_end_alignment(columns: _ShownCollectives, rows: Ints) -> Ints | None:
    """Find the shift of each row that aligns the ends of all ranks; None if that is not certain.

    It is certain if a shorter rank has the sizes of the end of the longest one, and not those of its beginning.
    """
    if not columns.is_even[rows].all():
        return None
    in_order = rows[np.argsort(columns.position[rows], kind="stable")]
    rank, size = columns.rank[in_order], columns.size[in_order]
    sizes = {number: size[rank == number] for number in find_distinct(rank).tolist()}
    longest: Ints = max(sizes.values(), key=len, default=size)
    shift = {}
    for member, member_sizes in sizes.items():
        missing = len(longest) - len(member_sizes)
        if not np.array_equal(member_sizes, longest[missing:]):
            return None
        if missing and np.array_equal(member_sizes, longest[: len(member_sizes)]):
            return None
        shift[member] = missing
    return np.array([shift[member] for member in columns.rank[rows].tolist()], np.int64)


# Clock offsets


def _join_clock_stars(match: Ints, who: Ints, end: Ints, count: int) -> dict[str, Ints]:
    """Join pairwise clock comparisons into offset_ns, uncertainty_ns, count and set per process.

    Each set of ranks that share collectives is a star around its lowest rank. Stars are joined at shared processes, the
    most certain comparison first.
    """
    parent = list(range(count))
    offset, spread, shared = [0] * count, [0] * count, [0] * count
    links: dict[int, list[tuple[int, int, int]]] = {}

    def root(node: int) -> int:
        """Find the lowest process connected with this one (union-find with path halving)."""
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for hub, node, median, mad, number in _compare_collective_ends(match, who, end):
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
    reference = [root(number) for number in range(count)]
    state = {"offset_ns": offset, "uncertainty_ns": spread, "count": shared, "set": reference}
    return {name: np.array(values, np.int64) for name, values in state.items()}


def _compare_collective_ends(match: Ints, who: Ints, end: Ints) -> list[tuple[int, int, int, int, int]]:
    """Compare the ends of shared collectives: (hub, node, median of end(node) − end(hub), its spread, count).

    The most certain pair comes first, then the one with the most collectives.
    """
    if not len(match):
        return []
    in_order = np.lexsort((who, match))
    match, who, end = match[in_order], who[in_order], end[in_order]
    is_hub = np.append(True, match[1:] != match[:-1])
    star = np.cumsum(is_hub) - 1
    later = (end - end[is_hub][star])[~is_hub]
    hub, node = who[is_hub][star][~is_hub], who[~is_hub]
    room = int(who.max()) + 1
    pair, number = number_keys(hub * room + node)
    middle = compute_group_medians(later, number, len(pair))
    spread = compute_group_medians(np.abs(later - middle[number]), number, len(pair))
    count = np.bincount(number, minlength=len(pair))
    surest = np.lexsort((pair, -count, spread))
    columns = (pair // room, pair % room, middle, spread, count)
    return list(zip(*(column[surest].tolist() for column in columns), strict=True))


def compute_group_medians(values: Ints, group: Ints, count: int) -> Ints:
    """Compute the median of each group 0 … count-1, rounded down; each group needs a value."""
    order = np.lexsort((values, group))
    values, group = values[order], group[order]
    size = np.bincount(group, minlength=count)
    begin = np.cumsum(size) - size
    low, high = values[begin + (size - 1) // 2], values[begin + size // 2]
    middle: Ints = low + (high - low) // 2
    return middle


# Waits


def _find_rooted_meetings(
    match: Ints, who: Ints, start: Ints, dur: Ints, rooted: Bools, host: Ints, state: Mapping[str, Ints]
) -> Bools:
    """Find the rows of rooted collectives in which all ranks met: none left before the last came, then all left soon.

    Times of ranks are compared only on one host, or where their clocks were compared.
    """
    met = np.zeros(len(match), np.bool_)
    rows = np.flatnonzero(rooted)
    if not len(rows):
        return met
    of_match, place = match[rows], who[rows]
    count = int(of_match.max()) + 1
    came = start[rows] - state["offset_ns"][place]
    apart = find_mixed_groups(of_match, state["set"][place], count)
    apart &= find_mixed_groups(of_match, host[rows], count)
    left = came + dur[rows]
    first_left, last_left = (find_group_minima(of_match, left, count), find_group_maxima(of_match, left, count))
    together = first_left >= find_group_maxima(of_match, came, count)
    together &= last_left - first_left <= find_group_minima(of_match, dur[rows], count)
    met[rows] = (together & ~apart)[of_match]
    return met


MIN_ALIKE_COLLECTIVES, HELD_UP_RATIO = 8, 3.0
"""Collectives above this multiple of the lower quartile of at least `MIN_ALIKE_COLLECTIVES` similar ones waited for a missing rank."""


def _estimate_missing_rank_waits(rows: Frame, match: Ints, met: Bools, members: Ints, transfer: Ints) -> Ints:
    """Estimate how long each row waited for a rank that was not recorded, after the last recorded rank came.

    It is known only where a rank of the group is missing, from the usual time of collectives of the same size.
    """
    held = np.zeros(len(rows), np.int64)
    size = rows.integers("group_size")
    of_rows = np.flatnonzero(met & (members < size))
    if not len(of_rows):
        return held
    _, first, place = np.unique(match[of_rows], return_index=True, return_inverse=True)
    one = of_rows[first]
    kind = rows.take(one).group_by("run", "tool", "role", "replica", "group", "op", "size_bytes").number
    took = transfer[one]
    in_order = np.lexsort((took, kind))
    count = np.bincount(kind)
    begin = np.cumsum(count) - count
    usual = took[in_order][begin + count // 4][kind]
    is_held = (count[kind] >= MIN_ALIKE_COLLECTIVES) & (took > HELD_UP_RATIO * usual)
    held[of_rows] = np.where(is_held, took - usual, 0)[place]
    return held


def _compute_collective_waits(
    match: Ints, who: Ints, start: Ints, dur: Ints, met: Bools, state: Mapping[str, Ints]
) -> tuple[Nullable, Nullable, Bools, Bools]:
    """Compute wait_ns, skew_ns, trusted and is_last of each row; unknown where there is no other rank to compare."""
    count = len(match)
    wait, skew = np.zeros(count, np.int64), np.zeros(count, np.int64)
    timed = np.zeros(count, np.bool_)
    trusted, last = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    rows = np.flatnonzero(met)
    if len(rows):
        place, of_match = who[rows], match[rows]
        matches = int(of_match.max()) + 1
        came = start[rows] - state["offset_ns"][place]
        spread = state["uncertainty_ns"][place]
        latest = find_group_maxima(of_match, came, matches)[of_match]
        skew[rows] = latest - find_group_minima(of_match, came, matches)[of_match]
        wait[rows] = np.minimum(latest - came, dur[rows])
        timed[rows] = np.bincount(of_match)[of_match] > 1
        trusted[rows] = (skew[rows] > find_group_maxima(of_match, spread, matches)[of_match]) & timed[rows]
        at_end = came == latest
        is_single = np.bincount(of_match[at_end], minlength=matches)[of_match] == 1
        last[rows] = at_end & is_single & trusted[rows]
    return Nullable(wait, ~timed), Nullable(skew, ~timed), trusted, last
