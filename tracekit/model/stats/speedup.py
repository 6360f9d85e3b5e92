"""Speedup between two sides: the ratio of means, with a confidence interval that depends on the design."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import ErrorSpread, compute_half_width
from tracekit.model.stats.designs import (
    WELCH_FROM,
    Design,
    EarlierRuns,
    IntervalTerms,
    compute_design_terms,
    compute_log_run_means,
    list_error_spreads,
)
from tracekit.model.stats.estimate import Floats, Runs, check_level, check_runs
from tracekit.model.stats.noise import LEAST_RUNS, Noise
from tracekit.model.stats.odd_values import has_odd_values

Label = Literal[
    "run-to-run",
    "run-to-run (equal spread assumed)",
    "within-run",
    "run-to-run (A/A noise)",
    "within-run, paired",
    "run-to-run, paired",
    "exact",
    "no interval",
]
Pairing = Literal["run", "step"]
Footnote = Literal[
    "one step",
    "two steps",
    "few steps",
    "one pair of runs",
    "two runs",
    "own spread",
    "no variation",
    "too wide",
    "median disagrees",
    "noise of few runs",
    "noise without spread",
    "noise of longer runs",
    "not exact",
]

FOOTNOTES: dict[Footnote, str] = {
    "one step": "one step on a side: its noise is unknown, and the interval too",
    "two steps": "two steps on a side: too few for a verdict with one run each",
    "few steps": "few steps: three or four give only a rough spread for the interval",
    "one pair of runs": "one pair of runs: its noise is unknown, and the interval too",
    "two runs": "two runs on a side: the spread between runs is rough",
    "own spread": "one side varies more than the other: each side's own spread was used",
    "no variation": "the values do not vary at all: this does not prove zero noise",
    "too wide": "the values spread too far for an interval",
    "median disagrees": "the medians disagree with the means by more than half of the interval",
    "noise of few runs": f"the A/A noise is of fewer than {LEAST_RUNS} runs and was not used",
    "noise without spread": "the calibrated runs do not differ at all; their noise was not used",
    "noise of longer runs": "the A/A noise is of runs with more steps than these have",
    "not exact": "the values of a side differ between its steps or runs: they are not exact",
}
"""Text of each footnote of a comparison."""

WIDEST = 700.0
"""Half-width of logarithms from which the ratio does not fit in a float."""


@dataclass(frozen=True, slots=True)
class SideStats:
    """One side of a comparison: `mean` of the run means, `median` of all steps.

    `fewest` is the smallest number of steps in a run, `logs` the logarithms of run means. `spread` is the standard deviation
    of one unit on the log scale: of run means if there are several (one for both sides if equal spread is assumed), else of
    steps. None if unknown, or if pairs were compared.
    """

    runs: int
    steps: int
    fewest: int
    mean: float
    median: float
    spread: float | None
    logs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster the second side is: `ratio` above 1 means that it takes less.

    `low` and `high` bound the ratio at `level` by Student's t on `df` with standard error `se` of `log_ratio`; all are None
    without an interval. `label` states what they cover. `spreads` lists all uncertainties that a change must exceed, including
    that of the interval. `grand_ratio` is the ratio of the sides' arithmetic means, whose `difference` (second minus first)
    attribution adds up to; `median_ratio` is that of the medians. `rho` is the lag-1 correlation of steps, `pair_spread` the
    standard deviation of one pair on the log scale; each is None if unused. `noise` is the A/A calibration for verdicts and
    plans; None without a usable one. `earlier` are its runs as far as they are not of the base.
    `is_odd`: a few odd steps or runs decide the spread.
    """

    label: Label
    design: Design
    level: float
    ratio: float
    log_ratio: float
    low: float | None
    high: float | None
    se: float | None
    df: float | None
    spreads: tuple[ErrorSpread, ...]
    base: SideStats
    opt: SideStats
    grand_ratio: float
    difference: float
    median_ratio: float
    rho: float | None
    pair_spread: float | None
    noise: Noise | None
    earlier: EarlierRuns | None
    is_odd: bool
    footnotes: tuple[Footnote, ...]


@dataclass(frozen=True, slots=True)
class ExactComparison:
    """A comparison of two exact numbers; without a ratio if the second is zero.

    If a side's own values differ, `equal` is None, the label is "no interval", and `base` and `opt` are means.
    """

    label: Label
    equal: bool | None
    base: float
    opt: float
    difference: float
    ratio: float | None
    footnotes: tuple[Footnote, ...]


