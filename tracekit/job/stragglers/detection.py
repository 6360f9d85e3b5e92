"""Straggler findings (rule R09): one or a few ranks that the others wait for, found by a test over steps.

A pause that the recording shows, or slower clocks, are named in fewer steps than the test needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tracekit.job.frames import (
    UNIT,
    clear_redundant_parts,
    divide_or_none,
    find_damaged_sources,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP_STEP,
    EvidenceLack,
    RankGroup,
    compute_medians_of_others,
    count_missing_ranks,
    find_rows_in_steps,
    list_rank_group_abstentions,
    list_rank_groups,
    phrase_rank_group,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import list_stage_or_step_runs, pick_member_instances
from tracekit.job.stragglers.causes import LatenessCause, find_lateness_cause, is_clock_slow
from tracekit.job.stragglers.collective_waits import (
    CollectiveWaits,
    attribute_collective_waits,
    sum_waits_for_last_rank,
)
from tracekit.job.stragglers.common_traits import name_rank_set
from tracekit.job.stragglers.lateness import (
    LateSet,
    RankLateness,
    find_late_sets,
    has_no_other_late_member,
    measure_excess_work,
    measure_lateness,
    recount_votes_of_all_steps,
    sum_wait_cost_by_group,
    sum_wait_cost_by_rank,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Instance, Metric, Place, Verdict
from tracekit.model.stats.lasting import count_rounds_needed
from tracekit.model.stats.many import adjust_benjamini_hochberg
from tracekit.model.tables.frame import Bools, Frame, max_of, mean_of, sum_of, where
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity, format_ranges

MAX_PLACES = 8


@dataclass(frozen=True, slots=True)
class LateRanks:
    """A set of late members of a rank group, and its cost per step in the process group that waits most.

    `cause` is None where the set costs too little to look for one. `is_named` is True where chance is unlikely, or where
    the recording shows the cause. `pause_ns` is set only where chance is likely and a pause was seen: the cost per step
    of that pause alone, which is all that the finding claims.
    """

    rank_group: RankGroup
    lateness: RankLateness
    late_set: LateSet
    group: str | None
    cost_ns: float
    cause: LatenessCause | None
    is_named: bool
    pause_ns: float = 0.0

    @property
    def members(self) -> Frame:
        """Rank and device of each late member."""
        return self.lateness.members.filter(self.late_set.is_late)

    @property
    def ranks(self) -> set[int]:
        """Ranks of the late members."""
        return set(self.members.values("rank"))

    @property
    def late_steps(self) -> Frame:
        """Steps in which the members are late."""
        return self.lateness.steps.filter(self.late_set.late_steps)


def summarize_rank_group_members(rank_group: RankGroup, waited: CollectiveWaits) -> Frame:
    """Summarize each member of a rank group: own work, waits, and how often it came last.

    One row per member: own_ns and beyond_ns (means over its steps), lost_ns (sum), taken (collectives with a clear last
    rank) and last (those in which it was the last). Missing where there is nobody, or nothing, to compare.
    """
    steps = rank_group.by_step.group_by(*MEMBER)
    means = steps.agg(own_ns=mean_of("own_ns"), beyond_ns=mean_of("beyond_ns"), others=max_of("others"))
    means = means.with_columns(beyond_ns=where(means["others"] > 0, means["beyond_ns"])).sort(*MEMBER)
    waits = rank_group.select_rows(waited.collectives)
    taken, last = (waits[name].astype(np.int64) for name in ("trusted", "is_last"))
    sums = waits.group_by(*MEMBER).agg(lost_ns=sum_of("lost_ns"), taken=sum_of(taken), last=sum_of(last))
    members = means.join(sums, MEMBER, "left", optional=MEMBER)
    return members.with_columns(taken=members.integers("taken"), last=members.integers("last"))


def find_late_ranks(measured: Measurements, waited: CollectiveWaits, thresholds: Thresholds) -> list[LateRanks]:
    """Find the late ranks of all rank groups, the latest of each group first, named or not.

    Each group is tested set by set until one set does not pass. Over groups, Benjamini-Hochberg bounds the share of
    false findings.
    """
    limit = thresholds.of("straggler")
    by_group = []
    for rank_group in list_rank_groups(measured):
        if rank_group.members >= limit["min_ranks"]:
            by_group.append(list(_list_late_rank_candidates(measured, rank_group, waited, limit)))
    leading = [candidates[0] for candidates in by_group if candidates]
    costly = [late for late in leading if late.cause is not None]
    q = adjust_benjamini_hochberg([late.late_set.chance for late in costly])
    is_rare = {id(late): q[place] <= limit["false_ratio"] for place, late in enumerate(costly)}
    judged: list[LateRanks] = []
    for candidates in by_group:
        goes_on = True
        for place, late in enumerate(candidates):
            rare = late.late_set.chance <= limit["false_ratio"]
            rare = is_rare.get(id(late), False) if place == 0 else rare
            as_judged = _decide_late_rank_naming(measured, late, limit, goes_on=goes_on, rare=rare)
            goes_on &= as_judged.is_named
            judged += _split_late_ranks_by_cause(measured, waited, as_judged, limit)
    return judged


def _split_late_ranks_by_cause(
    measured: Measurements, waited: CollectiveWaits, late: LateRanks, limit: Mapping[str, float]
) -> Iterator[LateRanks]:
    """Split a late set by the causes of its members, or yield it unchanged where there is one cause.

    The wait for a collective is charged to the member that comes last to it.
    """
    several = late.is_named and not late.pause_ns and 1 < late.late_set.size <= MOST_SPLIT_RANKS
    rows = np.flatnonzero(late.late_set.is_late).tolist() if several else []
    parts: dict[tuple[object, ...], list[int]] = {}
    all_late = late.late_set.is_late

    def cause_of_members(members: list[int]) -> LatenessCause:
        """Find the cause of these members alone."""
        of_members = _select_late_subset(late, members)
        return _find_cause_of_late_set(measured, late.rank_group, late.lateness, of_members, all_late)

    # The cause of a rank with a damaged file is unknown alone: it is that of the whole set.
    damaged = _list_ranks_of_damaged_files(measured) if several else set()
    ranks = late.lateness.members.values("rank")
    causes = {row: late.cause if ranks[row] in damaged else cause_of_members([row]) for row in rows}
    for row, cause in causes.items():
        parts.setdefault(("",) if cause is None else (cause.kind, cause.where), []).append(row)
    if len(parts) < 2:
        yield late
        return
    arrivals = late.rank_group.select_rows(waited.collectives)
    arrivals = arrivals.filter(arrivals.equals("group", late.group))
    cost_ns = _bound_late_rank_costs(measured, late.rank_group, arrivals, late.lateness.members.filter(all_late))
    step_ns = summarize_step_walls(measured).select_run(late.rank_group.run).step_ns
    for members in parts.values():
        part = replace(late, late_set=_select_late_subset(late, members))
        of_part = sum(cost_ns.get(rank, 0) for rank in part.ranks) / late.rank_group.steps
        is_costly = (divide_or_none(of_part, step_ns) or 0.0) >= limit["step_ratio"]
        cause = causes[members[0]] if len(members) == 1 else cause_of_members(members)
        yield replace(part, cost_ns=of_part, cause=cause, is_named=is_costly)


def _list_ranks_of_damaged_files(measured: Measurements) -> set[int]:
    """List the ranks with a file that lacks rows."""
    steps = measured.frame("steps")
    return set(steps.filter(steps.is_in("source", find_damaged_sources(measured))).values("rank")) - {None}


MOST_SPLIT_RANKS = 8
"""Most ranks of a late set whose causes are looked for one by one."""


def _select_late_subset(late: LateRanks, rows: list[int]) -> LateSet:
    """Select some members of a late set, by row of `RankLateness`, with their share of the votes."""
    is_late = np.zeros(len(late.late_set.is_late), np.bool_)
    is_late[rows] = True
    votes = late.late_set.votes * len(rows) // late.late_set.size
    late_ns = late.lateness.late_ns[is_late].mean(axis=0)
    return replace(late.late_set, is_late=is_late, late_ns=late_ns, votes=votes)


def _decide_late_rank_naming(
    measured: Measurements, late: LateRanks, limit: Mapping[str, float], *, goes_on: bool, rare: bool
) -> LateRanks:
    """Decide whether a late set is named.

    A set is named where chance is unlikely or its clocks are slow. Otherwise it is named only for a pause that was seen.
    """
    if not goes_on or late.cause is None or not _is_late_by_own_work(measured, late):
        return late
    if rare or _has_lasting_cause(measured, late, late.cause, limit):
        return replace(late, is_named=True)
    if not has_no_other_late_member(late.lateness, late.late_set):
        return late
    pause_ns = _estimate_pause_cost(late, late.cause)
    step_ns = summarize_step_walls(measured).select_run(late.rank_group.run).step_ns
    is_costly = (divide_or_none(pause_ns, step_ns) or 0.0) >= limit["seen_ratio"]
    return replace(late, is_named=is_costly, pause_ns=pause_ns)


def _list_late_rank_candidates(
    measured: Measurements, rank_group: RankGroup, waited: CollectiveWaits, limit: Mapping[str, float]
) -> Iterator[LateRanks]:
    """List the sets of late members of a rank group, with the cause of those that cost enough to report."""
    late = measure_lateness(rank_group, waited)
    arrivals = rank_group.select_rows(waited.collectives)
    step_ns = summarize_step_walls(measured).select_run(rank_group.run).step_ns
    for late_set in find_late_sets(late, count_missing_ranks(measured, rank_group)):
        members = late.members.filter(late_set.is_late)
        costs = sum_wait_cost_by_group(arrivals, arrivals.is_among(members, MEMBER, optional=MEMBER))
        group = costs.values("group")[0]
        longest = arrivals.filter(arrivals.equals("group", group))
        bounded = _bound_late_rank_costs(measured, rank_group, longest, members)
        cost_ns = sum(bounded.values()) / rank_group.steps
        # Where steps differ, the sum over collectives counts whoever is last in each: bound it by the mean lateness.
        lasting_ns = min(cost_ns, float(late_set.late_ns.mean()))
        cause = None
        if (divide_or_none(lasting_ns, step_ns) or 0.0) >= limit["step_ratio"]:
            cause = _find_cause_of_late_set(measured, rank_group, late, late_set)
        tested = late_set
        if cause is not None and late_set.compared_count == len(late.members):
            tested = _recount_late_votes(measured, rank_group, late, late_set, limit)
        yield LateRanks(rank_group, late, tested, group, cost_ns, cause, is_named=False)


def _bound_late_rank_costs(
    measured: Measurements, rank_group: RankGroup, arrivals: Frame, late: Frame
) -> dict[int, int]:
    """Sum how long the others wait for each late rank in one process group, bounded by its excess of own work."""
    whole = rank_group.select_rows(measured.derived(sum_all_work))
    is_late = arrivals.is_among(late, MEMBER, optional=MEMBER)
    return sum_wait_cost_by_rank(arrivals, is_late, measure_excess_work(rank_group.by_step, whole, arrivals, late))


def _recount_late_votes(
    measured: Measurements, rank_group: RankGroup, late: RankLateness, late_set: LateSet, limit: Mapping[str, float]
) -> LateSet:
    """Count the votes of all recorded steps for a late set, steps that do not count included.

    Who is late in a warm-up step is late, however long that step takes.
    """
    recorded = measured.recorded
    if recorded is None or late_set.chance <= limit["false_ratio"]:
        return late_set
    chosen = late.members.filter(late_set.is_late)
    for whole_group in list_rank_groups(recorded):
        if whole_group.labels == rank_group.labels:
            return recount_votes_of_all_steps(
                late_set, chosen, measure_lateness(whole_group, attribute_collective_waits(recorded))
            )
    return late_set


def _find_cause_of_late_set(
    measured: Measurements,
    rank_group: RankGroup,
    late: RankLateness,
    late_set: LateSet,
    all_late: Bools | None = None,
) -> LatenessCause:
    """Find why a set of members is late, by comparing it with the members nearest to the median.

    `all_late` also marks members that are late with them for other causes; these are not compared with.
    """
    is_late = late_set.is_late if all_late is None else all_late
    chosen, usual_ranks = _list_ranks_of_both_sides(measured, late, late_set, is_late)
    return find_lateness_cause(measured, rank_group, chosen, usual_ranks, late.steps.filter(late_set.late_steps))


def _list_ranks_of_both_sides(
    measured: Measurements, late: RankLateness, late_set: LateSet, is_late: Bools
) -> tuple[list[int], list[int]]:
    """List (the ranks of a set, the ranks that are not late, those nearest to the median first).

    Ranks with a damaged file are left out if others remain: rows that it lacks look like a pause.
    """
    ranks = late.members.integers("rank")
    distance = np.abs(late.late_ns.mean(axis=1) - np.median(late.late_ns.mean(axis=1)))
    distance[is_late] = np.inf
    usual = np.argsort(distance, kind="stable")[: int((~is_late).sum())]
    chosen = sorted(set(ranks[late_set.is_late].tolist()))
    usual_ranks = [rank for rank in ranks[usual].tolist() if rank not in chosen]
    damaged = _list_ranks_of_damaged_files(measured)
    undamaged = ([rank for rank in side if rank not in damaged] for side in (chosen, usual_ranks))
    chosen, usual_ranks = (left or side for left, side in zip(undamaged, (chosen, usual_ranks), strict=True))
    return chosen, usual_ranks


def _is_late_by_own_work(measured: Measurements, late: LateRanks) -> bool:
    """Check whether the members are late because of their own work, not because something else blocks them."""
    needed = 0.5 * float(late.late_set.late_ns.mean())
    is_late = late.late_set.is_late
    rows = late.rank_group.select_rows(measured.derived(sum_all_work))
    if 2 * late.late_set.size > len(is_late):
        none = attribute_collective_waits(measured).collectives.head(0)
        excess = measure_excess_work(late.rank_group.by_step, rows, none, late.members)
        return sum(excess.by_rank.values()) >= needed * late.late_set.size * len(late.lateness.steps)
    if late.late_set.worked_ns >= needed:
        return True
    compared = late.lateness.members.filter(late.late_set.is_compared)
    rows = rows.filter(rows.is_among(compared, MEMBER, optional=MEMBER))
    beyond_ns = rows["own_ns"] - compute_medians_of_others(rows["own_ns"], rows.group_by(*RANK_GROUP_STEP).number)
    return float(beyond_ns[rows.is_among(late.members, MEMBER, optional=MEMBER)].mean()) >= needed


def sum_all_work(measured: Measurements) -> Frame:
    """Sum own work in and outside of stages: one row per (step, rank group, member).

    Columns: own_ns, and beyond_ns (less the median of the other members).
    """
    segments = clear_redundant_parts(measured.frame("segments"))
    segments = segments.filter(~segments.is_missing("rank") & find_rows_in_steps(measured, segments))
    rows = segments.group_by(*RANK_GROUP_STEP, *MEMBER).agg(own_ns=sum_of("own_ns"))
    step, own_ns = rows.group_by(*RANK_GROUP_STEP).number, rows["own_ns"]
    return rows.with_columns(beyond_ns=own_ns - compute_medians_of_others(own_ns, step))


def _has_lasting_cause(
    measured: Measurements, late: LateRanks, cause: LatenessCause, limit: Mapping[str, float]
) -> bool:
    """Check whether all kernels or host calls are slower by one factor until the recording ends: few steps show it.

    Kernels also show it in steps that do not count, or that another rank lacks.
    """
    if not cause.lasts or not late.late_set.late_steps[-1]:
        return False
    count = len(late.late_steps)
    if count >= limit["clock_steps"]:
        return True
    later = _list_slow_clocks_after(measured, late) if cause.kind == "clock" else []
    return all(later) and count + len(later) >= limit["clock_steps"]


def _list_slow_clocks_after(measured: Measurements, late: LateRanks) -> list[bool]:
    """List whether the clocks of a set are slow in each recorded step after those whose waits are known."""
    recorded = measured.recorded or measured
    last = late.lateness.steps.take(slice(-1, None))
    slow: list[bool | None] = []
    for whole_group in list_rank_groups(recorded):
        if whole_group.labels == late.rank_group.labels:
            steps = whole_group.by_step.select(*UNIT).sort(*UNIT).distinct(*UNIT)
            place = np.flatnonzero(steps.is_among(last, UNIT, optional=UNIT))
            ranks = _list_ranks_of_both_sides(recorded, late.lateness, late.late_set, late.late_set.is_late)
            for number in range(int(place[0]) + 1, len(steps)) if len(place) else ():
                slow.append(is_clock_slow(recorded, whole_group, *ranks, steps.take(np.array([number]))))
    return [is_slow for is_slow in slow if is_slow is not None]


def _estimate_pause_cost(late: LateRanks, cause: LatenessCause) -> float:
    """Estimate the cost per step of a pause that was seen: at most its length, and at most the wait of the others."""
    share = len(late.late_steps) / max(late.rank_group.steps, 1)
    return min(cause.pause_ns * share, late.cost_ns)


def list_straggler_abstentions(
    measured: Measurements, judged: list[LateRanks], thresholds: Thresholds
) -> Iterator[Verdict]:
    """List the runs in which R09 names no rank and cannot rule one out."""
    limit = thresholds.of("straggler")

    def lacking(groups_of_run: list[RankGroup]) -> EvidenceLack | None:
        """Find the costliest reason that a run cannot be judged; None if any of its rank groups can."""
        lacks: list[EvidenceLack] = []
        for rank_group in groups_of_run:
            of_group = [late for late in judged if late.rank_group is rank_group]
            lack = _find_straggler_lack(measured, rank_group, of_group, limit)
            if lack is None:
                return None
            lacks.append(lack)
        return max(lacks, key=lambda lack: (lack.price_ns, lack.reason))

    return list_rank_group_abstentions(measured, "straggler", limit["min_ranks"], lacking)


def _find_straggler_lack(
    measured: Measurements, rank_group: RankGroup, of_group: list[LateRanks], limit: Mapping[str, float]
) -> EvidenceLack | None:
    """Find why a rank group can be neither named nor cleared, and the time at stake; None where it is settled."""
    if any(late.is_named for late in of_group):
        return None
    if not len(rank_group.select_rows(attribute_collective_waits(measured).collectives)):
        return EvidenceLack("no collective could be compared between ranks")
    waits_ns = float(rank_group.select_rows(sum_waits_for_last_rank(measured))["lost_ns"].sum()) / rank_group.steps
    lost_ns = max([waits_ns, *(late.cost_ns for late in of_group)])
    share = divide_or_none(lost_ns, summarize_step_walls(measured).select_run(rank_group.run).step_ns)
    claim, needs = _describe_probable_straggler(of_group, limit)
    if (share or 0.0) >= limit["lost_ratio"]:
        lost = f"{format_quantity(lost_ns, 'ns')} of a step are waits for late ranks"
        return EvidenceLack(f"{lost}, {_explain_unnamed_ranks(of_group, limit)}", lost_ns, claim, needs)
    needed = count_rounds_needed(rank_group.members, 1, limit["false_ratio"])
    if rank_group.steps >= needed:
        return None
    return EvidenceLack(f"{rank_group.steps} of at least {needed} steps", lost_ns, claim, needs)


def _describe_probable_straggler(of_group: list[LateRanks], limit: Mapping[str, float]) -> tuple[str, str]:
    """Describe (the probable straggler and how much busier it is, evidence that would prove it).

    Empty unless the set is late in every step.
    """
    if not of_group or of_group[0].late_set.votes_ratio < 1:
        return "", ""
    late, late_set = of_group[0], of_group[0].late_set
    who = f"{choose_plural(len(late.ranks), 'rank')} {format_ranges(late.ranks)}"
    rounds = late_set.rounds
    steps = f"in {rounds} of {rounds} {choose_plural(rounds, 'step')}"
    work = late.rank_group.by_step
    work = work.filter(work.is_among(late.members, MEMBER, optional=MEMBER))
    beyond, own = (float(work[name].sum()) for name in ("beyond_ns", "own_ns"))
    needs = f"{_count_steps_needed(late, limit)} steps would prove it"
    if late_set.chance <= limit["false_ratio"]:
        needs = "stacks (with_stack=True) or ranges around its work would show the cause"
    is_busier = beyond >= 0.5 * float(late_set.late_ns.sum()) * late_set.size and own > beyond
    if not is_busier:
        return f"the others wait for {who} {steps}", needs
    verb = "is" if len(late.ranks) == 1 else "are"
    return f"{who} {verb} {format_quantity(beyond / (own - beyond), 'ratio')} busier {steps}", needs


def _explain_unnamed_ranks(of_group: list[LateRanks], limit: Mapping[str, float]) -> str:
    """Explain why the latest ranks of a rank group are not named."""
    rotating = "for changing ranks: see rank-imbalance"
    if not of_group:
        return rotating
    late = of_group[0]
    if late.late_set.votes_ratio < limit["rotating_ratio"]:
        return rotating
    who = f"{choose_plural(len(late.ranks), 'rank')} {format_ranges(late.ranks)}"
    if late.late_set.chance <= limit["false_ratio"]:
        return f"most for {who}: without a recorded cause in their own work"
    return (
        f"most for {who}: may be chance ({format_quantity(late.late_set.chance, 'ratio')})"
        f" in {late.late_set.rounds} steps, {_count_steps_needed(late, limit)} would decide it"
    )


def _count_steps_needed(late: LateRanks, limit: Mapping[str, float]) -> int:
    """Count the steps in which a set must come last to be named, at least one more than were recorded."""
    needed = count_rounds_needed(late.late_set.compared_count, late.late_set.size, limit["false_ratio"])
    return max(needed, late.late_set.rounds + 1)


def list_straggler_findings(
    measured: Measurements, waited: CollectiveWaits, judged: list[LateRanks], thresholds: Thresholds
) -> Iterator[Finding]:
    """List the findings of R09: each set of ranks that is repeatedly late, with its cost and cause."""
    for late in judged:
        if late.is_named and late.cause is not None:
            yield _make_straggler_finding(measured, waited, late, late.cause, thresholds)


def _make_straggler_finding(
    measured: Measurements, waited: CollectiveWaits, late: LateRanks, cause: LatenessCause, thresholds: Thresholds
) -> Finding:
    """Make the finding on a late set, with its cost in the process group that waits longest for it."""
    rank_group = late.rank_group
    stage = _find_stage_of_lateness(waited, late)
    step_ns = summarize_step_walls(measured).select_run(rank_group.run).step_ns
    cost_ns = late.pause_ns or late.cost_ns
    share = divide_or_none(cost_ns, step_ns)
    mostly = f", mostly in {stage}" if stage else ""
    why = f": {cause.words}" if cause.words else ""
    each = " per step" if rank_group.steps > 1 else ""
    is_late = np.flatnonzero(late.late_set.is_late)
    places = [_locate_late_member(late, row, stage) for row in is_late[:MAX_PLACES].tolist()]
    return Finding(
        "straggler",
        thresholds.severity(share),
        f"{_phrase_awaited_ranks(measured, late)} the others waiting: {format_quantity(cost_ns, 'ns')}{each}"
        f"{_phrase_late_steps(late)}{mostly}{why}{phrase_run(measured, rank_group.run)}",
        cause.advice,
        (*_list_vote_metrics(late.late_set), *cause.evidence),
        tuple(places),
        round(cost_ns),
        share,
        changes=tuple(write_change("equalise", on, rank=set(late.ranks)) for on in ("device", "host")),
        instances=_pick_late_steps(measured, late, stage),
    )


def _phrase_awaited_ranks(measured: Measurements, late: LateRanks) -> str:
    """Phrase whom the others wait for, with the verb; only its pause where no more is known."""
    who = name_rank_set(measured, late.rank_group, late.ranks)
    who = f"{who}{phrase_rank_group(measured, late.rank_group)}"
    if late.pause_ns:
        return f"a pause of {who} keeps"
    verb = "keeps" if len(late.ranks) == 1 else "keep"
    return f"{who} {verb}"


def _list_vote_metrics(late_set: LateSet) -> tuple[Metric, ...]:
    """List how often the set is later than all others, how likely that is by chance, and by how much it is later."""
    steps = late_set.rounds
    late_ns = round(float(late_set.late_ns.mean()))
    label = f"of {steps} {choose_plural(steps, 'step')} later than all others"
    return (
        make_evidence_metric("last_ratio", late_set.votes_ratio, label),
        make_evidence_metric("chance_ratio", late_set.chance, "as often by chance", better="neither"),
        make_evidence_metric("late_ns", late_ns, "later than the others, per step"),
    )


def _phrase_late_steps(late: LateRanks) -> str:
    """Phrase the steps in which the set is late; empty where it is late in all of them."""
    is_late = late.late_set.late_steps
    steps = late.late_steps
    named_steps = [step for step in steps.values("step") if step is not None]
    if is_late.all() or not named_steps or len(named_steps) < len(steps):
        return ""
    if len(named_steps) > 1 and late.late_set.since:
        return f" from step {named_steps[0]} on"
    return f" in {choose_plural(len(named_steps), 'step')} {format_ranges(set(named_steps))}"


def _find_stage_of_lateness(waited: CollectiveWaits, late: LateRanks) -> str:
    """Find the stage that makes the set late; empty where most of its lateness is outside of stages."""
    arrivals = waited.collectives
    chosen = late.rank_group.has_rows(arrivals) & arrivals.equals("group", late.group)
    chosen &= arrivals.is_among(late.members, MEMBER, optional=MEMBER)
    parts = waited.by_stage[chosen].sum(axis=0) / late.late_set.size
    if not len(parts) or parts.sum() < 0.5 * late.late_set.late_ns.sum():
        return ""
    return waited.stages[int(parts.argmax())]


def _pick_late_steps(measured: Measurements, late: LateRanks, stage: str) -> tuple[Instance, ...]:
    """Pick the step in which a member is latest, and a median one, at the stage that makes it late."""
    runs = list_stage_or_step_runs(measured, stage, late.rank_group.run, rank=late.ranks)
    ranks = np.array(late.members.values("rank"), np.int64)
    count = len(late.lateness.steps)
    costs = late.lateness.steps.take(np.tile(np.arange(count), len(ranks)))
    costs = costs.with_columns(
        role=late.rank_group.role,
        replica=late.rank_group.replica,
        rank=np.repeat(ranks, count),
        cost=late.lateness.late_ns[late.late_set.is_late].ravel().astype(np.int64),
    )
    return pick_member_instances(late.rank_group.select_rows(runs), costs)


def _locate_late_member(late: LateRanks, row: int, stage: str) -> Place:
    """Locate one member in the step in which it is latest."""
    rank, device = (late.lateness.members.values(name)[row] for name in MEMBER)
    step = late.lateness.steps.values("step")[int(late.lateness.late_ns[row].argmax())]
    return Place(
        run=late.rank_group.run,
        role=late.rank_group.role,
        rank=rank,
        device=device,
        step=step,
        stage=stage or None,
    )
