"""Steps and stages of a memory snapshot: its annotations as ranges, else the file as one step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at
from tracekit.model.stages import is_collective_range, parse_numbered_step, parse_profiler_step
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.keys import mask_equal
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import Replay
from tracekit.process.name_filters import mark_wanted_names

Ints = npt.NDArray[np.int64]


def list_annotated_ranges(trace: Trace) -> pd.DataFrame:
    """List the annotated ranges in order of start: `name`, `ts_ns`, `dur_ns`; of the device with most annotations.

    A start is paired with the next end of its name at the same depth. A range whose start or end was not
    recorded begins or ends with the history.
    """
    frame = _select_annotation_marks(trace)
    if not len(frame):
        names, none = pd.Categorical.from_codes([], categories=frame["name"].cat.categories), np.empty(0, np.int64)
        return pd.DataFrame({"name": names, "ts_ns": none, "dur_ns": none})
    name = frame["name"].cat.codes.to_numpy().astype(np.int64)
    ts = frame["ts_ns"].to_numpy(np.int64)
    opens = (frame["stage"] == "start").to_numpy()
    # Within a name, marks at one depth alternate: start, end, start, end.
    order = np.argsort(name, kind="stable")
    step = np.where(opens, 1, -1)[order]
    level = np.cumsum(step)
    depth = np.where(opens[order], level, level + 1)
    order = order[np.lexsort((np.arange(len(order)), depth, name[order]))]
    depth_of = np.empty(len(ts), np.int64)
    depth_of[np.argsort(name, kind="stable")] = depth
    is_open, key = opens[order], np.stack((name[order], depth_of[order]))
    same_key = np.append((key[:, 1:] == key[:, :-1]).all(axis=0), False)
    closed = is_open & same_key & ~np.append(is_open[1:], False)
    first, last = _find_history_bounds(trace, ts)
    after = np.append(ts[order][1:], last)
    starts, ends = ts[order][is_open], np.where(closed, after, last)[is_open]
    # An end without a start closes a range that began before the history.
    unmatched = ~is_open & ~np.append(False, closed[:-1])[: len(order)]
    begin = np.concatenate((starts, np.full(int(unmatched.sum()), first)))
    end = np.concatenate((ends, ts[order][unmatched]))
    codes = np.concatenate((name[order][is_open], name[order][unmatched]))
    sort = np.lexsort((-end, begin))
    categories = frame["name"].cat.categories
    return pd.DataFrame(
        {
            "name": pd.Categorical.from_codes(codes[sort], categories=categories),
            "ts_ns": begin[sort],
            "dur_ns": np.maximum(end - begin, 0)[sort],
        }
    )


def _select_annotation_marks(trace: Trace) -> pd.DataFrame:
    """Select the starts and ends with a time and a name, in order, of one device; all devices record the same."""
    frame = trace.get("annotations")
    frame = frame[frame["ts_ns"].notna() & frame["name"].notna() & (frame["stage"] != "other")]
    counts = frame["device"].value_counts(dropna=False)
    if len(counts) > 1:
        frequent = counts[counts == counts.max()].index
        device = min((d for d in frequent if not pd.isna(d)), default=None)
        frame = frame[mask_equal(frame["device"], device)]
    return frame.sort_values("ts_ns", kind="stable")


def _find_history_bounds(trace: Trace, ts: Ints) -> tuple[int, int]:
    """Find when the history begins and ends."""
    times = trace.get("allocations")["ts_ns"].dropna().to_numpy(np.int64)
    times_all = np.concatenate((times, ts))
    return int(times_all.min()), int(times_all.max())


def list_snapshot_steps(trace: Trace, replay: Replay) -> pd.DataFrame:
    """List the steps of one device's history in order of start: `step`, `occurrence`, `ts_ns`, `dur_ns`.

    Ranges `ProfilerStep#n`, else ranges that a program numbers, else the whole history with the number of the
    file.
    """
    all_ranges = trace.derived(list_annotated_ranges)
    names = [str(name) for name in all_ranges["name"].cat.categories]
    numbers: list[int | None] = []
    if replay.timed:
        # If the file itself is a step, the ranges that a program numbers are parts of it.
        for number_of in (parse_profiler_step, parse_numbered_step)[: 1 if trace.source.step is not None else 2]:
            numbers = [number_of(name) for name in names]
            if any(number is not None for number in numbers):
                break
    chosen = np.array([*(number is not None for number in numbers), False], np.bool_)
    if not chosen.any():
        return _make_file_step(trace, replay)
    rows = all_ranges[chosen[all_ranges["name"].cat.codes.to_numpy()]]
    step = np.array([numbers[code] for code in rows["name"].cat.codes], np.int64)
    frame = pd.DataFrame(
        {"step": pd.array(step, dtype="Int64"), "ts_ns": rows["ts_ns"].to_numpy(), "dur_ns": rows["dur_ns"].to_numpy()}
    )
    frame.insert(1, "occurrence", frame.groupby("step").cumcount().to_numpy(np.int32))
    return frame


def _make_file_step(trace: Trace, replay: Replay) -> pd.DataFrame:
    """Make the history one step that includes earlier memory; empty without a history."""
    count = int(len(replay.ts_ns) > 0)
    first = replay.ts_ns[:1] - 1
    return pd.DataFrame(
        {
            "step": pd.array([trace.source.step] * count, dtype="Int64"),
            "occurrence": np.zeros(count, np.int32),
            "ts_ns": first,
            "dur_ns": replay.ts_ns[-1:] - first + 1,
        }
    )


def _is_snapshot_stage_name(name: str) -> bool:
    """Check whether a range of this name may be a stage: neither a step nor a collective."""
    return parse_profiler_step(name) is None and parse_numbered_step(name) is None and not is_collective_range(name)


def list_snapshot_stages(trace: Trace, snapshot_steps: pd.DataFrame) -> pd.DataFrame:
    """List the outermost ranges that are not steps or collectives: `step`, `stage`, `occurrence`, `ts_ns`, `dur_ns`."""
    rows = trace.derived(list_annotated_ranges)
    rows = rows[mark_wanted_names(rows["name"], _is_snapshot_stage_name)]
    end = (rows["ts_ns"] + rows["dur_ns"]).to_numpy()
    # Sorted by start, a range that ends within an earlier one is inside it.
    before = np.maximum.accumulate(end)
    outer = np.append(True, end[1:] > before[:-1])[: len(end)]
    rows = rows[outer]
    start = rows["ts_ns"].to_numpy()
    row = find_window_at(
        snapshot_steps["ts_ns"].to_numpy(), (snapshot_steps["ts_ns"] + snapshot_steps["dur_ns"]).to_numpy(), start
    )
    number = snapshot_steps["step"].array
    step = np.append(number.to_numpy(np.int64, na_value=0), 0)[row]
    missing = (row < 0) | np.append(np.asarray(number.isna()), True)[row]
    frame = pd.DataFrame(
        {
            "step": pd.arrays.IntegerArray(step, missing),
            "stage": rows["name"].array,
            "ts_ns": start,
            "dur_ns": rows["dur_ns"].to_numpy(),
        }
    )
    keys = [np.where(missing, -1, step), rows["name"].cat.codes.to_numpy()]
    frame.insert(2, "occurrence", frame.groupby(keys).cumcount().to_numpy(np.int32))
    return frame
