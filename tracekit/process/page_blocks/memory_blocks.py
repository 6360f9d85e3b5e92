"""Data of the explorer page from one memory snapshot: every piece with its lifetime, size and stack."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.memory_pieces import HeldPieces, PieceSelection, select_memory_pieces
from tracekit.model.inputs.page_blocks import PageBlocks
from tracekit.model.tables.keys import find_distinct, look_up_keys
from tracekit.model.trace import Trace
from tracekit.process.memory.call_sites import MAX_DEPTH, format_frames, select_shown_frames
from tracekit.process.memory.holders import find_piece_holders
from tracekit.process.memory.live import find_allocation_stacks
from tracekit.process.memory.replay import NEVER, Replay, replay_all_devices
from tracekit.process.page_blocks.call_paths import add_call_paths, shorten_page_name
from tracekit.process.page_blocks.columns import PageTexts, PathTable, narrow_numbers

Ints = npt.NDArray[np.int64]

MAX_PIECES = 100_000
"""Pieces of one device at most; the smallest ones are merged."""


class _Clock(NamedTuple):
    """Times of a history: `begin_ns`, the number of ns until its end, and the time of each entry since the begin."""

    begin_ns: int
    span: int
    entry: Ints


def build_memory_blocks(trace: Trace) -> PageBlocks:
    """Build the data of a memory snapshot; no columns for a trace without one."""
    if not trace.has("allocations") and not trace.has("blocks"):
        return PageBlocks(trace.source, 0, {})
    names, paths = PageTexts(), PathTable()
    replays = trace.derived(replay_all_devices)
    stacks = [_find_piece_stacks(trace, replay) for replay in replays]
    used = find_distinct(np.concatenate((np.empty(0, np.int64), *stacks)))
    number = _number_stack_paths(trace, used[used != _NO_STACK], names, paths)
    clocks = [_make_clock(replay) for replay in replays]
    base = min((clock.begin_ns for clock in clocks), default=0)
    parts = [
        _describe_replay(
            replay,
            clock,
            base,
            np.append(number, 0)[np.searchsorted(used, stack)],
            find_piece_holders(trace, replay),
        )
        for replay, clock, stack in zip(replays, clocks, stacks, strict=True)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    numbers = {name: narrow_numbers(column) for name, column in {**columns, **paths.make_columns()}.items()}
    return PageBlocks(trace.source, base, numbers, names.list_texts())


_NO_STACK = np.iinfo(np.int64).max
"""Stack of a piece whose stack is unknown; sorts last."""


def _find_piece_stacks(trace: Trace, replay: Replay) -> Ints:
    """Find the stack that allocated each piece. Of memory freed in the history only the freeing stack is recorded."""
    pieces = replay.pieces
    stack = find_allocation_stacks(trace, pieces.row, pieces.block)
    return np.where(stack.missing | ((pieces.row < 0) & (pieces.block < 0)), _NO_STACK, stack.values)


def _number_stack_paths(trace: Trace, stacks: Ints, names: PageTexts, paths: PathTable) -> Ints:
    """Number the path of each stack, the frames that the report shows: number + 1, 0 for a stack without frames."""
    rows = select_shown_frames(trace, stacks)
    key = trace.numbers("stacks", "stack")[rows]
    place = np.arange(len(key))
    begins = np.append(True, key[1:] != key[:-1])[: len(key)].nonzero()[0]
    depth = place - np.repeat(begins, np.diff(np.append(begins, len(key))))
    shown = depth < MAX_DEPTH
    name = names.add_column(format_frames(trace, rows), shorten_page_name)
    parent = np.where(depth[shown] > 0, place[: int(shown.sum())] - 1, -1)
    of_frame = add_call_paths(parent, name[shown], paths)
    innermost = np.append(key[shown][1:] != key[shown][:-1], True)[: len(of_frame)]
    found, is_there = look_up_keys(key[shown][innermost], stacks)
    return np.where(is_there, np.append(of_frame[innermost], -1)[found] + 1, 0)


def _make_clock(replay: Replay) -> _Clock:
    """Make the clock of a history, on which no two changes are at one time: later ones of an instant follow by 1 ns each.

    The history begins 1 ns before its first change and ends 1 ns after its last.
    """
    pieces = replay.pieces
    moments = np.concatenate((pieces.born[pieces.born >= 0], pieces.died[pieces.died < NEVER]))
    changes = find_distinct(moments)
    if not len(changes):
        return _Clock(int(replay.ts_ns[0]) if replay.timed and len(replay.ts_ns) else 0, 1, np.zeros(0, np.int64))
    order = np.arange(len(changes))
    time = np.maximum.accumulate(replay.ts_ns[changes] - order) + order
    entry = np.zeros(len(replay.ts_ns), np.int64)
    entry[changes] = time - time[0] + 1
    return _Clock(int(time[0]) - 1, int(time[-1] - time[0]) + 2, entry)


def _describe_replay(replay: Replay, clock: _Clock, base: int, path: Ints, holder: Ints) -> dict[str, Ints]:
    """Describe the memory of one device and its pieces."""
    pieces, peak = replay.pieces, replay.peak()
    entry = np.append(clock.entry, 0)
    start = np.where(pieces.born >= 0, entry[pieces.born], 0)
    ends = pieces.died < NEVER
    end = np.where(ends, entry[np.where(ends, pieces.died, -1)], clock.span + 1)
    order = np.argsort(start, kind="stable")
    before, once = (pieces.born < 0).astype(np.int64), np.ones(len(start), np.int64)
    columns = (start, end, pieces.size, path, before, holder, once)
    whole = PieceSelection(HeldPieces(*(column[order] for column in columns)), -1, 0)
    peak_time = int(entry[peak]) if peak >= 0 else 0
    shown = select_memory_pieces(whole, peak_time, clock.span, MAX_PIECES)
    facts = {
        "host": int(replay.memory == "host"),
        "device": 0 if replay.device is None else replay.device + 1,
        "timed": int(replay.timed),
        "start": clock.begin_ns - base,
        "span": clock.span,
        "peak": replay.get_requested_bytes(peak),
        "peak_time": peak_time,
        "pieces": len(start),
        "floor": shown.floor + 1,
        "hidden": shown.hidden,
        "shown": len(shown.pieces.start),
    }
    of_piece = shown.pieces
    return {
        **{f"snapshot.{name}": np.array([value], np.int64) for name, value in facts.items()},
        "piece.start": of_piece.start,
        "piece.life": of_piece.end - of_piece.start,
        "piece.size": of_piece.size,
        "piece.path": of_piece.path,
        "piece.before": of_piece.before,
        "piece.holder": of_piece.holder,
        "piece.more": of_piece.allocations - 1,
    }
