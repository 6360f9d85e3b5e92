"""Gate of the second side: every rule, applied to every metric that it names.

A rule fails only if the whole interval exceeds its limit, or with `point:` if the estimate does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import copysign, inf, log1p
from typing import Literal

from tracekit.compare.changes import ComparisonChoices, choose_headline_metric, compute_metric_speedup
from tracekit.compare.differences import describe_session_gap
from tracekit.compare.gate_rules import (
    IDLE_SHARE,
    STAGE_ALIASES,
    GateException,
    GateRule,
    GateRules,
    format_short_amount,
)
from tracekit.compare.sides import ComparedSide, is_all_positive
from tracekit.compare.work_units import is_whole_recording_sum
from tracekit.job.steps.metric_samples import Key, MetricSamples, StepId
from tracekit.model.metrics import (
    ENGINE_METRICS,
    OUT_OF_MEMORY,
    STAGE_TIME,
    STEP_TIME,
    UNPROFILED,
    UNPROFILED_STAGE,
    WINDOW,
    get_metric_title,
    grows_with_work,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Gate, Outcome, Unit
from tracekit.model.stages import get_canonical_stage
from tracekit.model.stats.differences import compare_means
from tracekit.model.stats.estimate import Estimate, compute_t_tail, estimate_side
from tracekit.model.stats.speedup import Speedup, compare_exact
from tracekit.model.stats.verdict import (
    CAPS,
    ComparisonVerdict,
    choose_verdict,
    correct_verdicts,
    describe_caps,
    list_caps,
)
from tracekit.model.units import MINUS

Overall = Literal["", "pass", "fail", "expired", "not comparable", "not tested", "inconclusive"]

MOST_STAGES = 20
"""Most stages listed when a rule names a stage that does not exist."""

_GRAVEST: tuple[Overall, ...] = ("fail", "expired", "not comparable", "not tested", "inconclusive")
"""Outcomes other than a pass, the most serious first."""

_LEAST_BASE = 1e-9


@dataclass(frozen=True, slots=True)
class _JudgedGate:
    """One gate before all gates are combined, with the verdict that Holm's correction needs."""

    gate: Gate
    verdict: ComparisonVerdict | None = None


@dataclass(frozen=True, slots=True)
class _GatedSides:
    """Sides that rules apply to; if `blocked`, they are not comparable and only budgets are tested.

    `apart` says that they ran in different sessions, which leaves rules on times undecided; empty if not.
    """

    base: ComparedSide | None
    opt: ComparedSide
    choices: ComparisonChoices
    blocked: bool
    apart: str

    @property
    def recorded(self) -> tuple[ComparedSide, ...]:
        """The sides that exist: base and opt, or opt alone."""
        return (self.opt,) if self.base is None else (self.base, self.opt)


def apply_gate_rules(
    rules: GateRules,
    base: ComparedSide | None,
    opt: ComparedSide,
    choices: ComparisonChoices,
    *,
    blocked: bool = False,
    uneven: bool = False,
) -> tuple[Gate, ...]:
    """Apply every rule in order, one outcome per role; then list expired exceptions.

    Without a `base`, or if the sides are not comparable (`blocked`), only budgets are tested. If the sides
    did different work (`uneven`), times that grow with it are not compared.
    """
    judged: list[_JudgedGate] = []
    apart = "" if base is None else describe_session_gap(base, opt, choices.noise)
    for rule in rules.rules:
        barred = blocked or (uneven and grows_with_work(rule.name))
        judged += _apply_gate_rule(rule, _GatedSides(base, opt, choices, barred, apart))
    outcomes = [_accept_excused_gate(gate, rules) for gate in _apply_holm_to_gates(judged, choices.level)]
    expired = [_make_expired_gate(accept) for accept in rules.accepts if _is_expired_exception(accept, rules)]
    return (*outcomes, *expired)


def _apply_holm_to_gates(judged: Sequence[_JudgedGate], level: float) -> Iterator[Gate]:
    """Apply Holm's correction: failures that only arise from the number of tests become inconclusive."""
    verdicts = [rule.verdict for rule in judged if rule.verdict is not None]
    corrected = iter(correct_verdicts(verdicts, level=level))
    for rule in judged:
        gate = rule.gate
        capped = rule.verdict is not None and "many comparisons" in next(corrected).caps
        if capped and gate.outcome == "fail":
            caveats = (*gate.caveats, CAPS["many comparisons"])
            gate = replace(gate, outcome="inconclusive", caveats=caveats)
        yield gate


