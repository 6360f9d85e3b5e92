"""Allocation sites: the frame of each stack that a user knows, and the tree of all stacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.keys import group_rows_by
from tracekit.model.text.labels import truncate_with_hash
from tracekit.model.trace import Trace
from tracekit.process.memory.site_grades import ANYTHING, COMPILED, KIND_OF, PROFILED, grade_frames
from tracekit.process.name_filters import mark_wanted_names

Ints = npt.NDArray[np.int64]

_QUALIFIED = re.compile(r"(?:at|torch|c10)::[\w:]+")
_KEPT = 3
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_MOST_SHOWN = 200
"""Characters of a function or file in a site at most; real snapshots have up to 80."""

_FRAME = ("name", "file", "line")
"""Columns that identify a frame."""

MAX_DEPTH = 200
"""Levels of a frame tree at most."""


def build_site_table(trace: Trace) -> pd.DataFrame:
    """Find the site of each stack: columns `stack` (ascending), `site` and `place` (texts), `kind` (index in KINDS).

    The site is the innermost frame among those with the best grade of the stack, see `site_grades`.
    """
    stacks = trace.get("stacks")
    order = np.lexsort((stacks["depth"].to_numpy(), stacks["stack"].to_numpy()))
    stack = stacks["stack"].to_numpy()[order]
    all_grades = grade_frames(stacks)
    grade = all_grades[order]
    # Sorted by (stack, grade, depth), the first row of each stack is its innermost frame of the best grade.
    first = order[np.lexsort((np.arange(len(order)), grade, stack))]
    keys, place = np.unique(stacks["stack"].to_numpy()[first], return_index=True)
    rows = first[place]
    return pd.DataFrame(
        {
            "stack": keys,
            "site": pd.Series(format_frames(stacks, rows), dtype=object),
            "place": pd.Series(format_frame_places(stacks, rows), dtype=object),
            "kind": KIND_OF[all_grades[rows]],
        }
    )


def format_frames(stacks: pd.DataFrame, rows: Ints) -> npt.NDArray[np.object_]:
    """Format each of these rows as `train.py:12 forward`; the function alone if there is no file.

    Equal frames share one object.
    """
    number, first = group_rows_by(stacks.iloc[rows], _FRAME)
    frames = stacks.iloc[rows[first]]
    names = _shorten_categories(frames["name"], shorten_function_name, "?")
    files = _shorten_categories(frames["file"], shorten_frame_path, "")
    name = names[frames["name"].cat.codes.to_numpy()]
    file = files[frames["file"].cat.codes.to_numpy()]
    line = frames["line"].to_numpy(np.int64, na_value=0)
    parts = zip(file.tolist(), line.tolist(), name.tolist(), strict=True)
    texts = [f"{f}:{number} {n}" if f and number > 0 else str(n) for f, number, n in parts]
    texts_of: npt.NDArray[np.object_] = np.array([*texts, None], object)[number]
    return texts_of


def format_frame_places(stacks: pd.DataFrame, rows: Ints) -> npt.NDArray[np.object_]:
    """Format each of these rows as `train.py forward`: a frame without parts that differ between machines.

    Leaves out the line and the folders. Files that Inductor compiled are named by a hash and become
    `(compiled)`.
    """
    number, first = group_rows_by(stacks.iloc[rows], _FRAME)
    frames = stacks.iloc[rows[first]]
    names = _shorten_categories(frames["name"], shorten_function_name, "?")
    files = _shorten_categories(frames["file"], _extract_file_name, "")
    name = names[frames["name"].cat.codes.to_numpy()]
    file = files[frames["file"].cat.codes.to_numpy()]
    placed = (file != "") & (frames["line"].to_numpy(np.int64, na_value=0) > 0)
    places: npt.NDArray[np.object_] = np.where(placed, file + " " + name, name).astype(object)
    return places[number]


def _shorten_categories(
    column: pd.Series[Any], shortened: Callable[[str], str], missing: str
) -> npt.NDArray[np.object_]:
    """Shorten the text of every category of a column; the last element is for code -1."""
    texts = (truncate_with_hash(shortened(str(text)), _MOST_SHOWN) for text in column.cat.categories)
    return np.array([*texts, missing], object)


def _extract_file_name(path: str) -> str:
    """Extract the file name from a path; empty if the path is not a file."""
    name = shorten_frame_path(path).rpartition("/")[2]
    return "(compiled)" if COMPILED.fullmatch(name) else name


def shorten_function_name(name: str) -> str:
    """Shorten a function name: no arguments or address, and no return type in C++.

    >>> shorten_function_name("at::Tensor at::_ops::mm::call(at::Tensor const&)"), shorten_function_name("forward")
    ('at::_ops::mm::call', 'forward')
    """
    profiled = PROFILED.fullmatch(name)
    if profiled is not None:
        return f"{shorten_frame_path(profiled[1])}:{int(profiled[2])} {profiled[3]}"
    name = _ADDRESS.sub("", name).replace("(anonymous namespace)::", "")
    head = name.partition("(")[0]
    names = _QUALIFIED.findall(head)
    return names[-1] if names else name


def shorten_frame_path(path: str) -> str:
    """Shorten a path to its last parts; empty if it is not a file.

    >>> shorten_frame_path("/opt/venv/lib/python3.11/site-packages/verl/workers/actor/dp_actor.py"), shorten_frame_path("??")
    ('workers/actor/dp_actor.py', '')
    """
    if path in ("", "??", "none"):
        return ""
    pure = PureWindowsPath(path) if "\\" in path else PurePosixPath(path)
    parts = [part for part in pure.parts if part not in ("/", pure.anchor)]
    return "/".join(parts[-_KEPT:])


def build_allocation_tree(
    stacks: pd.DataFrame, stack: Ints, weight: Ints, max_nodes: int, min_bytes: int
) -> tuple[pd.DataFrame, int]:
    """Build the flame graph of these stacks, outermost frame first: (visible nodes, bytes not in it).

    Columns: `depth`, `start_bytes`, `size_bytes`, `name`. Nodes of less than `min_bytes` bytes and those beyond
    `max_nodes` are left out with everything above them. If a stack has Python frames, its C++ frames are skipped;
    otherwise, frames that are neither operators nor other code of PyTorch's tensors are.
    """
    used = _select_shown_frames(stacks[np.isin(stacks["stack"].to_numpy(), stack)])
    key = used["stack"].to_numpy()
    texts, text = _code_frame_texts(used)
    begins = np.append(True, key[1:] != key[:-1])[: len(key)]
    heads = begins.nonzero()[0]
    level = np.arange(len(key)) - np.repeat(heads, np.diff(np.append(heads, len(key))))
    sizes = pd.Series(weight).groupby(stack).sum()
    own_bytes = sizes.reindex(key[heads]).to_numpy(np.int64, na_value=0)  # bytes of each stack
    number = np.cumsum(begins) - 1
    # The node that each stack has reached; all begin at node 0.
    node = np.zeros(len(heads), np.int64)
    rows: list[pd.DataFrame] = []
    count, parents = 0, np.zeros(1, np.int64)
    alive = own_bytes > 0
    for depth in range(min(int(level.max(initial=-1)) + 1, MAX_DEPTH)):
        at_depth = ((level == depth) & alive[number]).nonzero()[0]
        if not len(at_depth):
            break
        code = number[at_depth]
        pairs = np.stack((node[code], text[at_depth]))
        distinct, place = np.unique(pairs, axis=1, return_inverse=True)
        size = np.zeros(distinct.shape[1], np.int64)
        np.add.at(size, place.ravel(), own_bytes[code])
        biggest = np.lexsort((distinct[1], -size, distinct[0]))
        is_kept = np.zeros(len(size), np.bool_)
        is_kept[np.argsort(-size, kind="stable")[: max(max_nodes - count, 0)]] = True
        is_kept &= size >= max(min_bytes, 1)
        # Siblings are adjacent, the largest first.
        before = np.cumsum(size[biggest]) - size[biggest]
        group = distinct[0][biggest]
        first = np.searchsorted(group, group)
        start = np.empty(len(size), np.int64)
        start[biggest] = parents[group] + before - before[first]
        names = texts[distinct[1]]
        part = {"depth": depth, "start_bytes": start, "size_bytes": size, "name": names}
        rows.append(pd.DataFrame(part)[is_kept].sort_values("start_bytes", kind="stable"))
        count += int(is_kept.sum())
        parents = start
        node[code] = place.ravel()
        alive[code] = is_kept[place.ravel()]
    columns = ["depth", "start_bytes", "size_bytes", "name"]
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)
    top = table[table["depth"] == 0]["size_bytes"].sum()
    return table, int(weight.sum()) - int(top)


def _select_shown_frames(frames: pd.DataFrame) -> pd.DataFrame:
    """Select the frames to show, outermost first: Python frames if a stack has any."""
    is_python = mark_wanted_names(frames["file"], lambda file: file.endswith(".py"))
    is_graded = grade_frames(frames) < ANYTHING
    key = frames["stack"].to_numpy()
    has, tells = np.isin(key, key[is_python]), np.isin(key, key[is_graded])
    frames = frames[np.where(has, is_python, is_graded | ~tells)]
    return frames.iloc[np.lexsort((-frames["depth"].to_numpy(), frames["stack"].to_numpy()))]


def _code_frame_texts(frames: pd.DataFrame) -> tuple[npt.NDArray[np.object_], Ints]:
    """Code the texts of frames: (distinct texts in order, code of each frame); equal frames are formatted once."""
    number, first = group_rows_by(frames, _FRAME)
    texts, text_of = np.unique(format_frames(frames, first), return_inverse=True)
    return texts, text_of[number]
