"""Does memory grow from step to step? Levels at the same point of every step, and their trend (M15, R19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import in_run
from tracekit.job.growth_sheets import WORDS, guide_sheets, trend_sheet
from tracekit.job.memory_survivors import Kept, kept
from tracekit.job.memory_trend import (
    Series,
    groups,
    labelled,
    logged_series,
    matters,
    series,
    together,
)
from tracekit.job.projections import SLOWING, Projection, of_stacks, of_trend
from tracekit.model.report import Finding, Metric, Place, Section, Severity, Verdict
from tracekit.model.stats.staircase import Staircase, slows_down, staircase
from tracekit.model.stats.trend import GROWS, Label, Limits, Slope
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.snapshots import POINT, QUANTITY
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.memory.step_levels import step_levels

STEP_LEVELS = Table(
    "step_levels",
    "how much memory was held at one point of one step, by a snapshot or a log",
    {
        **KEYS,
        "device": DEVICE,
        "step": STEP,
        "position": Column("int64", "Order of time, or of lines, within the source."),
        "at_ns": Column("Int64", "When, ns since the Unix epoch."),
        "point": POINT,
        "quantity": QUANTITY,
        "level_bytes": Column("int64", "Held then."),
    },
)


MAX_PLACES = 8
"""Most places of one finding."""

NEVER = 2**63
"""More steps than any run has."""

SURE_STEPS = 15
"""From so many steps on a warm-up that levels off is told from a leak."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The levels that memory snapshots and logs tell of; for profiles it judges what `memory` measures."""
    found = step_levels(trace)
    if not len(found.columns):
        return {}
    return {"step_levels": {str(name): found[name].array for name in found}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """The slope of every allocator's levels over steps; finding R19."""
    if not measured.has("memory_steps") and not len(measured["step_levels"]):
        reason = "no memory was profiled (profile_memory=True of torch.profiler records it)"
        return Section(ANALYSIS.id, ANALYSIS.title, "skipped", reason)
    limits = _limits(thresholds)
    found = [*series(measured, limits), *logged_series(measured, limits)]
    if not found:
        reason = (
            "no step to compare: levels count from the start of the recording, or no step is known"
        )
        verdict = Verdict("memory-growth", "insufficient data", reason)
        return Section(ANALYSIS.id, ANALYSIS.title, "skipped", reason, verdicts=(verdict,))
    labels, corrected = labelled(found, limits)
    holding = [
        one
        for one in kept(measured, thresholds.of("memory-growth"))
        if one.per_step >= limits.slope
    ]
    judged = [
        *_holding(measured, holding, found, labels, thresholds.of("memory-growth")),
        *_growth(measured, found, labels, corrected, holding, thresholds),
    ]
    return Section(
        ANALYSIS.id,
        ANALYSIS.title,
        metrics=tuple(_slopes(found)),
        sheets=(
            trend_sheet(measured, found, labels, corrected, limits),
            *guide_sheets(measured, found, labels),
        ),
        findings=tuple(j for j in judged if isinstance(j, Finding)),
        verdicts=tuple(j for j in judged if isinstance(j, Verdict)),
    )


def _slopes(found: Sequence[Series]) -> Iterator[Metric]:
    """The slope of the least memory in a step, the median over allocators of one kind."""
    for kind in sorted({s.of.kind for s in found}):
        mine = [s for s in found if s.of.kind == kind and s.judged]
        slopes = [s.floor for s in mine if s.floor is not None]
        if slopes:
            middle = float(np.median([slope.per_x for slope in slopes]))
            low, high = min(s.low for s in slopes), max(s.high for s in slopes)
            what = "" if all(s.logged for s in mine) else "the least "
            text = f"growth of {what}{kind} memory per step, median over processes"
            yield Metric(
                f"{kind.lower()}_floor_slope", round(middle), "bytes", "lower", round(low), round(high), text
            )  # fmt: skip


def _limits(thresholds: Thresholds) -> Limits:
    limit = thresholds.of("memory-growth")
    return Limits(
        int(limit["min_steps"]), limit["slope_bytes"], limit["slope_ratio"], limit["flat_bytes"],
        limit["p_likely"], limit["p_strong"], limit["late_ratio"],
    )  # fmt: skip


def _holding(
    measured: Measurements,
    holding: Sequence[Kept],
    found: Sequence[Series],
    labels: Sequence[Label | None],
    limit: Mapping[str, float],
) -> Iterator[Finding]:
    """R19 by the stronger evidence: a stack whose blocks of several steps are all still in use."""
    sites: dict[tuple[Any, Any, str], list[Kept]] = {}
    for one in holding:
        sites.setdefault((one.process[0], one.process[1], one.site), []).append(one)
    for (run, role, site), mine in sites.items():
        worst = max(mine, key=lambda one: one.per_step)
        own = [i for i, s in enumerate(found) if s.judged and _process(s) == worst.process]
        trend = next((i for i in own if labels[i] in GROWS), own[0] if own else None)
        unit = "step" if worst.numbered or worst.basis == "step" else "snapshot"
        many = "steps" if worst.basis == "step" else "snapshots"
        slope = None if trend is None else found[trend].found.slope
        told = labels[trend] if trend is not None else None
        ahead = of_stacks(holding, worst, None if trend is None else found[trend], told)
        soon = unit == "step" and ahead.steps is not None and ahead.steps < limit["oom_steps"]
        filling = not soon and slows_down(worst.at, worst.levels)
        ahead = Projection(why=SLOWING) if filling else ahead
        caveats = [
            "a cache or a buffer that is still being filled looks like a leak until it is full"
        ]
        if worst.windows == 3:
            caveats.append(f"with three {many} no warm-up is left out")
        caveats += [ahead.why] if ahead.why else []
        yield Finding(
            "memory-growth",
            "info" if filling else "low" if worst.windows == 3 else "high" if soon else "medium",
            f"what {site} allocates is kept: {show(round(worst.per_step), 'bytes')} more per {unit}"
            + (f", on {len(mine)} devices" if len(mine) > 1 else "")
            + ahead.claim(unit)
            + in_run(measured, run)
            + (_may_be_filling(worst.windows, many) if filling else ""),
            "look there for what outlives a step: lists and caches that are only added to, tensors kept with "
            "their graph (.item() or .detach())",
            (
                Metric("kept", worst.growth, "bytes", "lower", label="growth of the stack that grows fastest"),
                Metric("cohorts", worst.cohorts, "count", label=f"{many} of which blocks are alive, of {worst.windows}"),
                Metric("blocks", worst.blocks, "count", label="blocks in use at the end"),
                *_whole(slope, told, unit),
                *ahead.evidence(unit),
            ),
            tuple(
                Place(role=role, rank=one.process[2], device=one.process[6], name=one.frames)
                for one in mine[:MAX_PLACES]
            ),
            caveats=tuple(caveats),
        )  # fmt: skip


def _whole(slope: Slope | None, told: Label | None, unit: str) -> tuple[Metric, ...]:
    """The growth of all memory of the process, where anything tells it."""
    if slope is None:
        return ()
    label = f"per {unit}, all memory" + ("" if told is None else f" ({WORDS.get(told, told)})")
    low, high = round(slope.low), round(slope.high)
    return (Metric("growth", round(slope.per_x), "bytes", "lower", low, high, label),)


def _process(one: Series) -> tuple[Any, ...]:
    """Whose memory a series is, as `Kept.process` names it."""
    of = one.of
    return (of.run, of.role, of.rank, of.host, of.pid, of.replica, of.device)


def _growth(
    measured: Measurements,
    found: Sequence[Series],
    labels: Sequence[Label | None],
    corrected: Sequence[float | None],
    holding: Sequence[Kept],
    thresholds: Thresholds,
) -> Iterator[Finding | Verdict]:
    """R19: what is allocated at the same point of each step rises steadily, and by enough to matter."""
    limit, limits = thresholds.of("memory-growth"), _limits(thresholds)
    explained = {one.process for one in holding}
    for group in groups(found):
        first = found[group[0]].of
        if not found[group[0]].judged:
            continue
        what = f"{first.kind} memory" + ("" if first.role is None else f" of {first.role}")
        if all(labels[i] == "too few" for i in group):
            most = max(len(found[i].x) for i in group)
            first_out = any(found[i].relative for i in group)
            reason = f"{what}: {most} of at least {limits.min_count} steps" + (
                " after the first, from which levels count" if first_out else ""
            )
            yield Verdict(
                "memory-growth", "insufficient data", reason + in_run(measured, first.run)
            )
            continue
        clear = [i for i in group if labels[i] in GROWS and matters(found[i], limit)]
        slowing = [i for i in group if labels[i] == "filling" and matters(found[i], limit)]
        rising = clear or slowing
        strong = any(labels[i] == "strong" for i in rising)
        # What a stack is known to keep is not told twice.
        grows = [i for i in rising if _process(found[i]) not in explained]
        many = "processes" if first.kind == "CPU" else "devices"
        who = f"{len(grows)} of {len(group)} {many}"
        if not rising:
            alone = together([found[i] for i in group], limits, limit)
            grows = [i for i in group if found[i] in alone and _process(found[i]) not in explained]
            who = f"all {len(group)} {many} together"
        if grows:
            # One series alone is named by its process, which tells the role too.
            single = len(grows) == 1
            claim = (
                f"{first.kind} memory of {found[grows[0]].of.process}"
                if single
                else f"{what}, {who},"
            )
            fastest = max(grows, key=lambda i: _slope_of(found[i]))
            p = min((q for i in grows if (q := corrected[i]) is not None), default=None)
            yield _leak(
                measured, [found[i] for i in grows], f"{claim} grows", limit, p,
                "strong" if strong else labels[fastest] if rising else None,
            )  # fmt: skip


def _slope_of(one: Series) -> float:
    return one.found.slope.per_x if one.found.slope else 0.0


def _may_be_filling(count: int, many: str) -> str:
    """What is said after the growth of what slows down; twice as long a run tells a cache from a leak."""
    return f"; still growing, may be filling: record {count} more {many}"


def _by_how_much(slope: Slope, stairs: Staircase | None) -> str:
    """The growth in words."""
    if stairs is None:
        return f"{show(round(slope.per_x), 'bytes')} per step"
    return f"{show(round(stairs.height), 'bytes')} every {stairs.every} steps"


def _leak(
    measured: Measurements,
    grows: Sequence[Series],
    claim: str,
    limit: Mapping[str, float],
    p: float | None,
    answer: Label | None,
) -> Finding:
    """The finding on series that grow, by the numbers of the one that grows fastest; `answer` None: only together."""
    worst = max(grows, key=_slope_of)
    slope, floor, firm = worst.found.slope, worst.floor, answer in ("strong", "stairs")
    assert slope is not None, "what grows has a slope"
    assert floor is not None, "what grows has a floor"
    every = [of_trend(one, answer) for one in grows]
    # The device that is full first decides, whichever grows fastest.
    ahead = min(every, key=lambda one: one.steps if one.steps is not None else NEVER)
    level = worst.level[worst.found.warm_up :]
    severity: Severity = (
        "medium" if firm and level[-1] - level[0] >= limit["growth_bytes"] else "low"
    )
    severity = "high" if ahead.steps is not None and ahead.steps < limit["oom_steps"] else severity
    stairs = staircase(worst.level) or staircase(level) if answer == "stairs" else None
    severity = "info" if answer == "filling" else severity
    caveats = [f"the first {worst.found.warm_up} steps count as warm-up"]
    if firm:
        caveats.append("a cache that fills over many more steps than these looks the same")
    else:
        caveats.append("growth that levels off later, or a sawtooth longer than the capture, looks the same")  # fmt: skip
    if len(worst.x) < SURE_STEPS:
        caveats.append(f"a slow warm-up cannot be told from a leak in fewer than {SURE_STEPS} steps: memory snapshots of several steps can")  # fmt: skip
    caveats += [ahead.why] if ahead.why else []
    found = worst.found
    return Finding(
        "memory-growth",
        severity,
        f"{claim} by {_by_how_much(slope, stairs)}{ahead.claim()}{in_run(measured, worst.of.run)}"
        + (_may_be_filling(len(worst.x), "steps") if answer == "filling" else ""),
        "look for what is kept from step to step: losses and metrics that hold their graph (.item() or "
        ".detach()), lists of outputs, caches by shape; a memory snapshot names the stacks",
        (
            Metric("growth", round(slope.per_x), "bytes", "lower", round(slope.low), round(slope.high), f"per step, {worst.phase}"),
            *(() if worst.logged else (Metric("floor_growth", round(floor.per_x), "bytes", "lower", label="per step, least in the step"),)),
            Metric("p", p, "", label="chance of such a rise without a trend" + ("" if len(grows) == 1 else ", the least")),
            Metric("detectable", None if found.detectable is None else round(found.detectable), "bytes", label="growth per step that so many steps would show"),
            Metric("steps", len(worst.x) - found.warm_up, "count", label="steps judged"),
            *ahead.evidence(),
        ),
        tuple(Place(role=one.of.role, rank=one.of.rank, device=one.of.device if one.of.kind != "CPU" else None) for one in grows[:MAX_PLACES]),
        caveats=tuple(caveats),
    )  # fmt: skip


ANALYSIS = Analysis(
    id="memory-growth",
    title="Does memory grow from step to step?",
    reads=("allocations", "blocks", "annotations", "memory_log", "log_values"),
    writes=(STEP_LEVELS,),
    rests_on=(
        "device_sizes",
        "memory_peaks",
        "memory_stages",
        "memory_steps",
        "snapshot_levels",
        "survivors",
    ),
    rules=("memory-growth",),
    thresholds={
        "memory-growth": {
            # Fewer steps give no trend.
            "min_steps": 6,
            # The slope, in bytes per step, has to reach this,
            "slope_bytes": 262_144,
            # and this share of the level, per step;
            "slope_ratio": 0.00001,
            # a range of at most so many bytes is flat;
            "flat_bytes": 1_048_576,
            # the chance of such a rise without a trend has to be below this (likely),
            "p_likely": 0.05,
            # or this (strong), where one jump does not explain it;
            "p_strong": 0.01,
            # the slope of the later half has to be at least this share of the whole slope;
            "late_ratio": 0.5,
            # and all the growth seen has to reach so many bytes
            "growth_bytes": 67_108_864,
            # and this share of the card.
            "card_ratio": 0.01,
            # By snapshots: a stack never holds less, holds more in this share of the steps,
            "rising_ratio": 0.8,
            # and blocks of so many steps are still in use.
            "cohorts": 3,
            # High when the card would be full within so many steps.
            "oom_steps": 200,
        },
    },
    measure=measure,
    judge=judge,
)
