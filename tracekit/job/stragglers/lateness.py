"""How late each rank is in each step, which few are late together, and what the step would be without (Q18, Q19).

A rank is late by how much less it waits than the others do: what it does, in a stage or outside, all the others wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.collectives.matching import middles
from tracekit.job.frames import UNIT, distinct
from tracekit.job.rank_groups import MEMBER, RankGroup, in_order, of_others
from tracekit.job.stragglers.collective_waits import Waits
from tracekit.model.keys import is_among, of_keys, places_of, summed
from tracekit.model.records import dataclass
from tracekit.model.stats.lasting import lasting, votes_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_SETS = 3
"""Most sets of late ranks that are looked for in one rank group: the latest, and those that are late beside them."""

APART = 0.5
"""A rank belongs to the late ones if it is late by at least this share of what the latest is."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """`late_ns`: a row a member (of `members`), a column a step (of `steps`): how much less it waits than the others.

    `worked_ns` is how much longer it works in stages than the others, `lost_ns` how long it waits. Members and steps
    of which any pair was not recorded are left out.
    """

    members: pd.DataFrame
    steps: pd.DataFrame
    late_ns: Floats
    worked_ns: Floats
    lost_ns: Ints


@dataclass(frozen=True, slots=True)
class LateSet:
    """Members (`is_late`, by row of `Lateness`) that are late together.

    `late_ns`: their mean lateness by step; `votes` of `size` × `rounds` put them before all others; `chance` how likely
    some set gets so many; `apart` members they were set apart from, those of earlier sets left out.
    """

    is_late: Bools
    late_ns: Floats
    votes: int
    rounds: int
    chance: float
    apart: int

    @property
    def size(self) -> int:
        """How many members they are."""
        return int(self.is_late.sum())

    @property
    def votes_ratio(self) -> float:
        """The share of the votes that they have."""
        return self.votes / max(self.size * self.rounds, 1)

    @property
    def late_steps(self) -> Bools:
        """In which steps they are late: by half of what they are at most."""
        longest = float(self.late_ns.max(initial=0.0))
        return (self.late_ns >= APART * longest) & (self.late_ns > 0)

    @property
    def since(self) -> int:
        """From which step on they are late to the end; 0 where it is all along, or not to the end."""
        start = int(self.late_steps.argmax())
        return start if bool(self.late_steps[start:].all()) else 0


def lateness(rank_group: RankGroup, waited: Waits) -> Lateness:
    """How late the members of a rank group are in the steps that all of them show."""
    by_step = rank_group.by_step
    arrivals = rank_group.of(waited.collectives)
    members = in_order(distinct(by_step, MEMBER), MEMBER)
    steps = in_order(distinct(by_step, UNIT), UNIT)
    shape = len(members), len(steps)
    cell, cell_came = (_cells(rows, members, steps) for rows in (by_step, arrivals))
    lost = _sums(cell_came, arrivals["lost_ns"].to_numpy(np.int64), shape)
    worked = _sums(cell, by_step["beyond_ns"].to_numpy(np.int64), shape)
    ones = np.ones(len(by_step), np.int64), np.ones(len(arrivals), np.int64)
    is_there = (_sums(cell, ones[0], shape) > 0) & (_sums(cell_came, ones[1], shape) > 0)
    is_member = 2 * is_there.sum(axis=1) >= max(shape[1], 1)
    is_step = is_there[is_member].all(axis=0) & bool(is_member.any())
    chosen = np.ix_(is_member, is_step)
    return Lateness(
        members[is_member].reset_index(drop=True),
        steps[is_step].reset_index(drop=True),
        beyond_others(-lost[chosen]),
        worked[chosen].astype(float),
        lost[chosen],
    )


def _cells(rows: pd.DataFrame, members: pd.DataFrame, steps: pd.DataFrame) -> Ints:
    """The place of each row in a table of members by steps; -1 of those that stand in neither."""
    member = places_of(rows, members, MEMBER, optional=MEMBER)
    step = places_of(rows, steps, UNIT, optional=UNIT)
    return np.where((member >= 0) & (step >= 0), member * len(steps) + step, -1)


def _sums(cell: Ints, values: Ints, shape: tuple[int, int]) -> Ints:
    """The sum of the values in each cell of the table."""
    return summed(cell, values, shape[0] * shape[1]).reshape(shape)


def beyond_others(values: Ints) -> Floats:
    """Each value of a column less the median of the others in it."""
    step = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    medians = of_others(values.ravel(), step.ravel()).reshape(values.shape)
    return (values - medians).astype(float)


def late_sets(late: Lateness, missing: int = 0) -> Iterator[LateSet]:
    """The set of members that is latest, then what is latest among the others, at most `MOST_SETS`.

    A set is at most half of all: of those left, and of the `missing` members, which were not recorded.
    """
    count, steps = late.late_ns.shape
    is_left = np.ones(count, np.bool_)
    for _ in range(MOST_SETS):
        left = np.flatnonzero(is_left)
        if len(left) < 2 or not steps:
            return
        values = late.late_ns[left]
        if len(left) < count:
            values = beyond_others(values.astype(np.int64))
        mean = values.mean(axis=1)
        chosen = mean >= APART * mean.max()
        size = int(chosen.sum())
        if mean.max() <= 0 or 2 * size > len(left) + missing or size == len(left):
            return
        is_late = np.zeros(count, np.bool_)
        is_late[left[chosen]] = True
        late_set = LateSet(
            is_late,
            _beyond_usual(values, late.lost_ns[left], chosen).mean(axis=0),
            votes_of(values, chosen),
            steps,
            1.0,
            len(left),
        )
        yield replace(late_set, chance=lasting(values, chosen, late_set.since))
        is_left &= ~is_late


def _beyond_usual(values: Floats, lost_ns: Ints, is_late: Bools) -> Floats:
    """How late the late rows are; where they are the most, beyond those not late: the median of the others is late too."""
    if 2 * int(is_late.sum()) <= len(values):
        return values[is_late]
    beyond: Floats = np.median(lost_ns[~is_late], axis=0) - lost_ns[is_late]
    return beyond


def stands_alone(late: Lateness, late_set: LateSet) -> bool:
    """Whether all of a set are late in all its late steps, and no other member is nearly as late in any step: none takes turns."""
    least = APART * float(late_set.late_ns.max(initial=0.0))
    of_set, left_out = late.late_ns[late_set.is_late], late.late_ns[~late_set.is_late]
    return bool((of_set[:, late_set.late_steps] >= least).all() and (left_out < least).all())


def with_more_votes(late_set: LateSet, chosen: pd.DataFrame, late: Lateness) -> LateSet:
    """The set with the votes of all steps that were recorded, also those whose time does not count."""
    is_late = is_among(late.members, chosen, MEMBER)
    if int(is_late.sum()) != late_set.size or late.late_ns.shape[1] <= late_set.rounds:
        return late_set
    return replace(
        late_set,
        votes=votes_of(late.late_ns, is_late),
        rounds=late.late_ns.shape[1],
        chance=lasting(late.late_ns, is_late),
    )


def cost_by_group(arrivals: pd.DataFrame, is_late: Bools) -> pd.DataFrame:
    """One row a process group, the costliest first: saved_ns, what those who are not late wait for the late ones in all.

    `arrivals` are rows of `Waits.collectives` and `is_late` says which are of late members. A collective counts where
    the last to come is a late one: the median of what the others lose in it.
    """
    last, saved = _saved_by_last(arrivals, is_late)
    number, first_of_group = of_keys(arrivals, ["group"])
    sums = summed(number[last], saved, len(first_of_group))
    table = pd.DataFrame({"group": arrivals["group"].array[first_of_group], "saved_ns": sums})
    return table.sort_values(["saved_ns", "group"], ascending=[False, True], kind="stable")


def cost_by_rank(
    arrivals: pd.DataFrame, is_late: Bools, most: Excess | None = None
) -> dict[int, int]:
    """What those who are not late wait for each late rank: a collective counts for the late rank that comes last to it.

    `arrivals` are rows of `Waits.collectives` of one process group, as for `cost_by_group`; `most` bounds the time.
    """
    last, saved = _saved_by_last(arrivals, is_late)
    ranks = arrivals["rank"].to_numpy(np.int64)[last]
    costs = {rank: int(saved[ranks == rank].sum()) for rank in np.unique(ranks).tolist()}
    if most is None:
        return costs
    costs = {rank: min(cost, most.by_rank.get(rank, cost)) for rank, cost in costs.items()}
    share = min(most.together / max(sum(costs.values()), 1), 1.0)
    return {rank: round(cost * share) for rank, cost in costs.items()}


class Excess(NamedTuple):
    """How much longer late ranks work than those who are not late: each of them, and the latest of them at a time."""

    by_rank: dict[int, int]
    together: int


def excess_work(
    staged: pd.DataFrame, whole: pd.DataFrame, arrivals: pd.DataFrame, late: pd.DataFrame
) -> Excess:
    """Sum up the excess of own work of the `late` members: without it, no more can be gained.

    In a pipeline the others also wait while work passes from stage to stage, and would without a late rank too.
    Of three ways to count own work the one that shows most counts: in stages by step (`staged`), in and outside of
    them (`whole`), and in stages from one collective to the next (`arrivals`) with what is outside by step.
    """
    place = places_of(whole, staged, (*UNIT, *MEMBER), optional=(*UNIT, *MEMBER))
    in_stages = np.append(staged["own_ns"].to_numpy(np.int64), 0)[place]
    outside = whole.assign(own_ns=whole["own_ns"].to_numpy(np.int64) - in_stages)
    between = arrivals.assign(own_ns=arrivals["work_ns"])
    ways = (
        [_excess(staged, UNIT, late)],
        [_excess(whole, UNIT, late)],
        [_excess(between, ["match"], late), _excess(outside, UNIT, late)],
    )
    ranks = sorted({rank for way in ways for part in way for rank in part.by_rank})
    by_rank = {
        rank: max(sum(part.by_rank.get(rank, 0) for part in way) for way in ways) for rank in ranks
    }
    return Excess(by_rank, max(sum(part.together for part in way) for way in ways))


def _excess(rows: pd.DataFrame, by: Sequence[str], late: pd.DataFrame) -> Excess:
    """Excess of `own_ns` of late members over the median of those that are not late, in each unit of `by`."""
    unit, is_late = of_keys(rows, by)[0], is_among(rows, late, MEMBER)
    usual, place = np.unique(unit[~is_late], return_inverse=True)
    if not len(usual):
        return Excess({}, 0)
    own_ns, ranks = rows["own_ns"].to_numpy(np.int64), rows["rank"].to_numpy(np.int64)
    of_usual = np.full(int(unit.max()) + 1, np.iinfo(np.int64).max)
    of_usual[usual] = middles(own_ns[~is_late], place, len(usual))
    beyond = np.maximum(own_ns - of_usual[unit], 0)
    late_ranks = np.unique(ranks[is_late]).tolist()
    by_rank = {rank: int(beyond[is_late & (ranks == rank)].sum()) for rank in late_ranks}
    latest = np.zeros(len(of_usual), np.int64)
    np.maximum.at(latest, unit[is_late], beyond[is_late])
    return Excess(by_rank, int(latest.sum()))


def _saved_by_last(arrivals: pd.DataFrame, is_late: Bools) -> tuple[Ints, Ints]:
    """(the row of the late rank that came last, the median of what the others lost) of each collective that waits for a late one."""
    match = np.unique(arrivals["match"].to_numpy(np.int64), return_inverse=True)[1]
    count = int(match.max(initial=-1)) + 1
    lost = arrivals["lost_ns"].to_numpy(np.int64)
    lowest = np.full((2, count), np.iinfo(np.int64).max)
    np.minimum.at(lowest, (is_late.astype(np.int64), match), lost)
    waits_for_late = lowest[1] < lowest[0]
    is_waiting = ~is_late & waits_for_late[match]
    waiting, place = np.unique(match[is_waiting], return_inverse=True)
    saved = middles(lost[is_waiting], place, len(waiting)) if len(waiting) else lost[:0]
    # What the late ones lose too, they all wait for a rank that was not recorded.
    saved = saved - lowest[1][waiting]
    last = np.zeros(count, np.int64)
    is_last = np.flatnonzero(is_late & (lost == lowest[1][match]))
    last[match[is_last[::-1]]] = is_last[::-1]
    return last[waiting], saved
