"""Load imbalance of ranks: own work by stage and rank (Q7, Q18, M17; R10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import UNIT, divide_or_none, phrase_run, summarize_step_walls
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP,
    RANK_GROUP_STEP,
    EvidenceLack,
    RankGroup,
    count_missing_ranks,
    list_rank_group_abstentions,
    list_rank_groups,
    make_member_headings,
    make_rank_group_headings,
    phrase_rank_group,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import list_stage_or_step_runs, pick_member_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.steps.steady_steps import LEAST_COUNTED
from tracekit.job.stragglers.collective_waits import sum_waits_for_last_rank, sum_waits_for_missing_rank
from tracekit.model.report import Chart, Finding, Heading, Instance, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.frame import (
    Frame,
    Ints,
    concat,
    count_rows,
    divide,
    from_rows,
    max_of,
    mean_of,
    median_of,
    sum_of,
    texts,
    where,
)
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural, format_numbered_word, join_phrase, make_natural_key
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG001
    """Measure no table: `judge` reads the waits of ranks."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report own work by stage and rank; judge R10."""
    abstained = tuple(_list_imbalance_abstentions(measured, thresholds))
    if max((rank_group.members for rank_group in list_rank_groups(measured)), default=0) < 2:
        reason = "fewer than two ranks of one role were recorded with steps or stages"
        return ANALYSIS.skipped(reason, verdicts=abstained)
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(_make_stage_imbalance_table(measured), _make_rank_own_work_table(measured)),
        findings=tuple(_find_rank_imbalance(measured, thresholds)),
        verdicts=abstained,
        charts=lambda: draw_rank_stage_matrices(measured),
    )


def _compute_rank_imbalance(rows: Frame, keys: Sequence[str], held_up_rows: Frame | None = None) -> Frame:
    """Compute the imbalance L = 1 − mean / max of own work (Q7), one row per `keys`, with members, mean_ns and max_ns.

    L is missing without anything to compare: one member, or no own work. A missing rank that all others wait for
    (`held_up_rows`) counts as the longest.
    """
    groups = rows.group_by(*keys)
    out = groups.agg(members=count_rows(), mean_ns=mean_of("own_ns"), max_ns=max_of("own_ns"))
    if held_up_rows is not None:
        out = out.with_columns(max_ns=out["max_ns"] + _look_up_held_time(out, held_up_rows))
    longest = out["max_ns"]
    ratio = divide(longest - out["mean_ns"], longest)
    return out.with_columns(imbalance_ratio=where(out["members"] > 1, ratio))


def _look_up_held_time(rows: Frame, held_up_rows: Frame) -> Ints:
    """Look up how long all ranks wait for a missing one in the step of each row."""
    held = held_up_rows.select(*UNIT, "held_ns")
    return rows.select(*UNIT).join(held, UNIT, "left", optional=UNIT).integers("held_ns")


def _make_stage_imbalance_table(measured: Measurements) -> Sheet:
    """Make the table of stages: mean and longest own work, and the rank that is longest most often."""
    parts = []
    for rank_group in list_rank_groups(measured):
        by_step = _compute_rank_imbalance(rank_group.work, [*RANK_GROUP_STEP, "canonical"])
        slowest = _find_slowest_members(rank_group.work, (*UNIT, "canonical"))
        for stage_steps in by_step.group_by("canonical").frames():
            members = int(stage_steps["members"].max())
            if members < 2:
                continue
            name = stage_steps.values("canonical")[0]
            rank, ratio = _find_most_frequent_rank(slowest.filter(slowest.equals("canonical", name)))
            means = (float(stage_steps[column].mean()) for column in ("mean_ns", "max_ns"))
            imbalance = _average_known(stage_steps["imbalance_ratio"])
            parts.append((*rank_group.labels, name or "the step", *means, imbalance, rank, ratio, members))
    names = ("stage", "mean_ns", "max_ns", "imbalance_ratio", "rank", "rank_ratio", "members")
    frame = from_rows((*RANK_GROUP, *names), parts)
    frame = frame.with_columns(over_ns=frame.number("max_ns") - frame.number("mean_ns"))
    frame = frame.sort("over_ns", "stage", descending=["over_ns"])
    headings = (
        *make_rank_group_headings(measured),
        *parse_headings("""
            stage | stage
            mean_ns | own work | ns | Wall time minus time blocked in collectives, per step: mean of the ranks.
            max_ns | longest rank | ns | Per step.
            imbalance_ratio | imbalance | ratio | 1 − mean / longest, mean over steps.
            rank | longest most often | id | The rank with the longest own work in most steps.
            rank_ratio | in steps | ratio | Share of the steps in which it does.
            members | ranks | count
        """),
    )
    return make_sheet("imbalance", "Own work by stage", headings, frame)


