"""Allocation sites: the frame of each stack that a user knows, and the tree of all stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, concatenate_parts, fill_missing, select_rows, trim_texts
from tracekit.model.tables.keys import group_arrays, look_up_keys, number_keys, sum_by_group
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

MAX_DEPTH = 200
"""Levels of a frame tree at most."""


@dataclass(frozen=True, slots=True)
class StackSites:
    """Site of each stack: `stack` (ascending), texts of `site` and `place`, `kind` (index in KINDS)."""

    stack: Ints
    site: Coded
    place: Coded
    kind: Ints


def build_site_table(trace: Trace) -> StackSites:
    """Find the site of each stack.

    The site is the innermost frame among those with the best grade of the stack, see `site_grades`.
    """
    stack, grade = trace.numbers("stacks", "stack"), trace.derived(grade_frames)
    # Sorted by (stack, grade, depth), the first row of each stack is its innermost frame of the best grade.
    order = np.lexsort((trace.numbers("stacks", "depth"), grade, stack))
    keys, first = np.unique(stack[order], return_index=True)
    rows = order[first]
    return StackSites(keys, format_frames(trace, rows), format_frame_places(trace, rows), KIND_OF[grade[rows]])


def format_frames(trace: Trace, rows: Ints) -> Coded:
    """Format each of these rows of `stacks` as `train.py:12 forward`; the function alone if there is no file."""
    number, first = _group_equal_frames(trace, rows)
    names = _shorten_distinct_texts(trace.texts("stacks", "name"), first, shorten_function_name, "?")
    files = _shorten_distinct_texts(trace.texts("stacks", "file"), first, shorten_frame_path, "")
    lines = fill_missing(select_rows(trace.nullable("stacks", "line"), first)).tolist()
    parts = zip(files, lines, names, strict=True)
    return _code_texts([f"{f}:{line} {n}" if f and line > 0 else n for f, line, n in parts], number)


def format_frame_places(trace: Trace, rows: Ints) -> Coded:
    """Format each of these rows of `stacks` as `train.py forward`: a frame without parts that differ between machines.

    Leaves out the line and the folders. Files that Inductor compiled are named by a hash and become
    `(compiled)`.
    """
    number, first = _group_equal_frames(trace, rows)
    names = _shorten_distinct_texts(trace.texts("stacks", "name"), first, shorten_function_name, "?")
    files = _shorten_distinct_texts(trace.texts("stacks", "file"), first, _extract_file_name, "")
    lines = fill_missing(select_rows(trace.nullable("stacks", "line"), first)).tolist()
    parts = zip(files, lines, names, strict=True)
    return _code_texts([f"{f} {n}" if f and line > 0 else n for f, line, n in parts], number)


def _group_equal_frames(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Group equal frames of these rows of `stacks`: (group of each, one row of each group)."""
    number, first = group_arrays([select_rows(trace.array("stacks", name), rows) for name in ("name", "file", "line")])
    return number, rows[first]


def _shorten_distinct_texts(texts: Coded, rows: Ints, shortened: Callable[[str], str], missing: str) -> list[str]:
    """Shorten the texts of these rows; each text is shortened once."""
    short = [truncate_with_hash(shortened(text), _MOST_SHOWN) for text in texts.texts]
    return [*map([*short, missing].__getitem__, texts.codes[rows].tolist())]


def _code_texts(texts: Sequence[str], number: Ints) -> Coded:
    """Encode one text per row: row `i` has `texts[number[i]]`."""
    code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([code_of[text] for text in texts], np.int64)
    return Coded(codes[number], tuple(code_of))


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
    trace: Trace, stack: Ints, weight: Ints, max_nodes: int, min_bytes: int
) -> tuple[dict[str, Array], int]:
    """Build the flame graph of these stacks, outermost frame first: (visible nodes, bytes not in it).

    Columns: `depth`, `start_bytes`, `size_bytes`, `name`. Nodes of less than `min_bytes` bytes and those beyond
    `max_nodes` are left out with everything above them. If a stack has Python frames, its C++ frames are skipped;
    otherwise, frames that are neither operators nor other code of PyTorch's tensors are.
    """
    rows = select_shown_frames(trace, stack)
    key, text = trace.numbers("stacks", "stack")[rows], trim_texts(format_frames(trace, rows))
    begins = np.append(True, key[1:] != key[:-1])[: len(key)]
    heads = begins.nonzero()[0]
    level = np.arange(len(key)) - np.repeat(heads, np.diff(np.append(heads, len(key))))
    distinct_stacks, place = number_keys(stack)
    sizes = sum_by_group(place, weight, len(distinct_stacks))
    own_bytes = sizes[look_up_keys(distinct_stacks, key[heads])[0]]  # bytes of each stack
    number = np.cumsum(begins) - 1
    # The node that each stack has reached; all begin at node 0.
    node = np.zeros(len(heads), np.int64)
    parts: list[dict[str, Array]] = []
    count, parents, omitted = 0, np.zeros(1, np.int64), int(weight.sum())
    alive = own_bytes > 0
    for depth in range(min(int(level.max(initial=-1)) + 1, MAX_DEPTH)):
        at_depth = ((level == depth) & alive[number]).nonzero()[0]
        if not len(at_depth):
            break
        code = number[at_depth]
        pairs = np.stack((node[code], text.codes[at_depth]))
        distinct, place = np.unique(pairs, axis=1, return_inverse=True)
        size = sum_by_group(place.ravel(), own_bytes[code], distinct.shape[1])
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
        kept = is_kept.nonzero()[0]
        kept = kept[np.argsort(start[kept], kind="stable")]
        parts.append(
            {
                "depth": np.full(len(kept), depth, np.int32),
                "start_bytes": start[kept],
                "size_bytes": size[kept],
                "name": Coded(distinct[1][kept], text.texts),
            }
        )
        if not depth:
            omitted -= int(size[kept].sum())
        count += len(kept)
        parents = start
        node[code] = place.ravel()
        alive[code] = is_kept[place.ravel()]
    return concatenate_parts(parts), omitted


def select_shown_frames(trace: Trace, stack: Ints) -> Ints:
    """Select the rows of `stacks` to show, by stack, outermost first: Python frames if a stack has any."""
    key = trace.numbers("stacks", "stack")
    rows = np.isin(key, stack).nonzero()[0]
    key = key[rows]
    is_python = mark_wanted_names(trace.texts("stacks", "file"), lambda file: file.endswith(".py"))[rows]
    is_graded = trace.derived(grade_frames)[rows] < ANYTHING
    has, tells = np.isin(key, key[is_python]), np.isin(key, key[is_graded])
    rows = rows[np.where(has, is_python, is_graded | ~tells)]
    return rows[np.lexsort((-trace.numbers("stacks", "depth")[rows], trace.numbers("stacks", "stack")[rows]))]
