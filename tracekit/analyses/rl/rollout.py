"""Rollout engines: running batches, decode pace, tails and replicas (Q8 to Q11; R11, R12, R16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import divide_or_none, make_label_headings, make_run_heading, phrase_run, summarize_step_walls
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.rollout_generations import (
    HALF_BATCH,
    EngineGeneration,
    describe_unseen_replicas,
    draw_rollout,
    estimate_full_batch_share,
    find_last_engine,
    group_generations_by_role,
    is_on_one_clock,
    list_generations,
    measure_end_times,
    measure_rollout_bubble,
)
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import trim_texts
from tracekit.model.tables.columns import OCCURRENCE, STEP, TS
from tracekit.model.tables.frame import Frame, Value, concat, from_rows, median_of, sum_of
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.engine_iterations import (
    EngineIterations,
    list_engine_iterations,
    measure_generations,
    merge_engine_iterations,
)

ITERATIONS = Table(
    "iterations",
    "one iteration of a rollout engine (neighbours of one phase joined where there are very many)",
    {
        **KEYS,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Σ wall time of the annotation on the host, ns."),
        "pace_ns": Column("int64", "Σ time until the next iteration starts (of the last: until its work ends)."),
        "count": Column("int64", "Iterations joined in this row."),
        "prefill": Column("bool", "Whether a prompt was being processed."),
        "prefill_requests": Column("int64", "Requests whose prompt is being processed (mean where joined)."),
        "prefill_tokens": Column("Int64", "Σ prompt tokens, where annotated."),
        "decode_requests": Column("int64", "Requests that generate: the running batch (mean where joined)."),
        "decode_tokens": Column("Int64", "Σ generated tokens, where annotated."),
        "context_tokens": Column("Int64", "Σ tokens that the requests attend to (sk), where annotated."),
        "attention_pairs": Column("Int64", "Σ over requests of queries × keys (sqsk), where annotated."),
        "busy_ns": Column("Int64", "Σ GPU time of the work launched in it, overlaps counted once."),
    },
)

GENERATIONS = Table(
    "generations",
    "one generation of one rollout process: from its first iteration to the end of its last",
    {
        **KEYS,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Until the last work ends, ns."),
        "basis": Column(
            "category",
            "How its end is known: iterations (annotations) | device (last GPU op) | host (last host op).",
            ("iterations", "device", "host"),
        ),
        "longest_pause_ns": Column("Int64", "Longest time between two iterations, ns."),
        "elsewhere_count": Column("int64", "Iterations on other threads of the process: not in the tables."),
    },
)


NO_ITERATION = "no iteration of a rollout engine was annotated"

GENERATION_STAGE = "gen"

MAX_PLACES = 8


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure annotated engine iterations, and the start and end of each generation."""
    spans = measure_generations(trace)
    if spans is None:
        return {}
    recorded: EngineIterations | None = trace.derived(list_engine_iterations)
    if recorded is None:
        return {"generations": spans}
    return {
        "generations": spans,
        "iterations": merge_engine_iterations(recorded),
        "metrics": _measure_rollout_metrics(recorded, spans),
    }


