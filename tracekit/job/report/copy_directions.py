"""Directions of copies in the words of reports: H2D, D2H."""

from __future__ import annotations

from tracekit.model.tables.frame import Frame, texts

DIRECTION_TITLES = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D", "PtoP": "P2P", "HtoH": "H2H"}
"""Titles by recorded direction; other directions are shown as recorded."""


def title_directions(rows: Frame) -> Frame:
    """Replace the directions of copies by their titles."""
    return rows.with_columns(direction=texts([DIRECTION_TITLES.get(way, way) for way in rows.values("direction")]))
