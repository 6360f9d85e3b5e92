"""What an error of tracekit leaves unsaid: a failed table is neither absent nor empty, and nothing is concluded from it.

A judgement that looks at a table which failed for some captures is made again without these captures, and says
so; where none is left it has failed itself. Which tables it looks at is watched, not declared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from tracekit.model.codes import OF_ERRORS
from tracekit.model.keys import equal
from tracekit.model.labels import plural
from tracekit.model.records import dataclass
from tracekit.model.report import Remark, Section, Verdict
from tracekit.model.trace import Fault, Measurements, Note, Source
from tracekit.model.units import numbers

T = TypeVar("T")

Capture = tuple[str, int | None]
"""Source and pid: one process in one source."""

MAX_RANKS = 8
"""Most pieces of a list of ranks, ranges among them."""


@dataclass(frozen=True, slots=True)
class Judged(Generic[T]):
    """What a judgement says, and the faults on account of which it leaves captures out.

    `value` is None where they leave no capture at all.
    """

    value: T | None
    faults: tuple[Fault, ...] = ()


def judged(
    measured: Measurements,
    judge: Callable[[Measurements], T],
    question: str = "",
    writes: Collection[str] = (),
) -> Judged[T]:
    """`judge(measured)` without the captures of which a table that it looks at has failed.

    Of a table that the `question` itself `writes`, as others do, it looks at its own rows alone. Raises what
    `judge` raises of measurements that are whole.
    """
    if not _faults(measured):
        return Judged(judge(measured))
    faults: tuple[Fault, ...] = ()
    while True:
        error: Exception | None = None
        tables: set[str] = set()
        try:
            value = _watched(measured, judge, tables)
        except Exception as raised:  # noqa: BLE001 - raised below, unless it is of what has failed
            error = raised
        beneath = [f for f in _faults(measured) if _rests(f, tables, question, writes)]
        if not beneath:
            if error is not None:
                raise error
            return Judged(value, faults)
        faults = (*faults, *beneath)
        measured = _without(measured, {(fault.source, fault.pid) for fault in beneath})
        if not measured.sources:
            return Judged(None, faults)


def has_faults(measured: Measurements) -> bool:
    """Whether anything of what answers, or of what checks it, has failed."""
    return bool(_faults(measured))


def sound(measured: Measurements, judge: Callable[[Measurements], T], otherwise: T) -> T:
    """`judge(measured)` if nothing that it looks at has failed, of any capture; else `otherwise`.

    What is around it does not rest on it, and is not asked about its tables.
    """
    if not _faults(measured):
        return judge(measured)
    tables: set[str] = set()
    try:
        value = _watched(measured, judge, tables)
    except Exception:
        if any(_rests(fault, tables) for fault in _faults(measured)):
            return otherwise
        raise
    return otherwise if any(_rests(fault, tables) for fault in _faults(measured)) else value


def unasked_tables(measured: Measurements) -> frozenset[str]:
    """The tables that nobody measured because no question was asked that needs them."""
    return frozenset(measured.facts.unasked)


def asked(measured: Measurements, part: Callable[[Measurements], T], otherwise: T) -> T:
    """`part(measured)`; `otherwise` if it looks at a table that nobody measured, because nothing was asked that needs it."""
    unasked = unasked_tables(measured)
    if not unasked:
        return part(measured)
    with measured.watched() as tables:
        value = part(measured)
    if not unasked.isdisjoint(tables):
        return otherwise
    measured.has(*tables)  # What is around it looks at them as well.
    return value


def sound_metrics(measured: Measurements) -> pd.DataFrame:
    """The rows of `metrics` of all names that no process has failed to measure: a mean of some is another number."""
    with measured.watched():
        rows = measured["metrics"]
    failed = unsound_metrics(measured)
    return rows[~rows["name"].isin(failed).to_numpy()] if failed else rows


def unsound_metrics(measured: Measurements) -> frozenset[str]:
    """The names of the metrics that some process has failed to measure."""
    return frozenset(name for fault in measured.faults for name in fault.metrics)


def _watched(measured: Measurements, judge: Callable[[Measurements], T], tables: set[str]) -> T:
    """`judge(measured)`; afterwards `tables` holds what it looked at, also where it raises."""
    with ExitStack() as watching:
        sides = [side for side in (measured, measured.check) if side is not None]
        looks = [watching.enter_context(side.watched()) for side in sides]
        try:
            return judge(measured)
        finally:
            tables.update(*looks)


def _faults(measured: Measurements) -> tuple[Fault, ...]:
    """The faults of what answers and of what checks it."""
    if measured.check is None:
        return measured.faults
    return (*measured.faults, *measured.check.faults)


def _rests(
    fault: Fault, tables: Collection[str], question: str = "", writes: Collection[str] = ()
) -> bool:
    """Whether a judgement that looked at these tables rests on what has failed."""
    if fault.question == question:
        return True
    return any(table in tables and table not in writes for table in fault.tables)


def _without(measured: Measurements, captures: Collection[Capture]) -> Measurements:
    """The measurements without everything of these captures, as if they had not been given."""
    sources = tuple(s for s in measured.sources if (s.name, s.pid) not in captures)
    gone = {name for name, _ in captures} - {source.name for source in sources}
    tables = {}
    for name, columns in measured.arrays.items():
        rows = columns.where(~_of(columns.judged(), captures, gone))
        if len(rows) or not len(columns):
            tables[name] = rows
    return Measurements(
        tables,
        sources,
        measured.failures,
        tuple(note for note in measured.notes if note.source not in gone),
        measured.facts,
        _check_without(measured, captures),
        tuple(f for f in measured.faults if (f.source, f.pid) not in captures),
        None if measured.recorded is None else _without(measured.recorded, captures),
    )


def _check_without(measured: Measurements, captures: Collection[Capture]) -> Measurements | None:
    """The measurements of the tool that checks without these captures; None where none is left."""
    if measured.check is None:
        return None
    check = _without(measured.check, captures)
    return check if check.sources else None


def _of(
    frame: pd.DataFrame, captures: Collection[Capture], gone: Collection[str]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are of these captures; of the sources that are `gone` whatever the process."""
    rows = frame["source"].isin(gone).to_numpy(np.bool_)
    for name, pid in captures:
        if name not in gone:
            # What pandas hands out may not be written to.
            rows = rows | (equal(frame["source"], name) & equal(frame["pid"], pid))
    return rows


