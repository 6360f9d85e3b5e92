"""Samples of a machine's GPUs: `nvidia-smi --query-gpu … --format=csv`, `nvidia-smi dmon` and `pmon`, and `dcgmi dmon`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.engine_log.values import EngineValues

NVIDIA_SMI, PMON, DCGM = "nvidia-smi", "nvidia-smi pmon", "dcgm"

MAX_COLUMNS = 200

_UNIT = compile_lazily(r"\A\s*(.*?)\s*(?:\[([^\]]*)\])?\s*\Z")
_AMOUNT = compile_lazily(r"\A\s*([0-9]{1,15}(?:\.[0-9]{0,9})?)\s*(?:%|MiB|W|C|MHz)?\s*\Z")
_CSV_TIME = compile_lazily(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_DMON_TIME = compile_lazily(r"([0-9]{4})([0-9]{2})([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})")

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

_DMON_COLUMNS = {
    "sm": ("gpu_busy_ratio", 0.01),
    "mem": ("memory_busy_ratio", 0.01),
    "fb": ("memory_used_bytes", 2.0**20),
    "pwr": ("power_w", 1.0),
    "gtemp": ("temperature_c", 1.0),
    "pclk": ("sm_clock_mhz", 1.0),
}
"""Columns of `nvidia-smi dmon`; its `sm` is the utilization that `--query-gpu` has, not the share of busy SMs."""

_PMON_COLUMNS = {
    "sm": ("gpu_busy_ratio", 0.01),
    "mem": ("memory_busy_ratio", 0.01),
    "fb": ("memory_used_bytes", 2.0**20),
}
"""Columns of `nvidia-smi pmon`: shares of time with a kernel, and with memory traffic, of one process, and its memory.

Public outputs show them without times. Those of `-o DT` are read as `dmon` prints them.
"""

_DCGM_COLUMNS = {
    "SMACT": ("sm_active_ratio", 1.0),
    "SMOCC": ("sm_occupancy_ratio", 1.0),
    "TENSO": ("tensor_active_ratio", 1.0),
    "DRAMA": ("dram_active_ratio", 1.0),
    "GRACT": ("graphics_active_ratio", 1.0),
    "GPUTL": ("gpu_busy_ratio", 0.01),
    "MCUTL": ("memory_busy_ratio", 0.01),
    "FBUSD": ("memory_used_bytes", 2.0**20),
    "FBTTL": ("memory_total_bytes", 2.0**20),
    "POWER": ("power_w", 1.0),
    "TMPTR": ("temperature_c", 1.0),
    "SMCLK": ("sm_clock_mhz", 1.0),
}
"""Columns of `dcgmi dmon`; those of the profiler (1001 to 1005) are shares of time from 0 to 1.

