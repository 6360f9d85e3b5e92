"""Table of the collectives of one process: from its device if any ran there, else from its host.

Sums per step and stage are for compare and gates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import measure_coverage, measure_group_unions, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, Columns, Nullable, concatenate_like_arrays, select_rows
from tracekit.model.tables.keys import (
    QUEUE,
    count_earlier_members,
    find_distinct,
    group_arrays,
    number_keys,
    sum_by_group,
)
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.collectives.arguments import (
    describe_collectives,
    mark_rows_with_argument,
    select_first_known,
    select_nullable,
)
from tracekit.process.collectives.names import SYNCHRONISING, parse_collective_op
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.name_filters import (
    look_up_name_codes,
    look_up_names,
    make_narrow_coded,
    map_coded_values,
    mark_none,
    mark_rows_of_kind,
    mark_wanted_names,
)
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names
from tracekit.process.steps.windows import find_steps_and_stages

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
"""Collectives of one source listed at most; the earliest are kept."""

_ON_HOST = re.compile(r"(?:gloo|mpi|ucc):(.+)")
"""Ranges that last as long as the collective. Those of device libraries only last as long as its launch."""

_ANY_RANGE = re.compile(r"(?:gloo|mpi|ucc|nccl|rccl|hccl|xccl):(.+)")

_CALL = re.compile(r"c10d::")

_is_group_end_name = lru_cache(4096)(re.compile(r"p?ncclGroupEnd\Z").match)

_is_collective_record_name = lru_cache(4096)(re.compile(r"record_param_comms\Z|p?nccl[A-Z]").match)
"""Names of host rows that describe a collective: torch's record, or the NCCL call itself."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives by start: `rows` has the columns of `collectives` without keys, `cut` the number of omitted rows.

    `on_device` is whether they were recorded on a device.
    """

    rows: Columns
    cut: int
    on_device: bool

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Column that every row has."""
        numbers = self.rows[name]
        assert isinstance(numbers, np.ndarray), f"{name}: no row lacks it"
        return numbers

    def nullable(self, name: str) -> Nullable:
        """Column of numbers that may be missing."""
        numbers = self.rows[name]
        assert isinstance(numbers, Nullable), f"{name}: rows may lack it"
        return numbers


def list_collectives(trace: Trace) -> Collectives:
    """List the collectives of a trace; sizes after definition M12, steps and stages as for all device work."""
    is_collective = mark_rows_of_kind(trace, "device_ops", "collective")
    rows = is_collective.nonzero()[0]
    on_device = len(rows) > 0
    if not on_device:
        rows = _find_host_collective_rows(trace)
    if not len(rows):
        return Collectives(Columns(0, _NO_ROWS), 0, on_device)
    ts = trace.numbers("device_ops" if on_device else "host_ops", "ts_ns")[rows]
    first_rows = rows[np.argsort(ts, kind="stable")][:MAX_ROWS]
    columns = _list_device_collectives(trace, first_rows) if on_device else _list_host_collectives(trace, first_rows)
    placed = _place_collectives(trace, columns, on_device)
    return Collectives(Columns(len(placed["ts_ns"]), placed), len(rows) - len(first_rows), on_device)


def _make_empty_collective_columns() -> Mapping[str, Array]:
    """Build the columns of a source without collectives."""
    number, text = np.empty(0, np.int64), np.empty(0, object)
    nullable = Nullable(number, np.empty(0, np.bool_))
    texts = dict.fromkeys(("stage", "group", "op", "dtype"), text)
    return {
        **dict.fromkeys(COLUMNS, nullable),
        **texts,
        "ts_ns": number,
        "dur_ns": number,
        "synchronising": np.empty(0, np.bool_),
    }


_NO_ROWS = _make_empty_collective_columns()


