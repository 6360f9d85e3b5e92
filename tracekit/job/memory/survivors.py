"""Stacks that hold more memory at every step, and of how many steps: by the snapshots of one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import apart
from tracekit.model.keys import PROCESS, equal, joined, looked_up
from tracekit.model.records import dataclass
from tracekit.model.stats.staircase import slows_down, staircase
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

OWNER = (*PROCESS, "replica", "device")
"""Whose memory it is: one device as one process uses it."""

MAX_KEPT = 300
"""Most stacks of one process that are kept: those that grew most."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A stack that holds more and more: `growth` bytes over `steps` steps (or snapshots), after `warm_up` of them.

    `cohorts` is of how many steps blocks are still alive, `windows` how many were compared, `basis`
    `snapshot` or `step` (within one snapshot). `numbered` tells whether steps are numbered. `levels` are the
    bytes at each of the times compared, `at` the step (else the place in order) of each.
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

    @property
    def per_step(self) -> float:
        """Bytes by which it grows from one step to the next."""
        return self.growth / self.steps


def folded(tables: Mapping[str, Columns]) -> Mapping[str, Columns]:
    """The snapshots of one process in order of time: windows numbered, stacks that grow with their cohorts.

    What is told of single blocks is gone then.
    """
    names = ("snapshot_windows", "survivors", "survivor_blocks")
    if "snapshot_windows" not in tables:
        return {name: rows for name, rows in tables.items() if name not in names}
    windows, stacks, blocks = (
        (tables[name] if name in tables else TABLES[name].no_rows()).judged() for name in names
    )
    windows = _ordered(windows)
    at_end = (stacks["basis"] == "snapshot").to_numpy()
    grown = _with_cohorts(windows, stacks[at_end], blocks)
    survivors = pd.concat([grown, stacks[~at_end]], ignore_index=True)
    return {
        "snapshot_windows": _columns("snapshot_windows", windows),
        "survivors": _columns("survivors", survivors),
    }


def _columns(name: str, rows: pd.DataFrame) -> Columns:
    """The rows of a table as its columns."""
    table = TABLES[name]
    return table.cast({column: rows[column].array for column in table.columns}, len(rows))


def _ordered(windows: pd.DataFrame) -> pd.DataFrame:
    """The windows with `window` and `gap_ns`: by their ends, else by their steps, else unknown."""
    rows = windows
    number = pd.array([pd.NA] * len(rows), dtype="Int64")
    gap = pd.array([pd.NA] * len(rows), dtype="Int64")
    for _, of_owner in rows.groupby([*OWNER], dropna=False, sort=False):
        by = next((n for n in ("end_ns", "step") if bool(of_owner[n].notna().all())), None)
        is_named = bool(of_owner[["rank", "pid", "step"]].notna().to_numpy().any())
        # Without a rank, a process or a step in their names, several files may be of several programs.
        if (by is None or not is_named) and len(of_owner) > 1:
            continue
        # A copy of a snapshot tells nothing new.
        order = of_owner.sort_values([by, "source"] if by else ["source"], kind="stable")
        order = order.drop_duplicates(["end_ns", "step", "live_bytes", "live_count", "entry_count"])
        place = order.index.to_numpy()
        number[place] = np.arange(len(place))
        gap[place] = (order["begin_ns"] - order["end_ns"].shift()).array
    return windows.assign(window=number, gap_ns=gap)


def _with_cohorts(
    windows: pd.DataFrame, stacks: pd.DataFrame, blocks: pd.DataFrame
) -> pd.DataFrame:
    """The rows of the stacks that hold more at the last window than at the first compared, with their cohorts."""
    when = windows[[*OWNER, "source", "window", "end_ns"]]
    when = when[when["window"].notna()].astype({"window": "int64"})
    when = when.sort_values([*OWNER, "window"], kind="stable")
    # A snapshot without a history tells of no time; the one before it does.
    when["end_ns"] = when.groupby([*OWNER], dropna=False)["end_ns"].ffill()
    when["before_ns"] = when.groupby([*OWNER], dropna=False)["end_ns"].shift()
    count = when.groupby([*OWNER], dropna=False)["window"].transform("size")
    when["count"] = count
    keys = [*OWNER, "source"]
    rows = stacks.drop(columns="window").reset_index(names="row")
    levels = joined(rows[["row", *keys, "stack", "live_bytes"]], when, keys, optional=keys)
    levels = levels[levels["count"] >= 3]
    if not len(levels):
        return stacks.iloc[:0]
    levels["code"] = levels.groupby([*OWNER, "stack"], dropna=False, sort=False).ngroup()
    first, last = (
        levels["window"] == warm_up_of(levels["count"]),
        levels["window"] == levels["count"] - 1,
    )
    begin = levels[first].set_index("code")["live_bytes"]
    final = levels[last].set_index("code")["live_bytes"]
    grown = final.sub(begin.reindex(final.index).fillna(0)).astype("int64")
    grown = grown[grown > 0].sort_values(ascending=False, kind="stable")
    owner = levels.drop_duplicates("code").set_index("code")[[*OWNER]].loc[grown.index]
    grown = grown[(owner.groupby([*OWNER], dropna=False).cumcount() < MAX_KEPT).to_numpy()]
    levels = levels[levels["code"].isin(grown.index)]
    cohorts = _cohorts(levels, blocks, when)
    with_cohorts = looked_up(levels, cohorts, ["code", "window"]).set_index("row")
    with_cohorts["cohort_count"] = with_cohorts["cohort_count"].astype("Int64")
    out = stacks.iloc[with_cohorts.index.to_numpy()]
    return out.assign(
        window=with_cohorts["window"].astype("Int64").array,
        cohort_count=with_cohorts["cohort_count"].array,
    )


