"""Who waits for whom? Waits at collectives, booked to the late rank and what it did (M13, Q17, Q18)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.crews import (
    CREW,
    MEMBER,
    Crew,
    abstained,
    crew_headings,
    crews,
    in_crew,
    in_order,
    member_headings,
    steps_of,
)
from tracekit.derived.segments import MAX_ARRIVALS, Segments, segments
from tracekit.drawn_ranks import MAX_ROWS, drawn
from tracekit.matching import REASONS, clocks, codes, matched
from tracekit.pooling import UNIT, in_run, job, plain, run_heading, same_text, summed, text_or_none
from tracekit.report import Chart, Finding, Heading, Metric, Place, Ranked, Section, Sheet, Verdict
from tracekit.sheets import sheet
from tracekit.thresholds import Thresholds
from tracekit.trace import Measurements, Trace
from tracekit.units import show
from tracekit.waiting import Waits, saved_by_match, waits

ID, TITLE = "stragglers", "Who waits for whom?"
NEEDS = ("host_ops", "device_ops", "device_ranges")
RULES = ("straggler",)

MAX_MARKS = 1_500
"""Most cells of the chart."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """When the process came to its collectives, and its own work between them."""
    found: Segments = trace.derived(segments)
    tables: dict[str, Mapping[str, Any]] = {}
    if len(found.segments):
        tables["segments"] = {str(name): found.segments[name].array for name in found.segments}
        tables["arrivals"] = {str(name): found.arrivals[name].array for name in found.arrivals}
    if found.cut:
        tables["quality"] = {"name": ["arrivals_left_out"], "count": [found.cut]}
    return tables


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Waits by rank, stage and cause, clocks, and finding R09."""
    found, abstained = waits(measured), tuple(_abstained(measured, thresholds))
    if not len(found.collectives):
        alone = max((crew.members for crew in crews(measured)), default=0) < 2
        caveats = () if alone else tuple(_unmatched(measured))
        return Section(
            ID, TITLE, "skipped", _nothing(measured), caveats=caveats, verdicts=abstained
        )
    sheets = (
        _cause_sheet(measured, found),
        _rank_sheet(measured, found),
        _matrix_sheet(measured, found),
        _clock_sheet(measured),
    )
    chart = _chart(measured, found)
    return Section(
        ID,
        TITLE,
        metrics=_metrics(measured, found),
        sheets=tuple(s for s in sheets if s.rows),
        findings=tuple(_stragglers(measured, found, thresholds)),
        caveats=(*_unmatched(measured), *_partly_seen(measured)),
        verdicts=abstained,
        charts=(chart,) if chart.marks else (),
    )


def _nothing(measured: Measurements) -> str:
    """Why no wait can be told."""
    every = crews(measured)
    if not every:
        return "no step or stage of a known rank was recorded"
    if max(crew.members for crew in every) < 2:
        return "only one rank was recorded: there is nobody to compare it with"
    if not len(measured["collectives"]):
        return "no collective was recorded"
    return "no collective could be matched between ranks"


def _per_step(frame: pd.DataFrame, measured: Measurements, value: str) -> pd.DataFrame:
    """The frame with a column `per_step`: `value` over the steps of its crew."""
    return frame.assign(per_step=frame[value].astype("Float64") / steps_of(measured, frame))


def _metrics(measured: Measurements, found: Waits) -> tuple[Metric, ...]:
    """How long a rank waits for others in a step, on average and at most."""
    lost = summed(found.collectives, [*CREW, *MEMBER], ["lost_ns"])
    wait = _per_step(lost, measured, "lost_ns")["per_step"].dropna()
    if not len(wait):
        return ()
    return (
        Metric(
            "wait", float(wait.mean()), "ns", "lower", float(wait.min()), float(wait.max()), "waiting for other ranks, per rank and step",
        ),
    )  # fmt: skip


