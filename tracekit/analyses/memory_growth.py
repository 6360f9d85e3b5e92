"""Does memory grow from step to step? Levels at the same point of every step, and their trend (M15, R19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.allocators import Series, groups, labelled, matters, series, together
from tracekit.pooling import in_run, run_heading
from tracekit.report import Finding, Heading, Metric, Place, Section, Severity, Sheet, Verdict
from tracekit.sheets import sheet
from tracekit.stats.trend import Label, Limits
from tracekit.thresholds import Thresholds
from tracekit.trace import Measurements, Trace
from tracekit.units import show

ID, TITLE = "memory-growth", "Does memory grow from step to step?"
NEEDS = ()
RULES = ("memory-growth",)

MAX_PLACES = 8
"""Most places of one finding."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Nothing of its own: it judges what `memory` measures."""
    del trace
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """The slope of every allocator's levels over steps; finding R19."""
    if not measured.has("memory_steps"):
        reason = "no memory was profiled (profile_memory=True of torch.profiler records it)"
        return Section(ID, TITLE, "skipped", reason)
    limits = _limits(thresholds)
    found = list(series(measured, limits))
    if not found:
        reason = (
            "no step to compare: levels count from the start of the recording, or no step is known"
        )
        verdict = Verdict("memory-growth", "insufficient data", reason)
        return Section(ID, TITLE, "skipped", reason, verdicts=(verdict,))
    labels = labelled(found, limits)
    judged = list(_growth(measured, found, labels, thresholds))
    return Section(
        ID,
        TITLE,
        metrics=tuple(_slopes(found)),
        sheets=(_trend_sheet(measured, found, labels),),
        findings=tuple(j for j in judged if isinstance(j, Finding)),
        verdicts=tuple(j for j in judged if isinstance(j, Verdict)),
    )


def _slopes(found: Sequence[Series]) -> Iterator[Metric]:
    """The slope of the least memory in a step, the median over allocators of one kind."""
    for kind in sorted({s.of.kind for s in found}):
        slopes = [s.floor for s in found if s.of.kind == kind and s.floor is not None]
        if slopes:
            middle = float(np.median([slope.per_x for slope in slopes]))
            low, high = min(s.low for s in slopes), max(s.high for s in slopes)
            text = f"growth of the least {kind} memory per step, median over processes"
            yield Metric(
                f"{kind.lower()}_floor_slope", round(middle), "bytes", "lower", round(low), round(high), text
            )  # fmt: skip


def _limits(thresholds: Thresholds) -> Limits:
    limit = thresholds.of("memory-growth")
    return Limits(
        int(limit["min_steps"]), limit["slope_bytes"], limit["slope_ratio"], limit["flat_bytes"],
        limit["p_likely"], limit["p_strong"], limit["late_ratio"],
    )  # fmt: skip