def _cohorts(levels: pd.DataFrame, blocks: pd.DataFrame, when: pd.DataFrame) -> pd.DataFrame:
    """Of how many windows blocks are alive: code (of the stack), window, cohort_count.

    A block is the one of the window before when address, size and stack are the same and it was not
    allocated since. Where it is first seen without an allocation it is older than all that is told.
    """
    keys = [*OWNER, "source"]
    codes = levels[[*OWNER, "stack", "code"]].drop_duplicates("code")
    rows = blocks[[*keys, "stack", "address", "size_bytes", "born", "born_ns"]]
    of_stack = [*OWNER, "stack"]
    rows = joined(joined(rows, codes, of_stack, optional=of_stack), when, keys, optional=keys)
    rows["block"] = rows.groupby(["code", "address", "size_bytes"], sort=False).ngroup()
    # The how-manieth window it is in which the stack is told of block by block.
    windows_of_stack = rows[["code", "window"]].drop_duplicates().sort_values(["code", "window"])
    windows_of_stack["ordinal"] = windows_of_stack.groupby("code").cumcount()
    rows = joined(rows, windows_of_stack, ["code", "window"])
    rows = rows.sort_values(["block", "window"], kind="stable", ignore_index=True)
    block, ordinal = rows["block"].to_numpy(), rows["ordinal"].to_numpy()
    born, window = rows["born"].to_numpy(np.bool_), rows["window"].to_numpy(np.int64)
    fresh = (rows["born_ns"] > rows["before_ns"]).to_numpy(np.bool_, na_value=False) & born
    goes_on = np.zeros(len(rows), np.bool_)
    goes_on[1:] = (block[1:] == block[:-1]) & (ordinal[1:] == ordinal[:-1] + 1) & ~fresh[1:]
    start = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(rows))))
    older = ~born[start] & (ordinal[start] == 0)
    rows["cohort"] = np.where(older, -1, window[start])
    counted = rows.groupby(["code", "window"])["cohort"].nunique()
    return counted.rename("cohort_count").reset_index()


def kept(measured: Measurements, limit: Mapping[str, float]) -> Sequence[Kept]:
    """The stacks that never hold less from one time to the next, and blocks of several steps: most growth first.

    `limit` tells in which share of the steps it has to rise (`rising_ratio`), and of how many of them
    blocks have to be alive (`cohorts`).
    """
    if not measured.has("survivors"):
        return ()
    rows = measured["survivors"]
    by_process = rows.groupby([*OWNER, "basis"], dropna=False, sort=False)
    stacks: list[Kept] = []
    for (*process, basis), of_process in by_process:
        stacks += _of_process(tuple(map(_none, process)), str(basis), of_process, limit)
    # What is found across snapshots is not told again of each of them.
    across = {(stack.process, stack.site) for stack in stacks if stack.basis == "snapshot"}
    stacks = [
        stack
        for stack in stacks
        if stack.basis == "snapshot" or (stack.process, stack.site) not in across
    ]
    return sorted(stacks, key=lambda stack: (-stack.growth, stack.site, str(stack.process)))


def leaks(measured: Measurements, limit: Mapping[str, float]) -> Sequence[Kept]:
    """The kept stacks that do not look like a cache that fills up: their growth goes on, over 4 times or more."""
    stacks = kept(measured, limit)
    return [s for s in stacks if s.windows > FEW_TIMES and not slows_down(s.at, s.levels)]


