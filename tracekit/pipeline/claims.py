"""Attribute recoverable time to one finding: symptoms exclude the time that their causes count."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.job.frames import summarize_step_walls
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.model import failed_questions
from tracekit.model.report import SEVERITIES, Finding, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

SYMPTOM_CAUSES: tuple[tuple[str, str], ...] = (
    ("straggler", "rollout-tail"),
    ("straggler", "data-loader-wait"),
    ("replica-imbalance", "rollout-tail"),
    ("replica-imbalance", "data-loader-wait"),
    ("replica-imbalance", "straggler"),
    ("host-silence", "straggler"),
    ("garbage-collection", "straggler"),
    ("pageable-copies", "straggler"),
    ("host-sync-stalls", "weight-sync"),
    ("host-silence", "weight-sync"),
    ("exposed-communication", "weight-sync"),
    ("rank-imbalance", "straggler"),
    ("rank-imbalance", "host-silence"),
    ("host-sync-stalls", "periodic-stage"),
    ("launch-bound", "periodic-stage"),
    ("exposed-communication", "periodic-stage"),
    ("step-variance", "recompilation"),
    ("step-variance", "graph-capture"),
    ("step-variance", "drift"),
)
"""(symptom, cause) pairs of rules: on the same ranks or the same stage, the cause counts the time.

A rank is late by all its extra work, so a straggler is a symptom of its long tail and its data loader. A pause on
one rank costs the wait of the others, so the pause is a symptom of the straggler. A stage is the sum of its parts.
Steps vary because of events that only some of them contain.
"""

WHOLE_RUN_RULES = frozenset(("step-variance", "rank-imbalance", "drift"))
"""Rules that count over all ranks and stages of a run; a cause anywhere in the run explains them."""


PAUSE_RULES = (
    *("host-silence", "data-loader-wait", "host-sync-stalls", "launch-bound", "stage-edge-idle"),
    *("allocator-calls", "pageable-copies", "straggler", "rollout-tail"),
)
LATE_RANK_RULES = ("straggler", "rank-imbalance", "replica-imbalance", "rollout-tail", "data-loader-wait")
EVIDENCE_CAUSES: Mapping[tuple[str, str], tuple[str, ...]] = {
    (symptom, part): causes
    for symptom in ("step-variance", "drift")
    for part, causes in (("pause_ns", PAUSE_RULES), ("late_ns", LATE_RANK_RULES))
}
"""(symptom, evidence) to rules: the evidence's value limits how much of the symptom these causes explain.

