"""Handling of tracekit's own errors: a failed table is neither absent nor empty, and supports no conclusion.

A rule that accesses a table which failed for some captures runs again without these captures, and reports it. If no
capture is left, the rule itself has failed. Table access is recorded at run time, not declared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from tracekit.model.inputs.note_codes import OF_ERRORS
from tracekit.model.records import dataclass
from tracekit.model.report import Remark, Section, Verdict
from tracekit.model.tables.frame import Bools, Frame
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Fault, Measurements, Note, Source
from tracekit.model.units import format_ranges

T = TypeVar("T")

Capture = tuple[str, int | None]
"""Source and pid: one process in one source."""

MAX_RANKS = 8
"""Maximum number of pieces (ranks or ranges) in a list of ranks."""


@dataclass(frozen=True, slots=True)
class SoundJudgement(Generic[T]):
    """The value of a judgement, and the faults for which it excludes captures.

    `value` is None if no capture is left.
    """

    value: T | None
    faults: tuple[Fault, ...] = ()


def judge_without_faults(
    measured: Measurements, judge: Callable[[Measurements], T], question: str = "", writes: Collection[str] = ()
) -> SoundJudgement[T]:
    """Compute `judge(measured)` without the captures for which an accessed table has failed.

    From tables in `writes`, which the `question` fills together with others, only its own rows matter. Raises what `judge`
    raises on sound measurements.
    """
    if not _list_faults(measured):
        return SoundJudgement(judge(measured))
    faults: tuple[Fault, ...] = ()
    while True:
        error: Exception | None = None
        tables: set[str] = set()
        try:
            value = _judge_watching_tables(measured, judge, tables)
        except Exception as raised:  # noqa: BLE001 - raised below, unless a fault explains it
            error = raised
        beneath = [f for f in _list_faults(measured) if _depends_on_fault(f, tables, question, writes)]
        if not beneath:
            if error is not None:
                raise error
            return SoundJudgement(value, faults)
        faults = (*faults, *beneath)
        measured = _drop_captures(measured, {(fault.source, fault.pid) for fault in beneath})
        if not measured.sources:
            return SoundJudgement(None, faults)


def has_faults(measured: Measurements) -> bool:
    """Whether anything failed in the measurements or in those of the checking tool."""
    return bool(_list_faults(measured))


def judge_if_sound(measured: Measurements, judge: Callable[[Measurements], T], otherwise: T) -> T:
    """Compute `judge(measured)`; `otherwise` if any table it accesses has failed for any capture.

    The tables do not count as accessed by the enclosing judgement, which does not depend on the result.
    """
    if not _list_faults(measured):
        return judge(measured)
    tables: set[str] = set()
    try:
        value = _judge_watching_tables(measured, judge, tables)
    except Exception:
        if any(_depends_on_fault(fault, tables) for fault in _list_faults(measured)):
            return otherwise
        raise
    return otherwise if any(_depends_on_fault(fault, tables) for fault in _list_faults(measured)) else value


def list_unasked_tables(measured: Measurements) -> frozenset[str]:
    """Collect the tables that were not measured because no selected question needs them."""
    return frozenset(measured.facts.unasked)


def judge_if_asked(measured: Measurements, part: Callable[[Measurements], T], otherwise: T) -> T:
    """Compute `part(measured)`; `otherwise` if it accesses a table that no selected question measures."""
    unasked = list_unasked_tables(measured)
    if not unasked:
        return part(measured)
    with measured.watched() as tables:
        value = part(measured)
    if not unasked.isdisjoint(tables):
        return otherwise
    measured.has(*tables)  # The enclosing judgement accesses them too.
    return value


def judge_if_sound_and_asked(measured: Measurements, part: Callable[[Measurements], T], otherwise: T) -> T:
    """Compute `part(measured)`; `otherwise` if any table it accesses has failed or was not requested."""
    return judge_if_sound(measured, lambda whom: judge_if_asked(whom, part, otherwise), otherwise)


def keep_sound_metrics(measured: Measurements) -> Frame:
    """Keep the rows of `metrics` whose name did not fail in any process: a mean over some processes would mislead."""
    with measured.watched():
        rows = measured.frame("metrics")
    failed = list_unsound_metrics(measured)
    return rows.filter(~rows.is_in("name", failed)) if failed else rows


def list_unsound_metrics(measured: Measurements) -> frozenset[str]:
    """Collect the names of metrics that failed in some process."""
    return frozenset(name for fault in measured.faults for name in fault.metrics)


def _judge_watching_tables(measured: Measurements, judge: Callable[[Measurements], T], tables: set[str]) -> T:
    """Run `judge(measured)` and add the tables it accesses to `tables`, even if it raises."""
    with ExitStack() as watching:
        sides = [side for side in (measured, measured.check) if side is not None]
        looks = [watching.enter_context(side.watched()) for side in sides]
        try:
            return judge(measured)
        finally:
            tables.update(*looks)


def _list_faults(measured: Measurements) -> tuple[Fault, ...]:
    """List the faults of the measurements and of the checking tool."""
    if measured.check is None:
        return measured.faults
    return (*measured.faults, *measured.check.faults)


def _depends_on_fault(fault: Fault, tables: Collection[str], question: str = "", writes: Collection[str] = ()) -> bool:
    """Whether a judgement that accessed these tables depends on a fault."""
    if fault.question == question:
        return True
    return any(table in tables and table not in writes for table in fault.tables)


def _drop_captures(measured: Measurements, captures: Collection[Capture]) -> Measurements:
    """Remove everything of these captures from the measurements, as if they had not been given."""
    sources = tuple(s for s in measured.sources if (s.name, s.pid) not in captures)
    gone = {name for name, _ in captures} - {source.name for source in sources}
    tables = {}
    for name, columns in measured.arrays.items():
        rows = columns.where(~_mask_capture_rows(Frame.from_columns(columns), captures, gone))
        if len(rows) or not len(columns):
            tables[name] = rows
    return Measurements(
        tables,
        sources,
        measured.failures,
        tuple(note for note in measured.notes if note.source not in gone),
        measured.facts,
        _drop_check_captures(measured, captures),
        tuple(f for f in measured.faults if (f.source, f.pid) not in captures),
        None if measured.recorded is None else _drop_captures(measured.recorded, captures),
    )


def _drop_check_captures(measured: Measurements, captures: Collection[Capture]) -> Measurements | None:
    """Remove these captures from the checking tool's measurements; None if nothing is left."""
    if measured.check is None:
        return None
    check = _drop_captures(measured.check, captures)
    return check if check.sources else None


