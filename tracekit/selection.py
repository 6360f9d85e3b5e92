"""Which ranks, steps and stages were asked for, and which sources that leaves."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

from tracekit.errors import TracekitError
from tracekit.labels import shown, words
from tracekit.names import WHOLE_STEP
from tracekit.trace import Note, Source

LEFT_OUT = "left-out"
"""The code of the notes that tell what was left out as asked."""

_LONGEST_RANGE = 1_000_000


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

    None and an empty collection both mean all. A stage is wanted by a part of its name or by a glob,
    `-` and `_` alike; captures of whole steps hold every stage and are kept. Aliases are the caller's.
    """
    if ranks and source.rank is not None and source.rank not in ranks:
        return False
    if steps and source.step is not None and not _covers(source, steps):
        return False
    if not stages or source.scope is None or words(source.scope) in WHOLE_STEP:
        return True
    scope = words(source.scope)
    patterns = [pattern.lower().replace("-", "_") for pattern in stages]
    return any(p in scope or fnmatchcase(scope, p) for p in patterns)


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
) -> tuple[list[Source], list[Note]]:
    """The wanted sources, and notes that count the others; `TracekitError` where none is left."""
    kept = list(sources)
    notes: list[Note] = []
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
            notes.append(Note("info", LEFT_OUT, message, count=left_out))
    if not kept:
        problem = f"none of {len(sources)} sources has the ranks, steps and stages asked for"
        raise TracekitError(problem, _what_there_is(sources))
    return kept, notes


def _what_there_is(sources: Sequence[Source]) -> str:
    """A hint that lists the ranks, steps and stages named by the sources."""
    values: dict[str, list[Any]] = {
        "ranks": sorted({s.rank for s in sources if s.rank is not None}),
        "steps": sorted({s.step for s in sources if s.step is not None}),
        "stages": sorted({s.scope for s in sources if s.scope is not None}),
    }
    told = [
        f"{what} {', '.join(map(str, known[:12]))}{' …' if len(known) > 12 else ''}"
        for what, known in values.items()
        if known
    ]
    hint = f"there are {'; '.join(told)}"
    return hint + " (a file of several steps is named by its first)" if values["steps"] else hint
