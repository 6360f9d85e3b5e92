"""Several sets of measurements as one, in which every run and every source has a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from tracekit.analyses import measured_tables
from tracekit.discover.runs import numbered
from tracekit.model.codes import Data
from tracekit.model.facts import Facts
from tracekit.model.tables import concat
from tracekit.model.trace import Failure, Fault, Measurements, Note

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
    facts = [part.facts for part in parts]
    return Measurements(
        tables,
        tuple(chain.from_iterable(part.sources for part in parts)),
        tuple(chain.from_iterable(part.failures for part in parts)),
        (*chain.from_iterable(part.notes for part in parts), *_left_out(facts)),
        _together(facts),
        faults=tuple(chain.from_iterable(part.faults for part in parts)),
    )


def _left_out(parts: Sequence[Facts]) -> Iterator[Note]:
    """A note where not all parts hold the same stages."""
    if any(facts.stages != parts[0].stages for facts in parts):
        stages = ", ".join(dict.fromkeys(chain.from_iterable(facts.stages for facts in parts)))
        message = f"some of these measurements hold only the stages {stages}, not all"
        yield Note("warning", "left-out", message, data=Data(by="stage"))


def _together(parts: Sequence[Facts]) -> Facts:
    """The facts of several measurements as one."""
    file_counts: Counter[str] = Counter()
    for facts in parts:
        file_counts.update(facts.files)
    own_questions = set(parts[0].own_questions)
    for facts in parts:
        own_questions.intersection_update(facts.own_questions)
    return Facts(
        title=", ".join(facts.title for facts in parts),
        versions=agreed([facts.versions for facts in parts]),
        options=agreed([facts.options for facts in parts]),
        ignored=tuple(chain.from_iterable(facts.ignored for facts in parts)),
        files=dict(file_counts),
        simulated=any(facts.simulated for facts in parts),
        stages=tuple(dict.fromkeys(chain.from_iterable(facts.stages for facts in parts))),
        work=_same([facts.work for facts in parts]) or {},
        device_memory=_same([facts.device_memory for facts in parts]),
        own_questions=tuple(name for name in parts[0].own_questions if name in own_questions),
        excluded_count=sum(facts.excluded_count for facts in parts),
    )


def _same(values: Sequence[V]) -> V | None:
    """What all of these are; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def labelled(part: Measurements, label: str) -> Measurements:
    """The measurements with their run called `label`, or `label/run` where they hold several."""
    runs = dict.fromkeys(source.run for source in part.sources)
    return _renamed(part, {run: _under(label, run, len(runs)) for run in runs}, {})


def agreed(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
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
    runs = [_run_labels(part, label) for part, label in zip(parts, labels, strict=True)]
    if one_run:
        new_runs = [{run: run for run in labelled_runs} for labelled_runs in runs]
    else:
        new_runs = _distinct(runs)
    sources = []
    for part, label, names in zip(parts, labels, new_runs, strict=True):
        run_of = {source.name: names[source.run] for source in part.sources}
        failed = dict.fromkeys((failure.source for failure in part.failures), label)
        sources.append(
            {name: f"{run}/{name}" if run else name for name, run in (run_of | failed).items()}
        )
    renamings = zip(parts, new_runs, _distinct(sources), strict=True)
    return [_renamed(part, names, new_names) for part, names, new_names in renamings]


def _run_labels(part: Measurements, label: str | None) -> dict[str, str]:
    """What each run of a part is called where another part has a run of its name."""
    runs = dict.fromkeys(source.run for source in part.sources)
    return {run: _under(label, run, len(runs)) if label else run for run in runs}


def _distinct(parts: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A new name for each name of each part, the one beside it where another part has the name too; each once."""
    counts = Counter(chain.from_iterable(parts))
    pairs: list[tuple[int, str]] = []
    wanted: list[str] = []
    for index, names in enumerate(parts):
        for name, other in names.items():
            pairs.append((index, name))
            wanted.append(other if counts[name] > 1 else name)
    renamed: list[dict[str, str]] = [{} for _ in parts]
    for (index, name), unique in zip(pairs, numbered(wanted), strict=True):
        renamed[index][name] = unique
    return renamed


def _under(label: str, run: str, runs: int) -> str:
    return label if runs == 1 else f"{label}/{run}"


def _renamed(
    part: Measurements, runs: Mapping[str, str], sources: Mapping[str, str]
) -> Measurements:
    """The same measurements with other names for runs and sources."""
    tables = {
        name: columns.renamed("run", runs).renamed("source", sources)
        for name, columns in part.tables.items()
    }
    renamed_sources = [
        replace(
            source,
            run=runs.get(source.run, source.run),
            name=sources.get(source.name, source.name),
            notes=_with_sources(source.notes, sources),
        )
        for source in part.sources
    ]
    return replace(
        part,
        tables=tables,
        sources=tuple(renamed_sources),
        failures=_with_sources(part.failures, sources),
        notes=_with_sources(part.notes, sources),
        faults=_with_sources(part.faults, sources),
    )


def _with_sources(items: tuple[T, ...], sources: Mapping[str, str]) -> tuple[T, ...]:
    """Notes, failures or faults with other names for their sources."""
    return tuple(replace(item, source=sources.get(item.source, item.source)) for item in items)
