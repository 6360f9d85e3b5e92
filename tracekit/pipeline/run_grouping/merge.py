"""Merging of several sets of measurements into one with unique run and source names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from tracekit.analyses import list_measured_tables
from tracekit.discover.runs import number_repeated_names
from tracekit.model.inputs.facts import Facts
from tracekit.model.inputs.note_codes import Data
from tracekit.model.tables import concatenate_table_parts
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Failure, Fault, Measurements, Note, Source
from tracekit.pipeline.wire_format.worker_tables import chain_attribute

T = TypeVar("T", Note, Failure, Fault)
V = TypeVar("V")


def merge(parts: Sequence[Measurements], labels: Sequence[str | None] = (), *, one_run: bool = False) -> Measurements:
    """Merge several sets of measurements into one, as if measured together.

    Runs of different parts are different runs: those with the same name are renamed to the label of their part.
    Sources with the same name are prefixed with their run. With `one_run`, runs of the same name are one run that
    several nodes measured.
    """
    if len(parts) == 1:
        return parts[0]
    parts = _rename_clashing(parts, [*labels, *[None] * (len(parts) - len(labels))], one_run=one_run)
    tables = {}
    for table in list_measured_tables():
        rows = [part.columns(table.name) for part in parts if part.has(table.name)]
        if rows:
            tables[table.name] = concatenate_table_parts(table, rows)
    facts = [part.facts for part in parts]
    return Measurements(
        tables,
        tuple(chain_attribute(parts, "sources")),
        tuple(chain_attribute(parts, "failures")),
        (*chain_attribute(parts, "notes"), *_note_stage_differences(facts)),
        _merge_facts(facts),
        faults=tuple(chain_attribute(parts, "faults")),
        graphs=tuple(chain_attribute(parts, "graphs")),
        pages=tuple(chain_attribute(parts, "pages")),
    )


def _note_stage_differences(parts: Sequence[Facts]) -> Iterator[Note]:
    """Make a note if the parts were measured for different stages."""
    if len({facts.stages for facts in parts}) > 1:
        stages = ", ".join(dict.fromkeys(chain_attribute(parts, "stages")))
        message = f"some of these measurements contain only the stages {stages}"
        yield Note("warning", "left-out", message, data=Data(by="stage"))


def _merge_facts(parts: Sequence[Facts]) -> Facts:
    """Merge the facts of several sets of measurements."""
    file_counts: Counter[str] = Counter()
    own_questions = set(parts[0].own_questions)
    for facts in parts:
        file_counts.update(facts.files)
        own_questions.intersection_update(facts.own_questions)
    return Facts(
        title=", ".join(facts.title for facts in parts),
        versions=keep_agreed_versions(facts.versions for facts in parts),
        options=keep_agreed_versions(facts.options for facts in parts),
        ignored=tuple(chain_attribute(parts, "ignored")),
        files=dict(file_counts),
        simulated=any(facts.simulated for facts in parts),
        stages=tuple(dict.fromkeys(chain_attribute(parts, "stages"))),
        work=_get_common_value(facts.work for facts in parts) or {},
        device_memory=_get_common_value(facts.device_memory for facts in parts),
        gpu_hour_price=_get_common_value(facts.gpu_hour_price for facts in parts),
        own_questions=tuple(question for question in parts[0].own_questions if question in own_questions),
        excluded_count=sum(facts.excluded_count for facts in parts),
    )


def _get_common_value(values: Iterable[V]) -> V | None:
    """Get the value that all items share; None if they differ."""
    first, *others = values
    return first if others.count(first) == len(others) else None


def label_runs(part: Measurements, label: str) -> Measurements:
    """Rename the run to `label`, or to `label/run` if there are several."""
    return _rename_runs_and_sources(part, _label_clashing_runs(part, label), {})


def keep_agreed_versions(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Keep the versions (or options) on which all sources agree."""
    agreeing: dict[str, str] = {}
    contradicted: set[str] = set()
    for version in versions:
        for name, value in version.items():
            if agreeing.setdefault(name, value) != value:
                contradicted.add(name)
    return {name: value for name, value in agreeing.items() if name not in contradicted}


def _rename_clashing(
    parts: Sequence[Measurements], labels: Sequence[str | None], *, one_run: bool
) -> list[Measurements]:
    """Rename the runs (unless they are one) and the sources whose names another part uses as well."""
    runs = [_label_clashing_runs(part, label) for part, label in zip(parts, labels, strict=True)]
    if one_run:
        new_runs = [dict(zip(labelled_runs, labelled_runs, strict=True)) for labelled_runs in runs]
    else:
        new_runs = _make_unique_names(runs)
    sources: list[dict[str, str]] = []
    for part, label, names in zip(parts, labels, new_runs, strict=True):
        run_of: dict[str, str | None] = {s.name: names[s.run] for s in part.sources}
        run_of |= {failure.source: label for failure in part.failures}
        sources.append({name: "/".join(part for part in (run, name) if part) for name, run in run_of.items()})
    return list(map(_rename_runs_and_sources, parts, new_runs, _make_unique_names(sources)))


def _label_clashing_runs(part: Measurements, label: str | None) -> dict[str, str]:
    """Map each run to its name if another part has a run of the same name."""
    runs = list(dict.fromkeys(source.run for source in part.sources))
    if label and len(runs) > 1:
        return {run: f"{label}/{run}" for run in runs}
    return {run: label or run for run in runs}


def _make_unique_names(parts: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Give each name of each part a unique name: its replacement if another part has the name as well."""
    counts = Counter(chain.from_iterable(parts))
    wanted: list[str] = []
    for names in parts:
        for name, other in names.items():
            wanted.append(other if counts[name] > 1 else name)
    unique = iter(number_repeated_names(wanted))
    return [dict(zip(names, unique, strict=False)) for names in parts]


def _rename_runs_and_sources(part: Measurements, runs: Mapping[str, str], sources: Mapping[str, str]) -> Measurements:
    """Rename runs and sources in the tables, sources, failures, notes and faults."""
    tables: dict[str, Columns] = {}
    for name, columns in part.arrays.items():
        tables[name] = columns.renamed("run", runs).renamed("source", sources)
    return replace(
        part,
        arrays=tables,
        sources=tuple(_rename_source(source, runs, sources) for source in part.sources),
        graphs=tuple(replace(graph, source=_rename_source(graph.source, runs, sources)) for graph in part.graphs),
        pages=tuple(replace(page, source=_rename_source(page.source, runs, sources)) for page in part.pages),
        failures=_rename_item_sources(part.failures, sources),
        notes=_rename_item_sources(part.notes, sources),
        faults=_rename_item_sources(part.faults, sources),
    )


def _rename_source(source: Source, runs: Mapping[str, str], sources: Mapping[str, str]) -> Source:
    """Rename a source and its run, in its notes too."""
    run, name = runs.get(source.run, source.run), sources.get(source.name, source.name)
    return replace(source, run=run, name=name, notes=_rename_item_sources(source.notes, sources))


def _rename_item_sources(items: tuple[T, ...], sources: Mapping[str, str]) -> tuple[T, ...]:
    """Rename the sources of notes, failures or faults."""
    return tuple(replace(item, source=sources.get(item.source, item.source)) for item in items)
