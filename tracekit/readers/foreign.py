"""Files that are not read, recognized by their first bytes, with the reason and a remedy.

These are archives, other compressions, UTF-16 and UTF-32 text, and files that are not profiles of training: pictures
of memory timelines, events that rl-insight gathered, and files that tracekit saved.
"""

from __future__ import annotations

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
_HEADLESS_SAMPLES = re.compile(rb"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}, ")
"""First row of `nvidia-smi --query-gpu=timestamp,… --format=csv,noheader`: nothing names its columns."""

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
    if _HEADLESS_SAMPLES.match(text):
        what, remedy = "samples of nvidia-smi without their header", "record them without noheader (--format=csv)"
        return Reason("no-format", f"{what}: {remedy}")
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


PICTURE = Reason(
    "no-profile",
    "a picture of a memory timeline without its numbers: export it as .raw.json.gz or .json.gz",
    Data(what="a picture of a memory timeline"),
)

_PICTURE = re.compile(rb"\s*<html>\s*<head>.{0,100}<title>GPU Memory Timeline HTML</title>", re.DOTALL)

_SUMMARY = re.compile(rb'\s*\[\s*\{(?=[^}]{0,2000}"start_time_ms")(?=[^}]{0,2000}"end_time_ms")[^}]{0,2000}"rank_id"')
"""First row of the events that rl-insight gathers from traces, as its documents print them. Its programs keep them in memory
and write a page or a picture alone (verl-project/rl-insight, docs/recipe/data/data_specification.md at
4442ae17bf3ce25fb8abe929f3a9bd8a48d398da and recipe/pipeline/offline_insight_pipeline.py at
0600f9f0a138b4ea8bfd8fe1acd35a781522034a)."""

SUMMARY_EVENTS = Reason(
    "no-profile",
    "events that rl-insight gathered from traces: analyze these traces instead",
    Data(what="events of rl-insight"),
)


def identify_non_profile(head: bytes) -> Reason | None:
    """Identify a file that is not a profile, although a reader would claim it; None for others.

    `export_memory_timeline` writes a page with a PNG.

    >>> identify_non_profile(b'[{"role":"actor","rank_id":1,"start_time_ms":1.5,"end_time_ms":2.5}]').data["what"]
    'events of rl-insight'

    >>> identify_non_profile(b'{"schema": "tracekit.noise/1"}').text
    'a file that tracekit saved, not a profile'
    >>> identify_non_profile(b'[{"cat": "cpu_op", "ph": "X"}]')
    """
    if _PICTURE.match(head):
        return PICTURE
    if _SUMMARY.match(head):
        return SUMMARY_EVENTS
    saved = identify_saved_file(head)
    if saved is not None:
        return describe_saved_file(saved)
    return None


def describe_saved_file(form: str) -> Reason:
    """Describe a file that tracekit saved, by its form."""
    what = "a file that tracekit saved"
    return Reason("no-profile", f"{what}, not a profile", Data(what=what, kind="saved-by-tracekit", form=form))
