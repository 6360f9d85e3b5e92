"""Logs of two sides at equal length: raw change, change per token, and change at the mean length of both.

Answers lengthen while a model learns, and a step has a fixed part. Raw times and times per token then differ without any change
of the code. The verdict is that at equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tracekit.compare.comparison import Change, Difference, LengthChange, LengthComparison, Word
from tracekit.job.run_log.counted_steps import PERIODIC, Mask
from tracekit.job.run_log.lengths import LEAST_STEPS_OF_TWO
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.job.run_log.values import Floats
from tracekit.model.metrics import UNPROFILED, UNPROFILED_STAGE
from tracekit.model.stats.equal_length import (
    LEAST_FIT,
    EqualLengthChange,
    compare_at_equal_length,
    fit_at_length,
    measure_range_overlap,
)
from tracekit.model.units import format_quantity

MIN_VERDICT_STEPS = 15
"""Fewest steady steps per side for a word."""

LEAST_OVERLAP, FULL_OVERLAP = 0.05, 0.3
"""Overlap of the ranges of length up to which no verdict is given, and below which it is an extrapolation."""

LEAST_VARIATION = 0.01
"""Smallest relative spread of the lengths of both sides that changes times."""

MOST_CLIPPED = 0.2
"""Share of answers at the longest length, on one side only, that makes lengths incomparable."""

_FIXED = ("update_weights", "reward", "adv", *PERIODIC)
"""Stages whose time does not depend on length."""

_GENERATION = "gen"


def _choose_covariates(steps: LoggedSteps, rows: Mask, stage: str | None, opposite_count: int) -> Floats | None:
    """Choose the covariates of a stage (None: the step) in columns, the range of the first counts; None without tokens.

    `opposite_count` is the number of steady steps of the other side: both sides need the same covariates.
    """
    framework = steps.log.framework
    tokens, longest = steps.log.get_first(*framework.tokens), steps.log.get_first(*framework.longest)
    if tokens is None or not np.isfinite(tokens[rows]).all():
        return None
    columns = [tokens[rows]]
    has_longest = longest is not None and bool(np.isfinite(longest[rows]).all())
    is_two = has_longest and min(int(rows.sum()), opposite_count) >= LEAST_STEPS_OF_TWO
    if longest is not None and is_two and not steps.mode.is_async and stage in (None, _GENERATION):
        columns.append(longest[rows])
    return np.column_stack(columns)


def compare_lengths(
    base: LoggedSteps, opt: LoggedSteps, *, level: float = 0.95, min_effect: float = 0.03
) -> LengthComparison | None:
    """Compare two logs at equal length; None if a side has no tokens, or too few steps."""
    counts = base.counted.steady_count, opt.counted.steady_count
    x0 = _choose_covariates(base, base.counted.steady, None, counts[1])
    x1 = _choose_covariates(opt, opt.counted.steady, None, counts[0])
    if x0 is None or x1 is None or min(counts) < 3:
        return None
    overlap = measure_range_overlap(x0[:, 0], x1[:, 0])
    changes = []
    for stage in (None, *_list_common_stages(base, opt)):
        change = _compare_stage(base, opt, stage, (level, min_effect))
        if change is not None:
            changes.append(change)
    means = float(x0[:, 0].mean()), float(x1[:, 0].mean())
    at = float(np.concatenate([x0[:, 0], x1[:, 0]]).mean())
    unlike = tuple(list_log_differences([base], [opt]))
    return LengthComparison(tuple(changes), overlap, means[0], means[1], at, unlike) if changes else None


def pool_lengths(
    base: Sequence[LoggedSteps], opt: Sequence[LoggedSteps], changes: Iterable[Change]
) -> LengthComparison | None:
    """Combine several logs per side: changes raw and per token, and at equal length by run, from the judged `changes`.

    None if a log has no tokens, or too few steps. The times of `changes` are those at the mean length of all logs.
    """
    first, second = _pool_token_counts(base), _pool_token_counts(opt)
    if first is None or second is None:
        return None
    common = set(_list_common_stages(base[0], opt[0]))
    for steps in (*base, *opt):
        common.intersection_update(_list_common_stages(steps, steps))
    compared = [change for change in changes if _is_length_change(change, common)]
    rows = tuple(row for change in compared if (row := _pool_stage(base, opt, change)) is not None)
    at = float(np.concatenate([first, second]).mean())
    means = float(first.mean()), float(second.mean())
    unlike = tuple(list_log_differences(base, opt))
    overlap = measure_range_overlap(first, second)
    return LengthComparison(rows, overlap, means[0], means[1], at, unlike, by_run=True) if rows else None


def _pool_token_counts(side: Sequence[LoggedSteps]) -> Floats | None:
    """Concatenate the tokens per step of all logs of a side; None if a log has none."""
    counts = [of_log for steps in side if (of_log := _get_token_counts(steps)) is not None]
    return np.concatenate(counts) if len(counts) == len(side) else None


def _is_length_change(change: Change, stages: Container[str | None]) -> bool:
    """Check whether a change is that of the logged step or of a common stage."""
    return (change.name == UNPROFILED and change.stage is None) or (
        change.name == UNPROFILED_STAGE and change.stage in stages
    )


def _pool_stage(base: Sequence[LoggedSteps], opt: Sequence[LoggedSteps], change: Change) -> LengthChange | None:
    """Combine one stage (or the step) of several logs; None if a log lacks it in a steady step."""
    means, rates = [], []
    for side in (base, opt):
        seconds = [_get_seconds(steps, change.stage) for steps in side]
        known = [of_log for of_log in seconds if of_log is not None]
        if len(known) < len(side):
            return None
        tokens = sum(float(counts.sum()) for steps in side if (counts := _get_token_counts(steps)) is not None)
        means.append(float(np.mean([of_log.mean() for of_log in known])))
        rates.append(sum(float(of_log.sum()) for of_log in known) / tokens)
    times = means[0] * 1e9, means[1] * 1e9
    low, high = (None if end is None else 1 / end - 1 for end in (change.high, change.low))
    at_equal = times[1] / times[0] - 1 if change.ratio is None else 1 / change.ratio - 1
    return LengthChange(
        change.stage,
        times[0],
        times[1],
        times[1] / times[0] - 1,
        rates[1] / rates[0] - 1,
        at_equal,
        low,
        high,
        change.word,
        "fixed work" if change.stage in _FIXED else change.reason,
    )


def measure_log_level(steps: LoggedSteps, logs: Sequence[LoggedSteps]) -> float | None:
    """Measure the step time of a log at the mean length of all logs, in s; None without lengths of each log."""
    fewest = min(log.counted.steady_count for log in logs)
    parts = [
        _choose_covariates(log, log.counted.steady, None, fewest) if log.counted.is_enough else None for log in logs
    ]
    known = [part for part in parts if part is not None]
    x, t = _choose_covariates(steps, steps.counted.steady, None, fewest), _get_seconds(steps, None)
    if len(known) < len(parts) or x is None or t is None:
        return None
    return fit_at_length(x, t, np.concatenate(known).mean(axis=0)).level


def get_mean_tokens(steps: LoggedSteps) -> float | None:
    """Get the mean number of tokens of the steady steps; None if unknown."""
    counts = _get_token_counts(steps)
    return None if counts is None else float(counts.mean())


def lacks_common_length(lengths: LengthComparison | None) -> bool:
    """Check whether the lengths of two logs hardly overlap: their steps cannot be compared."""
    return lengths is not None and lengths.overlap <= LEAST_OVERLAP


def describe_compared_lengths(lengths: LengthComparison | None) -> list[str]:
    """Describe at which length two logs are compared, and how far their lengths overlap, or why they are not."""
    if lengths is None:
        return []
    whole = next((change for change in lengths.changes if change.stage is None), None)
    if whole is not None and whole.change is None:
        return [f"no verdict at equal length: {whole.note}"]
    if lengths.base_tokens == lengths.opt_tokens:
        return []
    text = (
        f"times are at equal length ({lengths.at:,.0f} tokens per step): "
        f"{lengths.base_tokens:,.0f} and {lengths.opt_tokens:,.0f} were logged, and their ranges overlap by {format_quantity(lengths.overlap, 'ratio')}"
    )
    if lengths.overlap <= LEAST_OVERLAP:
        return [f"{text}: no verdict"]
    return [text + (": the verdict is an extrapolation" if lengths.overlap < FULL_OVERLAP else "")]


def _list_common_stages(base: LoggedSteps, opt: LoggedSteps) -> list[str]:
    """List the stages of both logs that every steady step has, longest first; waits and periodic stages are left out."""
    found: dict[str, float] = {}
    for stage in base.stages:
        if stage.where == "inside" and not stage.is_wait and stage.canonical not in PERIODIC:
            found[stage.canonical] = float(np.nanmean(stage.seconds))
    opt_stages = {stage.canonical for stage in opt.stages if stage.where == "inside" and not stage.is_wait}
    return sorted((stage for stage in found if stage in opt_stages), key=lambda stage: -found[stage])


def _get_seconds(steps: LoggedSteps, stage: str | None) -> Floats | None:
    """Get the seconds of a stage (None: the step) in the steady steps; None where a step lacks it."""
    seconds = steps.step_s if stage is None else steps.sum_stage_seconds(stage)
    if seconds is None:
        return None
    steady = seconds[steps.counted.steady]
    return steady if (steady > 0).all() else None


def _compare_stage(
    base: LoggedSteps, opt: LoggedSteps, stage: str | None, limits: tuple[float, float]
) -> LengthChange | None:
    """Compare one stage, or the step."""
    t0, t1 = _get_seconds(base, stage), _get_seconds(opt, stage)
    if t0 is None or t1 is None:
        return None
    x0 = _choose_covariates(base, base.counted.steady, stage, len(t1))
    x1 = _choose_covariates(opt, opt.counted.steady, stage, len(t0))
    if x0 is None or x1 is None:
        return None
    is_fixed = stage in _FIXED
    if is_fixed:
        change = compare_at_equal_length((np.ones((len(t0), 1)), t0), (np.ones((len(t1), 1)), t1), level=limits[0])
    else:
        change = compare_at_equal_length((x0, t0), (x1, t1), level=limits[0])
    if change is None:
        return None
    per_token = float((t1.sum() / x1[:, 0].sum()) / (t0.sum() / x0[:, 0].sum()) - 1)
    word, note = _choose_length_word(change, min(len(t0), len(t1)), limits[1], is_step=stage is None)
    return LengthChange(
        stage,
        float(t0.mean()) * 1e9,
        float(t1.mean()) * 1e9,
        change.raw,
        per_token,
        change.change if change.is_determined else None,
        change.low if change.is_determined else None,
        change.high if change.is_determined else None,
        word,
        "fixed work" if is_fixed and not note else note,
    )


def _choose_length_word(change: EqualLengthChange, count: int, min_effect: float, *, is_step: bool) -> tuple[Word, str]:
    """Choose the word for a change at equal length, and a note on its limits."""
    is_fitted = not is_step and change.r2 >= LEAST_FIT and change.curvature_p > 0.05
    if not change.is_determined:
        return "inconclusive", f"{count} steady steps are too few for an interval"
    if change.overlap <= LEAST_OVERLAP and not is_fitted:
        return "inconclusive", "lengths do not overlap: no verdict"
    if count < MIN_VERDICT_STEPS:
        return "inconclusive", f"{count} of at least {MIN_VERDICT_STEPS} steps"
    note = "by extrapolation" if change.overlap < FULL_OVERLAP else ""
    if change.high < 0 and change.change <= -min_effect:
        return "improvement", note
    if change.low > 0 and change.change >= min_effect:
        return "regression", note
    inside = change.low > -min_effect and change.high < min_effect
    return ("no change" if inside else "inconclusive"), note


def list_log_differences(base: Sequence[LoggedSteps], opt: Sequence[LoggedSteps]) -> Iterator[Difference]:
    """List what makes logs incomparable: trainer, GPUs, truncated answers, samples per step. Logs of one side must agree too."""
    yield from _list_log_fact_differences(
        base, opt, "trainer", _get_trainer, "one name means different times in other trainers"
    )
    yield from _list_log_fact_differences(base, opt, "gpus", _format_gpu_count, "another number of GPUs")
    clipped = [_average_log_facts(map(_get_clip_ratio, side)) for side in (base, opt)]
    if clipped[0] is not None and clipped[1] is not None and (clipped[0] > MOST_CLIPPED) != (clipped[1] > MOST_CLIPPED):
        meaning = "lengths are cut on one side"
        yield Difference("truncated answers", f"{clipped[0]:.0%}", f"{clipped[1]:.0%}", blocking=True, meaning=meaning)
    samples = [_average_log_facts(map(_count_log_samples, side)) for side in (base, opt)]
    if samples[0] and samples[1] and abs(samples[1] / samples[0] - 1) > LEAST_VARIATION:
        first, second = f"{samples[0]:,.0f}", f"{samples[1]:,.0f}"
        yield Difference("samples per step", first, second, blocking=True, meaning="another batch")


def _list_log_fact_differences(
    base: Sequence[LoggedSteps], opt: Sequence[LoggedSteps], name: str, get: Callable[[LoggedSteps], str], meaning: str
) -> Iterator[Difference]:
    """List the difference of a fact that all logs must share; empty texts are unknown."""
    first, second = (sorted({text for steps in side if (text := get(steps))}) for side in (base, opt))
    if first and second and len({*first, *second}) > 1:
        yield Difference(name, ", ".join(first), ", ".join(second), blocking=True, meaning=meaning)


def _get_trainer(steps: LoggedSteps) -> str:
    return steps.mode.label


def _average_log_facts(values: Iterable[float | None]) -> float | None:
    """Average the known values; None without any."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _format_gpu_count(steps: LoggedSteps) -> str:
    return "" if steps.gpus is None else str(steps.gpus)