def _average_known(ratios: Nullable) -> float | None:
    """Average the known values; None without any."""
    known = ratios.values[~ratios.missing]
    return float(known.mean()) if len(known) else None


def _find_slowest_members(rows: Frame, keys: tuple[str, ...]) -> Frame:
    """Find the member with most own work for each `keys`; the first of equals."""
    return rows.sort("own_ns", *keys, *MEMBER, descending=["own_ns"]).distinct(*keys)


def _find_most_frequent_rank(slowest: Frame) -> tuple[int | None, float]:
    """Find the most frequent rank: (rank, share of the rows)."""
    counts = slowest.group_by(*MEMBER).agg(count=count_rows()).sort("count", *MEMBER, descending=["count"])
    return counts.values("rank")[0], counts.values("count")[0] / len(slowest)


def _make_rank_own_work_table(measured: Measurements) -> Sheet:
    """Make the table of own and blocked time of each rank in each stage, per step."""
    parts = []
    for rank_group in list_rank_groups(measured):
        by_stage = rank_group.work.group_by(*RANK_GROUP, *MEMBER, "canonical")
        sums = by_stage.agg(own_ns=sum_of("own_ns"), blocked_ns=sum_of("blocked_ns"))
        sums = sums.with_columns(**{name: sums[name] / rank_group.steps for name in ("own_ns", "blocked_ns")})
        parts.append(sums.with_columns(stage=texts([stage or "the step" for stage in sums.values("canonical")])))
    frame = concat(parts).sort(*RANK_GROUP, "stage", *MEMBER)
    headings = (
        *make_rank_group_headings(measured),
        Heading("stage", "stage"),
        *make_member_headings(measured),
        *parse_headings("""
            own_ns | own work | ns | Per step.
            blocked_ns | blocked | ns | Per step, in collectives: waiting and transferring.
        """),
    )
    return make_sheet(
        "own_work", "Own work by stage and rank", headings, frame, ranked=Ranked("own_ns", apart=(*RANK_GROUP, "stage"))
    )


def _list_imbalance_abstentions(measured: Measurements, thresholds: Thresholds) -> Iterator[Verdict]:
    """List verdicts on runs that R10 cannot judge, with the reason."""
    limit = thresholds.of("rank-imbalance")

    def lacking(groups_of_run: list[RankGroup]) -> EvidenceLack | None:
        """Explain which data the rank groups of one run lack; None if they have enough steps."""
        judged = [_summarize_rank_imbalance(measured, rank_group, limit) for rank_group in groups_of_run]
        steps = max(each["step_count"] for each in judged)
        if steps >= limit["min_steps"]:
            return None
        few = f"{steps} of at least {limit['min_steps']:g} steps"
        return max(
            (_price_unproven_imbalance(measured, each, limit, few) for each in groups_of_run),
            key=lambda lack: lack.price_ns,
        )

    return list_rank_group_abstentions(measured, "rank-imbalance", limit["min_ranks"], lacking)


def _price_unproven_imbalance(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float], few: str
) -> EvidenceLack:
    """Estimate the cost of an imbalance seen in too few steps."""
    judged = _summarize_rank_imbalance(measured, rank_group, limit)
    ratio = _average_known(judged["by_step"]["imbalance_ratio"]) or 0.0
    if ratio < limit["imbalance_ratio"]:
        return EvidenceLack(few)
    gain = _compute_imbalance_cost(measured, rank_group, judged["rows"])
    claim = f"ranks work unequally: {format_quantity(ratio, 'ratio')} less than the longest on average"
    return EvidenceLack(few, gain, claim, f"{limit['min_steps']:g} steps would prove it")


def _summarize_rank_imbalance(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float]
) -> dict[str, Any]:
    """Summarize the steps of a rank group with enough ranks: their number, L by step, own work, share of the longest rank.

    The longest rank is looked up in all recorded steps: warm-up changes step times, but not who is longest.
    """
    rows, by_step, longest = _compare_ranks_by_step(measured, rank_group, limit)
    everything = rows, by_step, longest
    if measured.recorded is not None and len(by_step) >= LEAST_COUNTED:
        for whole_group in list_rank_groups(measured.recorded):
            if whole_group.labels == rank_group.labels:
                everything = _compare_ranks_by_step(measured.recorded, whole_group, limit)
    constant = max((_find_most_frequent_rank(each)[1] for each in (longest, everything[2]) if len(each)), default=1.0)
    return {"step_count": len(everything[1]), "by_step": by_step, "rows": rows, "constant": constant}


