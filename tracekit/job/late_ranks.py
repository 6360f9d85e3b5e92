"""Ranks that the others wait for, one or a few, as findings (R09)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    in_run,
    job,
    same_text,
    share_of,
    summed,
    text_or_none,
    whole_or_none,
)
from tracekit.job.rank_groups import MEMBER, RankGroup, abstained, in_rank_group, rank_groups
from tracekit.job.waits import Waits, saved_by_match, waits
from tracekit.model.keys import is_among, numbered_alike, of_keys
from tracekit.model.report import Finding, Metric, Place, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements
from tracekit.model.units import numbers, show

MAX_PLACES = 8


def members(rank_group: RankGroup, waited: Waits) -> pd.DataFrame:
    """One row a member: own_ns and beyond_ns (means over its steps), lost_ns (sum), and of how many collectives
    with a clear last rank (taken) it was the last; <NA> where there is nobody, or nothing, to compare.
    """
    steps, arrivals = rank_group.by_step, rank_group.of(waited.collectives)
    of_step, of_arrival = numbered_alike(MEMBER, steps, arrivals, in_order=True)
    grouped = steps.groupby(of_step)
    out = grouped[[*MEMBER]].first()
    out["own_ns"] = grouped["own_ns"].mean()
    several = grouped["others"].max() > 0
    out["beyond_ns"] = grouped["beyond_ns"].mean().where(several)
    waiting = arrivals.groupby(of_arrival)
    out["lost_ns"] = waiting["lost_ns"].sum()
    for name, column in (("taken", "trusted"), ("last", "is_last")):
        out[name] = waiting[column].sum().astype("Int64").reindex(out.index, fill_value=0)
    return out


def abstentions(measured: Measurements, thresholds: Thresholds) -> Iterator[Verdict]:
    """Runs of which R09 can say nothing, and why."""
    limit = thresholds.of("straggler")
    rows = waits(measured).collectives

    def lacking(groups_of_run: list[RankGroup]) -> str | None:
        votes = max((_most_votes(rank_group.of(rows)) for rank_group in groups_of_run), default=0)
        few = f"{votes} of at least {limit['min_collectives']:g} collectives with a clear last rank"
        return few if votes < limit["min_collectives"] else None

    return abstained(measured, "straggler", limit["min_ranks"], lacking)


def _most_votes(rows: pd.DataFrame) -> int:
    """The most collectives with a clear last rank that any one member took part in."""
    trusted = rows[rows["trusted"].to_numpy(np.bool_)]
    return int(np.bincount(of_keys(trusted, MEMBER)[0], minlength=1).max())


def claims(measured: Measurements, waited: Waits, thresholds: Thresholds) -> Iterator[Finding]:
    """R09: a rank that comes last again and again because it works longer than the others.

    Several that work alike take turns in being last: where none is by itself, a few are looked at together.
    """
    limit = thresholds.of("straggler")
    for rank_group in rank_groups(measured):
        if rank_group.members < limit["min_ranks"]:
            continue
        table = members(rank_group, waited)
        slow = table["taken"].to_numpy(np.int64) >= limit["min_collectives"]
        slow &= _share_of_steps(rank_group, table, limit) >= limit["steps_ratio"]
        late = table[slow].sort_values("beyond_ns", ascending=False, kind="stable")
        often = late["last"] >= limit["last_ratio"] * late["taken"]
        for member in sorted(late.index[often.to_numpy(np.bool_)]):
            yield _finding(measured, waited, rank_group, late.loc[[member]], thresholds)
        few = 1 < len(late) <= limit["few_ratio"] * rank_group.members
        if (
            few
            and not often.any()
            and late["last"].sum() >= limit["last_ratio"] * late["taken"].max()
        ):
            yield _finding(measured, waited, rank_group, late, thresholds)


def _share_of_steps(
    rank_group: RankGroup, table: pd.DataFrame, limit: Mapping[str, float]
) -> npt.NDArray[np.float64]:
    """In which share of its steps each member works longer than the others by more than the limit."""
    steps = rank_group.by_step
    judged = steps[(steps["others"] + 1 >= limit["min_ranks"]) & steps["wall_ns"].notna()]
    share = judged["beyond_ns"] / judged["wall_ns"].clip(lower=1).astype("Float64")
    long = (share >= limit["excess_ratio"]).to_numpy(np.int64)
    member, judged_member = numbered_alike(MEMBER, table, judged)
    room = int(max(member.max(initial=-1), judged_member.max(initial=-1))) + 1
    count = np.bincount(judged_member, minlength=room)[member]
    shares: npt.NDArray[np.float64] = np.bincount(judged_member, long, minlength=room)[
        member
    ] / np.maximum(count, 1)
    return shares


def _are(frame: pd.DataFrame, names: tuple[str, str], late: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether rank and device of each row, called `names` there, are those of one of the late members."""
    return is_among(frame[[*names]].set_axis([*MEMBER], axis=1), late, MEMBER)


