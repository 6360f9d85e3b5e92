"""Self-test of a gate: one side compared with a copy that is slowed on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from tracekit.compare.changes import ComparisonChoices, choose_headline_metric
from tracekit.compare.gate_rules import IDLE_SHARE, RULE_METRICS, GateRule, GateRules
from tracekit.compare.gates.outcomes import apply_gate_rules, summarize_gates
from tracekit.compare.sides import ComparedSide
from tracekit.model.metrics import STEP_TIME, UNPROFILED
from tracekit.model.records import dataclass
from tracekit.model.report import Gate

SLOWED = 0.2
"""Share by which the step times of the second side are longer."""

ABSURD_FACTOR = 1_000.0
"""Factor for a hopeless regression: a rule that passes even this can never fail."""


@dataclass(frozen=True, slots=True)
class SelfTestedRule:
    """One rule: its outcome for steps slowed by 20 %, and whether it can fail, with the reason if it cannot.

    `only_warns`: its failure does not count. `already`: it fails without slowing too, so its failure does not show
    that it detects the slowdown.
    """

    slowed: tuple[Gate, ...]
    can_fail: bool
    reason: str
    already: bool = False
    only_warns: bool = False


@dataclass(frozen=True, slots=True)
class GateSelfTest:
    """Outcome of a gate for slowed step times, rule by rule; `fails` should be true."""

    fails: bool
    rules: tuple[SelfTestedRule, ...]

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All outcomes for slowed step times."""
        return tuple(gate for rule in self.rules for gate in rule.slowed)


def run_gate_self_test(rules: GateRules, base: ComparedSide, choices: ComparisonChoices) -> GateSelfTest:
    """Apply a gate to steps slowed by 20 %, without its exceptions.

    A rule can fail if it fails when its own metric alone is a thousand times worse.
    """
    plain = replace(rules, accepts=())
    slowed = scale_metrics(base, dict.fromkeys(_list_headline_metrics(base), 1 + SLOWED))
    before = apply_gate_rules(plain, base, base, choices)
    after = apply_gate_rules(plain, base, slowed, choices)
    tested = tuple(_self_test_rule(rule, base, slowed, choices) for rule in plain.rules)
    new_errors = [
        gate
        for gate, unslowed in zip(after, before, strict=True)
        if gate.severity == "error" and gate.outcome == "fail" and unslowed.outcome != "fail"
    ]
    return GateSelfTest(summarize_gates(after) == "fail" and bool(new_errors), tested)


def scale_metrics(side: ComparedSide, factors: Mapping[str, float]) -> ComparedSide:
    """Multiply the named metrics in all steps of all runs."""
    return _change_metric_values(side, factors, lambda name, value: value * factors[name])


def _change_metric_values(
    side: ComparedSide, names: Collection[str], change: Callable[[str, float], float]
) -> ComparedSide:
    """Apply `change` to the named metrics in all steps of all runs."""
    samples = dict(side.samples)
    for key, metric in side.samples.items():
        if key[0] in names:
            runs = [tuple(change(key[0], value) for value in run) for run in metric.values]
            samples[key] = replace(metric, values=tuple(runs))
    return replace(side, samples=samples)


def _self_test_rule(
    rule: GateRule, base: ComparedSide, slowed: ComparedSide, choices: ComparisonChoices
) -> SelfTestedRule:
    """Test one rule alone on the slowed side, and on one that is absurdly worse."""
    single = GateRules((rule,))
    absurd = apply_gate_rules(single, base, _make_absurd_side(rule, base), choices)
    fails = _has_failed_gate(absurd)
    reason = ""
    if not fails:
        reason = "; ".join(dict.fromkeys(_explain_missing_failure(gate) for gate in absurd))
    return SelfTestedRule(
        apply_gate_rules(single, base, slowed, choices),
        fails,
        reason,
        already=_has_failed_gate(apply_gate_rules(single, base, base, choices)),
        only_warns=rule.severity != "error",
    )


def _has_failed_gate(outcomes: Iterable[Gate]) -> bool:
    return any(gate.outcome == "fail" for gate in outcomes)


def _explain_missing_failure(gate: Gate) -> str:
    """Explain why a gate does not fail."""
    return ", ".join(gate.caveats) if gate.outcome == "inconclusive" else gate.claim


def _make_absurd_side(rule: GateRule, base: ComparedSide) -> ComparedSide:
    """Make the metric of a rule a thousand times worse."""
    if rule.name == IDLE_SHARE:
        return scale_metrics(base, {"gpu_idle": ABSURD_FACTOR, "gpu_busy": 1 / ABSURD_FACTOR})
    names = _list_headline_metrics(base) if rule.name == STEP_TIME else {rule.name}
    factor = ABSURD_FACTOR if rule.rise else 1 / ABSURD_FACTOR
    return _lift_zero_metrics(scale_metrics(base, dict.fromkeys(names, factor)), names, rule)


def _list_headline_metrics(side: ComparedSide) -> set[str]:
    """List the possible headline metrics: the step, or the unit compared without step marks."""
    return {STEP_TIME, UNPROFILED, choose_headline_metric(side, side)[0]}


def _lift_zero_metrics(side: ComparedSide, names: Collection[str], rule: GateRule) -> ComparedSide:
    """Raise zeros of the named metrics above zero, because scaling cannot make zero worse."""
    if not rule.rise or not RULE_METRICS[rule.name].exact:
        return side
    lift = 1.0 if rule.unit == "ratio" else 2 * rule.limit + 1.0
    return _change_metric_values(side, names, lambda _, value: value + lift)
