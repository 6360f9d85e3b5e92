"""Changes of every metric between two sides: the ratio, its interval, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from tracekit.compare.comparison import Change, Word
from tracekit.compare.gate_rules import NO_RULES, GateRules
from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import ComparedSide, average_runs, is_all_positive
from tracekit.compare.work_units import WINDOW_KEY, choose_work_unit, has_no_steps, is_whole_recording_sum
from tracekit.job.steps.metric_samples import Key, MetricSamples
from tracekit.model.metrics import (
    ENGINE_METRICS,
    LAUNCH_CADENCE,
    METRICS,
    PER_WORK,
    RANGE_CADENCE,
    RAY_SPAN,
    STAGE_TIME,
    STEP_AND_STAGES,
    STEP_TIME,
    UNPROFILED,
    UNPROFILED_STAGE,
    MetricKind,
    get_metric_title,
)
from tracekit.model.records import dataclass
from tracekit.model.stats.differences import compare_means
from tracekit.model.stats.outlook import draw_comparisons, find_detectable_change
from tracekit.model.stats.speedup import (
    FOOTNOTES,
    Pairing,
    Speedup,
    compare_exact,
    compute_speedup,
    describe_footnotes,
)
from tracekit.model.stats.verdict import (
    CAPS,
    LEAST_EFFECT,
    SHORT_CAPS,
    ComparisonVerdict,
    choose_verdict,
    compute_effect_threshold,
    correct_verdicts,
    describe_caps,
    explain_inconclusive,
    list_caps,
)


@dataclass(frozen=True, slots=True)
class ComparisonChoices:
    """The user's choices for a comparison; the defaults are conservative."""

    min_effect: float = LEAST_EFFECT
    level: float = 0.95
    noise: NoiseFile | None = None
    paired: Pairing | None = None
    assume_independent_steps: bool = False
    force: bool = False
    drop_first: int | None = None
    gate: GateRules = NO_RULES


STEP: Key = (STEP_TIME, None, None)
_NUMBER = itemgetter(1)  # the step number in a step's id
UNPROFILED_STEP: Key = (UNPROFILED, None, None)
ENGINE_KEY: Key = (ENGINE_METRICS[0], None, None)
"""Throughput of rollout engines."""
RAY_KEY: Key = (RAY_SPAN, None, None)
"""Length of a timeline of Ray."""


def choose_headline_metric(base: ComparedSide, opt: ComparedSide, *, force: bool = False) -> Key:
    """Choose the metric that the headline compares.

    It is the unprofiled step if both sides have it, else the profiled step. Of logs of engines alone it is their
    throughput, of timelines of Ray alone their length. Without step marks it is the unit of work that both sides have, or with `force` the whole recording.
    """
    both = base.samples.keys() & opt.samples.keys()
    if UNPROFILED_STEP in both:
        return UNPROFILED_STEP
    if not any(key in side.samples for key in (STEP, WINDOW_KEY) for side in (base, opt)):
        for key in (ENGINE_KEY, RAY_KEY):
            if key in both:
                return key
    if not (has_no_steps(base) or has_no_steps(opt)):
        return STEP
    unit = choose_work_unit(base, opt)
    if not isinstance(unit, str):
        return unit
    return WINDOW_KEY if force and WINDOW_KEY in both else STEP


