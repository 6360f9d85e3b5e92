"""Every metric of both sides as a change: the ratio with its interval, and the word for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracekit.compare.comparison import Change, Word
from tracekit.compare.gate_rules import NO_RULES, Rules
from tracekit.compare.noise import NoiseFile
from tracekit.compare.sides import Side
from tracekit.compare.work_units import WINDOW_KEY, of_whole_recording, unit_key, without_steps
from tracekit.job.metric_kinds import (
    LAUNCH_CADENCE,
    METRICS,
    PER_WORK,
    RANGE_CADENCE,
    STAGE_TIME,
    STEP_AND_STAGES,
    STEP_TIME,
    UNPROFILED,
    UNPROFILED_STAGE,
    Kind,
    titled,
)
from tracekit.job.samples import Key, Samples
from tracekit.model.report import Better, Unit
from tracekit.model.stats.outlook import detectable
from tracekit.model.stats.speedup import FOOTNOTES, Pairing, Speedup, exact, speedup
from tracekit.model.stats.verdict import (
    CAPS,
    LEAST_EFFECT,
    Verdict,
    threshold,
    together,
    verdict,
    why_capped,
)


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person decides about a comparison; the defaults are the careful ones."""

    min_effect: float = LEAST_EFFECT
    level: float = 0.95
    noise: NoiseFile | None = None
    paired: Pairing | None = None
    assume_independent_steps: bool = False
    force: bool = False
    drop_first: int | None = None
    gate: Rules = NO_RULES


STEP: Key = (STEP_TIME, None, None)
UNPROFILED_STEP: Key = (UNPROFILED, None, None)


def step_key(base: Side, opt: Side, *, force: bool = False) -> Key:
    """What the answer is of: the un-profiled step where both sides have it, else the profiled one.

    Without step marks it is the unit of work that both sides hold, with `force` else the recording as it is.
    """
    both = base.samples.keys() & opt.samples.keys()
    if UNPROFILED_STEP in both:
        return UNPROFILED_STEP
    if not (without_steps(base) or without_steps(opt)):
        return STEP
    unit = unit_key(base, opt)
    if not isinstance(unit, str):
        return unit
    return WINDOW_KEY if force and WINDOW_KEY in both else STEP


def changes(base: Side, opt: Side, choices: Choices) -> tuple[Change, ...]:
    """The step, then its stages by how long they take, then all other metrics of the whole job, by name.

    The step answers the question; all others are looked at together, so Holm's correction is theirs.
    """
    found = _together(
        [one for one in _all(base, opt, choices) if one is not None],
        choices.level,
        step_key(base, opt, force=choices.force),
    )
    ranks = {
        UNPROFILED: -1, STEP_TIME: 0, STAGE_TIME: 1, UNPROFILED_STAGE: 1, RANGE_CADENCE: 1, LAUNCH_CADENCE: 1,
    }  # fmt: skip
    return tuple(
        sorted(
            found,
            key=lambda c: (
                ranks.get(c.name, 2 + list(METRICS).index(c.name)),
                -max(c.base or 0.0, c.opt or 0.0) if ranks.get(c.name) == 1 else 0.0,
                c.role or "",
                c.stage or "",
            ),
        )
    )


def _all(base: Side, opt: Side, choices: Choices) -> Iterator[Judged | None]:
    answered = step_key(base, opt, force=choices.force)
    for key in sorted(base.samples.keys() | opt.samples.keys(), key=str):
        if key != answered and any(of_whole_recording(key, side) for side in (base, opt)):
            continue
        yield _judged(key, base.samples.get(key), opt.samples.get(key), choices)


def _together(found: Sequence[Judged], level: float, answered: Key) -> list[Change]:
    """The changes with the words that are left to them among so many; `answered` is looked at alone."""
    steps = {STEP, UNPROFILED_STEP, answered}
    at = [n for n, one in enumerate(found) if one.said and _key(one.change) not in steps]
    words = together([said for n in at if (said := found[n].said)], level=level)
    changed = [one.change for one in found]
    for n, said in zip(at, words, strict=True):
        if said.word != changed[n].word:
            notes = (*changed[n].notes, CAPS["many comparisons"])
            changed[n] = replace(changed[n], word=said.word, notes=notes)
    return changed


def _key(change: Change) -> Key:
    return change.name, change.role, change.stage


@dataclass(frozen=True, slots=True)
class Judged:
    """A change, and what was said of it; None of what has no interval by its kind."""

    change: Change
    said: Verdict | None


def _judged(key: Key, base: Samples | None, opt: Samples | None, choices: Choices) -> Judged | None:
    """One metric compared; None where neither side took any time for it."""
    name, _, stage = key
    kind = METRICS[name]
    title = titled(name, stage)
    if base is None or opt is None:
        return _unsaid(_one_sided(key, title, kind, base, opt))
    if kind.exact:
        return _unsaid(_exact(key, title, kind, base, opt))
    if not (_positive(base) and _positive(opt)):
        return _unsaid(_plain(key, title, kind, base, opt))
    found, paired = compared(base, opt, choices)
    said = verdict(
        found,
        min_effect=choices.min_effect,
        better="higher" if kind.better == "higher" else "lower",
        assume_independent_steps=choices.assume_independent_steps,
    )
    notes = [FOOTNOTES[note] for note in found.footnotes] + [CAPS[cap] for cap in said.caps]
    change = Change(
        *_what(key, title, kind, said.word),
        found.base.mean,
        found.opt.mean,
        found.difference,
        found.ratio,
        found.low,
        found.high,
        found.grand_ratio,
        found.median_ratio,
        found.label,
        least_seen(found, choices) if name in STEP_AND_STAGES else None,
        found.base.runs,
        found.base.steps,
        found.opt.runs,
        found.opt.steps,
        (*notes, *paired),
    )
    return Judged(change, said)


