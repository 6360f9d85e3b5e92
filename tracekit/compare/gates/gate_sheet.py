"""Presentation of a gate: its result, a table per unit, and the caveats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tracekit.compare.gates.outcomes import summarize_gates
from tracekit.model.report import Gate, Heading, Section, Sheet, Unit

_UNITS: tuple[tuple[Unit, str], ...] = (
    ("ratio", "Gate: shares"),
    ("ns", "Gate: times"),
    ("bytes", "Gate: bytes"),
    ("count", "Gate: counts"),
    ("", "Gate"),
)


_RAN_OUT = "an accepted exception expired"


def describe_gate_result(gates: Sequence[Gate]) -> str:
    """Describe the result of a gate: `gate: pass`, with the number of warnings and accepted breaches."""
    word = summarize_gates(gates)
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


def build_gate_section(gates: Sequence[Gate]) -> Section:
    """Build the tables of rules, one per unit, with a sentence for every rule that did not simply pass."""
    return Section(
        "gate",
        "Gate result",
        sheets=tuple(_make_gate_sheets(gates)),
        caveats=tuple(_list_gate_caveats(gates)),
    )


def format_gate_outcome(gate: Gate) -> str:
    """Format an outcome, with `warns` if it does not decide the result."""
    return gate.outcome if gate.severity == "error" else f"{gate.outcome} (only warns)"


def _make_gate_sheets(gates: Sequence[Gate]) -> Iterator[Sheet]:
    """Make one table per unit: a column has a single unit."""
    for unit, title in _UNITS:
        rows = [gate for gate in gates if gate.unit == unit]
        if rows:
            yield _make_gate_sheet(f"gate-{unit or 'other'}", title, unit, rows)


def _make_gate_sheet(name: str, title: str, unit: Unit, gates: Sequence[Gate]) -> Sheet:
    headings = (
        Heading("rule", "rule"),
        Heading("metric", "metric"),
        Heading("outcome", "outcome"),
        Heading("value", "found", unit, "The change of the second side, or its own number."),
        Heading("low", "from", unit, "Lower end of the interval."),
        Heading("high", "to", unit, "Upper end of the interval."),
    )
    rows = tuple((gate.rule, gate.metric, format_gate_outcome(gate), gate.value, gate.low, gate.high) for gate in gates)
    return Sheet(name, title, headings, rows)


def _list_gate_caveats(gates: Sequence[Gate]) -> Iterator[str]:
    for gate in gates:
        if gate.outcome != "pass":
            why = "".join(f" ({caveat})" for caveat in gate.caveats)
            yield f"{format_gate_outcome(gate)}: {gate.claim}{why}"
