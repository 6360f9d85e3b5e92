"""The rules that findings come from: one page each, printed by `tracekit explain`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from tracekit.errors import TracekitError


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id in findings, its R number, and what it is about."""

    id: str
    number: str
    title: str


RULES: tuple[Rule, ...] = (
    Rule("low-gpu-utilization", "R01", "GPUs that are idle during a stage"),
    Rule("exposed-communication", "R05", "Collectives that no compute hides"),
    Rule("pageable-copies", "R08", "Copies through pageable host memory"),
    Rule("step-variance", "R30", "Steps that differ too much for a mean"),
    Rule("profiling-artefact", "R32", "What makes the numbers themselves unreliable"),
)


def rule(id_or_number: str) -> Rule:
    """The rule of that id or R number, in any case; `TracekitError` lists them when there is none."""
    asked = id_or_number.strip().lower()
    for known in RULES:
        if asked in (known.id, known.number.lower()):
            return known
    listed = ", ".join(f"{known.number} {known.id}" for known in RULES)
    raise TracekitError(f"no rule {id_or_number!r}", f"rules: {listed}")


def page(id_or_number: str) -> str:
    """The page of a rule: what it measures, formula, why, what to try, when it is wrong, source."""
    known = rule(id_or_number)
    text = resources.files("tracekit.rules").joinpath("pages", f"{known.id}.md").read_text("utf-8")
    return f"# {known.number} {known.id}: {known.title}\n\n{text}"
