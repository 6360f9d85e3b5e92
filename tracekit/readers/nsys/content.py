"""Metadata of an Nsight Systems export: versions, clock, GPUs, diagnostics, and missing data.

The recorded environment, arguments, paths and captured output are not read here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.trace import Note, NoteSeverity
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns, make_one_line
from tracekit.readers.nsys.sqlite.database import read_integer_columns, read_small_table

EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables with the exporter's metadata: since 2023.3, and before."""

START = "TARGET_INFO_SESSION_START_TIME"
MAX_NS = 2**61
MAX_TEXT = 200
MAX_DIAGNOSTICS = 50
"""Most diagnostics of one process that become separate notes."""

_ABSOLUTE = 10**17
"""Smallest time shift that is an absolute date: no capture lasts three years."""

_VERSION = re.compile(r"[0-9]{4}(?:\.[0-9]{1,5}){1,3}")

_LOST = re.compile(
    r"not all .* (?:might|may) have been|buffer|dropped|\blost\b|overr[ua]n|overflow|incomplete|discarded",
    re.IGNORECASE,
)
_PERHAPS = re.compile(r"\b(?:might|may|could) (?:not )?have\b", re.IGNORECASE)
"""Hedged warnings. nsys prints them for most captures that begin or end while the program runs; they prove no loss."""

_ROUTINE = re.compile(
    r"no .* (?:were |was )?collected|(?:was|were) not collected|unable to collect|scheduling information is absent"
    r"|paranoid",
    re.IGNORECASE,
)

_PROPERTIES: Mapping[str, str] = {
    "name": "name",
    "totalGlobalMem": "totalMemory",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "numSms": "smCount",
    "warpSize": "threadsPerWarp",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerBlock": "maxRegistersPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm",
    "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerBlockOptin": "maxShmemPerBlockOptin",
    "sharedMemPerMultiprocessor": "maxShmemPerSm",
    "uuid": "uuid",
}
"""Column of `TARGET_INFO_GPU` for each GPU property, by Kineto's name."""


@dataclass(frozen=True, slots=True)
class ExportClock:
    """Conversion of recorded times to Unix ns: add `base_ns`.

    `start_ns` and `end_ns` are the recorded times of the recording's start and end. `start_ns` is 0 unless the exporter
    shifted all times; `end_ns` is None if not recorded. If not `absolute`, times count from the recording's start.
    """

    base_ns: int
    start_ns: int
    end_ns: int | None
    absolute: bool


def read_export_clock(db: ExportDatabase) -> tuple[ExportClock, list[Note]]:
    """Read the file's clock and notes on it. Undoes a shift that the exporter applied."""
    notes: list[Note] = []
    utc = _read_largest_integer(db, START, "utcEpochNs") or 0
    is_known = 0 < utc < MAX_NS
    if not is_known:
        utc = 0
    exporter = _read_exporter_metadata(db)
    configured = _parse_integer_or_zero(exporter.get("EXPORT_CONFIG_TIME_SHIFT"))
    shift = configured or _parse_integer_or_zero(exporter.get("EXPORT_PARAM_TIME_SHIFT"))
    if exporter.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() == "true" and abs(shift) < _ABSOLUTE:
        # The exporter made times absolute, in addition to any configured shift.
        shift += utc
    if shift:
        text = f"the exporter shifted all times by {shift} ns, which is undone"
        notes.append(Note("info", "time-shift", text, data=Data(shift_ns=shift)))
    if not is_known:
        text = "the time of the capture's start is not recorded: times are relative"
        notes.append(Note("warning", "base-time", text))
    duration = _read_largest_integer(db, "ANALYSIS_DETAILS", "duration") or 0
    end = shift + duration if 0 < duration < MAX_NS else None
    return ExportClock(utc - shift, shift, end, is_known), notes