def _measure_rollout_metrics(recorded: EngineIterations, spans: Mapping[str, Any]) -> Mapping[str, Any]:
    """Measure the median pace of decode-only iterations and the wall of generations, for compare."""
    iterations, generations = Frame.from_columns(recorded.columns), Frame.from_columns(spans)
    decode = iterations.filter(~iterations["prefill"] & (iterations["decode_requests"] > 0))
    pace = decode.group_by("step").agg(value=median_of(decode.number("pace_ns"))).sort("step")
    wall = generations.group_by("step").agg(value=sum_of("dur_ns")).sort("step")
    metrics = concat([pace.with_columns(name="decode_pace"), wall.with_columns(name="generation_wall")])
    return {**metrics.columns, "name": trim_texts(metrics["name"])}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report every engine and generation; judge R11, R12 and R16."""
    all_generations = list_generations(measured)
    if not any(g.basis == "iterations" for g in all_generations) and len({g.engine for g in all_generations}) < 2:
        return ANALYSIS.skipped(f"{NO_ITERATION}, and no two replicas are known")
    judged: list[Finding | Verdict] = []
    roles = group_generations_by_role(all_generations)
    several = len({role for _, role in roles}) > 1
    for (run, role), units in roles.items():
        where = (f" of {role}" if several and role else "") + phrase_run(measured, run)
        step_ns = summarize_step_walls(measured).select_run(run).step_ns
        judged += (tail := list(_find_rollout_tail(measured, units, where, step_ns, thresholds)))
        has_tail = any(isinstance(t, Finding) for t in tail)
        judged += _find_replica_imbalance(units, where, step_ns, thresholds, tails_found=has_tail)
        judged += _find_slow_first_iterations(units, where, step_ns, thresholds)
    compared = thresholds.of("slow-first-iterations")["compared_ratio"]
    return ANALYSIS.answered(
        metrics=lambda: _list_rollout_metrics(all_generations),
        sheets=lambda: select_filled_sheets(
            _make_rollout_engine_table(measured, all_generations, compared),
            _make_replica_end_table(measured, all_generations),
        ),
        judged=judged,
        caveats=lambda: _list_rollout_caveats(measured, all_generations),
        charts=lambda: draw_rollout(measured, all_generations),
    )


def _locate_generations(chosen_generations: Sequence[EngineGeneration]) -> tuple[Place, ...]:
    """Locate these generations, each engine and step once."""
    once = {(g.engine, g.unit[2]): g for g in chosen_generations}.values()
    return tuple(
        Place(
            g.source, g.unit[1], g.rank, step=g.unit[2], name=g.engine, start_ns=g.ts_ns, end_ns=g.end_ns, run=g.unit[0]
        )
        for g in list(once)[:MAX_PLACES]
    )


def _pick_generations(generations: Sequence[EngineGeneration], costs: Sequence[int]) -> tuple[Instance, ...]:
    """Pick the worst and the median generation by cost."""
    labels = [(g.source, g.rank, *g.unit[:3]) for g in generations]
    rows = from_rows(("source", "rank", "run", "role", "step"), labels).with_columns(
        ts_ns=np.array([g.ts_ns for g in generations], np.int64),
        dur_ns=np.array([g.dur_ns for g in generations], np.int64),
        cost=np.array(costs, np.int64),
    )
    return pick_instances(rows, "cost")


def _find_rollout_tail(
    measured: Measurements,
    units: Sequence[Sequence[EngineGeneration]],
    where: str,
    step_ns: float | None,
    thresholds: Thresholds,
) -> Iterator[Finding | Verdict]:
    """Find R11: the longest generation of each unit ends with few requests that the step waits for."""
    limit = thresholds.of("rollout-tail")
    traced = _select_traced_generations(units)
    if not traced:
        yield Verdict("rollout-tail", "not applicable", NO_ITERATION + where)
        return
    last = [max(unit, key=lambda g: g.dur_ns) for unit in traced]
    enough = [g for g in last if g.decode_iterations >= limit["min_iterations"]]
    if not enough:
        reason = _explain_few_iterations(last, limit["min_iterations"], where)
        yield _price_tail_abstention(traced, last, reason, step_ns, limit)
        return
    tail = _average_with_unknown_as_zero([g.tail_ratio for g in enough])
    low = _average_with_unknown_as_zero([g.low_ratio for g in enough])
    if tail >= limit["tail_ratio"]:
        claim = f"the last 10 % of the tokens take {format_quantity(tail, 'ratio')} of generation{where}"
    elif low >= limit["low_batch_ratio"]:
        quarter = "runs below a quarter of the largest batch"
        claim = f"{format_quantity(low, 'ratio')} of generation{where} {quarter}"
    else:
        return
    gain = _average_with_unknown_as_zero([_compute_gain_without_tails(unit) for unit in traced])
    finding = _report_rollout_tail(enough, claim, gain, divide_or_none(gain, step_ns), thresholds)
    yield replace(finding, changes=_write_tail_changes(measured, list(chain.from_iterable(traced))))


def _write_tail_changes(measured: Measurements, traced: Sequence[EngineGeneration]) -> tuple[str, ...]:
    """Write the change of the fix: iterations below half of the largest batch generate as fast as the others."""
    below = HALF_BATCH * max(g.peak_requests for g in traced)
    share = estimate_full_batch_share(measured, traced, below)
    if share is None or share >= 1:
        return ()
    return (write_change("scale", "range", requests_below=below, factor=share),)


def _price_tail_abstention(
    traced: Sequence[Sequence[EngineGeneration]],
    last: Sequence[EngineGeneration],
    reason: str,
    step_ns: float | None,
    limit: Mapping[str, float],
) -> Verdict:
    """Make the abstention on tails with too few iterations, with their cost if they are long enough for R11."""
    tail = _average_with_unknown_as_zero([g.tail_ratio for g in last])
    gain = _average_with_unknown_as_zero([_compute_gain_without_tails(unit) for unit in traced])
    if tail < limit["tail_ratio"] or gain <= 0:
        return Verdict("rollout-tail", "insufficient data", reason)
    claim = f"the last 10 % of the tokens take {format_quantity(tail, 'ratio')} of generation"
    needs = f"{limit['min_iterations']:g} decode iterations would prove it"
    price = round(gain), divide_or_none(gain, step_ns)
    return Verdict("rollout-tail", "insufficient data", reason, None, *price, claim, needs)


def _select_traced_generations(units: Sequence[Sequence[EngineGeneration]]) -> list[list[EngineGeneration]]:
    """Select the generations of each unit with known iterations; units without any are left out."""
    traced = [[g for g in unit if g.basis == "iterations"] for unit in units]
    return [unit for unit in traced if unit]


def _explain_few_iterations(generations: Sequence[EngineGeneration], min_iterations: float, where: str) -> str:
    """Explain that generations with fewer than `min_iterations` decode iterations are not judged."""
    most_iterations = max(g.decode_iterations for g in generations)
    return f"{most_iterations} of at least {min_iterations:g} decode iterations{where}"


def _average_with_unknown_as_zero(values: Sequence[float | None]) -> float:
    """Average the values; unknown values count as 0."""
    return float(np.mean([value or 0 for value in values]))


def _compute_gain_without_tails(unit: Sequence[EngineGeneration]) -> int:
    """Compute how much earlier a unit would end without tails, in ns."""
    return max(g.dur_ns for g in unit) - max(g.dur_ns - g.gain_ns for g in unit)


def _report_rollout_tail(
    enough: Sequence[EngineGeneration], claim: str, gain: float, ratio: float | None, thresholds: Thresholds
) -> Finding:
    """Report R11 for these generations."""
    tail, low = (
        _average_with_unknown_as_zero([g.tail_ratio for g in enough]),
        _average_with_unknown_as_zero([g.low_ratio for g in enough]),
    )
    tail_ns = round(_average_with_unknown_as_zero([g.tail_ns for g in enough]))
    largest = max(g.peak_requests for g in enough)
    return Finding(
        "rollout-tail",
        thresholds.severity(ratio),
        claim,
        "do not wait for the longest responses (partial rollout, over-sampling with early stop); lower the response limit; spread long prompts over replicas",
        (
            make_evidence_metric("tail_ratio", tail, "time of the last 10 % of tokens"),
            make_evidence_metric("low_batch_ratio", low, "time below a quarter of the largest batch"),
            Metric("tail", tail_ns, "ns", "lower", label="tail"),
            Metric("peak_requests", largest, "count", label="largest batch"),
        ),
        _locate_generations(sorted(enough, key=lambda g: -g.gain_ns)),
        round(gain),
        ratio,
        tuple(_list_tail_caveats(enough)),
        instances=_pick_generations(enough, [g.gain_ns for g in enough]),
    )


def _list_tail_caveats(generations: Sequence[EngineGeneration]) -> Iterator[str]:
    """List the caveats on tails."""
    yield "assumes that the tail's few requests run in full batches: long responses have to be generated at some time"
    pause = max((g.pause_ns or 0) / g.dur_ns for g in generations if g.dur_ns)
    if pause >= 0.1:
        yield f"an idle gap between iterations takes {format_quantity(pause, 'ratio')} of a generation: tools, or two generations in one capture"
    if not all(g.counted for g in generations):
        yield "tokens were not recorded: one per running request and iteration is assumed"


def _find_replica_imbalance(
    units: Sequence[Sequence[EngineGeneration]],
    where: str,
    step_ns: float | None,
    thresholds: Thresholds,
    *,
    tails_found: bool,
) -> Iterator[Finding | Verdict]:
    """Find R12: replicas that have finished and wait for the last one."""
    limit = thresholds.of("replica-imbalance")
    several = [unit for unit in units if len(unit) > 1]
    if not several:
        yield Verdict("replica-imbalance", "not applicable", f"one engine only{where}")
        return
    ratio = _average_with_unknown_as_zero([measure_rollout_bubble(unit)[0] for unit in several])
    if ratio < limit["bubble_ratio"]:
        return
    rest_ratio = _average_with_unknown_as_zero(
        [measure_rollout_bubble(unit, without_tails=True)[0] for unit in several]
    )
    if tails_found and rest_ratio < limit["bubble_ratio"]:
        yield Verdict("replica-imbalance", "clear", f"replicas wait for the tail of one: see rollout-tail{where}")
        return
    yield _report_replica_imbalance(several, where, ratio, step_ns, thresholds)


def _report_replica_imbalance(
    several: Sequence[Sequence[EngineGeneration]],
    where: str,
    ratio: float,
    step_ns: float | None,
    thresholds: Thresholds,
) -> Finding:
    """Report R12 for units with several replicas."""
    saved = _average_with_unknown_as_zero([measure_rollout_bubble(unit)[1] for unit in several])
    last = [find_last_engine(unit) for unit in several]
    after = [measure_end_times(unit) for unit in several]
    behind = _average_with_unknown_as_zero([max(times) - float(np.median(times)) for times in after])
    names = sorted({g.engine for g in last})
    who = names[0] if len(names) == 1 else f"not always the same ({', '.join(names[:3])})"
    return Finding(
        "replica-imbalance",
        thresholds.severity(divide_or_none(saved, step_ns)),
        f"replicas{where} are idle for {format_quantity(ratio, 'ratio')} of generation; the last one is {who}",
        "route requests by load or expected length, let idle replicas take over, or move prompts off the slow replica",
        (
            make_evidence_metric("bubble_ratio", ratio, "of the replicas' time"),
            Metric("behind_median", round(behind), "ns", "lower", label="last end after the median"),
            Metric("replicas", max(len(unit) for unit in several), "count", label="engines seen"),
        ),
        _locate_generations(last),
        round(saved),
        divide_or_none(saved, step_ns),
        tuple(_list_replica_caveats(several)),
        changes=tuple(write_change("equalise", on, stage=GENERATION_STAGE) for on in ("device", "host")),
        instances=_pick_generations(last, [max(times) - round(float(np.median(times))) for times in after]),
    )


def _list_replica_caveats(units: Sequence[Sequence[EngineGeneration]]) -> Iterator[str]:
    """List the caveats on waiting replicas."""
    generations = list(chain.from_iterable(units))
    if all(is_on_one_clock(unit) for unit in units):
        yield "ends are those of the last recorded work, on one clock"
    else:
        yield "clocks of the replicas cannot be compared: each is timed from its own start"
    if any(g.basis != "iterations" for g in generations):
        yield "without annotated iterations a replica ends with its last op"
    if missing := describe_unseen_replicas(generations):
        yield missing


def _find_slow_first_iterations(
    units: Sequence[Sequence[EngineGeneration]], where: str, step_ns: float | None, thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """Find R16: first decode iterations of a generation that are slower than later ones of equal batch."""
    limit = thresholds.of("slow-first-iterations")
    traced = _select_traced_generations(units)
    if not traced:
        yield Verdict("slow-first-iterations", "not applicable", NO_ITERATION + where)
        return
    comparable = [_select_comparable_generations(unit, limit) for unit in traced]
    compared_generations = list(chain.from_iterable(comparable))
    if not compared_generations:
        generations = list(chain.from_iterable(traced))
        reason = f"no later iterations of equal batch to compare the first ones with{where}"
        if max(g.decode_iterations for g in generations) < limit["min_iterations"]:
            reason = _explain_few_iterations(generations, limit["min_iterations"], where)
        yield Verdict("slow-first-iterations", "insufficient data", reason)
        return
    over = float(np.median([g.first_over_steady or 0.0 for g in compared_generations]))
    if over < limit["slowdown"]:
        return
    cost = _average_with_unknown_as_zero([max((g.first_excess_ns for g in unit), default=0) for unit in comparable])
    pace = float(np.median([g.first_pace_ns or 0.0 for g in compared_generations]))
    yield Finding(
        "slow-first-iterations",
        thresholds.severity(divide_or_none(cost, step_ns)),
        f"the first 10 % of decode iterations{where} take {over:.2f} times as long as later ones of equal batch",
        "check the time after a weight update: graphs captured again, KV cache emptied, weights still being copied or unpacked; compare with a generation without a preceding update",
        (
            Metric("first_over_later", over, "", "lower", label="first over later, equal batch"),
            Metric("first_pace", round(pace), "ns", "lower", label="of a first iteration"),
            Metric("generations", len(compared_generations), "count", label="generations compared"),
        ),
        _locate_generations(sorted(compared_generations, key=lambda g: -g.first_excess_ns)),
        round(cost),
        divide_or_none(cost, step_ns),
        ("the first iterations after an engine starts also capture graphs and warm up the profiler",),
        instances=_pick_generations(compared_generations, [g.first_excess_ns for g in compared_generations]),
    )


def _select_comparable_generations(
    unit: Sequence[EngineGeneration], limit: Mapping[str, float]
) -> list[EngineGeneration]:
    """Select the generations with enough iterations whose first ones have later ones of equal batch."""
    return [
        g
        for g in unit
        if g.decode_iterations >= limit["min_iterations"]
        and g.compared_ratio >= limit["compared_ratio"]
        and g.first_over_steady is not None
    ]


def _list_rollout_metrics(all_generations: Sequence[EngineGeneration]) -> Iterator[Metric]:
    """List the medians over generations: wall, decode pace, tail, and bubble of replicas."""
    traced = [g for g in all_generations if g.basis == "iterations"]
    wall = [g.dur_ns for g in all_generations]
    yield Metric("generation_wall", round(float(np.median(wall))), "ns", "lower", label="generation, median")
    if pace := [g.pace_ns for g in traced if g.pace_ns is not None]:
        yield Metric("decode_pace", round(float(np.median(pace))), "ns", "lower", label="per decode iteration")
    if tails := [g.tail_ratio for g in traced if g.tail_ratio is not None]:
        yield make_evidence_metric("tail_ratio", float(np.median(tails)), "time of the last 10 % of tokens")
    bubbles = [
        measure_rollout_bubble(unit)[0]
        for units in group_generations_by_role(all_generations).values()
        for unit in units
        if len(unit) > 1
    ]
    if bubbles:
        yield make_evidence_metric("bubble_ratio", float(np.median(bubbles)), "replicas' time after their end")


def _list_rollout_caveats(measured: Measurements, all_generations: Sequence[EngineGeneration]) -> Iterator[str]:
    """List the caveats on engines and generations."""
    if any(g.mates > 1 and g.basis == "iterations" for g in all_generations):
        yield "processes with the same batches (tensor parallel) are shown as one engine"
    if not all(g.counted for g in all_generations):
        yield "without recorded tokens, one per running request and iteration is assumed"
    if any(g.busy_ns is None for g in all_generations if g.basis == "iterations"):
        yield "no GPU activity was recorded for some engines"
    if any(g.basis != "iterations" for g in all_generations):
        yield "engines without annotated iterations are known only by their first and last work"
    if elsewhere := int(measured.frame("generations")["elsewhere_count"].sum()):
        yield f"{elsewhere:,} iterations ran on other threads of their process: not shown"


def _make_rollout_engine_table(
    measured: Measurements, all_generations: Sequence[EngineGeneration], compared: float
) -> Sheet:
    """Make the table of engines by generation."""
    rows = [_make_rollout_engine_row(generation, compared) for generation in all_generations]
    table = from_rows(list(rows[0]), [tuple(row.values()) for row in rows])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            engine | engine
            step | step | id
            wall_ns | generation | ns | From the first iteration to the end of the last one's work.
            iterations | iterations | count
            pace_ns | per decode | ns | Median time from one iteration that only decodes to the next.
            tokens_per_s | tokens/s | number | Generated tokens over the whole generation.
            peak | largest batch | count | Most requests that generate at a time.
            mean | mean batch | number | Weighted by time.
            context | context | number | Tokens that a generating request attends to, mean over iterations that only decode.
            prompt_context | prompt context | number | Keys per token that is run, in iterations with prefill.
            prefill_ratio | prefill of GPU | ratio | GPU time of iterations with prefill, of all iterations' GPU time.
            prefill_time | prefill of time | ratio | Time of iterations with prefill, of the generation.
            tail_ratio | last 10 % | ratio | Share of the generation in which the last 10 % of tokens are generated.
            low_ratio | low batch | ratio | Share in which fewer than a quarter of the largest batch run, without prefill.
            over | first / later | number | Pace of the first 10 % of decode iterations over later ones of equal batch.
        """),
    )
    return make_sheet("rollout_engines", "Engines by generation", headings, table)


