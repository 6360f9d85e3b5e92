"""Reports of NCCL RAS (`ncclras -v`, text or JSON): how many collectives each rank of a communicator has launched.

A file may contain several reports, one after another. Ranks are those of the communicator. Addresses of nodes are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, Frames, make_nullable_numbers
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers.chrome.values import is_too_deep, join_surrogates
from tracekit.readers.hangs.file_text import read_whole_file

MAX_ROWS, MAX_NAME, MAX_LISTED = 200_000, 100, 1_000
"""Most counts of one file; longest name; most ranks listed with one count."""

_REPORT = re.compile(r"\s*Job summary\s*\Z")
_TABLE = re.compile(r"\s*Communicators\.\.\.")
_COMMUNICATOR = re.compile(r"#(\d{1,6}-\d{1,6}) \(([0-9A-Za-z]{1,40})\) ([A-Z,]{1,60})\s*\Z", re.ASCII)
_DIFFERENT = re.compile(r"\s+Communicator ranks have different (\w{1,40}) operation counts\s*\Z", re.ASCII)
_MANY = re.compile(r"\s+(\d{1,7}) ranks have launched up to operation (\d{1,18})\s*\Z", re.ASCII)
_NONE = re.compile(r"\s+(\d{1,7}) ranks have not launched any operations\s*\Z", re.ASCII)
_ONE = re.compile(
    r"\s+Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any operations)", re.ASCII
)
_LISTED = re.compile(r"\s+Rank (\d{1,7}) -- ", re.ASCII)
_MISSING = re.compile(r"\s+Missing communicator data from (\d{1,7}) ranks?", re.ASCII)
_LOST_COMMA = re.compile(r'\](\s*\n\s*")')
_HASH = re.compile(r"[0-9A-Za-z:]{1,80}")


@dataclass(slots=True)
class LaunchCount:
    """Ranks of a communicator that launched the same number of operations of one kind."""

    sample: int
    communicator: str
    status: str
    op: str | None = None
    launched: int | None = None
    rank_count: int | None = None
    ranks: tuple[int, ...] = ()


def sniff(head: bytes) -> bool:
    """Check whether text begins like a report of RAS.

    >>> sniff(b'{"nccl_version": "2.28.9", "communicators": []}')
    True
    """
    text = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    if text.startswith("{"):
        return '"nccl_version"' in text[:2000] and '"communicators' in text
    if "\0" in text:
        return False
    lines = text.splitlines()
    return any(map(_REPORT.match, lines)) and any(map(_TABLE.match, lines))


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the reports of a file as one Trace. Raises only `TraceFormatError`."""
    text = read_whole_file(Path(source.path), on_bytes).decode("utf-8", "replace").removeprefix("\ufeff")
    is_json = text.lstrip().startswith("{")
    counts = list(_list_json_counts(text, source.path) if is_json else _list_text_counts(text.splitlines()))[:MAX_ROWS]
    tables = {"communicator_counts": _make_counts(counts)} if want.table("communicator_counts") else {}
    notes = () if counts else (Note("info", "log-empty", "a report of RAS without differing counts", source.name),)
    return [Trace(source, Frames(tables), notes, {"element_count": len(counts), "absolute_time": False})]


def _make_counts(counts: list[LaunchCount]) -> Columns:
    """Make the table of counts."""
    columns: dict[str, Any] = {
        "sample": np.array([count.sample for count in counts], np.int64),
        "communicator": [count.communicator for count in counts],
        "status": [count.status for count in counts],
        "op": [count.op for count in counts],
        "launched": make_nullable_numbers([count.launched for count in counts]),
        "rank_count": make_nullable_numbers([count.rank_count for count in counts]),
        "ranks": [",".join(map(str, count.ranks)) for count in counts],
    }
    return TABLES["communicator_counts"].cast(columns, len(counts))


def _list_text_counts(lines: Iterable[str]) -> Iterator[LaunchCount]:
    """List the counts in the text of RAS: those of communicators whose ranks differ."""
    sample, head, op = -1, ("", ""), None
    counted: LaunchCount | None = None
    for line in lines:
        if _REPORT.match(line):
            sample, head, op = sample + 1, ("", ""), None
            continue
        if match := _COMMUNICATOR.match(line):
            head, op = (match[2], match[3]), None
        elif match := _DIFFERENT.match(line):
            op = match[1]
        elif counted is not None and (match := _LISTED.match(line)):
            counted.ranks = (*counted.ranks, int(match[1]))[:MAX_LISTED]
            continue
        if counted is not None:
            yield counted
        counted = _parse_count_line(line, max(sample, 0), head, op) if head[0] else None
    if counted is not None:
        yield counted


