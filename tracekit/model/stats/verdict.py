"""The verdict of a comparison: one of four words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, isfinite, log, log1p
from typing import Literal, cast

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import Word, choose_words, is_certain_change
from tracekit.model.stats.estimate import compute_t_tail
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.trend import holm
from tracekit.model.stats.two_levels import (
    MAX_APART_RUNS,
    PROMISE,
    can_show_change,
    compute_two_level_share,
    measure_gaps,
)

Better = Literal["lower", "higher"]
Cap = Literal[
    "no interval", "two steps", "one run each", "one run alone", "two levels", "overlap", "chance", "many comparisons"
]

CAPS: dict[Cap, str] = {
    "no interval": "no confidence interval: the change cannot be separated from noise",
    "two steps": "two steps of one run are too few to separate a change from noise",
    "one run each": "one run per side cannot separate a change from run-to-run noise",
    "one run alone": "one run on a side does not show the run-to-run noise",
    "two levels": "with so few runs, two performance levels of equal runs can look like this",
    "overlap": "the runs of both sides overlap or nearly do: with so few runs this may be chance",
    "chance": "with so few runs or such uneven steps, equal sides can look this different by chance",
    "many comparisons": "among so many comparisons this may be chance",
}
"""Reasons why a verdict may be weaker than its interval; `describe_caps` adds the numbers of a comparison."""

SHORT_CAPS: dict[Cap, str] = {
    "no interval": "no confidence interval",
    "two steps": "only two steps of one run",
    "one run each": "one run per side",
    "one run alone": "one run on a side",
    "two levels": "equal runs may have two levels",
    "overlap": "the runs of both sides overlap",
    "chance": "too few runs",
    "many comparisons": "one of many comparisons",
}
"""The reasons in a few words, for the line of the verdict."""

LEAST_EFFECT = 0.03
"""Default share up to which changes do not matter."""


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """The word for a comparison, and its evidence.

    `uncapped` is the word of the interval alone, and `caps` are the reasons why it is not given. `effect` is the share that a
    change had to exceed (0.03 = 3 %). `worse` is the log change for the worse (below 0: for the better). `p` is the two-sided
    probability of seeing such a change beyond `effect` without one; None without an interval.
    """

    word: Word
    uncapped: Word
    caps: tuple[Cap, ...]
    effect: float
    worse: float | None
    p: float | None


def choose_verdict(
    comparison: Speedup,
    *,
    min_effect: float = LEAST_EFFECT,
    better: Better = "lower",
    assume_independent_steps: bool = False,
) -> ComparisonVerdict:
    """Choose the word for a comparison: its whole interval beyond ±δ, inside, or neither.

    δ is `ln(1 + min_effect)`; beside steps of one run per side at least the spread of calibrated runs. A side with one run and
    no A/A noise stays inconclusive unless its steps are declared independent. Two steps of one run are always inconclusive,
    and so is a comparison without an interval. A change needs enough runs to rule out two levels of equal runs
    (`two_levels.can_show_change`), must exceed the difference that equal sides hardly ever show
    (`certainty.compute_certain_change`), and with up to four runs per side the sides must not overlap.

    >>> from tracekit.model.stats.speedup import compute_speedup
    >>> choose_verdict(compute_speedup([[10, 11, 10, 11, 10]] * 2, [[20, 21, 20, 21, 20]] * 2)).word
    'inconclusive'
    >>> choose_verdict(compute_speedup([[10], [11], [10], [10.5]], [[21], [20], [21], [20]])).word
    'regression'
    """
    delta = compute_effect_threshold(comparison, min_effect)
    sign = _get_worse_sign(better)
    worse = -sign * comparison.log_ratio
    if comparison.low is None or comparison.high is None or comparison.se is None or comparison.df is None:
        caps: tuple[Cap, ...] = ("no interval",)
        return ComparisonVerdict("inconclusive", "inconclusive", caps, float(np.expm1(delta)), worse, None)
    ends = sorted((-sign * log(comparison.low), -sign * log(comparison.high)))
    word = cast(Word, choose_words(np.asarray(ends[0]), np.asarray(ends[1]), delta).item())
    caps = () if word == "inconclusive" else list_caps(comparison, assume_independent_steps)
    if word in ("regression", "improvement") and not caps:
        caps = tuple(_list_change_caps(comparison, assume_independent_steps))
    return ComparisonVerdict(
        word="inconclusive" if caps else word,
        uncapped=word,
        caps=caps,
        effect=float(np.expm1(delta)),
        worse=worse,
        p=min(2 * float(compute_t_tail((abs(worse) - delta) / comparison.se, comparison.df)), 1.0),
    )


def correct_verdicts(verdicts: Sequence[ComparisonVerdict], *, level: float = 0.95) -> tuple[ComparisonVerdict, ...]:
    """Correct verdicts shown together by Holm's method: changes that do not survive become inconclusive.

    The order is kept. Comparisons without an interval are not part of the family.
    """
    adjusted = iter(holm([judgement.p for judgement in verdicts if judgement.p is not None]))
    corrected = []
    for judgement in verdicts:
        unsure = judgement.p is not None and next(adjusted) >= 1 - level
        if unsure and judgement.word in ("regression", "improvement"):
            caps: tuple[Cap, ...] = (*judgement.caps, "many comparisons")
            corrected.append(replace(judgement, word="inconclusive", caps=caps))
        else:
            corrected.append(judgement)
    return tuple(corrected)


def compute_effect_threshold(comparison: Speedup, min_effect: float) -> float:
    """Compute δ on the log scale: the least effect; of a side of one run at least the spread of calibrated runs."""
    delta = _convert_log_effect(min_effect)
    single_run = min(comparison.base.runs, comparison.opt.runs) == 1 and comparison.design != "paired runs"
    return max(delta, comparison.noise.sd) if comparison.noise is not None and single_run else delta


def list_caps(comparison: Speedup, assume_independent_steps: bool) -> tuple[Cap, ...]:
    """List the reasons why no word of the interval can be given, whichever it is."""
    caps: list[Cap] = []
    steps = "steps" in comparison.design
    if steps and min(comparison.base.steps, comparison.opt.steps) < 3:
        caps.append("two steps")
    single_run = steps or (comparison.design == "runs" and min(comparison.base.runs, comparison.opt.runs) == 1)
    if single_run and comparison.noise is None and not assume_independent_steps:
        caps.append("one run each" if steps else "one run alone")
    return tuple(caps)


def _list_change_caps(comparison: Speedup, assume_independent_steps: bool) -> Iterator[Cap]:
    """List the reasons why these runs cannot show a change."""
    is_of_runs = not ("steps" in comparison.design and assume_independent_steps)
    if is_of_runs and not can_comparison_show_change(comparison):
        yield "two levels"
    elif comparison.design == "runs" and not _is_comparison_apart(comparison):
        yield "overlap"
    elif not is_certain_change(comparison.log_ratio, comparison.spreads):
        yield "chance"


def can_comparison_show_change(comparison: Speedup) -> bool:
    """Whether the runs of a comparison are enough to show a change."""
    return can_show_change(*_count_runs(comparison))


def _count_runs(comparison: Speedup) -> tuple[int, int, int]:
    """Count the runs of base and opt, and earlier ones of base whose values are known."""
    earlier = comparison.earlier
    is_known = earlier is not None and earlier.widest is not None
    return comparison.base.runs, comparison.opt.runs, earlier.runs if earlier is not None and is_known else 0


def _is_comparison_apart(comparison: Speedup) -> bool:
    widest = 0.0
    if comparison.earlier is not None and comparison.earlier.widest is not None:
        widest = float(comparison.earlier.widest)
    return bool(measure_gaps(np.array(comparison.base.logs), np.array(comparison.opt.logs), widest).is_apart())


def describe_caps(caps: Iterable[Cap], comparison: Speedup) -> tuple[str, ...]:
    """Describe why a verdict is weaker than its interval, with the numbers of the comparison."""
    base, opt, earlier = _count_runs(comparison)
    share = f"{ceil(1000 * compute_two_level_share(base + earlier, opt)) / 10:g} %"
    texts = {**CAPS}
    compared = f"{base + earlier} v {opt} equal runs"
    if compute_two_level_share(base + earlier, opt) <= PROMISE:
        promise = f"{100 * PROMISE:g} %"
        texts["two levels"] = (
            f"{compared} on several performance levels may look like this in more than {promise} of comparisons"
        )
    elif min(base, opt) == 1:
        texts["two levels"] = (
            f"one run may be a slow one by chance: up to {share} of comparisons of {compared} look like this; record"
            f" {MAX_APART_RUNS} runs per side"
        )
    else:
        texts["two levels"] = f"{compared} on two performance levels look like this in up to {share} of comparisons"
    return tuple(texts[cap] for cap in caps)


def explain_inconclusive(verdict: ComparisonVerdict, comparison: Speedup, *, assume_independent_steps: bool) -> str:
    """Explain in a few words why a comparison is inconclusive; empty if it is not."""
    if verdict.word != "inconclusive":
        return ""
    caps = verdict.caps or list_caps(comparison, assume_independent_steps)
    if caps:
        return SHORT_CAPS[caps[0]]
    if comparison.low is not None and comparison.high is not None and comparison.low <= 1 <= comparison.high:
        return "the interval includes no change"
    return f"the interval includes changes below {100 * verdict.effect:.2g} %"


def _get_worse_sign(better: Better) -> int:
    """Map the better direction to 1 if a rise is for the worse, −1 if it is for the better."""
    signs = {"lower": 1, "higher": -1}
    if better not in signs:
        raise ValueError(f"`better` must be 'lower' or 'higher', not {better!r}")
    return signs[better]


def _convert_log_effect(effect: float) -> float:
    """Convert an effect to the log scale; raise ValueError if it is not a valid share."""
    if not (isfinite(effect) and effect >= 0):
        raise ValueError(f"the minimum effect cannot be {effect}")
    return log1p(effect)
