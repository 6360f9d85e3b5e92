"""Unified spelling of roles: a manifest may say `actor_rollout` where a file name says `actor-rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracekit.compare.sides import ComparedSide
from tracekit.model.labels import normalize_label_words
from tracekit.model.trace import Measurements


def unify_role_spellings(before: ComparedSide, after: ComparedSide) -> tuple[ComparedSide, ComparedSide]:
    """Spell every role in one way on both sides: as the side before does, else as first seen."""
    first_spelling: dict[str, str] = {}
    names: dict[str, str] = {}
    for role in (*_list_side_roles(before), *_list_side_roles(after)):
        spelling = first_spelling.setdefault(normalize_label_words(role), role)
        if spelling != role:
            names[role] = spelling
    if not names:
        return before, after
    return _rename_side_roles(before, names), _rename_side_roles(after, names)


def _list_side_roles(side: ComparedSide) -> list[str]:
    """List the roles of a side as it spells them, in order."""
    roles = {key[1] for key in side.samples}
    for measured in side.measured:
        roles.update(source.role for source in measured.sources)
        for table in measured.arrays.values():
            if "role" in table.arrays:
                roles.update(table.texts("role"))
    return sorted(role for role in roles if role is not None)


def _rename_side_roles(side: ComparedSide, names: Mapping[str, str]) -> ComparedSide:
    """Rename roles of a side; a role that the side spells in two ways stays as it is."""
    roles = set(_list_side_roles(side))
    spelled_twice = {names[role] for role in roles & names.keys()} & roles
    names = {old: new for old, new in names.items() if new not in spelled_twice}
    samples = {}
    for (name, role, stage), metric in side.samples.items():
        key = (name, _get_role_name(role, names), stage)
        samples[key] = replace(metric, key=key)
    fingerprint = dict(side.fingerprint)
    if "roles" in fingerprint:
        listed = {names.get(role, role) for role in fingerprint["roles"].split(", ")}
        fingerprint["roles"] = ", ".join(sorted(listed))
    measured = tuple(_rename_measured_roles(measurements, names) for measurements in side.measured)
    return replace(side, samples=samples, fingerprint=fingerprint, measured=measured)


def _get_role_name(role: str | None, names: Mapping[str, str]) -> str | None:
    """Get the new name of a role, or its own."""
    return role if role is None else names.get(role, role)


def _rename_measured_roles(measured: Measurements, names: Mapping[str, str]) -> Measurements:
    """Rename roles in measurements."""
    tables = dict(measured.arrays)
    for name, table in measured.arrays.items():
        if "role" in table.arrays:
            tables[name] = table.renamed("role", names)
    sources = tuple(replace(source, role=_get_role_name(source.role, names)) for source in measured.sources)
    return replace(measured, arrays=tables, sources=sources)
