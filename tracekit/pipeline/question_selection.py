"""Which questions are asked of a profile, and what has to be measured so that these alone can be judged.

What was not asked is absent: neither clear nor failed, and nothing is said that would rest on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from tracekit.analyses import ANALYSES, Analysis
from tracekit.model.errors import TracekitError
from tracekit.model.faults import unasked_tables
from tracekit.model.labels import did_you_mean
from tracekit.model.trace import Measurements
from tracekit.pipeline.wire_format.worker_tables import all_of

ALWAYS = frozenset({"captures", "stages", "steps"})
"""Tables that nearly every judgement and the first screen look at: who fills them is always measured."""

SHARED = frozenset({"metrics", "quality"})
"""Tables that many questions fill, each with rows of its own."""


def chosen(
    only: Collection[str] | None, skip: Collection[str], analyses: Sequence[Analysis]
) -> tuple[str, ...] | None:
    """The ids of the questions that are asked, in the order of a report; None where all are.

    Raises `TracekitError` for an id that no question has, and where none is left.
    """
    all_ids = list(map(attrgetter("id"), analyses))
    for name in (*(only or ()), *skip):
        if name not in all_ids:
            near = did_you_mean(name, all_ids)
            raise TracekitError(f"no question {name!r}{near}", f"one of {', '.join(all_ids)}")
    if only is None and not skip:
        return None
    ids = tuple(id_ for id_ in all_ids if (only is None or id_ in only) and id_ not in skip)
    if not ids and skip:
        raise TracekitError("no question is left to be asked", "skip fewer, or ask for others")
    return ids


def to_measure(
    ids: Collection[str] | None, tables: Iterable[str], analyses: Sequence[Analysis]
) -> tuple[Analysis, ...]:
    """The questions to measure so that those of `ids` (None: all) can be judged and `tables` be read."""
    if ids is None:
        return tuple(analyses)
    wanted = ALWAYS.union(tables, *(a.rests_on for a in analyses if a.id in ids))
    return tuple(a for a in analyses if a.id in ids or not wanted.isdisjoint(a.tables))


def limits(
    only: Collection[str] | None,
    skip: Collection[str],
    tables: Iterable[str],
    analyses: Sequence[Analysis],
) -> Mapping[str, Any]:
    """The facts of measurements that were made for some questions alone; none where all were asked."""
    ids = chosen(only, skip, analyses)
    of_files = {"own_questions": tuple(analysis.id for analysis in analyses if analysis.file)}
    if ids is None:
        return of_files
    all_tables = set(all_of(analyses, "tables"))
    measured = all_of(to_measure(ids, tables, analyses), "tables")
    unasked = sorted(all_tables.difference(SHARED, measured))
    return {**of_files, "questions": tuple(ids), "unasked": tuple(unasked)}


def as_saved(
    ids: tuple[str, ...] | None,
    tables: Iterable[str],
    saved: Mapping[str, Measurements],
    analyses: Sequence[Analysis],
) -> tuple[str, ...] | None:
    """The questions to ask of saved measurements, by name of file: where these hold few, those that all of them hold.

    Raises `TracekitError` where one lacks what is asked for, or they have no question in common.
    """
    for name, part in saved.items():
        if lacking := [*_lacking(part, ids, analyses), *_unasked(part, tables)]:
            raise TracekitError(
                f"{name}: it was saved for other questions, and does not hold {lacking[0]}",
                _hint(asked_ids(part)),
            )
    limited = [limit for part in saved.values() if (limit := asked_ids(part)) is not None]
    if ids is not None or not limited:
        return ids
    common = frozenset(limited[0]).intersection(*limited[1:])
    if not common:
        raise TracekitError(
            "the saved measurements have no question in common",
            "save them without --only and --skip",
        )
    return tuple(analysis.id for analysis in analyses if analysis.id in common)


def _hint(ids: Sequence[str] | None) -> str:
    """What to do about saved measurements that lack what is asked for."""
    if ids is None:
        return "save it with the same --question"
    return f"it holds {', '.join(ids)}; save it without --only and --skip"


def _lacking(
    part: Measurements, ids: tuple[str, ...] | None, analyses: Iterable[Analysis]
) -> Iterator[str]:
    """The questions that are asked (None: all) and were not when these measurements were saved."""
    unasked = unasked_tables(part)
    for analysis in analyses:
        is_asked = ids is None or analysis.id in ids
        if (analysis.file and is_asked and analysis.id not in part.facts.own_questions) or (
            ids is not None
            and is_asked
            and not unasked.isdisjoint((*analysis.tables, *analysis.rests_on))
        ):
            yield analysis.id


def _unasked(part: Measurements, tables: Iterable[str]) -> Iterator[str]:
    """Which of these tables were measured by nobody."""
    return filter(unasked_tables(part).__contains__, tables)


def facts(ids: Collection[str], parts: Iterable[Measurements]) -> Mapping[str, Any]:
    """The facts of what these parts hold together, of which these questions are asked."""
    unasked = frozenset[str]().union(*map(unasked_tables, parts))
    return {"questions": tuple(ids), "unasked": tuple(sorted(unasked))}


def asked_ids(measured: Measurements) -> tuple[str, ...] | None:
    """The ids of the questions that measurements were made for, None where for all."""
    return measured.facts.questions


def of_measurements(measured: Measurements, analyses: Sequence[Analysis]) -> tuple[Analysis, ...]:
    """The questions that these measurements are to be asked: all, unless they were made for some."""
    ids = asked_ids(measured)
    return tuple(analysis for analysis in analyses if ids is None or analysis.id in ids)


def told(measured: Measurements) -> str:
    """What the first screen says of it: `only asked: kernels, steps`, `not asked: host`; nothing where all were."""
    ids = asked_ids(measured)
    if ids is None:
        return ""
    left_out = [analysis.id for analysis in ANALYSES if analysis.id not in ids]
    if len(left_out) < len(ids):
        return f"not asked: {', '.join(left_out)}"
    return f"only asked: {', '.join(ids) or 'nothing'}"
