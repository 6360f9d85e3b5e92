"""Call tree of idle time over all processes: the place in it that a claim names, its tables and its chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracekit.job.frames import make_label_headings, name_stages
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import (
    NO_STEPS,
    STAGE_KEY,
    Owner,
    StageWindow,
    count_gpu_steps,
    find_rows_of_owners,
    list_owners,
    list_rows_of_windows,
    list_stage_windows,
    list_undamaged_rows,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Chart, Heading, Sheet
from tracekit.model.stages import parse_numbered_step, parse_profiler_step
from tracekit.model.tables.frame import Bools, Frame, Ints, Value, concat, from_rows
from tracekit.model.tables.keys import number_keys, sum_by_group
from tracekit.model.tables.slots import HOLDER_TITLES, HOLDERS
from tracekit.model.trace import Measurements, derive_once
from tracekit.process.calls.activity import is_data_loader_name
from tracekit.process.host.cpu_samples import OFF_CPU
from tracekit.process.host.user_code_frames import is_user_code_frame
from tracekit.process.memory.site_grades import PROFILED

MAJORITY_SHARE = 0.85
"""A place with at least this share of the idle time is where it was spent."""


class JobIdleTree(NamedTuple):
    """Places by path over all sources, parents before children. `parent` is -1 at the top."""

    parent: Ints
    frame: list[str]
    holder: Ints


@dataclass(frozen=True, slots=True)
class IdleBlame:
    """Tree of a job; for each row of `rows` its place (`node`), idle time and kind of holder."""

    tree: JobIdleTree
    rows: Frame
    node: Ints
    idle_ns: Ints
    holder: Ints


@dataclass(frozen=True, slots=True)
class IdleCulprit:
    """Place with most of some idle time: its time, and the time in all.

    `names` are the frames from the outermost to the place itself.
    """

    place: str
    holder: str
    idle_ns: int
    total_ns: int
    names: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Share of the place in all of the idle time."""
        return self.idle_ns / max(self.total_ns, 1)


@derive_once
def blame_idle_time(measured: Measurements) -> IdleBlame:
    """Attribute the idle time of the judged windows to places in the call tree."""
    return _blame_rows(measured, list_rows_of_windows(measured, "idle_blame"))


def _blame_time_outside_stages(measured: Measurements) -> IdleBlame:
    """Attribute the idle time of steps outside their stages; rows of stages are negative."""
    rows, in_stages = list_undamaged_rows(measured, "idle_blame"), list_rows_of_windows(measured, "idle_blame")
    in_stages = in_stages.filter(~in_stages.is_missing("canonical") & ~in_stages.is_missing("step"))
    steps = rows.filter(rows.equals("window", "step"))
    return _blame_rows(measured, concat([steps, in_stages.with_columns(idle_ns=-in_stages["idle_ns"])]))


def _blame_rows(measured: Measurements, rows: Frame, table: str = "idle_frames") -> IdleBlame:
    """Find the place in the merged tree of each row, which names a place of `table`."""
    frames = measured.frame(table)
    tree, place = _merge_idle_frames(frames)
    keys = ("run", "source", "pid", "node")
    places = frames.select(*keys).with_columns(place=place)
    node = rows.select(*keys).join(places, keys, "left", optional=["run", "pid"]).integers("place", missing=-1)
    return IdleBlame(tree, rows, node, rows["idle_ns"], _number_holders(rows))


def _number_holders(rows: Frame) -> Ints:
    """Return the place in `HOLDERS` of the holder of each row."""
    number = np.array([HOLDERS.index(text) for text in rows["holder"].texts], np.int64)
    of_rows: Ints = number[rows["holder"].codes]
    return of_rows


