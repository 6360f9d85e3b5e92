"""Two sides to one comparison: the step first, then everything else, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.amdahl import factor, with_steps
from tracekit.compare.attribution import attribute
from tracekit.compare.changes import (
    STEP,
    UNPROFILED_STEP,
    Choices,
    changes,
    headline,
    other_counts,
    pairing,
    step_key,
)
from tracekit.compare.comparison import Change, Comparison, Difference, LeftStep
from tracekit.compare.design import design_warnings
from tracekit.compare.differences import differences, forbids, uneven
from tracekit.compare.gates import gates
from tracekit.compare.memory_alone import compare_memory, ran_out
from tracekit.compare.memory_judge import memory_change
from tracekit.compare.noise_file import usable
from tracekit.compare.planning import what_to_record
from tracekit.compare.sides import Side
from tracekit.compare.step_log import logged_reading, overheads
from tracekit.compare.step_values import step_values
from tracekit.errors import NothingComparableError, TracekitError
from tracekit.metric_kinds import PER_WORK, grows_with_work
from tracekit.units import show
from tracekit.version import VERSION


def compare(base: Side, opt: Side, choices: Choices) -> Comparison:
    """The comparison of two sides; raises `TracekitError` where one has no step that counts.

    Where a side recorded no step, but both have memory snapshots, these alone are compared.
    """
    key = step_key(base, opt)
    memory = memory_change(base, opt)
    without = [side for side in (base, opt) if key not in side.samples]
    if memory is not None and without and not any(side.dropped for side in without):
        return compare_memory(base, opt, memory, choices)
    for side in (base, opt):
        if key not in side.samples:
            raise NothingComparableError(
                f"{side.name}: no step is left to compare"
                if side.dropped
                else f"{side.name}: no step was recorded",
                "keep the first steps with --drop-first 0"
                if side.dropped
                else "profile with a step annotation or a schedule",
            )
        if not all(value > 0 for run in _profiled(side) for value in run):
            raise TracekitError(
                f"{side.name}: a step took no time at all",
                "its file may be damaged: see tracekit analyze, leave it out with --steps",
            )
    found = differences(base, opt)
    blocked = forbids(found) and not choices.force
    unequal = uneven(found) and not choices.force
    noise, unused = usable(choices.noise, base, opt)
    choices = replace(choices, noise=noise)
    unlike = ", ".join(other_counts(base, opt)) if choices.paired == "step" else ""
    if unlike:
        choices = replace(choices, paired=None)
    every = changes(base, opt, choices)
    speedup, said = headline(base, opt, choices)
    every = tuple(
        replace(one, word="not comparable")
        if blocked or (unequal and grows_with_work(one.name))
        else one
        for one in every
    )
    first = next(one for one in every if (one.name, one.role, one.stage) == key)
    timed = STEP if STEP in base.samples and STEP in opt.samples else key
    pairs, _ = pairing(base.samples[timed], opt.samples[timed], choices.paired)
    origin = None if blocked else attribute(base, opt, choices.level, pairs)
    return Comparison(
        tool_version=VERSION,
        base=base.name,
        opt=opt.name,
        verdict=first.word,
        headline=first,
        changes=with_steps(every, origin),
        needed=""
        if blocked or unequal or said.word != "inconclusive"
        else what_to_record(speedup, said.effect or choices.min_effect),
        differences=found,
        dropped=tuple(_dropped(base, opt)),
        reading=(
            *(_reading(side) for side in (base, opt) if STEP in side.samples),
            *(line for side in (base, opt) for line in logged_reading(side)),
            *(memory.reading if memory else ()),
        ),
        warnings=(
            *ran_out(base, opt, memory),
            *_warnings(base, opt, first, found, every),
            *([unused] if unused else []),
            *(
                [f"steps could not be paired: they hold different numbers of {unlike}"]
                if unlike
                else []
            ),
            *(origin.kernels.warnings if origin else ()),
        ),
        simulated=base.simulated or opt.simulated,
        min_effect=choices.min_effect,
        level=choices.level,
        steps=tuple(step_values(base, opt)),
        overhead=overheads(base, opt),
        origin=origin,
        gates=gates(choices.gate, base, opt, choices, blocked=blocked, uneven=unequal),
        inconclusive_fails=choices.gate.inconclusive_fails,
        memory=memory,
    )


def _dropped(base: Side, opt: Side) -> Iterator[LeftStep]:
    for side in (base, opt):
        for step in (*side.dropped, *side.left_out_of_logs):
            yield LeftStep(side.name, step.run, step.step, step.reason)


def _profiled(side: Side) -> tuple[tuple[float, ...], ...]:
    """The profiled steps of every run that count; of logs alone there are none."""
    steps = side.samples.get(STEP)
    return steps.values if steps else ()


def _reading(side: Side) -> str:
    """How one side was understood: runs, steps that count, ranks."""
    steps = side.samples[STEP]
    counts = sorted({len(run) for run in steps.values})
    of = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    runs = len(steps.runs)
    text = f"{side.name}: {runs} {'run' if runs == 1 else 'runs'} × {of} {'step' if counts == [1] else 'steps'}"
    ranks = side.fingerprint.get("ranks", "")
    number = max(len(one.split(", ")) for one in ranks.split(" / ")) if ranks else 0
    text += f", {number} {'rank' if number == 1 else 'ranks'}" if number else ""
    return text + (f", {len(side.dropped)} left out" if side.dropped else "")


def _warnings(
    base: Side,
    opt: Side,
    step: Change,
    found: tuple[Difference, ...],
    every: tuple[Change, ...],
) -> Iterator[str]:
    """What to keep in mind, the gravest first."""
    for one in found:
        verb = "differ" if one.name.endswith("s") else "differs"
        yield f"{one.name} {verb} ({one.base} · {one.opt}): {one.meaning}"
        yield from (_by_work(c) for c in every if (c.name, c.stage) == (_per_one(one.name), None))
    yield from design_warnings(base, opt)
    yield from dict.fromkeys((*base.notes, *opt.notes))
    yield from _same_profiles(base, opt)
    yield from step.notes
    if not (_profiled(base) or _profiled(opt)):
        yield "logs alone: that both sides ran on the same GPUs, ranks and versions is not known"
    elif step_key(base, opt) == STEP:
        yield "times are under the profiler: what it adds to a step shrinks the true speedup"
    else:
        yield "the un-profiled step is of logs; all else that a profile tells is under the profiler"


def _per_one(name: str) -> str:
    """The time for one of what is counted under this name; nothing for what is no count of work."""
    return PER_WORK[name][0] if name in PER_WORK else ""


def _by_work(change: Change) -> str:
    """The time for one token, sample or image on both sides, in one line."""
    times = f"{change.title} {show(change.base, 'ns')} → {show(change.opt, 'ns')}"
    much = "" if change.ratio is None else f"{factor(change.ratio, change.low, change.high)}, "
    return f"{times}: {much}{change.word}"


def _same_profiles(base: Side, opt: Side) -> Iterator[str]:
    """Which runs recorded exactly the same step times, to the nanosecond: they are one profile, or one log."""
    before, after = _profiled(base), _profiled(opt)
    what = "profile"
    if not (before or after):
        before, after = (side.samples[UNPROFILED_STEP].values for side in (base, opt))
        what = "log"
    both = set(before) & set(after)
    if set(before) == set(after):
        yield f"both sides hold the same values: the same {what} was given twice"
    elif both:
        yield f"{len(both)} {'run is' if len(both) == 1 else 'runs are'} on both sides: the same {what} was given twice"
    for side, runs in ((base, before), (opt, after)):
        if len(set(runs)) < len(runs):
            yield f"{side.name} holds a run more than once: copies look like runs that do not differ"
