"""Files that are not read, recognized by their first bytes, with the reason and a remedy.

These are archives, other compressions, UTF-16 and UTF-32 text, and files that are not profiles of training: timelines of
Ray tasks, pictures of memory timelines, and files that tracekit saved.
"""

from __future__ import annotations

import codecs
import re

from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.inputs.saved_files import identify_saved_file
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


RAY_TASKS = Reason(
    "no-profile",
    "a timeline of Ray's tasks, not a profile",
    Data(what="a timeline of Ray's tasks", kind="ray-timeline"),
)
PICTURE = Reason(
    "no-profile",
    "a picture of a memory timeline without its numbers: export it as .raw.json.gz or .json.gz",
    Data(what="a picture of a memory timeline"),
)

_PICTURE = re.compile(rb"\s*<html>\s*<head>.{0,100}<title>GPU Memory Timeline HTML</title>", re.DOTALL)
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,200})"')


def identify_non_profile(head: bytes) -> Reason | None:
    """Identify a file that is not a profile, although a reader would claim it; None for others.

    `ray timeline` writes a bare list with the categories `task:execute`, `task::<function>` …; a list
    with any category of a profiler is a profile. `export_memory_timeline` writes a page with a PNG.

    >>> identify_non_profile(b'[{"cat": "task::Worker.step", "ph": "X"}]').text
    "a timeline of Ray's tasks, not a profile"
    >>> identify_non_profile(b'[{"cat": "cpu_op", "ph": "X"}]')
    """
    if _PICTURE.match(head):
        return PICTURE
    saved = identify_saved_file(head)
    if saved is not None:
        return describe_saved_file(saved)
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return None
    from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY

    categories = set(_CATEGORY.findall(head))
    of_tasks = any(category.startswith(b"task:") for category in categories)
    profiled = {category.decode("latin-1").lower() for category in categories} & set(CLASS_OF_CATEGORY)
    return RAY_TASKS if of_tasks and not profiled else None


def describe_saved_file(form: str) -> Reason:
    """Describe a file that tracekit saved, by its form."""
    what = "a file that tracekit saved"
    return Reason("no-profile", f"{what}, not a profile", Data(what=what, kind="saved-by-tracekit", form=form))
