"""Does memory grow from step to step? Levels at the same point of every step, and their trend (M15, R19)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.memory.forecast import SLOWING, Projection, project_stacks, project_trend
from tracekit.job.memory.growth_stages import find_growth_stage
from tracekit.job.memory.growth_tables import WORDS, make_guide_tables, make_trend_table
from tracekit.job.memory.survivors import FEW_TIMES, OWNER, KeptStack, find_kept_stacks, match_failures
from tracekit.job.memory.trend import (
    Allocator,
    Series,
    group_series,
    grows_enough,
    grows_together,
    label_series,
    list_logged_series,
    list_profiled_series,
    make_growth_limits,
)
from tracekit.job.report.instances import pick_instances
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Severity, Verdict
from tracekit.model.stats.staircase import Staircase, find_staircase, slows_down
from tracekit.model.stats.trend import GROWS, GrowthLimits, Label, Slope
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.frame import from_rows
from tracekit.model.tables.snapshots import POINT, QUANTITY
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.levels import SNAPSHOT
from tracekit.process.memory.step_levels import measure_step_levels

STEP_LEVELS = Table(
    "step_levels",
    "memory at one point of one step, by a snapshot or a log",
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


_FIND_OBJECTS = "check that code for objects that outlive a step: growing lists and caches, tensors kept with their graph (.item() or .detach())"
_BOUND_IT = (
    "limit its size, or allocate it once: a tensor that results are concatenated to, or a cache that is made again for a "
    "longer history"
)
"""Advice for blocks that are kept, and for blocks that larger ones replace."""

_GOES_DOWN = "every stack with more memory at the end had less in between: this looks like a queue or a cache"

_STAGE_IS_NET = (
    "the stage is the one whose net change per step is the growth: which of its blocks are kept is not recorded"
)

MAX_PLACES = 8
"""Most places of one finding."""

NEVER = 2**63
"""More steps than any run has."""

SURE_STEPS = 15
"""Steps needed to tell a warm-up that levels off from a leak."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the levels in memory snapshots and logs; profiles are measured by `memory`."""
    levels = measure_step_levels(trace)
    return {"step_levels": levels} if levels else {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Judge the slope of every allocator's levels over steps (finding R19)."""
    if not measured.has("memory_steps") and not measured.row_count("step_levels"):
        reason = "no memory was profiled (profile_memory=True of torch.profiler records it)"
        return ANALYSIS.skipped(reason)
    limit, limits = thresholds.of("memory-growth"), make_growth_limits(thresholds.of("memory-growth"))
    series_found = [*list_profiled_series(measured, limits), *list_logged_series(measured, limits)]
    if not series_found:
        reason = "no step to compare: levels are relative to the start of the recording, or no step is known"
        return ANALYSIS.skipped(reason, verdicts=(Verdict("memory-growth", "insufficient data", reason),))
    labels, corrected = label_series(series_found, limits)
    kept = find_kept_stacks(measured, limit)
    holding = [keeper for keeper in kept if keeper.per_step >= limits.slope]
    judged = [
        *_report_kept_stacks(measured, holding, series_found, labels, limit),
        *_judge_growth(measured, series_found, labels, corrected, holding, thresholds),
    ]
    return ANALYSIS.answered(
        metrics=lambda: _headline_slopes(series_found),
        sheets=lambda: (
            make_trend_table(measured, series_found, labels, corrected, limits),
            *make_guide_tables(measured, series_found, labels),
        ),
        judged=judged,
    )


def _headline_slopes(all_series: Sequence[Series]) -> Iterator[Metric]:
    """Report the slope of the least memory in a step, the median over allocators of one kind."""
    for kind in sorted({s.of.kind for s in all_series}):
        of_kind = [s for s in all_series if s.of.kind == kind and s.judged]
        slopes = [s.floor for s in of_kind if s.floor is not None]
        if slopes:
            middle = float(np.median([slope.per_x for slope in slopes]))
            low, high = min(s.low for s in slopes), max(s.high for s in slopes)
            what = "" if all(s.logged for s in of_kind) else "minimum "
            text = f"growth of {what}{kind} memory per step, median over processes"
            name = f"{kind.lower()}_floor_slope"
            yield Metric(name, round(middle), "bytes", "lower", round(low), round(high), text)


def _report_kept_stacks(
    measured: Measurements,
    holding: Sequence[KeptStack],
    all_series: Sequence[Series],
    labels: Sequence[Label | None],
    limit: Mapping[str, float],
) -> Iterator[Finding]:
    """Report R19 by the stronger evidence: a stack whose blocks of several steps are all still in use."""
    sites: dict[tuple[Any, Any, str], list[KeptStack]] = {}
    for keeper in holding:
        sites.setdefault((keeper.process[0], keeper.process[1], keeper.site), []).append(keeper)
    failures = measured.frame("out_of_memory")
    for at_site in sites.values():
        worst = max(at_site, key=lambda keeper: keeper.per_step)
        series, label = _find_series(worst, all_series, labels)
        ahead = project_stacks(holding, worst, series, label)
        slope = series.found.slope if series is not None else None
        soon = _is_by_step(worst) and _is_soon(ahead, limit)
        filling = not soon and slows_down(worst.at, worst.levels)
        if filling:
            ahead = Projection(why=SLOWING)
        yield _describe_kept_stack(
            measured,
            at_site,
            (slope, label),
            ahead,
            # A stack that grew until memory ran out is the cause of that.
            "high"
            if not filling and worst.windows > FEW_TIMES and match_failures(failures, worst).any()
            else _rate_kept_stack(worst, soon, filling),
            phrase_run(measured, worst.process[0]),
        )


def _find_series(
    worst: KeptStack, all_series: Sequence[Series], labels: Sequence[Label | None]
) -> tuple[Series | None, Label | None]:
    """Find (the levels of the process, those that grow before others; their label)."""
    of_process = [
        (series, label)
        for series, label in zip(all_series, labels, strict=True)
        if series.judged and _key_of_owner(series) == worst.process
    ]
    growing = [pair for pair in of_process if pair[1] in GROWS]
    return next(iter(growing or of_process), (None, None))


def _is_by_step(worst: KeptStack) -> bool:
    """Tell whether a stack is known by steps, not only by snapshots."""
    return worst.numbered or worst.basis == "step"


def _is_soon(ahead: Projection, limit: Mapping[str, float]) -> bool:
    """Tell whether the device is full within few steps."""
    return ahead.steps is not None and ahead.steps < limit["oom_steps"]


def _rate_kept_stack(worst: KeptStack, soon: bool, filling: bool) -> Severity:
    """Rate a stack that keeps its blocks."""
    if filling:
        return "info"
    if worst.windows == FEW_TIMES:
        return "low"
    return "high" if soon else "medium"


def _pick_windows(measured: Measurements, keeper: KeptStack) -> tuple[Instance, ...]:
    """Pick the step (or snapshot) with the most memory of the process beyond the first one, and a median one."""
    windows = measured.frame("snapshot_windows")
    run, role, rank, *_, device = keeper.process
    for name, value in (("run", run), ("role", role), ("rank", rank), ("device", device)):
        windows = windows.filter(windows.equals(name, value))
    windows = windows.filter(~windows.is_missing("begin_ns") & ~windows.is_missing("end_ns")).sort("end_ns")
    if not len(windows):
        return ()
    begin, live = windows.integers("begin_ns"), windows.integers("live_bytes")
    times = windows.with_columns(ts_ns=begin, dur_ns=windows.integers("end_ns") - begin, cost=live - live[0])
    return pick_instances(times, "cost", unit="bytes")


def _describe_kept_stack(
    measured: Measurements,
    at_site: Sequence[KeptStack],
    growth: tuple[Slope | None, Label | None],
    ahead: Projection,
    severity: Severity,
    where: str,
) -> Finding:
    """Describe one site, by the numbers of the process in which it grows fastest."""
    worst = max(at_site, key=lambda keeper: keeper.per_step)
    unit = "step" if _is_by_step(worst) else "snapshot"
    units = "steps" if worst.basis == "step" else "snapshots"
    fate = f"is allocated again, larger, in each {unit}" if worst.is_regrown else "is kept"
    more = format_quantity(round(worst.per_step), "bytes")
    place = worst.site if worst.stage is None else f"{worst.site} (stage {worst.stage})"
    claim = f"memory allocated in {place} {fate}: {more} more per {unit}"
    if len(at_site) > 1:
        claim += f", on {len(at_site)} devices"
    claim += ahead.claim(unit) + where
    if severity == "info":
        claim += _advise_longer_recording(worst.windows, units)
    caveats = ["a cache or buffer that is still being filled looks like a leak"]
    if worst.windows == 3:
        caveats.append(f"with three {units} no warm-up is left out")
    if ahead.why:
        caveats.append(ahead.why)
    return Finding(
        "memory-growth",
        severity,
        claim,
        _BOUND_IT if worst.is_regrown else _FIND_OBJECTS,
        (
            Metric("kept", worst.growth, "bytes", "lower", label="growth of the fastest growing stack"),
            Metric("cohorts", worst.cohorts, "count", label=f"{units} with live blocks, of {worst.windows}"),
            Metric("blocks", worst.blocks, "count", label="blocks in use at the end"),
            *_list_total_growth(*growth, unit),
            *ahead.evidence(unit),
        ),
        tuple(_locate_kept_stack(keeper) for keeper in at_site[:MAX_PLACES]),
        instances=_pick_windows(measured, worst),
        caveats=tuple(caveats),
    )


def _locate_kept_stack(keeper: KeptStack) -> Place:
    """Locate a stack."""
    run, role, rank, *_, device = keeper.process
    return Place(run=run, role=role, rank=rank, device=device, stage=keeper.stage, name=keeper.frames)


def _list_total_growth(slope: Slope | None, answer: Label | None, unit: str) -> tuple[Metric, ...]:
    """List the growth of all memory of the process, if known."""
    if slope is None:
        return ()
    label = f"per {unit}, all memory" + ("" if answer is None else f" ({WORDS.get(answer, answer)})")
    low, high = round(slope.low), round(slope.high)
    return (Metric("growth", round(slope.per_x), "bytes", "lower", low, high, label),)


def _key_of_owner(series: Series) -> tuple[Any, ...]:
    """Identify the owner of a series as `KeptStack.process` does."""
    owner = series.of
    return (owner.run, owner.role, owner.rank, owner.host, owner.pid, owner.replica, owner.device)


class _LabelledSeries(NamedTuple):
    """A series, its label, and the probability of such a rise by chance."""

    series: Series
    label: Label | None
    p: float | None


def _judge_growth(
    measured: Measurements,
    every_series: Sequence[Series],
    labels: Sequence[Label | None],
    corrected: Sequence[float | None],
    holding: Sequence[KeptStack],
    thresholds: Thresholds,
) -> Iterator[Finding | Verdict]:
    """Judge R19: memory at the same point of each step rises steadily, and by enough to matter."""
    explained = {keeper.process for keeper in holding}
    judged = [_LabelledSeries(*each) for each in zip(every_series, labels, corrected, strict=True)]
    for group in group_series(every_series):
        members = [judged[place] for place in group]
        if members[0].series.judged:
            yield from _judge_group(measured, members, explained, thresholds)


def _judge_group(
    measured: Measurements,
    members: Sequence[_LabelledSeries],
    explained: Collection[tuple[Any, ...]],
    thresholds: Thresholds,
) -> Iterator[Finding | Verdict]:
    """Judge one group of series: a finding if it grows, a verdict if it has too few steps."""
    limit, limits = thresholds.of("memory-growth"), make_growth_limits(thresholds.of("memory-growth"))
    first, all_series = members[0].series.of, [member.series for member in members]
    what = f"{first.kind} memory"
    if first.role is not None:
        what += f" of {first.role}"
    if all(member.label == "too few" for member in members):
        yield _abstain_with_few_steps(all_series, what, limits, phrase_run(measured, first.run))
        return
    candidates = rising = _select_rising(members, limit)
    if not rising and grows_together(all_series, limits, limit):
        candidates = members
    # Growth that a kept stack explains is reported once.
    grows = [member for member in candidates if _key_of_owner(member.series) not in explained]
    if not grows:
        return
    who = f"{len(grows)} of {len(members)}" if rising else f"all {len(members)}"
    claim = _name_group(what, who, grows, is_total=not rising)
    growing = [member.series for member in grows]
    p = min((member.p for member in grows if member.p is not None), default=None)
    yield _describe_group(measured, growing, claim, limit, p, _pick_label(rising, grows))


def _have_all_stacks(measured: Measurements, grows: Sequence[Series], limit: Mapping[str, float]) -> bool:
    """Check whether enough snapshots of each process list all of its stacks: one that keeps memory would be seen."""
    windows = measured.frame("snapshot_windows")
    windows = windows.filter(~windows.is_missing("window") & (windows["omitted_stack_count"] == 0))
    owners = [from_rows(OWNER, [_key_of_owner(series)]) for series in grows if series.of.device_type == SNAPSHOT]
    counts = [int(windows.is_among(owner, OWNER, optional=OWNER).sum()) for owner in owners]
    return len(counts) == len(grows) and min(counts) > limit["min_steps"]


def _name_group(what: str, who: str, grows: Sequence[_LabelledSeries], *, is_total: bool) -> str:
    """Name the series that grow: `GPU memory of actor, 2 of 4 devices, grows`."""
    first = grows[0].series.of
    if len(grows) == 1:  # its process names the role too
        return f"{first.kind} memory of {first.process} grows"
    owners = "processes" if first.kind == "CPU" else "devices"
    return f"{what}, {who} {owners}{' together' if is_total else ''}, grows"


def _pick_label(rising: Sequence[_LabelledSeries], grows: Sequence[_LabelledSeries]) -> Label | None:
    """Pick the surest label of those that rise, else that of the one that grows fastest; None if none rises alone."""
    if not rising:
        return None
    if any(member.label == "strong" for member in rising):
        return "strong"
    return max(grows, key=lambda member: _find_slope(member.series)).label


def _abstain_with_few_steps(of_group: Sequence[Series], what: str, limits: GrowthLimits, where: str) -> Verdict:
    """Abstain: a group has too few steps to be judged."""
    step_count = max(len(series.x) for series in of_group)
    reason = f"{what}: {step_count} of at least {limits.min_count} steps"
    if any(series.relative for series in of_group):
        reason += " after the first, where levels start"
    return Verdict("memory-growth", "insufficient data", reason + where)


def _select_rising(members: Sequence[_LabelledSeries], limit: Mapping[str, float]) -> Sequence[_LabelledSeries]:
    """Select the series that grow by enough to matter; without any, those that may be filling."""
    large = [member for member in members if grows_enough(member.series, limit)]
    clear = [member for member in large if member.label in GROWS]
    return clear or [member for member in large if member.label == "filling"]


def _find_slope(series: Series) -> float:
    return series.found.slope.per_x if series.found.slope else 0.0


def _advise_longer_recording(count: int, unit: str) -> str:
    """Advise a longer recording for growth that slows down: twice as many steps tell a cache from a leak."""
    return f"; still growing, may be filling: record {count} more {unit}"


def _describe_growth(slope: Slope, stairs: Staircase | None) -> str:
    """Describe growth: `1.00 MiB per step`."""
    if stairs is None:
        return f"{format_quantity(round(slope.per_x), 'bytes')} per step"
    return f"{format_quantity(round(stairs.height), 'bytes')} every {stairs.every} steps"


def _describe_group(
    measured: Measurements,
    grows: Sequence[Series],
    claim: str,
    limit: Mapping[str, float],
    p: float | None,
    answer: Label | None,
) -> Finding:
    """Describe series that grow, by the numbers of the one that grows fastest; `answer` None: only together."""
    worst = max(grows, key=_find_slope)
    slope, floor, firm = worst.found.slope, worst.floor, answer in ("strong", "stairs")
    assert slope is not None, "what grows has a slope"
    assert floor is not None, "what grows has a floor"
    warm_up, filling = worst.found.warm_up, answer == "filling"
    projections = [project_trend(grower, answer) for grower in grows]
    # The device that is full first decides, whichever grows fastest.
    ahead = min(projections, key=lambda grower: grower.steps if grower.steps is not None else NEVER)
    level = worst.level[warm_up:]
    is_large = firm and bool(level[-1] - level[0] >= limit["growth_bytes"])
    # Stacks of as many snapshots are the stronger evidence: none of them only grows.
    goes_down = not is_large and _have_all_stacks(measured, grows, limit)
    severity = _rate_growth(_is_soon(ahead, limit), filling or goes_down, is_large)
    stairs = None
    if answer == "stairs":
        stairs = find_staircase(worst.level) or find_staircase(level)
    stage = _find_common_stage(measured, grows)
    claim += f" by {_describe_growth(slope, stairs)}"
    claim += f", allocated in stage {stage}" if stage else ""
    claim += f"{ahead.claim()}{phrase_run(measured, worst.of.run)}"
    if filling:
        claim += _advise_longer_recording(len(worst.x), "steps")
    numbers = (*_list_trend_numbers(worst, slope, floor, p, len(grows)), *ahead.evidence())
    return Finding(
        "memory-growth",
        severity,
        claim,
        "find objects that outlive a step: losses and metrics kept with their graph (.item() or "
        ".detach()), lists of outputs, caches by shape; a memory snapshot names the stacks",
        numbers,
        tuple(_locate_series(grower, stage) for grower in grows[:MAX_PLACES]),
        instances=_pick_growing_steps(measured, worst.of),
        caveats=(
            *_list_growth_caveats(worst, ahead, firm=firm, goes_down=goes_down),
            *((_STAGE_IS_NET,) if stage else ()),
        ),
    )


def _list_trend_numbers(
    worst: Series, slope: Slope, floor: Slope, p: float | None, series_count: int
) -> Iterator[Metric]:
    """List the evidence for growth: of the series that grows fastest, and the least p of all."""
    low, high, label = round(slope.low), round(slope.high), f"per step, {worst.phase}"
    yield Metric("growth", round(slope.per_x), "bytes", "lower", low, high, label)
    if not worst.logged:
        yield Metric("floor_growth", round(floor.per_x), "bytes", "lower", label="per step, minimum of the step")
    chance = "probability of such a rise by chance"
    yield Metric("p", p, "", label=chance + (", the least" if series_count > 1 else ""))
    detectable = None if worst.found.detectable is None else round(worst.found.detectable)
    label = "smallest growth per step that this many steps can detect"
    yield Metric("detectable", detectable, "bytes", label=label)
    yield Metric("steps", len(worst.x) - worst.found.warm_up, "count", label="steps judged")


def _pick_growing_steps(measured: Measurements, owner: Allocator) -> tuple[Instance, ...]:
    """Pick the step in which the most memory is kept beyond the first step, and a median one; none in logs."""
    steps = measured.frame("memory_steps")
    names = Allocator._fields
    steps = steps.filter(steps.is_among(from_rows(names, [tuple(owner)]), names, optional=names))
    if not len(steps):
        return ()
    steps = steps.sort("ts_ns")
    level = steps.integers("floor_bytes")
    return pick_instances(steps.with_columns(cost=level - level[0]), "cost", unit="bytes")


def _rate_growth(soon: bool, filling: bool, large: bool) -> Severity:
    """Rate series that grow."""
    if filling:
        return "info"
    return "high" if soon else "medium" if large else "low"


def _find_common_stage(measured: Measurements, grows: Sequence[Series]) -> str | None:
    """Find the stage in which the growth of all series is allocated; None if it is unknown or not the same."""
    stages = {find_growth_stage(measured, grower) for grower in grows}
    return stages.pop() if len(stages) == 1 else None


def _locate_series(grower: Series, stage: str | None) -> Place:
    """Locate the rank whose memory grows, and its GPU."""
    owner = grower.of
    device = owner.device if owner.kind != "CPU" else None
    return Place(run=owner.run, role=owner.role, rank=owner.rank, device=device, stage=stage)


def _list_growth_caveats(worst: Series, ahead: Projection, *, firm: bool, goes_down: bool) -> Iterator[str]:
    """List the limits of a trend."""
    yield f"the first {worst.found.warm_up} steps count as warm-up"
    if firm:
        yield "a cache that fills over many more steps looks the same"
    else:
        yield "growth that levels off later, or a sawtooth longer than the capture, looks the same"
    if len(worst.x) < SURE_STEPS:
        yield f"a slow warm-up cannot be separated from a leak in fewer than {SURE_STEPS} steps: memory snapshots of several steps can"
    if goes_down:
        yield _GOES_DOWN
    if ahead.why:
        yield ahead.why


ANALYSIS = Analysis(
    id="memory-growth",
    title="Does memory grow from step to step?",
    reads=("allocations", "blocks", "annotations", "memory_log", "log_values"),
    writes=(STEP_LEVELS,),
    rests_on=(
        "card_lines",
        "device_sizes",
        "memory_peaks",
        "memory_pools",
        "memory_stages",
        "memory_steps",
        "snapshot_levels",
        "snapshot_windows",
        "survivors",
        "out_of_memory",
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
            # the probability of such a rise by chance has to be below this (likely),
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
        }
    },
    measure=measure,
    judge=judge,
)
