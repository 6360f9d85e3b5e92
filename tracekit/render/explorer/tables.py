"""Tables of the page over all rows: steps, ranges, sums, idle gaps and host rows, and the counts of those left out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.render.explorer.processes import ExplorerRows, JoinedColumns, PageProcess
from tracekit.render.explorer.varints import (
    encode_column_parts,
    encode_columns,
    fold_signs,
    take_differences,
    take_part_differences,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_RANGES = 150_000
MOST_GAPS = 60_000
MOST_SEGMENTS = 400_000
MOST_HOST_ROWS = 200_000

_NONE = np.empty(0, np.int64)


class Numbering(NamedTuple):
    """Numbers of the names and paths of one process on the page; paths are stored + 1 on both sides.

    Those of snapshots follow those of the processes with rows.
    """

    names: Ints
    paths: Ints


class GapSelection(NamedTuple):
    """Gaps of at least `floor_ns` are kept; those left out are counted."""

    floor_ns: int
    dropped_count: int
    dropped_ns: int


def select_gaps(rows: ExplorerRows, share: float = 1.0) -> GapSelection:
    """Select the longest gaps of all rows: at most this share of `MOST_GAPS` and `MOST_SEGMENTS`."""
    dropped, cut = np.zeros(2, np.int64), 0
    for process in rows.processes:
        of_process = process.read_column("gap.dropped")
        if of_process.any():
            # The worker has left out gaps that are as long as the shortest one it has kept, or shorter.
            dropped += of_process
            cut = max(cut, int(process.read_column("gap.length").min()) + 1)
    lengths, sizes = rows.joined.read("gap.length"), rows.joined.read("gap.segments")
    order = np.argsort(-lengths, kind="stable")
    fits = int(np.searchsorted(np.cumsum(sizes[order]), MOST_SEGMENTS * share, side="right"))
    fits = min(fits, int(MOST_GAPS * share))
    floor = 0 if fits >= len(order) else int(lengths[order[fits]]) + 1
    floor = max(floor, cut)
    short = lengths < floor
    return GapSelection(floor, int(dropped[0]) + int(short.sum()), int(dropped[1]) + int(lengths[short].sum()))


def choose_host_floor(rows: ExplorerRows, share: float = 1.0) -> int:
    """Choose the length from which host rows are kept: at most this share of `MOST_HOST_ROWS`."""
    lengths = rows.joined.read("host.length")
    shortest = len(lengths) - int(MOST_HOST_ROWS * share) - 1
    floor = 0 if shortest < 0 else int(np.partition(lengths, shortest)[shortest]) + 1
    # Below the shortest row that a worker has kept, its rows are not complete.
    return max(floor, int(rows.joined.read("host.cut_ns").max(initial=0)))


def mark_used_paths(columns: JoinedColumns, paths: Sequence[Ints], floors: tuple[int, int], used: Mask) -> None:
    """Mark the paths (stored + 1) that sums, kept gaps, kept host rows and pieces of memory have."""
    gap_floor, host_floor = floors
    kept = np.repeat(columns.read("gap.length") >= gap_floor, columns.read("gap.segments"))
    for name in ("sum.path", "piece.path"):
        used[columns.look_up(paths, name)] = True
    used[columns.look_up(paths, "segment.path")[kept]] = True
    used[columns.look_up(paths, "host.path")[columns.read("host.length") >= host_floor]] = True


def mark_used_names(columns: JoinedColumns, names: Sequence[Ints], gap_floor: int, used: Mask) -> None:
    """Mark the names that sums, ranges and kept gaps have."""
    kept = columns.read("gap.length") >= gap_floor
    for name in ("sum.name", "range.name"):
        used[columns.look_up(names, name)] = True
    around = _put_unknown_first(names)
    for name in ("gap.before", "gap.after"):
        known = kept & (columns.read(name) > 0)
        used[columns.look_up(around, name)[known] - 1] = True


def _put_unknown_first(names: Sequence[Ints]) -> list[Ints]:
    """Make tables of names + 1 for numbers that are stored + 1; 0 stays unknown."""
    return [np.concatenate(([0], of_process + 1)) for of_process in names]


def _concatenate_rows(parts: Sequence[Sequence[Ints]], count: int) -> list[Ints]:
    """Concatenate columns of all processes."""
    return [np.concatenate(columns) for columns in zip([_NONE] * count, *parts, strict=True)]


def _repeat_row_numbers(rows: ExplorerRows, process: PageProcess, group: str) -> Ints:
    """Repeat the position on the page of each row of a process for each of its rows in a group."""
    first = rows.positions[process.number, 0]
    sizes = process.read_column(f"row.{group}")
    return np.repeat(np.arange(first, first + len(sizes)), sizes)


def encode_steps(
    rows: ExplorerRows, counted: frozenset[int] | None, excluded: Mapping[int, frozenset[int]] = MappingProxyType({})
) -> bytes:
    """Encode the block `steps`; `excluded` are further steps that do not count, by number of the process."""
    numbers = (
        None if counted is None else np.array(sorted(step for step in counted if abs(step) < 1 << 62), np.int64) + 1
    )
    parts = []
    for process in rows.processes:
        number = process.read_column("step.number")
        is_counted = np.ones(len(number), np.bool_) if numbers is None else np.isin(number, numbers) | (number == 0)
        of_process = excluded.get(process.number, frozenset())
        is_counted &= ~np.isin(number, np.array(sorted(of_process), np.int64) + 1)
        names = ("length", "compute", "communication", "memcpy", "memset", "idle")
        length, *columns = (process.read_column(f"step.{name}") for name in names)
        row = process.read_column("step.row") + rows.positions[process.number, 0]
        parts.append((row, number, process.read_times("step.start"), length, is_counted.astype(np.int64), *columns))
    row, number, start, *others = _concatenate_rows(parts, 10)
    return encode_columns([row, number, fold_signs(take_differences(start)), *others])


class PageRanges(NamedTuple):
    """Ranges of all rows, and the position + 1 of each range of a process in the block (0: left out), after a 0."""

    columns: list[Ints]
    positions: tuple[Ints, ...]
    dropped: int


def list_page_ranges(rows: ExplorerRows, numbering: Sequence[Numbering]) -> PageRanges:
    """List the ranges of all rows: outermost ones all, inner ones as far as there is room."""
    parts = [
        (
            _repeat_row_numbers(rows, process, "ranges"),
            process.read_times("range.start"),
            process.read_column("range.length"),
            numbers.names[process.read_column("range.name")],
            process.read_column("range.depth"),
            process.read_column("range.step"),
        )
        for process, numbers in zip(rows.processes, numbering, strict=False)
    ]
    columns = _concatenate_rows(parts, 6)
    depth, length = columns[4], columns[2]
    kept = np.ones(len(depth), np.bool_)
    if len(depth) > MOST_RANGES:
        kept[np.lexsort((-length, depth))[max(MOST_RANGES, int((depth == 0).sum())) :]] = False
    place = np.where(kept, np.cumsum(kept), 0)
    ends = np.cumsum([0, *(len(part[0]) for part in parts)]).tolist()
    positions = tuple(np.concatenate(([0], place[begin:end])) for begin, end in itertools.pairwise(ends))
    return PageRanges([column[kept] for column in columns], positions, int((~kept).sum()))


def encode_ranges(ranges: PageRanges) -> bytes:
    """Encode the block `ranges`."""
    row, start, *others = ranges.columns
    return encode_columns([row, fold_signs(take_differences(start)), *others])


def list_page_sums(rows: ExplorerRows, numbering: Sequence[Numbering], ranges: PageRanges) -> list[Ints]:
    """List the columns of the block `sums`: row, step + 1, range + 1, path + 1, name, kind, count, ns."""
    parts = [
        (
            _repeat_row_numbers(rows, process, "sums"),
            process.read_column("sum.step"),
            positions[process.read_column("sum.range")],
            numbers.paths[process.read_column("sum.path")],
            numbers.names[process.read_column("sum.name")],
            *(process.read_column(f"sum.{name}") for name in ("kind", "count", "ns")),
        )
        for process, numbers, positions in zip(rows.processes, numbering, ranges.positions, strict=False)
    ]
    return _concatenate_rows(parts, 8)


def encode_gaps(rows: ExplorerRows, numbering: Sequence[Numbering], floor_ns: int) -> tuple[bytes, bytes]:
    """Encode the blocks `gaps` and `segments`."""
    joined = rows.joined
    length, size = joined.read("gap.length"), joined.read("gap.segments")
    kept = length >= floor_ns
    names = _put_unknown_first([numbers.names for numbers in numbering])
    first = [rows.positions[process.number, 0] for process in rows.processes]
    row = joined.read("gap.row") + joined.repeat(first, "gap.row")
    around = [joined.look_up(names, f"gap.{name}")[kept] for name in ("before", "after")]
    start = fold_signs(take_differences(joined.read_times("gap.start")[kept]))
    inside = np.repeat(kept, size)
    path = joined.look_up([numbers.paths for numbers in numbering], "segment.path")
    segments = (joined.read("segment.length"), joined.read("segment.cause"), path)
    return (
        encode_columns([row[kept], start, length[kept], *around, size[kept]]),
        encode_columns([column[inside] for column in segments]),
    )


def encode_host_rows(rows: ExplorerRows, numbering: Sequence[Numbering], floor_ns: int) -> dict[str, bytes]:
    """Encode the block `h` of each process that has a host row of this length."""
    joined = rows.joined
    length = joined.read("host.length")
    kept = length >= floor_ns
    owner = joined.repeat(np.arange(len(rows.processes)), "host.length")[kept]
    sizes = np.bincount(owner, minlength=len(rows.processes))
    start = fold_signs(take_part_differences(joined.read_times("host.start")[kept], sizes))
    path = joined.look_up([numbers.paths for numbers in numbering], "host.path")[kept]
    parts = encode_column_parts([joined.read("host.thread")[kept], start, length[kept], path], sizes)
    sized = zip(rows.processes, parts, sizes.tolist(), strict=True)
    return {f"h{process.number}": part for process, part, size in sized if size}