def _parse_count_line(line: str, sample: int, head: tuple[str, str], op: str | None) -> LaunchCount | None:
    """Parse a line with a count of operations, or of missing ranks; None for others."""
    if op is not None and (match := _MANY.match(line)):
        return LaunchCount(sample, *head, op, int(match[2]), int(match[1]))
    if op is not None and (match := _NONE.match(line)):
        return LaunchCount(sample, *head, op, 0, int(match[1]))
    if op is not None and (match := _ONE.match(line)):
        return LaunchCount(sample, *head, op, int(match[2] or 0), 1, (int(match[1]),))
    if match := _MISSING.match(line):
        return LaunchCount(sample, *head, None, None, int(match[1]))
    return None


def _list_json_counts(text: str, path: Path) -> Iterator[LaunchCount]:
    """List the counts in JSON: all communicators, equal or not."""
    for sample, report in enumerate(_parse_reports(text, path)):
        communicators = report.get("communicators")
        for communicator in communicators if isinstance(communicators, list) else ():
            if isinstance(communicator, Mapping):
                yield from _count_communicator(communicator, sample)


def _parse_reports(text: str, path: Path) -> list[Mapping[str, Any]]:
    """Parse one or several JSON reports. NCCL 2.28 forgets a comma after an array, which is added."""
    if is_too_deep(text):
        raise make_format_error(path, Reason("no-dump", "nested too deeply", Data(offset=0)))
    try:
        return _decode_reports(text)
    except ValueError:
        pass
    except RecursionError as error:
        raise make_format_error(path, TOO_LARGE) from error
    try:
        return _decode_reports(_LOST_COMMA.sub(r"],\1", text))
    except (ValueError, RecursionError) as error:
        raise make_format_error(
            path, Reason("cut-dump", "the JSON ends early or is damaged"), "ask RAS again"
        ) from error


def _decode_reports(text: str) -> list[Mapping[str, Any]]:
    """Decode JSON objects that follow one another. Raises `ValueError`."""
    decoder, place, reports = json.JSONDecoder(), 0, list[Mapping[str, Any]]()
    while rest := text[place:].lstrip():
        report, end = decoder.raw_decode(rest)
        place = len(text) - len(rest) + end
        if isinstance(report, Mapping):
            reports.append(report)
    return reports


def _count_communicator(communicator: Mapping[str, Any], sample: int) -> Iterator[LaunchCount]:
    """Count the operations of one communicator: ranks with equal counts together."""
    name = communicator.get("hash")
    title = join_surrogates(name[:MAX_NAME]) if isinstance(name, str) and _HASH.fullmatch(name) else "?"
    by_count = _group_ranks_by_count(communicator.get("ranks"))
    kinds = [op for op, _ in by_count]
    for (op, count), numbers in by_count.items():
        status = "MISMATCH" if kinds.count(op) > 1 else "OK"
        yield LaunchCount(sample, title, status, op, count, len(numbers), tuple(sorted(numbers)[:MAX_LISTED]))
    missing = communicator.get("missing_ranks")
    if isinstance(missing, list) and missing:
        lost = [rank.get("rank") for rank in missing if isinstance(rank, Mapping)]
        known = tuple(sorted(number for number in lost if _is_number(number)))[:MAX_LISTED]
        yield LaunchCount(sample, title, "INCOMPLETE", None, None, len(missing), known)


def _group_ranks_by_count(ranks: object) -> dict[tuple[str, int], list[int]]:
    """Group the ranks of a communicator by operation and number of launches."""
    by_count: dict[tuple[str, int], list[int]] = {}
    for rank in ranks if isinstance(ranks, list) else ():
        number = rank.get("rank") if isinstance(rank, Mapping) else None
        counts = rank.get("collective_counts") if isinstance(rank, Mapping) else None
        if not _is_number(number) or not isinstance(counts, Mapping):
            continue
        for op, count in counts.items():
            if _is_number(count):
                by_count.setdefault((join_surrogates(op[:MAX_NAME]), count), []).append(number)
    return by_count


def _is_number(value: object) -> TypeGuard[int]:
    """Check whether a value is a whole number that fits into a table."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
