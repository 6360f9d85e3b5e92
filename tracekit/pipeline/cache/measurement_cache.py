"""Measurement cache: reads and measures each unchanged file only once.

The key of an entry covers all inputs of its tables: the facts that discovery has of the file, the questions and the
selection, tracekit's code and the libraries; and the bytes of the file and the other inputs of its reader. Failures
and questions of the user are not cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.discover.contents import digest_content
from tracekit.engine import Advance, Outcome, Work
from tracekit.model.records import dataclass
from tracekit.model.system import cache
from tracekit.model.system.files import Sign, is_sign_settled, make_file_sign
from tracekit.model.system.installed import find_distribution
from tracekit.model.trace import Source
from tracekit.pipeline.measure_source import add_content_digest, copy_content_digest, digest_content_meanwhile
from tracekit.pipeline.wire_format.packed_tables import pack_source_tables, unpack_source_tables
from tracekit.pipeline.wire_format.worker_tables import MeasuredOutcome, MeasuredSource
from tracekit.readers import find_reader

_KIND = "measured"
_KEY_SEPARATOR = "-"
_EXTRAS = ("graphs", "timeline")
"""Arguments of the measuring function that add to the measurements, and part of the key of entries with these parts."""
_SUFFIX = cache.KINDS[_KIND]
_UNCOMBINED: Mapping[str, Any] = {"combine": None}
_MEASURING_PACKAGES = ("analyses", "discover", "job", "model", "pipeline", "process", "readers", "replay")
"""The packages whose code determines the measurements."""


@dataclass(frozen=True, slots=True)
class MeasurementCache:
    """The cache folder of one run, its size limit, and the part of the key that all sources share.

    Only entries with the wanted `extras` serve, and those with more do too.
    """

    folder: Path
    limit_bytes: int
    basis: str
    extras: tuple[str, ...] = ()


def open_measurement_cache(chosen: Mapping[str, Any]) -> MeasurementCache | None:
    """Open the cache for the arguments `chosen` of the measuring function; None if caching is off.

    Raises `TracekitError` if the size limit in the environment is invalid.
    """
    if cache.is_cache_off() or (folder := cache.make_kind_folder(_KIND)) is None:
        return None
    said = [(name, _sort_set(chosen[name])) for name in sorted(chosen) if name not in _EXTRAS]
    libraries = platform.python_version(), np.__version__, find_distribution("pandas")
    basis = repr((_digest_measuring_code(), libraries, said))
    return MeasurementCache(
        folder, cache.read_cache_limit(), basis, tuple(name for name in _EXTRAS if chosen.get(name))
    )


def _sort_set(value: Any) -> Any:
    """Sort a set for a stable order; other values stay as they are."""
    return sorted(value) if isinstance(value, frozenset) else value


@once
def _digest_measuring_code() -> str:
    """Digest the code that measures."""
    digest = hashlib.sha256()
    for name, path in list_measuring_code():
        with open(path, "rb", buffering=0) as code:  # noqa: PTH123
            data = code.read()
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def list_measuring_code() -> Iterator[tuple[str, str]]:
    """List the files of the code that measures: (place in the package, path)."""
    package = str(Path(__file__).parents[2])
    for name in _MEASURING_PACKAGES:
        for folder, folders, files in os.walk(os.path.join(package, name)):  # noqa: PTH118 - startup time: pathlib is slower
            folders.sort()
            for file in sorted(files):
                if file.endswith((".py", ".so", ".pyd", ".toml")):
                    yield f"{folder[len(package) :]}/{file}", f"{folder}/{file}"


def measure_or_load(
    work: Work[tuple[MeasuredSource, ...]],
    sources: Sequence[Source],
    shelf: MeasurementCache | None,
    run: Callable[..., Iterator[MeasuredOutcome]],
) -> Iterator[MeasuredOutcome]:
    """Yield the outcome of each source in order, from the cache or from `run(work, sources)`, and cache new ones.

    `run` may merge neighboring outcomes, except with `combine=None`. Without a shelf nothing is cached.
    """
    if shelf is None:
        yield from run(work, sources)
        return
    names = {path.name.partition(_KEY_SEPARATOR)[0] for path in shelf.folder.iterdir()}
    entries: list[Path | None] = []
    for source in sources:
        # Without any entry for the source, do not read the file only to digest it.
        entry = _locate_entry(add_content_digest(source), shelf) if _digest_source_key(source, shelf) in names else None
        entries.append(None if entry is None else _find_serving_entry(entry, shelf))
    keeping = partial(_measure_and_store, work, shelf)
    looked = list(zip(sources, entries, strict=True))
    unmeasured = [source for source, entry in looked if entry is None]
    # If some sources come from the cache, the others are not neighbors: do not combine them.
    made = run(keeping, unmeasured, **({} if len(unmeasured) == len(sources) else _UNCOMBINED))
    for source, entry in looked:
        if entry is None:
            yield next(made)
        elif (parts := _load_entry(entry, source)) is not None:
            yield Outcome(source, parts)
        else:
            yield from run(keeping, [source], **_UNCOMBINED)
    if unmeasured:
        cache.evict_oldest(shelf.limit_bytes)


def _measure_and_store(
    work: Work[tuple[MeasuredSource, ...]], shelf: MeasurementCache, discovered: Source, advance: Advance
) -> tuple[MeasuredSource, ...]:
    """Measure a source, and cache the result if the file did not change meanwhile and no question failed."""
    state, beside, start_ns = (_get_source_sign(discovered.path), _get_reader_inputs(discovered), time.time_ns())
    with digest_content_meanwhile(discovered) as completed:
        parts = work(discovered, advance)
        source = completed()
    parts = copy_content_digest(parts, source)
    entry = _locate_entry(source, shelf)
    is_same = _is_source_unchanged(discovered.path, state, start_ns, source.content) and beside == _get_reader_inputs(
        discovered
    )
    if entry is not None and is_same and not any(part.faults for part in parts):
        _store_entry(_name_extended_entry(entry, shelf.extras), parts, discovered)
    return parts


def _get_source_sign(path: Path) -> Sign | None:
    """Get the stat values that reveal a change of a file; None if stat fails."""
    try:
        return make_file_sign(path.stat())
    except OSError:
        return None


def _is_source_unchanged(path: Path, before: Sign | None, since_ns: int, content: str | None) -> bool:
    """Check whether a file is unchanged since `before`; a file modified just before `since_ns` is compared by digest."""
    if before is None or before != _get_source_sign(path):
        return False
    try:
        return is_sign_settled(before, since_ns) or digest_content(path) == content
    except OSError:
        return False


def _digest_source_key(source: Source, shelf: MeasurementCache) -> str:
    """Digest the cache key of a source, except for file contents."""
    anywhere = replace(source, path=Path(), node=None, content=None)
    return _digest_cache_key(shelf.basis, anywhere)


def _locate_entry(source: Source, shelf: MeasurementCache) -> Path | None:
    """Locate the cache entry of a source; None if its inputs are not stable or cannot be read."""
    beside = _get_reader_inputs(source)
    if beside is None or source.content is None:
        return None
    content = _digest_cache_key(source.content, beside)
    return shelf.folder / f"{_digest_source_key(source, shelf)}{_KEY_SEPARATOR}{content}{_SUFFIX}"


def _name_extended_entry(entry: Path, extras: tuple[str, ...]) -> Path:
    """Name the entry of the same source with extras."""
    if not extras:
        return entry
    of_source, separator, content = entry.stem.partition(_KEY_SEPARATOR)
    return entry.with_name(f"{of_source}{separator}{_digest_cache_key(content, *extras)}{entry.suffix}")


def _find_serving_entry(entry: Path, shelf: MeasurementCache) -> Path | None:
    """Find an entry that has what is wanted, the smallest one; None without one."""
    for count in range(len(shelf.extras), len(_EXTRAS) + 1):
        for extras in combinations(_EXTRAS, count):
            path = _name_extended_entry(entry, extras)
            if {*shelf.extras} <= {*extras} and path.exists():
                return path
    return None


def _get_reader_inputs(source: Source) -> Any:
    """Get the state of the other inputs of a source's reader; None if they change or cannot be read."""
    try:
        return find_reader(source.reader).describe_dependencies(source.path)
    except OSError:
        return None


def _digest_cache_key(*values: object) -> str:
    """Digest the `repr` of these values."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _load_entry(entry: Path, source: Source) -> tuple[MeasuredSource, ...] | None:
    """Load a cache entry; None if it is missing or damaged."""
    try:
        parts = unpack_source_tables(entry.read_bytes(), source)
        os.utime(entry)
    except (OSError, ValueError):
        return None
    return parts


def _store_entry(entry: Path, parts: Sequence[MeasuredSource], source: Source) -> None:
    """Store a cache entry atomically, unless its values cannot be serialized."""
    with contextlib.suppress(TypeError):
        cache.write_cache_file(entry, pack_source_tables(parts, source))
