"""A configuration by name, whatever holds it: a mapping, a config object of verl, of OmegaConf or of this package."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

MISSING = "???"
"""OmegaConf's mark of a value that must be given, spelled out to spare its import."""


def plain(holder: object) -> dict[str, Any]:
    """What `holder` holds, by name; empty where it holds nothing by name. Raises nothing.

    Values that are still to be given, or that cannot be had (an interpolation that leads nowhere), are left
    out. verl's config objects are mappings that raise when they are asked what they contain: they are not asked.
    """
    values: dict[str, Any] = {}
    for name in _names(holder):
        with suppress(Exception):  # whatever a foreign config raises, it is not given
            value = _value(holder, name)
            if not (isinstance(value, str) and value == MISSING):
                values[str(name)] = value
    return values


def _names(holder: object) -> list[Any]:
    """The names under which an object holds values."""
    if is_dataclass(holder):
        return [field.name for field in fields(holder)]
    try:
        return [*holder] if isinstance(holder, Mapping) else [*vars(holder)]
    except Exception:  # noqa: BLE001 - no attributes, or a mapping that is marked as missing
        return []


def _value(holder: Any, name: Any) -> Any:
    """The value of one name."""
    if isinstance(holder, Mapping) and not is_dataclass(holder):
        return holder[name]
    return getattr(holder, name)
