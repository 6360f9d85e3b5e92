"""A report in every form a person or a program reads: one file an output, listed in `RENDERERS`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import PurePath
from typing import Protocol

from tracekit.model.callable_module import make_callable
from tracekit.model.errors import TracekitError
from tracekit.model.installed import install_command
from tracekit.model.labels import did_you_mean
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.render.json import from_json, to_json
from tracekit.render.options import Options

__all__ = [
    "RENDERERS",
    "Options",
    "Output",
    "Renderer",
    "Reported",
    "format_of",
    "from_json",
    "refuse_without_library",
    "render",
    "to_json",
]

Output = str | bytes | dict[str, bytes]
"""What a renderer gives: text, bytes, or the bytes of several files by name."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """One output: its name, the file here that writes it, the suffixes it is chosen by, and the library it needs.

    `files` says whether it is several files. The library comes with the extra of the output's name.
    """

    name: str
    file: str
    suffixes: tuple[str, ...]
    files: bool = False
    library: str = ""

    @property
    def render(self) -> Callable[[Report, Options], Output]:
        """The function `render_<file>` of the file, which is imported now: nobody waits for an output not asked for."""
        module = import_module(f"tracekit.render.{self.file}")
        function: Callable[[Report, Options], Output] = getattr(module, f"render_{self.file}")
        return function


def _renderer(
    name: str, file: str, *suffixes: str, files: bool = False, library: str = ""
) -> Renderer:
    """The output that a file of this directory writes."""
    return Renderer(name, file, suffixes, files, library)


RENDERERS: tuple[Renderer, ...] = (
    _renderer("text", "text", ".txt"),
    _renderer("html", "html", ".html", ".htm"),
    _renderer("md", "markdown", ".md", ".markdown"),
    _renderer("json", "json", ".json"),
    _renderer("csv", "csv", ".csv", files=True),
    _renderer("parquet", "parquet", ".parquet", files=True, library="pyarrow"),
    _renderer("openmetrics", "openmetrics", ".prom"),
)


class Reported(Protocol):
    """What can be told as a report: a comparison."""

    def report(self) -> Report:
        """The report that tells it."""


def render(
    report: Report | Reported,
    format: str = "text",  # noqa: A002 - the word a caller expects
    *,
    top: int = 10,
    verbose: bool = False,
    width: int | None = None,
    color: bool = False,
) -> Output:
    """The report or comparison in the named format; csv and parquet give the bytes of each file by its name."""
    options = Options(top, verbose, width, color)
    if not isinstance(report, Report):
        report = report.report()
    return renderer(format).render(report, options)


def renderer(name: str) -> Renderer:
    """The renderer of this name; TracekitError lists those there are."""
    for candidate in RENDERERS:
        if candidate.name == name:
            return candidate
    names = list(map(attrgetter("name"), RENDERERS))
    near = did_you_mean(name, names)
    raise TracekitError(f"no output format {name!r}{near}", f"there are: {', '.join(names)}")


def refuse_without_library(name: str) -> None:
    """Nothing; raises what rendering in this format would raise for want of a library, without loading it."""
    library = renderer(name).library
    if not library:
        return
    try:
        spec = find_spec(library)
    except ValueError:  # what stands in its place is no module
        spec = None
    if spec is None:
        raise TracekitError(f"{name} needs {library}", install_command(name))


def format_of(path: PurePath | str) -> str:
    """The name of the format that the path's suffix asks for; TracekitError lists those there are."""
    suffix = PurePath(path).suffix.lower()
    for candidate in RENDERERS:
        if suffix in candidate.suffixes:
            return candidate.name
    suffixes = list(chain.from_iterable(map(attrgetter("suffixes"), RENDERERS)))
    near = did_you_mean(suffix, suffixes)
    raise TracekitError(
        f"{path}: no output format ends in {suffix!r}{near}", f"there are: {' '.join(suffixes)}"
    )


make_callable(__name__, render)