def _list_device_collectives(trace: Trace, rows: Ints) -> dict[str, Any]:
    """List the collectives that ran on a device: op and time; the kernels of one call are one row."""
    links: Launches = trace.derived(find_launches)
    place: Placement = trace.derived(place_device_ops)
    call = np.where(links.call[rows] >= 0, links.call[rows], links.op[rows])
    ids = trace.numbers("device_ops", "id")[rows].astype(np.int64)
    has_name = mark_rows_with_argument(trace, "Collective name", ids)
    teller = _find_enclosing_host_rows(trace, _mark_collective_records(trace), call)
    ranges = _find_enclosing_host_rows(trace, _mark_matching_ranges(trace, _ANY_RANGE), call)
    columns = describe_collectives(
        trace,
        np.where(has_name, ids, _look_up_host_ids(trace, teller)),
        _look_up_host_ids(trace, ranges),
        select_first_known(
            _parse_ops_of_rows(trace, "host_ops", ranges), _parse_ops_of_rows(trace, "device_ops", rows)
        ),
    )
    size = columns["size_bytes"]
    device, stream = (select_rows(trace.nullable("device_ops", name), rows) for name in QUEUE)
    start = trace.numbers("device_ops", "ts_ns")[rows]
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    columns |= {
        "size_bytes": Nullable(size.values, size.missing | _mark_kernels_of_shared_group_end(trace, teller)),
        "ts_ns": start,
        "dur_ns": dur,
        "device": device,
        "stream": stream,
        "exposed_ns": Nullable(_measure_exposed_time(trace, device, start, start + dur), np.zeros(len(rows), np.bool_)),
        "issue_ns": Nullable(links.ts_ns[rows], ~links.linked[rows]),
        "place_ns": Nullable(place.ts_ns[rows], ~place.is_placed[rows]),
    }
    return _merge_kernels_of_one_call(trace, rows, columns, has_name)


def _mark_kernels_of_shared_group_end(trace: Trace, teller: Ints) -> Bools:
    """Mark kernels that share one NCCL group end with others: the bytes of each are unknown.

    `teller` is the row of `host_ops` that describes each kernel, -1 for none.
    """
    ends = np.append(mark_wanted_names(trace.texts("host_ops", "name"), _is_group_end_name), [False])
    several: Bools = _mark_repeated_numbers(number_keys(teller)[1]) & ends[teller]
    return several


def _mark_repeated_numbers(number: Ints) -> Bools:
    """Mark numbers that occur in several rows."""
    return np.bincount(number)[number] > 1


def _merge_kernels_of_one_call(trace: Trace, rows: Ints, columns: dict[str, Any], has_name: Bools) -> dict[str, Any]:
    """Merge the kernels that one call launched on one stream into one row; bytes count once.

    Kernels of one launch (a graph) remain separate collectives, even if they share a call.
    """
    external = select_rows(trace.nullable("device_ops", "external_id"), rows)
    correlation = select_rows(trace.nullable("device_ops", "correlation"), rows)
    shared = has_name & ~external.missing
    if not shared.any():
        return columns
    keys = (*(columns[name] for name in (*QUEUE, "op", "group", "seq")), external)
    by_call, _ = group_arrays(keys)
    shared &= ~_mark_repeated_numbers(group_arrays([correlation])[0]) & _mark_repeated_numbers(by_call)
    if not shared.any():
        return columns
    number, first = group_arrays([np.where(shared, len(rows) + by_call, np.arange(len(rows)))])
    start, dur, exposed = (columns[name] for name in ("ts_ns", "dur_ns", "exposed_ns"))
    end = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(end, number, start + dur)
    merged = {name: _take_first_present(array, number, first) for name, array in columns.items()}
    merged["dur_ns"] = end - start[first]
    merged["exposed_ns"] = Nullable(sum_by_group(number, exposed.values, len(first)), np.zeros(len(first), np.bool_))
    return merged


def _take_first_present(array: Array, number: Ints, first: Ints) -> Array:
    """Take the first present value of each group of rows; `first` are the first rows of the groups."""
    if isinstance(array, Nullable):
        return select_rows(array, _find_first_known_rows(~array.missing, number, first))
    assert isinstance(array, np.ndarray), "texts are not coded yet"
    is_text = array.dtype == object
    return select_rows(array, _find_first_known_rows(~mark_none(array), number, first) if is_text else first)


def _find_first_known_rows(is_known: Bools, number: Ints, first: Ints) -> Ints:
    """Find the first known row of each group, else its first row."""
    row, with_value = first.copy(), is_known.nonzero()[0][::-1]
    row[number[with_value]] = with_value
    return row


def _measure_exposed_time(trace: Trace, device: Nullable, start: Ints, end: Ints) -> Ints:
    """Measure the exposed time of each collective: no compute kernel of its device overlaps it (M5), ns."""
    is_compute = mark_rows_of_kind(trace, "device_ops", "kernel")
    of_compute = select_rows(trace.nullable("device_ops", "device"), is_compute.nonzero()[0])
    both = concatenate_like_arrays([device, of_compute])
    own_device, compute_device = np.split(group_arrays([both])[0], [len(start)])
    from_ = trace.numbers("device_ops", "ts_ns")[is_compute]
    to = from_ + trace.numbers("device_ops", "dur_ns")[is_compute]
    exposed: Ints = end - start
    for number in find_distinct(own_device).tolist():
        on_device, same = own_device == number, compute_device == number
        busy = merge_intervals(from_[same], to[same])
        exposed[on_device] -= measure_coverage(busy, start[on_device], end[on_device])
    return exposed


