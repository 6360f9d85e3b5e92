"""Load imbalance of ranks: own work by stage, and the step without stragglers (Q7, Q18, Q19, M17; R10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    UNIT,
    grouped,
    in_run,
    job,
    ordered,
    same_text,
    share_of,
    summed,
    text_or_none,
    whole_or_none,
)
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP,
    RANK_GROUP_STEP,
    Lack,
    RankGroup,
    abstained,
    in_order,
    in_rank_group,
    member_headings,
    missing_ranks,
    rank_group_headings,
    rank_groups,
)
from tracekit.job.stages.ranks import rank_stage_charts
from tracekit.job.steps.steady_steps import LEAST_COUNTED
from tracekit.job.stragglers.collective_waits import held_up, savings
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import numbered_alike, of_keys, places_of
from tracekit.model.labels import plural
from tracekit.model.report import Finding, Heading, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG001
    """Measure no table: `judge` reads the waits of ranks."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report own work by stage and rank, and the step without stragglers; judge R10."""
    abstained = tuple(_abstained(measured, thresholds))
    if max((rank_group.members for rank_group in rank_groups(measured)), default=0) < 2:
        reason = "fewer than two ranks of one role were recorded with steps or stages"
        return ANALYSIS.skipped(reason, verdicts=abstained)
    return ANALYSIS.answered(
        sheets=lambda: with_rows(
            _stage_sheet(measured), _what_if_sheet(measured), _rank_sheet(measured)
        ),
        findings=tuple(_imbalances(measured, thresholds)),
        verdicts=abstained,
        charts=lambda: rank_stage_charts(measured),
    )


