"""Gate rules, and exceptions that are accepted until a given day."""

from __future__ import annotations

import re
from datetime import date
from typing import Literal, Never

from tracekit.model.errors import TracekitError
from tracekit.model.metrics import METRICS, OUT_OF_MEMORY, STAGE_TIME, MetricKind
from tracekit.model.records import dataclass
from tracekit.model.report import Unit
from tracekit.model.text.labels import did_you_mean
from tracekit.model.units import MINUS, format_quantity, parse_size, parse_time

GateSeverity = Literal["error", "warn"]
Test = Literal["change", "budget"]

IDLE_SHARE = "gpu_idle_share"
"""GPU idle / (busy + idle): derived from two recorded metrics, available to gates only."""

NEW_OOM_RULE = "new-oom"
"""OOM count of a run, which may not rise on the second side; it needs memory snapshots with a history."""

RULE_METRICS = {**METRICS, IDLE_SHARE: MetricKind("GPU idle share", "ratio", "lower", "mean")}
"""Metrics that rules can test, by recorded name."""

RULE_METRIC_ALIASES = {
    "gpu.busy": "gpu_busy",
    "gpu.idle": "gpu_idle",
    "gpu.idle_share": IDLE_SHARE,
    "gpu.host_wait": "host_wait",
    "communication.time": "comm",
    "communication.exposed": "exposed_comm",
    "communication.count": "comm_count",
    "communication.bytes": "comm_bytes",
    "copies.exposed": "exposed_copies",
    "host.ops": "host_ops",
    "host.launches": "host_launches",
    "memory.peak_allocated": "device_peak_allocated",
    "memory.peak_requested": "device_peak_requested",
    "memory.peak_reserved": "device_peak_reserved",
    "memory.end_requested": "device_end_requested",
    "memory.end_allocated": "device_end_allocated",
    "memory.end_reserved": "device_end_reserved",
    "memory.stranded": "device_end_stranded",
    "memory.host_peak_allocated": "host_peak_allocated",
    "memory.host_peak_reserved": "host_peak_reserved",
    "engine.throughput": "engine_throughput",
    "engine.running": "engine_running",
    "engine.waiting": "engine_waiting",
    "engine.kv_cache": "engine_kv_ratio",
    "engine.preemptions": "engine_preemptions",
    "time": STAGE_TIME,
    NEW_OOM_RULE: OUT_OF_MEMORY,
}
"""Other metric names that rules accept; `time` only after a stage: `stage.rollout.time`."""

STAGE_ALIASES = {"rollout": "gen"}
"""Common stage names that profiles do not use; they apply if no stage of that name was recorded."""

RULE_SCOPES = {"worst-rank": "max", "mean": "mean"}
"""Reductions over ranks as rules name them; a scope must match the metric's reduction in the registry."""

MOST_RULES = 20
"""Most rules in a gate: with more, Holm's correction leaves too little power to detect a regression."""

_TEXT = re.compile(r"\s*(?P<metric>[^<>=]+?)\s*>\s*(?P<limit>[^<>=]+?)\s*\Z")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class GateRule:
    """A metric and its limit.

    - `name` and `stage` are those of recorded metrics; `role` None means every role.
    - A `change` compares the second side with the first, relative to it if `unit` is "ratio".
    - A `budget` applies to the second side alone.
    - `rise`: higher is worse. `point`: test the estimate instead of the interval.
    """

    metric: str
    name: str
    stage: str | None
    test: Test
    rise: bool
    limit: float
    unit: Unit
    point: bool = False
    severity: GateSeverity = "error"
    role: str | None = None

    @property
    def kind(self) -> MetricKind:
        """The metric in the registry."""
        return RULE_METRICS[self.name]

    @property
    def sign(self) -> int:
        """1 if higher is worse, −1 if lower is."""
        return 1 if self.rise else -1

    @property
    def bound(self) -> str:
        """The direction of the limit, in words."""
        return "at most" if self.rise else "at least"

    def __str__(self) -> str:
        """Format the rule for people: `step_time: at most +3 %`."""
        limit = format_short_amount(self.limit, self.unit)
        if self.test == "change":
            sign = "+" if self.rise else MINUS
            limit = f"{sign}{limit}"
        rule = f"{self.metric}: {self.bound} {limit}"
        if self.point:
            rule += " (estimate)"
        return rule


@dataclass(frozen=True, slots=True)
class GateException:
    """A breach that is accepted until a day (inclusive), with a reason."""

    metric: str
    until: date
    reason: str


@dataclass(frozen=True, slots=True)
class GateRules:
    """A whole gate; `today` is known only if there are exceptions, `sources` lists where it is configured.

    With sources and without rules the gate measures nothing, which is not a pass unless `untested_passes`.
    """

    rules: tuple[GateRule, ...] = ()
    accepts: tuple[GateException, ...] = ()
    inconclusive_fails: bool = False
    today: date | None = None
    sources: tuple[str, ...] = ()
    untested_passes: bool = False

    def __bool__(self) -> bool:
        """Check whether the gate has rules."""
        return bool(self.rules)

    @property
    def stated(self) -> bool:
        """Whether a gate was requested, even an empty one."""
        return bool(self.rules or self.sources)


NO_RULES = GateRules()
"""A gate without rules."""


def parse_rule_text(text: str) -> GateRule:
    """Parse a rule such as `step_time>3%`: a limit on the change in the direction that is worse.

    >>> str(parse_rule_text("step_time>3%")), str(parse_rule_text("throughput>point:5%"))
    ('step_time: at most +3 %', 'throughput: at least −5 % (estimate)')
    """
    match = _TEXT.match(text)
    if match is None:
        raise TracekitError(f"invalid rule: {text!r}", "write it like 'step_time>3%' or 'step_time>50ms'")
    metric = match["metric"]
    rise = RULE_METRICS[resolve_rule_metric(metric)[0]].better != "higher"
    return make_gate_rule(metric, match["limit"], "change", rise=rise)