# --- in words -------------------------------------------------------------------------------------


def reason(faults: Iterable[Fault]) -> str:
    """Why a judgement of which no capture is left says nothing."""
    every_fault = tuple(faults)
    return f"{_error_of(every_fault)}: {'; '.join(_what(every_fault))}"


def basis(measured: Measurements, faults: Collection[Fault]) -> str:
    """What is left to a judgement: `1 of 2 ranks`."""
    among, failed, word = _counted(measured, faults)
    return f"{among - failed:,} of {among:,} {word}"


def caveat(measured: Measurements, faults: Collection[Fault]) -> str:
    """What a judgement that leaves captures out has to say: what it rests on, and what happened to the others."""
    return f"of {basis(measured, faults)}: {_error_of(faults)} left the others out ({'; '.join(_what(faults))})"


def cautions(measured: Measurements) -> tuple[str, ...]:
    """What the first screen says of every question that failed: of how much, which error, and what that means."""
    by_question: dict[tuple[str, str], list[Fault]] = {}
    for fault in _faults(measured):
        by_question.setdefault((fault.question, fault.action), []).append(fault)
    return tuple(
        caution(
            f"{question} could not be {action} of {_whose(measured, faults)}: {faults[0].error}",
            faults[0].file,
        )
        for (question, action), faults in by_question.items()
    )


def error_of(file: str) -> str:
    """Whose error it is: of tracekit, or of the user's file with a question of their own."""
    return f"an error of {Path(file).name if file else 'tracekit'}"


def _error_of(faults: Collection[Fault]) -> str:
    """Whose error these are, of tracekit where any of them is."""
    files = {fault.file for fault in faults}
    return error_of(files.pop() if len(files) == 1 else "")


def caution(what: str, file: str = "") -> str:
    """What the first screen says of one error of tracekit, or of the user's file."""
    return (
        f"{error_of(file)}, not of the run: {what} (nothing is concluded from what is missing;"
        " tracekit analyze -v prints where it happened)"
    )


def is_of(remark: Remark) -> bool:
    """Whether a remark is on an error of tracekit."""
    return remark.code.startswith(OF_ERRORS)


def notes(measured: Measurements) -> tuple[Note, ...]:
    """One note a fault."""
    return tuple(
        Note("error", f"{OF_ERRORS}{f.question}", next(_what((f,))), f.source)
        for f in measured.faults
    )


def of_some(section: Section, rules: Sequence[str], caveat: str) -> Section:
    """The section, judged without captures that failed: no rule is clear that has not seen them."""
    findings = tuple(replace(f, caveats=(caveat, *f.caveats)) for f in section.findings)
    fired = {finding.rule for finding in findings}
    verdicts = [verdict for verdict in section.verdicts if verdict.rule in fired]
    return replace(
        section,
        findings=findings,
        caveats=(caveat, *section.caveats),
        verdicts=(*verdicts, *(Verdict(r, "failed", caveat) for r in rules if r not in fired)),
    )


def remark(question: str, what: str, file: str = "") -> Remark:
    """An error after measuring, as a remark: of tracekit, or of the user's `file` with a question."""
    return Remark("error", f"{OF_ERRORS}{question}", what, file)


def _what(faults: Iterable[Fault]) -> Iterator[str]:
    """What could not be done, and the error, once for each question."""
    firsts: dict[str, Fault] = {}
    for fault in faults:
        firsts.setdefault(fault.question, fault)
    return iter([f"{f.question} could not be {f.action}: {f.error}" for f in firsts.values()])


def _whose(measured: Measurements, faults: Collection[Fault]) -> str:
    """Of whom something could not be measured: `1 of 2 ranks (rank 1)`."""
    among, failed, word = _counted(measured, faults)
    captures = {(fault.source, fault.pid) for fault in faults}
    hit = [source for source in _sources(measured) if (source.name, source.pid) in captures]
    ranks = sorted({source.rank for source in hit if source.rank is not None})
    if word == "ranks":
        names = f"{plural(len(ranks), 'rank')} {numbers(ranks, MAX_RANKS)}"
    else:
        names = hit[0].name
        if len(hit) > 1:
            names += f" and {len(hit) - 1:,} more"
    return f"{failed:,} of {among:,} {word} ({names})"


def _counted(measured: Measurements, faults: Collection[Fault]) -> tuple[int, int, str]:
    """(the captures of the tools that were hit, those of them that failed, what to call them)."""
    captures = {(fault.source, fault.pid) for fault in faults}
    tools = {s.tool for s in _sources(measured) if (s.name, s.pid) in captures}
    among = [source for source in _sources(measured) if source.tool in tools]
    ranks = [source.rank for source in among]
    by_rank = None not in ranks and len(set(ranks)) == len(ranks)
    return len(among), len(captures), "ranks" if by_rank else "captures"


def _sources(measured: Measurements) -> tuple[Source, ...]:
    if measured.check is None:
        return measured.sources
    return (*measured.sources, *measured.check.sources)
