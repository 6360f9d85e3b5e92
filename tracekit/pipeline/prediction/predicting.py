"""Savings of the fixes of the findings: each run is replayed with the changes that its findings name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.model.inputs.timeline import PathPieces
from tracekit.model.records import dataclass
from tracekit.model.report import SEVERITIES, Finding, RunReplay, Saving, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.pipeline.prediction.run_graphs import RunGraph
from tracekit.replay.changes import parse_change
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import close_ledger, measure_residual_ratio
from tracekit.replay.plan import Fix, Plan, plan_fixes
from tracekit.replay.steps import JobSteps
from tracekit.replay.what_if import answer_what_if, list_plan_cautions
from tracekit.replay.what_if_tables import describe_largest_residual

LATE_RULES = frozenset(("straggler", "rank-imbalance", "replica-imbalance", "step-variance", "drift"))
"""Rules that say which rank or step is longer; another finding that names the reason ranks above them."""

SYMPTOM_RULES = frozenset(("low-gpu-utilization", "step-variance"))
"""Rules about time for which others may give the reason: they are clear where others cover most of that time."""

BUSY_RULES = frozenset(
    [
        "exposed-communication",
        "layout-copies",
        "no-comm-overlap",
        "no-tensor-cores",
        "rank-imbalance",
        "replica-imbalance",
        "slow-link",
        "small-collectives",
        "straggler",
        "unaligned-gemm",
        "unfused-operators",
        "unfused-optimizer",
        "weight-sync",
    ]
)
"""Rules about time in which GPUs are busy, if only with a collective: they give no reason for idle GPUs."""

STOPPING_RULES = frozenset(("hang",))
"""Rules about a job that no longer runs."""

RECORDING_RULES = frozenset(("profiling-artefact", "slow-first-iterations", "start-up"))
"""Rules about what else was recorded than a usual step: they limit all other findings, so their cost is no upper bound."""

MOST_COVERED = 0.5
"""Share of the cost of a symptom from which on other findings cover it."""


@dataclass(frozen=True, slots=True)
class PredictedSections:
    """Sections whose findings have savings and ranks, the replay of each run, and the critical paths if asked for."""

    sections: tuple[Section, ...]
    replays: tuple[RunReplay, ...]
    critical: PathPieces | None = None


@dataclass(frozen=True, slots=True)
class _RunPlan:
    """The plan of a run: its findings with their savings in order, and those whose changes match nothing, with the reason."""

    replay: RunReplay
    savings: list[tuple[Finding, Saving]]
    refused: list[tuple[Finding, str]]


def predict_savings(
    graphs: Sequence[RunGraph], sections: Sequence[Section], thresholds: Thresholds
) -> PredictedSections:
    """Predict what the fixes of the findings save, grade the findings by it, and rank them all."""
    findings = [finding for section in sections for finding in section.findings]
    graded: dict[int, Finding] = {}
    covered: dict[int, RunReplay] = {}
    plans: list[list[int]] = []
    replays: list[RunReplay] = []
    for graph in graphs:
        own = _select_run_findings(findings, graph.run, is_only=len(graphs) == 1)
        plan = _plan_run_findings(graph, own)
        graded |= {id(finding): _grade_finding(finding, plan, saving, thresholds) for finding, saving in plan.savings}
        graded |= {id(finding): _add_refusal(finding, problem) for finding, problem in plan.refused}
        covered |= {id(finding): plan.replay for finding in _list_covered_symptoms(own, plan)}
        plans.append([id(finding) for finding, _ in plan.savings])
        replays.append(plan.replay)
    latest = {id(finding): graded.get(id(finding), finding) for finding in findings if id(finding) not in covered}
    ranks = {key: rank for rank, key in enumerate(_rank_findings(latest, plans, thresholds), 1)}
    ranked = {key: replace(finding, rank=ranks[key]) for key, finding in latest.items()}
    return PredictedSections(tuple(_replace_findings(s, ranked, covered) for s in sections), tuple(replays))


def _replace_findings(section: Section, ranked: Mapping[int, Finding], covered: Mapping[int, RunReplay]) -> Section:
    """Replace the findings of a section; those that others cover become clear verdicts."""
    kept = tuple(ranked[id(finding)] for finding in section.findings if id(finding) in ranked)
    clear = tuple(
        Verdict(finding.rule, "clear", f"other findings cover it: {finding.claim}", covered[id(finding)].run)
        for finding in section.findings
        if id(finding) in covered
    )
    return replace(section, findings=kept, verdicts=(*section.verdicts, *clear))


def _select_run_findings(findings: Sequence[Finding], run: str | None, *, is_only: bool) -> list[Finding]:
    """Select the findings about one run that matter."""
    return [
        finding
        for finding in findings
        if finding.severity != "info" and (is_only or {place.run for place in finding.places} == {run})
    ]


def _plan_run_findings(graph: RunGraph, findings: Sequence[Finding]) -> _RunPlan:
    """Plan the fixes of the findings of a run."""
    answer = answer_what_if(graph.job, graph.steps)
    ledger = close_ledger(graph.job, graph.steps)
    replay = RunReplay(
        graph.run,
        answer.unit,
        answer.recorded.mean_ns,
        None,
        answer.residual_share,
        measure_residual_ratio(graph.job, ledger),
        describe_largest_residual(graph.job, ledger),
        cautions=(graph.caveat,) if graph.caveat else (),
    )
    del ledger
    refusal = graph.refusal or answer.refusal
    if refusal:
        return _RunPlan(replace(replay, refusal=refusal), [], [])
    changing = [finding for finding in findings if finding.changes]
    plan, planned = plan_findings(graph.job, graph.steps, changing)
    savings = [(finding, fix.saving) for finding, fix in zip(planned, plan.fixes, strict=True)]
    refused = [(changing[place], problem) for place, problem in plan.refused]
    if savings:
        replay = replace(replay, step_ns=plan.step_ns, cautions=(*replay.cautions, *list_plan_cautions(answer, plan)))
    return _RunPlan(replay, savings, refused)


def plan_findings(job: JobGraph, steps: JobSteps, findings: Sequence[Finding]) -> tuple[Plan, list[Finding]]:
    """Plan the fixes of findings: (the plan, the finding of each of its fixes).

    Of fixes that save nearly the same, the plan prefers those that name a reason, and of the others those that name ranks.
    """
    order = sorted(range(len(findings)), key=lambda place: _count_missing_reasons(findings[place].rule))
    plan = plan_fixes(job, steps, list(_make_fixes(findings[place] for place in order)))
    refused = tuple((order[place], problem) for place, problem in plan.refused)
    return replace(plan, refused=refused), [findings[order[fix.place]] for fix in plan.fixes]


def _count_missing_reasons(rule: str) -> int:
    """Count what the findings of a rule do not name: a reason, and the ranks or steps that have it."""
    return (rule in LATE_RULES) + (rule in SYMPTOM_RULES)


def _make_fixes(findings: Iterable[Finding]) -> Iterator[Fix]:
    for finding in findings:
        yield Fix(f"{finding.rule}: {finding.claim}", tuple(map(parse_change, finding.changes)), finding.is_catch_all)


def _grade_finding(finding: Finding, plan: _RunPlan, saving: Saving, thresholds: Thresholds) -> Finding:
    """Grade a finding by its saving, but not above its rule where that grades it lower than its cost."""
    ratio = saving.ratio
    if saving.recorded_ns and _is_explained(finding, plan, saving):
        ratio = max(saving.after_ns, saving.last_ns) / saving.recorded_ns
    severity = thresholds.severity(ratio)
    if finding.severity != thresholds.severity(finding.cost_ratio):
        severity = max(severity, finding.severity, key=SEVERITIES.index)
    return replace(finding, saving=saving, severity=severity)


def _is_explained(finding: Finding, plan: _RunPlan, saving: Saving) -> bool:
    """Check whether a finding says which rank or step is longer, and one ranked above it gives the reason."""
    if finding.rule in SYMPTOM_RULES:
        return True
    blocking = [other for other, of_other in plan.savings if of_other.number == saving.behind]
    return finding.rule in LATE_RULES and any(other.rule not in LATE_RULES for other in blocking)


def _add_refusal(finding: Finding, problem: str) -> Finding:
    return replace(finding, caveats=(*finding.caveats, f"not predicted: {problem}"))


def _list_covered_symptoms(findings: Sequence[Finding], plan: _RunPlan) -> Iterator[Finding]:
    """List the symptoms most of whose cost the plan saves, or other findings that are not predicted are about."""
    predicted = {id(finding): max(saving.after_ns, 0.0) for finding, saving in plan.savings}
    for symptom in findings:
        if symptom.rule in SYMPTOM_RULES and id(symptom) not in predicted:
            reasons = [finding for finding in findings if _gives_reason(finding, symptom)]
            covered_ns = sum(predicted.get(id(finding), finding.cost_ns or 0.0) for finding in reasons)
            if covered_ns >= MOST_COVERED * (symptom.cost_ns or 0) > 0:
                yield symptom


def _gives_reason(finding: Finding, symptom: Finding) -> bool:
    """Check whether a finding may give the reason for the time of a symptom."""
    if finding.rule in SYMPTOM_RULES:
        return False
    return symptom.rule != "low-gpu-utilization" or finding.rule not in BUSY_RULES


def _measure_explained_share(symptom: Finding, findings: Sequence[Finding]) -> float:
    """Measure the share of the step that explains a symptom: the savings of its reasons, or their costs without savings."""
    reasons = [finding for finding in findings if _gives_reason(finding, symptom)]
    saved = [finding.saving.after_ns / finding.saving.recorded_ns for finding in reasons if finding.saving]
    return sum(saved) if saved else sum(finding.cost_ratio or 0.0 for finding in reasons)


def _rank_findings(
    findings: Mapping[int, Finding], plans: Sequence[Sequence[int]], thresholds: Thresholds
) -> list[int]:
    """Rank findings by their share of the step; those of a plan keep its order. Catch-alls and those without time are last.

    A hang is first: its job has no further steps to make faster.

    Of findings whose shares have the same severity, those with a predicted saving are first: without a prediction the
    share is that of the cost, an upper bound. Findings about the recording rank by their cost alone. Symptoms count
    with their cost less the share that others explain.
    """
    planned = {key for plan in plans for key in plan}
    rest = sorted((key for key in findings if key not in planned), key=lambda key: findings[key].importance)
    first, others, last = _split_unplanned(findings, rest)
    shares = {key: _measure_share(finding, list(findings.values())) for key, finding in findings.items()}
    others.sort(key=lambda key: -shares[key])
    bounds = {key for key, each in findings.items() if key not in planned and each.rule not in RECORDING_RULES}
    order = {
        key: (SEVERITIES.index(thresholds.severity(share)), key in bounds, -share) for key, share in shares.items()
    }
    return first + _merge_queues([*plans, others], order) + last


def _split_unplanned(findings: Mapping[int, Finding], keys: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Split findings without a plan into hangs, those with a cost, and the rest: catch-alls and those without time."""
    first = [key for key in keys if findings[key].rule in STOPPING_RULES]
    costly = [key for key in keys if findings[key].cost_ns and not findings[key].is_catch_all and key not in first]
    return first, costly, [key for key in keys if key not in (*first, *costly)]


_Importance = tuple[int, bool, float]
"""Severity of a share, whether it is an upper bound, and the share: smaller ones first."""


def _merge_queues(queues: Sequence[Sequence[int]], order: Mapping[int, _Importance]) -> list[int]:
    """Merge ordered queues: next is the head of the one with the most important finding left."""
    left = [list(queue) for queue in queues if queue]
    merged: list[int] = []
    while left:
        best = min(left, key=lambda queue: min(order[key] for key in queue))
        merged.append(best.pop(0))
        left = [queue for queue in left if queue]
    return merged


def _measure_share(finding: Finding, findings: Sequence[Finding]) -> float:
    """Measure the share of the step that orders a finding."""
    if finding.saving is not None:
        return finding.saving.ratio
    left = finding.cost_ratio or 0.0
    return left - _measure_explained_share(finding, findings) if finding.rule in SYMPTOM_RULES else left
