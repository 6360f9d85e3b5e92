"""Stacks that hold more memory at every step, and the number of steps with live blocks: by the snapshots of one process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.stats.staircase import find_staircase, slows_down
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, make_nullable_numbers
from tracekit.model.tables.frame import Bools, Frame, concat, count_distinct_of, count_rows
from tracekit.model.tables.keys import PROCESS
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

OWNER = (*PROCESS, "replica", "device")
"""Identify the owner of memory: one device as one process uses it."""

MAX_KEPT = 300
"""Most stacks of one process that are kept: those that grew most."""

_COPY = ("end_ns", "step", "live_bytes", "live_count", "entry_count")
"""Equal in copies of one snapshot."""


@dataclass(frozen=True, slots=True)
class KeptStack:
    """A stack that holds more and more: `growth` bytes over `steps` steps (or snapshots), after `warm_up` of them.

    `cohorts` counts the steps with blocks that are still alive, `windows` the steps compared, `basis` is
    `snapshot` or `step` (within one snapshot). `numbered`: steps have numbers. `levels` are the
    bytes at each of the times compared, `at` the step (else the place in order) of each.
    `is_regrown`: earlier blocks are freed, and larger ones take their place. `stage` is the canonical name of the stage
    that allocates most of the memory; None if unknown.
    """

    process: tuple[Any, ...]
    basis: str
    site: str
    frames: str
    growth: int
    steps: float
    numbered: bool
    cohorts: int
    windows: int
    warm_up: int
    blocks: int
    levels: tuple[int, ...]
    at: tuple[float, ...]
    is_regrown: bool = False
    stage: str | None = None

    @property
    def per_step(self) -> float:
        """Growth in bytes per step."""
        return self.growth / self.steps


def fold_snapshots(tables: Mapping[str, Columns]) -> Mapping[str, Columns]:
    """Combine the snapshots of one process in order of time: number windows, keep stacks that grow with their cohorts.

    Drops the rows of single blocks.
    """
    names = ("snapshot_windows", "survivors", "survivor_blocks")
    if "snapshot_windows" not in tables:
        return {name: rows for name, rows in tables.items() if name not in names}
    windows, stacks, blocks = (
        Frame.from_columns(tables[name] if name in tables else TABLES[name].no_rows()) for name in names
    )
    windows = _number_windows(windows)
    at_end = stacks.equals("basis", "snapshot")
    grown = _keep_grown_stacks(windows, stacks.filter(at_end), blocks)
    folded = {"snapshot_windows": windows, "survivors": concat([grown, stacks.filter(~at_end)])}
    return {
        name: TABLES[name].cast(rows.select(*TABLES[name].columns).columns, len(rows)) for name, rows in folded.items()
    }


def _number_windows(windows: Frame) -> Frame:
    """Set `window` and `gap_ns`: by their ends, else by their steps, else unknown."""
    number: list[int | None] = [None] * len(windows)
    gap = number.copy()
    for of_owner in windows.with_columns(row=np.arange(len(windows))).group_by(*OWNER).frames():
        by = [name for name in ("end_ns", "step") if not of_owner.is_missing(name).any()][:1]
        is_named = not all(of_owner.is_missing(name).all() for name in ("rank", "pid", "step"))
        # Without a rank, a process or a step in their names, several files may be of several programs.
        if not (by and is_named) and len(of_owner) > 1:
            continue
        # A copy of a snapshot adds nothing.
        order = of_owner.sort(*by, "source").distinct(*_COPY)
        before = None
        for place, row in enumerate(order.rows("row", "begin_ns", "end_ns")):
            number[row["row"]] = place
            if before is not None and row["begin_ns"] is not None:
                gap[row["row"]] = row["begin_ns"] - before
            before = row["end_ns"]
    return windows.with_columns(window=make_nullable_numbers(number), gap_ns=make_nullable_numbers(gap))


def _keep_grown_stacks(windows: Frame, stacks: Frame, blocks: Frame) -> Frame:
    """Keep the stacks that hold more at the last window than at the first compared, with their cohorts."""
    keys = [*OWNER, "source"]
    times = _list_times(windows)
    levels = stacks.drop("window", "cohort_count").join(times, keys, optional=keys)
    levels = levels.filter(levels["count"] >= 3)
    if not len(levels):
        return stacks.head(0)
    of_stack = levels.group_by(*OWNER, "stack")
    code, window, count = of_stack.number, levels["window"], levels["count"]
    begin, final = np.zeros((2, len(of_stack)), np.int64)
    is_first, is_last = window == count_warm_up(count), window == count - 1
    begin[code[is_first]] = levels["live_bytes"][is_first]
    final[code[is_last]] = levels["live_bytes"][is_last]
    growth = (final - begin)[code]
    levels = levels.with_columns(code=code, growth=growth)
    grown = levels.filter(is_last & (growth > 0))
    place = grown.group_by(*OWNER).position(grown.order("growth", descending=["growth"]))
    levels = levels.filter(np.isin(code, grown["code"][place < MAX_KEPT]))
    cohorts = _count_cohorts(levels, blocks, times)
    return levels.join(cohorts, ["code", "window"], how="left").select(*stacks.columns)


def _list_times(windows: Frame) -> Frame:
    """List the numbered windows: when the one before ended (`before_ns`), and the `count` of their owner's windows."""
    times = windows.filter(~windows.is_missing("window")).sort(*OWNER, "window")
    before: list[int | None] = []
    for of_owner in times.group_by(*OWNER).frames():
        end = None
        for end_ns in of_owner.values("end_ns"):
            before.append(end)
            # A snapshot without a history has no time; the one before it does.
            end = end if end_ns is None else end_ns
    return times.select(*OWNER, "source").with_columns(
        window=times.integers("window"),
        before_ns=make_nullable_numbers(before),
        count=times.group_by(*OWNER).each(count_rows()),
    )


