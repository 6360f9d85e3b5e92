"""Comparing graphs value by value."""

from __future__ import annotations

import dataclasses

import numpy as np

from tracekit.model.tables.arrays import Coded, Nullable

NOT_PACKED = (".source", ".ops.row", ".meetings.rows")
"""Parts that packing does not keep, or converts."""


def list_differences(one, other, place=""):
    """The places at which two graphs, or parts of them, differ."""
    if place in NOT_PACKED:
        return []
    if type(one) is not type(other):
        return [place]
    if isinstance(one, np.ndarray):
        return [] if one.dtype == other.dtype and np.array_equal(one, other) else [place]
    if isinstance(one, Coded):
        texts = [[(*part.texts, None)[code] for code in part.codes.tolist()] for part in (one, other)]
        return [] if texts[0] == texts[1] else [place]
    if isinstance(one, Nullable):
        values = [np.where(part.missing, 0, part.values) for part in (one, other)]
        return list_differences(values[0], values[1], place) + list_differences(one.missing, other.missing, place)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        parts = {name: (getattr(one, name), getattr(other, name)) for name in names}
    elif isinstance(one, dict):
        parts = {name: (one[name], other.get(name)) for name in one} | dict.fromkeys(other.keys() - one, (None, 0))
    elif isinstance(one, tuple):
        parts = dict(enumerate(zip(one, other, strict=True)))
    else:
        return [] if one == other else [place]
    return [found for name, pair in parts.items() for found in list_differences(*pair, f"{place}.{name}")]
