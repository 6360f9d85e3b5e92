"""What a side holds of the metric that a rule of a gate is about."""

from __future__ import annotations

from dataclasses import replace

from tracekit.compare.gate_rules import IDLE_SHARE, STAGES, Rule
from tracekit.compare.sides import Side
from tracekit.job.metric_kinds import OUT_OF_MEMORY
from tracekit.job.samples import Key, Samples
from tracekit.model.stages import canonical


def rule_samples(rule: Rule, side: Side) -> dict[Key, Samples]:
    """What a side holds of a rule's metric, by role; a stage may be named as recorded or as known.

    Of levels of memory it is the highest of each run, and of failed requests the run with most of them.
    """
    found = _of_rule(rule, side)
    if rule.name == OUT_OF_MEMORY:
        return {key: _worst_run(one) for key, one in found.items()}
    if rule.kind.exact and rule.kind.pieces == "max":
        return {key: _highest(one) for key, one in found.items()}
    return found


def _highest(found: Samples) -> Samples:
    """The highest step of every run: what a run needs of the device."""
    at = [values.index(max(values)) for values in found.values]
    return replace(
        found,
        steps=tuple((steps[n],) for n, steps in zip(at, found.steps, strict=True)),
        values=tuple((values[n],) for n, values in zip(at, found.values, strict=True)),
    )


def _worst_run(found: Samples) -> Samples:
    """The run with most, alone: one that ran out is not made up for by others that did not."""
    sums = [sum(values) for values in found.values]
    at = sums.index(max(sums))
    return Samples(found.key, (found.runs[at],), (found.steps[at][:1],), ((sums[at],),))


def _of_rule(rule: Rule, side: Side) -> dict[Key, Samples]:
    """The samples of a rule's metric as they were recorded, by role."""
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


def stage_names(stage: str, role: str | None) -> set[str]:
    """The names by which a stage of a rule may have been recorded."""
    return {stage, canonical(stage, role), STAGES.get(stage, stage)}


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
