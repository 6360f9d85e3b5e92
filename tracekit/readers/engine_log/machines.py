"""Samples of a machine's GPUs: `nvidia-smi --query-gpu … --format=csv` and `dcgmi dmon`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.engine_log.values import EngineValues

NVIDIA_SMI, DCGM = "nvidia-smi", "dcgm"

MAX_COLUMNS = 200

_UNIT = compile_lazily(r"\A\s*(.*?)\s*(?:\[([^\]]*)\])?\s*\Z")
_AMOUNT = compile_lazily(r"\A\s*([0-9]{1,15}(?:\.[0-9]{0,9})?)\s*(?:%|MiB|W|C|MHz)?\s*\Z")
_CSV_TIME = compile_lazily(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")

_COLUMNS = {
    "utilization.gpu": ("gpu_busy_ratio", 0.01),
    "utilization.memory": ("memory_busy_ratio", 0.01),
    "memory.used": ("memory_used_bytes", 2.0**20),
    "memory.total": ("memory_total_bytes", 2.0**20),
    "power.draw": ("power_w", 1.0),
    "power.draw.instant": ("power_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "clocks.sm": ("sm_clock_mhz", 1.0),
    "clocks.current.sm": ("sm_clock_mhz", 1.0),
}
"""Columns of nvidia-smi: (key, factor to our unit)."""

_FIELDS = {
    "SMACT": "sm_active_ratio",
    "SMOCC": "sm_occupancy_ratio",
    "TENSO": "tensor_active_ratio",
    "DRAMA": "dram_active_ratio",
    "GRACT": "graphics_active_ratio",
}
"""Columns of `dcgmi dmon`; all are shares of time from 0 to 1."""


@dataclass(slots=True)
class MachineColumns:
    """Columns of the header that the file began with, and the sample that its rows belong to."""

    system: str = ""
    names: list[str] = field(default_factory=list[str])
    sample: int = 0
    seen: set[str] = field(default_factory=set[str])


def parse_machine_header(line: str) -> MachineColumns | None:
    """Parse the header of a CSV of nvidia-smi or of a table of dcgmi; None for other lines.

    >>> parse_machine_header("timestamp, index, utilization.gpu [%], memory.used [MiB]").names
    ['timestamp', 'index', 'utilization.gpu', 'memory.used']
    >>> parse_machine_header("#Entity   SMACT  TENSO").names
    ['SMACT', 'TENSO']
    """
    if line.startswith("#Entity"):
        names = line.split()[1:MAX_COLUMNS]
        return MachineColumns(DCGM, names) if not _FIELDS.keys().isdisjoint(names) else None
    if "," not in line or len(line) > 20_000:
        return None
    names = [_strip_unit(part) for part in line.split(",")[:MAX_COLUMNS]]
    if "timestamp" not in names or _COLUMNS.keys().isdisjoint(names):
        return None
    return MachineColumns(NVIDIA_SMI, names)


def _strip_unit(name: str) -> str:
    """Strip the unit in brackets from the name of a column."""
    found = _UNIT.match(name)
    return found[1] if found else name.strip()


def add_machine_line(line: str, number: int, columns: MachineColumns, log: EngineValues) -> None:
    """Add the values of one row; rows that do not fit the header, and values such as `[N/A]`, add nothing."""
    if columns.system == DCGM:
        _add_dcgm_row(line.split(), number, columns, log)
        return
    try:
        cells = next(iter(csv.reader([line])), [])
    except csv.Error:
        return
    if len(cells) != len(columns.names):
        return
    row = dict(zip(columns.names, (cell.strip() for cell in cells), strict=True))
    found = _CSV_TIME.match(row["timestamp"])
    ts_ns = found and log.clock.convert(found[1], found[2], found[3], (found[4], found[5], found[6], found[7]))
    gpu = row.get("index") or row.get("uuid") or row.get("gpu_uuid") or "0"
    for name, text in row.items():
        amount = _AMOUNT.match(text)
        if name in _COLUMNS and amount:
            key, factor = _COLUMNS[name]
            log.add(number, ts_ns, (NVIDIA_SMI, f"GPU {gpu}"), key, float(amount[1]) * factor, "level")


def _add_dcgm_row(cells: Sequence[str], number: int, columns: MachineColumns, log: EngineValues) -> None:
    """Add a row of `dcgmi dmon`: `GPU 0  0.93  0.41`. It has no time; an entity seen again begins a new sample."""
    if len(cells) != len(columns.names) + 2:
        return
    entity = f"{cells[0]} {cells[1]}"
    if not columns.sample or entity in columns.seen:
        columns.sample = number
        columns.seen.clear()
    columns.seen.add(entity)
    for name, text in zip(columns.names, cells[2:], strict=True):
        amount = _AMOUNT.match(text)
        if name in _FIELDS and amount:
            log.add(columns.sample, None, (DCGM, entity), _FIELDS[name], float(amount[1]), "level")
