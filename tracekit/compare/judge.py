"""Comparison of two sides: the step first, then all other metrics, then warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import log

from tracekit.compare.amdahl import add_step_speedups, format_speedup_with_interval
from tracekit.compare.changes import (
    ENGINE_KEY,
    RAY_KEY,
    STEP,
    ComparisonChoices,
    choose_headline_metric,
    choose_pairing,
    compare_metrics,
    compute_metric_speedup,
    judge_headline_step,
    list_unequal_step_work,
)
from tracekit.compare.comparison import (
    Change,
    ComparedLog,
    Comparison,
    Difference,
    ExcludedStep,
    LengthComparison,
    StepValue,
    VerdictOutlook,
)
from tracekit.compare.differences import (
    describe_session_order,
    has_blocking_difference,
    has_uneven_work,
    list_confounder_warnings,
    list_side_differences,
)
from tracekit.compare.equal_length import (
    compare_lengths,
    describe_compared_lengths,
    get_mean_tokens,
    lacks_common_length,
    measure_log_level,
    pool_lengths,
)
from tracekit.compare.gates.outcomes import apply_gate_rules
from tracekit.compare.memory_change import MemoryChange, MemoryLevel
from tracekit.compare.noise import check_noise_fits
from tracekit.compare.planning import predict_verdicts, recommend_recording
from tracekit.compare.sides import ComparedSide, is_all_positive
from tracekit.compare.snapshots.levels import compare_memory, judge_memory_level
from tracekit.compare.step_log import describe_logs, format_steps_per_run, measure_profiler_overheads
from tracekit.compare.wall_time.attribution import attribute_sides
from tracekit.compare.wall_time.attribution_rows import Attribution
from tracekit.compare.work_units import STEP_MARK_HINT as UNIT_HINT
from tracekit.compare.work_units import choose_work_unit, has_no_steps
from tracekit.compare.work_units import describe_unmarked_recordings as recording_reading
from tracekit.job.steps.metric_samples import Key, MetricSamples
from tracekit.model.errors import NothingComparableError, TracekitError
from tracekit.model.metrics import (
    ENGINE_METRICS,
    LAUNCH_CADENCE,
    PER_WORK,
    RANGE_CADENCE,
    RAY_FUNCTION_TIME,
    RAY_SPAN,
    STEP_TIME,
    UNPROFILED,
    WINDOW,
    grows_with_work,
)
from tracekit.model.stats.odd_values import find_odd_run
from tracekit.model.stats.verdict import choose_verdict
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity
from tracekit.model.version import VERSION

STEP_METRICS = (STEP_TIME, UNPROFILED)

_MEMORY_BLOCKING = "world_size"
"""The only fact that forbids a verdict on memory: other world sizes shard the same state differently."""


def compare_sides(base: ComparedSide, opt: ComparedSide, choices: ComparisonChoices) -> Comparison:
    """Compare two sides; raises `TracekitError` if one has no step that counts.

    If a side recorded no step and both have memory snapshots, only these are compared.
    """
    key = choose_headline_metric(base, opt, force=choices.force)
    memory = compare_memory(base, opt)
    without = [side for side in (base, opt) if key not in side.samples]
    if memory is not None and without and not any(side.dropped for side in without):
        return _compare_memory_sides(base, opt, memory, choices)
    if key == STEP and (has_no_steps(base) or has_no_steps(opt)):
        why = choose_work_unit(base, opt)
        raise NothingComparableError(f"not comparable: {why}", UNIT_HINT)
    for side in (base, opt):
        _refuse_unmeasured_side(key, side)
    return _compare_step_sides(base, opt, key, memory, choices)


def _refuse_unmeasured_side(key: Key, side: ComparedSide) -> None:
    """Raise `TracekitError` if a side lacks the headline metric, or if one of its steps took no time."""
    if key in side.samples:
        if not is_all_positive(side.samples[key]):
            raise TracekitError(
                f"{side.name}: a step took 0 ns",
                "its file may be damaged: see tracekit analyze, leave it out with --steps",
            )
    elif side.errors:
        raise NothingComparableError(
            f"{side.name}: an error in tracekit, not in the run: {side.errors[0]}",
            "tracekit analyze -v prints where it happened",
        )
    elif side.dropped:
        raise NothingComparableError(
            f"{side.name}: no step is left to compare", "keep the first steps with --drop-first 0"
        )
    else:
        raise NothingComparableError(
            f"{side.name}: no step was recorded", "profile with a step annotation or a schedule"
        )


def _compare_step_sides(
    base: ComparedSide, opt: ComparedSide, key: Key, memory: MemoryChange | None, choices: ComparisonChoices
) -> Comparison:
    """Compare two sides that both have steps, or the unit `key` in their place."""
    choices, choice_notes = _drop_unusable_choices(choices, base, opt)
    judged = compare_metrics(base, opt, choices)
    lengths = _compare_side_lengths(base, opt, judged, choices)
    unlike = _list_all_differences(base, opt, lengths)
    blocked = has_blocking_difference(unlike) and not choices.force
    unequal = _has_unequal_work(unlike, lengths) and not choices.force
    metrics = tuple(_withhold_verdicts(judged, blocked=blocked, uneven=unequal))
    lengths = _withhold_length_verdicts(lengths, withheld=blocked)
    step = next(change for change in metrics if (change.name, change.role, change.stage) == key)
    origin = None
    if not blocked:
        origin = _attribute_headline_change(base, opt, key, choices)
    needed = ""
    chances: tuple[VerdictOutlook, ...] = ()
    ratio, judgement = judge_headline_step(base, opt, choices)
    if not blocked and not unequal and key[0] in STEP_METRICS:
        chances = predict_verdicts(ratio, choices)
        if judgement.word == "inconclusive":
            effect = judgement.effect or choices.min_effect
            needed = recommend_recording(ratio, judgement, effect, treat_steps_as_runs=choices.assume_independent_steps)
    warnings = [*_warn_of_oom(base, opt, memory), *_list_comparison_warnings(base, opt, step, unlike, metrics)]
    warnings[:0] = describe_compared_lengths(lengths)
    warnings += choice_notes
    if not blocked and not unequal:
        warnings += _describe_without_odd_run(base, opt, key, choices)
    if origin is not None:
        warnings += origin.kernels.warnings
    return Comparison(
        tool_version=VERSION,
        base=base.name,
        opt=opt.name,
        verdict=step.word,
        headline=step,
        changes=add_step_speedups(metrics, origin),
        needed=needed,
        outlook=chances,
        sessions_apart=bool(describe_session_order(base, opt)),
        differences=unlike,
        dropped=tuple(_list_excluded_steps(base, opt)),
        reading=tuple(_describe_inputs(base, opt, memory)),
        warnings=tuple(warnings),
        simulated=base.simulated or opt.simulated,
        min_effect=choices.min_effect,
        level=choices.level,
        steps=tuple(_list_step_values(base, opt)),
        overhead=measure_profiler_overheads(base, opt),
        origin=origin,
        gates=apply_gate_rules(choices.gate, base, opt, choices, blocked=blocked, uneven=unequal),
        inconclusive_fails=choices.gate.inconclusive_fails,
        untested_passes=choices.gate.untested_passes,
        memory=memory,
        lengths=lengths,
        logs=tuple(_list_compared_logs(base, opt)),
    )


def _list_all_differences(
    base: ComparedSide, opt: ComparedSide, lengths: LengthComparison | None
) -> tuple[Difference, ...]:
    """List the differences of two sides, and those of their logs."""
    return (*list_side_differences(base, opt), *(lengths.differences if lengths is not None else ()))


def _has_unequal_work(unlike: tuple[Difference, ...], lengths: LengthComparison | None) -> bool:
    """Check whether the steps of both sides do different work, or have hardly a common length."""
    return has_uneven_work(unlike) or lacks_common_length(lengths)


def _compare_side_lengths(
    base: ComparedSide, opt: ComparedSide, judged: Iterable[Change], choices: ComparisonChoices
) -> LengthComparison | None:
    """Compare the logs of two sides at equal length, if each run has one; several of a side by run."""
    before, after = tuple(base.logs.values()), tuple(opt.logs.values())
    if not before or not after:
        return None
    if len(before) == len(after) == 1:
        return compare_lengths(before[0], after[0], level=choices.level, min_effect=choices.min_effect)
    return pool_lengths(before, after, judged)


def _withhold_length_verdicts(lengths: LengthComparison | None, *, withheld: bool) -> LengthComparison | None:
    """Withhold the verdicts at equal length of sides that are not comparable."""
    if lengths is None or not (withheld or (lengths.by_run and lacks_common_length(lengths))):
        return lengths
    return replace(lengths, changes=tuple(replace(change, word="not comparable") for change in lengths.changes))


def _list_compared_logs(base: ComparedSide, opt: ComparedSide) -> Iterator[ComparedLog]:
    """List the logs of both sides; none if each side has one."""
    logs = (*base.logs.values(), *opt.logs.values())
    if len(logs) < 3:
        return
    for side in (base, opt):
        for run, steps in side.logs.items():
            steady = steps.counted.steady
            if not steady.any():
                continue
            level = measure_log_level(steps, logs)
            yield ComparedLog(
                side.name,
                run,
                int(steady.sum()),
                get_mean_tokens(steps),
                float(steps.step_s[steady].mean()) * 1e9,
                None if level is None else level * 1e9,
                steps.mode.label,
                steps.gpus,
            )


def _describe_without_odd_run(
    base: ComparedSide, opt: ComparedSide, key: Key, choices: ComparisonChoices
) -> Iterator[str]:
    """Describe the change without a run that lies far from all others of its side."""
    if key in (ENGINE_KEY, RAY_KEY):
        return
    sides = [base.samples[key], opt.samples[key]]
    for place, side in enumerate((base, opt)):
        samples = sides[place]
        odd = find_odd_run([log(sum(run) / len(run)) for run in samples.values])
        if odd is None or choices.paired == "run":
            continue
        without = [*sides]
        without[place] = replace(
            samples,
            runs=samples.runs[:odd] + samples.runs[odd + 1 :],
            steps=samples.steps[:odd] + samples.steps[odd + 1 :],
            values=samples.values[:odd] + samples.values[odd + 1 :],
        )
        ratio, _ = compute_metric_speedup(without[0], without[1], choices)
        verdict = choose_verdict(ratio, min_effect=choices.min_effect)
        doubt = "" if verdict.word in ("regression", "improvement") else f"{verdict.word}, "
        speed = format_speedup_with_interval(ratio.ratio, ratio.low, ratio.high)
        yield f"{side.name}: {samples.runs[odd]} is an outlier; without it: {doubt}{speed}"


def _drop_unusable_choices(
    choices: ComparisonChoices, base: ComparedSide, opt: ComparedSide
) -> tuple[ComparisonChoices, list[str]]:
    """Drop noise and pairing that these sides do not allow from the choices, with notes on why."""
    noise, note = check_noise_fits(choices.noise, base, opt)
    choices = replace(choices, noise=noise)
    notes = [note] if note else []
    if choices.paired == "step" and (unlike := ", ".join(list_unequal_step_work(base, opt))):
        choices = replace(choices, paired=None)
        notes.append(f"steps could not be paired: they have different numbers of {unlike}")
    return choices, notes


def _withhold_verdicts(changes: Iterable[Change], *, blocked: bool, uneven: bool = False) -> Iterator[Change]:
    """Withhold the verdicts of changes that are not comparable."""
    for change in changes:
        if blocked or (uneven and grows_with_work(change.name)):
            yield replace(change, word="not comparable")
        else:
            yield change


def _attribute_headline_change(
    base: ComparedSide, opt: ComparedSide, key: Key, choices: ComparisonChoices
) -> Attribution | None:
    """Attribute the change of profiled steps if both sides have them, paired as far as they allow; None for engines and Ray."""
    if key in (ENGINE_KEY, RAY_KEY):
        return None
    timed = STEP if STEP in base.samples and STEP in opt.samples else key
    pairs, _ = choose_pairing(base.samples[timed], opt.samples[timed], choices.paired)
    return attribute_sides(base, opt, choices.level, pairs, timed)


def _compare_memory_sides(
    base: ComparedSide, opt: ComparedSide, memory: MemoryChange, choices: ComparisonChoices
) -> Comparison:
    """Compare two sides by peak memory, if one of them recorded no step."""
    unlike = []
    for difference in list_side_differences(base, opt):
        blocking = difference.blocking and difference.name == _MEMORY_BLOCKING
        unlike.append(replace(difference, blocking=blocking))
    blocked = any(difference.blocking for difference in unlike) and not choices.force
    metrics = _withhold_verdicts(compare_metrics(base, opt, choices), blocked=blocked)
    level = _make_memory_headline(memory.headline, blocked=blocked)
    return Comparison(
        tool_version=VERSION,
        base=base.name,
        opt=opt.name,
        verdict=level.word,
        headline=level,
        changes=tuple(metrics),
        differences=tuple(unlike),
        reading=memory.reading,
        warnings=(
            *_warn_of_oom(base, opt, memory),
            *map(_describe_difference, unlike),
            *dict.fromkeys((*base.notes, *opt.notes)),
            *_warn_of_missing_steps(base, opt),
            *memory.notes,
        ),
        simulated=base.simulated or opt.simulated,
        min_effect=choices.min_effect,
        level=choices.level,
        gates=apply_gate_rules(choices.gate, base, opt, choices, blocked=blocked),
        inconclusive_fails=choices.gate.inconclusive_fails,
        untested_passes=choices.gate.untested_passes,
        memory=memory,
    )


def _make_memory_headline(level: MemoryLevel, *, blocked: bool) -> Change:
    """Make the headline change from the level of the highest device."""
    return Change(
        f"device_{level.name}",
        level.title,
        None,
        None,
        "bytes",
        level.better,
        "not comparable" if blocked else judge_memory_level(level),
        level.base,
        level.opt,
        level.difference,
        ratio=level.base / level.opt if level.base and level.opt else None,
        label="exact",
    )


def _warn_of_oom(base: ComparedSide, opt: ComparedSide, memory: MemoryChange | None) -> Iterator[str]:
    """Warn that one side ran out of memory (OOM) more often than the other."""
    if memory is None:
        return
    before, after = memory.failed
    if before is None or after is None or before == after:
        return
    more, less = (opt, base) if after > before else (base, opt)
    larger, fewest = _format_times(max(before, after)), _format_times(min(before, after))
    yield f"memory ran out {larger} in {more.name}, {fewest} in {less.name}"


def _format_times(number: int) -> str:
    return f"{number:,} {choose_plural(number, 'time')}"


def _warn_of_missing_steps(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """Warn that only one side recorded no step."""
    key = choose_headline_metric(base, opt)
    without = [side.name for side in (base, opt) if key not in side.samples]
    if len(without) == 1:
        yield f"{without[0]} recorded no step: only memory is compared"


def _list_excluded_steps(base: ComparedSide, opt: ComparedSide) -> Iterator[ExcludedStep]:
    """List the steps that do not count, with the reason."""
    for side in (base, opt):
        for step in (*side.dropped, *side.left_out_of_logs):
            yield ExcludedStep(side.name, step.run, step.step, step.reason)


def _list_step_values(base: ComparedSide, opt: ComparedSide) -> Iterator[StepValue]:
    """List the time of every step by side, run and order, including steps that do not count."""
    for side in (base, opt):
        steps = side.every_step
        if steps is None:
            continue
        dropped = {(step.run, step.step, step.part) for step in side.dropped}
        for run, step_ids, values in zip(steps.runs, steps.steps, steps.values, strict=True):
            for step_id, value in zip(step_ids, values, strict=True):
                yield StepValue(side.name, run, step_id[1], value, step_id not in dropped)


def _describe_inputs(base: ComparedSide, opt: ComparedSide, memory: MemoryChange | None) -> Iterator[str]:
    """Describe how the inputs were interpreted."""
    sides = (base, opt)
    for side in sides:
        if STEP in side.samples:
            yield _describe_side_input(side, side.samples[STEP])
    for side in sides:
        yield from recording_reading(side)
    for side in sides:
        yield from describe_logs(side)
        yield from _describe_engine_samples(side)
        yield from _describe_ray_samples(side)
    if memory is not None:
        yield from memory.reading


def _describe_engine_samples(side: ComparedSide) -> Iterator[str]:
    """Describe the logs of engines of a side: runs, windows with requests."""
    windows = side.samples.get(ENGINE_KEY)
    if windows is not None:
        runs, count = len(windows.runs), sum(map(len, windows.values))
        yield f"{side.name}, engines: {runs} {choose_plural(runs, 'run')}, {count:,} windows with requests"


def _describe_ray_samples(side: ComparedSide) -> Iterator[str]:
    """Describe the timelines of Ray of a side: runs, functions."""
    spans = side.samples.get(RAY_KEY)
    if spans is not None:
        runs, functions = len(spans.runs), sum(key[0] == RAY_FUNCTION_TIME for key in side.samples)
        yield (
            f"{side.name}: {runs} {choose_plural(runs, 'timeline')} of Ray, {functions} {choose_plural(functions, 'function')}"
        )


def _warn_of_timelines(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """Warn of the limits of two timelines of Ray: their ends are not those of steps, and their spread may be unknown."""
    if min(len(side.samples[RAY_KEY].runs) for side in (base, opt)) < 2:
        yield "one timeline on a side: how much timelines vary is unknown, so no change has an interval"
    yield "timelines have no steps: each is compared as a whole, with its start-up"


def _describe_side_input(side: ComparedSide, steps: MetricSamples) -> str:
    """Describe one side: runs, steps that count, ranks."""
    runs = len(steps.runs)
    text = f"{side.name}: {runs} {choose_plural(runs, 'run')} × {format_steps_per_run(steps)}"
    if ranks := side.fingerprint.get("ranks", ""):
        number = max(len(listed.split(", ")) for listed in ranks.split(" / "))
        text += f", {number} {choose_plural(number, 'rank')}"
    if side.dropped:
        text += f", {len(side.dropped)} left out"
    return text


def _list_comparison_warnings(
    base: ComparedSide,
    opt: ComparedSide,
    step: Change,
    differences: tuple[Difference, ...],
    metrics: tuple[Change, ...],
) -> Iterator[str]:
    """List the warnings, the most serious first."""
    for unlike in differences:
        yield f"{_describe_difference(unlike)}: {unlike.meaning}"
        if unlike.name in PER_WORK:
            per_one, _ = PER_WORK[unlike.name]
            yield from (_describe_time_per_work(c) for c in metrics if (c.name, c.stage) == (per_one, None))
    yield from list_confounder_warnings(base, opt)
    yield from dict.fromkeys((*base.notes, *opt.notes))
    yield from _warn_of_same_files(base, opt)
    if step.name != RAY_SPAN:
        yield from step.notes
    if ENGINE_KEY in base.samples and ENGINE_KEY in opt.samples:
        yield "engines: throughput also depends on load and response lengths: compare runs of the same requests"
    if step.name == RAY_SPAN:
        yield from _warn_of_timelines(base, opt)
    elif step.name != ENGINE_METRICS[0]:
        yield from _warn_of_recordings(base, opt, step)


def _warn_of_recordings(base: ComparedSide, opt: ComparedSide, step: Change) -> Iterator[str]:
    """Warn of the limits of steps by their source: no step marks, logs alone, or a profiler's overhead."""
    if has_no_steps(base) or has_no_steps(opt):
        yield from _warn_of_missing_step_marks(step)
    elif not (_has_profiled_steps(base) or _has_profiled_steps(opt)):
        yield "logs only: whether both sides ran on the same GPUs, ranks and versions is unknown"
    elif choose_headline_metric(base, opt) == STEP:
        yield "times include profiler overhead: the speedup without it differs (see --steps-from)"
    else:
        yield "the un-profiled step comes from logs; all other times include profiler overhead"


