"""What the findings of a simulated job are worth, compared with its truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.job_expected import ALLOWED, EXPECTED, Expectation, tells
from jobsim.recorded import NAMES
from jobsim.switches import SWITCHES

WITHIN, WORTH, NEARLY = 0.25, 0.015, 0.8
"""By how much an estimate may miss; the least share of the step that has to be named; the share of the costliest fault
from which another one may come first as well."""

BESIDE_STAGES = {"outside", "between", "edge", "no stage"}
"""Words for places that only stages show."""

Facts = dict[str, Any]


def score(kind: str, truth: Facts, findings: list[Facts]) -> Facts:
    """Score the findings of one job; `parts` has a score for each kind of fault that was planted."""
    loud = alarms(truth, findings)
    if truth["faults"][0].get("warm_up"):
        # Excluded steps give nothing back: to say so is information, and right where nothing else is said.
        loud = loud or [each for each in findings if each["rule"] == "start-up"]
    costs = truth.get("costs") or {kind: truth["all_faults_ns"]}
    parts = [_part(name, cost, truth, loud) for name, cost in costs.items()]
    most = max(costs.values())
    claimed, cost = sum(each["after"] or 0 for each in loud), truth["all_faults_ns"]
    return {
        "named": all(part["named"] for part in parts),
        "by_rule": all(part["by_rule"] for part in parts),
        "first": any(part["first"] for part in parts if part["cost"] >= NEARLY * most),
        "ratio": parts[0]["ratio"] if len(parts) == 1 else None,
        "claimed": claimed / cost if cost > 0 else None,
        "top": loud[0]["rule"] if loud else "silent",
        "parts": parts,
    }


def alarms(truth: Facts, findings: list[Facts]) -> list[Facts]:
    """Return the findings that say something is wrong."""
    allowed = ALLOWED.get(truth.get("switch", "none"), ())
    return [
        each
        for each in findings
        if each["severity"] != "info"
        and not any(rule in ("", each["rule"]) and words in each["words"] for rule, words in allowed)
    ]


def _part(kind: str, cost: int, truth: Facts, loud: list[Facts]) -> Facts:
    expected = expected_under(EXPECTED[kind], SWITCHES[truth.get("switch", "none")].unknown)
    own = [fault for fault in truth["faults"] if fault.get("kind", kind) == kind]
    fault = _renamed(own[0]) if truth.get("switch") == "renamed" else own[0]
    places = [text for text in expected.places if _is_known(text, fault, truth)]

    def by_rule(finding: Facts, rules: tuple[str, ...]) -> bool:
        return not expected.rules or finding["rule"] in rules

    def right(finding: Facts, rules: tuple[str, ...]) -> bool:
        return by_rule(finding, rules) and all(tells(finding["words"], text, fault) for text in places)  # fmt: skip

    causes = [each for each in loud if right(each, expected.rules)]
    naming = causes + [each for each in loud if right(each, expected.rules + expected.also)]
    ratio = None
    if naming and expected.estimated and cost > 0:
        ratio = estimate(naming[0]["rule"], loud, cost)
    return {
        "kind": kind,
        "cost": cost,
        "worth": bool(fault.get("warm_up")) or cost >= WORTH * truth["step_ns"],
        "priced": expected.estimated,
        "named": bool(naming),
        "by_rule": any(by_rule(each, expected.rules + expected.also) for each in loud),
        "first": bool(loud) and right(loud[0], expected.rules),
        "ratio": ratio,
    }


def estimate(rule: str, loud: list[Facts], cost: int) -> float | None:
    """Return the saving that the findings of a rule claim, over the cost.

    Findings on several roles add up as the report adds them: each with what it saves after those before it. One that is
    behind another still claims what it saves alone.
    """
    savings = [each for each in loud if each["rule"] == rule and each["ns"] is not None]
    if not savings:
        return None
    together = sum(each["after"] or 0 for each in savings)
    return max(together, *(each["ns"] for each in savings)) / cost


def _renamed(fault: Facts) -> Facts:
    """Return a fault with the names that were recorded; reports may also use the stage's usual name, as an alias of it."""
    names = {key: NAMES.get(fault.get(key), fault.get(key)) for key in ("stage", "place")}
    usual = {f"usual_{key}": fault.get(key) for key in names}
    return fault | usual | {key: name for key, name in names.items() if name is not None}


def expected_under(expected: Expectation, unknown: frozenset[str]) -> Expectation:
    """Return what may be expected where stages or steps are not recorded."""
    if "@stage" in unknown and expected.unmarked:
        return replace(expected, rules=expected.rules + expected.unmarked)
    return expected


def _is_known(text: str, fault: Facts, truth: Facts) -> bool:
    """Whether a report can tell this place: under the switch, and with the stacks and whole steps that were recorded."""
    unknown = set(SWITCHES[truth.get("switch", "none")].unknown)
    if "@stage" in unknown:
        unknown |= BESIDE_STAGES
    steps = fault.get("steps") or ()
    if not {*steps} <= {*truth.get("recorded_steps", steps)}:
        unknown.add("@step")
    if not truth.get("stacks", True):
        unknown |= {word for word in text.split("|") if word.endswith(".py")}
    words = {word if word != "@place" else _kind_of_place(fault) for word in text.split("|")}
    return not words <= unknown


def _kind_of_place(fault: Facts) -> str:
    place = str(fault.get("place"))
    if place == fault.get("stage"):
        return "@stage"
    return "@step" if place.startswith("step ") else "@place"


def is_within(ratio: float | None) -> bool:
    """Whether an estimate is near enough to the truth."""
    return ratio is not None and abs(ratio - 1) <= WITHIN


def totals(faulty: list[Facts], clean: list[Facts], beyond: float) -> dict[str, float]:
    """Return the shares that are required to be high."""
    rows = [row for row in faulty if any(part["worth"] for part in row["parts"])]
    parts = [part for row in rows for part in row["parts"] if part["worth"]]
    priced = [part for part in parts if part["priced"]]
    costly = [row for row in rows if row["claimed"] is not None]
    noisy = [row for row in clean if alarms(row["truth"], row["findings"])]
    return {
        "named": sum(part["named"] for part in parts) / max(1, len(parts)),
        "first": sum(row["first"] for row in rows) / max(1, len(rows)),
        "estimated": sum(is_within(part["ratio"]) for part in priced) / max(1, len(priced)),
        "sums": sum(row["claimed"] <= 1 + beyond for row in costly) / max(1, len(costly)),
        "silent": 1 - len(noisy) / max(1, len(clean)),
    }
