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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.discover.contents import content_digest
from tracekit.engine import Advance, Outcome, Work
from tracekit.model import cache
from tracekit.model.files import Sign, is_settled, sign_of
from tracekit.model.records import dataclass
from tracekit.model.trace import Source
from tracekit.pipeline.measure_source import content_beside, with_content, with_content_of
from tracekit.pipeline.wire_format.packed_tables import packed, unpacked
from tracekit.pipeline.wire_format.worker_tables import Measured, MeasuredSource
from tracekit.readers import reader_named

_KIND = "measured"
_BETWEEN = "-"
_SUFFIX = cache.KINDS[_KIND]
_APART: Mapping[str, Any] = {"combine": None}
_MEASURING = ("analyses", "discover", "model", "pipeline", "process", "readers")
"""The packages whose code determines the measurements."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """The cache folder of one run, its size limit, and the part of the key that all sources share."""

    folder: Path
    limit_bytes: int
    basis: str


def shelf_for(chosen: Mapping[str, Any]) -> Shelf | None:
    """Open the cache for the arguments `chosen` of the measuring function; None if caching is off.

    Raises `TracekitError` if the size limit in the environment is invalid.
    """
    if cache.is_off() or (folder := cache.folder(_KIND)) is None:
        return None
    said = [(name, _in_order(chosen[name])) for name in sorted(chosen)]
    libraries = platform.python_version(), np.__version__, pd.__version__
    return Shelf(folder, cache.limit_bytes(), repr((_code(), libraries, said)))


def _in_order(value: Any) -> Any:
    """Sort a set for a stable order; other values stay as they are."""
    return sorted(value) if isinstance(value, frozenset) else value


@once
def _code() -> str:
    """Digest the code that measures."""
    package = str(Path(__file__).parents[1])
    digest = hashlib.sha256()
    for name in _MEASURING:
        for folder, folders, files in os.walk(os.path.join(package, name)):  # noqa: PTH118 - startup time: pathlib is slower
            folders.sort()
            for file in sorted(files):
                if file.endswith((".py", ".so", ".pyd", ".toml")):
                    with open(f"{folder}/{file}", "rb", buffering=0) as code:  # noqa: PTH123
                        data = code.read()
                    digest.update(f"{folder[len(package) :]}/{file} {len(data)}\n".encode())
                    digest.update(data)
    return digest.hexdigest()


def outcomes(
    work: Work[tuple[MeasuredSource, ...]],
    sources: Sequence[Source],
    shelf: Shelf | None,
    run: Callable[..., Iterator[Measured]],
) -> Iterator[Measured]:
    """Yield the outcome of each source in order, from the cache or from `run(work, sources)`, and cache new ones.

    `run` may merge neighboring outcomes, except with `combine=None`. Without a shelf nothing is cached.
    """
    if shelf is None:
        yield from run(work, sources)
        return
    names = {path.name.partition(_BETWEEN)[0] for path in shelf.folder.iterdir()}
    entries: list[Path | None] = []
    for source in sources:
        # Without any entry for the source, do not read the file only to digest it.
        entry = _entry(with_content(source), shelf) if _who(source, shelf) in names else None
        entries.append(entry if entry is not None and entry.exists() else None)
    keeping = partial(_measured_and_kept, work, shelf)
    looked = list(zip(sources, entries, strict=True))
    unmeasured = [source for source, entry in looked if entry is None]
    # If some sources come from the cache, the others are not neighbors: do not combine them.
    made = run(keeping, unmeasured, **({} if len(unmeasured) == len(sources) else _APART))
    for source, entry in looked:
        if entry is None:
            yield next(made)
        elif (parts := _taken(entry, source)) is not None:
            yield Outcome(source, parts)
        else:
            yield from run(keeping, [source], **_APART)
    if unmeasured:
        cache.forget_oldest(shelf.limit_bytes)


def _measured_and_kept(
    work: Work[tuple[MeasuredSource, ...]], shelf: Shelf, found: Source, advance: Advance
) -> tuple[MeasuredSource, ...]:
    """Measure a source, and cache the result if the file did not change meanwhile and no question failed."""
    state, beside, start_ns = _state(found.path), _beside(found), time.time_ns()
    with content_beside(found) as completed:
        parts = work(found, advance)
        source = completed()
    parts = with_content_of(parts, source)
    entry = _entry(source, shelf)
    is_same = _is_same(found.path, state, start_ns, source.content) and beside == _beside(found)
    if entry is not None and is_same and not any(part.faults for part in parts):
        _put(entry, parts, found)
    return parts


def _state(path: Path) -> Sign | None:
    """Get the stat values that reveal a change of a file; None if stat fails."""
    try:
        return sign_of(path.stat())
    except OSError:
        return None


def _is_same(path: Path, before: Sign | None, since_ns: int, content: str | None) -> bool:
    """Check whether a file is unchanged since `before`; a file modified just before `since_ns` is compared by digest."""
    if before is None or before != _state(path):
        return False
    try:
        return is_settled(before, since_ns) or content_digest(path) == content
    except OSError:
        return False


def _who(source: Source, shelf: Shelf) -> str:
    """Digest the cache key of a source, except for file contents."""
    anywhere = replace(source, path=Path(), node=None, content=None)
    return _digest(shelf.basis, anywhere)


def _entry(source: Source, shelf: Shelf) -> Path | None:
    """Locate the cache entry of a source; None if its inputs are not stable or cannot be read."""
    beside = _beside(source)
    if beside is None or source.content is None:
        return None
    content = _digest(source.content, beside)
    return shelf.folder / f"{_who(source, shelf)}{_BETWEEN}{content}{_SUFFIX}"


def _beside(source: Source) -> Any:
    """Get the state of the other inputs of a source's reader; None if they change or cannot be read."""
    try:
        return reader_named(source.reader).beside(source.path)
    except OSError:
        return None


def _digest(*values: object) -> str:
    """Digest the `repr` of these values."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _taken(entry: Path, source: Source) -> tuple[MeasuredSource, ...] | None:
    """Load a cache entry; None if it is missing or damaged."""
    try:
        parts = unpacked(entry.read_bytes(), source)
        os.utime(entry)
    except (OSError, ValueError):
        return None
    return parts


def _put(entry: Path, parts: Sequence[MeasuredSource], source: Source) -> None:
    """Store a cache entry atomically, unless its values cannot be serialized."""
    with contextlib.suppress(TypeError):
        cache.put(entry, packed(parts, source))