def summarize_gates(gates: Sequence[Gate]) -> Overall:
    """Summarize gates by the most serious outcome; empty without rules. Rules of severity `warn` do not count."""
    if not gates:
        return ""
    outcomes = {gate.outcome for gate in gates if gate.severity == "error"}
    return next((word for word in _GRAVEST if word in outcomes), "pass")


def _apply_gate_rule(rule: GateRule, sides: _GatedSides) -> Iterator[_JudgedGate]:
    """Apply one rule to each role for which either side has the metric."""
    of_unit = ""
    if rule.name == STEP_TIME and not rule.stage:
        rule, of_unit = _redirect_step_rule(rule, sides)
    if rule.test == "change" and sides.base is None:
        yield _JudgedGate(_make_untested_gate(rule, rule.metric, "a change needs a baseline"))
        return
    before: dict[Key, MetricSamples] = {}
    if sides.base is not None:
        before = select_rule_samples(rule, sides.base)
    after = select_rule_samples(rule, sides.opt)
    keys = {*after}
    if rule.test == "change":
        keys |= {*before}
    if not keys:
        yield _JudgedGate(_make_unrecorded_gate(rule, sides))
    roles = {role for _, role, _ in keys}
    for key in sorted(keys, key=str):
        metric = rule.metric
        if len(roles) > 1 and key[1]:
            metric = f"{metric} ({key[1]})"
        if rule.name != WINDOW and any(is_whole_recording_sum(key, side) for side in sides.recorded):
            reason = "without step marks it covers a whole recording"
            yield _JudgedGate(_make_untested_gate(rule, metric + of_unit, reason))
        else:
            yield _apply_rule_to_role(rule, metric + of_unit, before.get(key), after.get(key), sides)


def _make_unrecorded_gate(rule: GateRule, sides: _GatedSides) -> Gate:
    """Make the gate of a rule whose metric neither side recorded."""
    asked = (sides.opt,) if rule.test == "budget" else sides.recorded
    reason = _explain_missing_by_error(*asked) or _explain_unrecorded_metric(rule, asked)
    return _make_untested_gate(rule, rule.metric, reason)


def _apply_rule_to_role(
    rule: GateRule, metric: str, before: MetricSamples | None, after: MetricSamples | None, sides: _GatedSides
) -> _JudgedGate:
    """Apply one rule to the samples of one role."""
    if rule.test == "budget" and after is not None:
        return _judge_budget(rule, metric, after, sides.choices)
    if sides.blocked:
        gate = _make_untested_gate(rule, metric, "the sides are not comparable")
        return _JudgedGate(replace(gate, outcome="not comparable"))
    if before is None or after is None:
        side = sides.opt if after is None or sides.base is None else sides.base
        reason = _explain_missing_by_error(side) or f"it was not recorded in {side.name}"
        return _JudgedGate(_make_untested_gate(rule, metric, reason))
    judged = _judge_gated_change(rule, metric, before, after, sides.choices)
    if (
        sides.apart
        and not rule.point
        and not rule.kind.exact
        and judged.gate.outcome in ("pass", "fail", "inconclusive")
    ):
        gate = replace(judged.gate, outcome="not comparable", caveats=(*judged.gate.caveats, sides.apart))
        return _JudgedGate(gate)
    return judged


def _redirect_step_rule(rule: GateRule, sides: _GatedSides) -> tuple[GateRule, str]:
    """Redirect a rule on the step to the headline metric, with a suffix for its name.

    Budgets apply to steps only.
    """
    base = sides.base or sides.opt
    name, role, stage = choose_headline_metric(base, sides.opt, force=sides.choices.force)
    if name in (STEP_TIME, UNPROFILED):
        return replace(rule, name=name), ""
    if rule.test == "budget":
        return rule, ""
    return replace(rule, name=name, role=role, stage=stage), f" ({get_metric_title(name, stage)})"


