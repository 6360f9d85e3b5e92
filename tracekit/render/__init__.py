"""Renderers of a report for people and programs: one module per output, listed in `RENDERERS`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from tracekit.model.display import make_module_callable
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.system.installed import install_command
from tracekit.model.text.labels import did_you_mean
from tracekit.render.json import read_report_json, write_report_json
from tracekit.render.options import RenderOptions

__all__ = [
    "RENDERERS",
    "Output",
    "RenderOptions",
    "Renderer",
    "Reported",
    "read_report_json",
    "refuse_without_library",
    "render",
    "write_report_json",
]

Output = str | bytes | dict[str, bytes]
"""Result of a renderer: text, bytes, or the bytes of several files by name."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """One output: its name, the module that writes it, its file suffixes, and the library it needs.

    `files`: it writes several files. The extra that installs the library has the output's name.
    """

    name: str
    file: str
    suffixes: tuple[str, ...]
    files: bool = False
    library: str = ""

    @property
    def render(self) -> Callable[[Report, RenderOptions], Output]:
        """The function `render_<file>` of the module, imported on first use to keep other outputs fast."""
        module = import_module(f"tracekit.render.{self.file}")
        function: Callable[[Report, RenderOptions], Output] = getattr(module, f"render_{self.file}")
        return function


RENDERERS: tuple[Renderer, ...] = (
    Renderer("text", "text", (".txt",)),
    Renderer("html", "html", (".html", ".htm")),
    Renderer("md", "markdown", (".md", ".markdown")),
    Renderer("json", "json", (".json",)),
    Renderer("csv", "csv", (".csv",), files=True),
    Renderer("parquet", "parquet", (".parquet",), files=True, library="pyarrow"),
    Renderer("openmetrics", "openmetrics", (".prom",)),
)


class Reported(Protocol):
    """An object that can be shown as a report: a comparison."""

    def report(self) -> Report:
        """Convert the object to a report."""


def render(
    report: Report | Reported,
    format: str = "text",  # noqa: A002 - the word a caller expects
    *,
    top: int = 10,
    verbose: bool = False,
    width: int | None = None,
    color: bool = False,
) -> Output:
    """Render a report or comparison in the named format; csv and parquet give the bytes of each file by name."""
    options = RenderOptions(top, verbose, width, color)
    if not isinstance(report, Report):
        report = report.report()
    return find_renderer(format).render(report, options)


def find_renderer(name: str) -> Renderer:
    """Find the renderer of this name or file suffix (`md`, `txt`); TracekitError lists the existing ones."""
    for candidate in RENDERERS:
        if name == candidate.name or f".{name}" in candidate.suffixes:
            return candidate
    names = [renderer.name for renderer in RENDERERS]
    near = did_you_mean(name, names)
    raise TracekitError(f"no output format {name!r}{near}", f"there are: {', '.join(names)}")


def refuse_without_library(name: str) -> None:
    """Raise the error that rendering would raise for a missing library, without loading it."""
    library = find_renderer(name).library
    if not library:
        return
    try:
        spec = find_spec(library)
    except ValueError:  # an entry in sys.modules is not a module
        spec = None
    if spec is None:
        raise TracekitError(f"{name} needs {library}", install_command(name))


make_module_callable(__name__, lambda: render)
