"""Two sides to one comparison: the step first, then everything else, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.compare.attribution import attribute
from tracekit.compare.changes import STEP, Choices, changes, headline, step_key
from tracekit.compare.comparison import Change, Comparison, Difference, LeftStep
from tracekit.compare.design import design_warnings
from tracekit.compare.differences import differences
from tracekit.compare.gates import gates
from tracekit.compare.noise_file import usable
from tracekit.compare.sides import Side
from tracekit.compare.step_log import logged_reading, overheads
from tracekit.compare.step_values import step_values
from tracekit.errors import NothingComparableError, TracekitError
from tracekit.stats.verdict import Needed, needed
from tracekit.units import show
from tracekit.version import VERSION


def compare(base: Side, opt: Side, choices: Choices) -> Comparison:
    """The comparison of two sides; raises `TracekitError` where one has no step that counts."""
    for side in (base, opt):
        if STEP not in side.samples:
            raise NothingComparableError(
                f"{side.name}: no step is left to compare"
                if side.dropped
                else f"{side.name}: no step was recorded",
                "keep the first steps with --drop-first 0"
                if side.dropped
                else "profile with a step annotation or a schedule",
            )
        if not all(value > 0 for run in side.samples[STEP].values for value in run):
            raise TracekitError(
                f"{side.name}: a step took no time at all",
                "its file may be damaged: see tracekit analyze, leave it out with --steps",
            )
    found = differences(base, opt)
    blocked = any(one.blocking for one in found) and not choices.force
    noise, unused = usable(choices.noise, base, opt)
    choices = replace(choices, noise=noise)
    every = changes(base, opt, choices)
    speedup, said = headline(base, opt, choices)
    if blocked:
        every = tuple(replace(one, word="not comparable") for one in every)
    key = step_key(base, opt)
    first = next(one for one in every if (one.name, one.role, one.stage) == key)
    origin = None if blocked else attribute(base, opt, choices.level)
    return Comparison(
        tool_version=VERSION,
        base=base.name,
        opt=opt.name,
        verdict=first.word,
        headline=first,
        changes=every,
        needed=""
        if blocked or said.word != "inconclusive"
        else _needed(needed(speedup, effect=said.effect or choices.min_effect)),
        differences=found,
        dropped=tuple(_dropped(base, opt)),
        reading=(
            *(_reading(side) for side in (base, opt)),
            *(line for side in (base, opt) for line in logged_reading(side)),
        ),
        warnings=(
            *_warnings(base, opt, first, found),
            *([unused] if unused else []),
            *(origin.kernels.warnings if origin else ()),
        ),
        simulated=base.simulated or opt.simulated,
        min_effect=choices.min_effect,
        level=choices.level,
        steps=tuple(step_values(base, opt)),
        overhead=overheads(base, opt),
        origin=origin,
        gates=gates(choices.gate, base, opt, choices, blocked=blocked),
    )


def _needed(plan: Needed) -> str:
    """What to record to resolve the least effect that matters, in words; nothing where nothing would do."""
    unit = "pairs of " if plan.pairs else ""
    ways = []
    if plan.steps is not None and not plan.at_least:
        ways.append(f"{plan.steps:,} {unit}steps")
    if plan.runs is not None:
        ways.append(f"{'at least ' if plan.at_least else ''}{plan.runs} {unit}runs")
    if not ways:
        return ""
    return f"record {' or '.join(ways)} per side to resolve {show(plan.effect, 'ratio')}"


def _dropped(base: Side, opt: Side) -> Iterator[LeftStep]:
    for side in (base, opt):
        for step in (*side.dropped, *side.left_out_of_logs):
            yield LeftStep(side.name, step.run, step.step, step.reason)


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


def _warnings(base: Side, opt: Side, step: Change, found: tuple[Difference, ...]) -> Iterator[str]:
    """What to keep in mind, the gravest first."""
    for one in found:
        yield f"{one.name} differs ({one.base} · {one.opt}): {one.meaning}"
    yield from design_warnings(base, opt)
    yield from dict.fromkeys((*base.notes, *opt.notes))
    yield from _same_profiles(base, opt)
    yield from step.notes
    if step_key(base, opt) == STEP:
        yield "times are under the profiler: what it adds to a step shrinks the true speedup"
    else:
        yield "the un-profiled step is of logs; all else that a profile tells is under the profiler"


def _same_profiles(base: Side, opt: Side) -> Iterator[str]:
    """Which runs recorded exactly the same step times, to the nanosecond: they are one profile."""
    before, after = (side.samples[STEP].values for side in (base, opt))
    both = set(before) & set(after)
    if set(before) == set(after):
        yield "both sides hold the same values: the same profile was given twice"
    elif both:
        yield f"{len(both)} {'run is' if len(both) == 1 else 'runs are'} on both sides: the same profile was given twice"
    for side, runs in ((base, before), (opt, after)):
        if len(set(runs)) < len(runs):
            yield f"{side.name} holds a run more than once: copies look like runs that do not differ"