def _count_cohorts(levels: Frame, blocks: Frame, times: Frame) -> Frame:
    """Count the windows whose blocks are alive: `code` of the stack, `window`, `cohort_count`.

    A block is the one of the window before when address, size and stack are the same and it was not
    allocated since. A block that appears without an allocation in the first window is older than the recording.
    """
    owner, keys = [*OWNER, "stack"], [*OWNER, "source"]
    codes = levels.distinct("code").select(*owner, "code")
    rows = blocks.select(*keys, "stack", "address", "size_bytes", "born", "born_ns")
    rows = rows.join(codes, owner, optional=owner).join(times, keys, optional=keys)
    rows = rows.with_columns(block=rows.group_by("code", "address", "size_bytes").number)
    # Number the windows in which the blocks of the stack are listed.
    of_stack = rows.distinct("code", "window").select("code", "window").sort("code", "window")
    of_stack = of_stack.with_columns(ordinal=of_stack.group_by("code").position())
    rows = rows.join(of_stack, ["code", "window"]).sort("block", "window")
    block, ordinal, born = rows["block"], rows["ordinal"], rows["born"]
    has_times = ~(rows.is_missing("born_ns") | rows.is_missing("before_ns"))
    is_fresh = has_times & (rows.integers("born_ns") > rows.integers("before_ns")) & born
    goes_on = np.zeros(len(rows), np.bool_)
    goes_on[1:] = (block[1:] == block[:-1]) & (ordinal[1:] == ordinal[:-1] + 1) & ~is_fresh[1:]
    start = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(rows))))
    is_older = ~born[start] & (ordinal[start] == 0)
    cohort = np.where(is_older, -1, rows["window"][start])
    return rows.group_by("code", "window").agg(cohort_count=count_distinct_of(cohort))


def find_kept_stacks(measured: Measurements, limit: Mapping[str, float]) -> Sequence[KeptStack]:
    """Find stacks that never hold less at the next time, with most growth first.

    `limit` sets the share of the steps in which a stack has to rise (`rising_ratio`), and how many of them
    need live blocks (`cohorts`). With fewer, larger blocks replace them: that needs `min_steps` times,
    and is reported if such a row of rises has a probability below `p_strong` in any of the process's stacks by chance.
    """
    survivors = measured.frame("survivors")
    windows = measured.frame("snapshot_windows")
    windows = windows.filter(~windows.is_missing("window"))
    of_owner = {tuple(part.values(name)[0] for name in OWNER): part for part in windows.group_by(*OWNER).frames()}
    stacks: list[KeptStack] = []
    for of_process in survivors.group_by(*OWNER, "basis").frames():
        first = next(of_process.rows(*OWNER, "basis"))
        known = of_owner.get(tuple(first[name] for name in OWNER)) if first["basis"] == "snapshot" else None
        stacks += _find_kept_in_process(of_process, known, limit)
    # A stack found across snapshots is not repeated for each of them.
    across = {(stack.process, stack.site) for stack in stacks if stack.basis == "snapshot"}
    stacks = [stack for stack in stacks if stack.basis == "snapshot" or (stack.process, stack.site) not in across]
    return sorted(stacks, key=lambda stack: (-stack.growth, stack.site, str(stack.process)))


def find_leaks(measured: Measurements, limit: Mapping[str, float]) -> Sequence[KeptStack]:
    """Find the kept stacks that do not look like a cache that fills up: their growth goes on, over 4 times or more."""
    stacks = find_kept_stacks(measured, limit)
    return [s for s in stacks if s.windows > FEW_TIMES and not slows_down(s.at, s.levels)]


FEW_TIMES = 3
"""With so few times no warm-up can be left out: a cache that fills up looks the same."""


def match_failures(failures: Frame, stack: KeptStack) -> Bools:
    """Tell which rows of `out_of_memory` are of the process and the device of a kept stack."""
    is_same = failures.equals("memory", "device")
    for name, value in zip(OWNER, stack.process, strict=True):
        if name in failures.columns:
            is_same = is_same & failures.equals(name, value)
    return is_same