def _cause_sheet(measured: Measurements, found: Waits) -> Sheet:
    """Whom the others wait for, and what it was doing: most lost time first."""
    keys = [*CREW, "late_rank", "cause", "stage"]
    rows = summed(found.booked, keys, ["lost_ns"])
    waiting = found.booked[[*keys, "rank"]].drop_duplicates()
    both = codes(pd.concat([rows[keys], waiting[keys]], ignore_index=True), tuple(keys))
    number = np.bincount(both[len(rows) :], minlength=1)
    rows["ranks"] = number[both[: len(rows)]]
    rows["each_ns"] = _per_step(rows, measured, "lost_ns")["per_step"] / rows["ranks"]
    rows = in_order(rows, tuple(keys)).sort_values("lost_ns", ascending=False, kind="stable")
    headings = (
        *crew_headings(measured),
        Heading("late_rank", "late rank", "id"),
        Heading("cause", "late in", "text", "Stage of the late rank's own work that made it late; — where its work in stages does not explain it."),
        Heading("stage", "waited for in", "text", "Stage in which the others issued the collective at which they wait."),
        Heading("ranks", "ranks waiting", "count"),
        Heading("each_ns", "wait", "ns", "Per step, mean over the ranks that wait."),
    )  # fmt: skip
    return sheet(
        "waits",
        "Who is waited for",
        headings,
        rows,
        caption="Time in which a rank could do nothing but wait for the last rank to come to a collective.",
    )


def _matrix_sheet(measured: Measurements, found: Waits) -> Sheet:
    """The same, one row a waiting rank."""
    keys = [*CREW, "rank", "stage", "late_rank", "cause"]
    rows = _per_step(summed(found.booked, keys, ["lost_ns"]), measured, "lost_ns")
    rows = in_order(rows, tuple(keys)).sort_values("lost_ns", ascending=False, kind="stable")
    headings = (
        *crew_headings(measured),
        Heading("rank", "waiting rank", "id"),
        Heading("stage", "waits in"),
        Heading("late_rank", "for rank", "id"),
        Heading("cause", "which is late in"),
        Heading("per_step", "wait", "ns", "Per step."),
    )
    return sheet(
        "wait_matrix",
        "Waits by waiting and late rank",
        headings,
        rows,
        ranked=Ranked("per_step", apart=(*CREW, "stage", "late_rank", "cause")),
    )


def _rank_sheet(measured: Measurements, found: Waits) -> Sheet:
    """Each rank: own work, wait, and how often it comes last."""
    names = ["own_ns", "beyond_ns", "lost_ns", "last_ratio", "taken"]
    parts = []
    for crew in crews(measured):
        every = _members(crew, found)
        every["lost_ns"] = every["lost_ns"] / crew.steps
        every["last_ratio"] = every["last"] / every["taken"].where(every["taken"] > 0)
        labels = {name: getattr(crew, name) for name in CREW}
        parts.append(every.astype(object).assign(**labels)[[*CREW, *MEMBER, *names]])
    frame = pd.concat(parts, ignore_index=True)
    headings = (
        *crew_headings(measured),
        *member_headings(measured),
        Heading("own_ns", "own work", "ns", "Per step: wall of its stages less time blocked in collectives."),
        Heading("beyond_ns", "beyond the others", "ns", "Less the median of the other ranks' own work, per step."),
        Heading("lost_ns", "waits", "ns", "Per step, for a rank that comes later."),
        Heading("last_ratio", "comes last", "ratio", "Of the collectives with a clear last rank."),
        Heading("taken", "of collectives", "count", "Its matched collectives whose ranks come further apart than the clocks are uncertain."),
    )  # fmt: skip
    return sheet("ranks", "Own work and waits by rank", headings, frame, ranked=Ranked("own_ns"))


def _members(crew: Crew, found: Waits) -> pd.DataFrame:
    """One row a member: own_ns and beyond_ns (means over its steps), lost_ns (sum), and of how many collectives
    with a clear last rank (taken) it was the last; <NA> where there is nobody, or nothing, to compare.
    """
    steps, mine = crew.by_step, crew.of(found.collectives)
    both = codes(pd.concat([steps[[*MEMBER]], mine[[*MEMBER]]], ignore_index=True), MEMBER)
    of_step, at = both[: len(steps)], both[len(steps) :]
    grouped = steps.groupby(of_step)
    out = grouped[[*MEMBER]].first()
    out["own_ns"] = grouped["own_ns"].mean()
    several = grouped["others"].max() > 0
    out["beyond_ns"] = grouped["beyond_ns"].mean().where(several)
    waiting = mine.groupby(at)
    out["lost_ns"] = waiting["lost_ns"].sum()
    for name, column in (("taken", "trusted"), ("last", "is_last")):
        out[name] = waiting[column].sum().astype("Int64").reindex(out.index, fill_value=0)
    return out


def _of_member(frame: pd.DataFrame, rank: Any, device: Any) -> pd.DataFrame:
    """The rows of one member."""
    here = same_text(frame["rank"], rank) & same_text(frame["device"], device)
    return frame[here.fillna(value=False).to_numpy(np.bool_)]


