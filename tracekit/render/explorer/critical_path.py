"""The critical path as recorded on the page: all pieces, or short neighbors merged where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.timeline import PathPieces
from tracekit.model.units import format_quantity
from tracekit.render.explorer.blocks import compress_block, measure_block
from tracekit.render.explorer.inputs.process_files import list_file_names
from tracekit.render.explorer.names import PageNames
from tracekit.render.explorer.processes import ExplorerRows
from tracekit.render.explorer.varints import encode_columns, fold_signs, take_differences

Ints = npt.NDArray[np.int64]

BYTES_OF_PATH = 0.1
"""Share of the budget that the critical path may take."""

LIMITS_NS = (0, 1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000)
"""Limit of each level of merging: pieces shorter than it and closer than it become one; 0 merges none."""

LONGEST = 16
"""Longest merged piece, in limits."""


class PagePieces(NamedTuple):
    """Pieces in order of time, each run by itself: row + 1 (0: unknown), start, length, and the numbers of kind and name (0: none)."""

    row: Ints
    start: Ints
    length: Ints
    kind: Ints
    name: Ints


class PagePath(NamedTuple):
    """The compressed block of the path, if it fits, and a note if pieces are merged or left out."""

    blocks: dict[str, bytes]
    notes: list[str]


def fit_critical_path(rows: ExplorerRows, pieces: PathPieces | None, names: PageNames, budget_bytes: int) -> PagePath:
    """Encode the critical path, if there is one, in its share of the budget; kinds and names get numbers on the page."""
    if pieces is None:
        return PagePath({}, [])
    texts = PageNames()
    return fit_path(arrange_pieces(rows, range(len(rows.rows)), pieces, texts), texts, names, budget_bytes)


def fit_path(pieces: PagePieces, texts: PageNames, names: PageNames, budget_bytes: int) -> PagePath:
    """Encode a path, whole or with short neighbors merged, in its share of the budget; `texts` are those of its numbers."""
    if not len(pieces.row):
        return PagePath({}, [])
    for limit in LIMITS_NS:
        path = _merge_short_pieces(pieces, limit) if limit else pieces
        kind, name = _number_on_page(path, [*texts.numbers], names)
        start = fold_signs(take_differences(path.start))
        block = compress_block(encode_columns([path.row, start, path.length, kind, name]))
        if measure_block("critical", len(block)) <= budget_bytes * BYTES_OF_PATH:
            return PagePath({"critical": block}, _describe_merged(len(pieces.row), len(path.row), limit))
    return PagePath({}, ["the critical path does not fit on the page"])


def arrange_pieces(rows: ExplorerRows, chosen_rows: Sequence[int], pieces: PathPieces, texts: PageNames) -> PagePieces:
    """Arrange the pieces of paths through chosen rows by run and time, on the clock of the page.

    A piece of an unknown process is on row 0.
    """
    places: dict[tuple[str, int | None], tuple[int, int, int]] = {}
    runs: dict[str, int] = {}
    for number in chosen_rows:
        process = rows.rows[number].process
        data = process.data
        run = runs.setdefault(data.source.run, len(runs))
        for file in list_file_names(data):
            places.setdefault((file, data.source.pid), (number + 1, process.shift_ns - data.base_ns, run))
    on_page = [places.get(key, (0, -rows.begin_ns, 0)) for key in zip(pieces.source, pieces.pid, strict=True)]
    row_numbers, shift, run_numbers = np.array(on_page, np.int64).reshape(-1, 3).T
    start = np.array(pieces.ts_ns, np.int64) + shift
    texts.number_texts([""])
    name = texts.number_texts([name or "" for name in pieces.name])
    order = np.lexsort((start, run_numbers))
    columns = (row_numbers, start, np.array(pieces.dur_ns, np.int64), texts.number_texts(pieces.kind), name)
    return PagePieces(*(column[order] for column in columns))


def _merge_short_pieces(path: PagePieces, limit: int) -> PagePieces:
    """Merge short neighbors of a row: a merged piece has the kind of its longest member, and the name of all or none."""
    end, part = path.start + path.length, path.start // (LONGEST * limit)
    short = path.length < limit
    joins = short[1:] & short[:-1] & (path.row[1:] == path.row[:-1]) & (part[1:] == part[:-1])
    joins &= path.start[1:] - end[:-1] < limit
    opens = np.append(True, ~joins).nonzero()[0] if len(short) else np.empty(0, np.int64)
    if len(opens) == len(short):
        return path
    of_piece = np.repeat(np.arange(len(opens)), np.diff(opens, append=len(short)))
    longest = np.lexsort((-path.length, of_piece))[opens]
    low, high = np.minimum.reduceat(path.name, opens), np.maximum.reduceat(path.name, opens)
    start = path.start[opens]
    length = np.maximum.reduceat(end, opens) - start
    return PagePieces(path.row[opens], start, length, path.kind[longest], np.where(low == high, low, 0))


def _number_on_page(path: PagePieces, texts: list[str], names: PageNames) -> tuple[Ints, Ints]:
    """Number the kinds, and the names + 1 (0: none), of a path on the page; `texts` are those of its numbers."""
    name = names.number_texts([texts[number] for number in path.name.tolist()])
    kind = names.number_texts([texts[number] for number in path.kind.tolist()])
    return kind, np.where(path.name > 0, name + 1, 0)


def _describe_merged(whole: int, shown: int, limit: int) -> list[str]:
    """Describe how many pieces are merged; nothing if none are."""
    if whole == shown:
        return []
    short = format_quantity(limit, "ns")
    return [f"critical path: {whole:,} pieces in {shown:,}, as neighbors shorter than {short} are merged"]