def _unsaid(change: Change | None) -> Judged | None:
    return None if change is None else Judged(change, None)


def headline(base: Side, opt: Side, choices: Choices) -> tuple[Speedup, Verdict]:
    """The step itself with all that was computed of it: what a plan for more runs rests on."""
    key = step_key(base, opt, force=choices.force)
    found, _ = compared(base.samples[key], opt.samples[key], choices)
    said = verdict(
        found,
        min_effect=choices.min_effect,
        assume_independent_steps=choices.assume_independent_steps,
    )
    return found, said


def least_seen(found: Speedup, choices: Choices) -> float | None:
    """The least change that such runs call a regression in 80 % of cases; None where they may say nothing at all."""
    if found.low is None or why_capped(found, choices.assume_independent_steps):
        return None
    return detectable(found.spreads, threshold(found, choices.min_effect), found.level)


def compared(base: Samples, opt: Samples, choices: Choices) -> tuple[Speedup, tuple[str, ...]]:
    """The speedup by the design that was declared, as far as this metric's samples fit it."""
    paired, notes = pairing(base, opt, choices.paired)
    noise = choices.noise.of(base.key) if choices.noise else None
    found = speedup(base.values, opt.values, level=choices.level, noise=noise, paired=paired)
    return found, notes


def pairing(
    base: Samples, opt: Samples, declared: Pairing | None
) -> tuple[Pairing | None, tuple[str, ...]]:
    """(what was declared to be pairs, or None where samples do not fit it, what to say of that)."""
    if declared == "step" and not _same_steps(base, opt):
        return None, ("steps could not be paired: the sides hold different ones",)
    if declared == "run" and len(base.runs) != len(opt.runs):
        return None, ("runs could not be paired: the sides hold different numbers",)
    return declared, ()


def other_counts(base: Side, opt: Side) -> Iterator[str]:
    """What steps of one number hold different numbers of, as far as both sides tell: those are no pairs."""
    for name in PER_WORK:
        before, after = (_by_step(side.samples.get((name, None, None))) for side in (base, opt))
        if any(before[step] != after[step] for step in before.keys() & after.keys()):
            yield name


def _by_step(found: Samples | None) -> dict[int | None, float]:
    """The value of every step of a side, by its number."""
    if found is None:
        return {}
    pairs = zip(found.steps, found.values, strict=True)
    return {step[1]: value for run in pairs for step, value in zip(*run, strict=True)}


def _same_steps(base: Samples, opt: Samples) -> bool:
    """Whether both sides hold one run with the same step numbers, all of them known."""
    if len(base.runs) != 1 or len(opt.runs) != 1:
        return False
    numbers = [[step[1] for step in side.steps[0]] for side in (base, opt)]
    return numbers[0] == numbers[1] and None not in numbers[0]


def _positive(found: Samples) -> bool:
    return all(value > 0 for run in found.values for value in run)


def _counted(found: Change, base: Samples | None, opt: Samples | None) -> Change:
    """The change with the runs and steps of both sides."""
    runs = [len(one.runs) if one else 0 for one in (base, opt)]
    steps = [sum(map(len, one.steps)) if one else 0 for one in (base, opt)]
    return replace(
        found, base_runs=runs[0], base_steps=steps[0], opt_runs=runs[1], opt_steps=steps[1]
    )


def _mean(found: Samples) -> float:
    """The mean over runs of their means."""
    return sum(sum(run) / len(run) for run in found.values) / len(found.values)


def _one_sided(
    key: Key, title: str, kind: Kind, base: Samples | None, opt: Samples | None
) -> Change | None:
    """What only one side holds: neither infinitely faster nor slower, but absent."""
    one = base or opt
    if one is None or not any(value for run in one.values for value in run):
        return None
    word: Word = "only before" if base else "only after"
    values = (_mean(base) if base else None, _mean(opt) if opt else None)
    found = Change(*_what(key, title, kind, word), *values)
    return _counted(found, base, opt)


def _exact(key: Key, title: str, kind: Kind, base: Samples, opt: Samples) -> Change:
    """Numbers without noise: equal or changed; where they vary from step to step, only their means."""
    found = exact(base.values, opt.values)
    word: Word = "inconclusive" if found.equal is None else "same" if found.equal else "changed"
    change = Change(
        *_what(key, title, kind, word), found.base, found.opt, found.difference, found.ratio,
        label=found.label, notes=tuple(FOOTNOTES[note] for note in found.footnotes),
    )  # fmt: skip
    return _counted(change, base, opt)


def _plain(key: Key, title: str, kind: Kind, base: Samples, opt: Samples) -> Change | None:
    """Times that are zero in some steps: means and their difference, as a ratio would mean nothing."""
    before, after = _mean(base), _mean(opt)
    if not before and not after:
        return None
    change = Change(
        *_what(key, title, kind, "inconclusive"), before, after, after - before,
        label="no interval", notes=("zero in some steps: no ratio",),
    )  # fmt: skip
    return _counted(change, base, opt)


def _what(
    key: Key, title: str, kind: Kind, word: Word
) -> tuple[str, str, str | None, str | None, Unit, Better, Word]:
    """The first fields of a change: what it is of, and the word for it."""
    return key[0], title, key[1], key[2], kind.unit, kind.better, word