def _has_profiled_steps(side: ComparedSide) -> bool:
    """Check whether profiled steps that count are left; sides of logs alone have none."""
    return STEP in side.samples and bool(side.samples[STEP].values)


def _warn_of_missing_step_marks(step: Change) -> Iterator[str]:
    """Warn which unit is compared if nothing marks a step."""
    if step.name == WINDOW:
        yield "no step marks: whole recordings are compared, whatever work each contains"
    elif step.name in (RANGE_CADENCE, LAUNCH_CADENCE):
        yield f"no step marks: the unit of comparison is the period of {step.title}"
    else:
        yield f"no step marks: the unit of comparison is {step.title}"
    yield "times include profiler overhead: the speedup without it differs (see --steps-from)"


def _describe_time_per_work(change: Change) -> str:
    """Describe the time per token, sample or image on both sides in one line."""
    times = f"{change.title} {format_quantity(change.base, 'ns')} → {format_quantity(change.opt, 'ns')}"
    if change.ratio is None:
        return f"{times}: {change.word}"
    return f"{times}: {format_speedup_with_interval(change.ratio, change.low, change.high)}, {change.word}"


def _describe_difference(unlike: Difference) -> str:
    """Describe a fact in which the sides differ: `ranks differ (0 · 0, 1)`."""
    verb = "differ" if unlike.name.endswith("s") else "differs"
    return f"{unlike.name} {verb} ({unlike.base} · {unlike.opt})"


