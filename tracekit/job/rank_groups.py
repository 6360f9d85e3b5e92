"""Rank groups, the ranks that should work alike, and the own work of each of them (Q7, M17).

A rank group is the ranks of one role, and one replica of it, in one run. Own work is wall time of stages less the
time blocked in collectives. Walls alone show nothing: collectives make those of all ranks equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tracekit.job.frames import (
    UNIT,
    clear_redundant_parts,
    divide_or_none,
    make_label_headings,
    make_run_heading,
    name_stages,
    summarize_step_walls,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Heading, Verdict
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.frame import Bools, Frame, Ints, count_rows, divide, max_of, sum_of
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import Measurements, derive_once

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
    work: Frame
    by_step: Frame

    @property
    def labels(self) -> tuple[str | None, str | None, int | None]:
        """Run, role and replica."""
        return self.run, self.role, self.replica

    @property
    def members(self) -> int:
        """Number of recorded ranks (of devices, where a rank drives several)."""
        return len(self.work.group_by(*MEMBER))

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self.work.group_by(*UNIT))

    def select_rows(self, frame: Frame) -> Frame:
        """Select the rows of a frame that are of this rank group."""
        return frame.filter(self.has_rows(frame))

    def has_rows(self, frame: Frame) -> Bools:
        """Tell which rows of a frame are of this rank group."""
        run, role, replica = self.labels
        return frame.equals("run", run) & frame.equals("role", role) & frame.equals("replica", replica)


@derive_once
def list_rank_groups(measured: Measurements) -> list[RankGroup]:
    """List every rank group, in a fixed order."""
    # Both have the same rank groups.
    work, by_step = (
        rows.sort(*RANK_GROUP).group_by(*RANK_GROUP).frames()
        for rows in (measure_own_work_of_ranks(measured), sum_own_work_by_step(measured))
    )
    return [
        RankGroup(**next(rows.rows(*RANK_GROUP)), work=rows, by_step=of_step)
        for rows, of_step in zip(work, by_step, strict=True)
    ]


MOST_MISSING = 0.25
"""Largest share of missing ranks for which the recorded ones still represent the rest."""


def count_missing_ranks(measured: Measurements, rank_group: RankGroup) -> int:
    """Count the ranks of a rank group that were not recorded; 0 where that is unknown, or where too many are missing."""
    captures = rank_group.select_rows(measured.frame("captures"))
    seen, size = len(set(captures.values("rank")) - {None}), int(captures.integers("world_size").max(initial=0))
    missing = max(size - seen, 0)
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
            named = run if make_run_heading(measured) else None
            yield lack.verdict(rule, named, summarize_step_walls(measured).select_run(run).step_ns)
    if not by_run:
        yield Verdict(rule, "insufficient data", "no step or stage of a known rank was recorded")


@derive_once
def measure_own_work_of_ranks(measured: Measurements) -> Frame:
    """Measure own work: one row per (step, rank group, member, canonical stage) with own_ns and blocked_ns.

    The two add up to the wall. Where a rank group has no stages, canonical is missing and the row is the step. Otherwise
    time outside stages is left out, as waits there are not recorded. Rows of unknown rank are left out.
    """
    keys = (*RANK_GROUP_STEP, *MEMBER, "canonical")
    work = select_work_segments(measured).group_by(*keys)
    return work.agg(own_ns=sum_of("own_ns"), blocked_ns=sum_of("blocked_ns")).sort(*keys)


@derive_once
def select_work_segments(measured: Measurements) -> Frame:
    """Select the rows of `segments` that count as work, with `canonical`; see `measure_own_work_of_ranks`."""
    rows = clear_redundant_parts(measured.frame("segments"))
    rows = rows.with_columns(canonical=name_stages(rows))
    rows = rows.filter(~rows.is_missing("rank") & find_rows_in_steps(measured, rows))
    is_staged = ~rows.is_missing("canonical")
    has_stages = rows.group_by(*RANK_GROUP).each(max_of(is_staged.astype(np.int64))) > 0
    return rows.filter(is_staged | ~has_stages)


def find_rows_in_steps(measured: Measurements, rows: Frame) -> Bools:
    """Find the rows that count: those in a step, and all of a rank group recorded without steps.

    Where steps are marked, rows before the first mark and after the last are parts of steps, and would distort means.
    """
    segments = measured.frame("segments")
    known = segments.filter(~segments.is_missing("step") | ~segments.is_missing("part"))
    is_known = ~rows.is_missing("step") | ~rows.is_missing("part")
    return is_known | ~rows.is_among(known, RANK_GROUP, optional=RANK_GROUP)


@derive_once
def sum_own_work_by_step(measured: Measurements) -> Frame:
    """Sum own work by step: one row per (step, rank group, member).

    Columns: own_ns of all stages, beyond_ns (less the median of the other members, negative below it), others (their
    number) and wall_ns of the step (missing if unknown).
    """
    members = measure_own_work_of_ranks(measured).group_by(*RANK_GROUP_STEP, *MEMBER)
    rows = members.agg(own_ns=sum_of("own_ns"), blocked_ns=sum_of("blocked_ns"))
    step = rows.group_by(*RANK_GROUP_STEP)
    beyond_ns = rows["own_ns"] - compute_medians_of_others(rows["own_ns"], step.number)
    rows = rows.with_columns(beyond_ns=beyond_ns, others=step.each(count_rows()) - 1)
    return rows.join(summarize_step_walls(measured).walls.select(*UNIT, "wall_ns"), UNIT, "left", optional=UNIT)


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
    if measure_own_work_of_ranks(measured).is_missing("replica").all():
        return make_label_headings(measured)
    return (*make_label_headings(measured), Heading("replica", "replica", "id"))


def make_member_headings(measured: Measurements) -> tuple[Heading, ...]:
    """Make the heading of the rank, and of its device where any rank drives several."""
    work = measure_own_work_of_ranks(measured)
    rank = Heading("rank", "rank", "id")
    if len(work.group_by(*RANK_GROUP, *MEMBER)) > len(work.group_by(*RANK_GROUP, "rank")):
        return rank, Heading("device", "device", "id")
    return (rank,)


def divide_by_rank_group_steps(measured: Measurements, rows: Frame, column: str) -> Nullable:
    """Divide a column by the recorded steps of each row's rank group; missing for rows of no rank group."""
    recorded = measure_own_work_of_ranks(measured).distinct(*RANK_GROUP, "step", "part")
    counts = recorded.group_by(*RANK_GROUP).agg(steps=count_rows())
    return divide(rows[column], rows.select(*RANK_GROUP).join(counts, RANK_GROUP, "left", optional=RANK_GROUP)["steps"])


def phrase_rank_group(measured: Measurements, rank_group: RankGroup) -> str:
    """Phrase the rank group of a claim: ` of actor, replica 1`; empty where there is only one."""
    if len({(each.role, each.replica) for each in list_rank_groups(measured)}) < 2:
        return ""
    parts = rank_group.role, format_numbered_word("replica", rank_group.replica)
    name = ", ".join(part for part in parts if part)
    return name and f" of {name}"
