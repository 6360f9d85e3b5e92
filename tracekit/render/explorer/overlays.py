"""Memory on the page: the curve of each device, and the pieces of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.memory_pieces import HeldPieces, PieceSelection, select_memory_pieces
from tracekit.model.inputs.timeline import EngineState
from tracekit.render.escape import make_printable
from tracekit.render.explorer.blocks import compress_block, measure_block
from tracekit.render.explorer.processes import ExplorerRows, PageProcess
from tracekit.render.explorer.report_values import RankTable
from tracekit.render.explorer.tables import Numbering
from tracekit.render.explorer.varints import (
    encode_column_parts,
    encode_columns,
    take_differences,
    take_part_differences,
)

Ints = npt.NDArray[np.int64]

BYTES_OF_CURVES = 0.05
"""Share of the budget that curves of memory may take."""


def encode_memory_curves(rows: ExplorerRows, late_ns: RankTable, budget_bytes: int) -> tuple[dict[str, bytes], int]:
    """Encode the blocks `curve` of rows, the latest ranks first, while they fit: (compressed blocks, number left out)."""
    blocks: dict[str, bytes] = {}
    left, dropped = budget_bytes * BYTES_OF_CURVES, 0
    late = np.array([late_ns.get_value(row.process.data.source) or 0.0 for row in rows.rows])
    encoded = _encode_curves(rows)
    for number in np.argsort(-late, kind="stable").tolist():
        if number not in encoded:
            continue
        block = compress_block(encoded[number])
        size = measure_block(f"curve{number}", len(block))
        if size > left:
            dropped += 1
            continue
        left -= size
        blocks[f"curve{number}"] = block
    return blocks, dropped


def _encode_curves(rows: ExplorerRows) -> dict[int, bytes]:
    """Encode the curve of each row that has one."""
    curves = []
    for number, row in enumerate(rows.rows):
        time = row.read_times("curves", "curve.start")
        if len(time):
            # Of the points before the page begins, the last one is the level at its begin.
            first = max(int(np.searchsorted(time, 0, side="right")) - 1, 0)
            levels = [row.read_part("curves", f"curve.{name}")[first:] for name in ("allocated", "reserved")]
            curves.append((number, np.maximum(time[first:], 0), *levels))
    if not curves:
        return {}
    numbers, *columns = zip(*curves, strict=True)
    sizes = np.array(list(map(len, columns[0])), np.int64)
    time, allocated, reserved = map(np.concatenate, columns)
    parts = encode_column_parts([take_part_differences(time, sizes), allocated, reserved], sizes)
    return dict(zip(numbers, parts, strict=True))


BYTES_OF_PIECES = 0.25
"""Share of the budget that the pieces of all snapshots may take."""

MOST_FITS = 6
LEAST_PIECES = 64


def encode_memories(
    rows: ExplorerRows, numbering: Sequence[Numbering], engines: Sequence[EngineState], budget_bytes: int
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Encode the blocks `mem` of all snapshots: (their description in the head of the page, compressed blocks).

    A snapshot has no block if not even its merged pieces fit.
    """
    memories: list[dict[str, Any]] = []
    blocks: dict[str, bytes] = {}
    count = sum(len(snapshot.read_column("snapshot.peak")) for snapshot in rows.snapshots)
    left = budget_bytes * BYTES_OF_PIECES
    for snapshot in rows.snapshots:
        sizes = snapshot.read_column("snapshot.shown")
        ends = np.cumsum(sizes)
        for place, (first, last) in enumerate(zip((ends - sizes).tolist(), ends.tolist(), strict=True)):
            name = f"mem{len(memories)}"
            facts = {
                key.removeprefix("snapshot."): int(column[place])
                for key, column in snapshot.data.numbers.items()
                if key.startswith("snapshot.")
            }
            selection = _read_pieces(snapshot, slice(first, last), facts, numbering[snapshot.number].paths)
            selection, block = _fit_pieces(selection, facts, name, left / (count - len(memories)))
            if block is not None:
                blocks[name] = block
                left -= measure_block(name, len(block))
            marks = _list_engine_marks(engines, snapshot, facts)
            memories.append(_describe_memory(rows, snapshot, facts, selection) | {"marks": marks})
    return memories, blocks


def _list_engine_marks(
    engines: Sequence[EngineState], snapshot: PageProcess, facts: dict[str, int]
) -> list[tuple[int, str]]:
    """List the states of the engine in a snapshot: (time since its begin, state), the state at its begin first."""
    source, begin = snapshot.data.source, snapshot.data.base_ns + facts["start"]
    changes = [(e.ts_ns - begin, e.state) for e in engines if (e.run, e.source) == (source.run, source.name)]
    if not facts["timed"] or facts["host"]:
        return []
    before = [(0, state) for time, state in changes if time <= 0]
    return [*before[-1:], *(change for change in changes if 0 < change[0] <= facts["span"])]


def _read_pieces(snapshot: PageProcess, part: slice, facts: dict[str, int], paths: Ints) -> PieceSelection:
    """Read the pieces of one memory, with the paths of the page."""
    names = ("start", "life", "size", "path", "before", "holder", "more")
    start, life, size, path, before, holder, more = (snapshot.read_column(f"piece.{name}")[part] for name in names)
    pieces = HeldPieces(start, start + life, size, paths[path], before, holder, more + 1)
    return PieceSelection(pieces, facts["floor"] - 1, facts["hidden"])


def _fit_pieces(
    whole: PieceSelection, facts: dict[str, int], name: str, room: float
) -> tuple[PieceSelection, bytes | None]:
    """Merge small pieces until the block fits: (pieces, block); no block if it never does."""
    selection, most = whole, len(whole.pieces.start)
    for _ in range(MOST_FITS):
        block = compress_block(_encode_pieces(selection.pieces))
        size = measure_block(name, len(block))
        if size <= room:
            return selection, block
        most = min(most - 1, int(len(selection.pieces.start) * 0.9 * room / size))
        if most < LEAST_PIECES:
            break
        selection = select_memory_pieces(whole, facts["peak_time"], facts["span"], most)
    return selection, None


def _encode_pieces(pieces: HeldPieces) -> bytes:
    """Encode the pieces of one memory."""
    life = pieces.end - pieces.start
    start = take_differences(pieces.start)
    columns = [start, life, pieces.size, pieces.path, pieces.before, pieces.holder, pieces.allocations - 1]
    return encode_columns(columns)


def _describe_memory(
    rows: ExplorerRows, snapshot: PageProcess, facts: dict[str, int], selection: PieceSelection
) -> dict[str, Any]:
    """Describe one memory in the head of the page."""
    source = snapshot.data.source
    several = len(snapshot.read_column("snapshot.peak")) > 1
    label = f"GPU {facts['device'] - 1}" if facts["device"] else "GPU"
    if facts["host"]:
        label = "pinned host memory"
    start = snapshot.data.base_ns + facts["start"]
    joins = facts["timed"] and rows.is_on_clock(source, start, start + facts["span"])
    return {
        "file": make_printable(f"{source.name} · {label}" if several else source.name, 120),
        "rank": source.rank,
        "span": facts["span"],
        "timed": bool(facts["timed"]),
        "t0": facts["start"] + snapshot.shift_ns if joins else None,
        "peak": facts["peak"],
        "peak_t": facts["peak_time"],
        "pieces": facts["pieces"],
        "merged": selection.count_merged(),
        "floor": None if selection.floor < 0 else selection.floor,
        "hidden": selection.hidden,
    }
