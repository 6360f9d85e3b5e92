"""How results show themselves to a person at a prompt or in a notebook.

What renders lies above what is concluded: it is taken by name, when somebody looks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NOTEBOOK = "tracekit.render.notebook"


def in_short(thing: object) -> str:
    """The object in one line, in angle brackets."""
    text: str = import_module(_NOTEBOOK).in_short(thing)
    return text


def as_html(thing: object) -> str:
    """The object as a piece of a page: the answer, then what is behind it, folded."""
    text: str = import_module(_NOTEBOOK).as_html(thing)
    return text


def frames_of(report: object) -> Any:
    """The tables of a report as pandas frames, by name."""
    return import_module("tracekit.render.frames").frames_of(report)


def figure_of(report: object, chart: str, axes: Any) -> Any:
    """The axes of matplotlib with a chart of the report on them."""
    return import_module("tracekit.render.charts.images").figure_of(report, chart, axes)


class Shown:
    """What shows itself in one line at a prompt, and folded in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line."""
        return in_short(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)