def _merge_idle_frames(frames: Frame) -> tuple[JobIdleTree, Ints]:
    """Merge the trees of all sources by path: (tree, place of each row)."""
    node, above = frames["node"], frames["parent"]
    first = np.maximum.accumulate(np.where(node == 0, np.arange(len(node)), 0))
    above = np.where(above >= 0, first + above, -1)
    by_label = frames.group_by("frame", "holder")
    label, of_label = by_label.number, by_label.first
    place = np.full(len(node), -1, np.int64)
    parents, labels, count = [], [], 0
    level = np.flatnonzero(above < 0)
    while len(level):
        key = (np.where(above[level] >= 0, place[above[level]], -1) + 1) * len(of_label) + label[level]
        distinct, number = number_keys(key)
        place[level] = count + number
        count += len(distinct)
        parents.append(distinct // len(of_label) - 1)
        labels.append(distinct % len(of_label))
        reached = np.zeros(len(node) + 1, np.bool_)
        reached[level] = True
        level = np.flatnonzero(reached[above])
    if not parents:
        return JobIdleTree(np.empty(0, np.int64), [], np.empty(0, np.int64)), place
    places = frames.take(of_label[np.concatenate(labels)])
    return JobIdleTree(np.concatenate(parents), places.values("frame"), _number_holders(places)), place


def sum_idle_subtrees(tree: JobIdleTree, own_ns: Ints) -> Ints:
    """Sum the time of each place with that of all places below it."""
    total = own_ns.copy()
    for place in range(len(own_ns) - 1, -1, -1):
        if total[place] and tree.parent[place] >= 0:
            total[tree.parent[place]] += total[place]
    return total


def find_culprit_of_owner(
    measured: Measurements, owner: Owner, holders: Sequence[str], *, is_outside: bool = False
) -> IdleCulprit | None:
    """Find the place of these kinds with most of the idle time of a run and role; None if none stands out.

    With `is_outside`, only idle time of its steps outside their stages counts.
    """
    blamed = measured.derived(_blame_time_outside_stages) if is_outside else blame_idle_time(measured)
    return _find_culprit(blamed, find_rows_of_owners(blamed.rows, [owner]), holders)


def find_culprit_of_pauses(measured: Measurements, owner: Owner, stage: str | None) -> IdleCulprit | None:
    """Find the place with most of the pauses of hosts without a device, in one stage, or in the steps outside stages."""
    rows = list_undamaged_rows(measured, "pause_blame")
    rows = rows.with_columns(canonical=name_stages(rows))
    rows = rows.filter(find_rows_of_owners(rows, [owner]))
    chosen = rows.filter(rows.equals("window", "stage") & rows.equals("canonical", stage))
    if stage is None:
        staged = rows.filter(rows.equals("window", "stage") & ~rows.is_missing("canonical"))
        steps = rows.filter(rows.equals("window", "step"))
        chosen = concat([steps, staged.with_columns(idle_ns=-staged["idle_ns"])])
    blamed = _blame_rows(measured, chosen, "pause_frames")
    everything = np.ones(len(chosen), np.bool_)
    return _find_culprit(blamed, everything, HOLDERS, _list_recorded_stages(blamed, everything))


def _find_blame_rows_of_window(measured: Measurements, window: StageWindow) -> Bools:
    """Find the rows of `blame_idle_time` that are of one stage, or of the step."""
    rows = blame_idle_time(measured).rows
    return find_rows_of_owners(rows, [window.owner]) & rows.equals("canonical", window.canonical)


def find_culprit_of_window(measured: Measurements, window: StageWindow) -> IdleCulprit | None:
    """Find the place with most of the idle time of one stage, or of the step; None if none stands out."""
    blamed, chosen = blame_idle_time(measured), _find_blame_rows_of_window(measured, window)
    # First calls have their own rule (start-up).
    chosen &= blamed.holder != HOLDERS.index("first_call")
    return _find_culprit(blamed, chosen, HOLDERS, _list_recorded_stages(blamed, chosen))


def find_culprit_of_launches(measured: Measurements, row: Mapping[str, Any]) -> IdleCulprit | None:
    """Find the place with most of the idle time of a row's stage, outside data loading.

    Waiting for launches cannot be time in a data loader.
    """
    if not measured.has("idle_blame", "idle_frames"):
        return None
    windows = [
        window for window in list_stage_windows(measured) if window.key == tuple(row[name] for name in STAGE_KEY)
    ]
    if not windows:
        return None
    blamed, chosen = blame_idle_time(measured), _find_blame_rows_of_window(measured, windows[0])
    loads = np.zeros(len(blamed.tree.parent) + 1, np.bool_)
    for place, parent in enumerate(blamed.tree.parent.tolist()):
        loads[place] = is_data_loader_name(blamed.tree.frame[place]) or loads[parent]
    return _find_culprit(blamed, chosen & ~loads[blamed.node], HOLDERS, _list_recorded_stages(blamed, chosen))


def _list_recorded_stages(blamed: IdleBlame, chosen: Bools) -> frozenset[str | None]:
    """List the recorded names of the stages of these rows."""
    return frozenset(blamed.rows.select("stage").filter(chosen).distinct("stage").values("stage"))


def find_culprit_below(measured: Measurements, owner: Owner, name: str) -> IdleCulprit | None:
    """Find the place with most of the idle time below a place of this name; None if it is the place itself."""
    if not measured.has("idle_blame", "idle_frames"):
        return None
    blamed = blame_idle_time(measured)
    chosen = find_rows_of_owners(blamed.rows, [owner])
    below = np.zeros(len(blamed.tree.parent) + 1, np.bool_)
    for place, parent in enumerate(blamed.tree.parent.tolist()):
        below[place] = blamed.tree.frame[place] == name or below[parent]
    culprit = _find_culprit(blamed, chosen & below[blamed.node], HOLDERS)
    return None if culprit is None or name in culprit.place else culprit


def sum_window_idle_by_holder(measured: Measurements, window: StageWindow) -> list[tuple[str, int]]:
    """Sum the idle time of one stage by kind of holder, the largest first."""
    blamed, chosen = blame_idle_time(measured), _find_blame_rows_of_window(measured, window)
    sums = sum_by_group(blamed.holder[chosen], blamed.idle_ns[chosen], len(HOLDERS)).tolist()
    pairs = zip(HOLDERS, sums, strict=True)
    return sorted((pair for pair in pairs if pair[1]), key=lambda pair: -pair[1])


def _find_culprit(
    blamed: IdleBlame, chosen: Bools, holders: Sequence[str], stages: frozenset[str | None] = frozenset()
) -> IdleCulprit | None:
    """Find the place of these kinds with most of the chosen time. Names of `stages` add no information."""
    total = int(blamed.idle_ns[chosen].sum())
    chosen = chosen & np.isin(blamed.holder, [HOLDERS.index(name) for name in holders])
    rows = np.flatnonzero(chosen & (blamed.node >= 0))
    own_ns = sum_by_group(blamed.node[rows], blamed.idle_ns[rows], len(blamed.tree.parent))
    if not own_ns.any():
        return None
    sums = sum_idle_subtrees(blamed.tree, own_ns)
    node = _descend_to_majority(blamed.tree, sums, -1, total)
    if not _is_telling_place(blamed.tree, node, stages):
        # No place has most of the time: take the largest child if it has at least half.
        largest = int(np.where(blamed.tree.parent == node, sums, -1).argmax())
        if 2 * sums[largest] < total:
            return None
        node = _descend_to_majority(blamed.tree, sums, largest, int(sums[largest]))
    if not _is_telling_place(blamed.tree, node, stages):
        return None
    text, holder = _describe_idle_place(blamed.tree, node)
    names = tuple(blamed.tree.frame[place] for place in _list_path_to_place(blamed.tree, node))
    return IdleCulprit(text, holder, int(sums[node]), total, names)


def _descend_to_majority(tree: JobIdleTree, sums: Ints, node: int, total: int) -> int:
    """Descend the tree for as long as one place has most of the time."""
    while True:
        below = np.flatnonzero(tree.parent == node)
        if not len(below):
            return node
        largest = min(below.tolist(), key=lambda place: (-int(sums[place]), tree.frame[place]))
        if sums[largest] < MAJORITY_SHARE * total:
            return node
        node = largest


def _list_path_to_place(tree: JobIdleTree, node: int) -> list[int]:
    """List the places from the outermost to this one."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parent[node])
    return path[::-1]


def _is_telling_place(tree: JobIdleTree, node: int, stages: frozenset[str | None]) -> bool:
    """Check whether a place is more specific than its step or stage."""
    names = [tree.frame[place] for place in _list_path_to_place(tree, node)]
    return any(not _is_step_frame_name(name) and name not in stages for name in names)


def _is_step_frame_name(name: str) -> bool:
    """Check whether a frame is a mark of a step."""
    return (
        parse_profiler_step(name.replace("#", "#0")) is not None
        or parse_numbered_step(name.replace("#", "0")) is not None
    )


def _describe_idle_place(tree: JobIdleTree, node: int) -> tuple[str, str]:
    """Describe a place: (text, kind). A thread off the CPU is named with the place where it went off."""
    above = int(tree.parent[node])
    if tree.frame[node] in OFF_CPU.values() and _is_telling_place(tree, above, frozenset()):
        place, holder = _name_idle_place(tree, above)
        return f"{place} {tree.frame[node]}", holder
    return _name_idle_place(tree, node)


def _name_idle_place(tree: JobIdleTree, node: int) -> tuple[str, str]:
    """Name a place: (innermost user function and the call in it, kind); without one, the op or range around it."""
    path = _list_path_to_place(tree, node)
    program = [place for place in path if is_user_code_frame(tree.frame[place])]
    leaf, holder = tree.frame[node], HOLDERS[tree.holder[node]]
    if program and program[-1] == node:
        return format_python_frame(leaf), holder
    if program:
        inner = _find_innermost_native_frame(tree, path[path.index(program[-1]) + 1 :])
        return format_python_frame(tree.frame[program[-1]]) + (f" ({inner})" if inner else ""), holder
    around = [place for place in path[:-1] if HOLDERS[tree.holder[place]] in ("op", "range")]
    around = [place for place in around if not _is_step_frame_name(tree.frame[place])]
    if holder == "nothing" or not around or leaf in tree.frame[around[-1]]:
        return format_python_frame(leaf), holder
    return f"{format_python_frame(leaf)} in {format_python_frame(tree.frame[around[-1]])}", holder


def _find_innermost_native_frame(tree: JobIdleTree, path: Sequence[int]) -> str:
    """Find the innermost of these places that is not a Python function; empty if there is none."""
    names = [tree.frame[place] for place in path if HOLDERS[tree.holder[place]] != "python"]
    return names[-1] if names else ""


def format_python_frame(frame: str) -> str:
    """Format a Python frame as name, file and line; leave other frames as they are.

    >>> format_python_frame("transformers/pipelines/video_classification.py(129): preprocess")
    'preprocess, video_classification.py:129'
    """
    match = PROFILED.fullmatch(frame)
    if match is None:
        return frame
    return f"{match[3]}, {match[1].replace(chr(92), '/').rpartition('/')[2]}:{match[2]}"


# Branches and icicle


class IdleBranch(NamedTuple):
    """A place to show: its depth, its time with all places below, and its own time."""

    node: int
    depth: int
    idle_ns: int
    own_ns: int


def _list_large_places(tree: JobIdleTree, own_ns: Ints, least_ratio: float) -> tuple[Ints, float, dict[int, list[int]]]:
    """List the places with at least this share of the time: (time of each subtree, the least time, places by parent)."""
    sums = sum_idle_subtrees(tree, own_ns)
    limit = max(least_ratio * int(own_ns.sum()), 1)
    below: dict[int, list[int]] = {}
    for place in np.flatnonzero(sums >= limit).tolist():
        below.setdefault(int(tree.parent[place]), []).append(place)
    return sums, limit, below


def list_idle_branches(tree: JobIdleTree, own_ns: Ints, least_ratio: float) -> Iterator[IdleBranch]:
    """List the places with at least this share of the time, parents before children, the largest first.

    A place that only leads to one other place is skipped, unless that one only marks a thread as off the CPU.
    """
    sums, limit, below = _list_large_places(tree, own_ns, least_ratio)

    def smallest_first(place: int) -> tuple[int, list[int]]:
        """Make a sort key by time, then by name in reverse: the stack pops the largest first."""
        return int(sums[place]), [-ord(character) for character in tree.frame[place]]

    open_ = [(place, 0) for place in sorted(below.get(-1, ()), key=smallest_first)]
    while open_:
        node, depth = open_.pop()
        inner = sorted(below.get(node, ()), key=smallest_first)
        leads = len(inner) == 1 and sums[node] - sums[inner[0]] < limit
        leads = leads and tree.frame[inner[0]] not in OFF_CPU.values()
        if not leads:
            yield IdleBranch(node, depth, int(sums[node]), int(own_ns[node]))
        open_.extend((place, depth + (not leads)) for place in inner)


def layout_idle_icicle(tree: JobIdleTree, own_ns: Ints, least_ratio: float) -> list[tuple[int, int, int, int]]:
    """Lay out an icicle chart: (depth, place, start, end) of every place with at least this share of the time."""
    sums, _, below = _list_large_places(tree, own_ns, least_ratio)

    def largest_first(place: int) -> tuple[int, str]:
        """Make a sort key by descending time, then by name."""
        return -int(sums[place]), tree.frame[place]

    marks = []
    open_ = [(-1, -1, 0)]
    while open_:
        node, depth, start = open_.pop()
        for place in sorted(below.get(node, ()), key=largest_first):
            marks.append((depth + 1, place, start, start + int(sums[place])))
            open_.append((place, depth + 1, start))
            start += int(sums[place])
    return sorted(marks, key=lambda mark: (mark[0], mark[2], tree.frame[mark[1]]))


LEAST_SHOWN, LEAST_DRAWN = 0.01, 0.002
"""Smallest share of the idle time of a place in the table, and in the chart."""

MAX_BRANCHES = 60
"""Most places of one role in the table."""


def make_idle_call_tree_sheets(measured: Measurements) -> tuple[Sheet, Sheet]:
    """Make (the table of the call tree, the table of shares by kind), per step and GPU of the judged windows."""
    of = blame_idle_time(measured)
    by_owner = of.rows.group_by("run", "role")
    tree_rows: list[tuple[Value, ...]] = []
    kind_rows: list[tuple[Value, ...]] = []
    for place, owner in enumerate(list_owners(by_owner.agg())):
        chosen = np.flatnonzero((by_owner.number == place) & (of.node >= 0))
        if of.idle_ns[chosen].any():
            tree_rows += _list_idle_branch_rows(measured, of, chosen, owner)
            kind_rows.append(_make_idle_kind_row(measured, of, chosen, owner))
    labels = make_label_headings(measured)
    by_place = make_sheet(
        "idle_blame",
        "GPU idle time by call path",
        (
            *labels,
            *parse_headings("""
                frame | where | text | Activity of the thread that launched the next work; inner places are indented.
                kind | what
                share | of idle | ratio | Of all idle time in the table, including the places below.
                idle_ns | idle | ns | Including the places below, per step and GPU.
                own_ns | itself | ns | Without the places below, per step and GPU.
            """),
        ),
        from_rows(("run", "role", *_BRANCH), tree_rows),
        caption="Every idle nanosecond counts once: for the innermost recorded activity of the thread that launched the next work, until its launch returned. Left out: places with a single child, and those below 1 %.",
    )
    by_kind = from_rows(("run", "role", "idle_ns", *HOLDERS), kind_rows)
    kinds = [kind for kind in HOLDERS if any(by_kind.values(kind))]
    headings = [Heading(kind, HOLDER_TITLES[kind][0], "ratio", HOLDER_TITLES[kind][1]) for kind in kinds]
    of_kinds = make_sheet(
        "idle_blame_kinds",
        "GPU idle time by kind of call",
        (*labels, *parse_headings("idle_ns | idle | ns | Per step and GPU; the kinds add up to it."), *headings),
        by_kind,
    )
    return by_place, of_kinds


_BRANCH = ("frame", "kind", "share", "idle_ns", "own_ns")


def _list_idle_branch_rows(
    measured: Measurements, idle_blame: IdleBlame, chosen: Ints, owner: Owner
) -> list[tuple[Value, ...]]:
    """List the rows of one role."""
    own = sum_by_group(idle_blame.node[chosen], idle_blame.idle_ns[chosen], len(idle_blame.tree.parent))
    steps = count_gpu_steps(measured).get(owner, NO_STEPS)
    rows: list[tuple[Value, ...]] = [
        (
            *owner,
            "· " * branch.depth + format_python_frame(idle_blame.tree.frame[branch.node]),
            HOLDER_TITLES[HOLDERS[idle_blame.tree.holder[branch.node]]][0],
            branch.idle_ns / int(own.sum()),
            round(steps.mean(branch.idle_ns)),
            round(steps.mean(branch.own_ns)),
        )
        for branch in list_idle_branches(idle_blame.tree, own, LEAST_SHOWN)
    ]
    return rows[:MAX_BRANCHES]


def _make_idle_kind_row(measured: Measurements, idle_blame: IdleBlame, chosen: Ints, owner: Owner) -> tuple[Value, ...]:
    """Make the row of shares of one role."""
    sums = sum_by_group(idle_blame.holder[chosen], idle_blame.idle_ns[chosen], len(HOLDERS))
    total = int(sums.sum())
    per_step_ns = round(count_gpu_steps(measured).get(owner, NO_STEPS).mean(total))
    return (*owner, per_step_ns, *(sums / total).tolist())


def draw_idle_call_tree(measured: Measurements) -> Chart:
    """Draw the call tree of idle time over all judged windows."""
    of = blame_idle_time(measured)
    chosen = np.flatnonzero(of.node >= 0)
    own = sum_by_group(of.node[chosen], of.idle_ns[chosen], len(of.tree.parent))
    marks = layout_idle_icicle(of.tree, own, LEAST_DRAWN)
    names = {text: place for place, text in enumerate(dict.fromkeys(of.tree.frame[m[1]] for m in marks))}
    depths = 1 + max((depth for depth, *_ in marks), default=0)
    return Chart(
        "idle-blame",
        "GPU idle time by call path",
        "icicle",
        tuple((depth, names[of.tree.frame[node]], low, high) for depth, node, low, high in marks),
        tuple(names),
        ("outermost", *(str(depth) for depth in range(1, depths))),
        caption="Idle time, Σ over GPUs and steps: the width is the time below a place.",
    )
