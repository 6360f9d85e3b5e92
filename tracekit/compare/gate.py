"""Does the second side stay within what was agreed? Every rule of a gate on every metric it names.

A rule fails only where the whole interval is beyond its limit, or with `point:` the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf, log1p
from typing import Literal

from tracekit.compare.changes import Choices, compared, step_key
from tracekit.compare.gate_rules import Accept, Rule, Rules, amount
from tracekit.compare.gate_samples import rule_samples, stage_names
from tracekit.compare.sides import Side
from tracekit.compare.work_units import of_whole_recording
from tracekit.job.metric_kinds import (
    OUT_OF_MEMORY,
    STAGE_TIME,
    STEP_TIME,
    UNPROFILED,
    UNPROFILED_STAGE,
    WINDOW,
    grows_with_work,
    titled,
)
from tracekit.job.samples import Samples
from tracekit.model.report import Gate, Outcome, Unit
from tracekit.model.stats.estimate import Estimate, estimate, t_tail
from tracekit.model.stats.speedup import Speedup, exact
from tracekit.model.stats.verdict import CAPS, Verdict, together, verdict, why_capped
from tracekit.model.units import MINUS

Overall = Literal["", "pass", "fail", "expired", "not comparable", "not tested", "inconclusive"]

MOST_STAGES = 20
"""So many stages are named where a rule asks for one that there is none of."""

_GRAVEST: tuple[Overall, ...] = ("fail", "expired", "not comparable", "not tested", "inconclusive")
"""Outcomes that are no pass, the gravest first."""

_LEAST_BASE = 1e-9


@dataclass(frozen=True, slots=True)
class _Judged:
    """One gate before all of them stand side by side, and what Holm's correction needs of it."""

    gate: Gate
    verdict: Verdict | None = None


def gates(
    rules: Rules,
    base: Side | None,
    opt: Side,
    choices: Choices,
    *,
    blocked: bool = False,
    uneven: bool = False,
) -> tuple[Gate, ...]:
    """Every rule's outcome, in the order of the rules, one for each role; then exceptions that ran out.

    Without a `base` only budgets are tested; where the sides must not be compared (`blocked`) as well, and
    where they did other work (`uneven`) of the times that grow with it.
    """
    judged = [
        one
        for rule in rules.rules
        for one in _rule(
            rule, base, opt, choices, blocked or (uneven and grows_with_work(rule.name))
        )
    ]
    tested = [one for one in judged if one.verdict is not None]
    corrected = dict(
        zip(
            map(id, tested),
            together([one.verdict for one in tested if one.verdict], level=choices.level),
            strict=True,
        )
    )
    found = []
    for one in judged:
        gate = one.gate
        if gate.outcome == "fail" and "many comparisons" in _caps(corrected.get(id(one))):
            gate = replace(
                gate,
                outcome="inconclusive",
                caveats=(*gate.caveats, CAPS["many comparisons"]),
            )
        found.append(_excused(gate, rules))
    return (*found, *(_expired(one) for one in rules.accepts if _is_over(one, rules)))


def overall(found: Sequence[Gate]) -> Overall:
    """The word for a whole gate: its gravest; rules that only warn have no say, and without rules there is none."""
    if not found:
        return ""
    outcomes = {gate.outcome for gate in found if gate.severity == "error"}
    return next((word for word in _GRAVEST if word in outcomes), "pass")


def _caps(found: Verdict | None) -> tuple[str, ...]:
    return found.caps if found else ()


