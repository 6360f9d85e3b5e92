"""Binary format of one source's measured tables: a JSON header followed by raw arrays.

    magic, then compressed:  length of the header (8 bytes), header, the arrays of all tables

Arrays of one dtype are contiguous; each dtype starts at a multiple of 8 bytes. Although only tracekit writes these files, reading checks that they are complete and
well formed, and raises `ValueError` if not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from tracekit.discover.selection import SelectableParts
from tracekit.model.inputs.note_codes import Data
from tracekit.model.trace import GraphColumns, KeyLabels, Note, Source
from tracekit.pipeline.wire_format.table_blocks import (
    ArrayCollector,
    BlockReader,
    concatenate_arrays,
    pack_tables,
    unpack_tables,
)
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:
    import zlib as deflate

_MAGIC = b"tracekit measured 8\n"
_HEAD_LENGTH_BYTES = 8
_ALIGNED_BYTES = 8
_FASTEST = 1
_BYTES = np.dtype(np.uint8)

_PACKED_SOURCE_FIELDS = {field.name for field in fields(Source)} - {"path", "node"}
"""The fields of a source that do not depend on its current location."""


def pack_source_tables(parts: Sequence[MeasuredSource], source: Source) -> bytes:
    """Serialize the measurements of `source`. Raises `TypeError` for values that JSON cannot represent."""
    arrays = ArrayCollector()
    records = [_encode_part(part, source, arrays) for part in parts]
    blocks = concatenate_arrays(arrays)
    lengths = {dtype: len(array) for dtype, array in blocks.items()}
    head = json.dumps([records, lengths]).encode("ascii")
    padded = head + b" " * (-len(head) % _ALIGNED_BYTES)
    content = [len(padded).to_bytes(_HEAD_LENGTH_BYTES, "little"), padded]
    for array in blocks.values():
        data = array.tobytes()
        content += (data, bytes(-len(data) % _ALIGNED_BYTES))
    compressed: bytes = deflate.compress(b"".join(content), _FASTEST)
    return _MAGIC + compressed


def unpack_source_tables(data: bytes, source: Source) -> tuple[MeasuredSource, ...]:
    """Parse the measurements of `source`; raises `ValueError` for malformed data."""
    if not data.startswith(_MAGIC):
        raise ValueError("another form")
    try:
        # A bytearray keeps the arrays writable, like fresh measurements.
        content = bytearray(deflate.decompress(data[len(_MAGIC) :]))
        head_end = _HEAD_LENGTH_BYTES + int.from_bytes(content[:_HEAD_LENGTH_BYTES], "little")
        records, lengths = json.loads(content[_HEAD_LENGTH_BYTES:head_end])
        blocks = BlockReader(_read_long_arrays(content, head_end, lengths))
        return tuple(_decode_part(record, source, blocks) for record in records)
    except (deflate.error, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {error}") from error


def _encode_part(part: MeasuredSource, source: Source, arrays: ArrayCollector) -> dict[str, Any]:
    """Encode one process for the header, and collect its arrays."""
    return {
        "source": _encode_source_changes(part.source, source),
        "tables": pack_tables(part.tables, arrays, KeyLabels(part.source)),
        "notes": _encode_notes(part.notes),
        "versions": dict(part.versions),
        "simulated": part.simulated,
        "options": dict(part.options),
        "holding": _encode_holding(part.holding),
        "graph": None if part.graph is None else _encode_graph(part.graph, arrays),
        "page": None if part.page is None else _encode_page(part.page, arrays),
    }


def _decode_part(record: Mapping[str, Any], source: Source, blocks: BlockReader) -> MeasuredSource:
    """Decode one process from the header."""
    completed = _apply_source_changes(source, record["source"])
    return MeasuredSource(
        completed,
        unpack_tables(record["tables"], blocks, KeyLabels(completed)),
        _decode_notes(record["notes"]),
        record["versions"],
        record["simulated"],
        record["options"],
        _decode_holding(record["holding"]),
        graph=None if record["graph"] is None else _decode_graph(record["graph"], completed, blocks),
        page=None if record["page"] is None else blocks.take(_BYTES.str, record["page"]).tobytes(),
    )


def _encode_graph(graph: GraphColumns, arrays: ArrayCollector) -> list[Any]:
    """Encode a dependency graph, and collect its arrays."""
    forms = []
    for name, array in graph.numbers.items():
        of_type = arrays[array.dtype]
        of_type.arrays.append(array)
        forms.append((name, of_type.name, len(array)))
    return [forms, dict(graph.texts)]


def _decode_graph(record: Sequence[Any], source: Source, blocks: BlockReader) -> GraphColumns:
    """Decode a dependency graph."""
    forms, texts = record
    numbers = {name: blocks.take(dtype, length) for name, dtype, length in forms}
    return GraphColumns(source, numbers, {name: tuple(of_column) for name, of_column in texts.items()})


def _encode_page(page: bytes, arrays: ArrayCollector) -> int:
    """Collect the packed data of the explorer page as an array, and get its length."""
    arrays[_BYTES].arrays.append(np.frombuffer(page, _BYTES))
    return len(page)


def _encode_source_changes(now: Source, before: Source) -> dict[str, Any]:
    """Encode the source fields that the reader completed. Raises `TypeError` for values that JSON cannot represent."""
    changes: dict[str, Any] = {}
    for name in _PACKED_SOURCE_FIELDS:
        value = getattr(now, name)
        if value != getattr(before, name):
            changes[name] = value
    if "notes" in changes:
        changes["notes"] = _encode_notes(now.notes)
    return changes


def _apply_source_changes(source: Source, changes: Mapping[str, Any]) -> Source:
    """Apply the fields that the reader completed to a source."""
    values = dict(changes)
    if "notes" in values:
        values["notes"] = _decode_notes(values["notes"])
    return replace(source, **values)


def _encode_notes(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """Encode notes as objects."""
    records = []
    for note in notes:
        record = {field.name: getattr(note, field.name) for field in fields(Note)}
        records.append({**record, "data": dict(note.data)})
    return records


def _decode_notes(records: Iterable[Mapping[str, Any]]) -> tuple[Note, ...]:
    """Decode notes; lists in their data were tuples."""
    notes = []
    for record in records:
        data = dict(record["data"])
        for name, value in data.items():
            if isinstance(value, list):
                data[name] = tuple(value)
        notes.append(Note(**{**record, "data": Data(**data)}))
    return tuple(notes)


def _encode_holding(holding: SelectableParts | None) -> dict[str, Any] | None:
    """Encode a description of a trace, its sets as lists."""
    if holding is None:
        return None
    return {**asdict(holding), "steps": sorted(holding.steps), "stages": sorted(holding.stages)}


def _decode_holding(record: Mapping[str, Any] | None) -> SelectableParts | None:
    """Decode a description of a trace."""
    if record is None:
        return None
    steps, stages = frozenset(record["steps"]), frozenset(record["stages"])
    return SelectableParts(**{**record, "steps": steps, "stages": stages})


def _read_long_arrays(content: bytearray, start: int, lengths: Mapping[str, int]) -> dict[str, Any]:
    """Read the consecutive arrays from `start` on, by dtype name."""
    arrays = {}
    for dtype, length in lengths.items():
        arrays[dtype] = array = np.frombuffer(content, dtype, length, start)
        start += array.nbytes + -array.nbytes % _ALIGNED_BYTES
    return arrays
