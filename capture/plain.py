"""Values of a configuration by name, from a mapping or a config object of verl, OmegaConf or this package."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

MISSING = "???"
"""OmegaConf's mark of a value that must be given, spelled out to spare its import."""


def plain(holder: object) -> dict[str, Any]:
    """Collect the values of `holder` by name; empty if it has none. Never raises.

    Missing values and those that cannot be read (an interpolation without a target) are left
    out. verl's config objects are mappings that raise on `in`, so it is not used.
    """
    values: dict[str, Any] = {}
    for name in _names(holder):
        with suppress(Exception):  # on any error of a foreign config, treat the value as missing
            value = _value(holder, name)
            if not (isinstance(value, str) and value == MISSING):
                values[str(name)] = value
    return values


def _names(holder: object) -> list[Any]:
    """List the names under which an object has values."""
    if is_dataclass(holder):
        return [field.name for field in fields(holder)]
    try:
        return [*holder] if isinstance(holder, Mapping) else [*vars(holder)]
    except Exception:  # noqa: BLE001 - no attributes, or a mapping that is marked as missing
        return []


def _value(holder: Any, name: Any) -> Any:
    """Get the value of one name."""
    if isinstance(holder, Mapping) and not is_dataclass(holder):
        return holder[name]
    return getattr(holder, name)