_HEADLINE_RANKS = {
    UNPROFILED: -1,
    STEP_TIME: 0,
    STAGE_TIME: 1,
    UNPROFILED_STAGE: 1,
    RANGE_CADENCE: 1,
    LAUNCH_CADENCE: 1,
}
"""Sort rank of the metrics that precede all others; within rank 1 the longest is first."""


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change and its verdict; None if this kind of metric has no interval."""

    change: Change
    verdict: ComparisonVerdict | None = None


def compare_metrics(base: ComparedSide, opt: ComparedSide, choices: ComparisonChoices) -> tuple[Change, ...]:
    """Compare the step, then stages from the longest, then all other job-wide metrics by name.

    The step answers the question. All other metrics are tested together, so Holm's correction applies to them.
    """
    answered = choose_headline_metric(base, opt, force=choices.force)
    judged = list(_judge_metrics(base, opt, choices, answered))
    changes = map(_clear_direction, _apply_holm_to_changes(judged, choices.level, answered))
    return tuple(sorted(changes, key=_rank_change))


def _clear_direction(change: Change) -> Change:
    """Call a change of a metric without a better direction changed, neither faster nor slower."""
    if change.better != "neither" or change.word not in ("regression", "improvement"):
        return change
    return replace(change, word="changed")


def _rank_change(change: Change) -> tuple[int, float, str, str]:
    """Sort key: the step first, then recurring metrics by length, then all others in registry order."""
    rank = _HEADLINE_RANKS.get(change.name)
    length = 0.0
    if rank == 1:
        length = max(change.base or 0.0, change.opt or 0.0)
    if rank is None:
        rank = 2 + list(METRICS).index(change.name)
    return rank, -length, change.role or "", change.stage or ""


def _judge_metrics(
    base: ComparedSide, opt: ComparedSide, choices: ComparisonChoices, answered: Key
) -> Iterator[JudgedChange]:
    """Judge every metric with time on either side.

    Metrics of whole recordings are skipped, because they do not belong to a unit of work.
    """
    for key in sorted(base.samples.keys() | opt.samples.keys(), key=str):
        of_recording = is_whole_recording_sum(key, base) or is_whole_recording_sum(key, opt)
        if of_recording and key != answered:
            continue
        judged = _judge_metric(key, base.samples.get(key), opt.samples.get(key), choices)
        if judged is not None:
            yield judged


def _apply_holm_to_changes(judged: Sequence[JudgedChange], level: float, answered: Key) -> list[Change]:
    """Apply Holm's correction to the verdicts, except those of the step and of `answered`."""
    uncorrected = {STEP, UNPROFILED_STEP, answered}
    corrected = [metric.change for metric in judged]
    places, verdicts = [], []
    for place, metric in enumerate(judged):
        if (
            metric.verdict is not None
            and (metric.change.name, metric.change.role, metric.change.stage) not in uncorrected
        ):
            places.append(place)
            verdicts.append(metric.verdict)
    for place, verdict_among_many in zip(places, correct_verdicts(verdicts, level=level), strict=True):
        change = corrected[place]
        if verdict_among_many.word != change.word:
            notes = (*change.notes, CAPS["many comparisons"])
            reason = SHORT_CAPS["many comparisons"]
            corrected[place] = replace(change, word=verdict_among_many.word, notes=notes, reason=reason)
    return corrected


def _judge_metric(
    key: Key, base: MetricSamples | None, opt: MetricSamples | None, choices: ComparisonChoices
) -> JudgedChange | None:
    """Judge one metric; None if neither side spent any time on it."""
    kind = METRICS[key[0]]
    change: Change | None
    if base is None or opt is None:
        change = _judge_one_sided_metric(key, kind, base, opt)
    elif kind.exact:
        change = _judge_exact_metric(key, kind, base, opt)
    elif is_all_positive(base) and is_all_positive(opt):
        return _judge_metric_interval(key, kind, base, opt, choices)
    else:
        change = _compare_times_with_zeros(key, kind, base, opt)
        change = _judge_engine_difference(change, base, opt, choices) if change else None
    if change is None:
        return None
    return JudgedChange(change)


def _judge_engine_difference(
    change: Change, base: MetricSamples, opt: MetricSamples, choices: ComparisonChoices
) -> Change:
    """Judge a metric of engines that is zero in some windows by the interval of its difference; leaves others as they are."""
    if change.name not in ENGINE_METRICS:
        return change
    found = compare_means(base.values, opt.values, level=choices.level)
    change = replace(
        change, difference_low=found.low, difference_high=found.high, label=found.label, notes=(), reason=""
    )
    if found.low is None or found.high is None:
        return replace(change, reason=SHORT_CAPS["no interval"])
    if min(len(base.runs), len(opt.runs)) < 2 and not choices.assume_independent_steps:
        return replace(change, reason=SHORT_CAPS["one run each"])
    smallest = choices.min_effect * found.base
    if found.low > smallest or found.high < -smallest:
        is_worse = (found.low > 0) != (change.better == "higher")
        return replace(change, word="regression" if is_worse else "improvement")
    return change


