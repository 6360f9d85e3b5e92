"""What a side holds of the metric that a rule of a gate is about."""

from __future__ import annotations

from tracekit.compare.gate_rules import IDLE_SHARE, STAGES, Rule
from tracekit.compare.sides import Side
from tracekit.samples import Key, Samples
from tracekit.stages import canonical


def rule_samples(rule: Rule, side: Side) -> dict[Key, Samples]:
    """What a side holds of a rule's metric, by role; a stage may be named as recorded or as known."""
    every = _idle_shares(side) if rule.name == IDLE_SHARE else side.samples
    mine = {
        key: one
        for key, one in every.items()
        if key[0] == rule.name and (rule.role is None or key[1] == rule.role)
    }
    if rule.stage is None:
        return {key: one for key, one in mine.items() if key[2] is None}
    named = {
        key: one
        for key, one in mine.items()
        if key[2] in (rule.stage, canonical(rule.stage, key[1]))
    }
    return named or {key: one for key, one in mine.items() if key[2] == STAGES.get(rule.stage, "")}


def _idle_shares(side: Side) -> dict[Key, Samples]:
    """Idle over busy and idle in every step that both are known of."""
    found: dict[Key, Samples] = {}
    for key, idle in side.samples.items():
        busy = side.samples.get(("gpu_busy", key[1], key[2]))
        if key[0] != "gpu_idle" or busy is None:
            continue
        known = {
            step: value
            for steps, values in zip(busy.steps, busy.values, strict=True)
            for step, value in zip(steps, values, strict=True)
        }
        runs = []
        for name, steps, values in zip(idle.runs, idle.steps, idle.values, strict=True):
            shares = [
                (step, value / (value + known[step]))
                for step, value in zip(steps, values, strict=True)
                if step in known and value + known[step] > 0
            ]
            if shares:
                runs.append((name, *zip(*shares, strict=True)))
        if runs:
            names, steps, values = zip(*runs, strict=True)
            mine = (IDLE_SHARE, key[1], key[2])
            found[mine] = Samples(mine, names, steps, values)
    return found