def _clock_sheet(measured: Measurements) -> Sheet:
    """What was subtracted from each rank's clock, and how sure that is."""
    rows = plain(clocks(measured))
    of_set = rows.groupby("set")["set"].transform("size") if len(rows) else rows["set"]
    rows = rows[of_set.to_numpy() > 1]
    replicas = (Heading("replica", "replica", "id"),) if rows["replica"].notna().any() else ()
    headings = (
        *run_heading(measured),
        Heading("role", "role"),
        *replicas,
        Heading("rank", "rank", "id"),
        Heading("offset_ns", "clock ahead by", "ns", "Of the first rank's, at the ends of shared collectives; subtracted before ranks are compared."),
        Heading("uncertainty_ns", "uncertain by", "ns", "Median absolute deviation of those ends; shorter waits are not booked."),
        Heading("count", "collectives", "count"),
    )  # fmt: skip
    return sheet("clocks", "Clocks of the ranks", headings, rows, ranked=Ranked("offset_ns"))


def _unmatched(measured: Measurements) -> Iterator[str]:
    """What matches nothing, by reason."""
    rows = matched(measured)
    counts = rows["reason"].value_counts()
    for reason, text in REASONS.items():
        if number := int(counts.get(reason, 0)):
            yield f"{number:,} of {len(rows):,} collectives could not be compared: {text}"
    left_out = plain(measured["quality"])
    left_out = left_out[left_out["name"] == "arrivals_left_out"]
    if len(left_out):
        number = int(left_out["count"].sum())
        yield f"{number:,} collectives beyond the first {MAX_ARRIVALS:,} of a source and device: their waits are not booked"


def _partly_seen(measured: Measurements) -> Iterator[str]:
    """Groups of which not all ranks were recorded."""
    rows = matched(measured)
    size = measured["collectives"]["group_size"]
    partly = int((rows["members"] < size).fillna(value=False).sum())
    if partly:
        yield (
            f"{partly:,} collectives were recorded on only some of the ranks that took part: "
            "waits are at least as long as shown, and the last rank may be one that is missing"
        )


