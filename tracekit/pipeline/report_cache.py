"""Report cache: reuses the report of files that did not change.

The key of an entry is the options, paths and working directory, tracekit's code and the libraries. An entry is valid
while discovery gives the same result, and the bytes of every source and the other inputs of its reader are the same.
Reports with failures, with questions of the user, or read by Ray are not cached. This module does not import pandas,
which keeps a cached report fast.

The file of an entry has a header that can be read separately:

    magic, SHA-256 of the rest, length of the header (8 bytes), header as JSON,
    length of the report (8 bytes), report as compressed JSON, bytes

A dataclass is an object with one key, its name, and the list of its field values. Bytes of the report (those of its
timeline) follow it; `bytes` is their begin and end. Although only tracekit writes these
files, reading checks that they are complete and well formed, and raises `ValueError` if not.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache as once
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.discover import Discovery
from tracekit.discover.arguments import list_paths, split_label
from tracekit.discover.contents import digest_content
from tracekit.model import report as nouns
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.saved_files import sniff_saved_form
from tracekit.model.inputs.sources import Failure, Read
from tracekit.model.inputs.timeline import PathPieces, Timeline, TimelineProcess
from tracekit.model.records import dataclass
from tracekit.model.report import MADE_LATER, Report
from tracekit.model.system import cache
from tracekit.pipeline.cache.file_index import FileIndex, FileRecord, discover_with_options
from tracekit.pipeline.options import Options
from tracekit.readers import find_reader

if TYPE_CHECKING:
    from tracekit.model.trace import Measurements
    from tracekit.pipeline.run import RunResult

_KIND = "reports"
_SUFFIX = cache.KINDS[_KIND]
_UNKEYED_OPTIONS = frozenset({"jobs", "progress", "cache", "details"})
"""Options left out of the cache key: they do not change the report. An entry records whether it has all details."""

FULL_DETAIL_SOURCES = 200
"""From this many sources on, cache reports with all details: judging again for another output would take seconds."""

_LIBRARIES = ("numpy", "pandas", "scipy", "isal", "apsw", "yaml")


@dataclass(frozen=True)
class CachedResult:
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


def analyze_cached(paths: str | Path | Sequence[str | Path], options: Options = Options()) -> RunResult | CachedResult:
    """Analyze files, directories or globs, and return the report from the cache if its inputs did not change.

    Raises `TracekitError` if it finds nothing, or cannot read any source.
    """
    paths = list_paths(paths)
    look = _look_up_report(paths, options)
    report = None if look is None else look.kept_report(details=options.details)
    if look is not None and report is not None:
        return CachedResult(report, look.read_before, lambda: _load_measurements(paths, options))
    from tracekit.pipeline import run

    if look is not None and look.source_count >= FULL_DETAIL_SOURCES:
        options = replace(options, details=True)
    result = run.analyze_uncached(paths, options, None if look is None else look.discovery)
    if look is not None:
        look.keep(result, details=options.details)
    return result


def _load_measurements(paths: Sequence[str | Path], options: Options) -> Measurements:
    """Measure these paths, or load their cached measurements."""
    from tracekit.pipeline import run

    return run.measure_all(paths, options)


@dataclass(slots=True)
class _CacheLookup:
    """Inputs of a report, as one cache lookup finds them.

    `saved` lists (label, path, digest) of the saved measurements among the arguments. `discovery` is the result for the
    other arguments. `beside` is the state of the other inputs of each source's reader.
    """

    entry: Path
    saved: tuple[tuple[str | None, str, str], ...]
    discovery: Discovery | None
    files: FileIndex
    beside: tuple[tuple[str, ...], ...]
    before: _CachedReport | None

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

    def keep(self, result: RunResult, *, details: bool) -> None:
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
            report = result.report if details else _drop_details(result.report)
            cache.write_cache_file(self.entry, serialize_report(report, head))
        cache.evict_oldest(cache.read_cache_limit())

    def _is_unchanged(self, contents: dict[Path, str]) -> bool:
        """Check whether every file is unchanged since the lookup and matches its digest in `contents`.

        Raises `OSError` if a file cannot be read.
        """
        for _, path, content in self.saved:
            if digest_content(Path(path)) != content:
                return False
        return self.files.are_unchanged(contents) and self.beside == _list_reader_inputs(self.discovery)

    def _basis(self, contents: dict[Path, str]) -> str:
        """Digest the report's inputs other than the options; raises `OSError` if a file cannot be read.

        `contents` are the digests already known, by path.
        """
        discovery: tuple[Any, ...] = ()
        of_sources: list[str] = []
        if self.discovery is not None:
            for source in self.discovery.sources:
                of_sources.append(contents.get(source.path) or self.files.content(source.path))
            discovery = _list_discovery_values(self.discovery)
        return _digest_report_key(self.saved, discovery, of_sources, self.beside)


@dataclass(frozen=True, slots=True)
class _CachedReport:
    """A cached report and its inputs; without `details` it has only the parts that the terminal shows."""

    basis: str
    read: Read
    records: dict[str, FileRecord]
    details: bool
    report: Callable[[], Report]


def _drop_details(report: Report) -> Report:
    """Drop the lazy parts of a report that the terminal does not show, made or not."""
    nothing: Any = dict.fromkeys(MADE_LATER, ())
    sections = [replace(section, **nothing) for section in report.sections]
    return replace(report, sections=tuple(sections))


def _look_up_report(paths: Sequence[str | Path], options: Options) -> _CacheLookup | None:
    """Look up the cache entry of a report on these paths; None if it is not cacheable or discovery fails.

    Errors of discovery are suppressed: the analysis itself raises them again.
    """
    is_local = options.engine == "local" and not (options.on_every_node or options.ray_address)
    if not options.cache or cache.is_cache_off() or options.question_files or not is_local:
        return None
    folder = cache.make_kind_folder(_KIND)
    if folder is None:
        return None
    with contextlib.suppress(TracekitError, OSError, ValueError):
        cache.read_cache_limit()
        entry = folder / f"{_digest_request(paths, options)}{_SUFFIX}"
        before = _load_cached_report(entry)
        files = FileIndex({} if before is None else before.records)
        saved: list[tuple[str | None, str, str]] = []
        profiles: list[str | Path] = []
        for argument in paths:
            label, path = split_label(argument)
            if sniff_saved_form(path) == "measurements":
                saved.append((label, str(path), digest_content(path)))
            else:
                profiles.append(argument)
        discovery = None
        if profiles or not saved:
            discovery = discover_with_options(profiles, options, files.sniff)
        beside = _list_reader_inputs(discovery)
        if beside is not None:
            return _CacheLookup(entry, tuple(saved), discovery, files, beside, before)
    return None


def _load_cached_report(entry: Path) -> _CachedReport | None:
    """Load a cache entry; None if it is missing or damaged."""
    try:
        (basis, (count, size_bytes), records, details), report = parse_report(entry.read_bytes())
        by_path = {path: FileRecord.of_json(record) for path, record in records.items()}
        return _CachedReport(basis, Read(count, size_bytes), by_path, details, report)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _list_reader_inputs(discovery: Discovery | None) -> tuple[tuple[str, ...], ...] | None:
    """List the state of the other inputs of each source's reader; None if one of them may change at any time."""
    states: list[tuple[str, ...]] = []
    for source in () if discovery is None else discovery.sources:
        state = find_reader(source.reader).describe_dependencies(source.path)
        if state is None:
            return None
        states.append(state)
    return tuple(states)


