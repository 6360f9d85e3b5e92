"""What was measured of each file, kept for the next look: a file that did not change is read and measured once.

An entry is found by everything that its tables rest on: what discovery knows of the file, the questions and what was
chosen, the code of tracekit and the libraries it computes with; and the bytes of the file and of what its reader reads
beside it. What failed, and what questions of the user's own measured, is not kept.
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
"""The packages whose code decides what is measured."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the entries of one run lie, how much may lie there, and what all their tables rest on besides their files."""

    folder: Path
    limit_bytes: int
    basis: str


def shelf_for(chosen: Mapping[str, Any]) -> Shelf | None:
    """The shelf for what was `chosen`, all that measuring is told besides the source; None where nothing may be kept.

    Raises `TracekitError` where the limit that the environment sets is no size.
    """
    if cache.is_off() or (folder := cache.folder(_KIND)) is None:
        return None
    said = [(name, _in_order(chosen[name])) for name in sorted(chosen)]
    libraries = platform.python_version(), np.__version__, pd.__version__
    return Shelf(folder, cache.limit_bytes(), repr((_code(), libraries, said)))


def _in_order(value: Any) -> Any:
    """The value, a set in an order that is always the same."""
    return sorted(value) if isinstance(value, frozenset) else value


@once
def _code() -> str:
    """The digest of the code that measures."""
    package = str(Path(__file__).parents[1])
    digest = hashlib.sha256()
    for name in _MEASURING:
        for folder, folders, files in os.walk(os.path.join(package, name)):  # noqa: PTH118 - every start waits for it
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
    """What became of each source, in their order: as it was kept, or as `run` makes it of `work`, which is then kept.

    `run(work, sources)` may put neighbours together, but not with `combine=None`. Without a shelf nothing is kept.
    """
    if shelf is None:
        yield from run(work, sources)
        return
    names = {path.name.partition(_BETWEEN)[0] for path in shelf.folder.iterdir()}
    entries: list[Path | None] = []
    for source in sources:
        # A file of which nothing was kept is not read for its digest alone.
        entry = _entry(with_content(source), shelf) if _who(source, shelf) in names else None
        entries.append(entry if entry is not None and entry.exists() else None)
    keeping = partial(_measured_and_kept, work, shelf)
    looked = list(zip(sources, entries, strict=True))
    unmeasured = [source for source, entry in looked if entry is None]
    # Where some are kept, neighbours among the others are none in the order of all: they stay apart.
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
    """What the work makes of a source, which is kept if nothing changed meanwhile and no question failed."""
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
    """The values by which a change of a file is seen; None where that cannot be told."""
    try:
        return sign_of(path.stat())
    except OSError:
        return None


def _is_same(path: Path, before: Sign | None, since_ns: int, content: str | None) -> bool:
    """Whether a file did not change since its state `before`; one as young as the clock is coarse is read again."""
    if before is None or before != _state(path):
        return False
    try:
        return is_settled(before, since_ns) or content_digest(path) == content
    except OSError:
        return False


def _who(source: Source, shelf: Shelf) -> str:
    """The digest of all that its tables rest on besides bytes on disk."""
    anywhere = replace(source, path=Path(), node=None, content=None)
    return _digest(shelf.basis, anywhere)


def _entry(source: Source, shelf: Shelf) -> Path | None:
    """Where what is measured of a source is kept; None where it changes, or cannot be read."""
    beside = _beside(source)
    if beside is None or source.content is None:
        return None
    content = _digest(source.content, beside)
    return shelf.folder / f"{_who(source, shelf)}{_BETWEEN}{content}{_SUFFIX}"


def _beside(source: Source) -> Any:
    """What its reader reads beside the file; None where that changes, or cannot be read."""
    try:
        return reader_named(source.reader).beside(source.path)
    except OSError:
        return None


def _digest(*values: object) -> str:
    """The digest of what these values are shown as."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _taken(entry: Path, source: Source) -> tuple[MeasuredSource, ...] | None:
    """What was kept; None where it is gone or damaged."""
    try:
        parts = unpacked(entry.read_bytes(), source)
        os.utime(entry)
    except (OSError, ValueError):
        return None
    return parts


def _put(entry: Path, parts: Sequence[MeasuredSource], source: Source) -> None:
    """Nothing; afterwards the entry is kept, whole, unless it cannot be."""
    with contextlib.suppress(TypeError):
        cache.put(entry, packed(parts, source))
