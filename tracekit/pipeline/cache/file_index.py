"""File index: the reader and the digest of each discovered file, reused while the file is unchanged.

The verdict on a file depends only on its content, so it holds for the same content anywhere. A file of up to
`WHOLE_BYTES` is read completely for its digest each time. The digest of a larger file is reused while its device,
inode, size, mtime, ctime (all to the nanosecond) and both ends are the same: no program can set the ctime, where the
platform has one (not Windows). Timestamps are coarse, so a file that changed just before a lookup is read completely
at the next one.

One kind of change goes unnoticed: a write through a memory map (`mmap`) changes the timestamps only when the kernel
writes the pages back. While a file is mapped for writing, read it with `--no-cache`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit.discover import Discovery, Sniffed, discover
from tracekit.discover.contents import digest_content, digest_file_ends
from tracekit.discover.surveys import Sniff, Survey
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.system.files import Sign, is_sign_settled, make_file_sign
from tracekit.pipeline.options import Options, parse_optional_numbers

WHOLE_BYTES = 1 << 20
"""Files up to this size are identified by all their bytes."""

_SIZE = 2


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An earlier result for a file: its digest, its verdict, and how to recognize it without a full read.

    The verdict is None if it depends on more than the content of the file.
    """

    content: str
    verdict: Sniffed | None
    sign: Sign | None = None
    ends: str = ""

    def as_json(self) -> list[Any]:
        """Convert the record to a list for JSON."""
        verdict = None if self.verdict is None else _encode_verdict(self.verdict)
        return [self.content, verdict, self.sign, self.ends]

    @classmethod
    def of_json(cls, value: list[Any]) -> FileRecord:
        """Parse a record from such a list; raises `ValueError` or `TypeError` for anything else."""
        content, verdict_json, sign, ends = value
        verdict = None if verdict_json is None else _decode_verdict(verdict_json)
        return cls(content, verdict, None if sign is None else tuple(sign), ends)


def _encode_verdict(verdict: Sniffed) -> list[Any]:
    """Encode the verdict on a file as a list."""
    reason = verdict.reason
    reason_json = None if reason is None else [reason.code, reason.text, dict(reason.data)]
    return [verdict.reader, verdict.tool, reason_json, verdict.certain]


def _decode_verdict(value: list[Any]) -> Sniffed:
    """Decode the verdict on a file."""
    reader, tool, reason_json, certain = value
    reason = None
    if reason_json is not None:
        code, text, data = reason_json
        reason = Reason(code, text, _decode_reason_data(data))
    return Sniffed(reader, tool, reason, certain)


def _decode_reason_data(record: Mapping[str, Any]) -> Data:
    """Decode the data of a reason; its lists were tuples."""
    values: dict[str, Any] = {}
    for name, value in record.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    return Data(**values)


class FileIndex:
    """The files that one discovery meets, with the records of an earlier one, by path."""

    def __init__(self, records: Mapping[str, FileRecord]) -> None:
        self._records = records
        self._contents: dict[Path, str] = {}
        self._signs: dict[Path, Sign] = {}
        self._verdicts: dict[Path, Sniffed | None] = {}
        self._start_ns = time.time_ns()

    def sniff(self, path: Path) -> Sniffed:
        """Sniff the reader of a file, or reuse the verdict on the same content; see `readers.loading.sniff`."""
        self._signs[path] = _get_file_sign(path)
        verdict = self._as_before(path) or _sniff_content(path)
        # Skip large files that no reader claims: nothing else reads them. An nsys verdict also depends on the journal.
        if verdict.reader is not None or self._is_small(path):
            self._verdicts[path] = verdict if verdict.tool != "nsys" else None
        return verdict

    def _as_before(self, path: Path) -> Sniffed | None:
        """Look up the verdict of an earlier run; None if the content changed or cannot be read."""
        record = self._records.get(str(path))
        if record is None:
            return None
        with contextlib.suppress(OSError):
            return record.verdict if self.content(path) == record.content else None
        return None

    def content(self, path: Path) -> str:
        """Digest the content of a file, or reuse a valid digest; raises `OSError` if the file cannot be read."""
        if path not in self._contents:
            record = self._records.get(str(path))
            is_same = record is not None and self._is_same(path, record)
            self._contents[path] = record.content if is_same and record else digest_content(path)
        return self._contents[path]

    def are_unchanged(self, contents: Mapping[Path, str]) -> bool:
        """Check whether no file changed since it was sniffed; `contents` are digests computed elsewhere."""
        return all(self._is_unchanged(path, contents.get(path)) for path in self._signs)

    def records(self, contents: Mapping[Path, str]) -> dict[str, list[Any]]:
        """List the records to store for the next run, by path; `contents` are digests computed elsewhere."""
        records: dict[str, list[Any]] = {}
        for path, verdict in self._verdicts.items():
            content = contents.get(path) or self.content(path)
            record = FileRecord(content, verdict)
            sign = self._signs[path]
            if not self._is_small(path) and is_sign_settled(sign, self._start_ns):
                record = FileRecord(content, verdict, sign, digest_file_ends(path).hex())
            records[str(path)] = record.as_json()
        return records

    def _is_small(self, path: Path) -> bool:
        return self._signs[path][_SIZE] <= WHOLE_BYTES

    def _is_same(self, path: Path, record: FileRecord) -> bool:
        """Check whether a file is the same as in its record, without reading it completely."""
        if record.sign is None or record.sign != self._signs.get(path):
            return False
        return digest_file_ends(path).hex() == record.ends

    def _is_unchanged(self, path: Path, content: str | None) -> bool:
        """Check whether a file is unchanged; a file modified just before the lookup is compared by content."""
        try:
            if _get_file_sign(path) != self._signs[path]:
                return False
            if content is None or is_sign_settled(self._signs[path], self._start_ns):
                return True
            return digest_content(path) == content
        except OSError:
            return False


def _get_file_sign(path: Path) -> Sign:
    """Get the stat values that reveal a change of a file."""
    return make_file_sign(os.stat(path))  # noqa: PTH116 - half the time of Path.stat, for a thousand files


def _sniff_content(path: Path) -> Sniffed:
    """Sniff the reader of a file from its content."""
    from tracekit.readers.loading import sniff

    return sniff(path)


def discover_with_options(
    paths: str | Path | Sequence[str | Path], options: Options, sniff: Sniff, elsewhere: Sequence[Survey] = ()
) -> Discovery:
    """Discover the sources among files, directories and globs, with these options."""
    return discover(
        paths,
        exclude=options.exclude,
        ranks=parse_optional_numbers(options.ranks),
        steps=parse_optional_numbers(options.steps),
        stages=options.stages,
        sample=options.sample,
        sniff=sniff,
        elsewhere=elsewhere,
        within=options.within,
    )