def _imbalance(
    rows: pd.DataFrame, keys: list[str], held: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Compute the imbalance L = 1 − mean / max of own work (Q7), one row per `keys`, with members, mean_ns and max_ns.

    L is <NA> without anything to compare: one member, or no own work. A missing rank that all others wait for (`held`)
    counts as the longest.
    """
    parts = {"members": "size", "mean_ns": "mean", "max_ns": "max"}
    out = grouped(rows, keys, **{name: ("own_ns", how) for name, how in parts.items()})
    if held is not None and len(held):
        place = places_of(out, held, UNIT, optional=UNIT)
        out["max_ns"] += np.append(held["held_ns"].to_numpy(np.int64), 0)[place]
    is_comparable = (out["members"] > 1) & (out["max_ns"] > 0)
    longest = out["max_ns"].astype("Float64")
    ratio = (longest - out["mean_ns"].astype("Float64")) / longest.clip(lower=1)
    return out.assign(imbalance_ratio=ratio.where(is_comparable, pd.NA))


def _stage_sheet(measured: Measurements) -> Sheet:
    """Make the table of stages: mean and longest own work, and the rank that is longest most often."""
    parts = []
    for rank_group in rank_groups(measured):
        by_step = _imbalance(rank_group.work, [*RANK_GROUP_STEP, "canonical"])
        slowest = _slowest(rank_group.work, (*UNIT, "canonical"))
        for name in (text_or_none(value) for value in rank_group.work["canonical"].unique()):
            stage_steps = by_step[same_text(by_step["canonical"], name)]
            if stage_steps["members"].max() < 2:
                continue
            rank, ratio = _most_often(slowest[same_text(slowest["canonical"], name)])
            parts.append(
                (
                    rank_group.run,
                    rank_group.role,
                    rank_group.replica,
                    name or "the step",
                    stage_steps["mean_ns"].mean(),
                    stage_steps["max_ns"].mean(),
                    stage_steps["imbalance_ratio"].mean(),
                    rank,
                    ratio,
                    stage_steps["members"].max(),
                )
            )
    names = ["stage", "mean_ns", "max_ns", "imbalance_ratio", "rank", "rank_ratio", "members"]
    frame = pd.DataFrame(parts, columns=[*RANK_GROUP, *names])
    frame["over_ns"] = frame["max_ns"] - frame["mean_ns"]
    frame = ordered(frame, over_ns=False, stage=True)
    headings = (
        *rank_group_headings(measured),
        *as_headings("""
            stage | stage
            mean_ns | own work | ns | Wall less time blocked in collectives, per step: mean of the ranks.
            max_ns | longest rank | ns | Per step.
            imbalance_ratio | imbalance | ratio | 1 − mean / longest, mean over steps.
            rank | longest most often | id | The rank that works longest in most steps.
            rank_ratio | in steps | ratio | Share of the steps in which it does.
            members | ranks | count
        """),
    )
    return sheet("imbalance", "Own work by stage", headings, frame)


def _slowest(rows: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    """Find the member with most own work for each `keys`; the first of equals."""
    ranked = in_order(rows, (*keys, *MEMBER))
    ranked = ranked.sort_values("own_ns", ascending=False, kind="stable")
    return ranked.iloc[of_keys(ranked, keys)[1]]


def _most_often(slowest: pd.DataFrame) -> tuple[Any, float]:
    """Find the most frequent rank: (rank, share of the rows)."""
    (member,) = numbered_alike(MEMBER, slowest, in_order=True)
    counts = np.bincount(member)
    place = int(counts.argmax())
    return slowest["rank"].iloc[int((member == place).argmax())], float(counts[place]) / len(
        slowest
    )


def _rank_sheet(measured: Measurements) -> Sheet:
    """Make the table of own and blocked time of each rank in each stage, per step."""
    parts = []
    for rank_group in rank_groups(measured):
        keys = [*RANK_GROUP, *MEMBER, "canonical"]
        sums = summed(rank_group.work, keys, ["own_ns", "blocked_ns"])
        for name in ("own_ns", "blocked_ns"):
            sums[name] = sums[name] / rank_group.steps
        parts.append(sums.assign(stage=sums["canonical"].fillna("the step")))
    frame = in_order(pd.concat(parts, ignore_index=True), (*RANK_GROUP, "stage", *MEMBER))
    headings = (
        *rank_group_headings(measured),
        Heading("stage", "stage"),
        *member_headings(measured),
        *as_headings("""
            own_ns | own work | ns | Per step.
            blocked_ns | blocked | ns | Per step, in collectives: waiting and transferring.
        """),
    )
    return sheet(
        "own_work",
        "Own work by stage and rank",
        headings,
        frame,
        ranked=Ranked("own_ns", apart=(*RANK_GROUP, "stage")),
    )


def _what_if_sheet(measured: Measurements) -> Sheet:
    """Make the table of the step without stragglers: the last rank reaches each collective with the median rank (Q19)."""
    saved, rows = savings(measured), []
    for rank_group in rank_groups(measured):
        of_group = rank_group.of(saved)
        step_ns = job(measured).of(rank_group.run).step_ns
        if not len(of_group) or not step_ns:
            continue
        gain = min(float(of_group["saved_ns"].sum()) / rank_group.steps, step_ns)
        ideal = step_ns - gain
        number = of_group["collectives"].sum() / rank_group.steps
        slowdown = share_of(step_ns, ideal)
        rows.append(
            (
                rank_group.run,
                rank_group.role,
                rank_group.replica,
                step_ns,
                ideal,
                gain,
                slowdown,
                number,
            )
        )
    names = ["step_ns", "ideal_ns", "saved_ns", "slowdown", "collectives"]
    headings = (
        *rank_group_headings(measured),
        *as_headings("""
            step_ns | step | ns | Mean wall.
            ideal_ns | without stragglers | ns | If the last rank came to every collective with the median one.
            saved_ns | difference | ns
            slowdown | slowdown | number | Step over step without stragglers.
            collectives | collectives | number | Matched collectives per step that it is worked out from.
        """),
    )
    frame = pd.DataFrame(rows, columns=[*RANK_GROUP, *names])
    return sheet("what_if", "The step if no rank came late", headings, frame)


def _abstained(measured: Measurements, thresholds: Thresholds) -> Iterator[Verdict]:
    """List verdicts on runs that R10 cannot judge, with the reason."""
    limit = thresholds.of("rank-imbalance")

    def lacking(mine: list[RankGroup]) -> Lack | None:
        """Explain which data the rank groups of one run lack; None if they have enough steps."""
        judged = [_judged(measured, rank_group, limit) for rank_group in mine]
        steps = max(each["step_count"] for each in judged)
        if steps >= limit["min_steps"]:
            return None
        few = f"{steps} of at least {limit['min_steps']:g} steps"
        return max((_almost(measured, each, limit, few) for each in mine), key=_price)

    return abstained(measured, "rank-imbalance", limit["min_ranks"], lacking)


def _price(lack: Lack) -> float:
    """Get the time per step that an abstention is about."""
    return lack.price_ns


def _almost(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float], few: str
) -> Lack:
    """Estimate the cost of an imbalance seen in too few steps."""
    judged = _judged(measured, rank_group, limit)
    ratio = float(judged["by_step"]["imbalance_ratio"].mean()) if len(judged["by_step"]) else 0.0
    if ratio < limit["imbalance_ratio"]:
        return Lack(few)
    gain = _gain(measured, rank_group, judged["rows"])
    claim = f"ranks work unequally long: {show(ratio, 'ratio')} less than the longest on average"
    return Lack(few, gain, claim, f"{limit['min_steps']:g} steps would prove it")


def _judged(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float]
) -> dict[str, Any]:
    """Summarize the steps of a rank group with enough ranks: their number, L by step, own work, share of the longest rank.

    The longest rank is looked up in all recorded steps: warm-up changes step times, but not who is longest.
    """
    rows, by_step, longest = _compared(measured, rank_group, limit)
    everything = rows, by_step, longest
    if measured.recorded is not None and len(by_step) >= LEAST_COUNTED:
        for whole_group in rank_groups(measured.recorded):
            if whole_group.labels == rank_group.labels:
                everything = _compared(measured.recorded, whole_group, limit)
    constant = max(
        (_most_often(each)[1] for each in (longest, everything[2]) if len(each)), default=1.0
    )
    return {
        "step_count": len(everything[1]),
        "by_step": by_step,
        "rows": rows,
        "constant": constant,
    }


def _compared(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Compare the ranks in the steps with enough ranks: (own work, L by step, longest rank by step).

    A missing rank that all others wait for worked longest; its rank is then NA.
    """
    rows = rank_group.by_step[
        (rank_group.by_step["others"] + 1 >= limit["min_ranks"]).to_numpy(np.bool_)
    ]
    held = rank_group.of(held_up(measured))
    by_step = _imbalance(rows, [*RANK_GROUP_STEP], held)
    longest = _slowest(rows, UNIT)
    place = places_of(longest, held, UNIT, optional=UNIT)
    held_ns = np.append(held["held_ns"].to_numpy(np.int64), 0)[place]
    is_missing = held_ns >= limit["imbalance_ratio"] * longest["own_ns"].to_numpy(np.int64)
    longest = longest.assign(rank=longest["rank"].mask((held_ns > 0) & is_missing))
    return rows, by_step[by_step["imbalance_ratio"].notna()], longest


def _imbalances(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R10: ranks with unequal work, where the longest rank changes from step to step."""
    limit = thresholds.of("rank-imbalance")
    for rank_group in rank_groups(measured):
        judged = _judged(measured, rank_group, limit)
        if judged["step_count"] < limit["min_steps"] or not len(judged["by_step"]):
            continue
        ratio = float(judged["by_step"]["imbalance_ratio"].mean())
        constant = judged["constant"]
        gain = _gain(measured, rank_group, judged["rows"])
        step_ns = job(measured).of(rank_group.run).step_ns
        share = share_of(gain, step_ns)
        if (
            ratio < limit["imbalance_ratio"]
            or constant >= limit["constant_ratio"]
            or (share or 0.0) < limit["step_ratio"]
        ):
            continue
        yield _finding(measured, rank_group, judged, (ratio, constant, gain, share), thresholds)


def _gain(measured: Measurements, rank_group: RankGroup, rows: pd.DataFrame) -> float:
    """Compute the time a balanced step would save, in ns: from its collectives (Q19), or from own work if none matched."""
    saved = rank_group.of(savings(measured))
    if len(saved):
        return float(saved["saved_ns"].sum()) / rank_group.steps
    grouped = rows.groupby([*UNIT], dropna=False, sort=False)["own_ns"]
    return float((grouped.max() - grouped.median()).mean())


def _finding(
    measured: Measurements,
    rank_group: RankGroup,
    judged: Mapping[str, Any],
    numbers: tuple[float, float, float, float | None],
    thresholds: Thresholds,
) -> Finding:
    """Report R10 for one rank group, with the stage in which the ranks differ most."""
    ratio, constant, gain, share = numbers
    by_stage = _imbalance(rank_group.work, [*RANK_GROUP_STEP, "canonical"])
    by_stage["over_ns"] = by_stage["max_ns"] - by_stage["mean_ns"]
    worst = by_stage.groupby("canonical", dropna=False)["over_ns"].sum().idxmax()
    stage = text_or_none(worst)
    step = (
        judged["by_step"]
        .sort_values("imbalance_ratio", ascending=False, kind="stable")["step"]
        .iloc[0]
    )
    where = f", most of all in {stage}" if stage else ""
    return Finding(
        "rank-imbalance",
        thresholds.severity(share),
        f"ranks{in_rank_group(measured, rank_group)} work unequally long, now one and now another: "
        f"{show(ratio, 'ratio')} less than the longest on average{where}{in_run(measured, rank_group.run)}",
        "balance the tokens of a step over ranks (dynamic batch sizes, balanced sequence lengths)",
        (
            evidence("imbalance_ratio", ratio, "mean imbalance of own work"),
            evidence(
                "constant_ratio",
                constant,
                "steps in which the same rank works longest",
                better="neither",
            ),
        ),
        (Place(role=rank_group.role, step=whole_or_none(step), stage=stage),),
        round(gain),
        share,
        (*_missing(measured, rank_group), "other load on the hosts looks the same"),
    )


def _missing(measured: Measurements, rank_group: RankGroup) -> tuple[str, ...]:
    """List the caveat on ranks that were not recorded."""
    number = missing_ranks(measured, rank_group)
    if not number:
        return ()
    verb = "was" if number == 1 else "were"
    who = f"{number} {plural(number, 'rank')} {verb} not recorded"
    return (f"{who}: the time that all others wait for one counts as its work",)


ANALYSIS = Analysis(
    id="imbalance",
    title="Do the ranks work equally long?",
    bases={"rank-imbalance": "modelled"},
    reads=(),
    rests_on=("arrivals", "captures", "collectives", "segments"),
    rules=("rank-imbalance",),
    thresholds={
        "rank-imbalance": {
            # Minimum number of ranks.
            "min_ranks": 3,
            # Fewer steps do not show whether the longest rank changes.
            "min_steps": 3,
            # 1 - mean / longest own work of the ranks, mean over steps.
            "imbalance_ratio": 0.10,
            # One rank that is longest in this share of the steps is a straggler (R09), not imbalance.
            "constant_ratio": 0.60,
            # Time saved, as a share of the step.
            "step_ratio": 0.01,
        },
    },
    measure=measure,
    judge=judge,
)