def _explain_unrecorded_metric(rule: GateRule, sides: Sequence[ComparedSide]) -> str:
    """Explain why a rule matches nothing: an unknown stage, or a metric that these sides lack."""
    if rule.name == OUT_OF_MEMORY:
        return "no profile records whether an OOM occurred"
    stages, timed_stages = set(), set()
    for side in sides:
        for name, _, stage in side.samples:
            stages.add(stage)
            if name in (STAGE_TIME, UNPROFILED_STAGE):
                timed_stages.add(str(stage))
    if rule.stage and not stages & list_stage_aliases(rule.stage, rule.role):
        return f"no stage is called {rule.stage}: {_list_stages_by_similarity(rule.stage, sorted(timed_stages))}"
    return f"it was not recorded in {'either side' if len(sides) > 1 else sides[0].name}"


def _list_stages_by_similarity(name: str, stages: Sequence[str]) -> str:
    """List the existing stages after a suggestion of the one that may have been meant."""
    if not stages:
        return "none was recorded"
    listed = f"there are: {', '.join(stages[:MOST_STAGES])}"
    if len(stages) > MOST_STAGES:
        listed += f" and {len(stages) - MOST_STAGES} more"
    near = get_close_matches(name, stages, 1)
    return f"did you mean {near[0]}? {listed}" if near else listed


def _explain_missing_by_error(*sides: ComparedSide) -> str:
    """Explain a missing metric by an error of tracekit, which may have dropped it."""
    for side in sides:
        if side.errors:
            return f"an error in tracekit may have left it out ({side.name}: {side.errors[0]})"
    return ""


def select_rule_samples(rule: GateRule, side: ComparedSide) -> dict[Key, MetricSamples]:
    """Select a side's samples of a rule's metric, by role. Stages match by recorded or canonical name.

    Memory levels use the peak of each run, failed requests the run with most of them.
    """
    recorded = _select_recorded_samples(rule, side)
    if rule.name == OUT_OF_MEMORY:
        return {key: _select_worst_run(metric) for key, metric in recorded.items()}
    if rule.kind.exact and rule.kind.pieces == "max":
        return {key: _select_peak_steps(metric) for key, metric in recorded.items()}
    return recorded


def _select_recorded_samples(rule: GateRule, side: ComparedSide) -> dict[Key, MetricSamples]:
    """Select the samples of a rule's metric as recorded, by role."""
    metrics = _compute_idle_shares(side) if rule.name == IDLE_SHARE else side.samples
    of_rule: dict[Key, MetricSamples] = {
        (name, role, stage): metric
        for (name, role, stage), metric in metrics.items()
        if name == rule.name and rule.role in (None, role)
    }
    meant = None
    if rule.stage is not None:
        named: dict[Key, MetricSamples] = {
            (name, role, stage): metric
            for (name, role, stage), metric in of_rule.items()
            if stage in (rule.stage, get_canonical_stage(rule.stage, role))
        }
        if named:
            return named
        meant = STAGE_ALIASES.get(rule.stage, "")
    return {key: metric for key, metric in of_rule.items() if key[2] == meant}


def list_stage_aliases(stage: str, role: str | None) -> set[str]:
    """List the names under which a rule's stage may be recorded."""
    return {stage, get_canonical_stage(stage, role), STAGE_ALIASES.get(stage, stage)}


def _select_peak_steps(metric: MetricSamples) -> MetricSamples:
    """Select the highest step of every run: the memory that the run needs on the device."""
    steps: list[tuple[StepId, ...]] = []
    values: list[tuple[float, ...]] = []
    for run_steps, run_values in zip(metric.steps, metric.values, strict=True):
        highest = run_values.index(max(run_values))
        steps.append((run_steps[highest],))
        values.append((run_values[highest],))
    return replace(metric, steps=tuple(steps), values=tuple(values))


def _select_worst_run(metric: MetricSamples) -> MetricSamples:
    """Select the run with the highest sum; runs without OOM do not offset one that ran out."""
    sums = [sum(values) for values in metric.values]
    worst = sums.index(max(sums))
    first_step = metric.steps[worst][:1]
    return MetricSamples(metric.key, (metric.runs[worst],), (first_step,), ((sums[worst],),))


def _compute_idle_shares(side: ComparedSide) -> dict[Key, MetricSamples]:
    """Compute the idle share of every step with known busy and idle time."""
    shares: dict[Key, MetricSamples] = {}
    for (name, role, stage), idle in side.samples.items():
        busy = side.samples.get(("gpu_busy", role, stage))
        if name != "gpu_idle" or busy is None:
            continue
        share = _compute_idle_share((IDLE_SHARE, role, stage), idle, busy)
        if share.runs:
            shares[share.key] = share
    return shares


