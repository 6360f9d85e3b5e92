"""Selection of questions, and of the measurements needed to judge only these.

A question that was not asked is absent: neither clear nor failed, and no statement depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tracekit.analyses import ANALYSES, Analysis
from tracekit.model.errors import TracekitError
from tracekit.model.failed_questions import list_unasked_tables
from tracekit.model.text.labels import did_you_mean
from tracekit.model.trace import Measurements
from tracekit.pipeline.wire_format.worker_tables import chain_attribute

ALWAYS_MEASURED = frozenset({"captures", "gpu_time", "stages", "steps"})
"""Tables that the summary and the rules on warm-up steps read; the questions that fill them are always measured."""

SHARED_TABLES = frozenset({"metrics", "quality"})
"""Tables that several questions fill, each with its own rows."""


def select_question_ids(
    only: Collection[str] | None, skip: Collection[str], analyses: Sequence[Analysis]
) -> tuple[str, ...] | None:
    """Select the ids of the questions to ask, in report order; None if all are.

    Raises `TracekitError` for an unknown id, and if no question is left.
    """
    all_ids = [analysis.id for analysis in analyses]
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


def select_measured_questions(
    ids: Collection[str] | None, tables: Iterable[str], analyses: Sequence[Analysis]
) -> tuple[Analysis, ...]:
    """Select the questions to measure to judge `ids` (None: all) and to fill `tables`."""
    if ids is None:
        return tuple(analyses)
    wanted = ALWAYS_MEASURED.union(tables, *(a.rests_on for a in analyses if a.id in ids))
    return tuple(a for a in analyses if a.id in ids or not wanted.isdisjoint(a.tables))


def make_selection_facts(
    only: Collection[str] | None, skip: Collection[str], tables: Iterable[str], analyses: Sequence[Analysis]
) -> Mapping[str, Any]:
    """Make the facts that record a selection of questions; only `own_questions` if all were asked."""
    ids = select_question_ids(only, skip, analyses)
    of_files = {"own_questions": tuple(analysis.id for analysis in analyses if analysis.file)}
    if ids is None:
        return of_files
    all_tables = set(chain_attribute(analyses, "tables"))
    measured = chain_attribute(select_measured_questions(ids, tables, analyses), "tables")
    unasked = sorted(all_tables.difference(SHARED_TABLES, measured))
    return {**of_files, "questions": tuple(ids), "unasked": tuple(unasked)}


def select_saved_questions(
    ids: tuple[str, ...] | None, tables: Iterable[str], saved: Mapping[str, Measurements], analyses: Sequence[Analysis]
) -> tuple[str, ...] | None:
    """Select the questions to ask of saved measurements, by file name; by default those that all files contain.

    Raises `TracekitError` if a file lacks a requested question or table, or if the files share no question.
    """
    for name, part in saved.items():
        if lacking := [*_list_missing_questions(part, ids, analyses), *_list_unmeasured(part, tables)]:
            raise TracekitError(
                f"{name}: it was saved for other questions, without {lacking[0]}",
                _suggest_saving(get_asked_ids(part)),
            )
    limited = [limit for part in saved.values() if (limit := get_asked_ids(part)) is not None]
    if ids is not None or not limited:
        return ids
    common = frozenset(limited[0]).intersection(*limited[1:])
    if not common:
        raise TracekitError("the saved measurements have no question in common", "save them without --only and --skip")
    return tuple(analysis.id for analysis in analyses if analysis.id in common)


def _suggest_saving(ids: Sequence[str] | None) -> str:
    """Suggest how to save measurements that contain the requested question."""
    if ids is None:
        return "save it with the same --question"
    return f"it contains {', '.join(ids)}; save it without --only and --skip"


def _list_missing_questions(
    part: Measurements, ids: tuple[str, ...] | None, analyses: Iterable[Analysis]
) -> Iterator[str]:
    """List the requested questions (None: all) that saved measurements do not contain."""
    unasked = list_unasked_tables(part)
    for analysis in analyses:
        is_asked = ids is None or analysis.id in ids
        if (analysis.file and is_asked and analysis.id not in part.facts.own_questions) or (
            ids is not None and is_asked and not unasked.isdisjoint((*analysis.tables, *analysis.rests_on))
        ):
            yield analysis.id


def _list_unmeasured(part: Measurements, tables: Iterable[str]) -> Iterator[str]:
    """List those of these tables that were not measured."""
    unasked = list_unasked_tables(part)
    return (table for table in tables if table in unasked)


def merge_selection_facts(ids: Collection[str], parts: Iterable[Measurements]) -> Mapping[str, Any]:
    """Merge the selection facts of several parts, limited to the questions `ids`."""
    unasked = frozenset[str]().union(*(list_unasked_tables(part) for part in parts))
    return {"questions": tuple(ids), "unasked": tuple(sorted(unasked))}


def get_asked_ids(measured: Measurements) -> tuple[str, ...] | None:
    """Get the ids of the questions that were measured; None for all."""
    return measured.facts.questions


def select_judged_questions(measured: Measurements, analyses: Sequence[Analysis]) -> tuple[Analysis, ...]:
    """Select the questions to judge: all, unless the measurements were made for some only."""
    ids = get_asked_ids(measured)
    return tuple(analysis for analysis in analyses if ids is None or analysis.id in ids)


def describe_selection(measured: Measurements) -> str:
    """Describe the selection for the summary: `only asked: kernels, steps` or `not asked: host`; empty without one."""
    ids = get_asked_ids(measured)
    if ids is None:
        return ""
    left_out = [analysis.id for analysis in ANALYSES if analysis.id not in ids]
    if len(left_out) < len(ids):
        return f"not asked: {', '.join(left_out)}"
    return f"only asked: {', '.join(ids) or 'nothing'}"
