"""Ranks that the others wait for, one or a few, as findings (R09)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import in_run, job, same_text, summed
from tracekit.job.rank_groups import MEMBER, Crew, abstained, crews, in_crew
from tracekit.job.waits import Waits, saved_by_match, waits
from tracekit.model.keys import is_among, numbered_alike, of_keys
from tracekit.model.report import Finding, Metric, Place, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements
from tracekit.model.units import numbers, show

MAX_PLACES = 8


def members(crew: Crew, waited: Waits) -> pd.DataFrame:
    """One row a member: own_ns and beyond_ns (means over its steps), lost_ns (sum), and of how many collectives
    with a clear last rank (taken) it was the last; <NA> where there is nobody, or nothing, to compare.
    """
    steps, arrivals = crew.by_step, crew.of(waited.collectives)
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

    def lacking(run_groups: list[Crew]) -> str | None:
        votes = max((_most_votes(crew.of(rows)) for crew in run_groups), default=0)
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
    for crew in crews(measured):
        if crew.members < limit["min_ranks"]:
            continue
        table = members(crew, waited)
        slow = table["taken"].to_numpy(np.int64) >= limit["min_collectives"]
        slow &= _share_of_steps(crew, table, limit) >= limit["steps_ratio"]
        late = table[slow].sort_values("beyond_ns", ascending=False, kind="stable")
        often = late["last"] >= limit["last_ratio"] * late["taken"]
        for member in sorted(late.index[often.to_numpy(np.bool_)]):
            yield _finding(measured, waited, crew, late.loc[[member]], thresholds)
        few = 1 < len(late) <= limit["few_ratio"] * crew.members
        if (
            few
            and not often.any()
            and late["last"].sum() >= limit["last_ratio"] * late["taken"].max()
        ):
            yield _finding(measured, waited, crew, late, thresholds)


def _share_of_steps(
    crew: Crew, table: pd.DataFrame, limit: Mapping[str, float]
) -> npt.NDArray[np.float64]:
    """In which share of its steps each member works longer than the others by more than the limit."""
    steps = crew.by_step
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
    measured: Measurements, waited: Waits, crew: Crew, late: pd.DataFrame, thresholds: Thresholds
) -> Finding:
    """The finding on these members: what they cost in the group whose waits for them are longest."""
    ranks = [int(rank) for rank in late["rank"]]
    saved = crew.of(saved_by_match(measured))
    saved = saved[_are(saved, ("late_rank", "late_device"), late)]
    by_group = summed(saved, ["group"], ["saved_ns"]).sort_values(
        ["saved_ns", "group"], ascending=[False, True]
    )
    group = by_group["group"].iloc[0]
    arrivals = crew.of(waited.collectives)
    arrivals = arrivals[_are(arrivals, MEMBER, late)]
    arrivals = arrivals[same_text(arrivals["group"], group).to_numpy(np.bool_)]
    member_steps = crew.steps * len(late)
    excess = float(arrivals["excess_ns"].sum()) / member_steps
    parts = waited.by_stage[arrivals.index.to_numpy()].sum(axis=0)
    by_stage = {
        name: float(part) / member_steps for name, part in zip(waited.stages, parts, strict=True)
    }
    stage = max(by_stage, key=lambda name: (by_stage[name], name))
    gain = float(by_group["saved_ns"].iloc[0]) / crew.steps
    step_ns = job(measured).of(crew.run).step_ns
    where = f" in {stage}" if stage else ""
    is_one = len(set(ranks)) == 1
    who = f"rank {ranks[0]}" if is_one else f"ranks {numbers(set(ranks))}"
    of_whom = (
        "keeps the others waiting" if is_one else "keep the others waiting, now one and now another"
    )
    last, votes = int(late["last"].sum()), int(late["taken"].max())
    return Finding(
        "straggler",
        thresholds.severity(gain / step_ns if step_ns else None),
        f"{who}{in_crew(measured, crew)} {of_whom}: {show(excess, 'ns')} more work of {'its' if is_one else 'their'} own per step"
        f"{', most of it' + where if stage else ''}{in_run(measured, crew.run)}",
        f"put a step of rank {ranks[0]} beside that of another rank{where}: more tokens or longer sequences, slower clocks, other load on its host",
        (
            Metric("last_ratio", last / votes, "ratio", "lower", label="comes last" if is_one else "one of them comes last"),
            Metric("collectives", votes, "count", label="of collectives"),
            Metric("excess_ns", round(excess), "ns", "lower", label="own work beyond the others, per step"),
            Metric("excess_stage_ns", round(by_stage[stage]), "ns", "lower", label=f"of it{where}"),
            Metric("without_ns", round(step_ns - gain) if step_ns else None, "ns", label=f"step without {'it' if is_one else 'them'}"),
        ),
        tuple(
            _place(crew, rank, device, stage)
            for rank, device in late[[*MEMBER]].head(MAX_PLACES).itertuples(index=False, name=None)
        ),
        round(gain),
        gain / step_ns if step_ns else None,
        ("what is given back is bounded by the next slowest rank",),
    )  # fmt: skip


def _place(crew: Crew, rank: Any, device: Any, stage: str) -> Place:
    """Where to look at one member: in the step in which it works longest beyond the others."""
    is_member = same_text(crew.by_step["rank"], rank) & same_text(crew.by_step["device"], device)
    member_steps = crew.by_step[is_member.fillna(value=False).to_numpy(np.bool_)]
    step = member_steps.sort_values(["beyond_ns", "step"], ascending=[False, True])["step"].iloc[0]
    return Place(
        role=crew.role,
        rank=int(rank),
        device=None if pd.isna(device) else int(device),
        step=None if pd.isna(step) else int(step),
        stage=stage or None,
    )
