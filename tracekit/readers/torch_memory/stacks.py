"""Stacks of a snapshot, deduplicated by content, and the table of their frames."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable
from tracekit.model.tables.keys import group_arrays
from tracekit.readers.torch_memory.columns import (
    SnapshotRecords,
    build_shape_error,
    check_value_types,
    clean_coded_texts,
    clean_record_text,
    find_distinct_objects,
    native,
)

MAX_FRAMES = 4_000_000
"""Most frames of all distinct stacks; real snapshots have tens of thousands."""

_KEYS = frozenset({"name", "filename", "line"})
_FX_KEY = "fx_"
"""Prefix of the keys that `_dump_snapshot(augment_with_fx_traces=True)` adds to frames."""

_MOST_KEYS, _LONGEST_KEY = 20, 100
"""Most distinct unknown keys counted separately, and the characters kept of each."""

_DIGEST_BYTES = 8

_ID_BYTES = np.dtype(object).itemsize
_AT_ONCE = 10_000
"""Number of lists whose frames are processed at once."""

Frame = tuple[str | None, str | None, int | None]
Codes = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class SnapshotStacks:
    """Distinct stacks so far, as frame codes by content hash, and counts of unknown keys.

    A file can reference one long text, frame or list of frames for two bytes per reference. Each is therefore processed,
    stored and counted once, however often it is referenced.
    """

    path: Path
    frame_codes: dict[int, Codes] = field(default_factory=dict[int, Codes])
    frames: dict[Frame, int] = field(default_factory=dict[Frame, int])
    codes: dict[int, int] = field(default_factory=dict[int, int])
    digests: array[int] = field(default_factory=lambda: array("q"))
    texts: dict[str | None, str | None] = field(default_factory=dict[str | None, str | None])
    unknown: Counter[str] = field(default_factory=Counter[str])
    recorded: bool = False
    frame_count: int = 0


def make_stack_column(stacks: SnapshotStacks, entries: SnapshotRecords, key: str) -> Nullable:
    """Hash each row's stack and add new stacks to `stacks`; missing if not recorded."""
    # The two actions of a free share one list, and so do an allocation and its block.
    taken = entries.taken.lists.get(key) if entries.taken is not None else None
    recorded = taken or find_distinct_objects(entries, key)
    kinds = check_value_types(entries, key, recorded, list)
    lists = recorded.things
    if list not in kinds:
        return Nullable(np.zeros(len(entries.rows), np.int64), np.ones(len(entries.rows), np.bool_))
    stacks.recorded = True
    where = f"{key} of {entries.name_of(0)}"
    hashes = _hash_distinct_lists(stacks, lists, where) if taken else _hash_lists(stacks, lists, where)
    unrecorded = np.fromiter((frames is None for frames in lists), np.bool_, len(lists))
    return Nullable(hashes[recorded.number], unrecorded[recorded.number])


def make_stacks_table(stacks: SnapshotStacks) -> Columns:
    """Build the table `stacks`: the frames of every stack."""
    table = TABLES["stacks"]
    lengths = np.fromiter(map(len, stacks.frame_codes.values()), np.int32, len(stacks.frame_codes))
    if not lengths.any():
        return table.no_rows()
    code = np.concatenate(list(stacks.frame_codes.values()))
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    names, files, lines = zip(*stacks.frames, strict=True)
    missing = np.fromiter((line is None for line in lines), np.bool_, len(lines))
    line = np.fromiter((line or 0 for line in lines), np.int64, len(lines))
    columns = {
        "stack": np.repeat(np.fromiter(stacks.frame_codes, np.int64, len(lengths)), lengths),
        "depth": np.arange(len(code), dtype=np.int32) - np.repeat(starts, lengths),
        "name": _make_frame_texts(names, code),
        "file": _make_frame_texts(files, code),
        "line": Nullable(line[code], missing[code]),
    }
    return table.cast(columns)


def _hash_lists(stacks: SnapshotStacks, lists: list[Any], where: str) -> npt.NDArray[np.int64]:
    """Hash the content of each list, 0 for None. Adds new stacks."""
    number, first = _group_equal_lists(lists)
    return _hash_distinct_lists(stacks, [lists[row] for row in first.tolist()], where)[number]


def _hash_distinct_lists(stacks: SnapshotStacks, lists: list[Any], where: str) -> npt.NDArray[np.int64]:
    """Hash lists that are already distinct. Adds new stacks."""
    hashes = np.zeros(len(lists), np.int64)
    for place, frames in enumerate(lists):
        if frames is not None:
            hashes[place] = _hash_stack(stacks, frames, where)
    return hashes