def _finding(
    measured: Measurements,
    waited: Waits,
    rank_group: RankGroup,
    late: pd.DataFrame,
    thresholds: Thresholds,
) -> Finding:
    """The finding on these members: what they cost in the group whose waits for them are longest."""
    ranks = list(map(int, late["rank"]))
    group, saved_ns = _costliest_group(measured, rank_group, late)
    arrivals = rank_group.of(waited.collectives)
    arrivals = arrivals[_are(arrivals, MEMBER, late)]
    arrivals = arrivals[same_text(arrivals["group"], group).to_numpy(np.bool_)]
    member_steps = rank_group.steps * len(late)
    excess = float(arrivals["excess_ns"].sum()) / member_steps
    parts = waited.by_stage[arrivals.index.to_numpy()].sum(axis=0) / member_steps
    excess_ns, stage = max(zip(parts.tolist(), waited.stages, strict=True))
    gain = saved_ns / rank_group.steps
    step_ns = job(measured).of(rank_group.run).step_ns
    step_without = None if not step_ns else round(step_ns - gain)
    where, mostly = (f" in {stage}", f", most of it in {stage}") if stage else ("", "")
    words = _OF_SEVERAL
    who = f"ranks {numbers(set(ranks))}"
    if len(set(ranks)) == 1:
        words, who = _OF_ONE, f"rank {ranks[0]}"
    last, votes = int(late["last"].sum()), int(late["taken"].max())
    members = late[[*MEMBER]].head(MAX_PLACES).itertuples(index=False, name=None)
    return Finding(
        "straggler",
        thresholds.severity(share_of(gain, step_ns)),
        f"{who}{in_rank_group(measured, rank_group)} {words.keeps}: {show(excess, 'ns')} more work of {words.own} own per step"
        f"{mostly}{in_run(measured, rank_group.run)}",
        f"put a step of rank {ranks[0]} beside that of another rank{where}: more tokens or longer sequences, slower clocks, other load on its host",
        (
            Metric("last_ratio", last / votes, "ratio", "lower", label=words.comes_last),
            Metric("collectives", votes, "count", label="of collectives"),
            Metric("excess_ns", round(excess), "ns", "lower", label=_BEYOND),
            Metric("excess_stage_ns", round(excess_ns), "ns", "lower", label=f"of it{where}"),
            Metric("without_ns", step_without, "ns", label=f"step without {words.them}"),
        ),
        tuple(_place(rank_group, rank, device, stage) for rank, device in members),
        round(gain),
        share_of(gain, step_ns),
        ("what is given back is bounded by the next slowest rank",),
    )


_BEYOND = "own work beyond the others, per step"


class _Words(NamedTuple):
    """How a claim speaks of one late rank, or of several."""

    keeps: str
    own: str
    comes_last: str
    them: str


_OF_ONE = _Words("keeps the others waiting", "its", "comes last", "it")
_OF_SEVERAL = _Words(
    "keep the others waiting, now one and now another",
    "their",
    "one of them comes last",
    "them",
)


def _costliest_group(
    measured: Measurements, rank_group: RankGroup, late: pd.DataFrame
) -> tuple[Any, float]:
    """(the group in which these members cost most, how much time there in all)."""
    saved = rank_group.of(saved_by_match(measured))
    saved = saved[_are(saved, ("late_rank", "late_device"), late)]
    by_group = summed(saved, ["group"], ["saved_ns"])
    by_group = by_group.sort_values(["saved_ns", "group"], ascending=[False, True])
    return by_group["group"].iloc[0], float(by_group["saved_ns"].iloc[0])


def _place(rank_group: RankGroup, rank: Any, device: Any, stage: str) -> Place:
    """Where to look at one member: in the step in which it works longest beyond the others."""
    is_member = same_text(rank_group.by_step["rank"], rank) & same_text(
        rank_group.by_step["device"], device
    )
    member_steps = rank_group.by_step[is_member.fillna(value=False).to_numpy(np.bool_)]
    step = member_steps.sort_values(["beyond_ns", "step"], ascending=[False, True])["step"].iloc[0]
    return Place(
        run=text_or_none(rank_group.run),
        role=rank_group.role,
        rank=int(rank),
        device=whole_or_none(device),
        step=whole_or_none(step),
        stage=stage or None,
    )
