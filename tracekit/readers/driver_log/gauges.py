"""Scrapes of the gauges of rl-insight: the metrics of verl under names of Prometheus; the step is a gauge too.

A scrape repeats the gauges until the next step sets them. The last scrape of a step counts. A timer with exactly the
value of the step before was not set again, as that of a validation every few steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.values import MAX_STEP, LoggedValues

PREFIX = "rl_insight_monitor_"
STEP_GAUGE = f"{PREFIX}training_global_step"
GAUGE_HINT = compile_lazily(rf"(?m)^{STEP_GAUGE}(?:\{{|\s)")

_GAUGE = compile_lazily(
    rf"{PREFIX}([a-zA-Z0-9_]{{1,200}})(?:\{{[^}}]{{0,4000}}\}})?\s+([-+0-9.eE]{{1,40}})(?:\s+([0-9]{{1,19}}))?\s*\Z"
)
_SCRAPE_TIME = compile_lazily(r"(?:#[ \w:=-]{0,40}?)?([0-9]{10})(?:\.([0-9]{1,9}))?\s*\Z")

_GROUPS = (
    *("timing_s/agent_loop/slowest/", "timing_s/agent_loop/generate_sequences/", "timing_s/agent_loop/tool_calls/"),
    *("timing_s/agent_loop/compute_score/", "timing_s/", "timing_per_token_ms/", "timing_per_image_ms/"),
    *("perf/mfu/", "perf/", "actor/perf/", "critic/perf/", "response_length_non_aborted/", "response_length/"),
    *("prompt_length/", "global_seqlen/", "response/", "num_turns/", "fully_async/count/", "fully_async/trainer/"),
    *("fully_async/rollouter/", "fully_async/monitor/queue/", "fully_async/monitor/", "fully_async/static/"),
    *("fully_async/processing_time/", "fully_async/partial/", "fully_async/"),
    *("training/off_policy/trajectory_staleness_worst/", "training/off_policy/trajectory_staleness/"),
    *("training/off_policy/trajectory_spans/", "training/off_policy/", "training/"),
)
"""Groups of verl's metrics. rl-insight writes `_` for each `/`; the first group that matches has the name back."""

_BY_START = {group.replace("/", "_"): group for group in _GROUPS}
_TIMER = "timing_s/"
_MS_DIGITS = 13
_TIME_STARTS = frozenset("#0123456789")


@dataclass(slots=True)
class Gauges:
    """The current scrape, and the last record of the step before it."""

    line: int = 0
    ts_ns: int | None = None
    next_ns: int | None = None
    scraped: dict[str, float] = field(default_factory=dict[str, float])
    step: int | None = None
    record: tuple[int, int | None, dict[str, float]] | None = None
    before: dict[str, float] = field(default_factory=dict[str, float])


def restore_metric_name(gauge: str) -> str:
    """Restore the name of a metric of verl from the name of its gauge, without the prefix.

    >>> restore_metric_name("timing_s_old_log_prob"), restore_metric_name("perf_mfu_actor")
    ('timing_s/old_log_prob', 'perf/mfu/actor')
    """
    for start, group in _BY_START.items():
        if gauge.startswith(start):
            return group + gauge.removeprefix(start)
    return gauge


def watch_gauges(
    rows: Iterator[tuple[int, str | None]], gauges: Gauges, log: LoggedValues
) -> Iterator[tuple[int, str | None]]:
    """Yield all other lines, and add the metrics of each step to the log."""
    for number, line in rows:
        if line is not None and line.startswith(PREFIX):
            _add_gauge(line, number, gauges, log)
            continue
        time = _SCRAPE_TIME.match(line) if line is not None and line[:1] in _TIME_STARTS and len(line) < 100 else None
        if time:
            gauges.next_ns = int(time[1]) * 10**9 + int((time[2] or "0").ljust(9, "0"))
        yield number, line
    _end_scrape(gauges, log)
    _end_step(gauges, log)


def _add_gauge(line: str, number: int, gauges: Gauges, log: LoggedValues) -> None:
    """Add the sample of one line. A gauge seen before, or a time, begins the next scrape."""
    found = _GAUGE.match(line)
    if found is None:
        return
    name = restore_metric_name(found[1])
    try:
        value = float(found[2])
    except ValueError:
        return
    if name in gauges.scraped or gauges.next_ns is not None:
        _end_scrape(gauges, log)
    if not gauges.scraped:
        gauges.line, gauges.ts_ns, gauges.next_ns = number, gauges.next_ns, None
    if found[3] and gauges.ts_ns is None and len(found[3]) <= _MS_DIGITS:
        gauges.ts_ns = int(found[3]) * 10**6
    gauges.scraped[name] = value


def _end_scrape(gauges: Gauges, log: LoggedValues) -> None:
    """End a scrape: it replaces the one before of the same step, or that step ends."""
    values, gauges.scraped = gauges.scraped, {}
    step = values.pop("training/global_step", None)
    if step is None or not math.isfinite(step) or not step.is_integer() or not 0 <= step < MAX_STEP:
        return
    if gauges.step is not None and step != gauges.step:
        _end_step(gauges, log)
    gauges.step, gauges.record = int(step), (gauges.line, gauges.ts_ns, values)


def _end_step(gauges: Gauges, log: LoggedValues) -> None:
    """Add the metrics of the step to the log, without timers that were not set in it."""
    if gauges.step is None or gauges.record is None:
        return
    line, ts_ns, values = gauges.record
    was_set = {
        name: value
        for name, value in values.items()
        if not (name.startswith(_TIMER) and gauges.before.get(name) == value)
    }
    log.add_record(line, gauges.step, was_set, ts_ns)
    gauges.before, gauges.record = values, None
