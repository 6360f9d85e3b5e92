"""Collectives: volume, bandwidth, and overlap with compute (definitions M2, M5, M12, M14; R05, R06, R07)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.collectives.slow_links import find_slow_links, list_slow_link_intervals
from tracekit.job.collectives.traffic import (
    compute_collective_rates,
    draw_communication_by_rank,
    draw_message_sizes,
    list_transfer_intervals,
    list_wait_intervals,
    make_collective_kind_sheet,
    make_collective_stage_sheet,
    make_communication_rank_sheet,
    measure_collective_union,
    measure_exposed_coverage,
    sum_traffic_by_rank,
)
from tracekit.job.collectives.traffic import list_rated_collectives as pooled
from tracekit.job.frames import phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import select_filled_sheets
from tracekit.job.stages.windows import (
    STAGE_KEY,
    StageWindow,
    count_steps_of_processes,
    find_rows_of_owners,
    list_judged_windows,
    list_owners,
    list_rows_of_windows,
    list_undamaged_rows,
)
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import DEVICE, DUR, STEP, STREAM, TS
from tracekit.model.tables.frame import Frame, concat, count_rows, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.collectives.arguments import ARGS as COLLECTIVE_ARGS
from tracekit.process.collectives.table import Collectives, list_collectives, sum_collectives_per_step

COLLECTIVES = Table(
    "collectives",
    "one collective of one process, as its device ran it (as its host did, without a device)",
    {
        **KEYS,
        "step": STEP,
        "stage": Column("category", "Outermost stage during which it was issued, as recorded; <NA> outside."),
        "group": Column(
            "category", "Process group: its name and a hash of its members, as far as recorded; otherwise (default)."
        ),
        "group_size": Column("Int64", "Ranks of the group."),
        "op": Column(
            "category",
            "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send, recv, barrier, gather, scatter, other.",
        ),
        "dtype": Column("category", "Type of an element, as torch names it."),
        "seq": Column("Int64", "Sequence number within the group, as recorded."),
        "ordinal": Column("Int64", "0, 1, 2 … among those of this group and op in the source."),
        "size_bytes": Column("Int64", "Size of the message: of the whole output for all_gather, otherwise the input."),
        "ts_ns": TS,
        "dur_ns": DUR,
        "device": DEVICE,
        "stream": STREAM,
        "exposed_ns": Column("Int64", "Part of it during which no compute kernel ran; <NA> on the host."),
        "issue_ns": Column("Int64", "Start of the host call that issued it."),
        "synchronising": Column("bool", "Whether no rank can finish it before all have started (op by op)."),
    },
)


COLLECTIVES_LEFT_OUT = "collectives_left_out"

BY_DESIGN = ("update_weights",)
"""Stages that only communicate and have no compute to overlap with."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the collectives of one source, and their sums by step and stage for compare."""
    recorded: Collectives = trace.derived(list_collectives)
    rows = recorded.rows
    if not len(rows):
        return {"collectives": {}} if trace.has("host_ops") or trace.has("device_ops") else {}
    tables: dict[str, Mapping[str, Any]] = {"collectives": rows.arrays, "metrics": sum_collectives_per_step(recorded)}
    if recorded.cut:
        tables["quality"] = {"name": np.array([COLLECTIVES_LEFT_OUT], object), "count": np.array([recorded.cut])}
    return tables


BUCKET_KEYS = [*CAPTURE, "device", "step", "canonical", "op", "group"]
"""Keys that small collectives must share to be merged into one; a single collective cannot be merged."""


class Exposure(NamedTuple):
    """Exposed communication of a stage.

    `rest_ns` excludes waits, small collectives (R07) and slow links (R35). `unseen` is the caveat on ranks that were not
    recorded.
    """

    window: StageWindow
    rows: Frame
    wait_ns: int | None
    rest_ns: int
    unseen: str

    @property
    def share(self) -> float:
        """The rest as a share of the stage."""
        return self.window.share(self.rest_ns)

    @property
    def per_step(self) -> tuple[float, float | None]:
        """(The rest per step and GPU in ns, the same as a share of the step)."""
        return self.window.per_step(self.rest_ns)


