"""What was checked: every rule with its answer, and every threshold that it used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import pandas as pd

from tracekit.analyses.rules import RULES
from tracekit.job.tables import sheet
from tracekit.model.report import Heading, Section, Verdict
from tracekit.model.thresholds import Thresholds

ID, TITLE = "rules", "Which rules were checked?"

ANSWERS = ("fired", "failed", "clear", "insufficient data", "not applicable")


def section(
    sections: Sequence[Section], owned: Mapping[str, Sequence[str]], thresholds: Thresholds
) -> Section:
    """The answers of all rules and the thresholds; `owned` names the rules of each section by its id."""
    verdicts = [v for part in sections for v in _verdicts(part, owned.get(part.id, ()))]
    known = {rule.id: rule for rule in RULES}
    number = {rule.id: at for at, rule in enumerate(RULES)}
    verdicts.sort(
        key=lambda v: (number.get(v.rule, len(number)), ANSWERS.index(v.answer), v.run or "")
    )
    rules = pd.DataFrame(
        [
            (known[v.rule].number if v.rule in known else None, v.rule, v.answer, v.run, v.reason or None)
            for v in verdicts
        ],
        columns=["number", "rule", "answer", "run", "reason"],
    )  # fmt: skip
    limits = pd.DataFrame(
        [(rule, name, f"{value:g}") for rule in _in_order(thresholds, owned) for name, value in thresholds.of(rule).items()],
        columns=["rule", "name", "value"],
    )  # fmt: skip
    return Section(
        ID,
        TITLE,
        sheets=(
            sheet(
                "rules",
                "Rules and what they say",
                (
                    Heading("number", "R"),
                    Heading("rule", "rule"),
                    Heading("answer", "answer"),
                    Heading("run", "run"),
                    Heading("reason", "why"),
                ),
                rules,
            ),
            sheet(
                "thresholds",
                "Thresholds used",
                (Heading("rule", "rule"), Heading("name", "threshold"), Heading("value", "value")),
                limits,
            ),
        ),
    )  # fmt: skip


def _in_order(thresholds: Thresholds, owned: Mapping[str, Sequence[str]]) -> list[str]:
    """What has thresholds, in order: what is no rule, the rules by number, those of a user's own questions."""
    place = {
        rule: index for index, rule in enumerate(chain.from_iterable(owned.values()), len(RULES))
    }
    place |= {rule.id: index for index, rule in enumerate(RULES)}
    return sorted(thresholds.values, key=lambda rule: place.get(rule, -1))


def _verdicts(part: Section, rules: Sequence[str]) -> list[Verdict]:
    """What the rules of one section say: as it tells, else fired where there is a finding, else clear."""
    found = []
    for rule in rules:
        told = [verdict for verdict in part.verdicts if verdict.rule == rule]
        fired = sum(finding.rule == rule for finding in part.findings)
        if fired:
            told = [verdict for verdict in told if verdict.answer != "fired"]
            found.append(Verdict(rule, "fired", f"{fired} findings" if fired > 1 else "1 finding"))
        elif part.status == "skipped" and not told:
            told = [Verdict(rule, "not applicable", part.reason)]
        elif part.status == "failed":
            told = [Verdict(rule, "failed", part.reason)]
        found += told or ([] if fired else [Verdict(rule, "clear")])
    return found
