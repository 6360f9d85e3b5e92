"""Report as JSON and back: the canonical form, from which every other output can be made.

Keys are in the order of the dataclass fields, integers are exact, and no number is infinite or NaN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from tracekit.model.errors import TracekitError
from tracekit.model.report import NOT_IN_JSON, SCHEMA, Chart, LazySequence, Report, Sheet
from tracekit.model.text.redaction import redact
from tracekit.render.escape import make_printable
from tracekit.render.options import RenderOptions
from tracekit.render.schema import is_required_field

_SCALARS = frozenset((NoneType, bool, int, float, str))
_INVISIBLE = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_HINTS = {
    "report": "write it again with this version of tracekit: tracekit analyze … -o report.json",
    "comparison": "write it again with this version of tracekit: tracekit compare … -o comparison.json",
}


def render_json(report: Report, _options: RenderOptions) -> str:
    """Render the canonical form, which is complete whatever the options."""
    return write_report_json(report)


def write_report_json(report: Report) -> str:
    """Write the report as JSON text that any UTF-8 file can hold; non-finite numbers become null."""
    return write_plain_json(report, "report")


def write_plain_json(value: object, name: str) -> str:
    """Write a tree of dataclasses, tuples and scalars as JSON text; errors call it by `name`."""
    try:
        text = _dump_json(_to_plain_json(value, name))
    except ValueError as error:  # an integer with more digits than Python prints
        raise TracekitError(f"the {name} cannot be written as JSON: {error}") from error
    # A lone surrogate (a file name that is not UTF-8) has a JSON escape but no UTF-8 form. Characters that
    # reverse the text direction become escapes, which terminals and diffs show.
    text = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", redact(text))
    return text + "\n"


def read_report_json(text: str) -> Report:
    """Read a report from JSON text; TracekitError if it is not exactly one.

    Fields with a default may be missing and unknown ones are ignored, because additions keep the schema.
    """
    report: Report = read_schema_json(text, {SCHEMA: Report})
    return report


def read_schema_json(text: str, kinds: Mapping[str, type]) -> Any:
    """Read a JSON text as the dataclass of the schema that it names, as strictly as `read_report_json`."""
    names = [_name_saved_kind(kind) for kind in kinds.values()]
    wanted, hint = " or ".join(names), _HINTS[names[0]]
    try:
        raw = json.loads(
            text,
            parse_constant=_refuse_non_finite_constant,
            parse_float=_parse_finite_float,
            object_pairs_hook=_parse_unique_keys,
        )
    except RecursionError:
        raise TracekitError(f"not a {wanted}: nested too deeply", hint) from None
    except ValueError as error:
        raise TracekitError(f"not a {wanted}: {make_printable(str(error), 200)}", hint) from None
    if not isinstance(raw, dict) or "schema" not in raw:
        raise TracekitError(f"not a {wanted}: no schema is named", hint)
    schema = raw["schema"]
    if not isinstance(schema, str) or schema not in kinds:
        schemas, name = " and ".join(kinds), make_printable(str(schema), 60)
        raise TracekitError(f"a {wanted} of schema {name}; this version reads {schemas}", hint)
    kind = kinds[schema]
    return _parse_typed(raw, kind, _name_saved_kind(kind))


def _make_saved_error(where: str, what: str) -> TracekitError:
    """Make the error for a place of a saved report or comparison, such as `report.title`."""
    root = re.split(r"[.\[]", where, maxsplit=1)[0]
    return TracekitError(f"not a {root}: {where} {what}", _HINTS[root])


def _name_saved_kind(kind: type) -> str:
    """Name a saved dataclass in errors and at the root of their paths."""
    return kind.__name__.lower()


def _to_plain_json(value: object, where: str) -> object:
    """Convert a value to dicts, lists and scalars."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, LazySequence):
        value = value.materialize()
    if isinstance(value, tuple):
        return _list_plain_items(value, where)
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name not in NOT_IN_JSON]
        return {name: _to_plain_json(getattr(value, name), f"{where}.{name}") for name in names}
    raise TracekitError(f"{where} contains a {type(value).__name__}, which is not a plain value")


