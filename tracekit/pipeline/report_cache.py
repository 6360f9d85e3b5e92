"""The second look: the report on files that did not change is taken as it was judged before.

A report is kept with what it rests on. Where it lies is told by what was asked and where, the code of tracekit, and
the libraries; that it is still true, by what discovery finds now, the bytes of every source, and the state of what
else its reader reads. A report on anything that failed is not kept, nor one with questions of the user's own, nor
what Ray read. Nothing here needs pandas, so that who looks again does not wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache as once
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.discover import Discovery
from tracekit.discover.arguments import split_label
from tracekit.discover.contents import content_digest
from tracekit.model import cache
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import MADE_LATER, Report
from tracekit.model.sources import Failure, Read
from tracekit.pipeline.cache.file_index import Record, SeenFiles, discovered
from tracekit.pipeline.cache.saved_kind import saved_form
from tracekit.pipeline.options import Options
from tracekit.pipeline.report_format import packed, unpacked
from tracekit.readers import reader_named

if TYPE_CHECKING:
    from tracekit.model.trace import Measurements
    from tracekit.pipeline.run import Result

_KIND = "reports"
_SUFFIX = cache.KINDS[_KIND]
_HOW_TO_RUN = frozenset({"jobs", "progress", "cache", "details"})
"""The options that make no difference to what a report says; one that was kept says whether it has all details."""

MANY_SOURCES = 200
"""Of so many files a report is kept with all details: to judge it again for another output would take seconds."""

_LIBRARIES = ("numpy", "pandas", "scipy", "isal", "apsw")


@dataclass(frozen=True)
class KeptResult:
    """A report as it was judged before, of which nothing failed; the measurements behind it are taken when they are asked for."""

    report: Report
    read: Read
    measure: Callable[[], Measurements]

    @property
    def failures(self) -> tuple[Failure, ...]:
        """None: what failed is not kept."""
        return ()

    @property
    def failed(self) -> bool:
        """Whether anything failed: it did not."""
        return False

    @cached_property
    def measurements(self) -> Measurements:
        """The measurements behind the report."""
        return self.measure()


def analyze(
    paths: str | Path | Sequence[str | Path], options: Options = Options()
) -> Result | KeptResult:
    """The report on files, directories or globs, and the measurements behind it, as they were kept or made now.

    Raises `TracekitError` when nothing was found, or when no source could be read.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    look = _look(paths, options)
    report = None if look is None else look.kept_report(details=options.details)
    if look is not None and report is not None:
        return KeptResult(report, look.read_before, lambda: _measured(paths, options))
    from tracekit.pipeline import run

    if look is not None and look.source_count >= MANY_SOURCES:
        options = replace(options, details=True)
    result = run.analyze(paths, options, None if look is None else look.discovery)
    if look is not None:
        look.keep(result, details=options.details)
    return result


def _measured(paths: Sequence[str | Path], options: Options) -> Measurements:
    """All that was measured of these paths."""
    from tracekit.pipeline import run

    return run.measured_all(paths, options)


@dataclass(slots=True)
class _Look:
    """What a report rests on, as one look finds it.

    `saved` are the labels, names and digests of the arguments that are saved measurements, `discovery` is what is found
    in the others, `beside` the states of what their readers read besides.
    """

    entry: Path
    saved: tuple[tuple[str | None, str, str], ...]
    discovery: Discovery | None
    files: SeenFiles
    beside: tuple[tuple[str, ...], ...]
    before: _Before | None

    @property
    def source_count(self) -> int:
        """How many files are to be read."""
        return 0 if self.discovery is None else len(self.discovery.sources)

    @property
    def read_before(self) -> Read:
        """How much was read for the report that was kept."""
        assert self.before is not None, "asked where a report was kept"
        return self.before.read

    def kept_report(self, *, details: bool) -> Report | None:
        """The report as it was kept, if it rests on the same; None where it does not, is damaged, or lacks the details."""
        if self.before is None or (details and not self.before.details):
            return None
        try:
            if self.before.basis != self._basis({}):
                return None
            report = self.before.report()
            os.utime(self.entry)
        except (OSError, ValueError):
            return None
        return report

    def keep(self, result: Result, *, details: bool) -> None:
        """Nothing; afterwards the report is kept, unless something failed, or changed since the look."""
        measured = result.measurements
        if result.failed or measured.faults or not measured.sources:
            return
        contents: dict[Path, str] = {}
        if self.discovery is not None and not self.saved:
            by_name = {source.name: source.content for source in measured.sources}
            for source in self.discovery.sources:
                content = by_name.get(source.name)
                if content is not None:
                    contents[source.path] = content
        with contextlib.suppress(OSError, TypeError, ValueError):
            if not self._is_unchanged(contents):
                return
            read = [result.read.count, result.read.size_bytes]
            head = [self._basis(contents), read, self.files.records(contents), details]
            report = result.report if details else _for_the_screen(result.report)
            cache.put(self.entry, packed(report, head))
        cache.forget_oldest(cache.limit_bytes())

    def _is_unchanged(self, contents: dict[Path, str]) -> bool:
        """Whether every file is as it was at the look, and holds what `contents` tell; raises `OSError` where one cannot be read."""
        for _, path, content in self.saved:
            if content_digest(Path(path)) != content:
                return False
        return self.files.are_unchanged(contents) and self.beside == _beside(self.discovery)

    def _basis(self, contents: dict[Path, str]) -> str:
        """The digest of all that the report rests on besides what was asked; raises `OSError` where a file cannot be read.

        `contents` are digests of files that are known already.
        """
        discovery: tuple[Any, ...] = ()
        of_sources: list[str] = []
        if self.discovery is not None:
            for source in self.discovery.sources:
                of_sources.append(contents.get(source.path) or self.files.content(source.path))
            discovery = _plain(self.discovery)
        return _digest(self.saved, discovery, of_sources, self.beside)