def compute_speedup(
    base: Runs, opt: Runs, *, level: float = 0.95, noise: Noise | None = None, paired: Pairing | None = None
) -> Speedup:
    """Compute `mean(base) / mean(opt)` with the interval that the number of runs and steps supports.

    Values are per step, in order, positive, lower is better; ranks are already reduced. Several runs: t on log run means
    (`compute_between_run_terms`). One run each: t on the log ratio of means, with steps counted by their lag-1 correlation.
    Given at least four calibrated runs, `noise` adds to what is known of the spread of runs. Use `paired` only for declared
    pairs.

    >>> found = compute_speedup([[10.2, 10.4, 10.1, 10.6, 10.3]], [[9.1, 9.3, 9.0, 9.2, 9.4]])
    >>> f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}] {found.label}"
    '1.122 [1.093, 1.151] within-run'
    """
    check_level(level)
    sides = check_runs(base, positive=True, side="base"), check_runs(opt, positive=True, side="opt")
    design = _choose_design(sides, paired)
    earlier = None
    if noise is not None and design != "paired runs":
        earlier = noise.list_earlier_runs(compute_log_run_means(sides[0]).tolist())
    is_known = _has_interval(sides, design)
    terms = compute_design_terms(*sides, design, earlier) if is_known else None
    label = _label_interval(design, terms)
    spreads = _compute_unit_spreads(sides, label, terms, earlier)
    first, second = (_summarize_side_stats(parts, spread) for parts, spread in zip(sides, spreads, strict=True))
    comparison = Speedup(
        label="no interval",
        design=design,
        level=level,
        ratio=1.0,
        log_ratio=0.0,
        low=None,
        high=None,
        se=None,
        df=None,
        spreads=(),
        base=first,
        opt=second,
        grand_ratio=first.mean / second.mean,
        difference=second.mean - first.mean,
        median_ratio=first.median / second.median,
        rho=None,
        pair_spread=None,
        noise=noise if noise is not None and noise.usable else None,
        earlier=earlier,
        is_odd=any(has_odd_values(parts) for parts in sides),
        footnotes=tuple(_list_footnotes(first, second, design, noise, terms, earlier)),
    )
    if terms is None:
        log_ratio = _compute_log_ratio(sides)
        return replace(comparison, ratio=float(np.exp(log_ratio)), log_ratio=log_ratio)
    log_ratio = float(terms.log_ratio)
    comparison = replace(
        comparison,
        ratio=float(np.exp(log_ratio)),
        log_ratio=log_ratio,
        rho=None if terms.rho is None else float(terms.rho),
        pair_spread=_compute_pair_spread(first, design, terms),
    )
    return _add_interval(comparison, label, sides, terms)


def _compute_pair_spread(side: SideStats, design: Design, terms: IntervalTerms) -> float | None:
    """Compute the spread of the difference of one pair; None if no pairs were compared."""
    pairs = {"paired steps": side.steps, "paired runs": side.runs}.get(design)
    if pairs is None:
        return None
    return float((pairs * float(terms.variance)) ** 0.5)


def describe_footnotes(comparison: Speedup) -> tuple[str, ...]:
    """Describe the footnotes of a comparison."""
    base, opt = comparison.base.spread, comparison.opt.spread
    texts = {**FOOTNOTES}
    if base and opt:
        more, less = ("opt", "base") if opt > base else ("base", "opt")
        times = max(base, opt) / min(base, opt)
        texts["own spread"] = f"{more} varies {times:.2g} times as much as {less}: each side's own spread was used"
    return tuple(texts[footnote] for footnote in comparison.footnotes)


def compare_exact(base: Runs, opt: Runs) -> ExactComparison:
    """Compare numbers that do not vary: bytes, counts, operations.

    Each side's values (of any sign) must be the same in all its steps and runs.

    >>> compare_exact([[512, 512]], [[384]]).difference
    -128.0
    """
    first = np.concatenate(check_runs(base, positive=False, side="base"))
    second = np.concatenate(check_runs(opt, positive=False, side="opt"))
    is_exact = bool((first == first[0]).all() and (second == second[0]).all())
    before, after = (float(side[0] if is_exact else side.mean()) for side in (first, second))
    return ExactComparison(
        label="exact" if is_exact else "no interval",
        equal=before == after if is_exact else None,
        base=before,
        opt=after,
        difference=after - before,
        ratio=before / after if after else None,
        footnotes=() if is_exact else ("not exact",),
    )


def _choose_design(sides: tuple[list[Floats], list[Floats]], paired: Pairing | None) -> Design:
    """Choose the comparison design; raise ValueError if declared pairs do not fit."""
    base, opt = sides
    if paired == "run":
        if len(base) != len(opt):
            raise ValueError(f"runs cannot be paired: {len(base)} against {len(opt)}")
        return "paired runs"
    if paired == "step":
        if len(base) > 1 or len(opt) > 1:
            raise ValueError("steps are paired between one run and one other, not between several")
        if len(base[0]) != len(opt[0]):
            raise ValueError(f"steps cannot be paired: {len(base[0])} against {len(opt[0])}")
        return "paired steps"
    if paired is not None:
        raise ValueError(f"pairs are of 'run' or 'step', not {paired!r}")
    return "steps" if len(base) == len(opt) == 1 else "runs"


def _has_interval(sides: tuple[list[Floats], list[Floats]], design: Design) -> bool:
    """Whether there are at least two units to know their spread from."""
    base, opt = sides
    units = {"runs": 2, "paired runs": len(base)}.get(design, min(len(base[0]), len(opt[0])))
    return units >= 2


