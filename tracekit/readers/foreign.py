"""What must be unpacked or converted before it can be read: told by its first bytes, named with what to do."""

from __future__ import annotations

import re

from tracekit.readers import unpack

_MAGICS = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first (7z x)"),
    (b"Rar!\x1a\x07", "a rar archive: unpack it first (unrar x)"),
    (b"\x04\x22\x4d\x18", "an lz4 file: decompress it first (lz4 -d)"),
    (b"LZIP", "an lzip file: decompress it first (lzip -d)"),
)
_TAR, _TAR_PLACE = b"ustar", 257
_UTF16 = re.compile(
    rb"\xff\xfe|\xfe\xff|(?:[\[{ \t\n\r]\0){2}|(?:\0[\[{ \t\n\r\"]){2}|[\[{]\0[ \t\n\r\"]\0",
    re.DOTALL,
)
_UTF32 = re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[\[{]\0\0\0|\0\0\0[\[{]", re.DOTALL)


def refusal(text: bytes, *, packed: bool = False) -> str:
    r"""What a file is whose text begins so, and what to do with it; empty for one that may be read.

    `packed` tells that it had to be unpacked to be looked at.

    >>> refusal(b"Rar!\x1a\x07\x00")
    'a rar archive: unpack it first (unrar x)'
    """
    if text[_TAR_PLACE : _TAR_PLACE + len(_TAR)] == _TAR:
        return f"a {'compressed ' if packed else ''}tar archive: unpack it first (tar xf)"
    for magic, what in _MAGICS:
        if text.startswith(magic):
            return what
    if packed and (form := unpack.form_name(text)):
        return f"compressed twice (within, {form}): decompress it first"
    for pattern, name in ((_UTF32, "UTF-32"), (_UTF16, "UTF-16")):
        if pattern.match(text):
            return f"text in {name}, and profiles are UTF-8: convert it first (iconv -f {name} -t UTF-8)"
    return ""


def packed_nsys(form: str) -> str:
    """What a report or an export of Nsight Systems is that was packed so."""
    return f"a file of Nsight Systems, compressed ({form}): decompress it first"
