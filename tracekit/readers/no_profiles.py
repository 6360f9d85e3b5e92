"""Files in a format that is read which are no profiles of training: told by content, and left aside."""

from __future__ import annotations

import codecs
import re

from tracekit.model.codes import Data, Reason

RAY_TASKS = Reason(
    "no-profile", "a timeline of Ray's tasks, no profile", Data(what="a timeline of Ray's tasks")
)
PICTURE = Reason(
    "no-profile",
    "a picture of a memory timeline without its numbers: export it as .raw.json.gz or .json.gz",
    Data(what="a picture of a memory timeline"),
)

_PICTURE = re.compile(
    rb"\s*<html>\s*<head>.{0,100}<title>GPU Memory Timeline HTML</title>", re.DOTALL
)
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,200})"')


def no_profile(head: bytes) -> Reason | None:
    """What the text that begins so is, if it is no profile although a reader would take it; else None.

    `ray timeline` writes a bare list whose categories are `task:execute`, `task::<function>` …; a list
    with any category of a profiler's own is a profile. `export_memory_timeline` writes a page with a PNG.

    >>> no_profile(b'[{"cat": "task::Worker.step", "ph": "X"}]').text
    "a timeline of Ray's tasks, no profile"
    >>> no_profile(b'[{"cat": "cpu_op", "ph": "X"}]')
    """
    if _PICTURE.match(head):
        return PICTURE
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return None
    from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY

    categories = set(_CATEGORY.findall(head))
    of_tasks = any(category.startswith(b"task:") for category in categories)
    profiled = {category.decode("latin-1").lower() for category in categories} & set(
        CLASS_OF_CATEGORY
    )
    return RAY_TASKS if of_tasks and not profiled else None