def make_gate_rule(
    metric: str, limit: object, test: Test, *, rise: bool, severity: GateSeverity = "error", role: str | None = None
) -> GateRule:
    """Make a rule; raises `TracekitError` for an unknown metric or an invalid limit."""
    name, stage = resolve_rule_metric(metric)
    kind = RULE_METRICS[name]
    if rise and kind.better == "higher":
        _refuse_improving_direction(metric, "rise", "max-decrease or min")
    if not rise and kind.better == "lower":
        _refuse_improving_direction(metric, "fall", "max-increase or max")
    value, unit, point = _parse_rule_limit(metric, kind, limit, test)
    if test == "change" and not rise and unit == "ratio" and value >= 1:
        raise TracekitError(f"{metric}: a decrease cannot exceed 100 %", "such a rule cannot fail")
    return GateRule(metric, name, stage, test, rise, value, unit, point, severity, role)


def _refuse_improving_direction(metric: str, way: str, right: str) -> Never:
    raise TracekitError(f"{metric}: a {way} is an improvement", f"use {right}")


def format_short_amount(value: float | None, unit: Unit) -> str:
    """Format a number without trailing zeros.

    >>> format_short_amount(10_000_000.0, "ns"), format_short_amount(0.03, "ratio"), format_short_amount(152.0, "count")
    ('10 ms', '3 %', '152')
    """
    if value is not None and unit in ("ns", "bytes", "count", "") and float(value).is_integer():
        value = int(value)
    text = format_quantity(value, unit, 4)
    return re.sub(r"(\.\d*?)0+(?=\D|$)", lambda match: match[1].rstrip("."), text)


def resolve_rule_metric(metric: str) -> tuple[str, str | None]:
    """Resolve the metric of a rule to its recorded name and stage; raises with the nearest name.

    >>> resolve_rule_metric("memory.peak_allocated"), resolve_rule_metric("stage.update_actor.time")
    (('device_peak_allocated', None), ('stage_time', 'update_actor'))
    """
    stage: str | None = None
    name = metric
    if metric.startswith("stage."):
        stage, _, name = metric.removeprefix("stage.").rpartition(".")
        if name not in RULE_METRICS and name not in RULE_METRIC_ALIASES and "." in stage:
            above, _, last = stage.rpartition(".")
            stage, name = above, f"{last}.{name}"
    recorded_name = RULE_METRIC_ALIASES.get(name, name)
    if _is_recorded_metric(recorded_name, stage):
        return recorded_name, stage
    if metric == STAGE_TIME or name == "time":
        raise TracekitError(f"no metric is called {metric!r}", "name the stage: stage.rollout.time")
    near = did_you_mean(name if stage else metric, [*RULE_METRICS, *RULE_METRIC_ALIASES, "stage.rollout.time"])
    hint = f"there are: {', '.join(sorted(RULE_METRICS))}"
    raise TracekitError(f"no metric is called {metric!r}{near}", hint)


def _is_recorded_metric(name: str, stage: str | None) -> bool:
    """Check whether the metric exists: stage time requires a stage, step time accepts none."""
    if name not in RULE_METRICS or stage == "":
        return False
    if stage is None:
        return name != STAGE_TIME
    return name not in ("step_time", "unprofiled_step_time")


def _parse_rule_limit(metric: str, kind: MetricKind, limit: object, test: Test) -> tuple[float, Unit, bool]:
    """Parse a limit to (value, unit, is_point); relative limits are shares."""
    point = False
    if isinstance(limit, str):
        point = limit.startswith("point:")
        limit = limit.removeprefix("point:").strip()
    try:
        value, unit = _parse_limit_quantity(limit, kind.unit)
    except TracekitError as error:
        raise TracekitError(f"{metric}: {error.problem}", error.hint) from None
    if unit == "ratio" and kind.unit != "ratio" and test == "budget":
        raise TracekitError(f"{metric}: a budget of {limit} needs a unit", "give an amount, such as 50ms or 40GiB")
    return value, unit, point


def _parse_limit_quantity(limit: object, unit: Unit) -> tuple[float, Unit]:
    """Parse a share (`3%`), or an amount in the metric's own unit."""
    if isinstance(limit, float):
        limit = f"{limit:.12f}".rstrip("0").rstrip(".")
    elif isinstance(limit, int) and not isinstance(limit, bool):
        limit = str(limit)
    quantity = _parse_quantity_text(limit, unit) if isinstance(limit, str) else None
    if quantity is None:
        wanted = {"ns": "3% or 50ms", "bytes": "3% or 256MiB", "ratio": "15%"}
        how = wanted.get(unit, "3% or 100")
        raise TracekitError(f"not a limit: {limit!r}", f"write it like {how}")
    return quantity


def _parse_quantity_text(text: str, unit: Unit) -> tuple[float, Unit] | None:
    """Parse a text to a quantity; None if it is not one in this unit."""
    number = text.removesuffix("%").strip()
    if text.endswith("%") and _NUMBER.match(number):
        return float(number) / 100, "ratio"
    negative = text.startswith(("-", "−"))
    if unit == "ns" and not _NUMBER.match(text) and not negative:
        return float(parse_time(text)), unit
    if unit == "bytes" and not negative:
        return float(parse_size(text)), unit
    if unit not in ("ns", "bytes", "ratio") and _NUMBER.match(text):
        return float(text), unit
    return None