def _list_discovery_values(discovery: Discovery) -> tuple[Any, ...]:
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


def _digest_request(paths: Sequence[str | Path], options: Options) -> str:
    """Digest the paths, the working directory, the options, tracekit's code and the libraries."""
    chosen: list[tuple[str, Any]] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in _UNKEYED_OPTIONS:
            chosen.append((field.name, sorted(value.items()) if field.name == "work" else value))
    return _digest_report_key([str(path) for path in paths], str(Path.cwd()), chosen, _digest_installation())


@once
def _digest_installation() -> str:
    """Digest the installed code: every file of tracekit, and the libraries that it computes with.

    Uses size, mtime and ctime of each file, which is stricter than Python's own check of its bytecode.
    """
    package = Path(__file__).parents[1]
    states = sorted(_list_code_states(str(package)))
    for name in _LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and os.path.exists(spec.origin):  # noqa: PTH110
            states.append(_get_code_state(spec.origin, os.stat(spec.origin)))  # noqa: PTH116
    return _digest_report_key(sys.version, sys.platform, states)


def _list_code_states(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """List the state of every file in a code directory, recursively."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _list_code_states(entry.path)
            else:
                yield _get_code_state(entry.path, entry.stat())


def _get_code_state(path: str, status: os.stat_result) -> tuple[str, int, int, int]:
    """Get the values that reveal a change of a file."""
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest_report_key(*values: object) -> str:
    """Digest the `repr` of these values."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


_MAGIC = b"tracekit report 2\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_FASTEST = 1
_BYTES = "bytes"

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(
            nouns.Metric,
            nouns.Place,
            nouns.Instance,
            nouns.Finding,
            nouns.Saving,
            nouns.RunReplay,
            nouns.Verdict,
            nouns.Gate,
            nouns.Heading,
        ),
        *(nouns.Ranked, nouns.Sheet, nouns.Chart, nouns.Section, nouns.Remark, nouns.Recording, nouns.Report),
        *(Timeline, TimelineProcess, PathPieces),
        *(nouns.ClockOffset, nouns.StepNumbers),
    )
}
_ROW_FIELDS = {"Sheet": "rows", "Chart": "marks"}
"""The fields with many rows of plain values."""


