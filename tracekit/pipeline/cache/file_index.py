"""Files as discovery meets them: what each of them is and holds, as far as an earlier look is still true of it.

What a file is, is told by its content alone, so that what was told of a content is true of it wherever it lies. A
file of up to `WHOLE_BYTES` is read for its digest at every look. Of a larger one the digest of before holds while
device, inode, size, time of change and time of its inode's change are the same, to the nanosecond, and so are both
ends: no program can set the last of these times, where there is one (not on Windows). A file that was touched
moments before the look at it is read as a whole at the next one: times are not as fine as they are written.

One kind of change is not seen: a program that writes through a memory map (`mmap`) changes a file's times only when
the kernel writes the pages back. While a file is mapped for writing, read it with `--no-cache`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit.discover import Discovery, Sniffed, discover
from tracekit.discover.contents import content_digest, ends_digest
from tracekit.discover.surveys import Sniff, Survey
from tracekit.model.codes import Data, Reason
from tracekit.model.files import Sign, is_settled, sign_of
from tracekit.model.records import dataclass
from tracekit.pipeline.options import Options, numbers_of

WHOLE_BYTES = 1 << 20
"""Files up to this size are known by all their bytes."""

_SIZE = 2


@dataclass(frozen=True, slots=True)
class Record:
    """What an earlier look told of a file: the digest of what it held, what that is, and how its digest may be known again.

    What it is, is None where that is not told by its content alone.
    """

    content: str
    verdict: Sniffed | None
    sign: Sign | None = None
    ends: str = ""

    def as_json(self) -> list[Any]:
        """The record as a list."""
        verdict = None if self.verdict is None else _verdict_json(self.verdict)
        return [self.content, verdict, self.sign, self.ends]

    @classmethod
    def of_json(cls, value: list[Any]) -> Record:
        """The record of such a list; raises `ValueError` or `TypeError` for another."""
        content, verdict_json, sign, ends = value
        verdict = None if verdict_json is None else _verdict(verdict_json)
        return cls(content, verdict, None if sign is None else tuple(sign), ends)


def _verdict_json(verdict: Sniffed) -> list[Any]:
    """What a file is, as a list."""
    reason = verdict.reason
    reason_json = None if reason is None else [reason.code, reason.text, dict(reason.data)]
    return [verdict.reader, verdict.tool, reason_json, verdict.certain]


def _verdict(value: list[Any]) -> Sniffed:
    """What a file is, as such a list says it."""
    reader, tool, reason_json, certain = value
    reason = None
    if reason_json is not None:
        code, text, data = reason_json
        reason = Reason(code, text, _data(data))
    return Sniffed(reader, tool, reason, certain)


def _data(record: Mapping[str, Any]) -> Data:
    """The data of a reason; lists in it were tuples."""
    values: dict[str, Any] = {}
    for name, value in record.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    return Data(**values)


class SeenFiles:
    """The files that one discovery meets, beside the records of an earlier one, by path."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._contents: dict[Path, str] = {}
        self._signs: dict[Path, Sign] = {}
        self._verdicts: dict[Path, Sniffed | None] = {}
        self._start_ns = time.time_ns()

    def sniff(self, path: Path) -> Sniffed:
        """What a file is, as `readers.loading.sniff` tells: of a content that was looked at before, as it was told."""
        self._signs[path] = _sign(path)
        verdict = self._as_before(path) or _sniffed(path)
        # What no reader takes, nobody else will read; what a database is, its journal tells too.
        if verdict.reader is not None or self._is_small(path):
            self._verdicts[path] = verdict if verdict.tool != "nsys" else None
        return verdict

    def _as_before(self, path: Path) -> Sniffed | None:
        """What an earlier look told of what a file holds; None where that was another, or it cannot be read."""
        record = self._records.get(str(path))
        if record is None:
            return None
        with contextlib.suppress(OSError):
            return record.verdict if self.content(path) == record.content else None
        return None

    def content(self, path: Path) -> str:
        """The digest of what a file holds; raises `OSError` where it cannot be read."""
        if path not in self._contents:
            record = self._records.get(str(path))
            is_same = record is not None and self._is_same(path, record)
            self._contents[path] = record.content if is_same and record else content_digest(path)
        return self._contents[path]

    def are_unchanged(self, contents: Mapping[Path, str]) -> bool:
        """Whether every file is as it was when it was met; `contents` are digests that others made of them."""
        return all(self._is_unchanged(path, contents.get(path)) for path in self._signs)

    def records(self, contents: Mapping[Path, str]) -> dict[str, list[Any]]:
        """What the next look is to know of these files, by path; `contents` are the digests that others made of them."""
        records: dict[str, list[Any]] = {}
        for path, verdict in self._verdicts.items():
            content = contents.get(path) or self.content(path)
            record = Record(content, verdict)
            sign = self._signs[path]
            if not self._is_small(path) and is_settled(sign, self._start_ns):
                record = Record(content, verdict, sign, ends_digest(path).hex())
            records[str(path)] = record.as_json()
        return records

    def _is_small(self, path: Path) -> bool:
        return self._signs[path][_SIZE] <= WHOLE_BYTES

    def _is_same(self, path: Path, record: Record) -> bool:
        """Whether a file holds what it did at the earlier look, as far as that can be known without reading it as a whole."""
        if record.sign is None or record.sign != self._signs.get(path):
            return False
        return ends_digest(path).hex() == record.ends

    def _is_unchanged(self, path: Path, content: str | None) -> bool:
        """Whether a file is as it was; one that changed moments before the look is compared by its content."""
        try:
            if _sign(path) != self._signs[path]:
                return False
            if content is None or is_settled(self._signs[path], self._start_ns):
                return True
            return content_digest(path) == content
        except OSError:
            return False


def _sign(path: Path) -> Sign:
    """By what a change of a file is seen."""
    return sign_of(os.stat(path))  # noqa: PTH116 - a thousand files, and half the time


def _sniffed(path: Path) -> Sniffed:
    """What a file is, by a look into it."""
    from tracekit.readers.loading import sniff

    return sniff(path)


def discovered(
    paths: str | Path | Sequence[str | Path],
    options: Options,
    sniff: Sniff,
    elsewhere: Sequence[Survey] = (),
) -> Discovery:
    """The sources among these files, directories and globs, as `discover` tells them by these options."""
    return discover(
        paths,
        exclude=options.exclude,
        ranks=numbers_of(options.ranks),
        steps=numbers_of(options.steps),
        stages=options.stages,
        sample=options.sample,
        sniff=sniff,
        elsewhere=elsewhere,
        within=options.within,
    )
