"""Self-test of a gate: one side compared with a copy that is slowed on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from tracekit.compare.changes import Choices, step_key
from tracekit.compare.gate import gates, overall
from tracekit.compare.gate_rules import IDLE_SHARE, KINDS, Rule, Rules
from tracekit.compare.sides import Side
from tracekit.model.metrics import STEP_TIME, UNPROFILED
from tracekit.model.records import dataclass
from tracekit.model.report import Gate

SLOWED = 0.2
"""Share by which the step times of the second side are longer."""

ABSURD = 1_000.0
"""Factor for a hopeless regression: a rule that passes even this can never fail."""


@dataclass(frozen=True, slots=True)
class Tested:
    """One rule: its outcome for steps slowed by 20 %, and whether it can fail, with the reason if it cannot.

    `already`: it fails without slowing too, so its failure does not show that it detects the slowdown.
    """

    slowed: tuple[Gate, ...]
    can_fail: bool
    reason: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Outcome of a gate for slowed step times, rule by rule; `fails` should be true."""

    fails: bool
    rules: tuple[Tested, ...]

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All outcomes for slowed step times."""
        return tuple(gate for rule in self.rules for gate in rule.slowed)


def self_test(rules: Rules, base: Side, choices: Choices) -> SelfTest:
    """Apply a gate to steps slowed by 20 %, without its exceptions.

    A rule can fail if it fails when its own metric alone is a thousand times worse.
    """
    plain = replace(rules, accepts=())
    slowed = worse(base, dict.fromkeys(_answered(base), 1 + SLOWED))
    before = gates(plain, base, base, choices)
    after = gates(plain, base, slowed, choices)
    tested = tuple(_tested(rule, base, slowed, choices) for rule in plain.rules)
    new_errors = [
        gate
        for gate, unslowed in zip(after, before, strict=True)
        if gate.severity == "error" and gate.outcome == "fail" and unslowed.outcome != "fail"
    ]
    return SelfTest(overall(after) == "fail" and bool(new_errors), tested)


def worse(side: Side, factors: Mapping[str, float]) -> Side:
    """Multiply the named metrics in all steps of all runs."""
    return _changed(side, factors, lambda name, value: value * factors[name])


def _changed(side: Side, names: Collection[str], change: Callable[[str, float], float]) -> Side:
    """Apply `change` to the named metrics in all steps of all runs."""
    samples = dict(side.samples)
    for key, metric in side.samples.items():
        if key[0] in names:
            runs = [tuple(change(key[0], value) for value in run) for run in metric.values]
            samples[key] = replace(metric, values=tuple(runs))
    return replace(side, samples=samples)


def _tested(rule: Rule, base: Side, slowed: Side, choices: Choices) -> Tested:
    """Test one rule alone on the slowed side, and on one that is absurdly worse."""
    single = Rules((rule,))
    absurd = gates(single, base, _absurd(rule, base), choices)
    fails = _fails(absurd)
    reason = ""
    if rule.severity != "error":
        reason = "it only warns"
    elif not fails:
        reason = "; ".join(dict.fromkeys(map(_why_not, absurd)))
    return Tested(
        gates(single, base, slowed, choices),
        fails and rule.severity == "error",
        reason,
        already=_fails(gates(single, base, base, choices)),
    )


def _fails(outcomes: Iterable[Gate]) -> bool:
    return any(gate.outcome == "fail" for gate in outcomes)


def _why_not(gate: Gate) -> str:
    """Explain why a gate does not fail."""
    return ", ".join(gate.caveats) if gate.outcome == "inconclusive" else gate.claim


def _absurd(rule: Rule, base: Side) -> Side:
    """Make the metric of a rule a thousand times worse."""
    if rule.name == IDLE_SHARE:
        return worse(base, {"gpu_idle": ABSURD, "gpu_busy": 1 / ABSURD})
    names = _answered(base) if rule.name == STEP_TIME else {rule.name}
    factor = ABSURD if rule.rise else 1 / ABSURD
    return _lifted(worse(base, dict.fromkeys(names, factor)), names, rule)


def _answered(side: Side) -> set[str]:
    """List the possible headline metrics: the step, or the unit compared without step marks."""
    return {STEP_TIME, UNPROFILED, step_key(side, side)[0]}


def _lifted(side: Side, names: Collection[str], rule: Rule) -> Side:
    """Raise zeros of the named metrics above zero, because scaling cannot make zero worse."""
    if not rule.rise or not KINDS[rule.name].exact:
        return side
    lift = 1.0 if rule.unit == "ratio" else 2 * rule.limit + 1.0
    return _changed(side, names, lambda _, value: value + lift)
