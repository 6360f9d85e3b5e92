"""One finding per rule: findings of one rule in several stages are merged, with the stages as parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tracekit.model.report import SEVERITIES, Finding, Instance, Section, Severity
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.units import format_quantity

T = TypeVar("T")

RANK_RULES = frozenset(("straggler", "slow-link"))
"""Rules whose findings differ by rank; each has its own cause, in any stage."""

COUNTED_PART_RATIO = 0.5
"""A part too small to be reported alone still counts from this share of the largest part on."""

MAX_CLAIM_STAGES = 3
"""Most stages listed in a claim after the largest one."""


def merge_stage_findings(sections: Sequence[Section], thresholds: Thresholds) -> list[Section]:
    """Merge the findings of each rule over the stages of a run and role; others stay as they are."""
    return [_merge_section_findings(section, thresholds) for section in sections]


def _merge_section_findings(section: Section, thresholds: Thresholds) -> Section:
    groups: dict[object, list[Finding]] = {}
    for finding in section.findings:
        groups.setdefault(_make_merge_key(finding) or id(finding), []).append(finding)
    if len(groups) == len(section.findings):
        return section
    merged = (_merge_findings(findings, thresholds) for findings in groups.values())
    return replace(section, findings=tuple(merged))


def _make_merge_key(finding: Finding) -> object:
    """Make the key that merges findings: rule, runs, roles, and whether it is a catch-all; None without a stage."""
    stages = _list_finding_stages(finding)
    if not stages or not finding.cost_ns or finding.rule in RANK_RULES:
        return None
    runs = frozenset(place.run for place in finding.places)
    roles = frozenset(place.role for place in finding.places)
    return finding.rule, runs, roles, finding.is_catch_all


def _list_finding_stages(finding: Finding) -> frozenset[str]:
    """List the stages that the places of a finding name."""
    return frozenset(place.stage for place in finding.places if place.stage is not None)


def _merge_findings(findings: list[Finding], thresholds: Thresholds) -> Finding:
    """Merge findings into one with them as parts; a single one stays as it is.

    Parts too small to be reported alone are listed but not counted: any job has that much of them.
    """
    parts = sorted(findings, key=lambda finding: -(finding.cost_ns or 0))
    first = parts[0]
    if len(parts) == 1:
        return first
    counted = [part for part in parts if _is_counted_part(part, first)]
    ratio = _sum_part_ratios(counted)
    claims = [first.claim, *_list_smaller_parts(counted[1:]), *_count_small_stages(parts[len(counted) :])]
    return replace(
        first,
        severity=_rate_merged(counted, thresholds, ratio),
        claim="; ".join(claims),
        places=_drop_repeated_items(place for part in parts for place in part.places),
        cost_ns=sum(part.cost_ns or 0 for part in counted),
        cost_ratio=ratio,
        caveats=_drop_repeated_items(caveat for part in counted for caveat in part.caveats),
        parts=tuple(parts),
        changes=_drop_repeated_items(change for part in counted for change in part.changes),
        instances=_merge_instances(counted),
    )


def _merge_instances(parts: Sequence[Finding]) -> tuple[Instance, ...]:
    """Keep the worst instance of all parts, and the median one of the part that it is of."""
    of_parts = [part.instances for part in parts if part.instances]
    return max(of_parts, key=lambda instances: instances[0].cost, default=())


def _is_counted_part(part: Finding, first: Finding) -> bool:
    """Check whether a part would be reported alone, or is nearly as large as the largest one."""
    return part.severity != "info" or (part.cost_ns or 0) >= COUNTED_PART_RATIO * (first.cost_ns or 0)


def _sum_part_ratios(parts: Sequence[Finding]) -> float | None:
    """Sum the shares of the step; None if one is unknown."""
    ratios = [part.cost_ratio for part in parts if part.cost_ratio is not None]
    return sum(ratios) if len(ratios) == len(parts) else None


def _count_small_stages(parts: Sequence[Finding]) -> Iterator[str]:
    """Count the stages with too little time to be reported."""
    stages = {stage for part in parts for stage in _list_finding_stages(part)}
    if stages:
        yield f"below the threshold in {len(stages)} more {choose_plural(len(stages), 'stage')}"


def _list_smaller_parts(smaller: Sequence[Finding]) -> Iterator[str]:
    """List the cost of the smaller parts by stage: `614 µs more in 2 stages: update_actor 317 µs, ref 297 µs`."""
    if not smaller:
        return
    costs: dict[str, int] = {}
    for part in smaller:
        names = ", ".join(sorted(_list_finding_stages(part)))
        costs[names] = costs.get(names, 0) + (part.cost_ns or 0)
    listed = [f"{name} {format_quantity(ns, 'ns')}" for name, ns in costs.items()]
    more = ", …" if len(listed) > MAX_CLAIM_STAGES else ""
    if len(costs) == 1:
        yield f"{format_quantity(sum(costs.values()), 'ns')} more in {next(iter(costs))}"
        return
    count = len({stage for part in smaller for stage in _list_finding_stages(part)})
    total = format_quantity(sum(costs.values()), "ns")
    stages = f"{count} other {choose_plural(count, 'stage')}"
    yield f"{total} more in {stages}: {', '.join(listed[:MAX_CLAIM_STAGES])}{more}"


def _rate_merged(parts: Sequence[Finding], thresholds: Thresholds, ratio: float | None) -> Severity:
    """Rate the sum by its share of the step, unless the rule rates its parts below their share."""
    gravest = min((part.severity for part in parts), key=SEVERITIES.index)
    is_by_share = all(part.severity == thresholds.severity(part.cost_ratio) for part in parts)
    of_sum = thresholds.severity(ratio)
    return min(gravest, of_sum, key=SEVERITIES.index) if is_by_share else gravest


def _drop_repeated_items(items: Iterable[T]) -> tuple[T, ...]:
    """Drop repeated items and keep the order."""
    return tuple(dict.fromkeys(items))
