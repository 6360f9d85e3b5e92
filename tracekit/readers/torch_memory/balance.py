"""Consistency of a snapshot to the byte: its allocation history against the remaining blocks.

Memory in use before the history began was either freed without a recorded allocation (orphans) or is
still in use without one (ghosts). Both, plus allocations, minus frees, must equal the requested bytes of the
blocks in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Columns, Nullable, fill_missing, mask_value, select_rows
from tracekit.model.tables.keys import compute_stable_order, find_distinct, sum_by_group
from tracekit.model.trace import Note
from tracekit.readers.torch_memory.columns import Bools, Ints

_LOW = 2**32 - 1


@dataclass(frozen=True, slots=True)
class HistoryBalance:
    """History of one device against its blocks, in requested bytes.

    `ghost_bytes` and `orphan_bytes` were in use when the history began, `net_bytes` is the history's net change,
    `active_bytes` the request of the blocks in use at its end. `unlike_count` counts allocations that were never
    freed but whose block is missing or has another size.
    """

    device: int
    ghost_bytes: int
    orphan_bytes: int
    net_bytes: int
    active_bytes: int
    ghost_count: int
    orphan_count: int
    unlike_count: int

    @property
    def off_bytes(self) -> int:
        """Difference in bytes: history minus blocks."""
        return self.ghost_bytes + self.orphan_bytes + self.net_bytes - self.active_bytes


def compute_balances(tables: Mapping[str, Columns]) -> list[HistoryBalance]:
    """Compute the balance of every device with both a history and blocks."""
    if "allocations" not in tables or "blocks" not in tables:
        return []
    history, blocks = tables["allocations"], tables["blocks"]
    of_history, numbers = _list_row_devices(history)
    is_alloc, is_free = (mask_value(history["action"], action) for action in ("alloc", "free_completed"))
    of_history[~(is_alloc | is_free) | _mark_incomplete_rows(history)] = -1
    of_blocks, _ = _list_row_devices(blocks)
    in_use = mask_value(blocks["state"], "active") | mask_value(blocks["state"], "pending_free")
    of_blocks[~in_use | _mark_incomplete_rows(blocks)] = -1
    address, size = _read_ints(history, "address"), _read_ints(history, "size_bytes")
    where, requested = _read_ints(blocks, "address"), _read_ints(blocks, "requested_bytes")
    device_balances = []
    for number in numbers:
        rows, active = np.flatnonzero(of_history == number), of_blocks == number
        past = address[rows], size[rows], is_alloc[rows]
        device_balances.append(_compute_device_balance(number, *past, where[active], requested[active]))
    return device_balances


def describe_balances(device_balances: list[HistoryBalance]) -> list[dict[str, int]]:
    """Convert the balances to plain values."""
    return [asdict(balance) | {"off_bytes": balance.off_bytes} for balance in device_balances]


def _list_row_devices(table: Columns) -> tuple[Ints, list[int]]:
    """Find (device of each row, -1 for pinned host memory and unknown; all devices)."""
    device = _read_ints(table, "device", -1)
    device[~mask_value(table["memory"], "device")] = -1
    return device, find_distinct(device[device >= 0]).tolist()


def _read_ints(table: Columns, column: str, missing: int = 0) -> Ints:
    """Read numbers, `missing` where unknown."""
    array: Any = table[column]
    return fill_missing(array, missing)


def _mark_incomplete_rows(table: Columns) -> Bools:
    """Mark the rows without an address or a size."""
    return mask_value(table["address"], None) | mask_value(table["size_bytes"], None)


def _compute_device_balance(
    device: int, address: Ints, size: Ints, is_alloc: Bools, where: Ints, requested: Ints
) -> HistoryBalance:
    """Compute the balance of one device.

    `address`, `size` and `is_alloc` are its allocations and completed frees, in order; `where` and `requested` are
    addresses and request sizes of its blocks in use.
    """
    order = compute_stable_order(address)
    place, allocated = address[order], is_alloc[order]
    same = place[1:] == place[:-1]
    after_alloc, is_last = np.zeros(len(order), np.bool_), np.ones(len(order), np.bool_)
    after_alloc[1:], is_last[:-1] = same & allocated[:-1], ~same
    orphan = order[~allocated & ~after_alloc]
    live = order[allocated & is_last]
    ghost = ~np.isin(where, address[live])
    # Two blocks at one address are damage; the last one is used.
    block = dict(zip(where.tolist(), requested.tolist(), strict=True))
    wanted = zip(address[live].tolist(), size[live].tolist(), strict=True)
    unlike = sum(block.get(start) != amount for start, amount in wanted)
    return HistoryBalance(
        device,
        sum_exactly(requested[ghost]),
        sum_exactly(size[orphan]),
        sum_exactly(size[is_alloc]) - sum_exactly(size[~is_alloc]),
        sum_exactly(requested),
        int(np.count_nonzero(ghost)),
        len(orphan),
        unlike,
    )


def sum_exactly(values: Ints) -> int:
    """Sum non-negative numbers without overflow."""
    return (int((values >> 32).sum()) << 32) + int((values & _LOW).sum())


def note_inconsistencies(
    device_balances: list[HistoryBalance], tables: Mapping[str, Columns], settings: Mapping[str, Any], name: str
) -> list[Note]:
    """Build notes on the failed consistency checks of a snapshot."""
    device_notes: list[Note] = []
    for balance in device_balances:
        device_notes += _note_imbalance(balance, name)
    device_notes += _note_odd_segments(tables, name)
    history = tables.get("allocations")
    if history is None:
        message = "the snapshot holds no history of allocations: recording was off, or just begun"
        return [*device_notes, Note("info", "no-history", message, name)]
    of_rows, numbers = _list_row_devices(history)
    for number in numbers:
        times: Any = select_rows(history["ts_ns"], of_rows == number)
        device_notes += _note_cut_history(number, times, settings, name)
    return device_notes


def _note_imbalance(balance: HistoryBalance, name: str) -> list[Note]:
    """Note a device whose history and blocks disagree."""
    device_notes = []
    if balance.off_bytes:
        message = (
            f"device {balance.device}: {balance.ghost_bytes + balance.orphan_bytes:,} requested bytes before the "
            f"history and {balance.net_bytes:+,} in it are {balance.off_bytes:+,} against the "
            f"{balance.active_bytes:,} of the blocks in use: levels may be off by as much"
        )
        data = Data(device=balance.device, off_bytes=balance.off_bytes)
        device_notes.append(Note("warning", "unbalanced", message, name, data=data))
    if balance.unlike_count:
        message = (
            f"device {balance.device}: {balance.unlike_count:,} allocations that were not freed "
            "are no block in use of the same size"
        )
        data = Data(device=balance.device)
        device_notes.append(Note("warning", "unlike-blocks", message, name, balance.unlike_count, data=data))
    return device_notes


def _note_odd_segments(tables: Mapping[str, Columns], name: str) -> list[Note]:
    """Note segments that are not the sum of their blocks, and blocks that wait to be freed."""
    if "memory_segments" not in tables:
        return []
    segments, blocks = tables["memory_segments"], tables["blocks"]
    count = len(segments)
    segment: Any = blocks["segment"]
    size = _read_ints(blocks, "size_bytes")
    wrong = np.zeros(count, np.bool_)
    for column, counted in (
        ("size_bytes", size),
        ("allocated_bytes", np.where(mask_value(blocks["state"], "active"), size, 0)),
    ):
        wrong |= ~mask_value(segments[column], None) & (
            _read_ints(segments, column) != sum_by_group(segment, counted, count)
        )
    segment_notes = []
    odd = int(np.count_nonzero(wrong))
    if odd:
        message = f"{odd:,} of {count:,} segments are not the sum of their blocks"
        segment_notes.append(Note("warning", "odd-segments", message, name, odd, data=Data(segments=count)))
    pending = mask_value(blocks["state"], "pending_free")
    if pending.any():
        message = (
            f"{np.count_nonzero(pending):,} blocks ({sum_exactly(size[pending]):,} bytes) were freed but wait "
            "for other streams (record_stream)"
        )
        data = Data(size_bytes=sum_exactly(size[pending]))
        segment_notes.append(Note("info", "pending-free", message, name, int(np.count_nonzero(pending)), data=data))
    return segment_notes


def _note_cut_history(number: int, ts_ns: Nullable, settings: Mapping[str, Any], name: str) -> list[Note]:
    """Note a history whose start was dropped, or probably was, and times that go backwards."""
    ring_notes = []
    count = len(ts_ns)
    overflowed = _get_device_setting(settings.get("trace_alloc_overflowed"), number)
    max_entries = _get_device_setting(settings.get("trace_alloc_max_entries"), number)
    if overflowed is True:
        message = f"device {number}: the history was full at {count:,} entries: older ones were dropped"
        data = Data(device=number, entries=count, certain=True)
        ring_notes.append(Note("data_loss", "ring-buffer", message, name, data=data))
    elif overflowed is None and (count == max_entries or (max_entries is None and is_probable_limit(count))):
        message = (
            f"device {number}: the history has {count:,} entries, "
            f"{'as many as it can hold' if max_entries else 'a round number'}: older ones were probably dropped"
        )
        data = Data(device=number, entries=count, certain=False)
        ring_notes.append(Note("warning", "ring-buffer", message, name, data=data))
    back = int(np.count_nonzero(np.diff(ts_ns.values[~ts_ns.missing]) < 0))
    if back:
        message = f"device {number}: the time goes back {back:,} times in the history"
        ring_notes.append(Note("warning", "time-order", message, name, back, data=Data(device=number)))
    return ring_notes


def is_probable_limit(count: int) -> bool:
    """Check whether a history of this length was probably cut at a configured limit.

    >>> [n for n in (999, 1000, 4096, 12345, 100_000, 250_000, 123_000) if is_probable_limit(n)]
    [1000, 4096, 100000, 250000]
    """
    if count < 1000:
        return False
    text = str(count).rstrip("0")
    return text in _ROUND or (count & (count - 1)) == 0


_ROUND = frozenset({*"123456789", "15", "25", "75"})


def _get_device_setting(value: object, number: int) -> object:
    """Select one device's setting: an element of a list or dictionary, else the value itself."""
    if type(value) is list:
        return value[number] if number < len(value) else None
    if type(value) is dict:
        return value.get(number, value.get(str(number)))
    return value
