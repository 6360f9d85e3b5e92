"""Gate results for CI systems: GitHub annotations and step outputs, and JUnit XML with one test case per rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from xml.etree import ElementTree as ET

from tracekit.model.report import Gate
from tracekit.model.text.escape import Lines
from tracekit.render.escape import make_printable

MAX_ANNOTATIONS = 10
"""Number of annotations of one kind that GitHub shows."""

_LONGEST = 4_000

_LONGEST_JUNIT_TEXT = 2_000


def make_gate_annotations(gates: Sequence[Gate], *, untested_passes: bool = False) -> tuple[Lines, ...]:
    """Make one workflow command per rule that did not pass: breaches are errors, doubts are warnings.

    A rule that tested nothing is an error, unless `untested_passes`. There are at most ten of a kind; the last
    one counts those left out.
    """
    kinds: dict[str, list[tuple[str, str]]] = {"error": [], "warning": []}
    grave = {"fail", "expired", "not comparable"}
    if not untested_passes:
        grave.add("not tested")
    for gate in gates:
        if gate.outcome == "pass":
            continue
        decides = gate.severity == "error" and gate.outcome in grave
        caveats = "".join(f" ({caveat})" for caveat in gate.caveats)
        title = f"tracekit gate: {gate.metric} {gate.outcome}"
        kinds["error" if decides else "warning"].append((title, gate.claim + caveats))
    lines = []
    for kind, texts in kinds.items():
        left = len(texts) - MAX_ANNOTATIONS
        if left > 0:
            texts[MAX_ANNOTATIONS - 1 :] = [("tracekit gate", f"{left + 1} more rules did not pass")]
        lines += [make_annotation(kind, title, text) for title, text in texts]
    return tuple(lines)


def make_annotation(kind: str, title: str, text: str) -> Lines:
    """Make one workflow command; no text can end its line or start another command.

    >>> make_annotation("error", "a: b, c", "50 %")
    '::error title=a%3A b%2C c::50 %25'
    """
    head = _escape_command_text(title).replace(":", "%3A").replace(",", "%2C")
    return Lines(f"::{kind} title={head}::{_escape_command_text(text)}")


def format_step_outputs(values: Mapping[str, str | float | None]) -> str:
    """Format lines of `$GITHUB_OUTPUT`: `key=value`, numbers with six digits, empty if unknown."""
    lines = []
    for key, value in values.items():
        text = f"{value:.6g}" if isinstance(value, int | float) else value or ""
        lines.append(f"{key}={make_printable(text, _LONGEST)}\n")
    return "".join(lines)


def _escape_command_text(text: str) -> str:
    """Escape text for a workflow command; line ends are already visible escapes."""
    return make_printable(text, _LONGEST).replace("%", "%25")


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
    return make_printable(text, _LONGEST_JUNIT_TEXT)
