"""How a gate is shown: one word, one table, what to be careful about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tracekit.compare.gate import overall
from tracekit.model.report import Gate, Heading, Section, Sheet, Unit

_UNITS: tuple[tuple[Unit, str], ...] = (
    ("ratio", "Gate: shares"),
    ("ns", "Gate: times"),
    ("bytes", "Gate: bytes"),
    ("count", "Gate: counts"),
    ("", "Gate"),
)


_RAN_OUT = "what was accepted ran out"


def gate_word(gates: Sequence[Gate]) -> str:
    """The end of a first sentence: `gate: pass`; with how many warn or are accepted."""
    word = overall(gates)
    if not word:
        return ""
    sentence = f"gate: {word}"
    counts = Counter((gate.severity, gate.outcome) for gate in gates)
    warned, untested = counts["warn", "fail"], counts["error", "not tested"]
    accepted = counts["warn", "accepted"] + counts["error", "accepted"]
    parts = []
    if warned:
        parts.append(f"{warned} beyond a limit that only warns")
    if accepted:
        parts.append(f"{accepted} accepted")
    if word == "not tested":
        parts.append(f"{untested} of {len(gates)} rules")
    if word == "expired":
        sentence = f"gate: {_RAN_OUT}"
    if parts:
        sentence += f" ({', '.join(parts)})"
    return sentence


def gate_section(gates: Sequence[Gate]) -> Section:
    """The rules as tables, one for each unit, and a sentence on every one that did not simply pass."""
    return Section(
        "gate",
        "Does it stay within the gate?",
        sheets=tuple(_sheets(gates)),
        caveats=tuple(_caveats(gates)),
    )


def outcome_text(gate: Gate) -> str:
    """The outcome in words, with `warns` where it decides nothing."""
    return gate.outcome if gate.severity == "error" else f"{gate.outcome} (only warns)"


def _sheets(gates: Sequence[Gate]) -> Iterator[Sheet]:
    """One table a unit: a column has one unit only."""
    for unit, title in _UNITS:
        rows = [gate for gate in gates if gate.unit == unit]
        if rows:
            yield _sheet(f"gate-{unit or 'other'}", title, unit, rows)


def _sheet(name: str, title: str, unit: Unit, gates: Sequence[Gate]) -> Sheet:
    headings = (
        Heading("rule", "rule"),
        Heading("metric", "metric"),
        Heading("outcome", "outcome"),
        Heading("value", "found", unit, "The change of the second side, or its own number."),
        Heading("low", "from", unit, "Lower end of the interval."),
        Heading("high", "to", unit, "Upper end of the interval."),
    )
    rows = tuple(
        (gate.rule, gate.metric, outcome_text(gate), gate.value, gate.low, gate.high)
        for gate in gates
    )
    return Sheet(name, title, headings, rows)


def _caveats(gates: Sequence[Gate]) -> Iterator[str]:
    for gate in gates:
        if gate.outcome != "pass":
            why = "".join(f" ({caveat})" for caveat in gate.caveats)
            yield f"{outcome_text(gate)}: {gate.claim}{why}"
