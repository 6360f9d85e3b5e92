"""Changes to a run as text: the effect of a fix, as `tracekit whatif --change` reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any


def write_change(do: str, on: str | None = None, **fields: Any) -> str:
    """Write a change as JSON; fields that are None are left out, and sets of numbers are sorted.

    >>> write_change("scale", "device", rank={3, 1}, factor=0.5, stage=None)
    '{"do": "scale", "on": "device", "rank": [1, 3], "factor": 0.5}'
    """
    values: dict[str, Any] = {"do": do}
    if on is not None:
        values["on"] = on
    for name, value in fields.items():
        if value is not None:
            values[name] = sorted(value) if isinstance(value, (set, frozenset)) else value
    return json.dumps(values, ensure_ascii=False)


def write_name_pattern(names: Iterable[str]) -> str:
    r"""Write the pattern that matches exactly these names.

    >>> write_name_pattern(["aten::item", "a.b"])
    '^(?:aten::item|a\\.b)$'
    """
    return f"^(?:{'|'.join(re.escape(name) for name in dict.fromkeys(names))})$"
