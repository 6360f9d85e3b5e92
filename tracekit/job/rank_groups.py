"""Rank groups, the ranks that should work alike, and the own work of each of them (Q7, M17).

A rank group is the ranks of one role, and one replica of it, in one run. Own work is wall time of stages less the
time blocked in collectives. Walls alone show nothing: collectives make those of all ranks equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    UNIT,
    clear_parts_of_numbered_steps,
    count_distinct_keys,
    divide_or_none,
    find_canonical_stages,
    find_equal_rows,
    make_label_headings,
    make_run_heading,
    select_distinct_rows,
    sum_columns_by_keys,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Heading, Verdict
from tracekit.model.tables.keys import (
    group_rows_by,
    iterate_records,
    left_join,
    mask_matching_rows,
    number_frames_alike,
)
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

RANK_GROUP = ("run", "role", "replica")
RANK_GROUP_STEP = (*UNIT, "role", "replica")
MEMBER = ("rank", "device")
"""Key of a member: a rank, on each of its devices where it drives several."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank group, with its rows of `measure_own_work_of_ranks` and of `sum_own_work_by_step`."""

    run: str | None
    role: str | None
    replica: int | None
    work: pd.DataFrame
    by_step: pd.DataFrame

    @property
    def labels(self) -> tuple[str | None, str | None, int | None]:
        """Run, role and replica."""
        return self.run, self.role, self.replica

    @property
    def members(self) -> int:
        """Number of recorded ranks (of devices, where a rank drives several)."""
        return count_distinct_keys(self.work, MEMBER)

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return count_distinct_keys(self.work, UNIT)

    def select_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Select the rows of a frame that are of this rank group."""
        mask = np.ones(len(frame), np.bool_)
        for name, value in zip(RANK_GROUP, (self.run, self.role, self.replica), strict=True):
            mask &= find_equal_rows(frame[name], value).fillna(value=False).to_numpy(np.bool_)
        return frame[mask]


def list_rank_groups(measured: Measurements) -> list[RankGroup]:
    """List every rank group, in a fixed order."""
    return measured.derived(_list_rank_groups)


MOST_MISSING = 0.25
"""Largest share of missing ranks for which the recorded ones still represent the rest."""


def count_missing_ranks(measured: Measurements, rank_group: RankGroup) -> int:
    """Count the ranks of a rank group that were not recorded; 0 where that is unknown, or where too many are missing."""
    captures = rank_group.select_rows(measured["captures"])
    seen, size = captures["rank"].nunique(), captures["world_size"].max()
    missing = 0 if pd.isna(size) else max(int(size) - seen, 0)
    return missing if missing <= MOST_MISSING * (seen + missing) else 0


@dataclass(frozen=True, slots=True)
class EvidenceLack:
    """Why a rule cannot judge a run: `price_ns` per step is at stake, and `claim` is the unproven finding.

    `needs` is the evidence that would prove it.
    """

    reason: str
    price_ns: float = 0.0
    claim: str = ""
    needs: str = ""

    def verdict(self, rule: str, run: str | None, step_ns: float | None) -> Verdict:
        """Make the abstention of a rule, with its price."""
        if self.price_ns <= 0:
            return Verdict(rule, "insufficient data", self.reason, run)
        ratio = divide_or_none(self.price_ns, step_ns)
        price = round(self.price_ns), ratio, self.claim, self.needs
        return Verdict(rule, "insufficient data", self.reason, run, *price)


def list_rank_group_abstentions(
    measured: Measurements, rule: str, min_ranks: float, lacking: Callable[[list[RankGroup]], EvidenceLack | None]
) -> Iterator[Verdict]:
    """List the runs that a rule on rank groups cannot judge: too few ranks, or the reason that `lacking` finds."""
    by_run: dict[str | None, list[RankGroup]] = {}
    for rank_group in list_rank_groups(measured):
        by_run.setdefault(rank_group.run, []).append(rank_group)
    for run, groups_of_run in by_run.items():
        members = max(each.members for each in groups_of_run)
        few = f"{members} of at least {min_ranks:g} ranks of one role"
        lack = EvidenceLack(few) if members < min_ranks else lacking(groups_of_run)
        if lack is not None:
            named = to_text_or_none(run) if make_run_heading(measured) else None
            yield lack.verdict(rule, named, summarize_job_steps(measured).select_run(run).step_ns)
    if not by_run:
        yield Verdict(rule, "insufficient data", "no step or stage of a known rank was recorded")


def _list_rank_groups(measured: Measurements) -> list[RankGroup]:
    work, by_step = measure_own_work_of_ranks(measured), sum_own_work_by_step(measured)
    number, places = number_frames_alike(RANK_GROUP, work, by_step, in_order=True)
    groups = []
    for place in range(int(number.max(initial=-1)) + 1):
        own_rows = work[number == place].reset_index(drop=True)
        run, role, replica = next(iterate_records(own_rows.iloc[:1], RANK_GROUP))
        steps = by_step[places == place].reset_index(drop=True)
        groups.append(RankGroup(run, role, replica, own_rows, steps))
    return groups


def measure_own_work_of_ranks(measured: Measurements) -> pd.DataFrame:
    """Measure own work: one row per (step, rank group, member, canonical stage) with own_ns and blocked_ns.

    The two add up to the wall. Where a rank group has no stages, canonical is <NA> and the row is the step. Otherwise time
    outside stages is left out, as waits there are not recorded. Rows of unknown rank are left out.
    """
    return measured.derived(_measure_own_work_of_ranks)


def _measure_own_work_of_ranks(measured: Measurements) -> pd.DataFrame:
    keys = [*RANK_GROUP_STEP, *MEMBER, "canonical"]
    sums = sum_columns_by_keys(select_work_segments(measured), keys, ["own_ns", "blocked_ns"])
    return sort_frame_by_keys(sums, keys)


def select_work_segments(measured: Measurements) -> pd.DataFrame:
    """Select the rows of `segments` that count as work, with `canonical`; see `measure_own_work_of_ranks`."""
    return measured.derived(_select_work_segments)


def _select_work_segments(measured: Measurements) -> pd.DataFrame:
    rows = clear_parts_of_numbered_steps(measured["segments"])
    rows["canonical"] = find_canonical_stages(rows)
    rows = rows[rows["rank"].notna().to_numpy(np.bool_) & find_rows_in_steps(measured, rows)]
    rank_group, _ = group_rows_by(rows, RANK_GROUP)
    is_staged = rows["canonical"].notna().to_numpy(np.bool_)
    has_stages = np.bincount(rank_group, is_staged) > 0
    return rows[is_staged | ~has_stages[rank_group]]


def find_rows_in_steps(measured: Measurements, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the rows that count: those in a step, and all of a rank group recorded without steps.

    Where steps are marked, rows before the first mark and after the last are parts of steps, and would distort means.
    """
    known = select_distinct_rows(clear_parts_of_numbered_steps(measured["segments"]), [*RANK_GROUP, "step", "part"])
    known = known[known["step"].notna() | known["part"].notna()]
    is_known = (rows["step"].notna() | rows["part"].notna()).to_numpy(np.bool_)
    return is_known | ~mask_matching_rows(rows, known, RANK_GROUP)