def _mask_capture_rows(rows: Frame, captures: Collection[Capture], gone: Collection[str]) -> Bools:
    """Mask the rows of these captures; sources in `gone` match for every process."""
    mask = rows.is_in("source", gone)
    for name, pid in captures:
        if name not in gone:
            mask |= rows.equals("source", name) & rows.equals("pid", pid)
    return mask


# --- in words -------------------------------------------------------------------------------------


def explain_faults(faults: Iterable[Fault]) -> str:
    """Explain why a judgement without any capture left has no result."""
    every_fault = tuple(faults)
    return f"{_attribute_faults(every_fault)}: {'; '.join(_describe_faults(every_fault))}"


def describe_sound_captures(measured: Measurements, faults: Collection[Fault]) -> str:
    """Describe the captures left to a judgement: `1 of 2 ranks`."""
    among, failed, word = _count_failed_captures(measured, faults)
    return f"{among - failed:,} of {among:,} {word}"


def describe_fault_caveat(measured: Measurements, faults: Collection[Fault]) -> str:
    """Describe the captures left to a judgement, and the error that excluded the others."""
    return f"of {describe_sound_captures(measured, faults)}: {_attribute_faults(faults)} left the others out ({'; '.join(_describe_faults(faults))})"


def list_fault_cautions(measured: Measurements) -> tuple[str, ...]:
    """Describe every failed question for the first screen: captures, error and consequence."""
    by_question: dict[tuple[str, str], list[Fault]] = {}
    for fault in _list_faults(measured):
        by_question.setdefault((fault.question, fault.action), []).append(fault)
    return tuple(
        format_fault_caution(
            f"{question} could not be {action} of {_describe_failed_captures(measured, faults)}: {faults[0].error}",
            faults[0].file,
        )
        for (question, action), faults in by_question.items()
    )


