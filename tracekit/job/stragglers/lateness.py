"""Lateness of each rank in each step, the few ranks that are late together, and the cost of their lateness (Q18, Q19).

The lateness of a rank is how much less it waits than the others: they all wait for its extra work, in a stage or
outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.collectives.matching import compute_group_medians
from tracekit.job.frames import UNIT
from tracekit.job.rank_groups import MEMBER, RankGroup, compute_medians_of_others
from tracekit.job.stragglers.collective_waits import CollectiveWaits
from tracekit.model.records import dataclass
from tracekit.model.stats.lasting import compute_lasting_chance, count_votes
from tracekit.model.tables.frame import Bools, Frame, Ints, number_alike
from tracekit.model.tables.keys import sum_by_group

Floats = npt.NDArray[np.float64]

MOST_SETS = 3
"""Most sets of late ranks per rank group: the latest, and those that are late among the remaining ranks."""

LATE_SHARE = 0.5
"""A rank belongs to a late set if it has at least this share of the lateness of the latest rank."""


@dataclass(frozen=True, slots=True)
class RankLateness:
    """`late_ns`, a row per member and a column per step: how much less the member waits than the others.

    `own_ns` is its own work in stages, `lost_ns` its wait. Members and steps with a missing pair are left out.
    """

    members: Frame
    steps: Frame
    late_ns: Floats
    own_ns: Ints
    lost_ns: Ints


@dataclass(frozen=True, slots=True)
class LateSet:
    """Members that are late together (`is_late`, by row of `RankLateness`).

    `is_compared` marks the members they were compared among: themselves and the rest without earlier sets. `late_ns` is
    their mean lateness by step, and `worked_ns` their mean extra work in stages. `votes` of `size` × `rounds` rank them
    before all others. `chance` is the probability that any set gets as many.
    """

    is_late: Bools
    is_compared: Bools
    late_ns: Floats
    worked_ns: float
    votes: int
    rounds: int
    chance: float

    @property
    def size(self) -> int:
        """Number of late members."""
        return int(self.is_late.sum())

    @property
    def compared_count(self) -> int:
        """Number of members that it was compared among."""
        return int(self.is_compared.sum())

    @property
    def votes_ratio(self) -> float:
        """Share of the votes that the set has."""
        return self.votes / max(self.size * self.rounds, 1)

    @property
    def late_steps(self) -> Bools:
        """Mask of the steps in which the set is late, by at least half of its maximum."""
        longest = float(self.late_ns.max(initial=0.0))
        return (self.late_ns >= LATE_SHARE * longest) & (self.late_ns > 0)

    @property
    def since(self) -> int:
        """First step of a lateness that lasts to the end; 0 if it lasts all along, or not to the end."""
        start = int(self.late_steps.argmax())
        return start if bool(self.late_steps[start:].all()) else 0


def measure_lateness(rank_group: RankGroup, waited: CollectiveWaits) -> RankLateness:
    """Measure how late the members of a rank group are in the steps that all of them show."""
    by_step = rank_group.by_step
    arrivals = rank_group.select_rows(waited.collectives)
    members = by_step.select(*MEMBER).sort(*MEMBER).distinct(*MEMBER)
    steps = by_step.select(*UNIT).sort(*UNIT).distinct(*UNIT)
    shape = len(members), len(steps)
    cell, cell_came = (_find_lateness_cells(rows, members, steps) for rows in (by_step, arrivals))
    lost = _sum_lateness_cells(cell_came, arrivals["lost_ns"], shape)
    own = _sum_lateness_cells(cell, by_step["own_ns"], shape)
    ones = np.ones(len(by_step), np.int64), np.ones(len(arrivals), np.int64)
    is_there = (_sum_lateness_cells(cell, ones[0], shape) > 0) & (_sum_lateness_cells(cell_came, ones[1], shape) > 0)
    is_member = 2 * is_there.sum(axis=1) >= max(shape[1], 1)
    is_step = is_there[is_member].all(axis=0) & bool(is_member.any())
    chosen = np.ix_(is_member, is_step)
    return RankLateness(
        members.filter(is_member),
        steps.filter(is_step),
        subtract_median_of_others(-lost[chosen]),
        own[chosen],
        lost[chosen],
    )


def _find_lateness_cells(rows: Frame, members: Frame, steps: Frame) -> Ints:
    """Find the cell of each row in a table of members by steps; -1 for rows of neither."""
    # The members and steps are distinct: they are numbered from 0 in their order.
    member = number_alike(MEMBER, members, rows)[1]
    step = number_alike(UNIT, steps, rows)[1]
    return np.where((member < len(members)) & (step < len(steps)), member * len(steps) + step, -1)


def _sum_lateness_cells(cell: Ints, values: Ints, shape: tuple[int, int]) -> Ints:
    """Sum the values in each cell of the table."""
    return sum_by_group(cell, values, shape[0] * shape[1]).reshape(shape)


def subtract_median_of_others(values: Ints) -> Floats:
    """Subtract from each value of a column the median of the others in it."""
    step = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    medians = compute_medians_of_others(values.ravel(), step.ravel()).reshape(values.shape)
    return (values - medians).astype(float)


def find_late_sets(late: RankLateness, missing: int = 0) -> Iterator[LateSet]:
    """Find the latest set of members, then the latest among the others, at most `MOST_SETS`.

    A set is at most half of the remaining members and the `missing` ones, which were not recorded.
    """
    count, steps = late.late_ns.shape
    is_left = np.ones(count, np.bool_)
    for _ in range(MOST_SETS):
        left = np.flatnonzero(is_left)
        if len(left) < 2 or not steps:
            return
        values = subtract_median_of_others(-late.lost_ns[left])
        mean = values.mean(axis=1)
        chosen = mean >= LATE_SHARE * mean.max()
        size = int(chosen.sum())
        if mean.max() <= 0 or 2 * size > len(left) + missing or size == len(left):
            return
        is_late = np.zeros(count, np.bool_)
        is_late[left[chosen]] = True
        late_set = LateSet(
            is_late,
            is_left.copy(),
            _measure_late_excess(values, late.lost_ns[left], chosen).mean(axis=0),
            float(subtract_median_of_others(late.own_ns[left])[chosen].mean()),
            count_votes(values, chosen),
            steps,
            1.0,
        )
        yield replace(late_set, chance=compute_lasting_chance(values, chosen, late_set.since))
        is_left &= ~is_late


def _measure_late_excess(values: Floats, lost_ns: Ints, is_late: Bools) -> Floats:
    """Measure the excess of the late rows; compared with those not late if most are late, as the median is late too."""
    if 2 * int(is_late.sum()) <= len(values):
        return values[is_late]
    beyond: Floats = np.median(lost_ns[~is_late], axis=0) - lost_ns[is_late]
    return beyond


def has_no_other_late_member(late: RankLateness, late_set: LateSet) -> bool:
    """Check whether all of a set are late in all its late steps, and no other member comes close in any step."""
    least = LATE_SHARE * float(late_set.late_ns.max(initial=0.0))
    of_set, left_out = late.late_ns[late_set.is_late], late.late_ns[~late_set.is_late]
    return bool((of_set[:, late_set.late_steps] >= least).all() and (left_out < least).all())


def recount_votes_of_all_steps(late_set: LateSet, chosen: Frame, late: RankLateness) -> LateSet:
    """Recount the votes of a set over all recorded steps, also those whose time does not count."""
    is_late = late.members.is_among(chosen, MEMBER, optional=MEMBER)
    if int(is_late.sum()) != late_set.size or late.late_ns.shape[1] <= late_set.rounds:
        return late_set
    return replace(
        late_set,
        votes=count_votes(late.late_ns, is_late),
        rounds=late.late_ns.shape[1],
        chance=compute_lasting_chance(late.late_ns, is_late),
    )


def sum_wait_cost_by_group(arrivals: Frame, is_late: Bools) -> Frame:
    """Sum the waits for late ranks by process group, the largest first: group, lost_ns.

    `arrivals` are rows of `CollectiveWaits.collectives`, and `is_late` marks those of late members. A collective counts where a
    late member comes last, with the median wait of the others.
    """
    last, waits = _measure_waits_for_late_ranks(arrivals, is_late)
    groups = arrivals.group_by("group")
    sums = groups.agg().with_columns(lost_ns=sum_by_group(groups.number[last], waits, len(groups)))
    return sums.sort("lost_ns", "group", descending=["lost_ns"])


def sum_wait_cost_by_rank(arrivals: Frame, is_late: Bools, excess: ExcessWork | None = None) -> dict[int, int]:
    """Sum the waits for each late rank; a collective counts for the late rank that comes last to it.

    `arrivals` are rows of `CollectiveWaits.collectives` of one process group, as in `sum_wait_cost_by_group`. `excess` bounds the time.
    """
    last, waits = _measure_waits_for_late_ranks(arrivals, is_late)
    ranks = arrivals.integers("rank")[last]
    costs = {rank: int(waits[ranks == rank].sum()) for rank in np.unique(ranks).tolist()}
    if excess is None:
        return costs
    costs = {rank: min(cost, excess.by_rank.get(rank, cost)) for rank, cost in costs.items()}
    share = min(excess.together / max(sum(costs.values()), 1), 1.0)
    return {rank: round(cost * share) for rank, cost in costs.items()}


class ExcessWork(NamedTuple):
    """Extra own work of late ranks: `by_rank`, and `together` for the latest of them at any time."""

    by_rank: dict[int, int]
    together: int


def measure_excess_work(staged: Frame, all_work: Frame, arrivals: Frame, late: Frame) -> ExcessWork:
    """Sum the excess own work of the `late` members, an upper bound of the possible gain.

    In a pipeline the others also wait while work passes from stage to stage, and would do so without a late rank. Own
    work is counted in three ways, and the largest excess is used: in stages by step (`staged`), in and outside of stages
    (`all_work`), and in stages between collectives (`arrivals`) plus the work outside by step.
    """
    keys = (*UNIT, *MEMBER)
    in_stages = staged.select(*keys).with_columns(staged_ns=staged["own_ns"])
    in_stages = all_work.select(*keys).join(in_stages, keys, "left", optional=keys)
    outside = all_work.with_columns(own_ns=all_work["own_ns"] - in_stages.integers("staged_ns"))
    between = arrivals.with_columns(own_ns=arrivals["work_ns"])
    ways = (
        [_sum_excess_over_median(staged, UNIT, late)],
        [_sum_excess_over_median(all_work, UNIT, late)],
        [_sum_excess_over_median(between, ["match"], late), _sum_excess_over_median(outside, UNIT, late)],
    )
    ranks = sorted({rank for way in ways for part in way for rank in part.by_rank})
    by_rank = {rank: max(sum(part.by_rank.get(rank, 0) for part in way) for way in ways) for rank in ranks}
    return ExcessWork(by_rank, max(sum(part.together for part in way) for way in ways))


def _sum_excess_over_median(rows: Frame, by: Sequence[str], late: Frame) -> ExcessWork:
    """Sum the excess of `own_ns` of late members over the median of the others, in each unit of `by`."""
    unit, is_late = rows.group_by(*by).number, rows.is_among(late, MEMBER, optional=MEMBER)
    usual, place = np.unique(unit[~is_late], return_inverse=True)
    if not len(usual):
        return ExcessWork({}, 0)
    own_ns, ranks = rows["own_ns"], rows.integers("rank")
    of_usual = np.full(int(unit.max()) + 1, np.iinfo(np.int64).max)
    of_usual[usual] = compute_group_medians(own_ns[~is_late], place, len(usual))
    beyond = np.maximum(own_ns - of_usual[unit], 0)
    late_ranks = np.unique(ranks[is_late]).tolist()
    by_rank = {rank: int(beyond[is_late & (ranks == rank)].sum()) for rank in late_ranks}
    latest = np.zeros(len(of_usual), np.int64)
    np.maximum.at(latest, unit[is_late], beyond[is_late])
    return ExcessWork(by_rank, int(latest.sum()))


def _measure_waits_for_late_ranks(arrivals: Frame, is_late: Bools) -> tuple[Ints, Ints]:
    """Find collectives that wait for a late rank: (row of the late rank that came last, median wait of the others)."""
    match = np.unique(arrivals.integers("match"), return_inverse=True)[1]
    count = int(match.max(initial=-1)) + 1
    lost = arrivals["lost_ns"]
    lowest = np.full((2, count), np.iinfo(np.int64).max)
    np.minimum.at(lowest, (is_late.astype(np.int64), match), lost)
    waits_for_late = lowest[1] < lowest[0]
    is_waiting = ~is_late & waits_for_late[match]
    waiting, place = np.unique(match[is_waiting], return_inverse=True)
    waits = compute_group_medians(lost[is_waiting], place, len(waiting)) if len(waiting) else lost[:0]
    # A wait that the late ranks share is for a rank that was not recorded.
    waits = waits - lowest[1][waiting]
    last = np.zeros(count, np.int64)
    is_last = np.flatnonzero(is_late & (lost == lowest[1][match]))
    last[match[is_last[::-1]]] = is_last[::-1]
    return last[waiting], waits
