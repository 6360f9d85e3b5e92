"""Display of values at a prompt, in a notebook and as frames or figures.

Values live below the code that renders them. `tracekit/__init__` therefore installs a loader of `pipeline.display`,
and methods of values reach its functions through this module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

from tracekit.model.system.lazy_pandas import pd


class Display(Protocol):
    """Functions of upper layers that values offer as methods."""

    def summarize_in_line(self, value: object) -> str:
        """Summarize the value in one line, in angle brackets."""

    def make_notebook_html(self, value: object) -> str:
        """Render the value as a fragment of HTML: the answer first, details folded."""

    def make_report_tables(self, report: Any) -> Any:
        """Convert the tables of a report to pandas frames by name."""

    def draw_chart(self, report: Any, chart: str, axes: Any) -> Any:
        """Draw a chart of the report on matplotlib axes and return them."""

    def build_comparison_report(self, comparison: Any) -> Any:
        """Convert a comparison to a report."""

    @property
    def compare(self) -> Callable[..., Any]:
        """Function that compares two sides."""


_loaders: list[Callable[[], Display]] = []


def install_display(load: Callable[[], Display]) -> None:
    """Set the function that imports the display."""
    _loaders[:] = [load]


def import_display() -> Display:
    """Import the display functions."""
    return _loaders[0]()


class Displayed:
    """Base of values that print as one line at a prompt and fold in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Summarize the value in one line."""
        return import_display().summarize_in_line(self)

    def _repr_html_(self) -> str:
        """Render the HTML fragment that a notebook shows."""
        return import_display().make_notebook_html(self)


class NamedFrames(Mapping[str, "pd.DataFrame"]):
    """Base of mappings of frames by table name; a notebook completes the names at Tab."""

    def __repr__(self) -> str:
        """List the names of the tables."""
        return f"<{len(self)} tables: {', '.join(self)}>"

    def _ipython_key_completions_(self) -> list[str]:
        """List the names that `tables["` completes to."""
        return list(self)

    # By identity: pandas frames have no single truth value, so that comparing values would raise.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def make_module_callable(name: str, find: Callable[[], Callable[..., Any]]) -> None:
    """Make the package `name` callable as the function that `find` returns, with its signature and docstring.

    Importing a package binds it to the attribute of its parent where the function of that name would be.
    """
    kind = type(
        "CallableModule",
        (ModuleType,),
        {
            "__call__": lambda _, *args, **options: find()(*args, **options),
            "__signature__": property(lambda _: inspect.signature(find())),
            "__doc__": property(lambda _: find().__doc__),
        },
    )
    sys.modules[name].__class__ = kind