def serialize_report(report: Report, head: Any) -> bytes:
    """Serialize the report and its header. Raises `TypeError` or `ValueError` for values that JSON cannot represent."""
    head_bytes = json.dumps(head).encode("ascii")
    blobs: list[bytes] = []
    encode = partial(_encode_report_object, blobs)
    text = json.dumps(report, default=encode, separators=(",", ":"), check_circular=False)
    body = zlib.compress(text.encode("ascii"), _FASTEST)
    lengths = (len(part).to_bytes(_LENGTH_BYTES, "little") for part in (head_bytes, body))
    content = b"".join((next(lengths), head_bytes, next(lengths), body, *blobs))
    return _MAGIC + hashlib.sha256(content).digest() + content


def parse_report(data: bytes) -> tuple[Any, Callable[[], Report]]:
    """Parse (the header, a function that parses the report); both raise `ValueError` for malformed data."""
    start = len(_MAGIC) + _DIGEST_BYTES
    content = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(content).digest():
        raise ValueError("damaged, or of another form")
    head_end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    head = json.loads(content[_LENGTH_BYTES:head_end])
    return head, lambda: _decode_report(content[head_end:])


def _encode_report_object(blobs: list[bytes], value: Any) -> dict[str, list[Any]]:
    """Encode a dataclass of a report as a JSON object, bytes as their place. Raises `TypeError` for any other value."""
    kind = type(value)
    if kind is bytes:
        begin = sum(map(len, blobs))
        blobs.append(value)
        return {_BYTES: [begin, begin + len(value)]}
    if not is_dataclass(kind) or kind.__name__ not in _KINDS:
        raise TypeError(f"{kind.__name__} is nothing of a report")
    return {kind.__name__: [getattr(value, field.name) for field in fields(kind)]}


def _decode_report(body: bytes) -> Report:
    """Decode the report from compressed JSON, and the bytes that follow it."""
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    blobs = body[end:]
    was_enabled = gc.isenabled()
    gc.disable()  # up to 100,000 rows, and none is garbage
    try:
        report = json.loads(zlib.decompress(body[_LENGTH_BYTES:end]), object_hook=partial(_decode_report_object, blobs))
    except (zlib.error, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {error}") from error
    finally:
        if was_enabled:
            gc.enable()
    if isinstance(report, Report):
        return report
    raise ValueError("no report")


def _decode_report_object(blobs: bytes, value: dict[str, Any]) -> Any:
    """Decode a JSON object into its dataclass, or the bytes at its place."""
    ((name, values),) = value.items()
    if name == _BYTES:
        begin, end = values
        return blobs[begin:end]
    kind = _KINDS[name]
    parts = dict(zip([field.name for field in fields(kind)], values, strict=True))
    rows = _ROW_FIELDS.get(name)
    for field, part in parts.items():
        if field == rows:
            parts[field] = tuple(tuple(row) for row in part)
        elif type(part) is list:
            parts[field] = _convert_to_tuple(part)
    return kind(**parts)


def _convert_to_tuple(values: list[Any]) -> tuple[Any, ...]:
    """Convert nested lists back to tuples."""
    return tuple(_convert_to_tuple(value) if type(value) is list else value for value in values)
