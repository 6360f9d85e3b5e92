"""Parsing of tool arguments: a client's JSON becomes a dataclass, and mismatches become readable errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import did_you_mean
from tracekit.render.schema import is_required_field, make_schema

T = TypeVar("T")

Scalar = str | int | float | bool | None

_CALLED = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
    tuple: "a list of texts",
    Mapping: "an object",
}


def make_input_schema(kind: type) -> dict[str, Any]:
    """Build the JSON Schema of a tool's arguments, which allows no others."""
    return {**make_schema(kind), "additionalProperties": False}


def parse_tool_arguments(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Parse the arguments into their dataclass; raise `TracekitError` if one is missing, unknown or of the wrong type."""
    hints = get_type_hints(kind, include_extras=True)
    expected = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in arguments:
        if name not in expected:
            near = did_you_mean(name, expected)
            raise TracekitError(f"no argument {name!r}{near}", f"there are: {', '.join(expected)}")
    values: dict[str, Any] = {}
    for name, field in expected.items():
        if name in arguments:
            values[name] = _convert_argument(name, arguments[name], hints[name])
        elif is_required_field(field):
            raise TracekitError(f"argument {name!r} is missing", _get_argument_doc(hints[name]))
    return kind(**values)


def _convert_argument(name: str, value: Any, hint: Any) -> Any:
    """Convert one argument to the type of its annotation."""
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for candidate in kinds:
        fitting = _fit_to_type(value, candidate)
        if fitting is not _MISFIT:
            return _check_argument_range(name, fitting, extras)
    wanted = " or ".join(_CALLED[get_origin(option) or option] for option in kinds)
    raise TracekitError(f"argument {name!r} is {_name_json_type(value)}, not {wanted}", _get_argument_doc(hint))


_MISFIT = object()


def _fit_to_type(value: Any, kind: Any) -> Any:
    """Convert a value to a type, or return `_MISFIT`; a list or an object may be given as JSON text."""
    origin = get_origin(kind) or kind
    if origin in (tuple, Mapping):
        return _fit_container(value, origin)
    if origin is int and type(value) is float and value.is_integer():
        return int(value)
    if origin is float and type(value) is int:
        return float(value)
    return value if type(value) is origin else _MISFIT


def _fit_container(value: Any, kind: Any) -> Any:
    """Convert a list of texts to a tuple, or accept an object of scalars; `_MISFIT` for anything else."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _MISFIT
    if kind is tuple:
        is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return tuple(value) if is_texts else _MISFIT
    if not isinstance(value, dict):
        return _MISFIT
    return value if all(isinstance(item, Scalar) for item in value.values()) else _MISFIT


def _check_argument_range(name: str, value: Any, extras: Any) -> Any:
    """Check a value against the range of its argument."""
    for bounds in extras:
        if isinstance(bounds, range) and isinstance(value, int) and value not in bounds:
            hint = f"from {bounds.start:,} to {bounds.stop - 1:,}"
            raise TracekitError(f"argument {name!r} is {value:,}", hint)
    return value


def _name_json_type(value: Any) -> str:
    """Name the type of a value in words."""
    if isinstance(value, list):
        return "a list"
    return _CALLED[Mapping if isinstance(value, dict) else type(value)]


def _get_argument_doc(hint: Any) -> str:
    """Extract an argument's description from its annotation."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, str)), "")