def _find_host_collective_rows(trace: Trace) -> Ints:
    """Find the outermost ranges of `host_ops` that are a collective carried out by the host."""
    wanted = _mark_matching_ranges(trace, _ON_HOST)
    rows = wanted.nonzero()[0]
    return rows[trace.derived(build_call_tree).nearest(wanted, rows) < 0] if len(rows) else rows


def _list_host_collectives(trace: Trace, rows: Ints) -> dict[str, Any]:
    """List the collectives that host threads carried out."""
    host_start = trace.numbers("host_ops", "ts_ns")
    start, none = host_start[rows], np.ones(len(rows), np.bool_)
    op = _parse_ops_of_rows(trace, "host_ops", rows)
    outermost = _mark_outermost_collective_calls(trace)
    call = _find_issuing_calls(trace, outermost, op, start)
    unknown = Nullable(np.zeros(len(rows), np.int64), none)
    return {
        **describe_collectives(
            trace, _find_records_of_calls(trace, outermost, call), _look_up_host_ids(trace, rows), op
        ),
        "ts_ns": start,
        "dur_ns": trace.numbers("host_ops", "dur_ns")[rows],
        **dict.fromkeys((*QUEUE, "exposed_ns"), unknown),
        "issue_ns": Nullable(host_start[call], call < 0),
        "place_ns": Nullable(start, ~none),
    }


def _find_issuing_calls(trace: Trace, outermost: Bools, op: Objects, start: Ints) -> Ints:
    """Find the call that queued each host collective (in order of start); -1 if unknown.

    Calls are served in order: the k-th collective of an op belongs to the k-th call, provided that there are
    equally many and none is served before its call.
    """
    calls = outermost.nonzero()[0]
    call_op = _parse_ops_of_rows(trace, "host_ops", calls)
    call_start = trace.numbers("host_ops", "ts_ns")[calls]
    issuing = np.full(len(start), -1, np.int64)
    for name in set(op.tolist()):
        rows_of_op, calls_of_op = (op == name).nonzero()[0], (call_op == name).nonzero()[0]
        calls_of_op = calls_of_op[np.argsort(call_start[calls_of_op], kind="stable")]
        if len(rows_of_op) == len(calls_of_op) and (call_start[calls_of_op] <= start[rows_of_op]).all():
            issuing[rows_of_op] = calls[calls_of_op]
    return issuing


def _mark_outermost_collective_calls(trace: Trace) -> Bools:
    """Mark rows of `host_ops` that call a collective and are not inside another such call."""
    names = trace.texts("host_ops", "name")
    is_call = mark_wanted_names(names, _is_collective_call_name)
    is_call &= mark_rows_of_kind(trace, "host_ops", "op")
    rows = is_call.nonzero()[0]
    is_call[rows[trace.derived(build_call_tree).nearest(is_call, rows) >= 0]] = False
    return is_call


@lru_cache(4096)
def _is_collective_call_name(name: str) -> bool:
    """Check whether an op of this name is a call of a collective."""
    return _CALL.match(name) is not None and parse_collective_op(name) != "other"


def _mark_collective_records(trace: Trace) -> Bools:
    """Mark rows of `host_ops` that record or call a collective and have its name as an argument."""
    is_teller = mark_wanted_names(trace.texts("host_ops", "name"), _is_collective_record_name)
    rows = is_teller.nonzero()[0]
    is_teller[rows] = mark_rows_with_argument(trace, "Collective name", trace.numbers("host_ops", "id")[rows])
    return is_teller


def _find_records_of_calls(trace: Trace, outermost: Bools, call: Ints) -> Ints:
    """Find the id of the last `record_param_comms` that each call (-1: none) made; -1 without one."""
    comms = _mark_collective_records(trace).nonzero()[0]
    if not len(comms):
        return np.full(len(call), -1, np.int64)
    by = trace.derived(build_call_tree).nearest(outermost, comms)
    ids = np.full(len(outermost) + 1, -1, np.int64)
    ids[by[by >= 0]] = trace.numbers("host_ops", "id")[comms[by >= 0]]
    ids_of_calls: Ints = ids[call]
    return ids_of_calls


