"""Which ranks, steps and stages were asked for, and which sources that leaves."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tracekit.discover.names import WHOLE_STEP
from tracekit.model.codes import Data
from tracekit.model.errors import TracekitError
from tracekit.model.labels import natural, shown, words
from tracekit.model.stages import scope_stage, stage_filter
from tracekit.model.trace import Note, Source
from tracekit.model.units import numbers

LEFT_OUT = "left-out"
"""The code of the notes that tell what was left out as asked."""

_LONGEST_RANGE = 1_000_000
_MOST_STAGES = 12


@dataclass(frozen=True, slots=True)
class Holding:
    """What one process, or a file that was left out by its name, is known to hold: its rank, steps and stages.

    `is_kept` where it has something of all that was asked for, or may have; `has_stage` where it has a stage
    that was asked for.
    """

    rank: int | None
    steps: frozenset[int]
    stages: frozenset[str]
    is_log: bool = False
    is_kept: bool = False
    has_stage: bool = False


def parse_numbers(text: str) -> frozenset[int]:
    """The numbers in `0-3,7`; `TracekitError` for anything else.

    >>> sorted(parse_numbers("0-3,7"))
    [0, 1, 2, 3, 7]
    """
    numbers: set[int] = set()
    for piece in map(str.strip, text.split(",")):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        ends = [first, last] if dash else [first]
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
            raise TracekitError(f"{shown(piece)!r} is not a number or a range", "try 0-3,7")
        low, high = int(ends[0]), int(ends[-1])
        if high < low or high - low >= _LONGEST_RANGE:
            reason = "ends before it begins" if high < low else "is too long"
            raise TracekitError(f"the range {shown(piece)} {reason}", "try 0-3,7")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def wanted(
    source: Source,
    *,
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    stages: Collection[str] | None = None,
) -> bool:
    """Whether nothing known about `source` speaks against it: unknown ranks and steps are kept.

    None and an empty collection both mean all. Stages are globs, see `stages.stage_filter`; captures of whole
    steps hold every stage and are kept.
    """
    if ranks and source.rank is not None and source.rank not in ranks:
        return False
    if steps and source.step is not None and not _covers(source, steps):
        return False
    if not stages or _stage(source) is None:
        return True
    assert source.scope is not None
    return stage_filter(tuple(stages))(source.scope, source.role)


def _stage(source: Source) -> str | None:
    """The stage that the name of a source says it covers; None for whole steps and where it says nothing."""
    if source.scope is None or words(source.scope) in WHOLE_STEP:
        return None
    return scope_stage(source.scope, source.role)


def _covers(source: Source, steps: Collection[int]) -> bool:
    """Whether a source of known step, or of a window such as `steps3-5`, covers any of `steps`."""
    window = re.match(r"steps([0-9]+)-([0-9]+)", source.part or "")
    if window is None:
        return source.step in steps
    return any(int(window[1]) <= step <= int(window[2]) for step in steps)


def select(
    sources: Sequence[Source],
    *,
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> tuple[list[Source], list[Source], list[Note]]:
    """(the wanted sources, the others, notes that count these); `TracekitError` where no profile is left.

    A driver's log speaks for every rank and stage: alone it is not what was asked for.
    """
    kept = list(sources)
    notes: list[Note] = []
    profiles = sum(source.tool != "log" for source in sources)
    for what in ("rank", "step", "stage"):
        before = len(kept)
        kept = [
            source
            for source in kept
            if wanted(
                source,
                ranks=ranks if what == "rank" else None,
                steps=steps if what == "step" else None,
                stages=stages if what == "stage" else None,
            )
        ]
        if len(kept) < before:
            left_out = before - len(kept)
            message = f"{left_out} of {before} sources left out by {what}"
            notes.append(Note("info", LEFT_OUT, message, count=left_out, data=Data(by=what)))
    held = [of_name(source, stages) for source in sources]
    # A log may tell of steps that nobody profiled; it speaks of no rank, and of no stage where profiles are.
    logs_alone = bool(kept) and all(source.tool == "log" for source in kept)
    if not kept or (profiles and logs_alone and (ranks or stages)):
        raise refusal(held, ranks, steps, stages, by_name=True)
    chosen = {id(source) for source in kept}
    return kept, [source for source in sources if id(source) not in chosen], notes


def of_name(source: Source, stages: Collection[str] | None = None) -> Holding:
    """What a source that is not read holds: what its name says."""
    stage = _stage(source)
    return Holding(
        source.rank,
        frozenset() if source.step is None else frozenset({source.step}),
        frozenset() if stage is None else frozenset({stage}),
        is_log=source.tool == "log",
        has_stage=bool(stages) and stage is not None and wanted(source, stages=stages),
    )


def left_out(
    held: Sequence[Holding],
    unread: Sequence[Source],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str],
) -> list[Note]:
    """A note that counts processes which hold nothing of what was asked for; `TracekitError` where none holds it.

    `held` were read, `unread` are sources that are something else by their names.
    """
    if not (ranks or steps or stages):
        return []
    check([*(of_name(source, stages) for source in unread), *held], ranks, steps, stages)
    others = sum(not holding.is_kept for holding in held)
    message = f"{others} of {len(held)} sources hold nothing of what was asked for"
    return [Note("info", LEFT_OUT, message, count=others)] if others else []


def check(
    held: Sequence[Holding],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> None:
    """Nothing; raises `TracekitError` where nothing that was kept is known to be what was asked for."""
    kept = [holding for holding in held if holding.is_kept]
    if not kept or _absent(kept, ranks, steps, stages):
        raise refusal(held, ranks, steps, stages)


def refusal(
    held: Sequence[Holding],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
    *,
    by_name: bool = False,
) -> TracekitError:
    """The error for filters that select nothing: which of them, and what ranks, steps and stages there are."""
    absent = _absent(held, ranks, steps, stages)
    profiles = sum(not holding.is_log for holding in held)
    count = f"{profiles} profiles" if profiles else f"{len(held)} logs"
    lacking = f"has a {' or a '.join(absent)} that was asked for" if absent else ""
    problem = f"none of {count} {lacking or 'holds all that was asked for'}"
    ranks_there = {holding.rank for holding in held if holding.rank is not None}
    steps_there = {step for holding in held for step in holding.steps}
    stages_there = sorted({stage for holding in held for stage in holding.stages}, key=natural)
    more = " …" if len(stages_there) > _MOST_STAGES else ""
    there = {
        "rank": numbers(ranks_there),
        "step": numbers(steps_there),
        "stage": ", ".join(map(shown, stages_there[:_MOST_STAGES])) + more,
    }
    listed = "; ".join(f"{what}s {values}" for what, values in there.items() if values)
    unsaid = [f"no file here says its {what}" for what in absent if not there[what]]
    of_files = " (a file of several steps is named by its first)" if by_name and steps_there else ""
    hints = [f"there are {listed}{of_files}" if listed else "", *unsaid]
    return TracekitError(problem, "; ".join(hint for hint in hints if hint))


def _absent(
    held: Sequence[Holding],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> list[str]:
    """What of rank, step and stage was asked for and nothing is known to have; a log has no say where profiles are."""
    profiles = [holding for holding in held if not holding.is_log] or held
    asked = {
        "rank": not ranks or any(holding.rank in ranks for holding in profiles),
        "step": not steps or any(not holding.steps.isdisjoint(steps) for holding in held),
        "stage": not stages or any(holding.has_stage for holding in profiles),
    }
    return [what for what, is_there in asked.items() if not is_there]