def _list_plain_items(value: tuple[Any, ...], where: str) -> list[object]:
    """Convert a tuple to a list; table rows, most of a report, are converted at once."""
    kinds = set(map(type, value))
    if kinds <= _SCALARS:
        if float not in kinds:
            return list(value)
        return [None if type(cell) is float and not isfinite(cell) else cell for cell in value]
    if kinds == {tuple}:
        cells = [*chain.from_iterable(value)]
        kinds = set(map(type, cells))
        if kinds <= _SCALARS and all(isfinite(c) for c in cells if type(c) is float):
            return list(map(list, value))
    return [_to_plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _dump_json(value: object, depth: int = 0) -> str:
    """Format a plain value as `json.dumps` with an indent of 1 does, but with rows in compiled code."""
    if not value or not isinstance(value, dict | list):
        return _make_json_encoder(depth).encode(value)
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        encode = _make_json_encoder(0).encode
        pairs = (f"{encode(key)}: {_dump_json(item, depth + 1)}" for key, item in value.items())
        return f"{{{inner}{f',{inner}'.join(pairs)}{outer}}}"
    if _SCALARS.issuperset(map(type, value)):
        return f"[{inner}{_make_json_encoder(depth + 1).encode(value)[1:-1]}{outer}]"
    if all(type(row) is list and row and _SCALARS.issuperset(map(type, row)) for row in value):
        # JSON strings contain no raw line break, so this sequence only occurs between rows.
        cell, body = f"{inner} ", _make_json_encoder(depth + 2).encode(value)[2:-2]
        body = body.replace(f"],{cell}[", f"{inner}],{inner}[{cell}")
        return f"[{inner}[{cell}{body}{inner}]{outer}]"
    return f"[{inner}{f',{inner}'.join(_dump_json(item, depth + 1) for item in value)}{outer}]"


@cache
def _make_json_encoder(depth: int) -> json.JSONEncoder:
    """Make an encoder for this depth of the text, one item per line."""
    between = (",\n" + " " * depth, ": ")
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=between)


def _parse_typed(value: object, kind: Any, where: str) -> Any:
    """Parse a value as the annotated type; TracekitError names the place."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _parse_union(value, get_args(kind), where)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            _refuse_json_value(where, f"one of {', '.join(repr(choice) for choice in get_args(kind))}", value)
        return value
    if origin is tuple:
        return _parse_tuple(value, get_args(kind), where)
    if is_dataclass(kind):
        return _parse_dataclass(value, kind, where)
    if kind is float and type(value) is int:
        return _parse_integer_as_float(value, where)
    if type(value) is not kind:
        _refuse_json_value(where, kind.__name__, value)
    return value


def _parse_union(value: object, kinds: tuple[Any, ...], where: str) -> Any:
    """Parse a value as one of the scalar types, or as the single dataclass among them."""
    if type(value) in kinds:
        return value
    if float in kinds and type(value) is int:
        return _parse_integer_as_float(value, where)
    for kind in kinds:
        if is_dataclass(kind):
            return _parse_dataclass(value, kind, where)
    names = " or ".join(kind.__name__ for kind in kinds)
    return _refuse_json_value(where, names.replace("NoneType", "null"), value)


def _parse_tuple(value: object, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Parse a list as a tuple of any length, or of exactly the annotated items."""
    if not isinstance(value, list):
        _refuse_json_value(where, "a list", value)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        _refuse_json_value(where, f"{len(kinds)} items", value)
    items = zip(value, kinds, strict=True)
    return tuple(_parse_typed(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(items))


def _parse_dataclass(value: object, kind: Any, where: str) -> Any:
    """Parse an object as the dataclass.

    Rows of a sheet must be as long as its headings, and marks of a chart must refer to its rows and series.
    """
    if not isinstance(value, dict):
        _refuse_json_value(where, "an object", value)
    parts = {}
    for name, (hint, required) in _get_field_hints(kind).items():
        if name in value:
            parts[name] = _parse_typed(value[name], hint, f"{where}.{name}")
        elif required:
            raise _make_saved_error(f"{where}.{name}", "is missing")
    record = kind(**parts)
    if isinstance(record, Sheet):
        for index, row in enumerate(record.rows):
            if len(row) != len(record.headings):
                cells = f"{len(record.headings)} cells"
                _refuse_json_value(f"{where}.rows[{index}]", cells, value["rows"][index])
    if isinstance(record, Chart):
        _refuse_undrawable_chart(record, where)
    return record


def _refuse_undrawable_chart(chart: Chart, where: str) -> None:
    """Raise if the chart cannot be drawn."""
    from tracekit.render.plots.marks import find_chart_problem

    flaw = find_chart_problem(chart)
    if flaw:
        place, _, what = flaw.partition(" ")
        raise _make_saved_error(f"{where}.{place}", what)


@cache
def _get_field_hints(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Get the annotation of every field, and whether it is required."""
    types = get_type_hints(kind)
    return {
        field.name: (types[field.name], is_required_field(field))
        for field in fields(kind)
        if field.name not in NOT_IN_JSON
    }


def _parse_integer_as_float(value: object, where: str) -> float:
    """Convert an integer to a float, where a float is expected."""
    assert isinstance(value, int)
    try:
        return float(value)
    except OverflowError:
        return _refuse_json_value(where, "float", value)


def _refuse_json_value(where: str, wanted: str, value: object) -> NoReturn:
    """Raise the error for a value, on one line and without all of a hostile value."""
    text = type(value).__name__
    if isinstance(value, list):
        text = f"a list of {len(value)}"
    if isinstance(value, str):
        text = repr(make_printable(value, 40))
    raise _make_saved_error(where, f"is {text}, not {wanted}")


def _refuse_non_finite_constant(name: str) -> NoReturn:
    """Raise ValueError: JSON has no NaN and no Infinity."""
    raise ValueError(f"{name} is not a number")


def _parse_finite_float(text: str) -> float:
    """Parse a number, unless it overflows a float."""
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _parse_unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object, unless a key is given twice."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key is given twice")
    return record
