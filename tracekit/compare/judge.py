"""Two sides to one comparison: the step first, then everything else, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.amdahl import factor, with_steps
from tracekit.compare.attribution import attribute
from tracekit.compare.changes import (
    STEP,
    Choices,
    changes,
    headline,
    other_counts,
    pairing,
    step_key,
)
from tracekit.compare.comparison import Change, Comparison, Difference, LeftStep
from tracekit.compare.design import design_warnings, sessions_apart
from tracekit.compare.differences import differences, forbids, uneven
from tracekit.compare.gate import gates
from tracekit.compare.memory import memory_change
from tracekit.compare.memory_alone import compare_memory, ran_out
from tracekit.compare.noise import usable
from tracekit.compare.planning import outlook, what_to_record
from tracekit.compare.sides import Side
from tracekit.compare.step_log import logged_reading, overheads
from tracekit.compare.step_values import step_values
from tracekit.compare.work_units import HINT as UNIT_HINT
from tracekit.compare.work_units import reading as recording_reading
from tracekit.compare.work_units import unit_key, without_steps
from tracekit.job.metric_kinds import (
    LAUNCH_CADENCE,
    PER_WORK,
    RANGE_CADENCE,
    STEP_TIME,
    UNPROFILED,
    WINDOW,
    grows_with_work,
)
from tracekit.model.errors import NothingComparableError, TracekitError
from tracekit.model.units import show
from tracekit.model.version import VERSION

STEPS = (STEP_TIME, UNPROFILED)


def compare(base: Side, opt: Side, choices: Choices) -> Comparison:
    """The comparison of two sides; raises `TracekitError` where one has no step that counts.

    Where a side recorded no step, but both have memory snapshots, these alone are compared.
    """
    key = step_key(base, opt, force=choices.force)
    memory = memory_change(base, opt)
    without = [side for side in (base, opt) if key not in side.samples]
    if memory is not None and without and not any(side.dropped for side in without):
        return compare_memory(base, opt, memory, choices)
    if key == STEP and (without_steps(base) or without_steps(opt)):
        why = unit_key(base, opt)
        raise NothingComparableError(f"not comparable: {why}", UNIT_HINT)
    for side in (base, opt):
        if key not in side.samples and side.errors:
            raise NothingComparableError(
                f"{side.name}: an error of tracekit, not of the run: {side.errors[0]}",
                "tracekit analyze -v prints where it happened",
            )
        if key not in side.samples:
            raise NothingComparableError(
                f"{side.name}: no step is left to compare"
                if side.dropped
                else f"{side.name}: no step was recorded",
                "keep the first steps with --drop-first 0"
                if side.dropped
                else "profile with a step annotation or a schedule",
            )
        if not all(value > 0 for run in side.samples[key].values for value in run):
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
        if blocked or unequal or said.word != "inconclusive" or key[0] not in STEPS
        else what_to_record(
            speedup,
            said.effect or choices.min_effect,
            alone=choices.assume_independent_steps,
        ),
        outlook=() if blocked or unequal or key[0] not in STEPS else outlook(speedup, choices),
        sessions_apart=bool(sessions_apart(base, opt)),
        differences=found,
        dropped=tuple(_dropped(base, opt)),
        reading=(
            *(_reading(side) for side in (base, opt) if STEP in side.samples),
            *(line for side in (base, opt) for line in recording_reading(side)),
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
        untested_passes=choices.gate.untested_passes,
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
    if without_steps(base) or without_steps(opt):
        yield from _unit_warnings(step)
    elif not (_profiled(base) or _profiled(opt)):
        yield "logs alone: that both sides ran on the same GPUs, ranks and versions is not known"
    elif step_key(base, opt) == STEP:
        yield "times are under the profiler: what it adds to a step shrinks the true speedup"
    else:
        yield "the un-profiled step is of logs; all else that a profile tells is under the profiler"


def _unit_warnings(step: Change) -> Iterator[str]:
    """What the answer is of where nothing marks a step."""
    if step.name == WINDOW:
        yield "nothing marks a step: the recordings are compared as they are, whatever work each holds"
    elif step.name in (RANGE_CADENCE, LAUNCH_CADENCE):
        yield f"nothing marks a step: the unit is from one {step.title} to the next, which both sides repeat"
    else:
        yield f"nothing marks a step: the unit is {step.title}, which both sides hold"
    yield "times are under the profiler: what it adds to them shrinks the true speedup"


def _per_one(name: str) -> str:
    """The time for one of what is counted under this name; nothing for what is no count of work."""
    return PER_WORK[name][0] if name in PER_WORK else ""


def _by_work(change: Change) -> str:
    """The time for one token, sample or image on both sides, in one line."""
    times = f"{change.title} {show(change.base, 'ns')} → {show(change.opt, 'ns')}"
    much = "" if change.ratio is None else f"{factor(change.ratio, change.low, change.high)}, "
    return f"{times}: {much}{change.word}"


def _same_profiles(base: Side, opt: Side) -> Iterator[str]:
    """Which runs are the same files on both sides, and which step times are equal to the nanosecond."""
    of_logs = not (base.contents or opt.contents)
    what = "log" if of_logs else "profile"
    held = [set((s.log_contents if of_logs else s.contents).values()) for s in (base, opt)]
    both = held[0] & held[1]
    if both and held[0] == held[1]:
        yield f"both sides are the same files: the same {what} was given twice"
    elif both:
        yield f"{len(both)} {'run is' if len(both) == 1 else 'runs are'} the same files on both sides: the same {what} was given twice"
    if both or without_steps(base) or without_steps(opt):
        return
    key = step_key(base, opt)
    before, after = (side.samples[key].values for side in (base, opt))
    if set(before) == set(after):
        yield "step times are equal on both sides, to the nanosecond"
    for side, runs in ((base, before), (opt, after)):
        if len(set(runs)) < len(runs):
            yield f"{side.name}: several runs have equal step times, to the nanosecond: copies would look like runs that do not differ"
