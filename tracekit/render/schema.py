"""JSON Schema of the JSON outputs, made from the dataclasses so that the two cannot diverge.

Draft 2020-12. Fields with a default may be missing and unknown fields are allowed, as in `read_report_json`:
additions keep the schema. `typing.Annotated[str, "description"]` describes a field, a `range` sets bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tracekit.model.report import NOT_IN_JSON

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: Mapping[Any, str] = {NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string"}

_Records = dict[type, dict[str, Any]]


def make_schema_document(kind: type, version: str) -> dict[str, Any]:
    """Make the schema of a dataclass that is saved under a version such as `tracekit.report/2`."""
    body = make_schema(kind)
    body["required"] = [*body.get("required", ()), "schema"]
    body["properties"]["schema"] = {"const": version}
    return {"$schema": DIALECT, "$id": make_schema_urn(version), **body}


def make_schema_urn(version: str) -> str:
    """Make the URN of a version, which no host has to serve.

    >>> make_schema_urn("tracekit.report/2")
    'urn:tracekit:report:2'
    """
    return "urn:" + version.replace(".", ":").replace("/", ":")


def make_schema(kind: type) -> dict[str, Any]:
    """Make the schema of a dataclass, with nested ones in `$defs` by name."""
    records: _Records = {}
    body = _make_dataclass_schema(kind, records)
    if records:
        named = {record.__name__: schema for record, schema in records.items()}
        assert len(named) == len(records), "two dataclasses of one name"
        body["$defs"] = dict(sorted(named.items()))
    return body


def _make_dataclass_schema(kind: type, records: _Records) -> dict[str, Any]:
    """Make the schema of one dataclass, and add those that it refers to to `records`."""
    hints = get_type_hints(kind, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in fields(kind):
        if field.name in NOT_IN_JSON:
            continue
        properties[field.name] = _make_hint_schema(hints[field.name], records)
        if is_required_field(field):
            required.append(field.name)
    body: dict[str, Any] = {"title": kind.__name__, "description": cleandoc(kind.__doc__ or "")}
    body |= {"type": "object", "properties": properties}
    if required:
        body["required"] = required
    return body


def is_required_field(field: Field[Any]) -> bool:
    """Check whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _make_hint_schema(hint: Any, records: _Records) -> dict[str, Any]:
    """Make the schema of an annotation."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if is_dataclass(hint):
        assert isinstance(hint, type), "an annotation names a class"
        if hint not in records:
            records[hint] = {}
            records[hint] = _make_dataclass_schema(hint, records)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return _make_generic_schema(get_origin(hint), get_args(hint), records)


def _make_generic_schema(origin: Any, arguments: tuple[Any, ...], records: _Records) -> dict[str, Any]:
    """Make the schema of a generic annotation."""
    if origin is Annotated:
        return _make_hint_schema(arguments[0], records) | _make_annotation_keywords(arguments[1:])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return _make_union_schema([_make_hint_schema(argument, records) for argument in arguments])
    if origin is tuple:
        return _make_tuple_schema(arguments, records)
    assert isinstance(origin, type), "other values are not plain"
    assert issubclass(origin, Mapping), "other values are not plain"
    return {"type": "object", "additionalProperties": _make_hint_schema(arguments[1], records)}


def _make_annotation_keywords(extras: Iterable[Any]) -> dict[str, Any]:
    """Make the keywords of an annotation: its description, and the bounds of a number."""
    keywords: dict[str, Any] = {}
    for extra in extras:
        if isinstance(extra, str):
            keywords["description"] = extra
        if isinstance(extra, range):
            keywords |= {"minimum": extra.start, "maximum": extra.stop - 1}
    return keywords


def _make_union_schema(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the schema of a union: a list of types if they are all plain."""
    types: list[str] = []
    for option in options:
        if option.keys() != {"type"}:
            return {"anyOf": options}
        types.append(option["type"])
    return {"type": types}


def _make_tuple_schema(kinds: tuple[Any, ...], records: _Records) -> dict[str, Any]:
    """Make the schema of a tuple, of any length or of exactly these items."""
    if kinds[-1] is Ellipsis:
        return {"type": "array", "items": _make_hint_schema(kinds[0], records)}
    items = [_make_hint_schema(kind, records) for kind in kinds]
    exactly = {"minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "prefixItems": items, "items": False, **exactly}


def list_schema_fields(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """List the fields of a schema document as rows, those of nested objects after it: object, field, type, required."""
    for name, body in ((document["title"], document), *document.get("$defs", {}).items()):
        required = body.get("required", ())
        for field, schema in body.get("properties", {}).items():
            yield {
                "object": name,
                "field": field,
                "type": _format_schema_type(schema),
                "required": "yes" if field in required else "no",
            }


def _format_schema_type(schema: Mapping[str, Any]) -> str:
    """Format the type of a value: `string`, `list of Change`, `number or null`, `"pass" or "fail"`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema or "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(map(_format_schema_type, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"list of ({', '.join(map(_format_schema_type, schema['prefixItems']))})"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_format_schema_type(schema.get('items', {}))}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