def read_export_metadata(db: ExportDatabase) -> dict[str, Any]:
    """Read versions and capture settings under fixed keys. Unknown values are omitted."""
    exported, captured = _read_exporter_metadata(db), _read_named_values(db, "META_DATA_CAPTURE", _OF_CAPTURE)
    system = _read_machine_metadata(db)
    exporter = _find_nsys_version(exported.get("EXPORT_PRODUCT_VERSION"))
    facts: dict[str, Any] = {
        "nsys_version": _find_nsys_version(system.get("TargetInstallDir")) or exporter,
        "nsys_exporter_version": exporter,
        "nsys_schema": _shorten_or_none(exported.get("EXPORT_SCHEMA_VERSION")),
        "capture_uuid": _shorten_or_none(captured.get("PROFILING_SESSION_UUID")),
        "host_name": _shorten_or_none(system.get("Hostname")),
        "cpu_cores": _parse_integer_or_zero(system.get("CpuCores")) or None,
        "cuda_driver_version": _parse_integer_or_zero(system.get("CudaDriverVersion")) or None,
        "gpu_driver_version": _shorten_or_none(system.get("NvDriverVersion")),
        "cuda_graph_trace": _shorten_or_none(captured.get("CUDA_GRAPH_TRACE_OPTIONS:MODE")),
        "gpu_memory_usage": _SWITCHES.get(captured.get("COLLECT_GPU_MEMORY_USAGE", "").lower()),
    }
    return drop_unknown_facts(facts)


def drop_unknown_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the facts that are None."""
    return {key: value for key, value in facts.items() if value is not None}


def find_capture_year(db: ExportDatabase) -> int | None:
    """Find the release year of the nsys that captured; None if unknown.

    The exporter's version counts only up to 2022.
    """
    version = _find_nsys_version(_read_machine_metadata(db).get("TargetInstallDir"))
    if version is not None:
        return int(version[:4])
    version = _find_nsys_version(_read_exporter_metadata(db).get("EXPORT_PRODUCT_VERSION"))
    # Any later nsys can export a report.
    if version is None or int(version[:4]) > 2022:
        return None
    return int(version[:4])


def _find_nsys_version(text: str | None) -> str | None:
    """Find an nsys version in a text; None if there is none."""
    match = _VERSION.search(text or "")
    return match and match[0]


def read_device_properties(db: ExportDatabase, pid: int | None, used: Collection[int]) -> list[dict[str, Any]]:
    """List a process's GPUs as Kineto does: `id` is the CUDA ordinal. Only the `used` ones, or all if none match."""
    if not has_table_columns(db, "TARGET_INFO_GPU", "id"):
        return []
    columns = ("id", "cuDevice", *_PROPERTIES.values())
    ordinal = _read_cuda_ordinals(db, pid)
    listed = []
    for row in read_small_table(db, "TARGET_INFO_GPU", columns, limit=1024):
        gpu = dict(zip(columns, row, strict=True))
        number = gpu["id"]
        if ordinal:
            number = ordinal.get(number)
        elif _is_ordinal(gpu["cuDevice"]):
            number = gpu["cuDevice"]
        if not _is_ordinal(number):
            continue
        entry = {"id": number}
        for key, column in _PROPERTIES.items():
            if _is_plain_property(gpu[column]):
                entry[key] = gpu[column]
        listed.append(entry)
    listed.sort(key=lambda entry: (entry["id"], str(entry.get("uuid", ""))))
    return [entry for entry in listed if entry["id"] in used] or listed