def _place_collectives(trace: Trace, columns: dict[str, Any], on_device: bool) -> Mapping[str, Array]:
    """Add step, stage, ordinal and synchronising, in the column order of the table."""
    issue, start, op = columns["issue_ns"], columns["ts_ns"], columns["op"]
    place = select_nullable(~issue.missing, issue, columns["place_ns"])
    step = trace.derived(find_steps_and_stages).step_rows.number_at(place.values)
    columns["step"] = Nullable(step.values, step.missing | place.missing)
    code = np.where(place.missing, -1, find_stage_codes_at(trace, place.values))
    columns["stage"] = make_narrow_coded(code, list_outer_stage_names(trace))
    # Host threads may start queued collectives in any order; a device runs the collectives of a group in
    # order.
    order = np.arange(len(start))
    if not on_device and not issue.missing.any():
        order = np.lexsort((start, issue.values))
    by_group, _ = group_arrays([columns["group"], op])
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = count_earlier_members(by_group[order])
    columns["ordinal"] = Nullable(ordinal, mark_none(op))
    columns["synchronising"] = np.isin(op, SYNCHRONISING)
    return {name: columns[name] for name in COLUMNS}


def _find_enclosing_host_rows(trace: Trace, wanted: Bools, rows: Ints) -> Ints:
    """Map each row of `host_ops` (-1: none) to itself if wanted, else to its nearest wanted ancestor, else -1."""
    enclosing = np.full(len(rows), -1, np.int64)
    launched = (rows >= 0).nonzero()[0]
    around = trace.derived(build_call_tree).nearest(wanted, rows[launched])
    enclosing[launched] = np.where(wanted[rows[launched]], rows[launched], around)
    return enclosing


def _look_up_host_ids(trace: Trace, rows: Ints) -> Ints:
    """Look up the element id of each row of `host_ops`; -1 for row -1."""
    ids = np.append(trace.numbers("host_ops", "id").astype(np.int64), -1)
    host_ids: Ints = ids[rows]
    return host_ids


def _parse_ops_of_rows(trace: Trace, table: str, rows: Ints) -> Objects:
    """Parse the op from the name of each row (-1: none); None without a name."""
    names = trace.texts(table, "name")
    return map_coded_values(look_up_name_codes(names, rows), names.texts, _parse_range_op)


def _parse_range_op(name: str) -> str:
    """Parse the op from a name, without the library prefix of a range."""
    match_range = _ANY_RANGE.match(name)
    return parse_collective_op(match_range[1] if match_range else name)


def _mark_matching_ranges(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Mark rows of `host_ops` that are a range with a matching name."""
    is_match: Bools = mark_wanted_names(trace.texts("host_ops", "name"), pattern.match)
    return is_match & mark_rows_of_kind(trace, "host_ops", "range")


def sum_collectives_per_step(recorded: Collectives) -> Mapping[str, Any]:
    """Compute columns of `metrics` per step and stage: number, bytes, time (union per device, summed over devices).

    Without numbered steps, all collectives are one group.
    """
    step, stage = recorded.nullable("step"), recorded.rows["stage"]
    assert isinstance(stage, Coded), "stages are texts"
    inside = np.ones(len(step), np.bool_) if step.missing.all() else ~step.missing
    in_stage = inside & (stage.codes >= 0)
    no_stage = Coded(np.full(len(step), -1), ())
    parts = [_sum_collectives(recorded, inside.nonzero()[0], no_stage)]
    if in_stage.any():
        parts.append(_sum_collectives(recorded, in_stage.nonzero()[0], stage))
    return {name: concatenate_like_arrays([part[name] for part in parts]) for name in parts[0]}


def _sum_collectives(recorded: Collectives, rows: npt.NDArray[np.int64], stage: Coded) -> Mapping[str, Any]:
    """Sum these rows by step and stage, one metric after the other."""
    step = select_rows(recorded.nullable("step"), rows)
    group, first = group_arrays([step, select_rows(stage, rows)])
    device, firsts_of_devices = group_arrays([select_rows(recorded.nullable("device"), rows)])
    devices = len(firsts_of_devices)
    start = recorded.numbers("ts_ns")[rows]
    end = start + recorded.numbers("dur_ns")[rows]
    busy = measure_group_unions(start, end, group * devices + device, len(first) * devices)
    size = select_rows(recorded.nullable("size_bytes"), rows)
    counts = np.bincount(group, minlength=len(first))
    has_size = np.bincount(group[~size.missing], minlength=len(first)) > 0
    none = np.zeros(len(first), np.bool_)
    size_bytes = sum_by_group(group, np.where(size.missing, 0, size.values), len(first))
    values = {
        "comm": Nullable(busy.reshape(len(first), -1).sum(axis=1).astype(np.float64), none),
        "comm_count": Nullable(counts.astype(np.float64), none),
        "comm_bytes": Nullable(size_bytes.astype(np.float64), ~has_size),
    }
    return {
        "step": concatenate_like_arrays([select_rows(step, first)] * len(values)),
        "stage": np.tile(look_up_names(stage, rows[first]), len(values)),
        "name": np.repeat(np.array([*values], object), len(first)),
        "value": concatenate_like_arrays([*values.values()]),
    }
