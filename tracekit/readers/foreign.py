"""Unsupported formats recognized by their first bytes: archives, other compressions, UTF-16 and UTF-32 text.

Each has a remedy: unpack or convert the file first.
"""

from __future__ import annotations

import re

from tracekit.model.codes import Data, Reason
from tracekit.readers import unpack

_MAGICS = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first (7z x)"),
    (b"Rar!\x1a\x07", "a rar archive", "unpack it first (unrar x)"),
    (b"\x04\x22\x4d\x18", "an lz4 file", "decompress it first (lz4 -d)"),
    (b"LZIP", "an lzip file", "decompress it first (lzip -d)"),
)
_TAR, _TAR_PLACE = b"ustar", 257
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\[{ \t\n\r]\0){2}|(?:\0[\[{ \t\n\r\"]){2}|[\[{]\0[ \t\n\r\"]\0", re.DOTALL)
_UTF32 = re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[\[{]\0\0\0|\0\0\0[\[{]", re.DOTALL)


def explain_unsupported_format(text: bytes, *, packed: bool = False) -> Reason | None:
    r"""Explain why a file that begins with `text` cannot be read, and what to do; None if it may be read.

    `packed` is true if `text` was decompressed.

    >>> explain_unsupported_format(b"Rar!\x1a\x07\x00").text
    'a rar archive: unpack it first (unrar x)'
    """
    if text[_TAR_PLACE : _TAR_PLACE + len(_TAR)] == _TAR:
        what = "a compressed tar archive" if packed else "a tar archive"
        return _make_archive_reason(what, "unpack it first (tar xf)")
    for magic, what, remedy in _MAGICS:
        if text.startswith(magic):
            return _make_archive_reason(what, remedy)
    if packed and (form := unpack.name_compression(text)):
        return _make_archive_reason(f"compressed twice (within, {form})", "decompress it first")
    for pattern, name in ((_UTF32, "UTF-32"), (_UTF16, "UTF-16")):
        if pattern.match(text):
            what = f"text in {name}, and profiles are UTF-8"
            remedy = f"convert it first (iconv -f {name} -t UTF-8)"
            data = Data(what=what, remedy=remedy, encoding=name)
            return Reason("other-text", f"{what}: {remedy}", data)
    return None


def explain_compressed_nsys(form: str) -> Reason:
    """Explain that a report or export of Nsight Systems must be decompressed first."""
    return _make_archive_reason(f"a file of Nsight Systems, compressed ({form})", "decompress it first")


def _make_archive_reason(what: str, remedy: str) -> Reason:
    """Make the reason for an archive: its format and the command that unpacks it."""
    return Reason("archive", f"{what}: {remedy}", Data(what=what, remedy=remedy))