class SmallCollectives(NamedTuple):
    """Result of R07 for one run and role."""

    rows: Frame
    finding: Finding | None
    verdict: Verdict | None


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report collectives by kind, stage and rank; judge R05, R06 and R07."""
    if not measured.row_count("collectives"):
        return ANALYSIS.skipped("no collective was recorded")
    rows = pooled(measured)
    small = [
        _find_small_collectives(measured, of_owner, thresholds) for of_owner in rows.group_by("run", "role").frames()
    ]
    told_elsewhere = [owner.rows for owner in small if owner.finding]
    told_elsewhere.append(list_slow_link_intervals(measured, find_slow_links(measured, thresholds.of("slow-link"))))
    stages = _list_exposures(measured, rows, told_elsewhere)
    exposures = [(exposure, _find_exposed_communication(exposure, stages, thresholds)) for exposure in stages]
    hidden = [exposure for exposure, finding in exposures if finding is None]
    return ANALYSIS.answered(
        (
            *(finding for _, finding in exposures),
            *(_find_no_overlap(exposure, stages, thresholds) for exposure in hidden),
            *(owner.finding for owner in small),
            *_list_exposure_abstentions(measured, exposures, thresholds),
            *(owner.verdict for owner in small),
        ),
        metrics=lambda: _list_communication_metrics(measured),
        sheets=lambda: select_filled_sheets(
            make_collective_kind_sheet(measured),
            make_collective_stage_sheet(measured),
            make_communication_rank_sheet(measured),
        ),
        caveats=lambda: _list_communication_caveats(measured, rows),
        charts=lambda: [
            chart for chart in (draw_communication_by_rank(measured), draw_message_sizes(measured)) if chart
        ],
    )


def _list_exposures(measured: Measurements, rows: Frame, small: list[Frame]) -> list[Exposure]:
    """List the exposed communication of every stage in which a device communicates; of steps, where no stage is known."""
    windows, waits = list_rows_of_windows(measured, "gpu_time"), list_wait_intervals(rows)
    claimed = concat(small)
    claimed = claimed.filter(~claimed.is_missing("exposed_ns"))
    # The trace does not say which part of a small collective or wait is exposed: take its start.
    claimed = claimed.with_columns(dur_ns=claimed.integers("exposed_ns"))
    names = (*CAPTURE, "device", "ts_ns", "dur_ns")
    both = concat([waits.select(*names), claimed.select(*names)])
    windows = windows.with_columns(
        wait_ns=measure_exposed_coverage(waits, windows), taken_ns=measure_exposed_coverage(both, windows)
    )
    on_device = rows.filter(~rows.is_missing("exposed_ns"))
    in_stage = {_get_stage_key(of_window): of_window for of_window in on_device.group_by(*STAGE_KEY).frames()}
    in_step = {_get_stage_key(of_step)[:2]: of_step for of_step in on_device.group_by(*STAGE_KEY[:2]).frames()}
    exposures = []
    for window in list_judged_windows(measured):
        of_window, key, none = (_select_rows_of_stage(windows, window), window.key, on_device.head(0))
        window_rows = in_step.get(key[:2], none) if key[2] is None else in_stage.get(key, none)
        if window.gpu_time["comm_ns"] and window.window_ns:
            wait = None if of_window.is_missing("wait_ns").all() else int(of_window.integers("wait_ns").sum())
            rest_ns = int(window.gpu_time["exposed_comm_ns"]) - int(of_window.integers("taken_ns").sum())
            assert rest_ns >= 0, "waiting and small collectives must fit into exposed communication"
            exposures.append(Exposure(window, window_rows, wait, rest_ns, _caveat_missing_ranks(measured, window.run)))
    return exposures


def _get_stage_key(rows: Frame) -> tuple[Any, ...]:
    """Get the run, role and stage of the first of these rows."""
    return tuple(next(rows.rows(*STAGE_KEY)).values())


def _caveat_missing_ranks(measured: Measurements, run: str | None) -> str:
    """Describe ranks of a run that were not recorded; empty if none is known to be missing."""
    captures = measured.frame("captures")
    of_run = captures.filter(captures.equals("run", run))
    seen, world_size = len(set(of_run.values("rank")) - {None}), of_run.integers("world_size").max(initial=0)
    if seen >= world_size:
        return ""
    return f"{seen} of {world_size} ranks were recorded: waiting for the others counts as communication"


def _select_rows_of_stage(frame: Frame, window: StageWindow) -> Frame:
    """Select the rows of a judged stage; all rows of the run and role for a whole step."""
    in_window = find_rows_of_owners(frame, [window.owner])
    if window.canonical is not None:
        in_window &= frame.equals("canonical", window.canonical)
    return frame.filter(in_window)


OVERLAP_ADVICE = {
    "all_gather": "prefetch the next layer's parameters (FSDP forward and backward prefetch), in larger units",
    "reduce_scatter": "reduce gradients while backward still runs (FSDP backward prefetch), in larger units; only once per accumulation, if memory allows",
    "all_reduce": "reduce gradients in buckets while backward still runs; only once per accumulation (no_sync)",
    "all_to_all": "compute on one half of the batch while the other half is exchanged",
}
"""Advice by the operation with most exposed time."""

LEAST_EXPOSED_SHARE = 0.1
"""The fix changes operations with at least this share of the exposed time of a stage."""

OVERLAP_CHANGES: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "all_gather": ({"do": "prefetch", "op": "AllGather"},),
    "reduce_scatter": ({"do": "hide", "op": "ReduceScatter"}, {"do": "accumulate", "op": "ReduceScatter"}),
    "all_reduce": (
        {"do": "hide", "op": "AllReduce", "by": "AccumulateGrad"},
        {"do": "accumulate", "op": "AllReduce", "by": "AccumulateGrad"},
    ),
}
"""Changes of the fix by operation, without the stage. DDP reduces gradients where they are accumulated."""

DEFAULT_OVERLAP_ADVICE = "overlap it with compute: prefetch, earlier or larger buckets, a separate stream"


def _find_most_exposed_op(exposure: Exposure) -> tuple[str | None, tuple[Place, ...]]:
    """Find the operation with most exposed time: (operation, places of the stage and of its longest collective)."""
    rows = exposure.rows
    if not len(rows):
        return None, (exposure.window.place,)
    by_op = rows.group_by("op").agg(exposed_ns=sum_of("exposed_ns")).sort("exposed_ns", "op", descending=["exposed_ns"])
    op = by_op.values("op")[0]
    of_op = rows.filter(rows.equals("op", op))
    longest = of_op.take(np.array([of_op.integers("exposed_ns").argmax()]))
    (place,) = longest.rows("run", "source", "role", "rank", "device", "step")
    (start,), (end,) = longest["ts_ns"].tolist(), (longest["ts_ns"] + longest["dur_ns"]).tolist()
    return op, (
        replace(exposure.window.place, name=op),
        Place(**place, stage=exposure.window.canonical, name=op, start_ns=start, end_ns=end),
    )


def _pick_collectives(exposure: Exposure, op: str | None) -> tuple[Instance, ...]:
    """Pick the worst and the median collective of an operation in a stage, by exposed time."""
    rows = exposure.rows.filter(exposure.rows.equals("op", op))
    return pick_instances(rows, "exposed_ns", stage=exposure.window.canonical, name=op)


def _list_traffic_evidence(exposure: Exposure, op: str | None) -> tuple[Metric, ...]:
    """List the bytes and bus bandwidth of an operation in a stage, as far as known."""
    of_op = exposure.rows.filter(exposure.rows.equals("op", op))
    numbers = []
    for row in compute_collective_rates(of_op, ["op"]).rows("size_bytes", "busbw"):
        if row["size_bytes"] is not None:
            each = round(exposure.window.steps.mean(row["size_bytes"]))
            numbers.append(make_evidence_metric("size_bytes", each, f"{op} per step and GPU"))
        if row["busbw"] is not None:
            numbers.append(Metric("busbw", row["busbw"], "gb_per_s", "higher", label=f"busbw of {op}"))
    return tuple(numbers)


def _make_overlap_evidence(exposure: Exposure) -> Metric:
    """Make the evidence on the share of communication that overlaps compute."""
    ratio = float(exposure.window.gpu_time["overlap_ratio"])
    return make_evidence_metric("overlap_ratio", ratio, "overlap", better="higher")


def _make_collective_wait_evidence(exposure: Exposure) -> tuple[tuple[Metric, ...], tuple[str, ...]]:
    """List the evidence and caveats on waits for other ranks."""
    if exposure.wait_ns is None:
        return (), ("includes an unknown amount of waiting for slower ranks",)
    wait = round(exposure.window.steps.mean(exposure.wait_ns))
    synchronising = exposure.rows.filter(exposure.rows["synchronising"])
    unknown = int(synchronising.is_missing("wait_ns").sum())
    caveats = [exposure.unseen] if exposure.unseen else []
    if unknown:
        caveats.append(
            f"the wait in {unknown:,} of {len(synchronising):,} collectives is unknown and counts as communication"
        )
    waiting_ns = make_evidence_metric("wait_ns", wait, "waiting per step, excluded")
    return (waiting_ns,), tuple(caveats)


def _write_overlap_changes(exposure: Exposure, exposures: Sequence[Exposure]) -> Iterator[str]:
    """List the changes of the fix: gathers begin one earlier, and gradients are awaited where the backward pass ends.

    Overlap is set for a model, not for a stage: the changes cover all stages of the role that overlap with compute at all.
    The next op needs the result of any other collective at once. Lists nothing if most of the exposed time is of those.
    """
    window = exposure.window
    alike = [
        other for other in exposures if other.window.key[:2] == window.key[:2] and _overlaps(other) and other.rest_ns
    ]
    stages = alike if _overlaps(exposure) else [exposure]
    if not _can_overlap_most(stages):
        return
    for of_stage in stages:
        exposed = of_stage.rows.group_by("op").agg(exposed_ns=sum_of("exposed_ns"), count=count_rows())
        total_ns = int(exposed.integers("exposed_ns").sum())
        for row in exposed.sort("exposed_ns", "op", descending=["exposed_ns"]).rows("op", "exposed_ns", "count"):
            is_repeated = of_stage.window.steps.mean(row["count"]) > 1
            if is_repeated and row["exposed_ns"] >= LEAST_EXPOSED_SHARE * total_ns:
                for change in OVERLAP_CHANGES.get(row["op"], ()):
                    yield write_change(on="collective", stage=of_stage.window.canonical, **change)


def _can_overlap_most(exposures: Sequence[Exposure]) -> bool:
    """Check whether most of the exposed time of stages is of operations that can overlap with compute."""
    total_ns = sum(int(exposure.rows.integers("exposed_ns").sum()) for exposure in exposures)
    possible = [exposure.rows.filter(exposure.rows.is_in("op", OVERLAP_CHANGES)) for exposure in exposures]
    return 2 * sum(int(rows.integers("exposed_ns").sum()) for rows in possible) >= total_ns


def _overlaps(exposure: Exposure) -> bool:
    """Check whether a stage has compute to overlap with."""
    return exposure.window.canonical not in BY_DESIGN


def _find_exposed_communication(
    exposure: Exposure, exposures: Sequence[Exposure], thresholds: Thresholds
) -> Finding | None:
    """Find R05: a stage, or a step without stages, with much exposed communication."""
    if exposure.share < thresholds.of("exposed-communication")["exposed_ratio"]:
        return None
    exposed, ratio = exposure.per_step
    op, places = _find_most_exposed_op(exposure)
    waits, caveats = _make_collective_wait_evidence(exposure)
    is_part = exposure.rest_ns < int(exposure.window.gpu_time["exposed_comm_ns"])
    quantity = "exposed communication without waiting" if is_part else "exposed communication"
    share = make_evidence_metric("exposed_comm_ratio", exposure.share, quantity)
    return Finding(
        "exposed-communication",
        thresholds.severity(ratio),
        f"{format_quantity(exposure.share, 'ratio')} of {exposure.window.name} is {quantity}",
        OVERLAP_ADVICE.get(op or "", DEFAULT_OVERLAP_ADVICE),
        (share, _make_overlap_evidence(exposure), *waits, *_list_traffic_evidence(exposure, op)),
        places,
        round(exposed),
        ratio,
        caveats,
        changes=tuple(_write_overlap_changes(exposure, exposures)),
        instances=_pick_collectives(exposure, op),
    )


def _find_no_overlap(exposure: Exposure, exposures: Sequence[Exposure], thresholds: Thresholds) -> Finding | None:
    """Find R06: a stage whose collectives hardly overlap compute, where R05 did not fire."""
    limit = thresholds.of("no-comm-overlap")
    row, name = exposure.window.gpu_time, exposure.window.canonical
    comm = int(row["overlap_ns"]) + exposure.rest_ns
    overlap = int(row["overlap_ns"]) / comm if comm else 1.0
    if (
        comm / row["window_ns"] < limit["comm_ratio"]
        or overlap >= limit["overlap_ratio"]
        or exposure.window.steps.mean(len(exposure.rows)) < limit["collectives_per_step"]
        or name in BY_DESIGN
    ):
        return None
    exposed, ratio = exposure.per_step
    op, places = _find_most_exposed_op(exposure)
    waits, caveats = _make_collective_wait_evidence(exposure)
    severity = thresholds.severity(ratio)
    share = comm / row["window_ns"]
    return Finding(
        "no-comm-overlap",
        "info" if severity == "low" else severity,
        f"{format_quantity(overlap, 'ratio')} of the communication of {exposure.window.name} overlaps with compute",
        OVERLAP_ADVICE.get(op or "", DEFAULT_OVERLAP_ADVICE),
        (
            make_evidence_metric("overlap_ratio", overlap, "overlap", better="higher"),
            make_evidence_metric("comm_ratio", share, "communication, share of the stage"),
            *waits,
            *_list_traffic_evidence(exposure, op),
        ),
        places,
        round(exposed),
        ratio,
        caveats,
        changes=tuple(_write_overlap_changes(exposure, exposures)),
        instances=_pick_collectives(exposure, op),
    )


def _list_exposure_abstentions(
    measured: Measurements, judged: list[tuple[Exposure, Finding | None]], thresholds: Thresholds
) -> Iterator[Verdict]:
    """List verdicts on why R05 and R06 did not fire, where the reason is not obvious."""
    rules = ANALYSIS.rules[:2]
    if not len(list_undamaged_rows(measured, "gpu_time")):
        lost = measured.row_count("gpu_time") > 0
        reason = "every source with GPU activity is damaged" if lost else "no GPU activity was recorded"
        answer = "insufficient data" if lost else "not applicable"
        yield from (Verdict(rule, answer, reason) for rule in rules)  # type: ignore[arg-type]
        return
    limit = thresholds.of("exposed-communication")["exposed_ratio"]
    for exposure, finding in judged:
        exposed = exposure.window.gpu_time["exposed_comm_ratio"]
        if finding is None and exposed >= limit:
            reason = f"{format_quantity(float(exposed), 'ratio')} of {exposure.window.name} is exposed communication: waiting for slower ranks, or small collectives"
            price, ratio = exposure.window.per_step(float(exposure.window.gpu_time["exposed_comm_ns"]))
            yield Verdict(rules[0], "clear", reason, None, round(price), ratio)
    if any(finding is not None for _, finding in judged):
        yield Verdict(rules[1], "clear", "exposed-communication reports it")


def _find_small_collectives(measured: Measurements, rows: Frame, thresholds: Thresholds) -> SmallCollectives:
    """Find R07: so many small messages that their number, not their bytes, takes the time."""
    limit = thresholds.of("small-collectives")
    run, role = list_owners(rows.head(1))[0]
    steps = count_steps_of_processes(measured, rows)
    calls = rows.filter(~rows.equals("op", "barrier"))
    is_unknown = calls.is_missing("size_bytes")
    small = calls.filter(~is_unknown & (calls.integers("size_bytes") < limit["small_bytes"]))
    unknown = int(is_unknown.sum())
    nothing = SmallCollectives(small, None, None)
    if not len(calls) or not steps.step_ns:
        return nothing
    if len(small) / len(calls) < limit["call_ratio"]:
        if (len(small) + unknown) / len(calls) < limit["call_ratio"]:
            return nothing
        reason = f"{unknown:,} of {len(calls):,} collectives have no recorded size{phrase_run(measured, run)}"
        return SmallCollectives(small, None, Verdict("small-collectives", "insufficient data", reason))
    has_others = small.group_by(*BUCKET_KEYS).each(count_rows()) > 1
    moved = list_transfer_intervals(small.filter(has_others))
    has_exposed, dur = ~moved.is_missing("exposed_ns"), moved["dur_ns"]
    exposed = np.where(has_exposed, moved.integers("exposed_ns"), dur)
    bounded = moved.with_columns(dur_ns=np.minimum(dur, exposed))
    totals = (int(measure_collective_union(part, (*CAPTURE, "device"), "ns")["ns"].sum()) for part in (moved, bounded))
    (spent, share), (gain, ratio) = (steps.per_step(total_ns) for total_ns in totals)
    if share is None or share < limit["time_ratio"]:
        return nothing
    by = moved.group_by("canonical", "op").agg(dur_ns=sum_of("dur_ns"))
    stage, op = (by.values(name)[by["dur_ns"].argmax()] for name in ("canonical", "op"))
    caveats = ["the bytes themselves still have to be moved"]
    if moved.is_missing("transfer_ns").any():
        caveats.append("excludes only unusual waiting for slower ranks")
    if not has_exposed.all():
        caveats.append("recorded on the host: overlap is unknown")
    finding = Finding(
        "small-collectives",
        thresholds.severity(ratio),
        f"{len(small):,} of {len(calls):,} collectives move less than {format_quantity(int(limit['small_bytes']), 'bytes')} each"
        + phrase_run(measured, run),
        "merge small tensors: flatten them into a bucket, reduce logged values once per step",
        (
            make_evidence_metric("small_ratio", len(small) / len(calls), "of all collectives"),
            make_evidence_metric("small_count", steps.mean(len(moved)), "per step and rank"),
            make_evidence_metric("small_ns", round(spent), "their time per step and rank"),
        ),
        (Place(run=run, role=role, stage=stage, name=op),),
        round(gain),
        ratio,
        tuple(caveats),
        changes=(_write_merging_change(limit["small_bytes"], on_host=not has_exposed.any()),),
        instances=pick_instances(moved.with_columns(cost=bounded["dur_ns"])),
    )
    return SmallCollectives(small, finding, None)


def _write_merging_change(small_bytes: float, *, on_host: bool) -> str:
    """Write the change that merges small collectives: their transfers take no time, nor do calls that wait for each on a host."""
    if on_host:
        return write_change("remove", "collective", op=".", smaller_bytes=small_bytes, host="^c10d::")
    return write_change("set", "collective", smaller_bytes=small_bytes, to_us=0)


def _list_communication_metrics(measured: Measurements) -> Iterator[Metric]:
    """List communication as a share of the captures, and the wire bandwidth: sums over ranks, never means of ratios."""
    ranks = sum_traffic_by_rank(measured)
    for name, top, label in (
        ("comm_ratio", "comm_ns", "communication, share of the capture"),
        ("exposed_comm_ratio", "exposed_ns", "exposed communication, share of the capture"),
        ("wait_ratio", "wait_ns", "waiting for other ranks, share of the capture"),
    ):
        timed = ranks.filter(~ranks.is_missing(top) & (ranks.integers("window_ns") > 0))
        if len(timed):
            value = int(timed.integers(top).sum()) / int(timed.integers("window_ns").sum())
            yield Metric(name, value, "ratio", "lower", label=label)
    timed = ranks.filter(~ranks.is_missing("wire_bytes") & (ranks.integers("wired_ns") > 0))
    if len(timed):
        value = float(timed.number("wire_bytes").sum()) / int(timed.integers("wired_ns").sum())
        yield make_evidence_metric("wire_gb_per_s", value, "network per rank", better="higher")


def _list_communication_caveats(measured: Measurements, rows: Frame) -> Iterator[str]:
    """List the caveats on these numbers."""
    if unknown := int((rows.is_missing("size_bytes") & ~rows.equals("op", "barrier")).sum()):
        yield f"{unknown:,} of {len(rows):,} collectives have no recorded size and are in no rate"
    if host := int((rows.is_missing("device") & rows.is_missing("exposed_ns")).sum()):
        yield f"{host:,} collectives ran on the host (no GPU activity was recorded): overlap with compute is unknown"
    if rows.is_missing("wait_ns").all():
        yield "collectives could not be compared between ranks: their time includes waiting for slower ranks"
    unseen = (_caveat_missing_ranks(measured, run) for run in dict.fromkeys(rows.values("run")))
    yield from dict.fromkeys(text for text in unseen if text)
    quality = measured.frame("quality")
    if cut := int(quality.integers("count")[quality.equals("name", COLLECTIVES_LEFT_OUT)].sum()):
        yield f"{cut:,} collectives exceed the limit per source: the earliest are shown"


ANALYSIS = Analysis(
    id="communication",
    title="How much communication is exposed, and how much is waiting?",
    reads=("device_ops", "host_ops", "device_ranges"),
    args=COLLECTIVE_ARGS,
    writes=(COLLECTIVES, "metrics", "quality"),
    metrics=("comm", "comm_count", "comm_bytes"),
    rests_on=("gpu_time",),
    rules=("exposed-communication", "no-comm-overlap", "small-collectives"),
    thresholds={
        "exposed-communication": {
            # Exposed communication, less waiting for slower ranks, as a share of a stage (of the step where no stage is known).
            "exposed_ratio": 0.05
        },
        "no-comm-overlap": {
            # A stage is reported when less than this share of its communication runs beside compute,
            "overlap_ratio": 0.30,
            # and its communication takes at least this share of it,
            "comm_ratio": 0.05,
            # in at least this many collectives per step and GPU: a single one may be exposed on purpose.
            "collectives_per_step": 2,
        },
        "small-collectives": {
            # A message below this size is small,
            "small_bytes": 65_536,
            # and reported when at least this share of all collectives but barriers is,
            "call_ratio": 0.20,
            # and they take at least this share of the step.
            "time_ratio": 0.01,
        },
    },
    measure=measure,
    judge=judge,
)