@dataclass(frozen=True, slots=True)
class _Before:
    """A report that was kept, and what it rested on; without `details` it has what the screen shows."""

    basis: str
    read: Read
    records: dict[str, Record]
    details: bool
    report: Callable[[], Report]


def _for_the_screen(report: Report) -> Report:
    """The report without what it does not show, whether it was made or not."""
    nothing: Any = dict.fromkeys(MADE_LATER, ())
    sections = [replace(section, **nothing) for section in report.sections]
    return replace(report, sections=tuple(sections))


def _look(paths: Sequence[str | Path], options: Options) -> _Look | None:
    """What a report on these paths rests on; None where it is not kept, or there will be none, which is told when it is made."""
    is_local = options.engine == "local" and not (options.on_every_node or options.ray_address)
    if not options.cache or cache.is_off() or options.question_files or not is_local:
        return None
    folder = cache.folder(_KIND)
    if folder is None:
        return None
    with contextlib.suppress(TracekitError, OSError, ValueError):
        cache.limit_bytes()
        entry = folder / f"{_asked(paths, options)}{_SUFFIX}"
        before = _before(entry)
        files = SeenFiles({} if before is None else before.records)
        saved: list[tuple[str | None, str, str]] = []
        profiles: list[str | Path] = []
        for argument in paths:
            label, path = split_label(argument)
            if saved_form(path) == "measurements":
                saved.append((label, str(path), content_digest(path)))
            else:
                profiles.append(argument)
        discovery = None
        if profiles or not saved:
            discovery = discovered(profiles, options, files.sniff)
        beside = _beside(discovery)
        if beside is not None:
            return _Look(entry, tuple(saved), discovery, files, beside, before)
    return None


def _before(entry: Path) -> _Before | None:
    """The report that was kept there; None where there is none, or it is damaged."""
    try:
        (basis, (count, size_bytes), records, details), report = unpacked(entry.read_bytes())
        by_path = {path: Record.of_json(record) for path, record in records.items()}
        return _Before(basis, Read(count, size_bytes), by_path, details, report)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _beside(discovery: Discovery | None) -> tuple[tuple[str, ...], ...] | None:
    """The state of what else is read for each source, in their order; None where any may change at any time."""
    states: list[tuple[str, ...]] = []
    for source in () if discovery is None else discovery.sources:
        state = reader_named(source.reader).beside(source.path)
        if state is None:
            return None
        states.append(state)
    return tuple(states)


def _plain(discovery: Discovery) -> tuple[Any, ...]:
    """All of what was found that a report may rest on, in an order that is always the same."""
    return (
        discovery.title,
        discovery.sources,
        discovery.left_out,
        discovery.ignored,
        discovery.notes,
        discovery.manifests,
        sorted(discovery.labelled),
    )


def _asked(paths: Sequence[str | Path], options: Options) -> str:
    """The digest of what is asked, where, by which code and which libraries."""
    chosen: list[tuple[str, Any]] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in _HOW_TO_RUN:
            chosen.append((field.name, sorted(value.items()) if field.name == "work" else value))
    return _digest(list(map(str, paths)), str(Path.cwd()), chosen, _installed())


@once
def _installed() -> str:
    """The digest of what is installed: every file of tracekit, and the libraries it computes with.

    Files are told by size, time of change and time of their inode's change. Python itself goes by less when it runs
    what it compiled of them before.
    """
    package = Path(__file__).parents[1]
    states = sorted(_states(str(package)))
    for name in _LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and os.path.exists(spec.origin):  # noqa: PTH110
            states.append(_state(spec.origin, os.stat(spec.origin)))  # noqa: PTH116
    return _digest(sys.version, sys.platform, states)


def _states(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """The state of every file in a directory of code, those below it too."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _states(entry.path)
            else:
                yield _state(entry.path, entry.stat())


def _state(path: str, status: os.stat_result) -> tuple[str, int, int, int]:
    """By what a change of a file is seen."""
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(*values: object) -> str:
    """The digest of what these values are shown as."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