def _compare_ranks_by_step(
    measured: Measurements, rank_group: RankGroup, limit: Mapping[str, float]
) -> tuple[Frame, Frame, Frame]:
    """Compare the ranks in the steps with enough ranks: (own work, L by step, longest rank by step).

    A missing rank that all others wait for worked longest; its rank is then missing.
    """
    rows = rank_group.by_step.filter(rank_group.by_step["others"] + 1 >= limit["min_ranks"])
    held = rank_group.select_rows(sum_waits_for_missing_rank(measured))
    by_step = _compute_rank_imbalance(rows, RANK_GROUP_STEP, held)
    longest = _find_slowest_members(rows, UNIT)
    held_ns = _look_up_held_time(longest, held)
    is_missing_rank = (held_ns > 0) & (held_ns >= limit["imbalance_ratio"] * longest["own_ns"])
    longest = longest.with_columns(rank=where(~is_missing_rank, longest["rank"]))
    return rows, by_step.filter(~by_step.is_missing("imbalance_ratio")), longest


def _find_rank_imbalance(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R10: ranks with unequal work, where the longest rank changes from step to step."""
    limit = thresholds.of("rank-imbalance")
    for rank_group in list_rank_groups(measured):
        judged = _summarize_rank_imbalance(measured, rank_group, limit)
        if judged["step_count"] < limit["min_steps"] or not len(judged["by_step"]):
            continue
        ratio = _average_known(judged["by_step"]["imbalance_ratio"]) or 0.0
        constant = judged["constant"]
        gain = _compute_imbalance_cost(measured, rank_group, judged["rows"])
        step_ns = summarize_step_walls(measured).select_run(rank_group.run).step_ns
        share = divide_or_none(gain, step_ns)
        if (
            ratio < limit["imbalance_ratio"]
            or constant >= limit["constant_ratio"]
            or (share or 0.0) < limit["step_ratio"]
        ):
            continue
        yield _report_rank_imbalance(measured, rank_group, judged, (ratio, constant, gain, share), thresholds)


def _compute_imbalance_cost(measured: Measurements, rank_group: RankGroup, rows: Frame) -> float:
    """Compute the cost of the imbalance per step, in ns: waits for the last rank, or own work beyond the median if none matched."""
    waits = rank_group.select_rows(sum_waits_for_last_rank(measured))
    if len(waits):
        return float(waits["lost_ns"].sum()) / rank_group.steps
    steps = rows.group_by(*UNIT).agg(longest=max_of("own_ns"), median=median_of(rows.number("own_ns")))
    return float((steps["longest"] - steps["median"]).mean())


def _report_rank_imbalance(
    measured: Measurements,
    rank_group: RankGroup,
    judged: Mapping[str, Any],
    numbers: tuple[float, float, float, float | None],
    thresholds: Thresholds,
) -> Finding:
    """Report R10 for one rank group, with the stage in which the ranks differ most."""
    ratio, constant, gain, share = numbers
    by_stage = _compute_rank_imbalance(rank_group.work, [*RANK_GROUP_STEP, "canonical"])
    over_ns = by_stage.group_by("canonical").agg(over_ns=sum_of(by_stage["max_ns"] - by_stage["mean_ns"]))
    stage = over_ns.sort("over_ns", "canonical", descending=["over_ns"]).values("canonical")[0]
    by_step = judged["by_step"]
    step = by_step.sort("imbalance_ratio", descending=["imbalance_ratio"]).values("step")[0]
    mostly = f", mostly in {stage}" if stage else ""
    return Finding(
        "rank-imbalance",
        thresholds.severity(share),
        f"ranks{phrase_rank_group(measured, rank_group)} work unequally, with a changing slowest rank: "
        f"{format_quantity(ratio, 'ratio')} less than the longest on average{mostly}{phrase_run(measured, rank_group.run)}",
        "balance the tokens of a step over ranks (dynamic batch sizes, balanced sequence lengths)",
        (
            make_evidence_metric("imbalance_ratio", ratio, "mean imbalance of own work"),
            make_evidence_metric(
                "constant_ratio", constant, "steps in which the same rank works longest", better="neither"
            ),
        ),
        (Place(run=rank_group.run, role=rank_group.role, step=step, stage=stage),),
        round(gain),
        share,
        (*_caveat_unrecorded_ranks(measured, rank_group), "other load on the hosts looks the same"),
        changes=tuple(write_change("equalise", on) for on in _list_workers(measured)),
        instances=_pick_longest_ranks(measured, rank_group, judged["rows"], stage),
    )


def _pick_longest_ranks(
    measured: Measurements, rank_group: RankGroup, rows: Frame, stage: str | None
) -> tuple[Instance, ...]:
    """Pick the rank that works longest beyond the others, and a median one, at the stage in which ranks differ most."""
    runs = list_stage_or_step_runs(measured, stage, rank_group.run)
    return pick_member_instances(rank_group.select_rows(runs), rows.with_columns(cost=rows["beyond_ns"]))


def _list_workers(measured: Measurements) -> tuple[str, ...]:
    """List where the ranks work: on the device, or on the host where no device was recorded."""
    return ("device",) if measured.row_count("gpu_time") else ("host",)


def _caveat_unrecorded_ranks(measured: Measurements, rank_group: RankGroup) -> tuple[str, ...]:
    """List the caveat on ranks that were not recorded."""
    number = count_missing_ranks(measured, rank_group)
    if not number:
        return ()
    verb = "was" if number == 1 else "were"
    who = f"{number} {choose_plural(number, 'rank')} {verb} not recorded"
    return (f"{who}: the time that all others wait for it counts as its work",)


LEAST_RANKS = 32
"""Fewest ranks that get a chart; fewer are read from a table."""

MOST_ROWS, MOST_STAGES, MOST_CHARTS = 128, 12, 4
"""Most rows and columns of one chart, and most charts."""

MOST_RANKS = 64
"""Most ranks with a row each; with more, a row is a host or several neighbouring ranks."""

Floats = npt.NDArray[np.float64]


def draw_rank_stage_matrices(measured: Measurements) -> tuple[Chart, ...]:
    """Draw a matrix for each rank group with so many ranks that a table shows only some of them."""
    hosts = measured.derived(map_ranks_to_hosts)
    large = (group for group in list_rank_groups(measured) if group.members >= LEAST_RANKS)
    charts = []
    for number, rank_group in enumerate(islice(large, MOST_CHARTS), 1):
        of_group = hosts.get(rank_group.labels, {})
        charts.append(_draw_rank_stage_matrix(measured, rank_group, of_group, f"-{number}" if number > 1 else ""))
    return tuple(charts)


def map_ranks_to_hosts(measured: Measurements) -> Mapping[tuple[str | None, str | None, int | None], Mapping[int, str]]:
    """Map each rank to its host, as far as it is known, by rank group."""
    captures = measured.frame("captures")
    captures = captures.filter(~captures.is_missing("rank") & ~captures.is_missing("host"))
    hosts: dict[tuple[str | None, str | None, int | None], dict[int, str]] = {}
    for row in captures.distinct(*RANK_GROUP, "rank", "host").rows(*RANK_GROUP, "rank", "host"):
        hosts.setdefault((row["run"], row["role"], row["replica"]), {})[row["rank"]] = row["host"]
    return hosts


def _draw_rank_stage_matrix(
    measured: Measurements, rank_group: RankGroup, hosts: Mapping[int, str], suffix: str
) -> Chart:
    """Draw the matrix of one rank group: the stages with most own work, the largest first."""
    ranks, stages, own_ns = _sum_own_work_by_rank_and_stage(rank_group)
    by_work = np.argsort(-np.nansum(own_ns, axis=0), kind="stable")[:MOST_STAGES]
    columns = by_work.tolist()
    beyond = (own_ns - np.nanmedian(own_ns, axis=0))[:, columns]
    rows = _group_ranks_into_rows(ranks, hosts)
    marks = []
    for row, places in enumerate(rows.values()):
        for column, value in enumerate(np.fmax.reduce(beyond[places], axis=0).tolist()):
            marks.append((row, column, None if np.isnan(value) else round(value)))
    is_single = len(rows) == len(ranks)
    most_ns = float(np.nanmax(beyond, initial=0.0))
    return Chart(
        f"rank-stages{suffix}",
        f"Own work beyond the median rank, by {'rank' if is_single else 'ranks'} and stage"
        f"{phrase_rank_group(measured, rank_group)}{phrase_run(measured, rank_group.run)}",
        "matrix",
        tuple(marks),
        tuple(map(stages.__getitem__, columns)),
        tuple(rows),
        caption=_describe_rank_stage_cells(measured, rank_group, most_ns, None if is_single else len(rows)),
        omitted=len(rows) * (len(stages) - len(columns)),
        run=rank_group.run,
        roles=(rank_group.role,) * len(ranks) if is_single else (),
        ranks=tuple(int(ranks[places[0]]) for places in rows.values()) if is_single else (),
    )


def _sum_own_work_by_rank_and_stage(rank_group: RankGroup) -> tuple[Ints, list[str], Floats]:
    """Sum own work per step: (ranks, stages, work of each rank in each stage, NaN where none); the busiest device."""
    sums = rank_group.work.group_by(*MEMBER, "canonical").agg(own_ns=sum_of("own_ns"))
    ranks, row = np.unique(sums.integers("rank"), return_inverse=True)
    by_stage = sums.group_by("canonical")
    column, stages = by_stage.number, [name or "the step" for name in by_stage.agg().values("canonical")]
    own_ns = np.full((len(ranks), len(stages)), np.nan)
    values = sums["own_ns"] / rank_group.steps
    np.fmax.at(own_ns, (row, column), values)
    return ranks, stages, own_ns


def _group_ranks_into_rows(ranks: Ints, hosts: Mapping[int, str]) -> dict[str, list[int]]:
    """Group the places of ranks into named rows: a rank, a host, or several neighbours."""
    numbers = ranks.tolist()
    on_hosts = len(set(hosts.values())) > 1
    if len(numbers) <= MOST_RANKS:
        by_name = sorted(range(len(numbers)), key=lambda place: make_natural_key(hosts.get(numbers[place], "")))
        return {
            join_phrase(hosts.get(numbers[place], "") * on_hosts, format_numbered_word("rank", numbers[place])): [place]
            for place in by_name
        }
    if on_hosts and hosts.keys() >= set(numbers):
        of_host: dict[str, list[int]] = {}
        for place, rank in enumerate(numbers):
            of_host.setdefault(hosts[rank], []).append(place)
        names = sorted(of_host, key=make_natural_key)
        return _join_neighbouring_rows(names, list(map(of_host.__getitem__, names)), MOST_ROWS)
    return _join_neighbouring_rows(
        [f"rank {rank}" for rank in numbers], [[place] for place in range(len(numbers))], MOST_RANKS
    )


def _join_neighbouring_rows(names: Sequence[str], places: Sequence[list[int]], max_rows: int) -> dict[str, list[int]]:
    """Join neighbours into at most this many rows of equal size."""
    size = -(-len(names) // max_rows)
    rows = {}
    for start in range(0, len(names), size):
        of_row = names[start : start + size]
        name = of_row[0] if len(of_row) == 1 else f"{of_row[0]} – {of_row[-1]}"
        rows[name] = list(chain.from_iterable(places[start : start + size]))
    return rows


def _describe_rank_stage_cells(measured: Measurements, rank_group: RankGroup, most_ns: float, rows: int | None) -> str:
    """Describe what a cell shows, and the longest one as a share of a step."""
    step_ns = summarize_step_walls(measured).select_run(rank_group.run).step_ns
    share = divide_or_none(most_ns, step_ns)
    of_step = f" ({format_quantity(share, 'ratio')} of the step)" if share is not None else ""
    parts = [
        "Per step: wall time of the stage minus time blocked in collectives, minus the median over all ranks.",
        f"The largest excess is {format_quantity(most_ns, 'ns')}{of_step}.",
        "All numbers are in the table of own work by stage and rank.",
    ]
    if rows is not None:
        parts.insert(1, f"{rank_group.members:,} ranks in {rows} rows: a cell shows its longest rank.")
    return " ".join(parts)


ANALYSIS = Analysis(
    id="imbalance",
    title="Is the work balanced across ranks?",
    reads=(),
    rests_on=("arrivals", "captures", "collectives", "segments"),
    rules=("rank-imbalance",),
    thresholds={
        "rank-imbalance": {
            # Minimum number of ranks.
            "min_ranks": 2,
            # Fewer steps do not show whether the longest rank changes.
            "min_steps": 3,
            # 1 - mean / longest own work of the ranks, mean over steps.
            "imbalance_ratio": 0.10,
            # One rank that is longest in this share of the steps is a straggler (R09), not imbalance.
            "constant_ratio": 0.60,
            # Waits for the last rank, as a share of the step.
            "step_ratio": 0.01,
        }
    },
    measure=measure,
    judge=judge,
)