def _rule(
    rule: Rule, base: Side | None, opt: Side, choices: Choices, blocked: bool
) -> Iterator[_Judged]:
    """One rule on each role that either side holds it for."""
    of_unit = ""
    if rule.name == STEP_TIME and not rule.stage:
        rule, of_unit = _of_answer(rule, base or opt, opt, choices)
    before = {} if base is None else rule_samples(rule, base)
    after = rule_samples(rule, opt)
    if rule.test == "change" and base is None:
        yield _Judged(_untested(rule, rule.metric, "a change needs a baseline"))
        return
    keys = sorted({*before, *after} if rule.test == "change" else after, key=str)
    if not keys:
        sides = (opt,) if rule.test == "budget" or base is None else (base, opt)
        reason = _failed(*sides) or _not_recorded(rule, sides)
        yield _Judged(_untested(rule, rule.metric, reason))
    roles = {key[1] for key in keys}
    for key in keys:
        metric = f"{rule.metric} ({key[1]})" if len(roles) > 1 and key[1] else rule.metric
        metric += of_unit
        mine = after.get(key)
        given = [side for side in (base, opt) if side is not None]
        if rule.name != WINDOW and any(of_whole_recording(key, side) for side in given):
            yield _Judged(_untested(rule, metric, "without step marks it is of a whole recording"))
        elif rule.test == "budget" and mine is not None:
            yield _budget(rule, metric, mine, choices)
        elif blocked:
            gate = _untested(rule, metric, "the sides must not be compared")
            yield _Judged(replace(gate, outcome="not comparable"))
        elif (first := before.get(key)) is None or mine is None:
            side = opt if mine is None or base is None else base
            reason = _failed(side) or f"it was not recorded in {side.name}"
            yield _Judged(_untested(rule, metric, reason))
        else:
            yield _change(rule, metric, first, mine, choices)


def _of_answer(rule: Rule, base: Side, opt: Side, choices: Choices) -> tuple[Rule, str]:
    """(a rule on the step as one on what the answer is of, what to add to its name): a budget is of steps alone."""
    name, role, stage = step_key(base, opt, force=choices.force)
    if name in (STEP_TIME, UNPROFILED):
        return replace(rule, name=name), ""
    if rule.test == "budget":
        return rule, ""
    return replace(rule, name=name, role=role, stage=stage), f" ({titled(name, stage)})"


def _not_recorded(rule: Rule, sides: Sequence[Side]) -> str:
    """Why a rule finds nothing: a stage that there is none of, or a metric that these sides do not hold."""
    if rule.name == OUT_OF_MEMORY:
        return "no profile that was given records whether memory ran out"
    recorded = {str(key[2]) for side in sides for key in side.samples if key[2] is not None}
    if rule.stage and not recorded & stage_names(rule.stage, rule.role):
        timed = [STAGE_TIME, UNPROFILED_STAGE]
        stages = {str(key[2]) for side in sides for key in side.samples if key[0] in timed}
        return f"no stage is called {rule.stage}: {_listed(rule.stage, sorted(stages))}"
    return f"it was not recorded in {'either side' if len(sides) > 1 else sides[0].name}"


