"""The tool `explain`: the documentation of a rule."""

from __future__ import annotations

from typing import Annotated

from tracekit.agents.bounds import truncate_answer_text
from tracekit.agents.roots import Roots
from tracekit.analyses import rules
from tracekit.model.records import dataclass

RULES_HINT = "call explain without a rule to list all"


@dataclass(frozen=True, slots=True)
class ExplainArguments:
    """Arguments of the tool `explain`."""

    rule: Annotated[str | None, "The rule's id ('straggler') or number ('R09'). Without it, all rules are listed."] = (
        None
    )


@dataclass(frozen=True, slots=True)
class RuleNote:
    """A rule in one line."""

    number: str
    id: str
    title: str


@dataclass(frozen=True, slots=True)
class ExplainAnswer:
    """One rule with its page, or all rules without pages."""

    rules: tuple[RuleNote, ...]
    page: Annotated[str | None, "Markdown: summary, cause, how it is measured, what to try, when it is wrong."]


def answer_explain(roots: Roots, asked: ExplainArguments) -> tuple[str, ExplainAnswer]:
    """Look up the page of a rule, or list all rules; as text and as data."""
    del roots
    if asked.rule is None:
        notes = tuple(RuleNote(rule.number, rule.id, rule.title) for rule in rules.RULES)
        text = "\n".join(f"{note.number} {note.id}: {note.title}" for note in notes)
        return text, ExplainAnswer(notes, None)
    rule = rules.find_rule(asked.rule, RULES_HINT)
    page = truncate_answer_text(rule.page, "The resource of the rule has it all.")
    return page, ExplainAnswer((RuleNote(rule.number, rule.id, rule.title),), page)
