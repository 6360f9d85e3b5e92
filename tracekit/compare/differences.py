"""Comparability of two sides: differences other than the change under test, the order of runs, and their hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log, log1p

from tracekit.compare.comparison import Difference
from tracekit.compare.gate_rules import format_short_amount
from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import ENGINE_PREFIX, ComparedSide, average_runs, is_all_positive
from tracekit.job.sessions import LEAST_SESSIONS, SESSION_GAP_NS, count_sessions, measure_session_gap
from tracekit.model.metrics import METRICS, PER_WORK, RAY_FUNCTION_COUNT, STAGE_TIME, STEP_TIME, UNPROFILED, WINDOW
from tracekit.model.records import dataclass
from tracekit.model.stats.speedup import Speedup, compute_speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, choose_verdict
from tracekit.model.tables.frame import concat, sum_of
from tracekit.model.text.labels import join_first_few


@dataclass(frozen=True, slots=True)
class FingerprintFact:
    """One fact of a fingerprint: the meaning of a difference, and whether it forbids a verdict."""

    meaning: str
    blocking: bool = False


FACTS: dict[str, FingerprintFact] = {
    "gpu": FingerprintFact("different GPUs run at different speeds", blocking=True),
    "world_size": FingerprintFact("the work of a step is divided among a different number of ranks", blocking=True),
    "roles": FingerprintFact("the other side lacks these roles"),
    "ranks": FingerprintFact("one side may lack the slowest rank"),
    "backend": FingerprintFact("different communication libraries perform differently"),
    "versions": FingerprintFact("the version change may explain the change in time"),
    "profiler options": FingerprintFact("recording more slows the run, and the times include that overhead"),
    "number types": FingerprintFact("matrix products of different types differ in speed and in results"),
    "stages": FingerprintFact("a stage that only one side has is not a speedup"),
}

LEAST_COMMON = 0.1
"""Smallest share of kernel (or op) time in common; sides with less did different work."""

MAX_NAME = 60
"""Longest kernel name shown, in characters; kernel arguments fill whole lines."""


def list_side_differences(base: ComparedSide, opt: ComparedSide) -> tuple[Difference, ...]:
    """List the properties that should be equal and are not, the blocking ones first."""
    unlike = [
        *_list_fact_differences(base, opt),
        *_list_setting_differences(base, opt),
        *_find_different_work(base, opt),
        *_list_work_amount_differences(base, opt),
        *_list_task_differences(base, opt),
    ]
    return tuple(sorted(unlike, key=lambda difference: (not difference.blocking, difference.name)))


def has_blocking_difference(differences: Iterable[Difference]) -> bool:
    """Check whether a difference forbids every verdict.

    Different amounts of work forbid only verdicts on whole times.
    """
    return any(unlike.blocking and unlike.name not in _AMOUNTS for unlike in differences)


def has_uneven_work(differences: Iterable[Difference]) -> bool:
    """Check whether the work per step differs so much that whole times cannot be compared."""
    return any(unlike.blocking and unlike.name in _AMOUNTS for unlike in differences)


_TASKS = "tasks of Ray"
_AMOUNTS = (*PER_WORK, _TASKS)
"""Differences of the amount of work, which forbid verdicts on whole times alone."""

MOST_FUNCTIONS = 3
"""Most functions of Ray that a difference names."""


def _list_task_differences(base: ComparedSide, opt: ComparedSide) -> Iterator[Difference]:
    """List the difference in the numbers of Ray's tasks, where no steps are compared: timelines with other tasks have other lengths."""
    if any((name, None, None) in side.samples for name in (STEP_TIME, UNPROFILED, WINDOW) for side in (base, opt)):
        return
    before, after = (
        {key[2]: average_runs(metric) for key, metric in side.samples.items() if key[0] == RAY_FUNCTION_COUNT}
        for side in (base, opt)
    )
    unlike = sorted(str(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if before and after and unlike:
        what = f"other numbers of {join_first_few(unlike, MOST_FUNCTIONS)}: compare the median task, not whole times"
        base_tasks, opt_tasks = (f"{sum(of_side.values()):,.0f}" for of_side in (before, after))
        yield Difference(_TASKS, base_tasks, opt_tasks, blocking=True, meaning=what)


def _list_fact_differences(base: ComparedSide, opt: ComparedSide) -> Iterator[Difference]:
    """List facts that both sides recorded with different values; an unknown value is not a difference."""
    for name, fact in FACTS.items():
        before, after = base.fingerprint.get(name, ""), opt.fingerprint.get(name, "")
        if before and after and before != after:
            yield Difference(name, before, after, fact.blocking, fact.meaning)
        elif name == "gpu" and bool(before) != bool(after) and _has_gpu_times(base) != _has_gpu_times(opt):
            nothing = "no GPU activity recorded"
            meaning = "only one side was traced on its GPU"
            yield Difference(name, before or nothing, after or nothing, blocking=True, meaning=meaning)


def _list_setting_differences(base: ComparedSide, opt: ComparedSide) -> Iterator[Difference]:
    """List the settings of engines that differ: they may be the change under test."""
    for name in sorted(base.fingerprint.keys() & opt.fingerprint.keys()):
        before, after = base.fingerprint[name], opt.fingerprint[name]
        if name.startswith(ENGINE_PREFIX) and before != after:
            meaning = "a setting of the engine"
            yield Difference(name.removeprefix(ENGINE_PREFIX), before, after, blocking=False, meaning=meaning)


def _has_gpu_times(side: ComparedSide) -> bool:
    """Check whether GPU activity was recorded."""
    return any(name == "gpu_busy" for name, _, _ in side.samples)


def _find_different_work(base: ComparedSide, opt: ComparedSide) -> Iterator[Difference]:
    """Find sides that share no stage, or hardly any kernel or op."""
    base_stages, opt_stages = _list_timed_stages(base), _list_timed_stages(opt)
    if base_stages and opt_stages and not base_stages & opt_stages:
        before, after = _join_stage_names(base_stages), _join_stage_names(opt_stages)
        yield Difference("work", before, after, blocking=True, meaning="the sides share no stage")
        return
    base_shares, opt_shares = _measure_kernel_time_shares(base), _measure_kernel_time_shares(opt)
    if base_shares is None or opt_shares is None:
        return
    common = sum(min(share, opt_shares.get(name, 0.0)) for name, share in base_shares.items())
    if common < LEAST_COMMON:
        yield Difference(
            "work",
            f"mostly {shorten_difference_name(max(base_shares, key=base_shares.__getitem__))}",
            f"mostly {shorten_difference_name(max(opt_shares, key=opt_shares.__getitem__))}",
            blocking=True,
            meaning=f"other kernels and ops: {common:.0%} of the time in common".replace("%", " %"),
        )


def _list_timed_stages(side: ComparedSide) -> set[tuple[str | None, str | None]]:
    """Collect the (role, name) of every timed stage."""
    return {(role, stage) for name, role, stage in side.samples if name == STAGE_TIME}


def _join_stage_names(stages: Iterable[tuple[str | None, str | None]]) -> str:
    """Join the names of stages in order."""
    return ", ".join(sorted(str(stage) for _, stage in stages))


def shorten_difference_name(name: str) -> str:
    """Shorten a kernel name to its beginning."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _list_work_amount_differences(base: ComparedSide, opt: ComparedSide) -> Iterator[Difference]:
    """List work counts that differ by more than matters; blocking if step-to-step chance does not explain it."""
    for name, (per_one, _) in PER_WORK.items():
        before, after = base.samples.get((name, None, None)), opt.samples.get((name, None, None))
        if before is None or after is None or not (is_all_positive(before) and is_all_positive(after)):
            continue
        ratio = compute_speedup(before.values, after.values)
        if abs(log(ratio.ratio)) <= log1p(LEAST_EFFECT):
            continue
        title = METRICS[per_one].title
        clear = _is_clear_work_difference(ratio)
        meaning = f"it may be chance: compare {title} as well"
        if clear:
            meaning = f"steps contain different work: compare {title} instead"
        yield Difference(
            name,
            _format_count_per_step(ratio.base.mean),
            _format_count_per_step(ratio.opt.mean),
            blocking=clear,
            meaning=meaning,
        )


def _is_clear_work_difference(ratio: Speedup) -> bool:
    """Check whether a work count differs by more than chance, treating steps as runs."""
    judgement = choose_verdict(ratio, assume_independent_steps=True)
    is_change = judgement.uncapped in ("regression", "improvement")
    return ratio.se == 0.0 or (is_change and set(judgement.caps) <= {"two levels"})  # counts have no slow runs


def _format_count_per_step(count: float) -> str:
    return f"{format_short_amount(count, 'count')} per step"


def _measure_kernel_time_shares(side: ComparedSide) -> dict[str, float] | None:
    """Compute the share of time per kernel, or per op if no GPU was traced; None if names are unknown."""
    for table, column in (("kernels", "total_ns"), ("operators", "self_ns")):
        parts = [part.frame(table).select("name", column) for part in side.measured if part.has(table)]
        if not parts:
            continue
        by_name = concat(parts).group_by("name").agg(total_ns=sum_of(column)).sort("name")
        by_name = by_name.filter(~by_name.is_missing("name"))
        total_ns = by_name.integers("total_ns").sum()
        if total_ns > 0:
            shares = by_name.integers("total_ns") / total_ns
            return dict(zip(by_name.values("name"), shares.tolist(), strict=True))
    return None


def list_confounder_warnings(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """List confounders that the recorded times and hosts reveal; empty if they are unknown."""
    base_hosts, opt_hosts = _collect_known_hosts(base), _collect_known_hosts(opt)
    other_hosts = bool(base_hosts and opt_hosts and not base_hosts & opt_hosts)
    if order := describe_session_order(base, opt):
        where = ", on other hosts" if other_hosts else ""
        yield (
            f"all base runs ran {order} all opt runs{where}: drift between them cannot be separated from the change"
            " (alternate the runs)"
        )
    elif other_hosts:
        yield "the sides ran on different hosts: a difference between hosts cannot be separated from the change"


def describe_session_order(base: ComparedSide, opt: ComparedSide) -> str:
    """Describe the order of sides whose runs do not interleave: "before" or "after".

    Empty if they interleave, or if the order is unknown.
    """
    if min(len(base.spans), len(opt.spans)) < 2:
        return ""
    for first, second, order in ((base, opt, "before"), (opt, base, "after")):
        if max(end for _, _, end in first.spans) <= min(start for _, start, _ in second.spans):
            return order
    return ""


def describe_session_gap(base: ComparedSide, opt: ComparedSide, noise: NoiseFile | None) -> str:
    """Describe that the sides ran in different sessions; empty if not, or if the A/A noise covers as many sessions."""
    gap = measure_session_gap(base.spans, opt.spans)
    if gap is None or (noise is not None and count_sessions(noise.spans) >= LEAST_SESSIONS):
        return ""
    return (
        f"the sides ran {gap / SESSION_GAP_NS:.3g} h apart, and the machine may have changed in between; re-run base next"
        " to opt, alternating"
    )


def _collect_known_hosts(side: ComparedSide) -> set[str]:
    """Collect the known hosts of a side."""
    hosts: set[str] = set()
    for measured in side.measured:
        hosts.update(host for host in measured.frame("captures").values("host") if host is not None)
    return hosts