Each name is the short name of its field in NVIDIA/DCGM, dcgmlib/src/dcgm_fields.cpp at 0fb66990409818236a5fec5e9a795456351579b9.
"""

_DMON_TIMES = frozenset({"Date", "Time"})

_GPU_NAMES = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
"""Columns of nvidia-smi that name the GPU, in order of preference."""


@dataclass(slots=True)
class MachineColumns:
    """Columns of the last header, and the sample that its rows belong to.

    `before` counts the cells of a row before those of `names`: date, time and GPU.
    """

    system: str = ""
    names: list[str] = field(default_factory=list[str])
    before: int = 0
    sample: int = 0
    seen: set[str] = field(default_factory=set[str])


def parse_machine_header(line: str) -> MachineColumns | None:
    """Parse the header of a CSV of nvidia-smi or of a table of either dmon; None for other lines.

    >>> parse_machine_header("timestamp, index, utilization.gpu [%], memory.used [MiB]").names
    ['timestamp', 'index', 'utilization.gpu', 'memory.used']
    >>> parse_machine_header("#Entity   SMACT  TENSO").names
    ['SMACT', 'TENSO']
    >>> parse_machine_header("#Time        gpu    pwr     sm").before
    2
    >>> parse_machine_header("# gpu         pid   type     sm    mem     fb    command").system
    'nvidia-smi pmon'
    """
    if line.startswith("#"):
        return _parse_dmon_header(line)
    if "," not in line or len(line) > 20_000:
        return None
    names = [_strip_unit(part) for part in line.split(",")[:MAX_COLUMNS]]
    if "timestamp" not in names or _COLUMNS.keys().isdisjoint(names):
        return None
    return MachineColumns(NVIDIA_SMI, names)


def _parse_dmon_header(line: str) -> MachineColumns | None:
    """Parse the header of `dcgmi dmon` or `nvidia-smi dmon`; None for other lines, such as that of the units."""
    names = line[1:20_000].split()[:MAX_COLUMNS]
    if names[:1] == ["Entity"]:
        # An entity is two cells: `GPU 0`.
        return MachineColumns(DCGM, names[1:], 2) if not _DCGM_COLUMNS.keys().isdisjoint(names) else None
    before = names.index("gpu") + 1 if "gpu" in names[:3] else 0
    if not before or not _DMON_TIMES.issuperset(names[: before - 1]):
        return None
    names = names[before:]
    system, known = (PMON, _PMON_COLUMNS) if names[:1] == ["pid"] else (NVIDIA_SMI, _DMON_COLUMNS)
    if known.keys().isdisjoint(names) or (system == PMON and names[-1] != "command"):
        return None
    return MachineColumns(system, names, before)


def _strip_unit(name: str) -> str:
    """Strip the unit in brackets from the name of a column."""
    found = _UNIT.match(name)
    return found[1] if found else name.strip()


def add_machine_line(line: str, number: int, columns: MachineColumns, log: EngineValues) -> None:
    """Add the values of one row; rows that do not fit the header, and values such as `[N/A]`, add nothing."""
    if columns.before:
        # The last cell of a process is its command, which may have blanks or be empty.
        cells = line.split(maxsplit=columns.before + len(columns.names) - 1)
        _add_dmon_row(cells, number, columns, log)
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
    gpu = next((row[name] for name in _GPU_NAMES if row.get(name)), "(no index)")
    for name, text in row.items():
        amount = _AMOUNT.match(text)
        if name in _COLUMNS and amount:
            key, factor = _COLUMNS[name]
            log.add(number, ts_ns, (NVIDIA_SMI, f"GPU {gpu}"), key, float(amount[1]) * factor, "level")


def _add_dmon_row(cells: Sequence[str], number: int, columns: MachineColumns, log: EngineValues) -> None:
    """Add a row of a table: `GPU 0  0.93  0.41` of dcgmi, `20260901  10:00:00  0  312  98` of nvidia-smi.

    A GPU or process seen again begins a new sample. Only `-o DT` of nvidia-smi gives times.
    """
    before = columns.before
    if cells and columns.system == PMON and len(cells) == len(columns.names) + before - 1:
        cells = [*cells, ""]
    if len(cells) != len(columns.names) + before or cells[0].startswith("#"):
        return
    who = _name_sampled(cells, columns)
    if who is None:
        return
    if not columns.sample or who in columns.seen:
        columns.sample = number
        columns.seen.clear()
    columns.seen.add(who)
    found = _DMON_TIME.fullmatch(f"{cells[0]} {cells[1]}") if before == _WITH_DATE else None
    ts_ns = log.clock.convert(found[1], found[2], found[3], (found[4], found[5], found[6], None)) if found else None
    known = _COLUMNS_OF_TABLES[columns.system]
    for name, text in zip(columns.names, cells[before:], strict=True):
        amount = _AMOUNT.match(text)
        if name in known and amount:
            key, factor = known[name]
            log.add(columns.sample, ts_ns, (columns.system, who), key, float(amount[1]) * factor, "level")


_COLUMNS_OF_TABLES = {NVIDIA_SMI: _DMON_COLUMNS, PMON: _PMON_COLUMNS, DCGM: _DCGM_COLUMNS}

_WITH_DATE = 3
"""Cells before the columns of nvidia-smi with `-o DT`: date, time and GPU."""


def _name_sampled(cells: Sequence[str], columns: MachineColumns) -> str | None:
    """Name the GPU of a row, with the process of `pmon`; None for a GPU without a process."""
    before = columns.before
    if columns.system == DCGM:
        return f"{cells[0]} {cells[1]}"
    gpu = f"GPU {cells[before - 1]}"
    if columns.system != PMON:
        return gpu
    return f"{gpu}, {cells[-1].strip() or 'process'} {cells[before]}" if cells[before].isdigit() else None
