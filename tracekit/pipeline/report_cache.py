"""Report cache: reuses the report of files that did not change.

The key of an entry is the options, paths and working directory, tracekit's code and the libraries. An entry is valid
while discovery gives the same result, and the bytes of every source and the other inputs of its reader are the same.
Reports with failures, with questions of the user, or read by Ray are not cached. This module does not import pandas,
which keeps a cached report fast.
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
"""Options left out of the cache key: they do not change the report. An entry records whether it has all details."""

MANY_SOURCES = 200
"""From this many sources on, cache reports with all details: judging again for another output would take seconds."""

_LIBRARIES = ("numpy", "pandas", "scipy", "isal", "apsw")


@dataclass(frozen=True)
class KeptResult:
    """A cached report without failures; its measurements are loaded on first access."""

    report: Report
    read: Read
    measure: Callable[[], Measurements]

    @property
    def failures(self) -> tuple[Failure, ...]:
        """No failures: reports with failures are not cached."""
        return ()

    @property
    def failed(self) -> bool:
        """Always False: reports with failures are not cached."""
        return False

    @cached_property
    def measurements(self) -> Measurements:
        """The measurements behind the report."""
        return self.measure()


def analyze(
    paths: str | Path | Sequence[str | Path], options: Options = Options()
) -> Result | KeptResult:
    """Analyze files, directories or globs, and return the report from the cache if its inputs did not change.

    Raises `TracekitError` if it finds nothing, or cannot read any source.
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
    """Measure these paths, or load their cached measurements."""
    from tracekit.pipeline import run

    return run.measured_all(paths, options)


@dataclass(slots=True)
class _Look:
    """Inputs of a report, as one cache lookup finds them.

    `saved` lists (label, path, digest) of the saved measurements among the arguments. `discovery` is the result for the
    other arguments. `beside` is the state of the other inputs of each source's reader.
    """

    entry: Path
    saved: tuple[tuple[str | None, str, str], ...]
    discovery: Discovery | None
    files: SeenFiles
    beside: tuple[tuple[str, ...], ...]
    before: _Before | None

    @property
    def source_count(self) -> int:
        """The number of files to read."""
        return 0 if self.discovery is None else len(self.discovery.sources)

    @property
    def read_before(self) -> Read:
        """The number and size of the files read for the cached report."""
        assert self.before is not None, "asked where a report was kept"
        return self.before.read

    def kept_report(self, *, details: bool) -> Report | None:
        """Load the cached report; None if its inputs changed, it is damaged, or it lacks the details."""
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
        """Store the report, unless something failed or changed since the lookup."""
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
        """Check whether every file is unchanged since the lookup and matches its digest in `contents`.

        Raises `OSError` if a file cannot be read.
        """
        for _, path, content in self.saved:
            if content_digest(Path(path)) != content:
                return False
        return self.files.are_unchanged(contents) and self.beside == _beside(self.discovery)

    def _basis(self, contents: dict[Path, str]) -> str:
        """Digest the report's inputs other than the options; raises `OSError` if a file cannot be read.

        `contents` are the digests already known, by path.
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
    """A cached report and its inputs; without `details` it has only the parts that the terminal shows."""

    basis: str
    read: Read
    records: dict[str, Record]
    details: bool
    report: Callable[[], Report]


def _for_the_screen(report: Report) -> Report:
    """Drop the lazy parts of a report that the terminal does not show, made or not."""
    nothing: Any = dict.fromkeys(MADE_LATER, ())
    sections = [replace(section, **nothing) for section in report.sections]
    return replace(report, sections=tuple(sections))


def _look(paths: Sequence[str | Path], options: Options) -> _Look | None:
    """Look up the cache entry of a report on these paths; None if it is not cacheable or discovery fails.

    Errors of discovery are suppressed: the analysis itself raises them again.
    """
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
    """Load a cache entry; None if it is missing or damaged."""
    try:
        (basis, (count, size_bytes), records, details), report = unpacked(entry.read_bytes())
        by_path = {path: Record.of_json(record) for path, record in records.items()}
        return _Before(basis, Read(count, size_bytes), by_path, details, report)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _beside(discovery: Discovery | None) -> tuple[tuple[str, ...], ...] | None:
    """List the state of the other inputs of each source's reader; None if one of them may change at any time."""
    states: list[tuple[str, ...]] = []
    for source in () if discovery is None else discovery.sources:
        state = reader_named(source.reader).beside(source.path)
        if state is None:
            return None
        states.append(state)
    return tuple(states)


def _plain(discovery: Discovery) -> tuple[Any, ...]:
    """List the parts of a discovery that a report depends on, in a stable order."""
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
    """Digest the paths, the working directory, the options, tracekit's code and the libraries."""
    chosen: list[tuple[str, Any]] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in _HOW_TO_RUN:
            chosen.append((field.name, sorted(value.items()) if field.name == "work" else value))
    return _digest(list(map(str, paths)), str(Path.cwd()), chosen, _installed())


@once
def _installed() -> str:
    """Digest the installed code: every file of tracekit, and the libraries that it computes with.

    Uses size, mtime and ctime of each file, which is stricter than Python's own check of its bytecode.
    """
    package = Path(__file__).parents[1]
    states = sorted(_states(str(package)))
    for name in _LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and os.path.exists(spec.origin):  # noqa: PTH110
            states.append(_state(spec.origin, os.stat(spec.origin)))  # noqa: PTH116
    return _digest(sys.version, sys.platform, states)


def _states(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """List the state of every file in a code directory, recursively."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _states(entry.path)
            else:
                yield _state(entry.path, entry.stat())


def _state(path: str, status: os.stat_result) -> tuple[str, int, int, int]:
    """Get the values that reveal a change of a file."""
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(*values: object) -> str:
    """Digest the `repr` of these values."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
