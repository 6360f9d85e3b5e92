"""The collectives of one process: from its device where it ran any there, else from its host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import covered, union
from tracekit.model.keys import QUEUE
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.collective_facts import described, first_known, has
from tracekit.process.collective_names import SYNCHRONISING, op_of
from tracekit.process.launches import Launches, launches
from tracekit.process.nesting import nesting
from tracekit.process.placement import Placement, placement
from tracekit.process.sound import overlong
from tracekit.process.stage_at import stage_at, stage_names
from tracekit.process.steps import Windows, step_of, windows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

COLUMNS = [
    "step",
    "stage",
    "group",
    "group_size",
    "op",
    "dtype",
    "seq",
    "ordinal",
    "size_bytes",
    "ts_ns",
    "dur_ns",
    "device",
    "stream",
    "exposed_ns",
    "issue_ns",
    "synchronising",
]

MAX_ROWS = 200_000
"""Most collectives of one source kept one by one; beyond it the earliest."""

_ON_HOST = re.compile(r"(?:gloo|mpi|ucc):(.+)")
"""Ranges that last as long as the collective. Those of device libraries only last as long as its launch."""

_ANY_RANGE = re.compile(r"(?:gloo|mpi|ucc|nccl|rccl|hccl|xccl):(.+)")

_CALL = re.compile(r"c10d::")

_GROUP_END = re.compile(r"p?ncclGroupEnd\Z")

_COMMS = re.compile(r"record_param_comms\Z|p?nccl[A-Z]")
"""What tells of a collective beside its kernel: torch's record of it, or the call of NCCL itself."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """`frame`: the columns of `collectives` without its keys, in order of start; `cut`: how many more there were.

    `on_device` says where they were recorded.
    """

    frame: pd.DataFrame
    cut: int
    on_device: bool


def collectives(trace: Trace) -> Collectives:
    """The collectives of a trace; sizes after definition M12, steps and stages as of all device work."""
    kind = trace.get("device_ops")["kind"]
    rows = np.flatnonzero((kind == "collective").to_numpy() & ~trace.derived(overlong))
    on_device = len(rows) > 0
    if not on_device:
        rows = _host_rows(trace)
    table = trace.get("device_ops" if on_device else "host_ops")
    ts = table["ts_ns"].to_numpy()[rows]
    first_rows = rows[np.argsort(ts, kind="stable")][:MAX_ROWS]
    frame = _from_device(trace, first_rows) if on_device else _from_host(trace, first_rows)
    return Collectives(_placed(trace, frame, on_device), len(rows) - len(first_rows), on_device)


def _from_device(trace: Trace, rows: Ints) -> pd.DataFrame:
    """One row a collective on a device: what it is and when it ran; kernels of one call are one."""
    ops, links = trace["device_ops"].iloc[rows], trace.derived(launches)
    links_: Launches = links
    call = np.where(links_.call[rows] >= 0, links_.call[rows], links_.op[rows])
    has_name = has(trace, "Collective name", ops["id"].to_numpy())
    teller = _enclosing(trace, _comms_rows(trace), call)
    comms = _host_ids(trace, teller)
    ranges = _enclosing(trace, _is_range(trace, _ANY_RANGE), call)
    frame = described(
        trace,
        np.where(has_name, ops["id"].to_numpy(np.int64), comms),
        _host_ids(trace, ranges),
        first_known(_op_by_name(trace, "host_ops", ranges), _op_by_name(trace, "device_ops", rows)),
    )
    frame.loc[_in_parts(trace, teller), "size_bytes"] = pd.NA
    linked = links_.linked[rows]
    frame["ts_ns"], frame["dur_ns"] = ops["ts_ns"].to_numpy(), ops["dur_ns"].to_numpy()
    frame["device"], frame["stream"] = ops["device"].array, ops["stream"].array
    frame["exposed_ns"] = pd.array(_exposed(trace, ops), dtype="Int64")
    frame["issue_ns"] = pd.arrays.IntegerArray(links_.ts_ns[rows].copy(), ~linked)
    place: Placement = trace.derived(placement)
    frame["place_ns"] = pd.arrays.IntegerArray(place.ts_ns[rows], ~place.known[rows])
    return _one_a_call(frame, ops, has_name)


def _in_parts(trace: Trace, teller: Ints) -> Bools:
    """Which kernels are one of several that the end of a group of NCCL launched: what each moves is not known.

    `teller` is the row of `host_ops` that tells of each kernel, -1 for none.
    """
    ends = np.append(is_named(trace.get("host_ops")["name"], _GROUP_END.match), [False])
    several: Bools = pd.Series(teller).duplicated(keep=False).to_numpy() & ends[teller]
    return several


def _one_a_call(frame: pd.DataFrame, ops: pd.DataFrame, own: Bools) -> pd.DataFrame:
    """The frame with the kernels that one call launched on one stream as one row, its bytes counted once.

    Kernels of one launch (a graph) are collectives of their own, whatever call they share.
    """
    external, correlation = ops["external_id"], ops["correlation"]
    keys = pd.DataFrame(
        {
            "device": ops["device"].array,
            "stream": ops["stream"].array,
            "call": external.array,
            "op": frame["op"].array,
            "group": frame["group"].array,
            "seq": frame["seq"].array,
        }
    )
    shared = own & external.notna().to_numpy() & ~correlation.duplicated(keep=False).to_numpy()
    shared &= keys.duplicated(keep=False).to_numpy()
    if not shared.any():
        return frame
    number = np.arange(len(frame))
    number[shared] = len(frame) + keys[shared].groupby(list(keys), dropna=False).ngroup()
    frame["end"] = frame["ts_ns"] + frame["dur_ns"]
    how = dict.fromkeys(frame.columns, "first") | {"end": "max", "exposed_ns": "sum"}
    merged = frame.groupby(number, sort=False).agg(how).reset_index(drop=True)
    merged["dur_ns"] = merged.pop("end") - merged["ts_ns"]
    return merged


def _exposed(trace: Trace, ops: pd.DataFrame) -> Ints:
    """For each collective, how much of it no compute kernel of its device runs beside (M5)."""
    device_ops = trace["device_ops"]
    compute = device_ops[(device_ops["kind"] == "kernel").to_numpy() & ~trace.derived(overlong)]
    number, _ = pd.factorize(
        pd.concat([ops["device"], compute["device"]], ignore_index=True), use_na_sentinel=False
    )
    own_device, compute_device = number[: len(ops)], number[len(ops) :]
    start = ops["ts_ns"].to_numpy()
    end = start + ops["dur_ns"].to_numpy()
    from_, dur = compute["ts_ns"].to_numpy(), compute["dur_ns"].to_numpy()
    exposed: Ints = end - start
    for device in np.unique(own_device):
        on_device = own_device == device
        busy = union(from_[compute_device == device], (from_ + dur)[compute_device == device])
        exposed[on_device] -= covered(busy, start[on_device], end[on_device])
    return exposed


def _host_rows(trace: Trace) -> Ints:
    """The outermost ranges of `host_ops` that are a collective which the host itself carries out."""
    wanted = _is_range(trace, _ON_HOST)
    rows = np.flatnonzero(wanted)
    return rows[trace.derived(nesting).nearest(wanted, rows) < 0]


def _from_host(trace: Trace, rows: Ints) -> pd.DataFrame:
    """One row a collective that a host thread carried out."""
    host = trace.get("host_ops")
    start = host["ts_ns"].to_numpy()[rows]
    op = _op_by_name(trace, "host_ops", rows)
    call = _issuing_calls(trace, op, start)
    frame = described(trace, _comms_in(trace, call), _host_ids(trace, rows), op)
    frame["ts_ns"], frame["dur_ns"] = start, host["dur_ns"].to_numpy()[rows]
    for name in (*QUEUE, "exposed_ns"):
        frame[name] = pd.array([pd.NA] * len(rows), dtype="Int64")
    issued_ns = host["ts_ns"].to_numpy()[call] if len(host) else start
    frame["issue_ns"] = pd.arrays.IntegerArray(issued_ns.copy(), call < 0)
    frame["place_ns"] = pd.array(start, dtype="Int64")
    return frame


def _issuing_calls(trace: Trace, op: npt.NDArray[np.object_], start: Ints) -> Ints:
    """For each collective on the host (in order of start) the row of the call that queued it; -1 if unknown.

    Calls are served in the order in which they come: the k-th of an op is that of the k-th call, if there
    are equally many and none is served before it comes.
    """
    calls = np.flatnonzero(_outermost_calls(trace))
    call_op = _op_by_name(trace, "host_ops", calls)
    call_start = trace.get("host_ops")["ts_ns"].to_numpy()[calls]
    issuing = np.full(len(start), -1, np.int64)
    for name in set(op.tolist()):
        rows_of_op, calls_of_op = np.flatnonzero(op == name), np.flatnonzero(call_op == name)
        calls_of_op = calls_of_op[np.argsort(call_start[calls_of_op], kind="stable")]
        if (
            len(rows_of_op) == len(calls_of_op)
            and (call_start[calls_of_op] <= start[rows_of_op]).all()
        ):
            issuing[rows_of_op] = calls[calls_of_op]
    return issuing


def _outermost_calls(trace: Trace) -> Bools:
    """Which rows of `host_ops` are a call of a collective that is not made within another."""
    host = trace.get("host_ops")
    is_call = is_named(host["name"], lambda name: _CALL.match(name) and op_of(name) != "other")
    is_call &= (host["kind"] == "op").to_numpy()
    rows = np.flatnonzero(is_call)
    is_call[rows[trace.derived(nesting).nearest(is_call, rows) >= 0]] = False
    return is_call


def _comms_rows(trace: Trace) -> Bools:
    """Which rows of `host_ops` are a record or a call that tells of a collective."""
    host = trace.get("host_ops")
    chosen = is_named(host["name"], _COMMS.match)
    rows = np.flatnonzero(chosen)
    chosen[rows] = has(trace, "Collective name", host["id"].to_numpy()[rows])
    return chosen


def _comms_in(trace: Trace, call: Ints) -> Ints:
    """For each call (-1: none) the id of the last `record_param_comms` that it made; -1 without one."""
    comms = np.flatnonzero(_comms_rows(trace))
    if not len(comms):
        return np.full(len(call), -1, np.int64)
    by = trace.derived(nesting).nearest(_outermost_calls(trace), comms)
    ids = np.full(len(trace["host_ops"]) + 1, -1, np.int64)
    ids[by[by >= 0]] = trace["host_ops"]["id"].to_numpy()[comms[by >= 0]]
    ids_of_calls: Ints = ids[call]
    return ids_of_calls


def _placed(trace: Trace, frame: pd.DataFrame, on_device: bool) -> pd.DataFrame:
    """The frame with step, stage, ordinal and synchronising, in the order of the table."""
    steps_and_stages: Windows = trace.derived(windows)
    issue = frame["issue_ns"]
    place = issue.fillna(frame["place_ns"])
    stage_row, is_placed = place.to_numpy(np.int64, na_value=0), place.notna().to_numpy()
    frame["step"] = (
        pd.Series(step_of(steps_and_stages.steps, stage_row)).where(pd.Series(is_placed)).array
    )
    code = np.where(is_placed, stage_at(trace, stage_row), -1)
    names = pd.Index(stage_names(trace), dtype="str")
    frame["stage"] = pd.Categorical.from_codes(code, categories=names)
    # Host threads may start what was queued together in any order; a device runs a group in order.
    order = frame.index
    if not on_device and issue.notna().all():
        order = frame.sort_values(["issue_ns", "ts_ns"], kind="stable").index
    counted = frame.loc[order].groupby(["group", "op"], sort=False).cumcount()
    frame["ordinal"] = counted.reindex(frame.index).astype("Int64").array
    frame["synchronising"] = np.isin(frame["op"].to_numpy(object), SYNCHRONISING)
    return frame[COLUMNS]


def _enclosing(trace: Trace, wanted: Bools, rows: Ints) -> Ints:
    """For each row of `host_ops` (-1: none) itself if it is wanted, else the nearest such around it; else -1."""
    enclosing = np.full(len(rows), -1, np.int64)
    launched = np.flatnonzero(rows >= 0)
    around = trace.derived(nesting).nearest(wanted, rows[launched])
    enclosing[launched] = np.where(wanted[rows[launched]], rows[launched], around)
    return enclosing


def _host_ids(trace: Trace, rows: Ints) -> Ints:
    """The element id of each row of `host_ops`, -1 for row -1."""
    ids = np.append(trace.get("host_ops")["id"].to_numpy(np.int64), -1)
    host_ids: Ints = ids[rows]
    return host_ids


def _op_by_name(trace: Trace, table: str, rows: Ints) -> Objects:
    """What the name of each row (-1: none) says that it is, None without one."""
    name = trace.get(table)["name"]
    by_code = np.array([*(_op_of(str(text)) for text in name.cat.categories), None], object)
    codes = np.append(name.cat.codes.to_numpy(np.int64), -1)
    ops: Objects = by_code[codes[rows]]
    return ops


def _op_of(name: str) -> str:
    match_range = _ANY_RANGE.match(name)
    return op_of(match_range[1] if match_range else name)


def _is_range(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Which rows of `host_ops` are a range whose name matches."""
    host = trace.get("host_ops")
    is_match: Bools = is_named(host["name"], pattern.match) & (host["kind"] == "range").to_numpy()
    return is_match
