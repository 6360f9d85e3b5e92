"""Estimates of abstentions: one for each subject, and none where a finding is about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tracekit.model.report import Section, Verdict

SUBJECTS = (
    frozenset(("straggler", "rank-imbalance", "replica-imbalance", "rollout-tail")),
    frozenset(("drift", "step-variance", "recompilation", "graph-capture")),
)
"""Rules about one subject: late ranks, and steps of different length."""


def drop_repeated_estimates(sections: Sequence[Section]) -> list[Section]:
    """Drop the estimate of each abstention about whose subject there is a finding, or a larger estimate."""
    fired = {_get_subject(finding.rule) for section in sections for finding in section.findings}
    priced = [v for section in sections for v in section.verdicts if v.price_ns and v.claim]
    kept = _list_largest(verdict for verdict in priced if _get_subject(verdict.rule) not in fired)
    return [
        replace(
            section, verdicts=tuple(v if id(v) in kept else replace(v, claim="", needs="") for v in section.verdicts)
        )
        for section in sections
    ]


def _list_largest(verdicts: Iterable[Verdict]) -> set[int]:
    """List the ids of the verdicts of the rule that has the largest estimate of its subject, for each run."""
    largest: dict[tuple[frozenset[str], str | None], Verdict] = {}
    for verdict in verdicts:
        key = _get_subject(verdict.rule), verdict.run
        if key not in largest or (verdict.price_ns or 0) > (largest[key].price_ns or 0):
            largest[key] = verdict
    return {id(verdict) for verdict in largest.values()}


def _get_subject(rule: str) -> frozenset[str]:
    return next((rules for rules in SUBJECTS if rule in rules), frozenset((rule,)))
