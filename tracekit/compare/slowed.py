"""Can a gate fail at all? One side held against itself, made worse on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracekit.compare.changes import Choices, step_key
from tracekit.compare.gate import gates, overall
from tracekit.compare.gate_rules import IDLE_SHARE, KINDS, Rule, Rules
from tracekit.compare.sides import Side
from tracekit.job.metric_kinds import STEP_TIME, UNPROFILED
from tracekit.job.samples import Samples
from tracekit.model.report import Gate

SLOWED = 0.2
"""The step times of the second side are longer by this share."""

ABSURD = 1_000.0
"""A rule that does not even fail where its metric is so many times worse can never fail."""


@dataclass(frozen=True, slots=True)
class Tested:
    """One rule: what it says of steps longer by 20 %, and whether it can fail, or why it cannot.

    `already` says that it fails as well where nothing is slowed: then it shows nothing of the slowing.
    """

    slowed: tuple[Gate, ...]
    can_fail: bool
    reason: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a gate says of slowed step times, rule by rule; `fails` is what it should."""

    fails: bool
    rules: tuple[Tested, ...]

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All that the rules say of slowed step times."""
        return tuple(gate for rule in self.rules for gate in rule.slowed)


def self_test(rules: Rules, base: Side, choices: Choices) -> SelfTest:
    """What the gate says where every step takes 20 % longer; exceptions are left aside.

    A rule can fail if it does where its own metric alone is a thousand times worse.
    """
    plain = replace(rules, accepts=())
    slowed = worse(base, dict.fromkeys(_answered(base), 1 + SLOWED))
    before = gates(plain, base, base, choices)
    said = gates(plain, base, slowed, choices)
    tested = tuple(_tested(rule, base, slowed, choices) for rule in plain.rules)
    noticed = overall(said) == "fail" and any(
        now.outcome == "fail" and now.severity == "error" and was.outcome != "fail"
        for was, now in zip(before, said, strict=True)
    )
    return SelfTest(noticed, tested)


def worse(side: Side, factors: Mapping[str, float]) -> Side:
    """The side with the named metrics multiplied, in all steps of all runs."""
    return replace(
        side,
        samples={
            key: _scaled(one, factors[key[0]]) if key[0] in factors else one
            for key, one in side.samples.items()
        },
    )


def _tested(rule: Rule, base: Side, slowed: Side, choices: Choices) -> Tested:
    """One rule alone, on the slowed side and on one that is absurdly worse."""
    alone = Rules((rule,))
    said = gates(alone, base, slowed, choices)
    absurd = gates(alone, base, _absurd(rule, base), choices)
    fails = any(gate.outcome == "fail" for gate in absurd)
    reason = ""
    if rule.severity != "error":
        reason = "it only warns"
    elif not fails:
        reason = "; ".join(
            dict.fromkeys(
                ", ".join(gate.caveats) if gate.outcome == "inconclusive" else gate.claim
                for gate in absurd
            )
        )
    already = any(gate.outcome == "fail" for gate in gates(alone, base, base, choices))
    return Tested(said, fails and rule.severity == "error", reason, already)


def _absurd(rule: Rule, base: Side) -> Side:
    """The base, a thousand times worse in what the rule is about."""
    if rule.name == IDLE_SHARE:
        return worse(base, {"gpu_idle": ABSURD, "gpu_busy": 1 / ABSURD})
    names = [*_answered(base)] if rule.name == STEP_TIME else [rule.name]
    factor = ABSURD if rule.rise else 1 / ABSURD
    return _lifted(worse(base, dict.fromkeys(names, factor)), names, rule)


def _answered(side: Side) -> set[str]:
    """The metrics that a comparison may answer of: the step, or what stands for it without step marks."""
    return {STEP_TIME, UNPROFILED, step_key(side, side)[0]}


def _lifted(side: Side, names: list[str], rule: Rule) -> Side:
    """The side with zeros of the named metrics made positive: nothing times a thousand is nothing."""
    if not rule.rise or not KINDS[rule.name].exact:
        return side
    lift = (2 * rule.limit if rule.unit != "ratio" else 0.0) + 1.0
    return replace(
        side,
        samples={
            key: _raised(one, lift) if key[0] in names else one for key, one in side.samples.items()
        },
    )


def _scaled(found: Samples, factor: float) -> Samples:
    return replace(
        found, values=tuple(tuple(value * factor for value in run) for run in found.values)
    )


def _raised(found: Samples, by: float) -> Samples:
    return replace(found, values=tuple(tuple(value + by for value in run) for run in found.values))