def sum_own_work_by_step(measured: Measurements) -> pd.DataFrame:
    """Sum own work by step: one row per (step, rank group, member).

    Columns: own_ns of all stages, beyond_ns (less the median of the other members, negative below it), others (their
    number) and wall_ns of the step (<NA> if unknown).
    """
    return measured.derived(_sum_own_work_by_step)


def _sum_own_work_by_step(measured: Measurements) -> pd.DataFrame:
    rows = sum_columns_by_keys(
        measure_own_work_of_ranks(measured), [*RANK_GROUP_STEP, *MEMBER], ["own_ns", "blocked_ns"]
    )
    (group,) = number_frames_alike(RANK_GROUP_STEP, rows, in_order=True)
    own_ns = rows["own_ns"].to_numpy(np.int64)
    rows["beyond_ns"] = own_ns - compute_medians_of_others(own_ns, group)
    rows["others"] = np.bincount(group, minlength=1)[group] - 1
    walls = summarize_job_steps(measured).walls
    walls = walls[[*UNIT, "wall_ns"]].astype({"wall_ns": "Int64"})
    return left_join(rows, walls, UNIT, optional=UNIT)


def compute_medians_of_others(values: Ints, group: Ints) -> Ints:
    """Compute for each value the median of the others in its group, rounded down; the value itself if it is alone.

    >>> compute_medians_of_others(np.array([1, 2, 9, 7]), np.array([0, 0, 0, 1]))
    array([5, 5, 1, 7])
    """
    if not len(values):
        return values
    order = np.lexsort((values, group))
    ranked, of_group = values[order], group[order]
    number = np.cumsum(np.concatenate(([False], of_group[1:] != of_group[:-1])))
    size = np.bincount(number)
    begin = (np.cumsum(size) - size)[number]
    left = size[number] - 1
    rank = np.arange(len(values)) - begin

    def other(place: Ints) -> Ints:
        """Take the value at a place among the others."""
        medians: Ints = ranked[np.minimum(begin + place + (place >= rank), len(ranked) - 1)]
        return medians

    low, high = other(np.maximum(left - 1, 0) // 2), other(left // 2)
    medians = np.empty(len(values), np.int64)
    medians[order] = np.where(left > 0, low + (high - low) // 2, ranked)
    return medians


def make_rank_group_headings(measured: Measurements) -> tuple[Heading, ...]:
    """Make the headings of run, role and replica, as far as they distinguish rank groups."""
    if measure_own_work_of_ranks(measured)["replica"].notna().any():
        return (*make_label_headings(measured), Heading("replica", "replica", "id"))
    return make_label_headings(measured)


def make_member_headings(measured: Measurements) -> tuple[Heading, ...]:
    """Make the heading of the rank, and of its device where any rank drives several."""
    members = select_distinct_rows(measure_own_work_of_ranks(measured), [*RANK_GROUP, *MEMBER])
    rank = Heading("rank", "rank", "id")
    if members.duplicated([*RANK_GROUP, "rank"]).any():
        return rank, Heading("device", "device", "id")
    return (rank,)


def count_rank_group_steps(measured: Measurements, frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Count the recorded steps of each row's rank group; NaN for rows of no rank group."""
    recorded = select_distinct_rows(measure_own_work_of_ranks(measured), [*RANK_GROUP, "step", "part"])
    group_of_step, rank_group = number_frames_alike(RANK_GROUP, recorded, frame)
    count = np.bincount(group_of_step, minlength=int(rank_group.max(initial=-1)) + 1)
    return np.where(count[rank_group] > 0, count[rank_group], np.nan)


def phrase_rank_group(measured: Measurements, rank_group: RankGroup) -> str:
    """Phrase the rank group of a claim: ` of actor, replica 1`; empty where there is only one."""
    if len({(each.role, each.replica) for each in list_rank_groups(measured)}) < 2:
        return ""
    parts = rank_group.role, format_numbered_word("replica", rank_group.replica)
    name = ", ".join(part for part in parts if part)
    return name and f" of {name}"


def sort_frame_by_keys(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Sort the frame by keys, missing ones last."""
    (number,) = number_frames_alike(names, frame, in_order=True)
    return frame.iloc[np.argsort(number, kind="stable")].reset_index(drop=True)
