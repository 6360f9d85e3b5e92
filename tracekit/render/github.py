"""Gate results for GitHub Actions: annotations, and step outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.model.escape import Lines
from tracekit.model.report import Gate
from tracekit.render.escape import make_printable

MAX_ANNOTATIONS = 10
"""Number of annotations of one kind that GitHub shows."""

_LONGEST = 4_000


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
