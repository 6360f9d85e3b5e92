"""How much memory each device has: as a person tells it, else as a profile of the same run records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracekit.errors import TracekitError
from tracekit.pooling import plain
from tracekit.trace import Measurements
from tracekit.units import parse_size, show

DEVICE_MEMORY = "device_memory"
"""The fact of measurements that tells the memory of every device in bytes: given by a person."""

GIVEN = "given"
"""Where a size that a person told comes from."""

UNKNOWN = "device size unknown, give --device-memory"
"""What is said where a size is needed and nothing tells it."""

LEAST, MOST = 2**20, 2**50
"""No device has less or more: such a number lacks its unit."""


@dataclass(frozen=True, slots=True)
class DeviceSize:
    """The memory of one device in bytes, and in words where that is known from."""

    size_bytes: int
    origin: str

    @property
    def told(self) -> str:
        """`80.0 GiB, given`."""
        return f"{show(self.size_bytes, 'bytes')}, {self.origin}"


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """What is known of the devices of all runs; `recorded` by run, rank and device, None where files disagree."""

    given: int | None
    recorded: Mapping[tuple[Any, Any, Any], DeviceSize | None]

    def of(self, run: Any, rank: Any, device: Any) -> DeviceSize | None:
        """The size of one device of a process; None where nothing tells it.

        What was given goes before what that rank recorded; where it recorded no device at all others of the
        run stand for it, if they all agree.
        """
        if self.given is not None:
            return DeviceSize(self.given, GIVEN)
        there = {key[1:]: size for key, size in self.recorded.items() if key[0] == _key(run)}
        if any(whose == _key(rank) for whose, _ in there):
            return there.get((_key(rank), _key(device)))
        sizes = [size for size in there.values() if size is not None]
        alike = len({size.size_bytes for size in sizes}) == 1 and len(sizes) == len(there)
        return sizes[0] if alike else None


def device_sizes(measured: Measurements) -> DeviceSizes:
    """The sizes that a person gave and that profiles recorded."""
    recorded: dict[tuple[Any, Any, Any], DeviceSize | None] = {}
    if measured.has("device_sizes"):
        rows = plain(measured["device_sizes"])
        for run, rank, device, size, source in zip(
            *(rows[name] for name in ("run", "rank", "device", "size_bytes", "source")), strict=True
        ):
            whose = f"rank {int(rank)}" if not pd.isna(rank) else str(source)
            key = (_key(run), _key(rank), _key(device))
            found = DeviceSize(int(size), f"from the trace of {whose}")
            known = recorded.setdefault(key, found)
            if known is not None and known.size_bytes != found.size_bytes:
                recorded[key] = None
    return DeviceSizes(_given(measured), recorded)


def with_cards(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows about memories of snapshots with `card_bytes` and `card_origin` of their devices, <NA> where nothing tells.

    Pinned memory of a host has none.
    """
    sizes = device_sizes(measured)
    keys = zip(rows["memory"], rows["run"], rows["rank"], rows["device"], strict=True)
    cards = [sizes.of(*whose) if memory == "device" else None for memory, *whose in keys]
    size = [pd.NA if card is None else card.size_bytes for card in cards]
    origin = np.array([*(None if card is None else card.origin for card in cards), None], object)
    return rows.assign(card_bytes=pd.array(size, dtype="Int64"), card_origin=origin[:-1])


def _given(measured: Measurements) -> int | None:
    """What a person told; None where nobody did, or a saved file says what can be no size."""
    told = measured.facts.get(DEVICE_MEMORY)
    return told if type(told) is int and LEAST <= told < MOST else None


def parse_device_memory(text: str | int) -> int:
    """The bytes of a device's memory such as `80GiB`; `TracekitError` where it is no size of a device.

    >>> parse_device_memory("80GiB")
    85899345920
    """
    size = text if isinstance(text, int) else parse_size(text)
    if not LEAST <= size < MOST:
        raise TracekitError(
            f"no device has {show(size, 'bytes')} of memory", "name the unit: --device-memory 80GiB"
        )
    return size


def _key(value: Any) -> Any:
    """A key as Python has it: None where it is missing."""
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