def _compute_idle_share(key: Key, idle: MetricSamples, busy: MetricSamples) -> MetricSamples:
    """Compute idle / (busy + idle) per step; runs without a step that has both are left out."""
    busy_ns: dict[StepId, float] = {}
    for step_ids, values in zip(busy.steps, busy.values, strict=True):
        busy_ns.update(zip(step_ids, values, strict=True))
    runs, steps, shares = [], [], []
    for run, step_ids, values in zip(idle.runs, idle.steps, idle.values, strict=True):
        of_run = {}
        for step, idle_ns in zip(step_ids, values, strict=True):
            if step in busy_ns and idle_ns + busy_ns[step] > 0:
                of_run[step] = idle_ns / (idle_ns + busy_ns[step])
        if of_run:
            runs.append(run)
            steps.append(tuple(of_run))
            shares.append(tuple(of_run.values()))
    return MetricSamples(key, tuple(runs), tuple(steps), tuple(shares))


def _make_undecided_gate(rule: GateRule, metric: str, outcome: Outcome, claim: str = "") -> Gate:
    """Make the gate of one rule before any number is tested."""
    return Gate(
        rule=str(rule),
        metric=metric,
        outcome=outcome,
        severity=rule.severity,
        claim=claim,
        limit=rule.limit,
        unit=rule.unit,
        metric_unit=rule.kind.unit,
        point=rule.point,
    )


def _make_untested_gate(rule: GateRule, metric: str, reason: str) -> Gate:
    """Make the gate of a rule that could not be tested, with the reason; it never passes."""
    return _make_undecided_gate(rule, metric, "not tested", f"{metric} was not tested: {reason}")


def _judge_gated_change(
    rule: GateRule, metric: str, base: MetricSamples, opt: MetricSamples, choices: ComparisonChoices
) -> _JudgedGate:
    """Test a change against its limit: exactly, by the interval, or by the estimate."""
    before, after = base.values, opt.values
    if rule.kind.exact:
        before, after = _reduce_to_common_mean(base), _reduce_to_common_mean(opt)
    numbers = compare_exact(before, after)
    gate = _make_undecided_gate(rule, metric, "inconclusive")
    gate = replace(gate, base=numbers.base, opt=numbers.opt)
    worse = _measure_worsening(numbers.base, numbers.opt, rule)
    if rule.kind.exact and numbers.equal is not None:
        return _JudgedGate(_decide_gate_by_estimate(gate, rule, worse))
    if not (is_all_positive(base) and is_all_positive(opt)):
        if rule.point:
            return _JudgedGate(_decide_gate_by_estimate(gate, rule, worse))
        if rule.name in ENGINE_METRICS:
            return _JudgedGate(_decide_engine_gate(gate, rule, base, opt, choices))
        gate = replace(gate, caveats=("zero in some steps: no interval",))
        return _JudgedGate(_set_gate_outcome(gate, rule, worse, "inconclusive"))
    ratio, _ = compute_metric_speedup(base, opt, choices)
    gate = replace(gate, base=ratio.base.mean, opt=ratio.opt.mean)
    return _decide_gate_by_interval(gate, rule, ratio, choices)


def _decide_engine_gate(
    gate: Gate, rule: GateRule, base: MetricSamples, opt: MetricSamples, choices: ComparisonChoices
) -> Gate:
    """Decide a gate on a metric of engines that is zero in some windows by the interval of the difference."""
    found = compare_means(base.values, opt.values, level=choices.level)
    worse = _measure_worsening(found.base, found.opt, rule)
    if found.low is None or found.high is None:
        return (
            _decide_gate_by_estimate(gate, rule, worse)
            if not worse
            else _set_gate_outcome(gate, rule, worse, "inconclusive")
        )
    scale = found.base if rule.unit == "ratio" else 1.0
    if scale <= 0:
        caveats = ("zero before: a share has no meaning, give a limit as a number",)
        return _set_gate_outcome(replace(gate, caveats=caveats), rule, worse, "inconclusive")
    low, high = sorted(end * rule.sign / scale for end in (found.low, found.high))
    outcome: Outcome = "inconclusive"
    if low > rule.limit:
        outcome = "fail"
    elif high <= rule.limit:
        outcome = "pass"
    if min(len(base.runs), len(opt.runs)) < 2 and not choices.assume_independent_steps:
        outcome, gate = "inconclusive", replace(gate, caveats=(CAPS["one run each"],))
    return _set_gate_outcome(replace(gate, low=low, high=high), rule, worse, outcome)


