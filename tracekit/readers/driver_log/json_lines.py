"""JSON lines of training logs: the object of a line, its step and time, and its values by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tracekit.readers.driver_log.values import MAX_STEP, LoggedValues

STEP_KEYS = ("step", "global_step", "_step", "training/global_step", "train/global_step", "system/step")
TIME_KEYS = ("_timestamp", "timestamp", "time")

_JSON_SPACE = " \t\r\n"
_NESTED = frozenset({"step", "data"})
"""Keys of a line of verl's file logger."""


def parse_json_object(line: str) -> dict[str, Any] | None:
    """Parse a JSON line that contains an object; None for other text.

    >>> parse_json_object(' {"step": 1} '), parse_json_object('{"step": 1},'), parse_json_object('"traceEvents": [')
    ({'step': 1}, None, None)
    """
    text = line.strip(_JSON_SPACE)
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def find_logged_step(logged: Mapping[str, Any]) -> int | None:
    """Find the step of a logged object; None if it names none."""
    for key in STEP_KEYS:
        value = logged.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEP:
            return value
    return None


def add_logged_object(logged: Mapping[str, Any], number: int, log: LoggedValues) -> None:
    """Add the values of one JSON line.

    Values in `data` keep their names; names in other objects are prefixed with the object's key.
    """
    step = find_logged_step(logged)
    if step is None:
        return
    data = logged.get("data")
    if logged.keys() == _NESTED and isinstance(data, dict):
        log.add_record(number, step, data)
        return
    times = [convert_seconds_to_unix_ns(logged.get(key)) for key in TIME_KEYS]
    ts_ns = next((time for time in times if time), None)
    values: dict[str, object] = {}
    for key, value in logged.items():
        if isinstance(value, dict):
            prefix = "" if key == "data" else f"{key}/"
            values |= {prefix + name: inner for name, inner in value.items()}
        elif key not in STEP_KEYS and key not in TIME_KEYS:
            values[key] = value
    log.add_record(number, step, values, ts_ns)


def convert_seconds_to_unix_ns(value: object) -> int | None:
    """Convert seconds since the Unix epoch to ns; None for values outside 1e9 to 1e10 s (2001 to 2286)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return round(seconds * 1e9) if math.isfinite(seconds) and 1e9 < seconds < 1e10 else None
