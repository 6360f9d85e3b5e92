"""Holders of the memory that PyTorch counts, at chosen times: trainer, engine, graphs, and the cache.

At each time the sizes of all holders sum to the reserved bytes. The class of a pool is that at the end of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.memory_pieces import HOLDERS
from tracekit.model.tables.arrays import Array, Coded, make_nullable_numbers, select_all_rows
from tracekit.model.tables.keys import sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.memory.live import find_memory_purpose
from tracekit.process.memory.pools import PAUSABLE, POOL_CLASSES, list_memory_pools
from tracekit.process.memory.replay import CODE, MAX_BYTES, SEGMENT_SIGNS, Replay, read_ints
from tracekit.process.memory.space import DEFAULT_POOL, read_pools
from tracekit.process.memory.survivors import find_step_ends
from tracekit.process.name_filters import look_up_name_codes

Ints = npt.NDArray[np.int64]

_OF_CLASS = {
    "engine weights": "weights",
    "engine KV cache": "kv_cache",
    "paused region": "regions",
    "graph": "graphs",
    "communication": "communication",
    "unknown": "unknown",
}
_STATE = ("parameter", "gradient", "optimizer")
_TRANSIENT = ("activation", "temporary", "input", "autograd")
_DIRECTLY = {
    "engine_weights": "weights",
    "kv_cache": "kv_cache",
    "graph": "graphs",
    "communication": "communication",
}
"""Holders in the default pool of purposes by call stacks."""
_KNOWN = ("recorded", "metadata", "stack")
"""Bases of a category that names the use of a tensor; a stage or a compiled graph does not."""

MAX_MOMENTS = 400
"""Most ends of steps of one snapshot: the last ones."""


def list_memory_holders(trace: Trace, replay: Replay) -> dict[str, Array] | None:
    """List the bytes of each holder before the history, at the longest pauses, at the end of each step, at the peak and at the end.

    The columns are moment, step, at_ns, until_ns, one per holder, counted_bytes, and pausable_bytes, which may be unmapped.
    Moments at which more is in use than reserved contradict themselves and are left out. None without segments.
    """
    if replay.reserved is None:
        return None
    entries, moments, steps = _choose_moments(trace, replay)
    finder = _make_class_finder(trace, replay)
    in_use, requested = _sum_pieces_by_holder(trace, replay, entries, finder)
    reserved = _sum_segments(trace, replay, entries, finder)
    counted = reserved.sum(axis=0)
    free_in_pools = np.maximum(reserved - requested, 0)[_MAY_BE_UNMAPPED].sum(axis=0)
    in_use[HOLDERS.index("pool_cache")] = free_in_pools
    in_use[HOLDERS.index("cache")] = counted - in_use.sum(axis=0)
    sound = (in_use[HOLDERS.index("cache")] >= 0) & (reserved >= 0).all(axis=0)
    assert (in_use.sum(axis=0) == counted).all(), "holders sum to the reserved bytes"
    times = [_read_time(replay, entry) for entry in entries.tolist()]
    table: dict[str, Array] = {
        "moment": Coded(np.array([HOLDER_MOMENTS.index(name) for name in moments], np.int64), HOLDER_MOMENTS),
        "step": make_nullable_numbers(steps),
        "at_ns": make_nullable_numbers(times),
        "until_ns": make_nullable_numbers([_read_time(replay, entry + 1) for entry in entries.tolist()]),
        **{f"{name}_bytes": in_use[place] for place, name in enumerate(HOLDERS)},
        "counted_bytes": counted,
        "pausable_bytes": reserved[_MAY_BE_UNMAPPED].sum(axis=0),
    }
    return select_all_rows(table, sound)


_MAY_BE_UNMAPPED = np.array([name in PAUSABLE for name in POOL_CLASSES])

HOLDER_MOMENTS = ("begin", "pause", "step end", "peak", "end")
"""Moments: before the first entry | nothing is allocated or freed for long | a step ends | most is requested | the end."""

MAX_PAUSES, LEAST_PAUSE_NS = 100, 1_000_000
"""Most pauses of one snapshot: the longest ones. Logs print lines in pauses, which shows the holders at a line."""


def _read_time(replay: Replay, entry: int) -> int | None:
    """Read the time of an entry (-1: just before the first one); None without one."""
    if replay.timed and entry == -1 and len(replay.ts_ns):
        return int(replay.ts_ns[0]) - 1
    return int(replay.ts_ns[entry]) if replay.timed and 0 <= entry < len(replay.ts_ns) else None


def _find_pauses(replay: Replay) -> Ints:
    """Find the entries before the longest pauses, in order."""
    length = np.diff(replay.ts_ns)
    longest = np.argsort(-length, kind="stable")[:MAX_PAUSES]
    return np.sort(longest[length[longest] >= LEAST_PAUSE_NS])


def _choose_moments(trace: Trace, replay: Replay) -> tuple[Ints, list[str], list[int | None]]:
    """Choose the entries of the history to look at, in order: (entries, moments, steps)."""
    last, peak, file_step = len(replay.rows) - 1, replay.peak(), trace.source.step
    chosen: list[tuple[int, str, int | None]] = []
    ends, numbers = find_step_ends(trace)
    if replay.timed and len(ends) >= 2 and len(replay.rows):
        entries = np.searchsorted(replay.ts_ns, ends, "right") - 1
        chosen += zip(entries.tolist(), ["step end"] * len(entries), numbers, strict=True)
        chosen = chosen[-MAX_MOMENTS:]
    if replay.timed and len(replay.rows):
        chosen += [(entry, "pause", file_step) for entry in _find_pauses(replay).tolist()]
        chosen.append((-1, "begin", file_step))
    if len(replay.rows) and peak != last:
        chosen.append((peak, "peak", file_step))
    chosen.append((last, "end", file_step))
    chosen.sort(key=lambda moment: (moment[0], HOLDER_MOMENTS.index(moment[1])))
    return np.array([entry for entry, _, _ in chosen], np.int64), [m for _, m, _ in chosen], [s for _, _, s in chosen]


ClassFinder = Callable[[Ints, Ints], Ints]
"""Find the code of the pool class of each (address, row of `allocations` or -1)."""


def _make_class_finder(trace: Trace, replay: Replay) -> ClassFinder:
    """Make the function that finds pool classes: by the recorded pool, or the segment at the end around an address."""
    pools = list_memory_pools(trace, replay)
    names, classes = pools["pool"], pools["class"]
    assert isinstance(names, Coded), "pools have names"
    assert isinstance(classes, Coded), "classes have names"
    class_of = {
        names.texts[pool]: code for pool, code in zip(names.codes.tolist(), classes.codes.tolist(), strict=True)
    }
    segments = replay.segments
    start = read_ints(trace, "memory_segments", "address", segments)
    order = np.argsort(start, kind="stable")
    start = start[order]
    stop = start + np.clip(read_ints(trace, "memory_segments", "size_bytes", segments), 0, MAX_BYTES)[order]
    of_segments = _code_classes(read_pools(trace, "memory_segments", segments[order]), class_of)
    recorded = trace.texts("allocations", "pool")

    def find_classes(address: Ints, row: Ints) -> Ints:
        """Find the code of the pool class of each address."""
        of_texts = _code_classes(Coded(np.arange(len(recorded.texts)), recorded.texts), class_of)
        code = look_up_name_codes(recorded, row)
        by_record = np.append(of_texts, 0)[code]
        if not len(start):
            return by_record
        inside = np.searchsorted(start, address, side="right") - 1
        within = (inside >= 0) & (address < stop[inside])
        return np.where((code < 0) & within, of_segments[inside], by_record)

    return find_classes


def _code_classes(pools: Coded, class_of: Mapping[str, int]) -> Ints:
    """Code the classes of pools. A pool without a segment at the end is unknown, unless a capture made it."""
    others = {True: POOL_CLASSES.index("graph"), False: POOL_CLASSES.index("unknown")}
    is_default = [text == DEFAULT_POOL for text in pools.texts]
    classes = [
        0 if default else class_of.get(text, others[text.endswith(",0")])
        for text, default in zip(pools.texts, is_default, strict=True)
    ]
    codes: Ints = np.array([*classes, 0], np.int64)[pools.codes]
    return codes


def find_piece_holders(trace: Trace, replay: Replay) -> Ints:
    """Find the holder of each piece of memory: its place in `HOLDERS`."""
    of_class = _make_class_finder(trace, replay)(replay.pieces.address, replay.pieces.row)
    return _place_pieces(trace, replay, of_class)


def _place_pieces(trace: Trace, replay: Replay, of_class: Ints) -> Ints:
    """Find the holder of each piece by the class of its pool; in the default pool by its category."""
    pieces = replay.pieces
    category, basis = find_memory_purpose(trace, replay, np.arange(len(pieces.size)))
    of_category = np.array([*(_place_category(text) for text in category.texts), _OTHER], np.int64)[category.codes]
    is_known = np.array([name in _KNOWN for name in basis.texts], np.bool_)[basis.codes]
    of_default = np.where(is_known, of_category, _OTHER)
    return np.where(of_class == 0, of_default, _HOLDER_OF_CLASS[of_class])


def _sum_pieces_by_holder(trace: Trace, replay: Replay, entries: Ints, find_classes: ClassFinder) -> tuple[Ints, Ints]:
    """Sum the requested bytes in use after each entry: by holder, and by pool class."""
    pieces = replay.pieces
    of_class = find_classes(pieces.address, pieces.row)
    holder = _place_pieces(trace, replay, of_class)
    first, stop = (np.searchsorted(entries, at, "left") for at in (pieces.born, pieces.died))
    in_use, requested = (np.zeros((count, len(entries) + 1), np.int64) for count in (len(HOLDERS), len(POOL_CLASSES)))
    for table, code in ((in_use, holder), (requested, of_class)):
        np.add.at(table, (code, first), pieces.size)
        np.subtract.at(table, (code, stop), pieces.size)
    return np.cumsum(in_use, axis=1)[:, :-1], np.cumsum(requested, axis=1)[:, :-1]


_OTHER = HOLDERS.index("other")
_HOLDER_OF_CLASS = np.array([HOLDERS.index(_OF_CLASS.get(name, "other")) for name in POOL_CLASSES], np.int64)


def _place_category(category: str) -> int:
    """Return the place of the holder of a tensor category.

    >>> [HOLDERS[_place_category(name)] for name in ("PARAMETER", "optimizer_state", "activation", "other")]
    ['trainer_state', 'trainer_state', 'activations', 'other']
    """
    name = category.lower()
    if name.startswith(_STATE):
        return HOLDERS.index("trainer_state")
    if name in _DIRECTLY:
        return HOLDERS.index(_DIRECTLY[name])
    return HOLDERS.index("activations") if name.startswith(_TRANSIENT) else _OTHER


def _sum_segments(trace: Trace, replay: Replay, entries: Ints, find_classes: ClassFinder) -> Ints:
    """Sum the reserved bytes after each entry by pool class, backward from the segments at the end."""
    segments = replay.segments
    size = read_ints(trace, "memory_segments", "size_bytes", segments)
    size = np.where((size >= 0) & (size < MAX_BYTES), size, 0)
    none = np.full(len(segments), -1, np.int64)
    at_end = find_classes(read_ints(trace, "memory_segments", "address", segments), none)
    reserved = np.zeros((len(POOL_CLASSES), len(entries)), np.int64)
    reserved += sum_by_group(at_end, size, len(POOL_CLASSES))[:, None]
    signs = np.zeros(len(CODE), np.int64)
    for name, sign in SEGMENT_SIGNS.items():
        signs[CODE[name]] = sign
    moved = signs[replay.action].nonzero()[0]
    change = signs[replay.action[moved]] * replay.size[moved]
    later = np.zeros((len(POOL_CLASSES), len(entries) + 1), np.int64)
    of_class = find_classes(replay.address[moved], replay.rows[moved])
    np.add.at(later, (of_class, np.searchsorted(entries, moved, "left")), change)
    # A change before or at an entry is in its level; the sum of those after it is undone.
    after = later[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    level: Ints = reserved - after
    return level
