"""Template of the page: the files inlined into it, and their hashes, filled in one pass."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from tracekit.model.records import dataclass

_FOLDER = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")


@dataclass(frozen=True, slots=True)
class PageAssets:
    """Files that are inlined into the page."""

    template: str
    style: str
    code: str


def read_page_assets(template: str = "page", program: str = "page") -> PageAssets:
    """Read the template, style and program of the page. Each kind of page has a program of its own."""
    names = (f"{template}.html", "page.css", f"{program}.js")
    return PageAssets(*((_FOLDER / name).read_text(encoding="utf-8") for name in names))


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Fill the placeholders of a template in one pass: no value can contain one."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def inline_assets(assets: PageAssets) -> dict[str, str]:
    """Inline the style and program, with the hashes by which the page's policy allows them."""
    return {
        "style": assets.style,
        "style_hash": _hash_text(assets.style),
        "code": assets.code,
        "code_hash": _hash_text(assets.code),
    }


def _hash_text(text: str) -> str:
    """Compute the hash of a text as content security policies name it."""
    return b64encode(sha256(text.encode()).digest()).decode()


def dump_compactly(value: Any) -> str:
    """Dump JSON without spaces; numbers that JSON does not have are null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return dump_compactly(_clear_non_finite(value))


def _clear_non_finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, in lists and objects too."""
    if isinstance(value, Mapping):
        return {key: _clear_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clear_non_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def dump_head(head: Mapping[str, Any]) -> str:
    """Dump JSON that cannot end the element around it."""
    return dump_compactly(head).replace("<", "\\u003c")
