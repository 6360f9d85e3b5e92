"""Binary format of a cached report, with a header that can be read separately.

    magic, SHA-256 of the rest, length of the header (8 bytes), header as JSON, report as compressed JSON

A dataclass is an object with one key, its name, and the list of its field values. Although only tracekit writes these
files, reading checks that they are complete and well formed, and raises `ValueError` if not.
"""

from __future__ import annotations

import gc
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from tracekit.model import report as nouns
from tracekit.model.report import Report

_MAGIC = b"tracekit report 1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_FASTEST = 1

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(nouns.Metric, nouns.Place, nouns.Finding, nouns.Verdict, nouns.Gate, nouns.Heading),
        *(nouns.Ranked, nouns.Sheet, nouns.Chart, nouns.Section, nouns.Remark, nouns.Recording, nouns.Report),
    )
}
_ROW_FIELDS = {"Sheet": "rows", "Chart": "marks"}
"""The fields with many rows of plain values."""


def serialize_report(report: Report, head: Any) -> bytes:
    """Serialize the report and its header. Raises `TypeError` or `ValueError` for values that JSON cannot represent."""
    head_bytes = json.dumps(head).encode("ascii")
    text = json.dumps(report, default=_encode_report_object, separators=(",", ":"), check_circular=False)
    body = zlib.compress(text.encode("ascii"), _FASTEST)
    content = len(head_bytes).to_bytes(_LENGTH_BYTES, "little") + head_bytes + body
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


def _encode_report_object(value: Any) -> dict[str, list[Any]]:
    """Encode a dataclass of a report as a JSON object. Raises `TypeError` for any other value."""
    kind = type(value)
    if not is_dataclass(kind) or kind.__name__ not in _KINDS:
        raise TypeError(f"{kind.__name__} is nothing of a report")
    return {kind.__name__: [getattr(value, field.name) for field in fields(kind)]}


def _decode_report(body: bytes) -> Report:
    """Decode the report from compressed JSON."""
    was_enabled = gc.isenabled()
    gc.disable()  # up to 100,000 rows, and none is garbage
    try:
        report = json.loads(zlib.decompress(body), object_hook=_decode_report_object)
    except (zlib.error, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {error}") from error
    finally:
        if was_enabled:
            gc.enable()
    if isinstance(report, Report):
        return report
    raise ValueError("no report")


def _decode_report_object(value: dict[str, Any]) -> Any:
    """Decode a JSON object into its dataclass."""
    ((name, values),) = value.items()
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
