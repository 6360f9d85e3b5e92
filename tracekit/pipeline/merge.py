"""Several sets of measurements as one, in which every run and every source has a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from tracekit.analyses import measured_tables
from tracekit.discover.runs import numbered
from tracekit.model.codes import Data
from tracekit.model.facts import Facts
from tracekit.model.tables import concat
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Failure, Fault, Measurements, Note, Source
from tracekit.pipeline.wire_format.worker_tables import all_of

T = TypeVar("T", Note, Failure, Fault)
V = TypeVar("V")


def merge(
    parts: Sequence[Measurements], labels: Sequence[str | None] = (), *, one_run: bool = False
) -> Measurements:
    """The measurements of several sets of sources as one, as if all had been measured together.

    Runs of different parts are different runs: where they share a name, they are called by the label
    of their part; sources that share a name get that of their run before it. With `one_run` runs of
    one name are one: what several nodes measured of it.
    """
    if len(parts) == 1:
        return parts[0]
    parts = _apart(parts, [*labels, *[None] * (len(parts) - len(labels))], one_run=one_run)
    tables = {}
    for table in measured_tables():
        rows = [part.columns(table.name) for part in parts if part.has(table.name)]
        if rows:
            tables[table.name] = concat(table, rows)
    facts = list(map(attrgetter("facts"), parts))
    return Measurements(
        tables,
        tuple(all_of(parts, "sources")),
        tuple(all_of(parts, "failures")),
        (*all_of(parts, "notes"), *_left_out(facts)),
        _together(facts),
        faults=tuple(all_of(parts, "faults")),
    )


def _left_out(parts: Sequence[Facts]) -> Iterator[Note]:
    """A note where not all parts hold the same stages."""
    if len(set(map(attrgetter("stages"), parts))) > 1:
        stages = ", ".join(dict.fromkeys(all_of(parts, "stages")))
        message = f"some of these measurements hold only the stages {stages}, not all"
        yield Note("warning", "left-out", message, data=Data(by="stage"))


def _together(parts: Sequence[Facts]) -> Facts:
    """The facts of several measurements as one."""
    file_counts: Counter[str] = Counter()
    own_questions = set(parts[0].own_questions)
    for facts in parts:
        file_counts.update(facts.files)
        own_questions.intersection_update(facts.own_questions)
    return Facts(
        title=", ".join(map(attrgetter("title"), parts)),
        versions=agreed(map(attrgetter("versions"), parts)),
        options=agreed(map(attrgetter("options"), parts)),
        ignored=tuple(all_of(parts, "ignored")),
        files=dict(file_counts),
        simulated=any(map(attrgetter("simulated"), parts)),
        stages=tuple(dict.fromkeys(all_of(parts, "stages"))),
        work=_same(map(attrgetter("work"), parts)) or {},
        device_memory=_same(map(attrgetter("device_memory"), parts)),
        own_questions=tuple(filter(own_questions.__contains__, parts[0].own_questions)),
        excluded_count=sum(map(attrgetter("excluded_count"), parts)),
    )


def _same(values: Iterable[V]) -> V | None:
    """What all of these are; None where they differ."""
    first, *others = values
    return first if others.count(first) == len(others) else None


def labelled(part: Measurements, label: str) -> Measurements:
    """The measurements with their run called `label`, or `label/run` where they hold several."""
    return _renamed(part, _run_labels(part, label), {})


def agreed(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The versions that no source contradicts."""
    agreeing: dict[str, str] = {}
    contradicted: set[str] = set()
    for version in versions:
        for name, value in version.items():
            if agreeing.setdefault(name, value) != value:
                contradicted.add(name)
    return {name: value for name, value in agreeing.items() if name not in contradicted}


def _apart(
    parts: Sequence[Measurements], labels: Sequence[str | None], *, one_run: bool
) -> list[Measurements]:
    """The parts with other names for runs (unless they are one) and sources whose names another part uses too."""
    runs = list(map(_run_labels, parts, labels))
    if one_run:
        new_runs = [dict(zip(labelled_runs, labelled_runs, strict=True)) for labelled_runs in runs]
    else:
        new_runs = _distinct(runs)
    sources: list[dict[str, str]] = []
    for part, label, names in zip(parts, labels, new_runs, strict=True):
        run_of: dict[str, str | None] = {s.name: names[s.run] for s in part.sources}
        run_of |= dict.fromkeys(map(attrgetter("source"), part.failures), label)
        sources.append({name: "/".join(filter(None, (run_of[name], name))) for name in run_of})
    return list(map(_renamed, parts, new_runs, _distinct(sources)))


def _run_labels(part: Measurements, label: str | None) -> dict[str, str]:
    """What each run of a part is called where another part has a run of its name."""
    runs = list(dict.fromkeys(map(attrgetter("run"), part.sources)))
    if label and len(runs) > 1:
        return {run: f"{label}/{run}" for run in runs}
    return {run: label or run for run in runs}


def _distinct(parts: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A new name for each name of each part, the one beside it where another part has the name too; each once."""
    counts = Counter(chain.from_iterable(parts))
    wanted: list[str] = []
    for names in parts:
        for name, other in names.items():
            wanted.append(other if counts[name] > 1 else name)
    unique = iter(numbered(wanted))
    return [dict(zip(names, unique, strict=False)) for names in parts]


def _renamed(
    part: Measurements, runs: Mapping[str, str], sources: Mapping[str, str]
) -> Measurements:
    """The same measurements with other names for runs and sources."""
    tables: dict[str, Columns] = {}
    for name, columns in part.arrays.items():
        tables[name] = columns.renamed("run", runs).renamed("source", sources)
    renamed_sources: list[Source] = []
    for source in part.sources:
        run, name = runs.get(source.run, source.run), sources.get(source.name, source.name)
        notes = _with_sources(source.notes, sources)
        renamed_sources.append(replace(source, run=run, name=name, notes=notes))
    return replace(
        part,
        arrays=tables,
        sources=tuple(renamed_sources),
        failures=_with_sources(part.failures, sources),
        notes=_with_sources(part.notes, sources),
        faults=_with_sources(part.faults, sources),
    )


def _with_sources(items: tuple[T, ...], sources: Mapping[str, str]) -> tuple[T, ...]:
    """Notes, failures or faults with other names for their sources."""
    return tuple(replace(item, source=sources.get(item.source, item.source)) for item in items)