def _make_rollout_engine_row(generation: EngineGeneration, compared: float) -> dict[str, Any]:
    """Make the row of one engine's generation.

    `compared` is the minimum share of first iterations that need later ones of equal batch for `over`.
    """
    pace_ns, over, wall_ns = generation.pace_ns, generation.first_over_steady, generation.dur_ns
    run, role, step = generation.unit[:3]
    tokens_per_s = prefill_time = None
    if generation.iterations:
        prefill_time = divide_or_none(generation.prefill_ns, wall_ns)
        tokens_per_ns = divide_or_none(generation.tokens or None, wall_ns)
        tokens_per_s = None if tokens_per_ns is None else tokens_per_ns * 1e9
    return {
        "run": run,
        "role": role,
        "step": step,
        "engine": generation.engine,
        "wall_ns": wall_ns,
        "iterations": generation.iterations or None,
        "pace_ns": None if pace_ns is None else round(pace_ns),
        "tokens_per_s": tokens_per_s,
        "peak": generation.peak_requests or None,
        "mean": generation.mean_requests,
        "context": generation.context,
        "prompt_context": generation.prompt_context,
        "prefill_ratio": divide_or_none(generation.prefill_busy_ns or 0, generation.busy_ns),
        "prefill_time": prefill_time,
        "tail_ratio": generation.tail_ratio,
        "low_ratio": generation.low_ratio,
        "over": over if generation.compared_ratio >= compared else None,
    }


