"""Sniffing of files that tracekit saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

SavedForm = Literal["measurements", "report"]
"""The file kinds that `--save` and `-o x.json` write."""

SAVED_SCHEMA = "tracekit.measurements/1"
"""Format version of saved measurements: additions keep it, incompatible changes raise it."""

MANIFEST = "manifest.json"
_FAMILY = SAVED_SCHEMA.rpartition("/")[0]
_HEAD = f'{{"schema": "{_FAMILY}/'.encode()
_SNIFFED_BYTES = 4096
HEAD_BYTES = 30 + len(MANIFEST) + len(_HEAD)


def sniff_saved_form(path: Path) -> SavedForm | None:
    """Sniff the kind of a saved file from its first bytes; None for any other file, and for unreadable ones."""
    try:
        if not path.is_file():  # reading from a pipe would block
            return None
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except (OSError, ValueError):
        return None
    if is_saved_measurements(head):
        return "measurements"
    if head.lstrip()[:1] == b"{" and b'"title"' in head[:200] and b'"tool_version"' in head:
        return "report"
    return None


def is_saved_measurements(head: bytes) -> bool:
    """Check whether a file that begins with `head` (`HEAD_BYTES` long) contains saved measurements of any version."""
    name = MANIFEST.encode()
    return (
        head.startswith(b"PK\x03\x04")
        and head[30 : 30 + len(name)] == name
        and head[30 + len(name) :].startswith(_HEAD)
    )


_SCHEMA = re.compile(rb'"schema"\s*:\s*"tracekit\.([a-z]{1,20})/')
_SAVED_BEGINNINGS = (
    (re.compile(rb'\{\s*"title"\s*:.{0,4000}?"tool_version"', re.DOTALL), "report"),
    (re.compile(rb'\{\s*"tool_version"\s*:\s*"[^"]*",\s*"base"\s*:'), "compare"),
)


def identify_saved_file(head: bytes) -> str | None:
    """Identify the file that tracekit saved by its first bytes: `measurements`, or the name of a JSON Schema.

    >>> identify_saved_file(b'{"fingerprint": {}, "schema": "tracekit.noise/1"}')
    'noise'
    """
    if is_saved_measurements(head):
        return "measurements"
    if not head.lstrip().startswith(b"{"):
        return None
    for pattern, form in _SAVED_BEGINNINGS:
        if pattern.match(head):
            return form
    found = _SCHEMA.search(head)
    return None if found is None else found[1].decode()
