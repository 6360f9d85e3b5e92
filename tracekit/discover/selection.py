"""Selection of sources by rank, step and stage."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeVar

from tracekit.discover.names import WHOLE_STEP
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import Data
from tracekit.model.inputs.sources import Note, Source
from tracekit.model.records import dataclass
from tracekit.model.stages import STAGES, get_scope_stage, make_stage_filter
from tracekit.model.text.labels import join_first_few, make_displayable, make_natural_key, normalize_label_words
from tracekit.model.units import format_ranges

T = TypeVar("T")

LEFT_OUT = "left-out"
"""Code of notes on sources left out by the user's filters."""

_LONGEST_RANGE = 1_000_000
_MOST_STAGES = 12


@dataclass(frozen=True, slots=True)
class SelectableParts:
    """Rank, steps and stages of one process, or of a file that was left out by its name.

    `is_kept` if it has, or may have, some of everything requested; `has_stage` if it has a requested stage.
    """

    rank: int | None
    steps: frozenset[int]
    stages: frozenset[str]
    is_log: bool = False
    is_kept: bool = False
    has_stage: bool = False


def parse_numbers(text: str) -> frozenset[int]:
    """Parse numbers and ranges such as `0-3,7`. Raises `TracekitError` for anything else.

    >>> sorted(parse_numbers("0-3,7"))
    [0, 1, 2, 3, 7]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        piece = part.strip()
        ends = re.fullmatch(r"([0-9]{1,9})\s*(?:-\s*([0-9]{1,9}))?", piece)
        if ends is None:
            raise TracekitError(f"{make_displayable(piece)!r} is not a number or a range", "write it like 0-3,7")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if high < low:
            raise TracekitError(f"the range {make_displayable(piece)} ends before it begins", "write it like 0-3,7")
        if high - low >= _LONGEST_RANGE:
            raise TracekitError(f"the range {make_displayable(piece)} is too long", "write it like 0-3,7")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def may_match_filters(
    source: Source,
    *,
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    stages: Collection[str] | None = None,
) -> bool:
    """Check whether `source` may match the filters. Unknown ranks and steps match.

    None and an empty collection both mean all. Stages are globs, see `make_stage_filter`; captures of whole
    steps contain every stage and match.
    """
    if ranks and source.rank is not None and source.rank not in ranks:
        return False
    if steps and source.step is not None and not _covers_any_step(source, steps):
        return False
    if not stages or source.scope is None or _get_named_stage(source) is None:
        return True
    # A scope that is not a known stage, as a role's name for its whole step, may contain any stage.
    is_known = get_scope_stage(source.scope, source.role) in STAGES
    return not is_known or make_stage_filter(tuple(stages))(source.scope, source.role)


def _get_named_stage(source: Source) -> str | None:
    """Find the stage that a source's name states; None for whole steps and unknown."""
    if source.scope is None or normalize_label_words(source.scope) in WHOLE_STEP:
        return None
    return get_scope_stage(source.scope, source.role)


def _covers_any_step(source: Source, steps: Collection[int]) -> bool:
    """Check whether a source of known step, or of a window such as `steps3-5`, covers any of `steps`."""
    window = re.match(r"steps([0-9]+)-([0-9]+)", source.part or "")
    if window is None:
        return source.step in steps
    return any(int(window[1]) <= step <= int(window[2]) for step in steps)


