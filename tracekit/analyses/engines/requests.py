"""Requests one by one: their time by part, and the cause of the slowest ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.engines.requests import PART_TITLES, PARTS, TAIL, RequestTimes, list_request_times
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Chart, Finding, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, TABLES, Table
from tracekit.model.tables.frame import from_rows
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

_COLUMNS = tuple(TABLES["engine_requests"].columns)

REQUEST_TIMES = Table(
    "request_times",
    "one request of a rollout engine, one tool call or one agent's run",
    {**KEYS, **TABLES["engine_requests"].columns},
)

MAX_CHARTED = 4
"""Most sources with a chart of their own."""

BINS = 40
"""Bars of the distribution."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the requests that a source recorded; empty for any other source."""
    if not trace.row_count("engine_requests"):
        return {}
    return {"request_times": {name: trace.array("engine_requests", name) for name in _COLUMNS}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report the time of requests by part; judge R63. None without recorded requests."""
    if not measured.row_count("request_times"):
        return None
    sources = list_request_times(measured)
    if not sources:
        return ANALYSIS.skipped("the recorded requests have no times")
    return ANALYSIS.answered(
        judged=[_find_request_tail(measured, times, thresholds) for times in sources],
        metrics=lambda: _list_request_metrics(sources),
        sheets=lambda: (_make_part_table(measured, sources),),
        caveats=lambda: _list_request_caveats(sources),
        charts=lambda: [_draw_distribution(times, n) for n, times in enumerate(sources[:MAX_CHARTED], start=1)],
    )


def _find_request_tail(measured: Measurements, times: RequestTimes, thresholds: Thresholds) -> Finding | Verdict | None:
    """Find R63: the slowest requests take far longer than the median, for one main reason."""
    limit = thresholds.of("request-tail")
    count = len(times.total_ns)
    if count < limit["min_requests"]:
        reason = f"{count} of at least {limit['min_requests']:g} {times.unit}s in {times.source}"
        return Verdict("request-tail", "insufficient data", reason, times.run)
    middle = float(np.median(times.total_ns))
    slow = float(np.percentile(times.total_ns, 100 * (1 - TAIL)))
    cause = times.find_tail_cause()
    if cause is None or slow < limit["over_median"] * middle:
        return None
    name, share = cause
    tail = times.is_tail
    claim = (
        f"the slowest 5 % of {count:,} {times.unit}s take over {format_quantity(round(slow), 'ns')}, "
        f"{slow / middle:.1f} times the median; {format_quantity(min(share, 1.0), 'ratio')} of the difference is "
        f"{PART_TITLES[name]}{phrase_run(measured, times.run)}"
    )
    return Finding(
        "request-tail",
        "medium",
        claim,
        _ADVICE[name],
        (
            Metric("p95", round(slow), "ns", "lower", label=f"95th percentile of a {times.unit}"),
            Metric("median", round(middle), "ns", "lower", label="median"),
            Metric("cause_ratio", share, "ratio", label=f"{PART_TITLES[name]}, of the difference to the others"),
            Metric(
                "tail_part", round(float(times.parts[name][tail].mean())), "ns", "lower", label="the same, mean then"
            ),
        ),
        (Place(source=times.sources[0], name=PART_TITLES[name], run=times.run),),
        caveats=("a synchronous step waits for its slowest request; an asynchronous one may not",),
    )


_ADVICE: Mapping[str, str] = {
    "queue": "let the engine run more requests at once (max_num_seqs, default 256), add replicas, or spread requests by load",
    "prefill": "reuse prefixes (enable_prefix_caching), chunk prefills (enable_chunked_prefill), shorten prompts",
    "decode": "limit response lengths (max_response_length), use partial rollout, or do not wait for the longest responses",
    "forward": "limit response lengths (max_response_length), use partial rollout, or do not wait for the longest responses",
    "preempted": "leave more KV cache to each request: lower max_num_seqs, raise gpu_memory_utilization (see kv-preemption)",
    "tool": "set a time limit for tools, call them in parallel (verl multi_turn.max_parallel_calls, default 1), add tool workers",
    "other": "look between the spans: the client, the network, and tokenization are outside the engine and its tools",
}

_BY_PART = """
    source | log
    part | part
    share_ratio | share | ratio | Of the time of all requests, or of all agents' runs.
    mean_ns | mean | ns
    p95_ns | 95th percentile | ns
    tail_ratio | in the slowest 5 % | ratio | Share of the time of the slowest 5 %.
"""


def _make_part_table(measured: Measurements, sources: Sequence[RequestTimes]) -> Sheet:
    """Make the table of the parts of each source, and their total."""
    rows: list[tuple[Any, ...]] = []
    for times in sources:
        tail = times.is_tail
        whole, whole_tail = float(times.total_ns.sum()), float(times.total_ns[tail].sum())
        parts = [(PART_TITLES[name], times.parts[name]) for name in PARTS if name in times.parts]
        for title, ns in (*parts, (f"(whole {times.unit})", times.total_ns)):
            p95 = round(float(np.percentile(ns, 95)))
            shares = float(ns.sum()) / whole, float(ns[tail].sum()) / whole_tail
            rows.append((times.run, times.source, title, shares[0], round(float(ns.mean())), p95, shares[1]))
    headings = (*make_run_heading(measured), *parse_headings(_BY_PART))
    if len(sources) == 1:
        headings = tuple(heading for heading in headings if heading.name != "source")
    frame = from_rows(("run", *(heading.name for heading in parse_headings(_BY_PART))), rows)
    return make_sheet("request_parts", "Time of requests by part", headings, frame)


def _list_request_metrics(sources: Sequence[RequestTimes]) -> Iterator[Metric]:
    """List the median and the tail of all requests."""
    for times in sources[:MAX_CHARTED]:
        label = f"{len(times.total_ns):,} {times.unit}s of {times.source}"
        yield Metric("request_median", round(float(np.median(times.total_ns))), "ns", "lower", label=f"median, {label}")
        p95 = round(float(np.percentile(times.total_ns, 95)))
        yield Metric("request_p95", p95, "ns", "lower", label=f"95th percentile, {label}")


def _list_request_caveats(sources: Sequence[RequestTimes]) -> Iterator[str]:
    """List the caveats on the times of requests."""
    for times in sources:
        if times.overlapping_ratio > 0.01:
            share = format_quantity(times.overlapping_ratio, "ratio")
            yield f"parts of {times.source} overlap by {share} of the time: their sum is shown"
        if times.preemptions and "preempted" not in times.parts:
            yield f"{times.preemptions:,} preemptions in {times.source}: their time is part of decode"


def _draw_distribution(times: RequestTimes, number: int) -> Chart:
    """Draw the distribution of the total time, stacked by the largest part of each request."""
    names = [name for name in PARTS if name in times.parts]
    largest = np.argmax([times.parts[name] for name in names], axis=0)
    names = [name for place, name in enumerate(names) if (largest == place).any()]
    largest = np.unique(largest, return_inverse=True)[1]
    edges = np.linspace(0, float(times.total_ns.max()), BINS + 1)
    marks = []
    for place in range(len(names)):
        counts, _ = np.histogram(times.total_ns[largest == place], edges)
        marks += [
            (place, round(edges[bin_]), round(edges[bin_ + 1]), int(counts[bin_])) for bin_ in np.flatnonzero(counts)
        ]
    title = f"Time of {len(times.total_ns):,} {times.unit}s, by the largest part of each"
    series = tuple(PART_TITLES[name] for name in names)
    name = "request-times" if number == 1 else f"request-times-{number}"
    return Chart(name, title, "histogram", tuple(marks), series, unit="count", caption=times.source)


ANALYSIS = Analysis(
    id="requests",
    title="Which part of their time makes requests slow?",
    reads=("engine_requests",),
    writes=(REQUEST_TIMES,),
    rules=("request-tail",),
    thresholds={
        "request-tail": {
            # The 95th percentile is at least this many times the median,
            "over_median": 2.5,
            # of at least this many requests or agents' runs.
            "min_requests": 100,
        },
    },
    measure=measure,
    judge=judge,
)
