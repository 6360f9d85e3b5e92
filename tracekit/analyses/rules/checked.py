"""The section on rules: the answer of every rule, and the thresholds used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from tracekit.analyses.rules import RULES
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import RULES as RULES_SECTION
from tracekit.model.report import Section, Verdict
from tracekit.model.tables.frame import from_rows
from tracekit.model.thresholds import Thresholds

TITLE = "Which rules were checked?"

ANSWERS = ("fired", "failed", "clear", "insufficient data", "not applicable")


def make_rules_section(
    sections: Sequence[Section], owned: Mapping[str, Sequence[str]], thresholds: Thresholds
) -> Section:
    """Make the section with the answers of all rules and the thresholds.

    `owned` lists the rules of each analysis by the id of its section.
    """
    numbers = {rule.id: rule.number for rule in RULES}
    order = list(numbers)
    verdicts = [v for part in sections for v in _list_rule_verdicts(part, owned.get(part.id, ()))]
    verdicts.sort(
        key=lambda v: (order.index(v.rule) if v.rule in numbers else len(order), ANSWERS.index(v.answer), v.run or "")
    )
    answers = from_rows(
        ("number", "rule", "answer", "run", "reason"),
        [(numbers.get(v.rule), v.rule, v.answer, v.run, v.reason or None) for v in verdicts],
    )
    limits = from_rows(
        ("rule", "name", "value"),
        [
            (rule, name, f"{value:g}")
            for rule in _sort_rules_with_thresholds(thresholds, owned)
            for name, value in thresholds.of(rule).items()
        ],
    )
    return Section(
        RULES_SECTION,
        TITLE,
        sheets=(
            make_sheet(
                "rules",
                "Answers of all rules",
                parse_headings("""
                    number | R
                    rule | rule
                    answer | answer
                    run | run
                    reason | why
                """),
                answers,
            ),
            make_sheet(
                "thresholds",
                "Thresholds used",
                parse_headings("""
                    rule | rule
                    name | threshold
                    value | value
                """),
                limits,
            ),
        ),
    )


def _sort_rules_with_thresholds(thresholds: Thresholds, owned: Mapping[str, Sequence[str]]) -> list[str]:
    """Sort the names in the thresholds: those that are not rules, rules by number, rules of user analyses."""
    place = {rule: index for index, rule in enumerate(chain.from_iterable(owned.values()), len(RULES))}
    place |= {rule.id: index for index, rule in enumerate(RULES)}
    return sorted(thresholds.values, key=lambda rule: place.get(rule, -1))


def _list_rule_verdicts(part: Section, rules: Sequence[str]) -> list[Verdict]:
    """List the verdicts of the rules of one section.

    A rule with findings is "fired". Otherwise the section's own verdicts count, else "clear". A skipped section makes rules
    without a verdict "not applicable"; a failed section makes all of them "failed".
    """
    verdicts = []
    for rule in rules:
        of_rule = [verdict for verdict in part.verdicts if verdict.rule == rule]
        fired = sum(finding.rule == rule for finding in part.findings)
        if fired:
            of_rule = [verdict for verdict in of_rule if verdict.answer != "fired"]
            verdicts.append(Verdict(rule, "fired", f"{fired} findings" if fired > 1 else "1 finding"))
        elif part.status == "skipped" and not of_rule:
            of_rule = [Verdict(rule, "not applicable", part.reason)]
        elif part.status == "failed":
            of_rule = [Verdict(rule, "failed", part.reason)]
        verdicts += of_rule or ([] if fired else [Verdict(rule, "clear")])
    return verdicts
