"""Loading of memory snapshots saved as JSON into the same objects that a pickle gives.

JSON cannot name code. The remaining risks are depth, huge numbers, and many small objects from few bytes. JSON also
repeats shared objects: a stack of 32 frames is written again for each action. Equal frames are therefore merged while
reading, because stacks are compared by object identity.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.readers.torch_memory.opcodes import build_too_many_error, has_too_many_containers

MAX_BYTES = 2**29
"""Largest JSON that is read, using about five times its size in memory. A pickle of the same is far smaller."""

_FRAME = frozenset({"name", "filename", "line"})

_FIRST_KEY = re.compile(
    rb'\s*\{\s*"(?:segments|device_traces|allocator_settings|external_annotations|host_segments|host_traces)"\s*:'
)
_OWN_KEY = re.compile(rb'"(?:device_traces|host_traces|total_size|segment_type)"\s*:')
_SEGMENTS = re.compile(rb'\s*\[\s*\{\s*"(?:device|address|total_size|segment_type|blocks)"\s*:')
_OF_TRACES = re.compile(rb'"(?:traceEvents|ph)"\s*:')


def is_json_snapshot(head: bytes) -> bool:
    """Check whether text begins like a JSON memory snapshot, or like the list of its segments alone."""
    if _FIRST_KEY.match(head) is None and _SEGMENTS.match(head) is None:
        return False
    return _OWN_KEY.search(head) is not None and _OF_TRACES.search(head) is None


def load_json_snapshot(data: bytes, path: Path) -> tuple[Any, int]:
    """Parse a JSON snapshot: (object, most dictionaries that it can hold). Raises `TraceFormatError`.

    If an object repeats a key, the last one counts, as in a pickle.
    """
    if len(data) > MAX_BYTES:
        problem = f"JSON of {len(data):,} bytes: over {MAX_BYTES:,}"
        reason = Reason("too-many", problem, Data(count=len(data), most=MAX_BYTES))
        raise make_format_error(path, reason, "torch.cuda.memory._dump_snapshot writes less")
    dicts, lists = data.count(b"{"), data.count(b"[")
    if has_too_many_containers(len(data), dicts, lists):
        problem = f"some {dicts + lists:,} objects and arrays in {len(data):,} bytes are no snapshot"
        raise build_too_many_error(path, problem)
    frames: dict[tuple[str, str, int], dict[str, Any]] = {}

    def shared(parsed: dict[str, Any]) -> dict[str, Any]:
        """Return the object, or for a frame the first one equal to it."""
        if parsed.keys() != _FRAME:
            return parsed
        name, file, line = key = parsed["name"], parsed["filename"], parsed["line"]
        # Limited to 64 bits, so numbers cannot be chosen to collide.
        if type(name) is type(file) is str and type(line) is int and -(2**63) <= line < 2**63:
            return frames.setdefault(key, parsed)
        return parsed

    try:
        return json.loads(data, object_hook=shared, parse_constant=_refuse_snapshot_constant), dicts
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error
    except RecursionError as error:
        reason = Reason("no-snapshot", "nested too deeply")
        raise make_format_error(path, reason, "no memory snapshot is") from error
    except ValueError as error:
        words = " ".join(str(error)[:200].split())
        where = ""
        reason = Reason("no-snapshot", f"not sound JSON: {words}")
        if isinstance(error, json.JSONDecodeError):
            where = f"character {error.pos}"
            problem = f"the JSON ends early or is damaged: {words}"
            reason = Reason("damaged-snapshot", problem, Data(offset=error.pos))
        raise make_format_error(path, reason, "copy it again", where) from error


def _refuse_snapshot_constant(word: str) -> NoReturn:
    """Raise `ValueError`: NaN and Infinity are not valid JSON, and no snapshot has them."""
    raise ValueError(f"{word} is no number of a snapshot")