def _make_replica_end_table(measured: Measurements, all_generations: Sequence[EngineGeneration]) -> Sheet:
    """Make the table of units with several replicas: when the replicas ended."""
    rows: list[tuple[Value, ...]] = []
    for (run, _), units in group_generations_by_role(all_generations).items():
        for unit in units:
            if len(unit) < 2:
                continue
            after = sorted(measure_end_times(unit))
            last = find_last_engine(unit)
            rows.append(
                (
                    run,
                    unit[0].unit[2],
                    len(unit),
                    after[0],
                    round(float(np.median(after))),
                    after[-1],
                    measure_rollout_bubble(unit)[0],
                    last.engine,
                )
            )
    table = from_rows(("run", "step", "engines", "first", "median", "last", "bubble", "who"), rows)
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            step | step | id
            engines | engines | count
            first | first end | ns | After the first start, or after its own where clocks cannot be compared.
            median | median end | ns
            last | last end | ns
            bubble | waiting | ratio | Share of the engines' time after their own end.
            who | last
        """),
    )
    return make_sheet("rollout_replicas", "Replicas: when each generation ended", headings, table)


ANALYSIS = Analysis(
    id="rollout",
    title="How fast is generation, and how even?",
    reads=("host_ops", "device_ops", "device_ranges"),
    writes=(ITERATIONS, GENERATIONS, "metrics"),
    rests_on=("captures", "collectives"),
    metrics=("decode_pace", "generation_wall"),
    rules=("rollout-tail", "replica-imbalance", "slow-first-iterations"),
    thresholds={
        "rollout-tail": {
            # The last tenth of the generated tokens takes at least this share of a generation,
            "tail_ratio": 0.20,
            # or batches below a quarter of the largest run for at least this share of it.
            "low_batch_ratio": 0.30,
            # Minimum number of decode iterations.
            "min_iterations": 20,
        },
        "replica-imbalance": {
            # Share of the replicas' time in which they have finished and wait for the last one.
            "bubble_ratio": 0.15
        },
        "slow-first-iterations": {
            # The first tenth of the decode iterations takes at least this many times as long as later ones of equal batch.
            "slowdown": 1.3,
            # Minimum number of decode iterations.
            "min_iterations": 30,
            # Minimum share of the first iterations with later ones of equal batch.
            "compared_ratio": 0.5,
        },
    },
    measure=measure,
    judge=judge,
)
