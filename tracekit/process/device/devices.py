"""Devices that a process worked on, numbered in the order of their first ops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable, broadcast_value, select_rows
from tracekit.model.tables.keys import group_arrays
from tracekit.model.trace import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """Devices of a trace: `number` per row of `device_ops`, and the recorded `ordinal` per number (may be missing)."""

    number: Ints
    ordinal: Nullable

    def __len__(self) -> int:
        """Count the devices."""
        return len(self.ordinal)

    @property
    def in_order(self) -> list[int]:
        """Device numbers sorted by ordinal, the unknown one last."""
        order: list[int] = np.lexsort((self.ordinal.values, self.ordinal.missing)).tolist()
        return order


def number_devices(trace: Trace) -> DeviceNumbers:
    """Assign numbers to the devices of a trace."""
    ordinal = trace.nullable("device_ops", "device")
    number, first = group_arrays([ordinal])
    if len(first) < 2:
        number = broadcast_value(np.int64(0), len(number))
    return DeviceNumbers(number, select_rows(ordinal, first))