def _decide_gate_by_estimate(gate: Gate, rule: GateRule, worse: float) -> Gate:
    """Decide a gate by the estimated worsening alone."""
    return _set_gate_outcome(gate, rule, worse, "fail" if worse > rule.limit else "pass")


def _reduce_to_common_mean(metric: MetricSamples) -> tuple[tuple[float, ...], ...]:
    """Reduce exact numbers to their mean if all runs have the same one; else keep them."""
    means = {sum(run) / len(run) for run in metric.values}
    if len(metric.values) > 1 and len(means) == 1:
        return (tuple(means),)
    return metric.values


def _decide_gate_by_interval(gate: Gate, rule: GateRule, ratio: Speedup, choices: ComparisonChoices) -> _JudgedGate:
    """Decide a gate on numbers that vary by the whole interval, or by the estimate."""
    scale = 1.0 if rule.unit == "ratio" else ratio.base.mean
    worse = _worsen_by_ratio(ratio.ratio, rule) * scale
    if ratio.low is not None and ratio.high is not None:
        ends = _worsen_by_ratio(ratio.low, rule) * scale, _worsen_by_ratio(ratio.high, rule) * scale
        gate = replace(gate, low=min(ends), high=max(ends))
    if rule.point:
        return _JudgedGate(_decide_gate_by_estimate(gate, rule, worse))
    share = rule.limit / scale
    if not rule.rise and share >= 1:
        return _JudgedGate(_set_gate_outcome(gate, rule, worse, "pass"))
    judgement = choose_verdict(
        ratio,
        min_effect=share if rule.rise else 1 / (1 - share) - 1,
        better="lower" if rule.rise else "higher",
        assume_independent_steps=choices.assume_independent_steps,
    )
    caps = list_caps(ratio, choices.assume_independent_steps)
    if gate.high is None:
        caps = judgement.caps
    outcome: Outcome = "inconclusive"
    if judgement.word == "regression":
        outcome = "fail"
    # Calibrated noise may be wider than the limit; then only a change beyond the noise fails.
    elif not caps and _is_within_limit(gate.high, share, scale, rise=rule.rise):
        outcome = "pass"
    if judgement.uncapped == "regression":
        caps = (*caps, *judgement.caps)
    gate = replace(gate, caveats=describe_caps(dict.fromkeys(caps), ratio))
    return _JudgedGate(_set_gate_outcome(gate, rule, worse, outcome), judgement)


def _worsen_by_ratio(ratio: float, rule: GateRule) -> float:
    """Convert a ratio of before over after to a change for the worse, as a share."""
    return (1 / ratio - 1) * rule.sign


def _is_within_limit(high: float | None, share: float, scale: float, *, rise: bool) -> bool:
    """Check whether the worse end of an interval is known and within the limit, a share, on the log scale."""
    return high is not None and _to_log_scale(high / scale, rise=rise) <= _to_log_scale(share, rise=rise)


def _to_log_scale(share: float, *, rise: bool) -> float:
    """Convert a change for the worse to the log scale."""
    if rise:
        return log1p(share)
    return -log1p(-share) if share < 1 else inf


def _measure_worsening(base: float, opt: float, rule: GateRule) -> float:
    """Compute the change for the worse in the unit of the rule; a change from zero exceeds every share."""
    worse = (opt - base) if rule.rise else (base - opt)
    if rule.unit != "ratio" or not worse:
        return worse
    if abs(base) < _LEAST_BASE:
        return copysign(inf, worse)
    return worse / base


def _judge_budget(rule: GateRule, metric: str, opt: MetricSamples, choices: ComparisonChoices) -> _JudgedGate:
    """Test the second side's own number against a limit: the worst exact number, else the mean."""
    number = estimate_side(opt.values, level=choices.level)
    if rule.kind.exact:
        value, low, high = number.most if rule.rise else number.least, None, None
    else:
        value, low, high = number.mean, number.low, number.high
    gate = replace(_make_undecided_gate(rule, metric, "inconclusive"), value=value, low=low, high=high, opt=value)
    outcome: Outcome = "pass"
    if value * rule.sign > rule.limit * rule.sign:
        outcome = "fail"
    no_spread = number.sd == 0 and number.n > 1
    judgement = None
    if not (rule.kind.exact or rule.point or no_spread):
        if low is None or high is None:
            outcome = "inconclusive"
            gate = replace(gate, caveats=(CAPS["no interval"],))
        elif low <= rule.limit <= high:
            outcome = "inconclusive"
        elif len(opt.runs) == 1 and not choices.assume_independent_steps:
            outcome = "inconclusive"
            gate = replace(gate, caveats=(CAPS["one run alone"],))
        if outcome == "fail":
            judgement = _make_budget_verdict(rule, number)
    return _JudgedGate(replace(gate, outcome=outcome, claim=_describe_budget(gate, rule)), judgement)


