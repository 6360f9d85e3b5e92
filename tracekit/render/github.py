"""A gate in the words of GitHub Actions: annotations, and the outputs of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.model.escape import Lines
from tracekit.model.report import Gate
from tracekit.render.escape import printable

MOST = 10
"""GitHub shows so many annotations of a kind."""

_LONGEST = 4_000


def gate_annotations(gates: Sequence[Gate], *, untested_passes: bool = False) -> tuple[Lines, ...]:
    """One workflow command for each rule that did not pass: breaches are errors, doubts are warnings.

    A rule that tested nothing is an error, unless `untested_passes`.

    Of a kind there are at most ten, of which the last tells how many are left out.
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
        left = len(texts) - MOST
        if left > 0:
            texts[MOST - 1 :] = [("tracekit gate", f"{left + 1} more rules did not pass")]
        lines += [annotation(kind, title, text) for title, text in texts]
    return tuple(lines)


def annotation(kind: str, title: str, text: str) -> Lines:
    """One workflow command, in which no text can end the line or begin another command.

    >>> annotation("error", "a: b, c", "50 %")
    '::error title=a%3A b%2C c::50 %25'
    """
    head = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return Lines(f"::{kind} title={head}::{_escaped(text)}")


def step_outputs(values: Mapping[str, str | float | None]) -> str:
    """Lines of `$GITHUB_OUTPUT`: `key=value`, numbers in six figures, nothing for what is unknown."""
    lines = []
    for key, value in values.items():
        text = f"{value:.6g}" if isinstance(value, int | float) else value or ""
        lines.append(f"{key}={printable(text, _LONGEST)}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    """Text within a workflow command; line ends are visible escapes already."""
    return printable(text, _LONGEST).replace("%", "%25")