FEW_TIMES = 3
"""Of so few times no warm-up can be left out: a cache that fills up looks the same."""


def ran_out(measured: Measurements, one: Kept) -> bool:
    """Whether a request for memory failed in the process and on the device of a kept stack."""
    return bool(failures_of(measured["out_of_memory"], one).any())


def failures_of(failures: pd.DataFrame, one: Kept) -> npt.NDArray[np.bool_]:
    """Which rows of `out_of_memory` are of the process and the device of a kept stack."""
    is_same = (failures["memory"] == "device").to_numpy(np.bool_)
    for name, value in zip(OWNER, one.process, strict=True):
        if name in failures:
            is_same = is_same & equal(failures[name], value)
    return np.asarray(is_same, np.bool_)


def _of_process(
    process: tuple[Any, ...], basis: str, rows: pd.DataFrame, limit: Mapping[str, float]
) -> Iterator[Kept]:
    """The stacks of one process that are kept; of each snapshot apart where steps are within it."""
    snapshots: Iterable[pd.DataFrame] = [rows]
    if basis == "step":
        snapshots = apart(rows, ["source"])
    for of_snapshot in snapshots:
        times = of_snapshot.drop_duplicates("window").sort_values("window")
        count = int(times["window"].max()) + 1
        warm_up = int(warm_up_of(count))
        code, stacks = pd.factorize(of_snapshot["stack"], use_na_sentinel=False)
        levels = np.zeros((len(stacks), count), np.int64)
        levels[code, of_snapshot["window"].to_numpy(np.int64)] = of_snapshot[
            "live_bytes"
        ].to_numpy()
        # Before its first step a stack holds nothing.
        since_nothing = np.pad(levels, ((0, 0), (1, 0)))
        levels = levels[:, warm_up:]
        cohorts, blocks = _last(of_snapshot, code, len(stacks))
        rises = np.diff(levels, axis=1)
        steady = (rises >= 0).all(axis=1)
        enough = max(2.0, limit["rising_ratio"] * rises.shape[1])
        often = (rises > 0).sum(axis=1) >= enough
        for stack in np.flatnonzero(steady & ~often & (cohorts >= limit["cohorts"])).tolist():
            # An evaluation or a checkpoint leaks at its own steps: equal rises at equal distances.
            stairs = staircase(since_nothing[stack]) or staircase(levels[stack])
            often[stack] = stairs is not None
        chosen = steady & often & (cohorts >= limit["cohorts"])
        step, numbered = _steps(times, count, warm_up)
        named = of_snapshot.assign(code=code).drop_duplicates("code").set_index("code")
        for grown in np.flatnonzero(chosen).tolist():
            yield Kept(
                process,
                basis,
                str(named["site"][grown]),
                str(named["frames"][grown]),
                int(levels[grown, -1] - levels[grown, 0]),
                step[-1] - step[0],
                numbered,
                int(cohorts[grown]),
                count,
                warm_up,
                int(blocks[grown]),
                tuple(levels[grown].tolist()),
                step,
            )


def _last(rows: pd.DataFrame, code: Ints, count: int) -> tuple[Ints, Ints]:
    """For each stack of how many windows blocks are alive at the end, and how many blocks it has then.

    Where the last windows tell of no single block nothing was added, so nothing was freed either.
    """
    last = rows.assign(code=code).sort_values("window", kind="stable")
    with_cohorts = last[last["cohort_count"].notna()].drop_duplicates("code", keep="last")
    cohorts = np.zeros(count, np.int64)
    cohorts[with_cohorts["code"].to_numpy()] = with_cohorts["cohort_count"].to_numpy(np.int64)
    final = last.drop_duplicates("code", keep="last")
    blocks = np.zeros(count, np.int64)
    blocks[final["code"].to_numpy()] = final["live_count"].to_numpy()
    return cohorts, blocks


def _steps(times: pd.DataFrame, count: int, warm_up: int) -> tuple[tuple[float, ...], bool]:
    """(the step of each time compared, else its place in order; whether steps are numbered)."""
    compared = times[times["window"] >= warm_up]
    step = compared["step"]
    if len(compared) == count - warm_up and bool(step.notna().all()):
        numbers = step.to_numpy(np.int64)
        if bool((np.diff(numbers) > 0).all()):
            return tuple(map(float, numbers.tolist())), True
    return tuple(map(float, range(warm_up, count))), False


def _none(value: Any) -> Any:
    """A key as Python has it: None where it is missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def warm_up_of(count: Any) -> Any:
    """How many of so many windows are warm-up: the first, unless there are only three."""
    return np.where(np.asarray(count) >= 4, 1, 0)
