"""What was measured of a source as bytes, and back: numbers as they lie in memory behind a JSON head that says where.

    magic, then compressed:  length of the head (8 bytes), head, the arrays of all tables

Arrays of one type lie one after the other; each type begins at a multiple of 8 bytes. Key columns that are those of the
source are left out, and made again of it.

The bytes are our own and lie in a directory of ours; that they are whole and of this form is checked all the same,
and whatever is wrong with them is a `ValueError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache as once
from itertools import islice
from typing import Any

import numpy as np

from tracekit.discover.selection import Holding
from tracekit.model.codes import Data
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Array, Coded, Columns, Nullable
from tracekit.model.tables.table import FEW_ROWS
from tracekit.model.trace import Labels, Note, Source
from tracekit.pipeline.gather import MeasuredSource

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:
    import zlib as deflate

_MAGIC = b"tracekit measured 4\n"
_HEAD_LENGTH_BYTES = 8
_ALIGNED_BYTES = 8
_FASTEST = 1

_SOURCE_FIELDS = {field.name for field in fields(Source)} - {"path", "node"}
"""What a source says besides where it lies now."""

_MISSING = "?"
"""What stands before the type of a column that rows may lack."""

_TRUTH = np.dtype(np.bool_).str

Arrays = dict[str, list[np.ndarray[Any, Any]]]
"""The arrays of all tables in their order, by type."""


def packed(parts: Sequence[MeasuredSource], source: Source) -> bytes:
    """What was measured of `source`, as bytes. Raises `TypeError` for what JSON cannot hold."""
    arrays: Arrays = {}
    records = [_part_json(part, source, arrays) for part in parts]
    lengths = {dtype: sum(map(len, of_type)) for dtype, of_type in arrays.items()}
    head = json.dumps([records, lengths]).encode("ascii")
    padded = head + b" " * (-len(head) % _ALIGNED_BYTES)
    content = [len(padded).to_bytes(_HEAD_LENGTH_BYTES, "little"), padded]
    for of_type in arrays.values():
        data = np.concatenate(of_type).tobytes()
        content += (data, bytes(-len(data) % _ALIGNED_BYTES))
    compressed: bytes = deflate.compress(b"".join(content), _FASTEST)
    return _MAGIC + compressed


def unpacked(data: bytes, source: Source) -> tuple[MeasuredSource, ...]:
    """What was measured of `source` as `packed` wrote it; raises `ValueError` for anything else."""
    if not data.startswith(_MAGIC):
        raise ValueError("another form")
    try:
        # A bytearray: arrays that share it may be written to, as those that were measured now.
        content = bytearray(deflate.decompress(data[len(_MAGIC) :]))
        head_end = _HEAD_LENGTH_BYTES + int.from_bytes(content[:_HEAD_LENGTH_BYTES], "little")
        records, lengths = json.loads(content[_HEAD_LENGTH_BYTES:head_end])
        blocks = _Blocks(content, head_end, lengths)
        return tuple(_part(record, source, blocks) for record in records)
    except (deflate.error, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {error}") from error


def _part_json(part: MeasuredSource, source: Source, arrays: Arrays) -> dict[str, Any]:
    """One process as its head has it; its arrays are added."""
    labels = Labels(part.source)
    return {
        "source": _changes(part.source, source),
        "tables": _each(part.tables, lambda _, columns: _columns_json(columns, arrays, labels)),
        "notes": _notes_json(part.notes),
        "versions": dict(part.versions),
        "simulated": part.simulated,
        "options": dict(part.options),
        "holding": _holding_json(part.holding),
    }


def _part(record: Mapping[str, Any], source: Source, blocks: _Blocks) -> MeasuredSource:
    """One process as its head has it."""
    completed = _changed(source, record["source"])
    labels = Labels(completed)
    return MeasuredSource(
        completed,
        _each(record["tables"], lambda name, columns: _columns(name, columns, blocks, labels)),
        _notes(record["notes"]),
        record["versions"],
        record["simulated"],
        record["options"],
        _holding(record["holding"]),
    )


def _each(
    tables_by_question: Mapping[str, Mapping[str, Any]], change: Callable[[str, Any], Any]
) -> dict[str, dict[str, Any]]:
    """The tables of every question, each as `change` makes it of its name and itself."""
    changed: dict[str, dict[str, Any]] = {}
    for question, tables in tables_by_question.items():
        changed[question] = {name: change(name, table) for name, table in tables.items()}
    return changed


def _changes(now: Source, before: Source) -> dict[str, Any]:
    """What the reader completed of a source. Raises `TypeError` where that is nothing for JSON."""
    changes: dict[str, Any] = {}
    for name in _SOURCE_FIELDS:
        value = getattr(now, name)
        if value != getattr(before, name):
            changes[name] = value
    if "notes" in changes:
        changes["notes"] = _notes_json(now.notes)
    return changes


def _changed(source: Source, changes: Mapping[str, Any]) -> Source:
    """The source as its reader completed it."""
    values = dict(changes)
    if "notes" in values:
        values["notes"] = _notes(values["notes"])
    return replace(source, **values)


def _notes_json(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """Notes by the names of their fields."""
    records = []
    for note in notes:
        record = {field.name: getattr(note, field.name) for field in fields(Note)}
        records.append({**record, "data": dict(note.data)})
    return records


def _notes(records: Iterable[Mapping[str, Any]]) -> tuple[Note, ...]:
    """The notes of these records; lists in their data were tuples."""
    notes = []
    for record in records:
        data = dict(record["data"])
        for name, value in data.items():
            if isinstance(value, list):
                data[name] = tuple(value)
        notes.append(Note(**{**record, "data": Data(**data)}))
    return tuple(notes)


def _holding_json(holding: Holding | None) -> dict[str, Any] | None:
    """What a process holds, its sets as lists."""
    if holding is None:
        return None
    return {**asdict(holding), "steps": sorted(holding.steps), "stages": sorted(holding.stages)}


def _holding(record: Mapping[str, Any] | None) -> Holding | None:
    """What a process holds."""
    if record is None:
        return None
    steps, stages = frozenset(record["steps"]), frozenset(record["stages"])
    return Holding(**{**record, "steps": steps, "stages": stages})


def _columns_json(columns: Columns, arrays: Arrays, labels: Labels) -> list[Any]:
    """[rows, the form of each column]; the names of the columns are those of the table, or of all but its keys."""
    forms: list[str | list[str]] = []
    first = len(KEYS) if columns.length <= FEW_ROWS and labels.are_before(columns) else 0
    for array in islice(columns.arrays.values(), first, None):
        if isinstance(array, Coded):
            forms.append([_added(array.codes, arrays), *array.texts])
        elif isinstance(array, Nullable):
            _added(array.missing, arrays)
            forms.append(_MISSING + _added(array.values, arrays))
        else:
            forms.append(_added(array, arrays))
    return [columns.length, forms]


def _columns(name: str, record: Sequence[Any], blocks: _Blocks, labels: Labels) -> Columns:
    """The rows of one table. Raises `ValueError` for more of them than have their keys left out."""
    length, forms = record
    arrays = [_array(form, length, blocks) for form in forms]
    names = list(TABLES[name].columns)
    if len(forms) == len(names):
        return Columns(length, dict(zip(names, arrays, strict=True)))
    if length > FEW_ROWS:
        raise ValueError(f"{length} rows without keys")
    others = dict(zip(names[len(KEYS) :], arrays, strict=True))
    return Columns(length, {**labels.keys(length), **others})


def _array(form: str | list[str], length: int, blocks: _Blocks) -> Array:
    """One column of so many rows."""
    if not isinstance(form, str):
        dtype, *texts = form
        return Coded(blocks.next(dtype, length), tuple(texts))
    if form.startswith(_MISSING):
        missing = blocks.next(_TRUTH, length)
        return Nullable(blocks.next(form.removeprefix(_MISSING), length), missing)
    return blocks.next(form, length)


def _added(array: np.ndarray[Any, Any], arrays: Arrays) -> str:
    """The type of an array, which is added to those of its type. Raises `TypeError` for one that cannot be kept."""
    dtype = _type_name(array.dtype)
    of_type = arrays.get(dtype)
    if of_type is None:
        arrays[dtype] = [array]
    else:
        of_type.append(array)
    return dtype


@once
def _type_name(dtype: np.dtype[Any]) -> str:
    """The name of a type; raises `TypeError` for one that cannot be kept."""
    if dtype.kind not in "biuf":
        raise TypeError(f"an array of {dtype} cannot be kept")
    return str(dtype.str)


class _Blocks:
    """The arrays of all tables, those of one type one after the other."""

    def __init__(self, content: bytearray, start: int, lengths: Mapping[str, int]) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._places = dict.fromkeys(lengths, 0)
        for dtype, length in lengths.items():
            array = np.frombuffer(content, dtype, length, start)
            start += array.nbytes + -array.nbytes % _ALIGNED_BYTES
            self._arrays[dtype] = array

    def next(self, dtype: str, length: int) -> np.ndarray[Any, Any]:
        """The next array of a type; it shares the memory of all. Raises `ValueError` behind the last."""
        start = self._places[dtype]
        self._places[dtype] = end = start + length
        array = self._arrays[dtype][start:end]
        if len(array) != length:
            raise ValueError("damaged: an array behind the last one")
        return array