def select_sources(
    sources: Sequence[Source],
    *,
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> tuple[list[Source], list[Source], list[Note]]:
    """Filter sources: (matching, others, notes with counts). Raises `TracekitError` if no profile matches.

    A driver's log covers every rank and stage, so logs alone do not satisfy a filter by these.
    """
    chosen = list(sources)
    notes: list[Note] = []
    filters = {
        "rank": partial(may_match_filters, ranks=ranks),
        "step": partial(may_match_filters, steps=steps),
        "stage": partial(may_match_filters, stages=stages),
    }
    for what, is_wanted in filters.items():
        before = len(chosen)
        chosen = [source for source in chosen if is_wanted(source)]
        if len(chosen) < before:
            left_out = before - len(chosen)
            message = f"{left_out} of {before} sources left out by {what}"
            notes.append(Note("info", LEFT_OUT, message, count=left_out, data=Data(by=what)))
    # A log may cover steps that were not profiled. It has no rank, and its stages count only without profiles.
    logs_alone = {source.tool for source in chosen} == {"log"} != {source.tool for source in sources}
    if not chosen or (logs_alone and (ranks or stages)):
        holdings = [describe_by_name(source, stages) for source in sources]
        raise build_selection_error(holdings, ranks, steps, stages, by_name=True)
    chosen_ids = {id(source) for source in chosen}
    return chosen, [source for source in sources if id(source) not in chosen_ids], notes


def describe_by_name(source: Source, stages: Collection[str] | None = None) -> SelectableParts:
    """Describe a source that is not read by its name."""
    stage = _get_named_stage(source)
    return SelectableParts(
        source.rank,
        _wrap_known(source.step),
        _wrap_known(stage),
        is_log=source.tool == "log",
        has_stage=bool(stages) and stage is not None and may_match_filters(source, stages=stages),
    )


def _wrap_known(value: T | None) -> frozenset[T]:
    """Wrap a value in a set. Empty for None."""
    return frozenset() if value is None else frozenset({value})


def note_unselected(
    holdings: Sequence[SelectableParts],
    unread: Sequence[Source],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str],
) -> list[Note]:
    """Note how many processes match none of the filters. Raises `TracekitError` if all of them do not.

    `holdings` were read; `unread` are sources that were excluded by their names.
    """
    if not (ranks or steps or stages):
        return []
    by_names = [describe_by_name(source, stages) for source in unread]
    check_selection([*by_names, *holdings], ranks, steps, stages)
    others = sum(not holding.is_kept for holding in holdings)
    if not others:
        return []
    message = f"{others} of {len(holdings)} sources left out: they contain nothing of the selection"
    return [Note("info", LEFT_OUT, message, count=others)]


def check_selection(
    holdings: Sequence[SelectableParts],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> None:
    """Raise `TracekitError` if no kept process is known to match the filters."""
    candidates = [holding for holding in holdings if holding.is_kept]
    if not candidates or _list_unmatched_filters(candidates, ranks, steps, stages):
        raise build_selection_error(holdings, ranks, steps, stages)


def build_selection_error(
    holdings: Sequence[SelectableParts],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
    *,
    by_name: bool = False,
) -> TracekitError:
    """Build the error for filters that select nothing: the unmatched filters, and the available values."""
    absent = _list_unmatched_filters(holdings, ranks, steps, stages)
    profiles = sum(not holding.is_log for holding in holdings)
    count = f"{profiles} profiles" if profiles else f"{len(holdings)} logs"
    lacking = "holds all that was asked for"
    if absent:
        lacking = f"has a {' or a '.join(absent)} that was asked for"
    known_ranks: set[int] = set()
    known_steps: set[int] = set()
    known_stages: set[str] = set()
    for holding in holdings:
        known_ranks |= _wrap_known(holding.rank)
        known_steps |= holding.steps
        known_stages |= holding.stages
    known_values = {
        "rank": format_ranges(known_ranks),
        "step": format_ranges(known_steps),
        "stage": join_first_few(
            [make_displayable(stage) for stage in sorted(known_stages, key=make_natural_key)], _MOST_STAGES
        ),
    }
    hints = [f"{what}s {values}" for what, values in known_values.items() if values]
    if hints:
        hints[0] = f"there are {hints[0]}"
    if by_name and known_steps:
        hints[-1] += " (a file of several steps is named by its first)"
    hints += [f"no file here says its {what}" for what in absent if not known_values[what]]
    return TracekitError(f"none of {count} {lacking}", "; ".join(hints))


def _list_unmatched_filters(
    holdings: Sequence[SelectableParts],
    ranks: Collection[int] | None,
    steps: Collection[int] | None,
    stages: Collection[str] | None,
) -> list[str]:
    """List the filters (rank, step, stage) that no holding is known to match. Logs count only without profiles."""
    profiles = [holding for holding in holdings if not holding.is_log] or holdings
    absent: list[str] = []
    if ranks and not any(holding.rank in ranks for holding in profiles):
        absent.append("rank")
    if steps and all(holding.steps.isdisjoint(steps) for holding in holdings):
        absent.append("step")
    if stages and not any(holding.has_stage for holding in profiles):
        absent.append("stage")
    return absent
