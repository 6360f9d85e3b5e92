"""Gate results as JUnit XML, which every CI system reads: one test case per rule."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from xml.etree import ElementTree as ET

from tracekit.model.report import Gate
from tracekit.render.escape import make_printable

_LONGEST = 2_000


def make_gate_junit(
    title: str, gates: Sequence[Gate], *, inconclusive_fails: bool = False, untested_passes: bool = False
) -> str:
    """Make the JUnit XML of a gate.

    Only a breach is a failure of type `regression`. An inconclusive rule is skipped, or with
    `inconclusive_fails` a failure of type `inconclusive`. A problem that must be fixed first is an error, as is
    a rule that tested nothing unless `untested_passes`.
    """
    suite = ET.Element("testsuite", name=f"tracekit: {_escape_junit_text(title)}")
    counts = {"tests": len(gates), "failures": 0, "errors": 0, "skipped": 0}
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname="tracekit.gate", name=_name_gate_case(gate))
        _add_gate_properties(case, gate)
        kind, tag = _choose_junit_result(gate, inconclusive_fails, untested_passes)
        sentence = _escape_junit_text(_describe_gate_case(gate))
        if tag:
            counts[{"failure": "failures", "error": "errors"}.get(tag, tag)] += 1
            attributes = {"message": sentence}
            if tag != "skipped":
                attributes["type"] = kind
            ET.SubElement(case, tag, attributes)
        else:
            ET.SubElement(case, "system-out").text = sentence
    for name, count in counts.items():
        suite.set(name, str(count))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _choose_junit_result(gate: Gate, inconclusive_fails: bool, untested_passes: bool) -> tuple[str, str]:
    """Choose the (type, tag) of a test case; no tag means that it passed."""
    if gate.outcome in ("pass", "accepted"):
        return "", ""
    if gate.severity == "warn":
        unsure = gate.outcome in ("inconclusive", "not tested", "not comparable")
        return "", "skipped" if unsure else ""
    if gate.outcome == "fail":
        return "regression", "failure"
    if gate.outcome == "inconclusive":
        return "inconclusive", "failure" if inconclusive_fails else "skipped"
    if gate.outcome == "not tested" and untested_passes:
        return "", "skipped"
    return gate.outcome, "error"


def _name_gate_case(gate: Gate) -> str:
    """Name a test case by its rule, with the metric if the rule is tested for several roles."""
    if gate.metric in gate.rule:
        return _escape_junit_text(gate.rule)
    return _escape_junit_text(f"{gate.rule} [{gate.metric}]")


def _describe_gate_case(gate: Gate) -> str:
    """Describe the outcome of a gate with its caveats."""
    sentence = gate.claim + "".join(f" ({caveat})" for caveat in gate.caveats)
    return sentence if gate.outcome == "pass" else f"{gate.outcome}: {sentence}"


def _add_gate_properties(case: ET.Element, gate: Gate) -> None:
    """Add the numbers of a gate, unformatted; unknown ones are left out."""
    names = ("unit", "limit", "value", "low", "high", "metric_unit", "base", "opt", "severity")
    numbers = dict(zip(names, attrgetter(*names)(gate), strict=True))
    numbers["test"] = "point" if gate.point else "interval"
    listed = ET.SubElement(case, "properties")
    for name, value in numbers.items():
        if value not in (None, ""):
            ET.SubElement(listed, "property", name=name, value=str(value))


def _escape_junit_text(text: str) -> str:
    """Escape characters that XML 1.0 forbids; all of them are invisible."""
    return make_printable(text, _LONGEST)
