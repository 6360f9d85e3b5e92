"""The stacks of a snapshot, by content: which one each record has, and the table of their frames."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain, compress, count
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.readers.snapshot_columns import (
    Numbers,
    Records,
    check_kinds,
    encoded,
    values,
    wrong_shape,
)
from tracekit.readers.values import without_surrogates
from tracekit.schema import TABLES

MAX_FRAMES = 4_000_000
"""Most frames of all different stacks together; real snapshots have tens of thousands."""

_KEYS = frozenset({"name", "filename", "line"})
_FX_KEY = "fx_"
"""How the keys begin that `_dump_snapshot(augment_with_fx_traces=True)` adds to frames."""

Frame = tuple[str | None, str | None, int | None]


@dataclass(slots=True)
class Stacks:
    """The different stacks found so far, by the hash of their content, and what was not understood in them."""

    path: Path
    found: dict[int, tuple[Frame, ...]] = field(default_factory=dict[int, tuple[Frame, ...]])
    frames: dict[int, Frame] = field(default_factory=dict[int, Frame])
    reprs: dict[int, str] = field(default_factory=dict[int, str])
    unknown: Counter[str] = field(default_factory=Counter[str])
    recorded: bool = False
    frame_count: int = 0


def stack_column(stacks: Stacks, of: Records, key: str) -> Numbers:
    """The hash of each row's stack, which is added to `stacks`; missing where none was recorded."""
    lists = values(of, key)
    kinds = check_kinds(of, key, lists, list)
    hashes, missing = np.zeros(len(lists), np.int64), np.ones(len(lists), np.bool_)
    if list not in kinds:
        return Numbers(hashes, missing)
    stacks.recorded = True
    identity = np.fromiter(map(id, lists), np.int64, len(lists))
    # The two actions of a free share one list and follow each other.
    first = np.diff(identity, prepend=-1) != 0
    run = np.cumsum(first) - 1
    heads = list(compress(lists, first))
    codes, kept = _numbered(heads, of, key)
    by_code = np.array(
        [_hash(stacks, frames, f"{key} of {of.names[0]}") for frames in kept], np.int64
    )
    code = codes[run]
    missing = code < 0
    hashes[~missing] = by_code[code[~missing]]
    return Numbers(hashes, missing)


def frames_table(stacks: Stacks) -> pd.DataFrame:
    """The frames of every stack found: the table `stacks`."""
    table = TABLES["stacks"]
    lengths = np.fromiter(map(len, stacks.found.values()), np.int64, len(stacks.found))
    frames = list(chain.from_iterable(stacks.found.values()))
    if not frames:
        return table.frame()
    starts = np.cumsum(lengths) - lengths
    lines = list(map(itemgetter(2), frames))
    missing = np.fromiter((line is None for line in lines), np.bool_, len(lines))
    line = np.fromiter((line or 0 for line in lines), np.int64, len(lines))
    columns = {
        "stack": np.repeat(np.fromiter(stacks.found, np.int64, len(lengths)), lengths),
        "depth": (np.arange(len(frames)) - np.repeat(starts, lengths)).astype(np.int32),
        "name": _texts(list(map(itemgetter(0), frames))),
        "file": _texts(list(map(itemgetter(1), frames))),
        "line": pd.arrays.IntegerArray(line, missing),
    }
    return table.frame(columns)


def _numbered(
    heads: list[Any], of: Records, key: str
) -> tuple[npt.NDArray[np.int64], list[list[Any]]]:
    """(for each list the number of the first alike, -1 for None; the first of each)."""
    there = np.fromiter((head is not None for head in heads), np.bool_, len(heads))
    lists = heads if there.all() else list(compress(heads, there))
    # Frames are shared objects, told apart by identity in a third of the time; texts are not.
    keys = lists if key == "forward_frames" else map(partial(map, id), lists)
    seen: dict[tuple[Any, ...], int] = {}
    try:
        first = np.fromiter(map(seen.setdefault, map(tuple, keys), count()), np.int64, len(lists))
    except TypeError as error:
        raise wrong_shape(of.path, f"{of.names[0]}[].{key}", "expected a list of texts") from error
    kept, found = np.unique(first, return_inverse=True)
    codes = np.full(len(heads), -1, np.int64)
    codes[there] = found
    return codes, [lists[i] for i in kept.tolist()]


def _hash(stacks: Stacks, frames: list[Any], where: str) -> int:
    """The hash of a stack's content, which is kept with its frames if it is new."""
    known, texts = stacks.frames, stacks.reprs
    for frame in frames:
        if id(frame) not in known:
            known[id(frame)] = _frame(stacks, frame, where)
            texts[id(frame)] = repr(known[id(frame)])
    ids = list(map(id, frames))
    text = "".join(map(texts.__getitem__, ids))
    digest = blake2b(text.encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little", signed=True)
    if value not in stacks.found:
        stacks.frame_count += len(frames)
        if stacks.frame_count > MAX_FRAMES:
            raise wrong_shape(stacks.path, where, f"stacks of over {MAX_FRAMES:,} frames in all")
        stacks.found[value] = tuple(map(known.__getitem__, ids))
    return value


def _frame(stacks: Stacks, frame: Any, where: str) -> Frame:
    """(name, file, line) of one frame; a text alone is its name."""
    if type(frame) is str:
        return without_surrogates(frame), None, None
    if type(frame) is not dict:
        raise wrong_shape(stacks.path, where, "a frame is neither a dictionary nor text")
    for odd in frame.keys() - _KEYS:
        if type(odd) is not str:
            raise wrong_shape(stacks.path, where, "a frame has a key that is no text")
        if not odd.startswith(_FX_KEY):
            stacks.unknown[f"frames[].{odd}"] += 1
    name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
    if not (
        type(name) in (str, type(None))
        and type(file) in (str, type(None))
        and (line is None or (type(line) is int and -(2**63) <= line < 2**63))
    ):
        raise wrong_shape(stacks.path, where, "a frame's name, filename or line is of a wrong kind")
    return _plain(name), _plain(file), line


def _plain(text: str | None) -> str | None:
    return None if text is None else without_surrogates(text)


def _texts(found: list[str | None]) -> pd.Categorical:
    """Texts dictionary-encoded, in the order of first use."""
    seen = dict.fromkeys(found)
    seen.pop(None, None)
    place: dict[str | None, int] = {text: i for i, text in enumerate(seen)}
    place[None] = -1
    codes = np.fromiter(map(place.__getitem__, found), np.int32, len(found))
    return encoded((codes, [text for text in seen if text is not None]))