def _group_equal_lists(lists: list[Any]) -> tuple[Ints, Ints]:
    """Group lists of the same objects: (group number of each list in order of appearance, first list of each group)."""
    if native is not None:
        number, first = np.empty(len(lists), np.int64), np.empty(len(lists), np.int64)
        return number, first[: native.alike(lists, number, first)]
    numbers: dict[bytes | None, int] = {}
    keys: list[int] = []
    for start in range(0, len(lists), _AT_ONCE):
        for identity in _identify_lists(lists[start : start + _AT_ONCE]):
            keys.append(numbers.setdefault(identity, len(numbers)))
    return group_arrays([np.array(keys, np.int64)])


def _identify_lists(lists: Sequence[Any]) -> list[bytes | None]:
    """Identify each list by the objects in it; None for None.

    Frames are shared objects, so comparing their identities is faster than comparing content.
    """
    lengths = [-1 if frames is None else len(frames) for frames in lists]
    frames_of_all = chain.from_iterable(filter(None, lists))
    filled = np.maximum(lengths, 0)
    # An array of objects stores their addresses, which is what `id` returns.
    data = np.fromiter(frames_of_all, object, int(filled.sum())).tobytes()
    ends = (_ID_BYTES * np.cumsum(filled)).tolist()
    return [
        None if length < 0 else data[end - _ID_BYTES * length : end] for length, end in zip(lengths, ends, strict=True)
    ]


def _hash_stack(stacks: SnapshotStacks, frames: list[Any], where: str) -> int:
    """Hash a stack's content. Stores the frame codes of a new stack."""
    code_of = stacks.codes
    for frame in frames:
        if id(frame) not in code_of:
            code_of[id(frame)] = _code_frame(stacks, _parse_stack_frame(stacks, frame, where))
    codes = np.fromiter(map(code_of.__getitem__, map(id, frames)), np.int32, len(frames))
    digests = np.frombuffer(stacks.digests, np.int64)[codes].tobytes() if frames else b""
    digest = blake2b(digests, digest_size=_DIGEST_BYTES).digest()
    value = int.from_bytes(digest, "little", signed=True)
    if value not in stacks.frame_codes:
        stacks.frame_count += len(frames)
        if stacks.frame_count > MAX_FRAMES:
            raise build_shape_error(stacks.path, where, f"stacks of over {MAX_FRAMES:,} frames in all")
        stacks.frame_codes[value] = codes
    return value


def _code_frame(stacks: SnapshotStacks, frame: Frame) -> int:
    """Look up the code of a frame by content. Adds a new frame with its digest."""
    code = stacks.frames.setdefault(frame, len(stacks.frames))
    if code == len(stacks.digests):
        digest = blake2b(repr(frame).encode(), digest_size=_DIGEST_BYTES).digest()
        stacks.digests.append(int.from_bytes(digest, "little", signed=True))
    return code


def _parse_stack_frame(stacks: SnapshotStacks, frame: Any, where: str) -> Frame:
    """Parse one frame: (name, file, line). A plain text is a name."""
    if type(frame) is str:
        return _intern_text(stacks, frame), None, None
    if type(frame) is not dict:
        raise build_shape_error(stacks.path, where, "a frame is neither a dictionary nor text")
    for odd in frame.keys() - _KEYS:
        if type(odd) is not str:
            raise build_shape_error(stacks.path, where, "a frame has a key that is no text")
        if not odd.startswith(_FX_KEY):
            _count_unknown_key(stacks.unknown, odd[:_LONGEST_KEY])
    name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
    if not (
        type(name) in (str, type(None))
        and type(file) in (str, type(None))
        and (line is None or (type(line) is int and -(2**63) <= line < 2**63))
    ):
        raise build_shape_error(stacks.path, where, "a frame's name, filename or line is of a wrong kind")
    return _intern_text(stacks, name), _intern_text(stacks, file), line


def _count_unknown_key(unknown: Counter[str], key: str) -> None:
    """Count an unknown key, by name while there are few distinct ones."""
    place = f"frames[].{key}"
    few = len(unknown) < _MOST_KEYS or place in unknown
    unknown[place if few else "frames[].* (other keys)"] += 1


def _intern_text(stacks: SnapshotStacks, text: str | None) -> str | None:
    """Normalize a text; equal texts become the same object."""
    if text is None:
        return None
    if text not in stacks.texts:
        stacks.texts[text] = clean_record_text(text)
    return stacks.texts[text]


def _make_frame_texts(of_frames: Sequence[str | None], code: Codes) -> Coded:
    """Build the text column of frames from codes, with texts in order of first use."""
    texts = dict.fromkeys(of_frames)
    texts.pop(None, None)
    place: dict[str | None, int] = {text: i for i, text in enumerate(texts)}
    place[None] = -1
    text_of = np.fromiter(map(place.__getitem__, of_frames), np.int32, len(of_frames))
    return clean_coded_texts(text_of[code], [text for text in texts if text is not None])