def _growth(
    measured: Measurements, found: Sequence[Series], labels: Sequence[Label], thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """R19: what is allocated at the same point of each step rises steadily, and by enough to matter."""
    limit, limits = thresholds.of("memory-growth"), _limits(thresholds)
    for group in groups(found):
        first = found[group[0]].of
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
        rising = [
            i for i in group if labels[i] in ("likely", "strong") and matters(found[i], limit)
        ]
        strong = any(labels[i] == "strong" for i in rising)
        grows = [found[i] for i in rising]
        many = "processes" if first.kind == "CPU" else "devices"
        who = f"{len(grows)} of {len(group)} {many}"
        if not grows:
            grows = together([found[i] for i in group], limits, limit)
            who = f"all {len(group)} {many} together"
        if grows:
            # One series alone is named by its process, which tells the role too.
            alone = len(grows) == 1
            claim = f"{first.kind} memory of {grows[0].of.process}" if alone else f"{what}, {who},"
            yield _leak(measured, grows, f"{claim} grows", limit, strong=strong)


def _leak(
    measured: Measurements,
    grows: Sequence[Series],
    claim: str,
    limit: Mapping[str, float],
    *,
    strong: bool,
) -> Finding:
    """The finding on series that grow, by the numbers of the one that grows fastest."""
    worst = max(grows, key=lambda s: s.found.slope.per_x if s.found.slope else 0.0)
    slope, floor, card = worst.found.slope, worst.floor, worst.card_bytes
    assert slope is not None, "what grows has a slope"
    assert floor is not None, "what grows has a floor"
    left = None if card is None else max(card - worst.peak_bytes, 0) / slope.per_x
    severity: Severity = "medium" if strong else "low"
    severity = "high" if left is not None and left < limit["oom_steps"] else severity
    caveats = [f"the first {worst.found.warm_up} steps count as warm-up"]
    if not strong:
        caveats.append("growth that levels off later, or a sawtooth longer than the capture, looks the same")  # fmt: skip
    return Finding(
        "memory-growth",
        severity,
        f"{claim} by {show(round(slope.per_x), 'bytes')} per step{in_run(measured, worst.of.run)}",
        "look for what is kept from step to step: losses and metrics that hold their graph (.item() or "
        ".detach()), lists of outputs, caches by shape; a memory snapshot names the stacks",
        (
            Metric("growth", round(slope.per_x), "bytes", "lower", round(slope.low), round(slope.high), f"per step, {worst.phase}"),
            Metric("floor_growth", round(floor.per_x), "bytes", "lower", label="per step, least in the step"),
            Metric("steps", len(worst.x) - worst.found.warm_up, "count", label="steps judged"),
            Metric("steps_left", None if left is None else int(left), "count", "higher", label="steps until the card is full"),
        ),
        tuple(Place(role=one.of.role, rank=one.of.rank, device=one.of.device if one.of.kind != "CPU" else None) for one in grows[:MAX_PLACES]),
        caveats=tuple(caveats),
    )  # fmt: skip


_WORDS = {
    "too few": "too few steps to judge",
    "none": "no steady growth",
    "saturating": "levels off",
    "shift": "one jump",
    "likely": "grows (likely)",
    "strong": "grows",
}


def _trend_sheet(measured: Measurements, found: Sequence[Series], labels: Sequence[Label]) -> Sheet:
    shown = pd.DataFrame(
        {
            "run": [s.of.run for s in found],
            "who": [s.of.process for s in found],
            "memory": [s.of.memory for s in found],
            "steps": [len(s.x) for s in found],
            "floor": [None if s.floor is None else round(s.floor.per_x) for s in found],
            "floor_low": [None if s.floor is None else round(s.floor.low) for s in found],
            "floor_high": [None if s.floor is None else round(s.floor.high) for s in found],
            "phase": [s.phase if s.phase.startswith("end") else None for s in found],
            "point": [None if s.point is None or not s.phase.startswith("end") else round(s.point.per_x) for s in found],
            "detectable": [None if s.found.detectable is None else round(s.found.detectable) for s in found],
            "answer": [_WORDS.get(answer, answer) for answer in labels],
        }
    )  # fmt: skip
    numbers = ("floor", "floor_low", "floor_high", "point", "detectable")
    shown = shown.astype(dict.fromkeys(numbers, "Int64"))
    headings = (
        *run_heading(measured),
        Heading("who", "process"),
        Heading("memory", "memory of"),
        Heading("steps", "steps", "count", "Compared; the first is left out where levels are relative."),
        Heading("floor", "floor slope", "bytes", "Bytes per step by which the least level of a step grows (median of pairs)."),
        Heading("floor_low", "from", "bytes", "90 % interval; all pairs where there are few."),
        Heading("floor_high", "to", "bytes"),
        Heading("phase", "same point", "text", "The point at which steps are compared."),
        Heading("point", "slope there", "bytes", "Bytes per step."),
        Heading("detectable", "would be seen from", "bytes", "Least growth per step that so many steps show in 4 of 5 cases."),
        Heading("answer", "trend"),
    )  # fmt: skip
    return sheet("memory_trend", "Growth from step to step", headings, shown)