def _label_interval(design: Design, terms: IntervalTerms | None) -> Label:
    """Label the interval of this design, before earlier runs widen it."""
    if terms is None:
        return "no interval"
    if terms.is_own is not None:
        return "run-to-run" if terms.is_own else "run-to-run (equal spread assumed)"
    labels: dict[Design, Label] = {
        "paired runs": "run-to-run, paired",
        "paired steps": "within-run, paired",
        "steps": "within-run",
    }
    return labels[design]


def _compute_log_ratio(sides: tuple[list[Floats], list[Floats]]) -> float:
    """Compute the log ratio of sides without an interval."""
    base, opt = (float(np.mean([np.log(part.mean()) for part in parts])) for parts in sides)
    return base - opt


def _compute_unit_spreads(
    sides: tuple[list[Floats], list[Floats]], label: Label, terms: IntervalTerms | None, earlier: EarlierRuns | None
) -> tuple[float | None, float | None]:
    """Compute the spread of one unit on each side; None if unknown, or if pairs were compared."""
    if label == "run-to-run (equal spread assumed)" and terms is not None:
        shared = float(np.sqrt(terms.variance / sum(1 / len(parts) for parts in sides)))
        return shared, shared
    if label == "run-to-run":
        base, opt = (np.log([part.mean() for part in parts]) for parts in sides)
        squares, df = base.var() * len(base), len(base) - 1
        if earlier is not None:
            squares, df = squares + earlier.squares, df + earlier.runs - 1
        return float((squares / df) ** 0.5), float(opt.std(ddof=1))
    if label == "within-run":
        base, opt = (parts[0].std(ddof=1) / parts[0].mean() for parts in sides)
        return float(base), float(opt)
    return None, None


def _summarize_side_stats(parts: list[Floats], spread: float | None) -> SideStats:
    """Summarize one side."""
    steps = np.concatenate(parts)
    return SideStats(
        runs=len(parts),
        steps=len(steps),
        fewest=min(len(part) for part in parts),
        mean=float(np.mean([part.mean() for part in parts])),
        median=float(np.median(steps)),
        spread=spread,
        logs=tuple(compute_log_run_means(parts).tolist()),
    )


def _list_footnotes(
    first: SideStats,
    second: SideStats,
    design: Design,
    noise: Noise | None,
    terms: IntervalTerms | None,
    earlier: EarlierRuns | None,
) -> list[Footnote]:
    """List the caveats about how little was measured."""
    notes: list[Footnote] = []
    if "steps" in design:
        fewest = min(first.steps, second.steps)
        few: dict[int, Footnote] = {1: "one step", 2: "two steps", 3: "few steps", 4: "few steps"}
        if fewest in few:
            notes.append(few[fewest])
    elif design == "paired runs" and first.runs == 1:
        notes.append("one pair of runs")
    elif 2 in (first.runs, second.runs):
        notes.append("two runs")
    if terms is not None and _chose_own_spread(first, second, terms, earlier):
        notes.append("own spread")
    if noise is not None and design != "paired runs":
        if not noise.usable:
            notes.append("noise of few runs" if noise.runs < LEAST_RUNS else "noise without spread")
        elif min(first.fewest, second.fewest) < noise.steps:
            notes.append("noise of longer runs")
    return notes


def _chose_own_spread(first: SideStats, second: SideStats, terms: IntervalTerms, earlier: EarlierRuns | None) -> bool:
    """Whether each side has its own spread only because one seems to vary more."""
    would_share = min(first.runs, second.runs) < WELCH_FROM or earlier is not None
    return would_share and terms.is_own is not None and bool(terms.is_own)


def _add_interval(
    comparison: Speedup, label: Label, sides: tuple[list[Floats], list[Floats]], terms: IntervalTerms
) -> Speedup:
    """Add the interval to a comparison, or the footnote that explains its absence.

    The half-width is the widest of the spreads, so calibrated noise counts only if it is wider than the terms.
    """
    all_spreads = list_error_spreads(*sides, comparison.design, terms, comparison.earlier)
    spreads = tuple(
        replace(spread, se=float(spread.se), df=float(spread.df)) for spread in all_spreads if not np.isnan(spread.se)
    )
    widening = [spread for spread in spreads if spread.widens]
    if not widening:
        return replace(comparison, se=0.0, footnotes=(*comparison.footnotes, "no variation"))
    if comparison.earlier is not None:
        label = "run-to-run (A/A noise)"
    widest = max(widening, key=lambda spread: float(compute_half_width([spread], comparison.level)))
    half, se, df = (float(compute_half_width(spreads, comparison.level)), float(widest.se), float(widest.df))
    if not half + abs(comparison.log_ratio) < WIDEST:
        return replace(comparison, se=se, df=df, footnotes=(*comparison.footnotes, "too wide"))
    notes = list(comparison.footnotes)
    if abs(float(np.log(comparison.median_ratio)) - comparison.log_ratio) > half:
        notes.append("median disagrees")
    return replace(
        comparison,
        label=label,
        low=float(np.exp(comparison.log_ratio - half)),
        high=float(np.exp(comparison.log_ratio + half)),
        se=se,
        df=df,
        spreads=spreads,
        footnotes=tuple(notes),
    )