def _warn_of_same_files(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """Warn of runs with the same files on both sides, and of step times equal to the nanosecond."""
    profiled = bool(base.contents or opt.contents)
    what = "profile" if profiled else "log"
    before, after = (_collect_run_contents(base, profiled=profiled), _collect_run_contents(opt, profiled=profiled))
    both = len(before & after)
    if both and before == after:
        yield f"both sides have the same files: the same {what} was given twice"
    elif both:
        runs = choose_plural(both, "run is", "runs are")
        yield f"{both} {runs} the same on both sides: the same {what} was given twice"
    if both or has_no_steps(base) or has_no_steps(opt):
        return
    yield from _warn_of_equal_step_times(base, opt)


def _collect_run_contents(side: ComparedSide, *, profiled: bool) -> set[frozenset[str]]:
    """Collect the content digests of every run, from logs if neither side has profiles."""
    contents = side.contents if profiled else side.log_contents
    return set(contents.values())


def _warn_of_equal_step_times(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """Warn of runs with step times equal to the nanosecond."""
    key = choose_headline_metric(base, opt)
    if set(base.samples[key].values) == set(opt.samples[key].values):
        yield "step times are equal on both sides, to the nanosecond"
    for side in (base, opt):
        runs = side.samples[key].values
        if len(set(runs)) < len(runs):
            yield f"{side.name}: several runs have equal step times, to the nanosecond: copies look like runs without noise"