def _read_cuda_ordinals(db: ExportDatabase, pid: int | None) -> dict[Any, Any]:
    """Map the profiler's GPU numbers to a process's CUDA ordinals. Empty if not recorded."""
    if pid is None or not has_table_columns(db, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        return {}
    numbers = ("gpuId", "cudaId")
    return dict(read_small_table(db, "TARGET_INFO_CUDA_DEVICE", numbers, "pid = ?", (pid,), limit=1024))


def map_gpu_numbers(db: ExportDatabase, pid: int | None, used: Collection[int]) -> frozenset[int]:
    """Map a process's CUDA ordinals to the profiler's GPU numbers."""
    numbers = {ordinal: gpu for gpu, ordinal in _read_cuda_ordinals(db, pid).items()}
    return frozenset(int(numbers.get(number, number)) for number in used)


def read_profiler_warnings(db: ExportDatabase, pid: int | None) -> list[Note]:
    """Build notes from the profiler's warnings for this process and the machine, one per distinct text with its count."""
    if not has_table_columns(db, "DIAGNOSTIC_EVENT", "severity", "text"):
        return []
    where, parameters = "severity >= 2", list[int]()
    if pid is not None and has_table_columns(db, "DIAGNOSTIC_EVENT", "globalPid"):
        # Process number 0 and negative ids denote the machine.
        of_process = "globalPid IS NULL OR globalPid < 0 OR (globalPid >> 24) & 16777215 IN (0, ?)"
        where += f" AND ({of_process})"
        parameters.append(pid)
    texts = read_small_table(db, "DIAGNOSTIC_EVENT", ("text",), where, parameters)
    counted = Counter(_shorten_to_line(text) for (text,) in texts if isinstance(text, str) and text)
    ordered = sorted(counted.items(), key=lambda item: (_rank_warning(item[0]), item[0]))
    notes = [_build_warning_note(text, count) for text, count in ordered[:MAX_DIAGNOSTICS]]
    more = sum(count for _, count in ordered[MAX_DIAGNOSTICS:])
    if more:
        text = "further warnings of the profiler are not listed"
        notes.append(Note("info", "profiler-warning", text, count=more))
    return notes


def _classify_warning(text: str) -> NoteSeverity:
    """Classify a profiler warning by its words."""
    is_loss = _LOST.search(text) is not None
    if is_loss and not _PERHAPS.search(text):
        return "data_loss"
    if not is_loss and _ROUTINE.search(text):
        return "info"
    return "warning"


def _build_warning_note(text: str, count: int) -> Note:
    """Build the note on one profiler warning. Warnings have no codes, so the text is classified."""
    message = f"the profiler says: {text}"
    if not _LOST.search(text):
        return Note(_classify_warning(text), "profiler-warning", message, count=count, data=Data(says=text))
    data = Data(says=text, certain=not _PERHAPS.search(text))
    return Note(_classify_warning(text), "lost-rows", message, count=count, data=data)


def _rank_warning(text: str) -> int:
    """Rank a profiler warning by severity, most severe first."""
    return ("data_loss", "error", "warning", "info").index(_classify_warning(text))


def note_expected_data_missing(
    db: ExportDatabase, pid: int | None, *, api_count: int, device_op_count: int, range_count: int
) -> list[Note]:
    """Note expected data that was not recorded, with likely causes.

    The counts are of rows read: runtime and driver calls, device ops, NVTX ranges including open ones.
    """
    notes = []
    if not device_op_count and (api_count or _has_any_row(db, "TARGET_INFO_GPU")):
        severity: NoteSeverity = "info"
        why = "the capture lists a GPU"
        if api_count:
            severity, why = "warning", "CUDA calls were recorded"
        text = (
            f"{why}, but no work of a GPU: the capture window may have missed it, the GPU work may be that of "
            "another process, or the profiler failed to get it from the driver"
        )
        notes.append(Note(severity, "no-gpu-rows", text, data=Data(called=bool(api_count))))
    if not range_count and _has_nvtx_domain(db, pid):
        text = (
            "NVTX domains were created but no range was recorded: this nsys is too old for the nvtx package "
            "(nvtx from 0.2.12 on wants a newer nsys), or no range fell into the capture"
        )
        notes.append(Note("warning", "nvtx-empty-domains", text))
    return notes


def _has_nvtx_domain(db: ExportDatabase, pid: int | None) -> bool:
    """Check whether this process created an NVTX domain."""
    if not has_table_columns(db, "NVTX_EVENTS", "eventType", "globalTid"):
        return False
    where, parameters = "eventType = 75", list[int]()
    if pid is not None:
        where += " AND (globalTid >> 24) & 16777215 = ?"
        parameters.append(pid)
    return bool(read_small_table(db, "NVTX_EVENTS", ("eventType",), where, parameters, limit=1))


def _has_any_row(db: ExportDatabase, table: str) -> bool:
    """Check whether a table has any row."""
    columns = sorted(db.columns.get(table, ()))[:1]
    return bool(columns) and bool(read_small_table(db, table, tuple(columns), limit=1))


def _read_exporter_metadata(db: ExportDatabase) -> dict[str, str]:
    """Read the exporter's metadata, limited to `_OF_EXPORTER`."""
    for table in EXPORT_TABLES:
        pairs = _read_named_values(db, table, _OF_EXPORTER)
        if pairs:
            return pairs
    return {}


_OF_EXPORTER = (
    *("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION", "EXPORT_PARAM_TIME_NORMALIZE"),
    *("EXPORT_PARAM_TIME_SHIFT", "EXPORT_CONFIG_TIME_SHIFT"),
)
_OF_CAPTURE = ("PROFILING_SESSION_UUID", "CUDA_GRAPH_TRACE_OPTIONS:MODE", "COLLECT_GPU_MEMORY_USAGE")
_OF_SYSTEM = ("TargetInstallDir", "Hostname", "CudaDriverVersion", "NvDriverVersion", "CpuCores")


def _read_machine_metadata(db: ExportDatabase) -> dict[str, str]:
    """Read the machine's metadata, limited to `_OF_SYSTEM`."""
    return _read_named_values(db, "TARGET_INFO_SYSTEM_ENV", _OF_SYSTEM)


def _read_named_values(db: ExportDatabase, table: str, names: tuple[str, ...]) -> dict[str, str]:
    """Read only these names from a name-value table. If a name repeats, the smallest value is kept."""
    if not has_table_columns(db, table, "name", "value"):
        return {}
    marks = ", ".join("?" * len(names))
    where = f"name IN ({marks}) AND length(value) <= 4096"
    pairs = read_small_table(db, table, ("name", "value"), where=where, parameters=names, limit=1000)
    return {str(name): str(value) for name, value in sorted(pairs, key=str, reverse=True)}


def _read_largest_integer(db: ExportDatabase, table: str, column: str) -> int | None:
    """Read the largest integer in a column of a small table; None if there is none."""
    if not has_table_columns(db, table, column):
        return None
    recorded = read_integer_columns(db, table, (column,), order=(column,))
    values, missing = recorded.values[column], recorded.missing[column]
    if missing is not None:
        values = values[~missing]
    return int(values[-1]) if len(values) else None


def _parse_integer_or_zero(text: str | None) -> int:
    """Parse an integer; 0 for anything else."""
    if text is None or not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return 0
    return int(text)


_SWITCHES = {"true": 1, "false": 0}


def _shorten_or_none(text: str | None) -> str | None:
    """Shorten a text to one line; None if empty."""
    return _shorten_to_line(text or "") or None


def _shorten_to_line(text: str) -> str:
    """Shorten a text to one line of `MAX_TEXT` characters without control characters."""
    line = make_one_line(text[: 4 * MAX_TEXT])
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def _is_ordinal(value: object) -> bool:
    """Check whether a value is a plausible CUDA ordinal."""
    return isinstance(value, int) and 0 <= value < 4096


def _is_plain_property(value: object) -> bool:
    """Check whether a GPU property is a short text or a non-negative integer."""
    if isinstance(value, str):
        return 0 < len(value) <= MAX_TEXT
    return isinstance(value, int) and 0 <= value < 2**62