def _listed(name: str, stages: Sequence[str]) -> str:
    """The stages that there are, the one first that may have been meant."""
    if not stages:
        return "none was recorded"
    near = get_close_matches(name, stages, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    rest = f" and {len(stages) - MOST_STAGES} more" if len(stages) > MOST_STAGES else ""
    return f"{meant}there are: {', '.join(stages[:MOST_STAGES])}{rest}"


def _failed(*sides: Side) -> str:
    """What tracekit failed at where a metric is missing: it may have been recorded."""
    errors = [f"{side.name}: {error}" for side in sides for error in side.errors]
    return f"an error of tracekit may have left it out ({errors[0]})" if errors else ""


def _change(rule: Rule, metric: str, base: Samples, opt: Samples, choices: Choices) -> _Judged:
    """A change held against its limit: exactly, by the interval, or by the estimate."""
    sides = (base.values, opt.values)
    if rule.kind.exact:
        sides = (_fixed(base), _fixed(opt))
    numbers = exact(*sides)
    gate = Gate(
        rule=str(rule),
        metric=metric,
        outcome="inconclusive",
        severity=rule.severity,
        claim="",
        limit=rule.limit,
        unit=rule.unit,
        metric_unit=rule.kind.unit,
        base=numbers.base,
        opt=numbers.opt,
        point=rule.point,
    )
    if rule.kind.exact and numbers.equal is not None:
        worse = _share(numbers.base, numbers.opt, rule)
        return _Judged(_told(gate, rule, worse, "fail" if worse > rule.limit else "pass"))
    if not all(value > 0 for one in (base, opt) for run in one.values for value in run):
        worse = _share(numbers.base, numbers.opt, rule)
        if rule.point:
            return _Judged(_told(gate, rule, worse, "fail" if worse > rule.limit else "pass"))
        note = "zero in some steps: no interval"
        return _Judged(_told(replace(gate, caveats=(note,)), rule, worse, "inconclusive"))
    found, _ = compared(base, opt, choices)
    gate = replace(gate, base=found.base.mean, opt=found.opt.mean)
    return _by_interval(gate, rule, found, choices)


def _fixed(found: Samples) -> tuple[tuple[float, ...], ...]:
    """Exact numbers as they are; where their steps differ but all runs have one mean, that mean."""
    means = [sum(run) / len(run) for run in found.values]
    return ((means[0],),) if len(means) > 1 and len(set(means)) == 1 else found.values


def _by_interval(gate: Gate, rule: Rule, found: Speedup, choices: Choices) -> _Judged:
    """A change of numbers that vary, by the whole interval or by the estimate."""
    scale = 1.0 if rule.unit == "ratio" else found.base.mean
    sign = 1 if rule.rise else -1
    worse = sign * (1 / found.ratio - 1) * scale
    if found.low is not None and found.high is not None:
        ends = sorted(sign * (1 / end - 1) * scale for end in (found.low, found.high))
        gate = replace(gate, low=ends[0], high=ends[1])
    if rule.point:
        return _Judged(_told(gate, rule, worse, "fail" if worse > rule.limit else "pass"))
    share = rule.limit / scale
    if not rule.rise and share >= 1:
        return _Judged(_told(gate, rule, worse, "pass"))
    said = verdict(
        found,
        min_effect=share if rule.rise else 1 / (1 - share) - 1,
        better="lower" if rule.rise else "higher",
        assume_independent_steps=choices.assume_independent_steps,
    )
    caps = why_capped(found, choices.assume_independent_steps)
    if gate.high is None:
        caps = said.caps
    # Noise that was calibrated may be wider than the limit: then only what exceeds it fails.
    least = log1p(share) if rule.rise else -log1p(-share)
    outcome: Outcome = "inconclusive"
    if said.word == "regression":
        outcome = "fail"
    elif not caps and gate.high is not None and _logs(gate.high / scale, rule.rise) <= least:
        outcome = "pass"
    unsure = said.caps if said.uncapped == "regression" else ()
    gate = replace(gate, caveats=tuple(CAPS[cap] for cap in dict.fromkeys((*caps, *unsure))))
    return _Judged(_told(gate, rule, worse, outcome), said)


def _logs(share: float, rise: bool) -> float:
    """A change for the worse on the log scale."""
    return log1p(share) if rise else -log1p(-share) if share < 1 else inf


def _share(base: float, opt: float, rule: Rule) -> float:
    """The change for the worse in the unit of the rule; from zero every share is exceeded."""
    worse = (opt - base) if rule.rise else (base - opt)
    if rule.unit != "ratio" or not worse:
        return worse
    if abs(base) < _LEAST_BASE:
        return inf if worse > 0 else -inf
    return worse / base


def _budget(rule: Rule, metric: str, opt: Samples, choices: Choices) -> _Judged:
    """The second side's own number held against a limit: the worst of exact ones, else the mean."""
    found = estimate(opt.values, level=choices.level)
    worst = rule.kind.exact
    value = (found.most if rule.rise else found.least) if worst else found.mean
    gate = Gate(
        rule=str(rule),
        metric=metric,
        outcome="inconclusive",
        severity=rule.severity,
        claim="",
        limit=rule.limit,
        unit=rule.unit,
        metric_unit=rule.kind.unit,
        value=value,
        low=None if worst else found.low,
        high=None if worst else found.high,
        opt=value,
        point=rule.point,
    )
    beyond = value > rule.limit if rule.rise else value < rule.limit
    fixed = found.sd == 0 and found.n > 1
    outcome: Outcome = "fail" if beyond else "pass"
    said = None
    if not (worst or rule.point or fixed):
        if found.low is None or found.high is None:
            outcome = "inconclusive"
            gate = replace(gate, caveats=(CAPS["no interval"],))
        elif found.low <= rule.limit <= found.high:
            outcome = "inconclusive"
        said = _of_budget(rule, found) if outcome == "fail" else None
    return _Judged(replace(gate, outcome=outcome, claim=_budget_claim(gate, rule)), said)


def _of_budget(rule: Rule, found: Estimate) -> Verdict | None:
    """A broken budget as Holm's correction takes it."""
    if not found.se or found.df is None:
        return None
    away = abs(found.mean - rule.limit) / found.se
    p = min(2 * float(t_tail(away, found.df)), 1.0)
    return Verdict("regression", "regression", (), 0.0, None, p)


def _told(gate: Gate, rule: Rule, worse: float, outcome: Outcome) -> Gate:
    """The gate with its outcome and the sentence for it."""
    value = worse if rule.rise else -worse
    low, high = (gate.low, gate.high) if rule.rise else (_minus(gate.high), _minus(gate.low))
    interval = (
        "" if low is None or high is None else f" [{_signed(low, rule)}, {_signed(high, rule)}]"
    )
    unit = rule.kind.unit
    numbers = f"{amount(gate.base, unit)} → {amount(gate.opt, unit)}"
    limit = _signed(rule.limit if rule.rise else -rule.limit, rule)
    claim = f"{gate.metric} {_signed(value, rule)}{interval}, {numbers}; limit {limit}"
    return replace(
        gate,
        value=_finite(value),
        low=_finite(low),
        high=_finite(high),
        outcome=outcome,
        claim=claim,
    )


def _finite(value: float | None) -> float | None:
    """The number; None for a change from zero, which has no size as a share."""
    return None if value is None or abs(value) == inf else value


def _budget_claim(gate: Gate, rule: Rule) -> str:
    """A budget in one sentence."""
    interval = ""
    if gate.low is not None and gate.high is not None:
        interval = f" [{amount(gate.low, gate.unit)}, {amount(gate.high, gate.unit)}]"
    bound = "at most" if rule.rise else "at least"
    value = amount(gate.value, gate.unit)
    return f"{gate.metric} is {value}{interval}; {bound} {amount(rule.limit, gate.unit)} is allowed"


def _signed(value: float, rule: Rule) -> str:
    """A change with its sign, as a share or an amount."""
    if abs(value) == inf:
        return "from zero"
    sign = MINUS if value < 0 else "+" if value > 0 else ""
    unit: Unit = rule.unit
    return sign + amount(abs(value), unit)


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _untested(rule: Rule, metric: str, reason: str) -> Gate:
    """A rule that could not be held against anything, and why: never a pass."""
    return Gate(
        rule=str(rule),
        metric=metric,
        outcome="not tested",
        severity=rule.severity,
        claim=f"{metric} was not tested: {reason}",
        limit=rule.limit,
        unit=rule.unit,
        metric_unit=rule.kind.unit,
        point=rule.point,
    )


def _excused(gate: Gate, rules: Rules) -> Gate:
    """The gate, as accepted where somebody lets its breach pass today."""
    if gate.outcome != "fail":
        return gate
    for accept in rules.accepts:
        if accept.metric in (gate.metric, gate.metric.split(" (")[0]) and not _is_over(
            accept, rules
        ):
            note = f"accepted until {accept.until.isoformat()}: {accept.reason}"
            return replace(gate, outcome="accepted", caveats=(*gate.caveats, note))
    return gate


def _is_over(accept: Accept, rules: Rules) -> bool:
    """Whether an exception ran out; it still counts on its last day."""
    assert rules.today is not None, "exceptions are judged by a day"
    return rules.today > accept.until


def _expired(accept: Accept) -> Gate:
    """The exception that ran out, which has to be renewed or removed."""
    return Gate(
        rule=f"accept {accept.metric} until {accept.until.isoformat()}",
        metric=accept.metric,
        outcome="expired",
        severity="error",
        claim=(
            f"what was accepted of {accept.metric} ran out on {accept.until.isoformat()}"
            f" ({accept.reason}): renew it or remove it"
        ),
        limit=0.0,
        unit="",
        metric_unit="",
    )
