"""Files in a readable format that are not profiles of training, recognized by content.

These are timelines of Ray tasks, flight-recorder dumps and pictures of memory timelines.
"""

from __future__ import annotations

import codecs
import re

from tracekit.model.codes import Data, Reason

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
_FLIGHT_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_FLIGHT_KEYS = (b"entries", b"pg_config", b"pg_status", b"collective_seq_id", b"record_id")
_ENOUGH_KEYS = 2
_OF_OTHERS = re.compile(rb"traceEvents|device_traces|segment_type")
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
    if _is_flight_recorder(head):
        return _describe_flight_recorder(head)
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return None
    from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY

    categories = set(_CATEGORY.findall(head))
    of_tasks = any(category.startswith(b"task:") for category in categories)
    profiled = {category.decode("latin-1").lower() for category in categories} & set(CLASS_OF_CATEGORY)
    return RAY_TASKS if of_tasks and not profiled else None


def _is_flight_recorder(head: bytes) -> bool:
    """Check whether text begins like a flight-recorder dump of torch.distributed, as pickle or JSON.

    Backends other than NCCL write the same form. In JSON, the entries may precede all other keys.
    """
    is_object = head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
    if not (is_object or _FLIGHT_PICKLE.match(head)) or _OF_OTHERS.search(head):
        return False
    quoted = b'"%b"' if is_object else b"%b"
    return sum(quoted % key in head for key in _FLIGHT_KEYS) >= _ENOUGH_KEYS


def _describe_flight_recorder(head: bytes) -> Reason:
    """Describe a flight-recorder dump: its form and backend."""
    backend = "gloo" if b"gloo:" in head and b"nccl:" not in head else "NCCL"
    form = "pickle" if _FLIGHT_PICKLE.match(head) else "json"
    what = f"{'a' if backend == 'gloo' else 'an'} {backend} flight-recorder dump"
    data = Data(what=what, kind="flight-recorder", form=form, backend=backend)
    return Reason("no-profile", f"{what}, not a profile", data)
