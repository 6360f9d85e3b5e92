"""How much memory each device has: as a person tells it, else as a profile of the same run records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from tracekit.model.errors import TracekitError
from tracekit.model.keys import as_python, records
from tracekit.model.labels import called
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements
from tracekit.model.units import parse_size, show
from tracekit.process.memory.pools import PAUSABLE

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
    """What is known of the devices of all runs; `recorded` by run, rank and device, None where files disagree.

    `ranks` are those (run, rank) that recorded any, `agreed` the size that all devices of a run have, `unmapped` the
    memories (run, rank, device) that a snapshot shows with pools that may be unmapped.
    """

    given: int | None
    recorded: Mapping[tuple[Any, Any, Any], DeviceSize | None]
    ranks: frozenset[tuple[Any, Any]]
    agreed: Mapping[Any, DeviceSize | None]
    unmapped: frozenset[tuple[Any, Any, Any]] = frozenset()

    def limit(self, run: Any, rank: Any, device: Any) -> DeviceSize | None:
        """The size that what PyTorch counts on a device can be held against.

        None where nothing tells it, and where pools may be unmapped (`process.memory.pools`): PyTorch still counts them.
        """
        if (_key(run), _key(rank), _key(device)) in self.unmapped:
            return None
        return self.of(run, rank, device)

    def of(self, run: Any, rank: Any, device: Any) -> DeviceSize | None:
        """The size of one device of a process; None where nothing tells it.

        What was given goes before what that rank recorded; where it recorded no device at all others of the
        run stand for it, if they all agree.
        """
        if self.given is not None:
            return DeviceSize(self.given, GIVEN)
        if (_key(run), _key(rank)) in self.ranks:
            return self.recorded.get((_key(run), _key(rank), _key(device)))
        return self.agreed.get(_key(run))


def device_sizes(measured: Measurements) -> DeviceSizes:
    """The sizes that a person gave and that profiles recorded."""
    return measured.derived(_device_sizes)


def _device_sizes(measured: Measurements) -> DeviceSizes:
    recorded: dict[tuple[Any, Any, Any], DeviceSize | None] = {}
    if measured.has("device_sizes"):
        rows = measured["device_sizes"]
        columns = ("run", "rank", "device", "size_bytes", "source")
        for run, rank, device, size, source in records(rows, columns):
            whose = called("rank", rank) or str(source)
            key = (run, rank, device)
            size_found = DeviceSize(int(size), f"from the trace of {whose}")
            earlier = recorded.setdefault(key, size_found)
            if earlier is not None and earlier.size_bytes != size_found.size_bytes:
                recorded[key] = None
    by_run: dict[Any, list[DeviceSize | None]] = {}
    for (run, _, _), earlier in recorded.items():
        by_run.setdefault(run, []).append(earlier)
    ranks = frozenset((run, rank) for run, rank, _ in recorded)
    agreed = {run: _agreed(sizes) for run, sizes in by_run.items()}
    return DeviceSizes(_given(measured), recorded, ranks, agreed, _unmapped(measured))


def _unmapped(measured: Measurements) -> frozenset[tuple[Any, Any, Any]]:
    """The memories with pools that may be unmapped."""
    if not measured.row_count("memory_pools"):
        return frozenset()
    rows = measured["memory_pools"]
    pausable = rows[rows["class"].isin(PAUSABLE).to_numpy(np.bool_)]
    return frozenset(records(pausable, ("run", "rank", "device")))


def _agreed(sizes: Sequence[DeviceSize | None]) -> DeviceSize | None:
    """The first size where all are known and equal."""
    if None in sizes or len(set(map(attrgetter("size_bytes"), sizes))) > 1:
        return None
    return sizes[0]


def with_cards(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows about memories of snapshots with `card_bytes` and `card_origin` of their devices, <NA> where nothing tells.

    Pinned memory of a host has none, and what may be unmapped is held against none (`DeviceSizes.limit`).
    """
    sizes = device_sizes(measured)
    size, origin = list[Any](), list[str | None]()
    for memory, *owner in records(rows, ("memory", "run", "rank", "device")):
        size.append(pd.NA)
        origin.append(None)
        if memory == "device" and (card := sizes.limit(*owner)) is not None:
            size[-1], origin[-1] = card.size_bytes, card.origin
    return rows.assign(
        card_bytes=pd.array(size, dtype="Int64"),
        card_origin=pd.Series(origin, rows.index, dtype=object),
    )


def _given(measured: Measurements) -> int | None:
    """What a person told; None where nobody did, or a saved file says what can be no size."""
    size = measured.facts.device_memory
    return size if size is not None and LEAST <= size < MOST else None


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
    return as_python([value])[0]
