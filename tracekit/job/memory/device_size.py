"""Memory size of each device: given by the user, else recorded by a profile of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import make_nullable_numbers
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import Measurements, derive_once
from tracekit.model.units import format_quantity, parse_size
from tracekit.process.memory.pools import PAUSABLE

GIVEN = "given"
"""Origin of a size that the user gave."""

UNKNOWN = "device size unknown, give --device-memory"
"""Text where a size is needed and unknown."""

LEAST, MOST = 2**20, 2**50
"""No device has less or more: such a number lacks its unit."""

Memory = tuple[str | None, int | None, int | None]
"""Run, rank and device."""


@dataclass(frozen=True, slots=True)
class DeviceSize:
    """The memory of one device in bytes, and the origin of that number in words."""

    size_bytes: int
    origin: str

    @property
    def description(self) -> str:
        """`80.0 GiB, given`."""
        return f"{format_quantity(self.size_bytes, 'bytes')}, {self.origin}"


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """Sizes of the devices of all runs; `recorded` by run, rank and device, None where files disagree.

    `ranks` are the (run, rank) that recorded any, `agreed` the size that all devices of a run have, `unmapped` the
    memories of snapshots with pools that may be unmapped.
    """

    given: int | None
    recorded: Mapping[Memory, DeviceSize | None]
    ranks: frozenset[tuple[str | None, int | None]]
    agreed: Mapping[str | None, DeviceSize | None]
    unmapped: frozenset[Memory] = frozenset()

    def limit(self, run: str | None, rank: int | None, device: int | None) -> DeviceSize | None:
        """Return the size to compare PyTorch's counts on a device with.

        None where it is unknown, and where pools may be unmapped (`process.memory.pools`): PyTorch still counts them.
        """
        if (run, rank, device) in self.unmapped:
            return None
        return self.find_size(run, rank, device)

    def find_size(self, run: str | None, rank: int | None, device: int | None) -> DeviceSize | None:
        """Return the size of one device of a process; None where it is unknown.

        A given size overrides recorded ones. A rank that recorded no device has the size that all other devices of
        its run agree on.
        """
        if self.given is not None:
            return DeviceSize(self.given, GIVEN)
        if (run, rank) in self.ranks:
            return self.recorded.get((run, rank, device))
        return self.agreed.get(run)


@derive_once
def device_sizes(measured: Measurements) -> DeviceSizes:
    """Collect the sizes that the user gave and that profiles recorded."""
    recorded: dict[Memory, DeviceSize | None] = {}
    for row in measured.frame("device_sizes").rows("run", "rank", "device", "size_bytes", "source"):
        recorder = format_numbered_word("rank", row["rank"]) or row["source"]
        size = DeviceSize(row["size_bytes"], f"from the trace of {recorder}")
        key = (row["run"], row["rank"], row["device"])
        earlier = recorded.setdefault(key, size)
        if earlier is not None and earlier.size_bytes != size.size_bytes:
            recorded[key] = None
    by_run: dict[str | None, list[DeviceSize | None]] = {}
    for (run, _, _), recorded_size in recorded.items():
        by_run.setdefault(run, []).append(recorded_size)
    ranks = frozenset((run, rank) for run, rank, _ in recorded)
    agreed = {run: _agreed_size(sizes) for run, sizes in by_run.items()}
    pools = measured.frame("memory_pools")
    pausable = pools.filter(pools.is_in("class", PAUSABLE)).rows("run", "rank", "device")
    unmapped = frozenset((row["run"], row["rank"], row["device"]) for row in pausable)
    return DeviceSizes(_given_size(measured), recorded, ranks, agreed, unmapped)


def _agreed_size(sizes: Sequence[DeviceSize | None]) -> DeviceSize | None:
    """Return the first size if all are known and equal."""
    if len({size and size.size_bytes for size in sizes}) > 1:
        return None
    return sizes[0]


def add_card_sizes(measured: Measurements, memories: Frame) -> Frame:
    """Add `card_bytes` and `card_origin` of the devices to rows about memories of snapshots; missing if unknown.

    Pinned memory of a host has none, nor has memory that may be unmapped (`DeviceSizes.limit`).
    """
    sizes = device_sizes(measured)
    cards = [
        sizes.limit(row["run"], row["rank"], row["device"]) if row["memory"] == "device" else None
        for row in memories.rows("memory", "run", "rank", "device")
    ]
    return memories.with_columns(
        card_bytes=make_nullable_numbers([None if card is None else card.size_bytes for card in cards]),
        card_origin=texts([None if card is None else card.origin for card in cards]),
    )


def _given_size(measured: Measurements) -> int | None:
    """Return the size that the user gave; None without one, or if a saved file has an impossible one."""
    size = measured.facts.device_memory
    return size if size is not None and LEAST <= size < MOST else None


def parse_device_memory(text: str | int) -> int:
    """Return the bytes of a size such as `80GiB`; raise `TracekitError` if no device has that.

    >>> parse_device_memory("80GiB")
    85899345920
    """
    hint = "name the size with its unit: --device-memory 80GiB"
    try:
        size = text if isinstance(text, int) else parse_size(text)
    except TracekitError as error:
        raise TracekitError(f"--device-memory: {error.problem}", hint) from None
    if not LEAST <= size < MOST:
        limits = f"between {format_quantity(LEAST, 'bytes')} and {format_quantity(MOST, 'bytes')}"
        raise TracekitError(f"--device-memory {text}: must be {limits}", hint)
    return size