def _get_clip_ratio(steps: LoggedSteps) -> float | None:
    clipped = steps.get_steady("response_length/clip_ratio")
    return None if clipped is None else float(np.nanmedian(clipped))


def _count_log_samples(steps: LoggedSteps) -> float | None:
    """Count the samples per step: tokens over the mean length of prompt and answer."""
    tokens = steps.get_steady("perf/total_num_tokens")
    prompt, answer = steps.get_steady("prompt_length/mean"), steps.get_steady("response_length/mean")
    if tokens is None or prompt is None or answer is None:
        return None
    return float(np.median(tokens / (prompt + answer)))


Correction = Mapping[tuple[int, str | None], float]
"""Nanoseconds by step number and stage (None: the step) that a time exceeds that at the compared length."""


def compute_length_corrections(logs: Sequence[LoggedSteps | None]) -> tuple[Correction, ...]:
    """Compute how far the times of each log exceed those at the mean length of all.

    Empty unless each log has lengths, and they vary.
    """
    known = [steps for steps in logs if steps is not None]
    lengths = [counts for steps in known if (counts := _get_token_counts(steps)) is not None]
    if not lengths or len(lengths) < len(logs):
        return ()
    pooled = np.concatenate(lengths)
    if float(pooled.std()) <= LEAST_VARIATION * float(pooled.mean()):
        return ()
    fewest = min(steps.counted.steady_count for steps in known)
    parts = [_choose_covariates(steps, steps.counted.steady, None, fewest) for steps in known]
    at = np.concatenate([part for part in parts if part is not None]).mean(axis=0)
    return tuple(_compute_log_corrections(steps, at, fewest) for steps in known)


def _get_token_counts(steps: LoggedSteps) -> Floats | None:
    """Get the tokens of the steady steps; None without them, or with fewer than 6 such steps."""
    counts = steps.get_steady(*steps.log.framework.tokens) if steps.counted.is_enough else None
    return counts if counts is not None and np.isfinite(counts).all() else None


def _compute_log_corrections(steps: LoggedSteps, lengths: Floats, fewest: int) -> Correction:
    """Compute how far the times of one log exceed those at some lengths."""
    more: dict[tuple[int, str | None], float] = {}
    for stage in (None, *_list_common_stages(steps, steps)):
        seconds = _get_seconds(steps, stage)
        x = _choose_covariates(steps, steps.counted.steady, stage, fewest)
        if seconds is None or x is None or stage in _FIXED:
            continue
        length = lengths[: x.shape[1]]
        away = (x - length) @ np.array(fit_at_length(x, seconds, length).slopes)
        numbers = steps.log.step[steps.counted.steady].tolist()
        more |= {(number, stage): float(ns) for number, ns in zip(numbers, away * 1e9, strict=True)}
    return more
