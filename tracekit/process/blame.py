"""Who held a device back: for every idle nanosecond the deepest thing recorded then of whoever launched the next work.

Until the launch of the next op has returned, that is what its thread is in. A thread that waits, or of which nothing
but its step or stage is recorded, is followed to the others that feed devices or run the program. From then on the
device holds itself up. What happened at once is summed by its path of names, from the outermost to the innermost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, beginning, covered, union, union_all
from tracekit.model.keys import (
    by_group,
    distinct,
    first_of_each,
    is_one_of,
    numbered,
    of_arrays,
    summed,
    sums_of,
)
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    at_rows,
    repeated_number,
    stacked,
    trimmed_all,
)
from tracekit.model.tables.slots import HOLDERS, OTHER
from tracekit.model.trace import Trace
from tracekit.process.by_name import narrow
from tracekit.process.host_rows import HOLDER, HostRows, host_rows, labels
from tracekit.process.idle import DeviceIdle
from tracekit.process.idle_tables import idle_windows
from tracekit.process.launches import Launches, launches
from tracekit.process.thread_axis import Segments, divided

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_THREADS = 4
"""So many other threads are looked at while the launching one waits: those that run most."""

MAX_DEPTH = 200
"""Deeper rows count as the one at this depth."""

MAX_NODES = 300
"""Most places of one source in the tree of what held its devices back: those with most idle time in them."""

SMALL_SHARE = 0.002
"""A place with less than this share of the idle time of all devices is among the others of the place that encloses it."""

MAX_ROWS = 1_000
"""Most rows of one source, those of other places beyond it: the largest."""

SUMMED = ("gap_count", "idle_ns")

NOTHING = "(nothing recorded)"
ON_DEVICE = {
    "sync": "(waiting for another stream)",
    "kernel_wait": "(starting up)",
    "": "(not begun, unknown why)",
}

KEEPING = ("sync", "kernel_wait")
"""Causes of idleness that keep a device from what was launched."""

_WORKS = np.isin(
    HOLDERS, ("python", "op", "call", "first_call", "gc", "range", "sample", "off_cpu")
)
"""What another thread may be in that tells why the launching one waits."""


class _Leaves(NamedTuple):
    """Idle segments of one device in order of time: the `row` of `HostRows` each is in, the `holder`, and the `note`.

    `note` is a code into texts that stand below the row, -1 for none: of what the device did, or the neighbours of nothing.
    """

    start: Ints
    end: Ints
    row: Ints
    holder: npt.NDArray[np.int8]
    note: npt.NDArray[np.int32]


def idle_blame(trace: Trace, devices: Sequence[DeviceIdle]) -> dict[str, dict[str, Array]]:
    """The tables `idle_blame` and `idle_frames`; over rows of a window the times add up to its idle time, exactly."""
    devices = [idle for idle in devices if len(idle.gaps.start)]
    if not devices:
        return {"idle_blame": {}, "idle_frames": {}}
    pieces = [_pieces(trace, idle) for idle in devices]
    host = host_rows(trace, _asked(pieces))
    notes: dict[str, int] = {}
    leaves = []
    for idle in devices:
        leaves.append(_leaves(trace, host, idle, pieces.pop(0), notes))
    lengths = [len(of_device.start) for of_device in leaves]
    columns = leaves[0]
    if len(leaves) > 1:
        columns = _Leaves(*map(np.concatenate, zip(*leaves, strict=True)))
    tree, node = _tree(host, columns, tuple(notes))
    del host
    tree, node = _pruned(tree, node, columns.end - columns.start)
    parts = []
    nodes = np.split(node, np.cumsum(lengths)[:-1])
    for idle, of_device, of_node in zip(devices, leaves, nodes, strict=True):
        sums = _by_window(trace, idle, of_device, of_node)
        parts.append({"device": repeated_number(idle.device, len(sums["idle_ns"])), **sums})
    rows, tree = _bounded(stacked(parts), tree)
    return {"idle_blame": trimmed_all(rows), "idle_frames": trimmed_all(_frames(tree))}


# What each nanosecond was spent in


class _Pieces(NamedTuple):
    """The idle time of one device in pieces that no edge of a window divides, of which each is in one gap.

    In those of `waits` the device waits for its host, in those of `late` it has what it was to begin; `why` is what
    keeps it: a place in `KEEPING`, -1 for unknown.
    """

    waits: Segments
    late: Segments
    why: npt.NDArray[np.int8]


def _pieces(trace: Trace, idle: DeviceIdle) -> _Pieces:
    """The idle time of one device, by whether its host has launched what comes next."""
    thread, ready = _launching(trace, idle)
    gaps, edges = idle.gaps, _window_edges(trace, idle)
    place = np.arange(len(gaps.start))
    waits = Segments(gaps.start, ready, thread, place)
    waits = _cut_at(_at_places(waits, np.flatnonzero(ready > gaps.start)), edges)
    late = Segments(ready, gaps.end, thread, place)
    late = _cut_at(_at_places(late, np.flatnonzero(gaps.end > ready)), edges)
    causes = [idle.causes[name] for name in KEEPING]
    late = _cut_at(late, distinct(np.concatenate([edge for cause in causes for edge in cause])))
    why = np.full(len(late.start), -1, np.int8)
    for number, cause in enumerate(causes):
        why[covered(cause, late.start, late.end) > 0] = number
    return _Pieces(waits, late, why)


def _asked(pieces: Sequence[_Pieces]) -> Intervals:
    """When it is asked what the host did."""
    parts = []
    for waits, late, why in pieces:
        unknown = np.flatnonzero(why < 0)
        parts += [union(waits.start, waits.end), union(late.start[unknown], late.end[unknown])]
    return union_all(parts)


def _at_places(whole: Segments, places: Ints) -> Segments:
    """Some of the segments."""
    return Segments(*(column[places] for column in whole))


def _leaves(
    trace: Trace, host: HostRows, idle: DeviceIdle, pieces: _Pieces, notes: dict[str, int]
) -> _Leaves:
    """The idle segments of one device."""
    waits = pieces.waits
    part, row = _followed(trace, host, idle, waits)
    has_row = np.append(row, 0)[: len(row)] >= 0
    holder = np.full(len(row), HOLDER["nothing"], np.int8)
    holder[has_row] = host.holder[row[has_row]]
    only_frame = np.zeros(len(row), np.bool_)
    only_frame[has_row] = host.frame[row[has_row]]
    holder[only_frame] = HOLDER["nothing"]
    note = np.full(len(row), -1, np.int32)
    silent = np.flatnonzero(holder == HOLDER["nothing"])
    note[silent] = _neighbours(host, waits.thread[part.origin[silent]], part, silent, notes)
    parts = [
        list(each)
        for each in (
            _Leaves(part.start, part.end, row, holder, note),
            *_on_device(host, pieces, notes),
        )
    ]
    del part, row, holder, note, waits
    order = np.argsort(np.concatenate([each[0] for each in parts]), kind="stable")
    columns: list[Any] = []
    for _ in _Leaves._fields:
        # Each column is let go of before the next is put together.
        columns.append(np.concatenate([each.pop(0) for each in parts])[order])
    in_order = _Leaves(*columns)
    total = int((in_order.end - in_order.start).sum())
    assert total == idle.gaps.total, "each idle nanosecond once"
    return in_order


def _launching(trace: Trace, idle: DeviceIdle) -> tuple[Ints, Ints]:
    """Per gap (the thread that launched the next work of which that is known, until when it had to).

    That is when the launching call returned; without any launch before the gap ends, when it ends. Where no work
    follows, the thread of the last; -1 where no launch is known at all.
    """
    links: Launches = trace.derived(launches)
    issued = np.where(links.call >= 0, links.call, links.op)
    rows = idle.rows[links.linked[idle.rows]]
    gaps, after = idle.gaps, idle.after
    if not len(rows):
        return np.full(len(after), -1, np.int64), gaps.end
    start = trace.numbers("device_ops", "ts_ns")[rows]
    order = np.argsort(start, kind="stable")
    place = np.minimum(np.searchsorted(start[order], gaps.end), len(rows) - 1)
    next_op = np.where((after >= 0) & links.linked[after], after, rows[order][place])
    thread = trace.numbers("host_ops", "thread")[issued[next_op]].astype(np.int64)
    call = links.call[after]
    returned = trace.numbers("host_ops", "ts_ns")[call] + trace.numbers("host_ops", "dur_ns")[call]
    ready = np.where(call >= 0, returned, links.ts_ns[after])
    is_linked = (after >= 0) & links.linked[after]
    return thread, np.where(is_linked, np.clip(ready, gaps.start, gaps.end), gaps.end)


def _window_edges(trace: Trace, idle: DeviceIdle) -> Ints:
    """When any window begins or ends."""
    _, start, end = idle_windows(trace, idle)
    return distinct(np.concatenate((start, end)))


def _cut_at(whole: Segments, edges: Ints) -> Segments:
    """The segments in pieces that no edge divides."""
    place, edge = beginning(edges, whole.start + 1, whole.end)
    if not len(place):
        return whole
    start, piece = divided(whole.start, place, edges[edge])
    following = np.append(start[1:], 0)[: len(start)]
    is_last = np.append(piece[1:] != piece[:-1], True)[: len(piece)]
    end = np.where(is_last, whole.end[piece], following)
    return Segments(start, end, whole.thread[piece], whole.origin[piece])


def _followed(
    trace: Trace, host: HostRows, idle: DeviceIdle, waits: Segments
) -> tuple[Segments, Ints]:
    """(pieces of the waits, `origin` the place in `waits`; the row each was spent in, -1 for nothing)."""
    part = host.cut(waits)
    row = host.at(part.thread, part.start)
    done, rows = [], []
    is_open = (row < 0) | (host.waits | host.frame)[row] if len(host.start) else row < 0
    done.append(Segments(*(column[~is_open] for column in part)))
    rows.append(row[~is_open])
    part, own = Segments(*(column[is_open] for column in part)), row[is_open]
    second = np.full(len(own), -1, np.int64)
    for other in _others(trace, host, idle) if len(own) else ():
        at_other = host.cut(part._replace(thread=np.full(len(own), other)))
        own, second = own[at_other.origin], second[at_other.origin]
        row = host.at(at_other.thread, at_other.start)
        row[at_other.thread == part.thread[at_other.origin]] = -1
        holder = np.append(host.holder, -1)[row]
        works = (row >= 0) & _WORKS[holder] & ~np.append(host.waits | host.frame, True)[row]
        second = np.where((second < 0) & (row >= 0), row, second)
        thread, origin = part.thread[at_other.origin], part.origin[at_other.origin]
        part = Segments(at_other.start, at_other.end, thread, origin)
        done.append(Segments(*(column[works] for column in part)))
        rows.append(row[works])
        part = Segments(*(column[~works] for column in part))
        own, second = own[~works], second[~works]
    done.append(part)
    rows.append(np.where(own >= 0, own, second))
    pieces = Segments(*map(np.concatenate, zip(*done, strict=True)))
    return pieces, np.concatenate(rows)


def _others(trace: Trace, host: HostRows, idle: DeviceIdle) -> list[int]:
    """The threads that are looked at while another one waits: those that launch work of the device, then the busiest."""
    count = int(host.thread.max(initial=-1)) + 1
    links: Launches = trace.derived(launches)
    issued = np.where(links.call >= 0, links.call, links.op)[idle.rows]
    feeds = np.zeros(count, np.int64)
    by = trace.numbers("host_ops", "thread")[issued[issued >= 0]]
    np.add.at(feeds, by[by < count], 1)
    works = _WORKS[host.holder] & ~host.waits & ~host.frame
    own = np.bincount(host.thread[works], minlength=count)
    order = np.lexsort((np.arange(count), -own, -feeds))
    busiest: list[int] = order[own[order] > 0][:MAX_THREADS].tolist()
    return busiest


def _neighbours(
    host: HostRows, thread: Ints, part: Segments, rows: Ints, notes: dict[str, int]
) -> Ints:
    """The notes of segments in which nothing was recorded: what ended before on their thread, and what begins after."""
    note = np.full(len(rows), notes.setdefault(NOTHING, len(notes)), np.int64)
    recorded = np.flatnonzero(host.recorded)
    begin = host.begin[recorded]
    if not len(begin) or not len(rows):
        return note
    place = np.searchsorted(begin, host.axis.lift(thread, part.start[rows]), side="right")
    recorded = np.append(recorded, -1)
    before = _outermost(host, recorded[place - 1])
    after = recorded[place]
    both = []
    for row in (before, after):
        same = (row >= 0) & (host.thread[row] == thread)
        both.append(np.where(same, host.name.codes[row].astype(np.int64), -1))
    number, first = of_arrays(both)
    texts = []
    for left, right in zip(both[0][first].tolist(), both[1][first].tolist(), strict=True):
        names = [_neighbour(host.name.texts[code]) if code >= 0 else "" for code in (left, right)]
        told = [
            f"{word} {name}" for word, name in zip(("after", "before"), names, strict=True) if name
        ]
        texts.append(f"(nothing recorded, {', '.join(told)})" if told else NOTHING)
    numbers = np.array([notes.setdefault(text, len(notes)) for text in texts], np.int64)
    return numbers[number]


def _neighbour(name: str) -> str:
    """A name as that of a neighbour; nothing for a launch, which every neighbour may be."""
    return "" if _LAUNCH.match(name) else short_name(name)


def _outermost(host: HostRows, rows: Ints) -> Ints:
    """The outermost row around each that is no step or stage and no range around others: what a person would name."""
    row = rows.copy()
    active = np.flatnonzero(row >= 0)
    for _ in range(MAX_DEPTH):
        above = host.tree.parent[row[active]]
        goes = above >= 0
        goes[goes] = np.isin(host.holder[above[goes]], [HOLDER[name] for name in ("op", "call")])
        active = active[goes]
        if not len(active):
            break
        row[active] = above[goes]
    return row


def _on_device(host: HostRows, pieces: _Pieces, notes: dict[str, int]) -> list[_Leaves]:
    """The segments after the launch, by why the device did not begin.

    Where that is not known and the launching thread is in a call that copies or asks for memory, it is that call.
    """
    late, why = pieces.late, pieces.why
    note_of = [-1] * (len(KEEPING) + 1)
    for number, name in enumerate(KEEPING):
        if (why == number).any():
            note_of[number] = notes.setdefault(ON_DEVICE[name], len(notes))
    known, unknown = np.flatnonzero(why >= 0), np.flatnonzero(why < 0)
    holder = np.full(len(known), HOLDER["device"], np.int8)
    leaves = _Leaves(
        late.start[known],
        late.end[known],
        np.full(len(known), -1, np.int64),
        holder,
        np.array(note_of, np.int32)[why[known]],
    )
    if not len(unknown):
        return [leaves]
    part = host.cut(_at_places(late, unknown))
    rows = host.at(part.thread, part.start)
    rows[~np.append(host.holds, False)[rows]] = -1
    holders = np.append(host.holder, np.int8(HOLDER["device"]))[rows]
    note = np.where(rows < 0, np.int32(notes.setdefault(ON_DEVICE[""], len(notes))), np.int32(-1))
    return [_Leaves(part.start, part.end, rows, holders, note), leaves]


# Summed by path


class _Tree(NamedTuple):
    """Places by path: the `parent` of each (-1: none; parents come first), its `text` and `holder`."""

    parent: Ints
    text: Coded
    holder: Ints


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANCE = re.compile(r"(nn\.Module: .*)_\d+\Z")
_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch")
_NUMBER = re.compile(r"#?\d+")

MAX_TEXT = 160
"""So much of a name stands in the tree."""


def short_name(name: str) -> str:
    """A name without what tells one object from the next.

    >>> short_name("nn.Module: Linear_12"), short_name("<built-in method mm of type object at 0x7f>")
    ('nn.Module: Linear', '<built-in method mm of type object>')
    """
    text = _ADDRESS.sub("", name[: 2 * MAX_TEXT])
    if (instance := _INSTANCE.match(text)) is not None:
        text = instance[1]
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _names(host: HostRows, rows: Ints) -> Coded:
    """The names of these rows as they stand in the tree: of all rows ranges that differ in numbers alone are as one."""
    is_range = np.zeros(len(host.name.texts) + 1, np.bool_)
    is_range[host.name.codes[host.holder == HOLDER["range"]]] = True
    plain: dict[str, list[str]] = {}
    ranges = [host.name.texts[code] for code in np.flatnonzero(is_range[:-1]).tolist()]
    for text in ([""] if is_range[-1] else []) + ranges:
        plain.setdefault(_NUMBER.sub("#", text), []).append(text)
    pooled = {text: like for like, texts in plain.items() if len(texts) > 1 for text in texts}
    names = Coded(host.name.codes[rows], host.name.texts)
    return labels(names, lambda name: short_name(pooled.get(name, name)))


MOST_LEVELS = 1_000
"""So many levels are gone up one by one; where rows lie deeper, all are taken."""


def _with_enclosing(parent: Ints, rows: Ints) -> Ints:
    """These rows and all that enclose them, ascending; all rows where they lie very deep."""
    is_in = np.zeros(len(parent), np.bool_)
    for _ in range(MOST_LEVELS):
        if not len(rows):
            return np.flatnonzero(is_in)
        is_in[rows] = True
        above = parent[rows]
        rows = distinct(above[(above >= 0) & ~is_in[above]])
    return np.arange(len(parent))


def _tree(host: HostRows, leaves: _Leaves, notes: tuple[str, ...]) -> tuple[_Tree, Ints]:
    """(the places of all segments and what encloses them, the place of each segment)."""
    is_in_row = leaves.row >= 0
    near = _with_enclosing(host.tree.parent, distinct(leaves.row[is_in_row]))
    above = host.tree.parent[near]
    parent = np.where(above >= 0, np.searchsorted(near, above), -1)
    leaf = np.full(len(leaves.row), -1, np.int64)
    leaf[is_in_row] = np.searchsorted(near, leaves.row[is_in_row])
    names, holder_of = _names(host, near), host.holder[near]
    texts = (*names.texts, *notes, "")
    depth, top = _depths(parent)
    used = np.zeros(len(depth), np.bool_)
    used[top[leaf[is_in_row]]] = True
    for level in range(int(depth.max(initial=0)), 0, -1):
        at_level = np.flatnonzero(used & (depth == level)) if level <= MAX_DEPTH else ()
        used[parent[at_level]] = True
    rows = np.flatnonzero(used)
    rows = rows[np.argsort(depth[rows], kind="stable")]
    bounds = np.searchsorted(depth[rows], np.arange(int(depth[rows].max(initial=-1)) + 2))
    place = np.full(len(depth) + 1, -1, np.int64)
    parents, labels_, holders = [], [], []
    width, count = len(texts), 0
    label = np.where(names.codes < 0, width - 1, names.codes)
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        at_level = rows[low:high]
        above = place[parent[at_level]]
        key = ((above + 1) * width + label[at_level]) * len(HOLDERS) + holder_of[at_level]
        keys, number = numbered(key)
        place[at_level] = count + number
        count += len(keys)
        holders.append(keys % len(HOLDERS))
        labels_.append(keys // len(HOLDERS) % width)
        parents.append(keys // len(HOLDERS) // width - 1)
    node = place[np.append(top, -1)[leaf]]
    noted = np.flatnonzero(leaves.note >= 0)
    key = ((node[noted] + 1) * width + leaves.note[noted]) * len(HOLDERS) + leaves.holder[noted]
    keys, number = numbered(key)
    node[noted] = count + number
    holders.append(keys % len(HOLDERS))
    labels_.append(keys // len(HOLDERS) % width + len(names.texts))
    parents.append(keys // len(HOLDERS) // width - 1)
    text = Coded(np.concatenate(labels_), texts)
    return _Tree(np.concatenate(parents), text, np.concatenate(holders)), node


def _depths(parent: Ints) -> tuple[Ints, Ints]:
    """(how many rows enclose each, the row itself or what encloses it at `MAX_DEPTH`)."""
    depth, jump = (parent >= 0).astype(np.int64), parent.copy()
    while len(has := np.flatnonzero(jump >= 0)):
        depth[has] += depth[jump[has]]
        jump[has] = jump[jump[has]]
    top = np.where(depth > MAX_DEPTH, parent, np.arange(len(parent)))
    while (depth[top] > MAX_DEPTH).any():
        top = top[top]
    return depth, top


def _pruned(tree: _Tree, node: Ints, length: Ints) -> tuple[_Tree, Ints]:
    """The tree without small places, and where each segment is in it: among the others of what encloses its place."""
    count = len(tree.parent)
    own = summed(node, length, count)
    inside = _with_descendants(tree.parent, own)
    least = max(1, int(SMALL_SHARE * int(own.sum())))
    order = np.lexsort((np.arange(count), -inside))
    is_kept = np.zeros(count, np.bool_)
    is_kept[order[:MAX_NODES]] = True
    is_kept &= inside >= least
    holder = np.arange(count)
    while not is_kept[holder[holder >= 0]].all():
        gone = np.flatnonzero((holder >= 0) & ~is_kept[holder])
        holder[gone] = tree.parent[holder[gone]]
    new = np.cumsum(is_kept) - 1
    kept = np.flatnonzero(is_kept)
    lost = np.flatnonzero(~is_kept[node])
    enclosing = np.append(holder, -1)[node[lost]]
    enclosing = np.where(enclosing >= 0, new[enclosing], -1)
    key = (enclosing + 1) * len(HOLDERS) + tree.holder[node[lost]]
    distinct, number = numbered(key)
    placed = new[node]
    placed[lost] = len(kept) + number
    parent = tree.parent[kept]
    parents = np.concatenate((np.where(parent >= 0, new[parent], -1), distinct // len(HOLDERS) - 1))
    codes = np.concatenate((tree.text.codes[kept], np.full(len(distinct), len(tree.text.texts))))
    holders = np.concatenate((tree.holder[kept], distinct % len(HOLDERS)))
    return _Tree(parents, Coded(codes, (*tree.text.texts, OTHER)), holders), placed


def _with_descendants(parent: Ints, own: Ints) -> Ints:
    """What each place and all below it have: level by level, the deepest first."""
    depth, _ = _depths(parent)
    inside = own.copy()
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    for low, high in zip(bounds[:-1][::-1].tolist(), bounds[1:][::-1].tolist(), strict=True):
        below = order[low:high]
        np.add.at(inside, parent[below], inside[below])
    return inside


class _Entries(NamedTuple):
    """Parts of the idle time of one device, each within the same windows: the `start` of the first segment, place, time.

    `gap_count` gaps have such a segment; where it is 0, that is of the one `gap`, which lies in several windows' parts.
    """

    start: Ints
    node: Ints
    ns: Ints
    gap_count: Ints
    gap: Ints


def _entries(idle: DeviceIdle, leaves: _Leaves, node: Ints, edges: Ints) -> _Entries:
    """The segments of each place between two edges of windows put together, but for those of gaps over which an edge lies."""
    gap = sweeps.places(idle.gaps.start, leaves.start, right=True) - 1
    cell = sweeps.places(edges, leaves.start, right=True)
    length = leaves.end - leaves.start
    crosses = np.flatnonzero((gap[1:] == gap[:-1]) & (cell[1:] != cell[:-1]))
    is_single = np.zeros(len(gap), np.bool_)
    if len(crosses):
        is_single = is_one_of(gap, gap[crosses])
    single, others = np.flatnonzero(is_single), np.flatnonzero(~is_single)
    keys = cell[others] * (int(node.max(initial=0)) + 1) + node[others]
    distinct_keys, number = numbered(keys)
    count = len(distinct_keys)
    first = others[first_of_each(number, count)]
    order = by_group(number, others)
    group, of_gap = number[order], gap[others[order]]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (group[1:] != group[:-1]) | (of_gap[1:] != of_gap[:-1])
    rows = np.concatenate((first, single))
    ns = np.concatenate((summed(number, length[others], count), length[single]))
    gap_count = np.concatenate((np.bincount(group[is_new], minlength=count), single * 0))
    in_time = np.argsort(rows, kind="stable")
    rows = rows[in_time]
    return _Entries(leaves.start[rows], node[rows], ns[in_time], gap_count[in_time], gap[rows])


def _by_window(trace: Trace, idle: DeviceIdle, leaves: _Leaves, node: Ints) -> dict[str, Array]:
    """Columns window, step, stage, node, gap_count, idle_ns of one device: windows of one name and step together."""
    keys, low, high = idle_windows(trace, idle)
    parts = _entries(idle, leaves, node, distinct(np.concatenate((low, high))))
    window, entry = beginning(parts.start, low, high)
    totals = summed(window, parts.ns[entry], len(low))
    assert (totals == covered(idle.gaps, low, high)).all(), "each idle nanosecond is blamed once"
    number, first = of_arrays([window, parts.node[entry]])
    counts = summed(number, parts.gap_count[entry], len(first))
    crossing = np.flatnonzero(parts.gap_count[entry] == 0)
    gap_count = max(1, len(idle.gaps.start))
    pairs = distinct(number[crossing] * gap_count + parts.gap[entry[crossing]])
    counts += np.bincount(pairs // gap_count, minlength=len(first))
    of_row = {name: at_rows(column, window[first]) for name, column in keys.items()}
    columns: dict[str, Array] = {**of_row, "node": parts.node[entry][first]}
    again, where = of_arrays(list(columns.values()))
    count = len(where)
    return {
        **{name: at_rows(column, where) for name, column in columns.items()},
        "gap_count": summed(again, counts, count),
        "idle_ns": summed(again, summed(number, parts.ns[entry], len(first)), count),
    }


def _bounded(rows: dict[str, Array], tree: _Tree) -> tuple[dict[str, Array], _Tree]:
    """The largest rows; the others by window and kind, without a place."""
    node = _numbers(rows, "node")
    small = np.argsort(-_numbers(rows, "idle_ns"), kind="stable")[MAX_ROWS:]
    if len(small):
        node = node.copy()
        node[small] = len(tree.parent) + tree.holder[node[small]]
        count = len(HOLDERS)
        tree = _Tree(
            np.concatenate((tree.parent, np.full(count, -1))),
            Coded(
                np.concatenate((tree.text.codes, np.full(count, len(tree.text.texts) - 1))),
                tree.text.texts,
            ),
            np.concatenate((tree.holder, np.arange(count))),
        )
        keys = {name: rows[name] for name in rows if name not in SUMMED}
        rows = sums_of({**keys, "node": node}, {name: _numbers(rows, name) for name in SUMMED})
    return {**rows, "holder": narrow(tree.holder[_numbers(rows, "node")], HOLDERS)}, tree


def _numbers(rows: dict[str, Array], name: str) -> Ints:
    """A column of numbers that no row lacks."""
    values = rows[name]
    assert isinstance(values, np.ndarray), f"{name}: numbers"
    return values


def _frames(tree: _Tree) -> dict[str, Array]:
    """The columns of `idle_frames`."""
    return {
        "node": np.arange(len(tree.parent)),
        "parent": tree.parent,
        "frame": tree.text,
        "holder": narrow(tree.holder, HOLDERS),
    }
