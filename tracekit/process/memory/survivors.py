"""Surviving memory of a snapshot: blocks in use at the end, by the stack that allocated them and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stages import parse_numbered_step, parse_profiler_step
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.keys import compute_stable_order, find_distinct
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES

Ints = npt.NDArray[np.int64]

MAX_STACKS = 4_000
"""Stacks of one snapshot listed at most: those with most bytes."""

MAX_BLOCKS = 50_000
"""Blocks of one snapshot listed at most: those of the stacks with most new blocks."""

MAX_MARKS, MAX_GROWING = 200, 300
"""Steps followed within one snapshot at most (the last ones), and stacks that grow over them."""

_BEFORE = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SurvivingMemory:
    """Memory in use at the end of a snapshot, in requested bytes.

    `windows`: one row per device: device, begin_ns, end_ns (of the history), entry_count, live_bytes,
    live_count, omitted_stack_count, omitted_block_count. `stacks`: device, stack, live_ and born_ bytes and
    counts (born: allocated within the history). `blocks`: device, stack, address, size_bytes, born, born_ns
    of the blocks of stacks to which the history adds; blocks of other stacks are all as old as the history or
    older.
    """

    windows: pd.DataFrame
    stacks: pd.DataFrame
    blocks: pd.DataFrame


def find_surviving_memory(trace: Trace) -> SurvivingMemory:
    """List the blocks in use at the end of a snapshot's history, by device and stack."""
    live = trace.derived(list_blocks_in_use)
    active = live[(live["state"] == "active").to_numpy()]
    device, size = _read_ints_or_minus_one(active["device"]), active["size_bytes"].to_numpy()
    born = active["born"].to_numpy()
    untold = active["stack"].isna().to_numpy()
    code = number_equal_rows(device, _read_ints_or_minus_one(active["stack"]), untold.astype(np.int64))
    count = int(code.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    live_sums, fresh = np.zeros((2, count), np.int64), np.zeros((2, count), np.int64)
    for row, weight in enumerate((size, np.ones(len(size), np.int64))):
        np.add.at(live_sums[row], code, weight)
        np.add.at(fresh[row], code, born * weight)
    largest = _find_heaviest_rows(device[first], live_sums[0], MAX_STACKS)
    stacks = pd.DataFrame(
        {
            "device": active["device"].array[first[largest]],
            "stack": active["stack"].array[first[largest]],
            "live_bytes": live_sums[0][largest],
            "live_count": live_sums[1][largest],
            "born_bytes": fresh[0][largest],
            "born_count": fresh[1][largest],
        }
    )
    # List single blocks only for stacks that gained some, those that gained most first.
    chosen = np.zeros(count, np.bool_)
    chosen[largest] = fresh[1][largest] > 0
    rows = (chosen[code] & active["address"].notna().to_numpy()).nonzero()[0]
    chosen_rows = rows[_find_heaviest_rows(device[rows], fresh[0][code[rows]], MAX_BLOCKS)]
    columns = ["device", "stack", "address", "size_bytes", "born", "born_ns"]
    blocks = active[columns].iloc[chosen_rows].reset_index(drop=True)
    windows = _describe_device_histories(trace, live)
    devices = _read_ints_or_minus_one(windows["device"])
    left_stacks = np.ones(count, np.bool_)
    left_stacks[largest] = False
    left_blocks = ~np.isin(rows, chosen_rows)
    windows["omitted_stack_count"] = [int((device[first][left_stacks] == d).sum()) for d in devices]
    windows["omitted_block_count"] = [int((device[rows][left_blocks] == d).sum()) for d in devices]
    return SurvivingMemory(windows, stacks, blocks)


def number_equal_rows(*columns: Ints) -> Ints:
    """Assign a number to each row; rows that are equal in all columns share one."""
    order = compute_stable_order(columns[0])
    for column in columns[1:]:
        order = order[compute_stable_order(column[order])]
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        in_order = column[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    out = np.empty(len(order), np.int64)
    out[order] = np.cumsum(new)
    return out


def _find_heaviest_rows(device: Ints, weight: Ints, max_count: int) -> Ints:
    """Find, per device, the `max_count` rows with the largest weight, the heaviest first."""
    order = np.lexsort((-weight, device))
    begin = np.searchsorted(device[order], device[order])
    chosen = order[np.arange(len(order)) - begin < max_count]
    return chosen[np.argsort(-weight[chosen], kind="stable")]


def _read_ints_or_minus_one(column: pd.Series[Any]) -> Ints:
    """Convert a column to int64, -1 where missing."""
    return column.to_numpy(np.int64, na_value=-1)


def list_blocks_in_use(trace: Trace) -> pd.DataFrame:
    """List the blocks in use: device, address, size_bytes (requested), stack, state, born, born_ns."""
    blocks = trace.get("blocks")
    used = (blocks["memory"] == "device") & blocks["state"].isin(("active", "pending_free"))
    asked, rounded = (_read_ints_or_minus_one(blocks["requested_bytes"]), _read_ints_or_minus_one(blocks["size_bytes"]))
    size = np.where(asked >= 0, asked, rounded)
    sound = used.to_numpy() & (size >= 0) & (size < MAX_BYTES)
    # Impossible totals are damage, and would overflow 64 bits.
    if float(size[sound].astype(np.float64).sum()) >= 2.0**62:
        sound[:] = False
    live = blocks.loc[sound, ["device", "address", "stack", "state"]].reset_index(drop=True)
    live["size_bytes"] = size = size[sound]
    past = trace.derived(list_allocation_history)
    place = number_equal_rows(
        *(np.append(_read_ints_or_minus_one(past[n]), _read_ints_or_minus_one(live[n])) for n in ("device", "address"))
    )
    last = np.full(int(place.max(initial=-1)) + 1, -1, np.int64)
    last[place[: len(past)]] = np.arange(len(past))
    allocation = last[place[len(past) :]]
    is_known = (allocation >= 0) & live["address"].notna().to_numpy()
    allocation = np.where(is_known, allocation, 0)
    ts = np.append(_read_ints_or_minus_one(past["ts_ns"]), -1)[allocation]
    same = np.append(past["is_alloc"].to_numpy(), False)[allocation]
    born = is_known & same & (np.append(_read_ints_or_minus_one(past["size_bytes"]), -1)[allocation] == size)
    live["born"] = born
    untimed = np.append(past["ts_ns"].isna().to_numpy(), True)[allocation]
    live["born_ns"] = pd.arrays.IntegerArray(ts, ~born | untimed)
    return live


def list_allocation_history(trace: Trace) -> pd.DataFrame:
    """List allocations and completed frees of devices in order: device, address, ts_ns, size_bytes, stack, is_alloc."""
    rows = trace.get("allocations")
    size = _read_ints_or_minus_one(rows["size_bytes"])
    is_alloc = (rows["action"] == "alloc").to_numpy()
    is_usable = is_alloc | (rows["action"] == "free_completed").to_numpy()
    is_usable &= (rows["memory"] == "device").to_numpy() & rows["address"].notna().to_numpy()
    is_usable &= (size >= 0) & (size < MAX_BYTES)
    out = rows.loc[is_usable, ["device", "address", "ts_ns", "size_bytes", "stack"]]
    return out.reset_index(drop=True).assign(is_alloc=is_alloc[is_usable])


def _describe_device_histories(trace: Trace, live: pd.DataFrame) -> pd.DataFrame:
    """Describe every device with a history or blocks."""
    rows = trace.get("allocations")
    rows = rows[(rows["memory"] == "device").to_numpy()]
    device, ts = _read_ints_or_minus_one(rows["device"]), rows["ts_ns"]
    device_codes, size = _read_ints_or_minus_one(live["device"]), live["size_bytes"].to_numpy()
    windows_of = []
    for number in find_distinct(np.append(device, device_codes)).tolist():
        times = ts.array[device == number]
        own_sizes = size[device_codes == number]
        windows_of.append(
            {
                "device": pd.NA if number < 0 else number,
                "begin_ns": times.min(),
                "end_ns": times.max(),
                "entry_count": len(times),
                "live_bytes": int(own_sizes.sum()),
                "live_count": len(own_sizes),
            }
        )
    columns = ["device", "begin_ns", "end_ns", "entry_count", "live_bytes", "live_count"]
    frame = pd.DataFrame(windows_of, columns=columns)
    return frame.astype(dict.fromkeys(columns, "int64") | dict.fromkeys(columns[:3], "Int64"))


def find_growing_stacks(trace: Trace) -> pd.DataFrame:
    """Find the stacks that have more bytes at the last step end than at the first, within one snapshot.

    Columns: device, stack, window (number of the step's end), step (as recorded), live_bytes, live_count,
    cohort_count (number of steps that surviving blocks come from; only at the last end). Empty with fewer
    than 3 ends.
    """
    ends, number = find_step_ends(trace)
    rows = trace.derived(list_allocation_history)
    parts = []
    if len(ends) >= 3 and bool(rows["ts_ns"].notna().all()):
        lives = _compute_block_lives(rows, trace.derived(list_blocks_in_use))
        parts = [
            _find_growing_stacks_of_device(own_lives, ends).assign(device=device)
            for device, own_lives in lives.groupby("device", dropna=False, sort=True)
        ]
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True)
    return table.assign(
        device=table["device"].astype("Int64"), step=pd.array([number[k] for k in table["window"]], dtype="Int64")
    )


def find_step_ends(trace: Trace) -> tuple[Ints, list[int | None]]:
    """Find the (times when steps end, their numbers), from annotations of steps, else of an optimizer's step."""
    rows = trace.get("annotations")
    rows = rows[(rows["stage"] == "end") & rows["ts_ns"].notna() & rows["name"].notna()]
    rows = rows.drop_duplicates(["ts_ns", "name"]).sort_values("ts_ns", kind="stable")
    names = [str(name) for name in rows["name"].cat.categories]
    code = rows["name"].cat.codes.to_numpy()
    ts = rows["ts_ns"].to_numpy(np.int64)
    # If the file itself is a step, the ranges that a program numbers are parts of it.
    is_one_step = trace.source.step is not None
    for number_of in (parse_profiler_step,) if is_one_step else (parse_profiler_step, parse_numbered_step):
        numbers = [number_of(name) for name in names]
        chosen = np.array([n is not None for n in numbers], np.bool_)[code]
        if chosen.any():
            return ts[chosen][-MAX_MARKS:], [numbers[c] for c in code[chosen][-MAX_MARKS:]]
    optimizer = np.array([name.startswith("Optimizer.step#") for name in names], np.bool_)[code]
    if is_one_step or not optimizer.any():
        return np.empty(0, np.int64), []
    # Of several optimizers, take the one that steps most often.
    in_thread = code == np.bincount(code[optimizer]).argmax()
    return ts[in_thread][-MAX_MARKS:], [None] * int(min(in_thread.sum(), MAX_MARKS))


def _compute_block_lives(rows: pd.DataFrame, left: pd.DataFrame) -> pd.DataFrame:
    """Compute the life of every block with a known stack: device, stack, size_bytes, begin_ns, end_ns."""
    code = number_equal_rows(_read_ints_or_minus_one(rows["device"]), _read_ints_or_minus_one(rows["address"]))
    order = compute_stable_order(code)
    code, alloc = code[order], rows["is_alloc"].to_numpy()[order]
    ts = rows["ts_ns"].to_numpy(np.int64)[order]
    same = np.append(code[1:] == code[:-1], False)[: len(code)]
    end = np.where(same, np.append(ts[1:], _NEVER)[: len(ts)], _NEVER)
    born = rows.iloc[order][alloc]
    lives = born[["device", "stack", "size_bytes"]].assign(begin_ns=ts[alloc], end_ns=end[alloc])
    lives = lives.astype({"size_bytes": "int64"})
    lives = lives[(lives["size_bytes"] >= 0) & (lives["size_bytes"] < MAX_BYTES)]
    old = left[(left["state"] == "active") & ~left["born"]]
    old = old[["device", "stack", "size_bytes"]].assign(begin_ns=_BEFORE, end_ns=_NEVER)
    return pd.concat([lives, old], ignore_index=True)


def _find_growing_stacks_of_device(lives: pd.DataFrame, ends: Ints) -> pd.DataFrame:
    """Find the stacks of one device with more bytes at the last end than at the first; one row per stack and end."""
    code, stacks = pd.factorize(lives["stack"], use_na_sentinel=False)
    first = np.searchsorted(ends, lives["begin_ns"].to_numpy(), "left")
    stop = np.searchsorted(ends, lives["end_ns"].to_numpy(), "left")
    size = lives["size_bytes"].to_numpy()
    alive = first < stop
    changes = np.zeros((2, len(stacks), len(ends) + 1), np.int64)
    for sign, when in ((1, first), (-1, stop)):
        np.add.at(changes[0], (code[alive], when[alive]), sign * size[alive])
        np.add.at(changes[1], (code[alive], when[alive]), sign)
    levels, count = np.cumsum(changes, axis=2)[:, :, :-1]
    grown = levels[:, -1] - levels[:, 0]
    chosen = np.argsort(-grown, kind="stable")[:MAX_GROWING]
    chosen = chosen[grown[chosen] > 0]
    left = alive & (stop == len(ends))
    before = (lives["begin_ns"] == _BEFORE).to_numpy()
    cohort = pd.DataFrame({"code": code[left], "at": np.where(before, -1, first)[left]})
    cohorts = cohort.groupby("code")["at"].nunique().reindex(chosen).fillna(0).astype("int64")
    marks = len(ends)
    cohort_counts = pd.array(np.repeat(cohorts.to_numpy(), marks), dtype="Int64")
    cohort_counts[np.tile(np.arange(marks), len(chosen)) < marks - 1] = pd.NA
    return pd.DataFrame(
        {
            "stack": pd.Series(stacks, dtype="Int64").array[np.repeat(chosen, marks)],
            "window": np.tile(np.arange(marks), len(chosen)),
            "live_bytes": levels[chosen].ravel(),
            "live_count": count[chosen].ravel(),
            "cohort_count": cohort_counts,
        }
    )
