"""What a file holds that tracekit saved, as its first bytes tell."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

SavedForm = Literal["measurements", "report"]
"""What `--save` and `-o x.json` write."""

SCHEMA = "tracekit.measurements/1"
"""Version of the form of measurements: additions keep it, a change of meaning raises it."""

MANIFEST = "manifest.json"
_FAMILY = SCHEMA.rpartition("/")[0]
_HEAD = f'{{"schema": "{_FAMILY}/'.encode()
_SNIFFED_BYTES = 4096
HEAD_BYTES = 30 + len(MANIFEST) + len(_HEAD)


def saved_form(path: Path) -> SavedForm | None:
    """What a file holds that tracekit saved, by its first bytes; None for any other, and where none can be read."""
    try:
        if not path.is_file():  # a pipe would wait
            return None
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except (OSError, ValueError):
        return None
    if is_saved(head):
        return "measurements"
    if head.lstrip()[:1] == b"{" and b'"title"' in head[:200] and b'"tool_version"' in head:
        return "report"
    return None


def is_saved(head: bytes) -> bool:
    """Whether a file that begins with `head` (`HEAD_BYTES` of it) holds saved measurements of any version."""
    name = MANIFEST.encode()
    return (
        head.startswith(b"PK\x03\x04")
        and head[30 : 30 + len(name)] == name
        and head[30 + len(name) :].startswith(_HEAD)
    )