Pauses and late ranks make steps vary, and have rules of their own; the symptom keeps the rest of the variation.
"""


START_UP_DOMINATES_RATIO = 0.9
"""Start-up share of a capture from which the other findings cover almost none of it."""


def deduct_causes_from_symptoms(sections: Sequence[Section], thresholds: Thresholds) -> list[Section]:
    """Deduct from each finding the time that findings on its causes count."""
    findings = [finding for section in sections for finding in section.findings]
    counted = []
    for section in sections:
        less = tuple(_deduct_causes(finding, findings, thresholds) for finding in section.findings)
        counted.append(section if less == section.findings else replace(section, findings=less))
    return counted


def drop_duplicate_estimates(sections: Sequence[Section]) -> list[Section]:
    """Drop the estimate of each abstention whose time a finding, or an abstention on its cause, already counts."""
    fired = {finding.rule for section in sections for finding in section.findings}
    priced = {v.rule for section in sections for v in section.verdicts if v.price_ns and v.claim}
    counted = {symptom for symptom, cause in SYMPTOM_CAUSES if cause in fired | priced}
    return [_drop_estimates(section, fired | counted) for section in sections]


def rescale_after_start_up(
    measured: Measurements, sections: Sequence[Section], thresholds: Thresholds
) -> list[Section]:
    """Rescale the findings after start-up to the whole capture, where start-up is nearly all of it.

    Otherwise a share of the short remainder would rank as high as a share of a step.
    """
    unscaled: dict[str | None, float] = {}
    scales = failed_questions.judge_if_sound(measured, _measure_after_start_up, unscaled)
    if all(scale == 1 for scale in scales.values()):
        return list(sections)
    return [_rescale_section(section, scales, thresholds) for section in sections]


def _measure_after_start_up(measured: Measurements) -> dict[str | None, float]:
    """Map each run to the share of its capture after start-up, or to 1 if start-up does not dominate."""
    of_runs = [prefix for prefix in find_run_start_ups(measured) if prefix.ratio >= START_UP_DOMINATES_RATIO]
    if not of_runs:
        return {}
    scales = dict.fromkeys(summarize_step_walls(measured).walls.values("run"), 1.0)
    return scales | {prefix.run: 1 - prefix.ratio for prefix in of_runs}


def _rescale_section(section: Section, scales: Mapping[str | None, float], thresholds: Thresholds) -> Section:
    def share(ratio: float | None, runs: Collection[object]) -> float | None:
        scale = max((scales[run] for run in scales if not runs or run in runs), default=1.0)
        return None if ratio is None else ratio * scale

    def rated(finding: Finding) -> Finding:
        ratio = share(finding.recoverable_ratio, _list_place_values(finding, "run"))
        if finding.rule == "start-up" or ratio is None:
            return finding
        severity = max(finding.severity, thresholds.severity(ratio), key=SEVERITIES.index)
        parts = tuple(map(rated, finding.parts))
        return replace(finding, severity=severity, recoverable_ratio=ratio, parts=parts)

    def priced(verdict: Verdict) -> Verdict:
        named: set[object] = set() if verdict.run is None else {verdict.run}
        ratio = share(verdict.price_ratio, named)
        return replace(verdict, price_ratio=ratio)

    return replace(section, findings=tuple(map(rated, section.findings)), verdicts=tuple(map(priced, section.verdicts)))


def _drop_estimates(section: Section, rules: set[str]) -> Section:
    """Drop the estimates of the abstentions of these rules."""
    verdicts = tuple(
        replace(verdict, claim="", needs="") if verdict.rule in rules else verdict for verdict in section.verdicts
    )
    return section if verdicts == section.verdicts else replace(section, verdicts=verdicts)


def _deduct_causes(symptom: Finding, findings: Sequence[Finding], thresholds: Thresholds) -> Finding:
    """Deduct from a finding the time that its causes count, and add a caveat; unchanged without causes."""
    if not symptom.recoverable_ns:
        return symptom
    whole = [
        cause for cause in _find_causes_in_place(symptom, findings) if (symptom.rule, cause.rule) in SYMPTOM_CAUSES
    ]
    taken = sum(cause.recoverable_ns or 0 for cause in whole)
    causes = list(whole)
    for part_ns, of_part in _match_evidence_causes(symptom, findings):
        causes += [cause for cause in of_part if cause not in causes]
        taken += min(sum(cause.recoverable_ns or 0 for cause in of_part), part_ns)
    if not causes:
        return symptom
    taken = min(taken, symptom.recoverable_ns)
    left = symptom.recoverable_ns - taken
    ratio = symptom.recoverable_ratio
    if ratio is not None:
        ratio *= left / symptom.recoverable_ns
    severity = max(symptom.severity, thresholds.severity(ratio), key=SEVERITIES.index)
    names = ", ".join(dict.fromkeys(cause.rule for cause in causes))
    told = f"excludes {format_quantity(taken, 'ns')} counted by {names}"
    return replace(
        symptom, severity=severity, recoverable_ns=left, recoverable_ratio=ratio, caveats=(*symptom.caveats, told)
    )


def _find_causes_in_place(symptom: Finding, findings: Sequence[Finding]) -> list[Finding]:
    """Find the findings with recoverable time at the places of a symptom."""
    return [
        cause
        for cause in findings
        if cause.recoverable_ns and cause is not symptom and _has_common_place(symptom, cause)
    ]


def _match_evidence_causes(symptom: Finding, findings: Sequence[Finding]) -> Iterator[tuple[int, list[Finding]]]:
    """For each evidence of a symptom with known causes: (its value, the findings that count it)."""
    for metric in symptom.evidence:
        rules = EVIDENCE_CAUSES.get((symptom.rule, metric.name), ())
        of_part = [cause for cause in _find_causes_in_place(symptom, findings) if cause.rule in rules]
        if of_part and metric.value:
            yield int(metric.value), of_part


def _has_common_place(symptom: Finding, cause: Finding) -> bool:
    """Check whether the cause covers the symptom's ranks or, if it names no rank, the symptom's stages."""
    runs, cause_runs = _list_place_values(symptom, "run"), _list_place_values(cause, "run")
    if not symptom.places or (runs and cause_runs and runs != cause_runs):
        return False
    roles, cause_roles = _list_place_values(symptom, "role"), _list_place_values(cause, "role")
    if symptom.rule in WHOLE_RUN_RULES:
        return not roles or roles == cause_roles
    if roles != cause_roles:
        return False
    ranks, cause_ranks = _list_place_values(symptom, "rank"), _list_place_values(cause, "rank")
    if cause_ranks:
        return bool(ranks) and ranks <= cause_ranks
    stages, cause_stages = _list_place_values(symptom, "stage"), _list_place_values(cause, "stage")
    return bool(stages) and stages <= cause_stages


def _list_place_values(finding: Finding, name: str) -> set[object]:
    """List the distinct runs, roles, ranks or stages that the places of a finding name."""
    return {getattr(place, name) for place in finding.places} - {None}
