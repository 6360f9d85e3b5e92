"""One spelling of a role on both sides: a manifest may say `actor_rollout` where a file name says `actor-rollout`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pandas as pd

from tracekit.compare.sides import Side
from tracekit.model.labels import words
from tracekit.model.tables.arrays import of_texts
from tracekit.model.trace import Measurements


def spelled_alike(before: Side, after: Side) -> tuple[Side, Side]:
    """Both sides with every role spelled in one way: as the side before has it, else as it was met first."""
    spellings: dict[str, str] = {}
    others: dict[str, str] = {}
    for role in (*_roles(before), *_roles(after)):
        first = spellings.setdefault(words(role), role)
        if first != role:
            others[role] = first
    return (_respelled(before, others), _respelled(after, others)) if others else (before, after)


def _roles(side: Side) -> Iterator[str]:
    """The roles of a side, as it spells them, in order."""
    names = {role for _, role, _ in side.samples if role is not None}
    for measured in side.measured:
        names |= {source.role for source in measured.sources if source.role is not None}
        for table in measured.tables.values():
            if "role" in table:
                names |= {str(role) for role in table["role"].cat.categories}
    yield from sorted(names)


def _respelled(side: Side, names: Mapping[str, str]) -> Side:
    """A side with other names for some roles; what it holds of one role in two spellings stays as it is."""
    roles = {role for _, role, _ in side.samples if role is not None} | {*_roles(side)}
    spelled_twice = {names.get(role, role) for role in roles & names.keys()} & roles
    names = {old: new for old, new in names.items() if new not in spelled_twice}
    samples = {
        (name, names.get(role, role) if role is not None else None, stage): replace(
            one, key=(name, names.get(role, role) if role is not None else None, stage)
        )
        for (name, role, stage), one in side.samples.items()
    }
    fingerprint = dict(side.fingerprint)
    if "roles" in fingerprint:
        fingerprint["roles"] = _listed(fingerprint["roles"].split(", "), names)
    measured = tuple(_of_measured(one, names) for one in side.measured)
    return replace(side, samples=samples, fingerprint=fingerprint, measured=measured)


def _listed(roles: Iterable[str], names: Mapping[str, str]) -> str:
    return ", ".join(sorted({names.get(role, role) for role in roles}))


def _of_measured(measured: Measurements, names: Mapping[str, str]) -> Measurements:
    """Measurements with other names for some roles."""
    tables = {
        name: _of_table(table, names) if "role" in table else table
        for name, table in measured.tables.items()
    }
    sources = tuple(
        replace(source, role=names.get(source.role, source.role)) if source.role else source
        for source in measured.sources
    )
    return replace(measured, tables=tables, sources=sources)


def _of_table(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """A table with other names for some roles."""
    roles = table["role"].cat
    texts = [names.get(str(role), str(role)) for role in roles.categories]
    if texts == [*roles.categories]:
        return table
    return table.assign(role=of_texts(roles.codes.to_numpy(), tuple(texts)))