def _chart(measured: Measurements, found: Waits) -> Chart:
    """How long each rank waits in each step: one cell a rank and step."""
    walls = job(measured).walls
    several = len(run_heading(measured)) > 0
    cells: dict[str, list[tuple[int, int, int | None]]] = {}
    lost = summed(found.collectives, [*UNIT, "role", "replica", *MEMBER], ["lost_ns"])
    places = codes(pd.concat([walls[list(UNIT)], lost[list(UNIT)]], ignore_index=True), UNIT)
    at = pd.Series(np.arange(len(walls)), places[: len(walls)]).reindex(places[len(walls) :])
    zero = walls.groupby("run", dropna=False)["ts_ns"].transform("min")
    start = (walls["ts_ns"] - zero).to_numpy(np.int64)
    end = start + walls["wall_ns"].to_numpy(np.int64)
    lost = lost.assign(place=at.to_numpy())
    for row in in_order(lost.dropna(subset=["place"]), (*CREW, *MEMBER, "step")).to_dict("records"):
        parts = [f"{row['run']}:" if several else "", text_or_none(row["role"]) or "",
                 "" if pd.isna(row["replica"]) else f"replica {row['replica']}", f"rank {row['rank']}"]  # fmt: skip
        place = int(row["place"])
        cell = (int(start[place]), int(end[place]), int(row["lost_ns"]))
        cells.setdefault(" ".join(p for p in parts if p), []).append(cell)
    waited = {name: float(sum(c[2] or 0 for c in mine)) for name, mine in cells.items()}
    most = max(min(MAX_ROWS, MAX_MARKS // max(map(len, cells.values()), default=1)), 1)
    chosen = drawn(waited, "waiting", most)
    rows = [name for name in cells if name in chosen.rows]
    marks = tuple((number, *cell) for number, name in enumerate(rows) for cell in cells[name])
    total = sum(len(cell) for cell in cells.values())
    return Chart(
        "waits",
        "Waiting for other ranks, by rank and step",
        "heatmap",
        marks,
        rows=tuple(chosen.rows[name] for name in rows),
        caption=f"A pale row among dark ones is the rank that the others wait for. {chosen.note}".strip(),
        omitted=total - len(marks),
    )


def _abstained(measured: Measurements, thresholds: Thresholds) -> Iterator[Verdict]:
    """Runs of which R09 can say nothing, and why."""
    limit = thresholds.of("straggler")
    found = waits(measured).collectives

    def lacking(mine: list[Crew]) -> str | None:
        votes = max((_most_votes(crew.of(found)) for crew in mine), default=0)
        few = f"{votes} of at least {limit['min_collectives']:g} collectives with a clear last rank"
        return few if votes < limit["min_collectives"] else None

    return abstained(measured, "straggler", limit["min_ranks"], lacking)


def _most_votes(rows: pd.DataFrame) -> int:
    """The most collectives with a clear last rank that any one member took part in."""
    taken = rows[rows["trusted"].to_numpy(np.bool_)]
    return int(np.bincount(codes(taken, MEMBER), minlength=1).max())


def _stragglers(measured: Measurements, found: Waits, thresholds: Thresholds) -> Iterator[Finding]:
    """R09: one rank that comes last again and again because it works longer than the others."""
    limit = thresholds.of("straggler")
    for crew in crews(measured):
        if crew.members < limit["min_ranks"]:
            continue
        every = _members(crew, found)
        enough = every["taken"] >= limit["min_collectives"]
        often = every["last"] >= limit["last_ratio"] * every["taken"]
        for rank, device in every.loc[enough & often, [*MEMBER]].itertuples(index=False, name=None):
            by_step = _of_member(crew.by_step, rank, device)
            if _share_of_steps(by_step, limit) >= limit["steps_ratio"]:
                yield _finding(measured, found, crew, (rank, device, by_step), thresholds)


def _share_of_steps(by_step: pd.DataFrame, limit: Mapping[str, float]) -> float:
    """In which share of its steps a member works longer than the others by more than the limit."""
    judged = by_step[(by_step["others"] + 1 >= limit["min_ranks"]) & by_step["wall_ns"].notna()]
    if not len(judged):
        return 0.0
    share = judged["beyond_ns"] / judged["wall_ns"].clip(lower=1).astype("Float64")
    return float((share >= limit["excess_ratio"]).mean())


def _finding(
    measured: Measurements,
    found: Waits,
    crew: Crew,
    member: tuple[Any, Any, pd.DataFrame],
    thresholds: Thresholds,
) -> Finding:
    """The finding on one member: what it costs in the group whose waits for it are longest."""
    rank, device, by_step = member
    saved = crew.of(saved_by_match(measured))
    late = same_text(saved["late_rank"], rank) & same_text(saved["late_device"], device)
    saved = saved[late.fillna(value=False).to_numpy(np.bool_)]
    by_group = summed(saved, ["group"], ["saved_ns"]).sort_values(
        ["saved_ns", "group"], ascending=[False, True]
    )
    group = by_group["group"].iloc[0]
    at = _of_member(crew.of(found.collectives), rank, device)
    taken, last = int(at["trusted"].sum()), int(at["is_last"].sum())
    at = at[same_text(at["group"], group).to_numpy(np.bool_)]
    excess = float(at["excess_ns"].sum()) / crew.steps
    parts = found.by_stage[at.index.to_numpy()].sum(axis=0)
    by_stage = {
        name: float(part) / crew.steps for name, part in zip(found.stages, parts, strict=True)
    }
    stage = max(by_stage, key=lambda name: (by_stage[name], name))
    gain = float(by_group["saved_ns"].iloc[0]) / crew.steps
    step_ns = job(measured).of(crew.run).step_ns
    worst = by_step.sort_values(["beyond_ns", "step"], ascending=[False, True]).iloc[0]
    where = f" in {stage}" if stage else ""
    return Finding(
        "straggler",
        thresholds.severity(gain / step_ns if step_ns else None),
        f"rank {rank}{in_crew(measured, crew)} keeps the others waiting: {show(excess, 'ns')} more work of its own per step"
        f"{', most of it' + where if stage else ''}{in_run(measured, crew.run)}",
        f"put a step of rank {rank} beside that of another rank{where}: more tokens or longer sequences, slower clocks, other load on its host",
        (
            Metric("last_ratio", last / taken, "ratio", "lower", label="comes last"),
            Metric("collectives", taken, "count", label="of collectives"),
            Metric("excess_ns", round(excess), "ns", "lower", label="own work beyond the others, per step"),
            Metric("excess_stage_ns", round(by_stage[stage]), "ns", "lower", label=f"of it{where}"),
            Metric("without_ns", round(step_ns - gain) if step_ns else None, "ns", label="step without it"),
        ),
        (
            Place(
                role=crew.role,
                rank=int(rank),
                device=None if pd.isna(device) else int(device),
                step=None if pd.isna(worst["step"]) else int(worst["step"]),
                stage=stage or None,
            ),
        ),
        round(gain),
        gain / step_ns if step_ns else None,
        ("what is given back is bounded by the next slowest rank",),
    )  # fmt: skip
