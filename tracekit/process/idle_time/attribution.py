"""Attribution of idle time: for every idle nanosecond, the deepest row of the thread that launched the next work.

Until the launch of the next op has returned, that thread's row is to blame. If the thread waits, or only its
step or stage is recorded, the attribution follows other threads that feed devices or run the program. After
the launch the device itself is to blame. Simultaneous time is summed by path of names, from the outermost to
the innermost.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import expand_ranges, list_starts_in_windows, measure_coverage, merge_interval_sets
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    broadcast_value,
    concatenate_parts,
    repeat_number,
    select_rows,
    trim_all_texts,
)
from tracekit.model.tables.keys import find_distinct, group_arrays, number_keys, sum_by_group, sum_by_keys
from tracekit.model.tables.slots import HOLDERS, OTHER
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.segments import ThreadSegments
from tracekit.process.host.phases import find_step_thread
from tracekit.process.host.tree import HOLDER, HostThreadRows, build_host_tree, shorten_texts
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.idle_time.tables import list_idle_windows
from tracekit.process.name_filters import make_narrow_coded

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows
Mask = npt.NDArray[np.bool_]

MAX_THREADS = 4
"""Other threads examined while the launching thread waits: those that run most."""

MAX_DEPTH = 200
"""Greatest depth of the tree; deeper rows count as their ancestor at this depth."""

MAX_NODES = 300
"""Nodes of one source in the idle call tree at most: those with most idle time in them."""

SMALL_SHARE = 0.002
"""Share of the idle time of all devices below which a node is folded into the rest of its parent."""

MAX_ROWS = 1_000
"""Rows of one source at most, the largest; rows of folded nodes are extra."""

SUMMED = ("gap_count", "idle_ns")

NOTHING = "(nothing recorded)"
ON_DEVICE = {
    "sync": "(waiting for another stream)",
    "kernel_wait": "(starting up)",
    "": "(launched but not started, cause unknown)",
}

_WORKS = np.isin(HOLDERS, ("python", "op", "call", "first_call", "gc", "range", "sample", "off_cpu"))
"""Holders of another thread that explain why the launching thread waits."""


class _IdleLeaves(NamedTuple):
    """Idle segments of one device, each with the `row` of the host tree that it is in, -1 for none.

    Segments at the positions `noted` have a `note` (a code into texts) below their row, with its `holder`:
    the device's own activity, or the neighbors of a time without records. Segments with neither row nor note
    are skipped; another thread explains them.
    """

    start: Ints
    end: Ints
    row: Rows
    noted: Ints
    note: npt.NDArray[np.integer[Any]]
    holder: Ints


_NONE = np.empty(0, np.int64)


def attribute_idle_time(trace: Trace, devices: Sequence[DeviceIdle]) -> dict[str, dict[str, Array]]:
    """Compute the tables `attribute_idle_time` and `idle_frames`; the rows of a window add up to its idle time, exactly."""
    devices = [idle for idle in devices if len(idle.gaps.start)]
    if not devices:
        return {"idle_blame": {}, "idle_frames": {}}
    host = build_host_tree(trace, merge_interval_sets([idle.gaps for idle in devices]))
    notes: dict[str, int] = {}
    leaves = [_attribute_gaps(trace, host, idle, notes) for idle in devices]
    parent, holder = host.tree.parent, host.holder
    named = host.name
    names = _shorten_row_names(named, holder)
    all_leaves = list(itertools.chain.from_iterable(leaves))
    tree, nodes = _build_idle_call_tree(names, parent, holder, all_leaves, tuple(notes))
    pools, of_parts = [], iter(nodes)
    for idle, parts in zip(devices, leaves, strict=True):
        pools.append(_merge_idle_segments(trace, idle, parts, list(itertools.islice(of_parts, len(parts)))))
    starts, node, length = map(np.concatenate, zip(*pools, strict=True))
    tree, node = _fold_small_nodes(tree, node, length)
    ends = np.cumsum([len(start) for start, *_ in pools])[:-1]
    rows_of = []
    for idle, *pool in zip(devices, *(np.split(c, ends) for c in (starts, node, length)), strict=True):
        sums = _sum_nodes_by_window(trace, idle, *pool)
        rows_of.append({"device": repeat_number(idle.device, len(sums["idle_ns"])), **sums})
    rows, tree = _fold_small_rows(concatenate_parts(rows_of), tree)
    return {"idle_blame": trim_all_texts(rows), "idle_frames": trim_all_texts(_make_idle_frames(tree))}


# Attribution of each nanosecond


def _attribute_gaps(trace: Trace, host: HostThreadRows, idle: DeviceIdle, notes: dict[str, int]) -> list[_IdleLeaves]:
    """Attribute the idle segments of one device to host rows or notes, in several parts."""
    thread, ready = _find_launching_threads(trace, idle)
    gaps, edges = idle.gaps, _list_window_edges(trace, idle)
    place = np.arange(len(gaps.start))
    waits = ThreadSegments(gaps.start, ready, thread, place)
    waits = _split_segments_at(ThreadSegments(*(column[ready > gaps.start] for column in waits)), edges)
    parts, silence, row = _follow_waits_to_threads(trace, host, idle, waits)
    silent = np.append(host.frame, True)[row].nonzero()[0]
    note = _note_recorded_neighbors(host, waits.thread[silence.origin[silent]], silence, silent, notes)
    nothing = np.full(len(silent), HOLDER["nothing"])
    parts.append(_IdleLeaves(silence.start, silence.end, row, silent, note, nothing))
    is_late = gaps.end > ready
    late = ThreadSegments(*(column[is_late] for column in (ready, gaps.end, thread, place)))
    late = _split_segments_at(late, edges)
    return [*parts, *_attribute_launched_gaps(host, idle, late, notes)]


def _find_launching_threads(trace: Trace, idle: DeviceIdle) -> tuple[Ints, Ints]:
    """Find, per gap, the thread that launched the next op with a known launch, and the deadline of that launch.

    The deadline is when the launching call returned, or the end of the gap if no launch precedes it. If no
    work follows, take the thread of the last op; -1 if no launch is known at all. Without a device, take the thread
    that names the steps.
    """
    gaps, after = idle.gaps, idle.after
    if not len(idle.rows):
        of_steps = trace.derived(find_step_thread)
        return np.full(len(after), -1 if of_steps is None else of_steps, np.int64), gaps.end
    links: Launches = trace.derived(find_launches)
    rows = idle.rows[links.linked[idle.rows]]
    if not len(rows):
        return np.full(len(after), -1, np.int64), gaps.end
    start = trace.numbers("device_ops", "ts_ns")[rows]
    order = np.argsort(start, kind="stable")
    place = np.minimum(np.searchsorted(start[order], gaps.end), len(rows) - 1)
    is_linked = (after >= 0) & links.linked[after]
    next_op = np.where(is_linked, after, rows[order][place])
    issued = np.where(links.call[next_op] >= 0, links.call[next_op], links.op[next_op])
    thread = trace.numbers("host_ops", "thread")[issued].astype(np.int64)
    call = links.call[after]
    ready = np.where(call >= 0, trace.numbers("host_ops", "dur_ns")[call], 0)
    ready += links.ts_ns[after]
    return thread, np.where(is_linked, np.clip(ready, gaps.start, gaps.end), gaps.end)


def _list_window_edges(trace: Trace, idle: DeviceIdle) -> Ints:
    """List when any window begins or ends."""
    _, start, end = list_idle_windows(trace, idle)
    return find_distinct(np.concatenate((start, end)))


def _split_segments_at(segments: ThreadSegments, edges: Ints) -> ThreadSegments:
    """Split segments at edges."""
    first = sweeps.count_below(edges, segments.start, right=True)
    place, edge = expand_ranges(first, sweeps.count_below(edges, segments.end))
    return ThreadSegments(
        np.insert(segments.start, place + 1, edges[edge]),
        np.insert(segments.end, place, edges[edge]),
        np.insert(segments.thread, place, segments.thread[place]),
        np.insert(segments.origin, place, segments.origin[place]),
    )


def _follow_waits_to_threads(
    trace: Trace, host: HostThreadRows, idle: DeviceIdle, waits: ThreadSegments
) -> tuple[list[_IdleLeaves], ThreadSegments, Ints]:
    """Follow waits to the rows that explain them.

    Returns (leaves of the explained pieces; the other pieces, `origin` the position in `waits`; the row of
    each of these).
    """
    start, end, row, first = host.cut_and_found(waits)
    is_open = np.append(host.waits | host.frame, True)
    places = is_open[row].nonzero()[0]
    own_row = row[places]
    origin = np.searchsorted(first, places, side="right") - 1
    part = ThreadSegments(start[places], end[places], waits.thread[origin], origin)
    row[places] = -1
    done = [_IdleLeaves(start, end, row, _NONE, _NONE, _NONE)]
    other_row = np.full(len(own_row), -1, np.int64)
    works_there = np.append(_WORKS[host.holder], False) & ~is_open
    for other in _list_candidate_threads(trace, host, idle) if len(own_row) else ():
        at_other = host.cut(part._replace(thread=np.full(len(own_row), other)))
        own_row, other_row = own_row[at_other.origin], other_row[at_other.origin]
        row = host.find_running(at_other.thread, at_other.start)
        row[at_other.thread == part.thread[at_other.origin]] = -1
        works = works_there[row]
        other_row = np.where((other_row < 0) & (row >= 0), row, other_row)
        thread, origin = part.thread[at_other.origin], part.origin[at_other.origin]
        part = ThreadSegments(at_other.start, at_other.end, thread, origin)
        done.append(_IdleLeaves(part.start[works], part.end[works], row[works], _NONE, _NONE, _NONE))
        part = ThreadSegments(*(column[~works] for column in part))
        own_row, other_row = own_row[~works], other_row[~works]
    return done, part, np.where(own_row >= 0, own_row, other_row)


def _list_candidate_threads(trace: Trace, host: HostThreadRows, idle: DeviceIdle) -> list[int]:
    """List the threads to examine while another one waits: those that launch work of the device, then the busiest."""
    count = int(host.thread.max(initial=-1)) + 1
    links: Launches = trace.derived(find_launches)
    issued = np.where(links.call >= 0, links.call, links.op)[idle.rows]
    feeds = np.zeros(count, np.int64)
    by = trace.numbers("host_ops", "thread")[issued[issued >= 0]]
    np.add.at(feeds, by[by < count], 1)
    works = _WORKS[host.holder] & ~host.waits & ~host.frame
    # Rows are sorted by thread.
    bounds = np.searchsorted(host.thread, np.arange(1, count, dtype=host.thread.dtype))
    work_counts = np.array([np.count_nonzero(part) for part in np.split(works, bounds)])[:count]
    order = np.lexsort((np.arange(count), -work_counts, -feeds))
    busiest: list[int] = order[work_counts[order] > 0][:MAX_THREADS].tolist()
    return busiest


def _note_recorded_neighbors(
    host: HostThreadRows, thread: Ints, part: ThreadSegments, rows: Ints, notes: dict[str, int]
) -> Ints:
    """Write notes for segments without records: the rows of their thread that end before and begin after."""
    note = np.full(len(rows), notes.setdefault(NOTHING, len(notes)), np.int64)
    is_all = bool(host.recorded.all())
    begin = host.begin if is_all else host.begin[host.recorded]
    if not len(begin) or not len(rows):
        return note
    place = sweeps.count_below(begin, host.axis.lift(thread, part.start[rows]), right=True)
    before, after = place - 1, np.where(place < len(begin), place, -1)
    if not is_all:
        recorded = np.append(host.recorded.nonzero()[0], -1)
        before, after = recorded[before], recorded[after]
    before = _climb_to_outermost_call(host, before)
    both = []
    for row in (before, after):
        same = (row >= 0) & (host.thread[row] == thread)
        both.append(np.where(same, host.name.codes[row].astype(np.int64), -1))
    number, first = group_arrays(both)
    texts = []
    for left, right in zip(both[0][first].tolist(), both[1][first].tolist(), strict=True):
        names = [_name_recorded_neighbor(host.name.texts[code]) if code >= 0 else "" for code in (left, right)]
        notes_of_pair = [f"{word} {name}" for word, name in zip(("after", "before"), names, strict=True) if name]
        texts.append(f"(nothing recorded, {', '.join(notes_of_pair)})" if notes_of_pair else NOTHING)
    numbers = np.array([notes.setdefault(text, len(notes)) for text in texts], np.int64)
    return numbers[number]


def _name_recorded_neighbor(name: str) -> str:
    """Shorten the name of a neighbor; empty for a launch, since any neighbor may be one."""
    return "" if _LAUNCH.match(name) else shorten_frame_name(name)


def _climb_to_outermost_call(host: HostThreadRows, rows: Ints) -> Ints:
    """Climb from each row to the outermost op or call around it, which a person would name."""
    row = rows.copy()
    active = (row >= 0).nonzero()[0]
    for _ in range(MAX_DEPTH):
        above = host.tree.parent[row[active]]
        goes = above >= 0
        goes[goes] = np.isin(host.holder[above[goes]], [HOLDER[name] for name in ("op", "call")])
        active = active[goes]
        if not len(active):
            break
        row[active] = above[goes]
    return row


def _attribute_launched_gaps(
    host: HostThreadRows, idle: DeviceIdle, late: ThreadSegments, notes: dict[str, int]
) -> list[_IdleLeaves]:
    """Attribute the segments after the launch to why the device did not begin; one cause per gap (`origin`).

    If the reason is unknown and the launching thread is in a call that copies or allocates memory, attribute
    them to that call.
    """
    why = np.full(len(late.start), -1, np.int32)
    for name in ("sync", "kernel_wait"):
        if name in idle.shares:
            is_of_cause = np.zeros(len(idle.gaps.start), np.bool_)
            is_of_cause[idle.shares[name].gap] = True
            why[is_of_cause[late.origin]] = notes.setdefault(ON_DEVICE[name], len(notes))
    explained, unexplained = (why >= 0).nonzero()[0], (why < 0).nonzero()[0]
    leaves_of_cause = _IdleLeaves(
        late.start[explained],
        late.end[explained],
        broadcast_value(np.int64(-1), len(explained)),
        np.arange(len(explained)),
        why[explained],
        broadcast_value(np.int64(HOLDER["device"]), len(explained)),
    )
    if not len(unexplained):
        return [leaves_of_cause]
    start, end, row, _ = host.cut_and_found(ThreadSegments(*(column[unexplained] for column in late)))
    row[~np.append(host.holds, False)[row]] = -1
    without_row = (row < 0).nonzero()[0]
    note = np.full(len(without_row), notes.setdefault(ON_DEVICE[""], len(notes)))
    return [
        _IdleLeaves(start, end, row, without_row, note, np.full(len(without_row), HOLDER["device"])),
        leaves_of_cause,
    ]


# Sums by path


class _IdleCallTree(NamedTuple):
    """Tree of paths: the `parent` of each node (-1: none; parents come first), its `text` and `holder`."""

    parent: Ints
    text: Coded
    holder: Ints


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANCE = re.compile(r"(nn\.Module: .*)_\d+\Z")
_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch")
_NUMBER = re.compile(r"#?\d+")

MAX_TEXT = 160
"""Characters of a name in the tree."""


def shorten_frame_name(name: str) -> str:
    """Shorten a name and remove addresses and instance numbers.

    >>> shorten_frame_name("nn.Module: Linear_12"), shorten_frame_name("<built-in method mm of type object at 0x7f>")
    ('nn.Module: Linear', '<built-in method mm of type object>')
    """
    text = _ADDRESS.sub("", name[: 2 * MAX_TEXT])
    if (instance := _INSTANCE.match(text)) is not None:
        text = instance[1]
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _shorten_row_names(recorded: Coded, holder: npt.NDArray[np.int8]) -> Coded:
    """Shorten the names of all rows for the tree; ranges that differ only in numbers get one name."""
    ranges = find_distinct(recorded.codes[holder == HOLDER["range"]]).tolist()
    plain: dict[str, list[str]] = {}
    for code in ranges:
        text = recorded.texts[code] if code >= 0 else ""
        plain.setdefault(_NUMBER.sub("#", text), []).append(text)
    pooled = {text: like for like, texts in plain.items() if len(texts) > 1 for text in texts}
    return shorten_texts(recorded, lambda name: shorten_frame_name(pooled.get(name, name)))


def _build_idle_call_tree(
    names: Coded,
    row_parent: Rows,
    row_holder: npt.NDArray[np.int8],
    parts: Sequence[_IdleLeaves],
    notes: tuple[str, ...],
) -> tuple[_IdleCallTree, list[Rows]]:
    """Build the tree from leaves: (tree; per part the node of each segment, -1 for none)."""
    texts = (*names.texts, *notes, "")
    width = len(texts)
    rows, tops = _find_used_rows(row_parent, parts)
    label: Ints = names.codes[rows].astype(np.int64)
    label[label < 0] = width - 1
    key = label * len(HOLDERS) + row_holder[rows]
    parent, key, place = _merge_equal_paths(row_parent, rows, key)
    nodes = [place[row] for row in tops]
    above = np.concatenate([node[part.noted] for part, node in zip(parts, nodes, strict=True)])
    note = np.concatenate([part.note for part in parts]) + len(names.texts)
    holder = np.concatenate([part.holder for part in parts])
    key_of_note = (above + 1) * (width * len(HOLDERS)) + note * len(HOLDERS) + holder
    distinct_notes, number = number_keys(key_of_note)
    ends = np.cumsum([len(part.noted) for part in parts])[:-1]
    node_type = sweeps.choose_row_type(len(parent) + len(distinct_notes))
    nodes = [node.astype(node_type, copy=False) for node in nodes]
    for part, node, of_part in zip(parts, nodes, np.split(number, ends), strict=True):
        node[part.noted] = len(parent) + of_part
    enclosing, key_of_note = np.divmod(distinct_notes, width * len(HOLDERS))
    parent = np.concatenate((parent, enclosing - 1))
    label, holder = np.divmod(np.concatenate((key, key_of_note)), len(HOLDERS))
    return _IdleCallTree(parent, Coded(label, texts), holder), nodes


def _find_used_rows(parent: Rows, parts: Sequence[_IdleLeaves]) -> tuple[Ints, list[Rows]]:
    """Find the rows in use: (rows of segments and ancestors; per part its rows, clipped to `MAX_DEPTH`)."""
    depth, deepest = _count_row_ancestors(parent)
    tops = [part.row for part in parts]
    if deepest > MAX_DEPTH:
        top = np.append(np.where(depth > MAX_DEPTH, parent, np.arange(len(parent))), -1)
        while (depth[top[:-1]] > MAX_DEPTH).any():
            top = top[top]
        tops = [top[row] for row in tops]
    used = np.zeros(len(parent) + 1, np.bool_)
    for row in tops:
        used[row] = True
    used = used[:-1]
    if sweeps.native is not None:
        sweeps.mark_ancestors(parent, used)
        return used.nonzero()[0], tops
    for level in range(min(deepest, MAX_DEPTH), 0, -1):
        used[parent[used & (depth == level)]] = True
    return used.nonzero()[0], tops


def _merge_equal_paths(parent: Rows, rows: Ints, key: Ints) -> tuple[Ints, Ints, Rows]:
    """Merge rows with equal paths of keys into nodes: (parent of each node, its key, node of each row, -1 for none).

    Nodes are numbered level by level, and within a level by parent, then key.
    """
    numbers = sweeps.number_call_paths(parent, rows, key) if sweeps.native is not None else None
    first_number, first = numbers or (np.arange(len(rows)), np.arange(len(rows)))
    number_of = np.full(len(parent) + 1, -1, parent.dtype)
    number_of[rows] = first_number
    above, key = number_of[parent[rows[first]]], key[first]
    depth, deepest = _count_row_ancestors(above)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(deepest + 2)) if len(order) else [0, 0]
    place, count = np.full(len(first) + 1, -1, np.int64), 0
    factor = int(key.max(initial=0)) + 1
    parents, keys = [], []
    for low, high in itertools.pairwise(bounds):
        at_level = order[low:high]
        distinct_keys, number = number_keys((place[above[at_level]] + 1) * factor + key[at_level])
        place[at_level] = count + number
        count += len(distinct_keys)
        parents.append(distinct_keys // factor - 1)
        keys.append(distinct_keys % factor)
    number_of[rows] = place[first_number]
    return np.concatenate(parents), np.concatenate(keys), number_of


def _count_row_ancestors(parent: Rows) -> tuple[npt.NDArray[np.integer[Any]], int]:
    """Count the ancestors of each row: (depth, greatest depth)."""
    if sweeps.native is not None and (depths := sweeps.compute_depths(parent)) is not None:
        return depths
    depth, jump = (parent >= 0).astype(np.int64), parent.astype(np.int64)
    while len(has := (jump >= 0).nonzero()[0]):
        depth[has] += depth[jump[has]]
        jump[has] = jump[jump[has]]
    return depth, int(depth.max(initial=0))


def _fold_small_nodes(tree: _IdleCallTree, node: Ints, length: Ints) -> tuple[_IdleCallTree, Ints]:
    """Fold small nodes into an "other" child of their nearest kept ancestor: (tree, node of each segment)."""
    count = len(tree.parent)
    own_ns = sum_by_group(node, length, count)
    inside = _sum_subtree_times(tree.parent, own_ns)
    smallest_ns = max(1, int(SMALL_SHARE * int(own_ns.sum())))
    order = np.lexsort((np.arange(count), -inside))
    is_kept = np.zeros(count, np.bool_)
    is_kept[order[:MAX_NODES]] = True
    is_kept &= inside >= smallest_ns
    holder = np.arange(count)
    while not is_kept[holder[holder >= 0]].all():
        gone = ((holder >= 0) & ~is_kept[holder]).nonzero()[0]
        holder[gone] = tree.parent[holder[gone]]
    new = np.cumsum(is_kept) - 1
    kept_nodes = is_kept.nonzero()[0]
    lost = (~is_kept[node]).nonzero()[0]
    enclosing = np.append(holder, -1)[node[lost]]
    enclosing = np.where(enclosing >= 0, new[enclosing], -1)
    key = (enclosing + 1) * len(HOLDERS) + tree.holder[node[lost]]
    distinct, number = number_keys(key)
    placed = new[node]
    placed[lost] = len(kept_nodes) + number
    parent = tree.parent[kept_nodes]
    parents = np.concatenate((np.where(parent >= 0, new[parent], -1), distinct // len(HOLDERS) - 1))
    codes = np.concatenate((tree.text.codes[kept_nodes], np.full(len(distinct), len(tree.text.texts))))
    holders = np.concatenate((tree.holder[kept_nodes], distinct % len(HOLDERS)))
    return _IdleCallTree(parents, Coded(codes, (*tree.text.texts, OTHER)), holders), placed


def _sum_subtree_times(parent: Ints, own_ns: Ints) -> Ints:
    """Sum the time of each node and its descendants, from the deepest level up."""
    depth, deepest = _count_row_ancestors(parent)
    inside = own_ns.copy()
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, deepest + 2))
    for low, high in zip(bounds[:-1][::-1].tolist(), bounds[1:][::-1].tolist(), strict=True):
        below = order[low:high]
        np.add.at(inside, parent[below], inside[below])
    return inside


def _merge_idle_segments(
    trace: Trace, idle: DeviceIdle, parts: Sequence[_IdleLeaves], nodes: Sequence[Rows]
) -> tuple[Ints, Ints, Ints]:
    """Merge segments of one node, gap and window: (begin, node, length), in order of begin."""
    points = find_distinct(np.concatenate((idle.gaps.start, _list_window_edges(trace, idle))))
    pools = []
    for part, node in zip(parts, nodes, strict=True):
        if sweeps.native is not None:
            count = int(node.max(initial=-1)) + 1
            first, length = sweeps.pool_pieces(part.start, part.end, node, count, points)
        else:
            first = (node >= 0).nonzero()[0]
            length = part.end[first] - part.start[first]
        pools.append((part.start[first], node[first].astype(np.int64), length))
    starts, places, lengths = map(np.concatenate, zip(*pools, strict=True))
    assert int(lengths.sum()) == idle.gaps.total, "each idle nanosecond once"
    order = np.argsort(starts, kind="stable")
    return starts[order], places[order], lengths[order]


def _sum_nodes_by_window(trace: Trace, idle: DeviceIdle, start: Ints, node: Ints, length: Ints) -> dict[str, Array]:
    """Sum the nodes of one device by window: window, step, stage, node, gap_count, idle_ns."""
    keys, low, high = list_idle_windows(trace, idle)
    gap = sweeps.count_below(idle.gaps.start, start, right=True) - 1
    nodes = _sum_pieces_in_windows((start, gap, node, length), low, high)
    totals = sum_by_group(nodes.window, nodes.ns, len(low))
    assert (totals == measure_coverage(idle.gaps, low, high)).all(), "each idle nanosecond is blamed once"
    of_row = {name: select_rows(column, nodes.window) for name, column in keys.items()}
    columns: dict[str, Array] = {**of_row, "node": node[nodes.first]}
    number, where = group_arrays(list(columns.values()))
    return {
        **{name: select_rows(column, where) for name, column in columns.items()},
        "gap_count": sum_by_group(number, nodes.gaps, len(where)),
        "idle_ns": sum_by_group(number, nodes.ns, len(where)),
    }


def _sum_pieces_in_windows(pieces: tuple[Ints, Ints, Ints, Ints], low: Ints, high: Ints) -> sweeps.WindowNodes:
    """Sum the pieces (start, gap, node, length; in order of start) that begin in each window, by node."""
    start, gap, node, length = pieces
    if sweeps.native is not None:
        return sweeps.group_pieces_by_window(pieces, int(node.max(initial=-1)) + 1, low, high)
    window, piece = list_starts_in_windows(start, low, high)
    number, first = group_arrays([window, node[piece]])
    gap_count = int(gap.max(initial=0)) + 1
    number_of_pair = find_distinct(number * gap_count + gap[piece]) // gap_count
    return sweeps.WindowNodes(
        window[first],
        piece[first],
        np.bincount(number_of_pair, minlength=len(first)),
        sum_by_group(number, length[piece], len(first)),
    )


def _fold_small_rows(rows: dict[str, Array], tree: _IdleCallTree) -> tuple[dict[str, Array], _IdleCallTree]:
    """Keep the largest rows; merge the others by window and kind, without a node."""
    node = _get_number_column(rows, "node")
    small = np.argsort(-_get_number_column(rows, "idle_ns"), kind="stable")[MAX_ROWS:]
    if len(small):
        node = node.copy()
        node[small] = len(tree.parent) + tree.holder[node[small]]
        count = len(HOLDERS)
        tree = _IdleCallTree(
            np.concatenate((tree.parent, np.full(count, -1))),
            Coded(np.concatenate((tree.text.codes, np.full(count, len(tree.text.texts) - 1))), tree.text.texts),
            np.concatenate((tree.holder, np.arange(count))),
        )
        keys = {name: rows[name] for name in rows if name not in SUMMED}
        rows = sum_by_keys({**keys, "node": node}, {name: _get_number_column(rows, name) for name in SUMMED})
    return {**rows, "holder": make_narrow_coded(tree.holder[_get_number_column(rows, "node")], HOLDERS)}, tree


def _get_number_column(rows: dict[str, Array], name: str) -> Ints:
    """Get a column of numbers that every row has."""
    values = rows[name]
    assert isinstance(values, np.ndarray), f"{name}: numbers"
    return values


def _make_idle_frames(tree: _IdleCallTree) -> dict[str, Array]:
    """Compute the columns of `idle_frames`."""
    return {
        "node": np.arange(len(tree.parent)),
        "parent": tree.parent,
        "frame": tree.text,
        "holder": make_narrow_coded(tree.holder, HOLDERS),
    }