def _make_budget_verdict(rule: GateRule, number: Estimate) -> ComparisonVerdict | None:
    """Make the verdict of a broken budget for Holm's correction."""
    if not number.se or number.df is None:
        return None
    away = abs(number.mean - rule.limit) / number.se
    p = min(2 * float(compute_t_tail(away, number.df)), 1.0)
    return ComparisonVerdict("regression", "regression", (), 0.0, None, p)


def _set_gate_outcome(gate: Gate, rule: GateRule, worse: float, outcome: Outcome) -> Gate:
    """Set the outcome of a gate and its claim."""
    low, high, value, limit = gate.low, gate.high, worse * rule.sign, rule.limit * rule.sign
    interval = ""
    if low is not None and high is not None:
        if not rule.rise:
            low, high = -high, -low
        interval = f" [{_format_signed_change(low, rule.unit)}, {_format_signed_change(high, rule.unit)}]"
    unit = rule.kind.unit
    numbers = f"{format_short_amount(gate.base, unit)} → {format_short_amount(gate.opt, unit)}"
    change = f"{_format_signed_change(value, rule.unit)}{interval}"
    return replace(
        gate,
        value=_drop_infinite_change(value),
        low=_drop_infinite_change(low),
        high=_drop_infinite_change(high),
        outcome=outcome,
        claim=f"{gate.metric} {change}, {numbers}; limit {_format_signed_change(limit, rule.unit)}",
    )


def _drop_infinite_change(value: float | None) -> float | None:
    """Drop an infinite value: a change from zero has no size as a share."""
    return None if value is None or abs(value) == inf else value


def _describe_budget(gate: Gate, rule: GateRule) -> str:
    """Describe a budget in one sentence."""
    interval = ""
    if gate.low is not None and gate.high is not None:
        interval = f" [{format_short_amount(gate.low, gate.unit)}, {format_short_amount(gate.high, gate.unit)}]"
    value, limit = (format_short_amount(gate.value, gate.unit), format_short_amount(rule.limit, gate.unit))
    return f"{gate.metric} is {value}{interval}; {rule.bound} {limit} is allowed"


def _format_signed_change(value: float, unit: Unit) -> str:
    """Format a change with its sign, as a share or an amount."""
    if abs(value) == inf:
        return "from zero"
    size = format_short_amount(abs(value), unit)
    if value < 0:
        return f"{MINUS}{size}"
    return f"+{size}" if value > 0 else size


def _accept_excused_gate(gate: Gate, rules: GateRules) -> Gate:
    """Mark a failed gate as accepted if an exception covers it today."""
    if gate.outcome != "fail":
        return gate
    for accept in rules.accepts:
        of_gate = accept.metric in (gate.metric, gate.metric.split(" (")[0])
        if of_gate and not _is_expired_exception(accept, rules):
            note = f"accepted until {accept.until.isoformat()}: {accept.reason}"
            return replace(gate, outcome="accepted", caveats=(*gate.caveats, note))
    return gate


def _is_expired_exception(accept: GateException, rules: GateRules) -> bool:
    """Check whether an exception has expired; it still applies on its last day."""
    assert rules.today is not None, "exceptions are judged by a day"
    return rules.today > accept.until


def _make_expired_gate(accept: GateException) -> Gate:
    """Make the gate of an expired exception, which must be renewed or removed."""
    return Gate(
        rule=f"accept {accept.metric} until {accept.until.isoformat()}",
        metric=accept.metric,
        outcome="expired",
        severity="error",
        claim=(
            f"the exception for {accept.metric} expired on {accept.until.isoformat()}"
            f" ({accept.reason}): renew it or remove it"
        ),
        limit=0.0,
        unit="",
        metric_unit="",
    )
