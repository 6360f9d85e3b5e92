"""Several sets of measurements as one, in which every run and every source has a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from tracekit.discover.runs import numbered
from tracekit.job.device_size import DEVICE_MEMORY
from tracekit.job.step_values import WORK
from tracekit.model.codes import Data
from tracekit.model.tables import MEASURED, concat
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Measurements, Note


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
    for table in MEASURED:
        rows = [Columns.of(part[table.name]) for part in parts if part.has(table.name)]
        if rows:
            tables[table.name] = concat(table, rows).frame()
    versions = [_mapping(part.facts.get("versions")) for part in parts]
    options = [_mapping(part.facts.get("options")) for part in parts]
    ignored = [line for part in parts for line in _lines(part.facts.get("ignored"))]
    file_counts: Counter[str] = Counter()
    for part in parts:
        file_counts.update(_numbers(part.facts.get("files")))
    given = {name: [part.facts.get(name) for part in parts] for name in (WORK, DEVICE_MEMORY)}
    limits = [_lines(part.facts.get("stages")) for part in parts]
    stages = list(dict.fromkeys(pattern for limit in limits for pattern in limit))
    notes = [note for part in parts for note in part.notes]
    if any(limit != limits[0] for limit in limits):
        message = f"some of these measurements hold only the stages {', '.join(stages)}, not all"
        notes.append(Note("warning", "left-out", message, data=Data(by="stage")))
    return Measurements(
        tables,
        tuple(source for part in parts for source in part.sources),
        tuple(failure for part in parts for failure in part.failures),
        tuple(notes),
        {
            "title": ", ".join(str(part.facts.get("title", "")) for part in parts),
            "versions": agreed(versions),
            "options": agreed(options),
            "ignored": ignored,
            "files": dict(file_counts),
            "stages": stages,
            "simulated": any(bool(part.facts.get("simulated")) for part in parts),
            **{
                name: told[0]
                for name, told in given.items()
                if told[0] and all(one == told[0] for one in told)
            },
        },
        faults=tuple(fault for part in parts for fault in part.faults),
    )


def labelled(part: Measurements, label: str) -> Measurements:
    """The measurements with their run called `label`, or `label/run` where they hold several."""
    runs = dict.fromkeys(source.run for source in part.sources)
    return _renamed(part, {run: _under(label, run, len(runs)) for run in runs}, {})


def agreed(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The versions that no source contradicts."""
    known = {name: value for found in versions for name, value in found.items()}
    return {n: v for n, v in known.items() if all(found.get(n, v) == v for found in versions)}


def _apart(
    parts: Sequence[Measurements], labels: Sequence[str | None], *, one_run: bool
) -> list[Measurements]:
    """The parts with other names for runs (unless they are one) and sources whose names another part uses too."""
    runs = [dict.fromkeys(source.run for source in part.sources) for part in parts]
    common = {run for run, count in Counter(r for part in runs for r in part).items() if count > 1}
    pairs = [(at, run) for at, part in enumerate(runs) for run in part]
    names = [
        _under(label, run, len(runs[at])) if run in common and (label := labels[at]) else run
        for at, run in pairs
    ]
    new_runs = dict(zip(pairs, numbered(names, pairs, pairs), strict=True))
    if one_run:
        new_runs = {(at, run): run for at, run in pairs}

    files = [
        {s.name: new_runs[at, s.run] for s in part.sources}
        | {failure.source: labels[at] or "" for failure in part.failures}
        for at, part in enumerate(parts)
    ]
    common = {name for name, count in Counter(n for f in files for n in f).items() if count > 1}
    pairs = [(at, name) for at, part in enumerate(files) for name in part]
    names = [
        f"{above}/{name}" if name in common and (above := files[at][name]) else name
        for at, name in pairs
    ]
    new_names = dict(zip(pairs, numbered(names, pairs, pairs), strict=True))
    return [
        _renamed(
            part,
            {run: new_runs[at, run] for run in runs[at]},
            {name: new_names[at, name] for name in files[at]},
        )
        for at, part in enumerate(parts)
    ]


def _under(label: str, run: str, runs: int) -> str:
    return label if runs == 1 else f"{label}/{run}"


def _renamed(
    part: Measurements, runs: Mapping[str, str], sources: Mapping[str, str]
) -> Measurements:
    """The same measurements with other names for runs and sources."""

    def noted(notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple(replace(n, source=sources.get(n.source, n.source)) for n in notes)

    return replace(
        part,
        tables={
            name: frame.assign(
                run=_called(frame["run"], runs), source=_called(frame["source"], sources)
            )
            for name, frame in part.tables.items()
        },
        sources=tuple(
            replace(
                source,
                run=runs.get(source.run, source.run),
                name=sources.get(source.name, source.name),
                notes=noted(source.notes),
            )
            for source in part.sources
        ),
        failures=tuple(
            replace(failure, source=sources.get(failure.source, failure.source))
            for failure in part.failures
        ),
        notes=noted(part.notes),
        faults=tuple(replace(f, source=sources.get(f.source, f.source)) for f in part.faults),
    )


def _called(column: pd.Series, names: Mapping[str, str]) -> pd.Series:
    """A column of names with other names."""
    categories = column.cat.categories
    return column.cat.rename_categories(
        pd.Index([names.get(name, name) for name in categories], dtype="str")
    )


def _mapping(value: object) -> Mapping[str, str]:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> Mapping[str, int]:
    counts = value.items() if isinstance(value, dict) else ()
    return {str(name): count for name, count in counts if isinstance(count, int)}


def _lines(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else []