def attribute_error(file: str) -> str:
    """Attribute an error to tracekit, or to the user's file with a question."""
    return f"an error in {Path(file).name if file else 'tracekit'}"


def _attribute_faults(faults: Collection[Fault]) -> str:
    """Attribute faults to one user's file if all come from it, else to tracekit."""
    files = {fault.file for fault in faults}
    return attribute_error(files.pop() if len(files) == 1 else "")


def format_fault_caution(what: str, file: str = "") -> str:
    """Format the caution for one error of tracekit or of the user's file."""
    return f"{attribute_error(file)}, not in the run: {what} (missing results are not judged; tracekit analyze -v prints where it happened)"


def is_fault_remark(remark: Remark) -> bool:
    """Whether a remark reports an error of tracekit."""
    return remark.code.startswith(OF_ERRORS)


def make_fault_notes(measured: Measurements) -> tuple[Note, ...]:
    """Build one note per fault."""
    return tuple(
        Note("error", f"{OF_ERRORS}{f.question}", next(_describe_faults((f,))), f.source) for f in measured.faults
    )


def mark_partial_section(section: Section, rules: Sequence[str], caveat: str) -> Section:
    """Mark a section as computed without failed captures; rules that did not fire become `failed`, not clear."""
    findings = tuple(replace(f, caveats=(caveat, *f.caveats)) for f in section.findings)
    fired = {finding.rule for finding in findings}
    verdicts = [verdict for verdict in section.verdicts if verdict.rule in fired]
    return replace(
        section,
        findings=findings,
        caveats=(caveat, *section.caveats),
        verdicts=(*verdicts, *(Verdict(r, "failed", caveat) for r in rules if r not in fired)),
    )


def make_fault_remark(question: str, what: str, file: str = "") -> Remark:
    """Build the remark for an error after measuring, of tracekit or of the user's `file`."""
    return Remark("error", f"{OF_ERRORS}{question}", what, file)


def _describe_faults(faults: Iterable[Fault]) -> Iterator[str]:
    """Describe what failed and the error, once per question."""
    firsts: dict[str, Fault] = {}
    for fault in faults:
        firsts.setdefault(fault.question, fault)
    return iter([f"{f.question} could not be {f.action}: {f.error}" for f in firsts.values()])


def _describe_failed_captures(measured: Measurements, faults: Collection[Fault]) -> str:
    """Describe the captures that failed: `1 of 2 ranks (rank 1)`."""
    among, failed, word = _count_failed_captures(measured, faults)
    captures = {(fault.source, fault.pid) for fault in faults}
    hit = [source for source in _list_judged_sources(measured) if (source.name, source.pid) in captures]
    ranks = sorted({source.rank for source in hit if source.rank is not None})
    if word == "ranks":
        names = f"{choose_plural(len(ranks), 'rank')} {format_ranges(ranks, MAX_RANKS)}"
    else:
        names = hit[0].name
        if len(hit) > 1:
            names += f" and {len(hit) - 1:,} more"
    return f"{failed:,} of {among:,} {word} ({names})"


def _count_failed_captures(measured: Measurements, faults: Collection[Fault]) -> tuple[int, int, str]:
    """Count (captures of the affected tools, failed captures) and choose the word for them."""
    captures = {(fault.source, fault.pid) for fault in faults}
    tools = {s.tool for s in _list_judged_sources(measured) if (s.name, s.pid) in captures}
    among = [source for source in _list_judged_sources(measured) if source.tool in tools]
    ranks = [source.rank for source in among]
    by_rank = None not in ranks and len(set(ranks)) == len(ranks)
    return len(among), len(captures), "ranks" if by_rank else "captures"


def _list_judged_sources(measured: Measurements) -> tuple[Source, ...]:
    if measured.check is None:
        return measured.sources
    return (*measured.sources, *measured.check.sources)