def _judge_metric_interval(
    key: Key, kind: MetricKind, base: MetricSamples, opt: MetricSamples, choices: ComparisonChoices
) -> JudgedChange:
    """Judge a metric that varies by its interval."""
    ratio, pairing_notes = compute_metric_speedup(base, opt, choices)
    judgement = choose_verdict(
        ratio,
        min_effect=choices.min_effect,
        better="higher" if kind.better == "higher" else "lower",
        assume_independent_steps=choices.assume_independent_steps,
    )
    notes = (*describe_footnotes(ratio), *describe_caps(judgement.caps, ratio))
    detectable_change = None
    if key[0] in STEP_AND_STAGES:
        detectable_change = find_detectable_metric_change(ratio, choices)
    change = replace(
        _make_empty_change(key, kind, judgement.word),
        base=ratio.base.mean,
        opt=ratio.opt.mean,
        difference=ratio.difference,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        grand_ratio=ratio.grand_ratio,
        median_ratio=ratio.median_ratio,
        label=ratio.label,
        detectable=detectable_change,
        base_runs=ratio.base.runs,
        base_steps=ratio.base.steps,
        opt_runs=ratio.opt.runs,
        opt_steps=ratio.opt.steps,
        notes=(*notes, *pairing_notes),
        reason=explain_inconclusive(judgement, ratio, assume_independent_steps=choices.assume_independent_steps),
    )
    if key[0] in ENGINE_METRICS:
        found = compare_means(base.values, opt.values, level=choices.level)
        change = replace(change, difference=found.difference, difference_low=found.low, difference_high=found.high)
    return JudgedChange(change, judgement)


def judge_headline_step(
    base: ComparedSide, opt: ComparedSide, choices: ComparisonChoices
) -> tuple[Speedup, ComparisonVerdict]:
    """Compute the speedup and verdict of the step, from which a plan for more runs starts."""
    key = choose_headline_metric(base, opt, force=choices.force)
    ratio, _ = compute_metric_speedup(base.samples[key], opt.samples[key], choices)
    judgement = choose_verdict(
        ratio, min_effect=choices.min_effect, assume_independent_steps=choices.assume_independent_steps
    )
    return ratio, judgement


def find_detectable_metric_change(ratio: Speedup, choices: ComparisonChoices) -> float | None:
    """Find the smallest change that such runs call a regression in 80 % of cases.

    None if these runs allow no verdict.
    """
    if ratio.low is None or list_caps(ratio, choices.assume_independent_steps):
        return None
    drawn = draw_comparisons(ratio, steps_are_runs=choices.assume_independent_steps)
    if drawn is None:
        return None
    return find_detectable_change(drawn, compute_effect_threshold(ratio, choices.min_effect))


def compute_metric_speedup(
    base: MetricSamples, opt: MetricSamples, choices: ComparisonChoices
) -> tuple[Speedup, tuple[str, ...]]:
    """Compute the speedup under the declared design, as far as the samples fit it, and the notes on that."""
    paired, notes = choose_pairing(base, opt, choices.paired)
    noise = choices.noise.find_noise(base.key) if choices.noise else None
    ratio = compute_speedup(base.values, opt.values, level=choices.level, noise=noise, paired=paired)
    return ratio, notes


def choose_pairing(
    base: MetricSamples, opt: MetricSamples, declared: Pairing | None
) -> tuple[Pairing | None, tuple[str, ...]]:
    """Choose the declared pairing, or None with a note if the samples do not fit it."""
    if declared == "step" and not _has_same_steps(base, opt):
        return None, ("steps could not be paired: the sides have different steps",)
    if declared == "run" and len(base.runs) != len(opt.runs):
        return None, ("runs could not be paired: the sides have different numbers of runs",)
    return declared, ()