def _find_kept_in_process(rows: Frame, windows: Frame | None, limit: Mapping[str, float]) -> Iterator[KeptStack]:
    """Find the kept stacks of one process and basis, in each snapshot apart where steps are within it.

    `windows` are the snapshots of the process, also those before its first growing stack.
    """
    first = next(rows.rows(*OWNER, "basis"))
    process, basis = tuple(first[name] for name in OWNER), first["basis"]
    for of_snapshot in rows.group_by("source").frames() if basis == "step" else [rows]:
        recorded = [each.select("window", "step") for each in (of_snapshot, windows) if each is not None]
        times = concat(recorded).distinct("window").sort("window")
        count = int(times.integers("window").max()) + 1
        warm_up = int(count_warm_up(count))
        stacks = of_snapshot.group_by("stack")
        levels = np.zeros((len(stacks), count), np.int64)
        levels[stacks.number, of_snapshot.integers("window")] = of_snapshot["live_bytes"]
        cohorts, blocks = _take_last_counts(of_snapshot, stacks.number, len(stacks))
        is_kept, is_regrown = _judge_levels(levels, warm_up, cohorts, limit)
        step, numbered = _list_steps(times, count, warm_up)
        named = list(of_snapshot.take(stacks.first).rows("site", "frames"))
        stages = _pick_stages(of_snapshot, stacks.number)
        levels = levels[:, warm_up:]
        for grown in np.flatnonzero(is_kept | is_regrown).tolist():
            yield KeptStack(
                process,
                basis,
                named[grown]["site"],
                named[grown]["frames"],
                int(levels[grown, -1] - levels[grown, 0]),
                step[-1] - step[0],
                numbered,
                int(cohorts[grown]),
                count,
                warm_up,
                int(blocks[grown]),
                tuple(levels[grown].tolist()),
                step,
                bool(is_regrown[grown]),
                stages.get(grown),
            )


def _pick_stages(rows: Frame, code: Ints) -> dict[int, str]:
    """Pick the stage of each stack that has one: that of most times, the first by name of equals."""
    counts: dict[int, Counter[str]] = {}
    for stack, stage, role in zip(code.tolist(), rows.values("stage"), rows.values("role"), strict=True):
        if stage is not None:
            counts.setdefault(stack, Counter())[get_canonical_stage(stage, role)] += 1
    return {stack: min(found, key=lambda stage: (-found[stage], stage)) for stack, found in counts.items()}


def _judge_levels(all_levels: Ints, warm_up: int, cohorts: Ints, limit: Mapping[str, float]) -> tuple[Bools, Bools]:
    """Judge the levels of stacks (rows) at all times: (whether their blocks are kept, whether larger ones replace them)."""
    levels = all_levels[:, warm_up:]
    rises = np.diff(levels, axis=1)
    never_falls = (rises >= 0).all(axis=1)
    is_rising = never_falls & ((rises > 0).sum(axis=1) >= max(2.0, limit["rising_ratio"] * rises.shape[1]))
    is_kept = is_rising & (cohorts >= limit["cohorts"])
    # Before its first step a stack holds nothing.
    since_nothing = np.pad(all_levels, ((0, 0), (1, 0)))
    for stack in np.flatnonzero(never_falls & (cohorts >= limit["cohorts"]) & ~is_kept).tolist():
        # An evaluation or a checkpoint leaks at its own steps: equal rises at equal distances.
        is_kept[stack] = (find_staircase(since_nothing[stack]) or find_staircase(levels[stack])) is not None
    # Of the n! orders of n different levels half end higher, as all these stacks do, and one rises from each to the next.
    count = levels.shape[1]
    is_rare = count >= limit["min_steps"] and 2 * len(levels) < limit["p_strong"] * math.factorial(min(count, 20))
    return is_kept, is_rising & ~is_kept & is_rare & (cohorts < limit["cohorts"])


def _take_last_counts(rows: Frame, code: Ints, count: int) -> tuple[Ints, Ints]:
    """Return for each stack the last known number of cohorts, and its number of blocks at the end.

    Windows without cohorts list no single block: nothing was added, so nothing was freed either.
    """
    order = rows.order("window")
    known = order[~rows.is_missing("cohort_count")[order]]
    cohorts, blocks = np.zeros((2, count), np.int64)
    cohorts[code[known]] = rows.integers("cohort_count")[known]  # of equal codes the last one counts
    blocks[code[order]] = rows["live_count"][order]
    return cohorts, blocks


def _list_steps(times: Frame, count: int, warm_up: int) -> tuple[tuple[float, ...], bool]:
    """Return (the step of each time compared, else its place in order; whether steps are numbered)."""
    compared = times.filter(times.integers("window") >= warm_up)
    if len(compared) == count - warm_up and not compared.is_missing("step").any():
        numbers = compared.integers("step")
        if (np.diff(numbers) > 0).all():
            return tuple(float(number) for number in numbers.tolist()), True
    return tuple(float(number) for number in range(warm_up, count)), False


def count_warm_up(windows: Any) -> Any:
    """Count the warm-up windows: the first, unless there are only three."""
    return np.where(np.asarray(windows) >= 4, 1, 0)