def list_unequal_step_work(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """List the work counts that differ between steps of the same number; such steps cannot be paired.

    Only counts that both sides recorded are compared.
    """
    for name in PER_WORK:
        before = _map_step_values(base.samples.get((name, None, None)))
        after = _map_step_values(opt.samples.get((name, None, None)))
        if any(before[step] != after[step] for step in before.keys() & after.keys()):
            yield name


def _map_step_values(samples: MetricSamples | None) -> dict[int | None, float]:
    """Map the number of every step of a side to its value."""
    if samples is None:
        return {}
    numbers = [_NUMBER(id_) for id_ in chain.from_iterable(samples.steps)]
    return dict(zip(numbers, chain.from_iterable(samples.values), strict=True))


def _has_same_steps(base: MetricSamples, opt: MetricSamples) -> bool:
    """Check whether each side has one run, with the same known step numbers."""
    if len(base.runs) != 1 or len(opt.runs) != 1:
        return False
    before, after = [_NUMBER(id_) for id_ in base.steps[0]], [_NUMBER(id_) for id_ in opt.steps[0]]
    return before == after and None not in before


def _add_sample_counts(change: Change, base: MetricSamples | None, opt: MetricSamples | None) -> Change:
    """Add the runs and steps of both sides to a change."""
    base_runs, base_steps = _count_samples(base)
    opt_runs, opt_steps = _count_samples(opt)
    return replace(change, base_runs=base_runs, base_steps=base_steps, opt_runs=opt_runs, opt_steps=opt_steps)


def _count_samples(samples: MetricSamples | None) -> tuple[int, int]:
    """Count the (runs, steps) of one side."""
    if samples is None:
        return 0, 0
    return len(samples.runs), sum(len(steps) for steps in samples.steps)


def _judge_one_sided_metric(
    key: Key, kind: MetricKind, base: MetricSamples | None, opt: MetricSamples | None
) -> Change | None:
    """Judge a metric of one side only: it is absent on the other, not infinitely faster or slower."""
    samples = base or opt
    if samples is None or not any(chain.from_iterable(samples.values)):
        return None
    mean = average_runs(samples)
    if base:
        change = replace(_make_empty_change(key, kind, "only before"), base=mean)
    else:
        change = replace(_make_empty_change(key, kind, "only after"), opt=mean)
    return _add_sample_counts(change, base, opt)


def _judge_exact_metric(key: Key, kind: MetricKind, base: MetricSamples, opt: MetricSamples) -> Change:
    """Judge noise-free numbers as equal or changed; if they vary from step to step, compare only means."""
    numbers = compare_exact(base.values, opt.values)
    word: Word = "inconclusive"
    if numbers.equal is not None:
        word = "same" if numbers.equal else "changed"
    change = replace(
        _make_empty_change(key, kind, word),
        base=numbers.base,
        opt=numbers.opt,
        difference=numbers.difference,
        ratio=numbers.ratio,
        label=numbers.label,
        notes=tuple(FOOTNOTES[footnote] for footnote in numbers.footnotes),
    )
    return _add_sample_counts(change, base, opt)


def _compare_times_with_zeros(key: Key, kind: MetricKind, base: MetricSamples, opt: MetricSamples) -> Change | None:
    """Compare times that are zero in some steps by their means and difference; a ratio has no meaning."""
    before, after = average_runs(base), average_runs(opt)
    if not before and not after:
        return None
    change = replace(
        _make_empty_change(key, kind, "inconclusive"),
        base=before,
        opt=after,
        difference=after - before,
        label="no interval",
        notes=("zero in some steps: no ratio",),
        reason="zero in some steps",
    )
    return _add_sample_counts(change, base, opt)


def _make_empty_change(key: Key, kind: MetricKind, word: Word) -> Change:
    """Make the change of a metric before its numbers are known."""
    name, role, stage = key
    title = get_metric_title(name, stage)
    return Change(name, title, role, stage, kind.unit, kind.better, word, None, None)
