"""Classification of a trace by kind of recording; `model.recording_kinds` lists the kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import INTERLEAVED, MERGED_RANKS, NO_EVENTS, NO_TIMES
from tracekit.model.recording.kinds import FOREIGN, Classification, RecordingCount
from tracekit.model.recording.rl_frameworks import find_framework, list_step_keys
from tracekit.model.recording.rl_settings import parse_profiled_steps
from tracekit.model.tables.arrays import fill_missing, mask_value
from tracekit.model.trace import Trace
from tracekit.model.units import format_ranges
from tracekit.process.calls.nesting import measure_exclusive_host_times
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

READS = (
    *("host_ops", "device_ops", "open_ranges", "memory_ops", "counters", "memory_segments"),
    "log_values",
    "log_settings",
    "engine_log",
    "engine_requests",
    *("collective_records", "thread_stacks", "watchdog_lines", "communicator_counts"),
    "ray_rows",
)
"""Raw tables that the classification needs."""

UNREAD_RATIO = 0.01
"""Share of unread rows from which they are worth reporting."""

FEW_OPS = 10
"""Operators below which a recording shows only start-up, if a GPU is listed or CUDA was called."""

CPU_OP_NS = 1_000_000
"""Typical duration of an operator that computes on the CPU; launching a kernel takes a few µs."""

_LAUNCH = re.compile(r"(?!\w*LaunchHostFunc)\w*Launch")
_FRONT_END = re.compile(r"(?:\A|[._-])async_llm(?=[._-])")
_LAYOUTS = (INTERLEAVED, MERGED_RANKS)
"""Codes of reader notes that are recording kinds of their own."""

Counts = dict[str, int]


def classify_recording(trace: Trace) -> Classification:
    """Classify one process in one source."""
    if trace.source.tool == "log":
        return _classify_log(trace)
    if trace.source.tool == "torch_memory":
        return _classify_memory_recording(trace)
    return _classify_timeline(trace)


def _classify_timeline(trace: Trace) -> Classification:
    """Classify a trace of PyTorch's profiler or of nsys."""
    counts = _count_rows_by_kind(trace)
    unread = _get_unread_counts(trace)
    labelled = [RecordingCount("unread", count, label) for label, count in unread.items()]
    labelled += _count_listed_devices(trace.meta)
    kind = _choose_timeline_kind(trace, counts, sum(unread.values()), bool(_count_listed_devices(trace.meta)))
    if kind == "ran-on-cpu":
        labelled += _measure_top_op_time(trace)
    labelled += _count_by_reader_notes(trace, kind)
    return Classification(kind, (*(RecordingCount(name, count) for name, count in counts.items()), *labelled))


def _count_by_reader_notes(trace: Trace, kind: str) -> list[RecordingCount]:
    """Collect the counts that the reader's notes give for this kind."""
    names = {MERGED_RANKS: ("ranks",), "unusable": ("no_start", "no_phase")}.get(kind, ())
    counts: list[RecordingCount] = []
    for note in trace.notes:
        for name in names:
            value = note.data.get(name)
            if isinstance(value, int):
                counts.append(RecordingCount(name, value))
            elif isinstance(value, tuple):
                counts += [RecordingCount(name, 1, label) for label in value]
    return counts


def _count_rows_by_kind(trace: Trace) -> Counts:
    """Count all rows, operators, CUDA calls, launches among them, device rows, and kernels among them."""
    is_call = mark_rows_of_kind(trace, "host_ops", "runtime")
    launch = mark_wanted_names(trace.texts("host_ops", "name"), _LAUNCH.match)
    rows = trace.meta.get("complete_count")
    return {
        **({} if rows is None else {"rows": int(rows)}),
        "ops": int(mark_rows_of_kind(trace, "host_ops", "op").sum()),
        "calls": int(is_call.sum()),
        "launches": int((is_call & launch).sum()),
        "device_ops": len(trace.numbers("device_ops", "ts_ns")),
        "kernels": int(mark_rows_of_kind(trace, "device_ops", "kernel", "collective").sum()),
    }


def _choose_timeline_kind(trace: Trace, counts: Counts, unread_count: int, has_gpu: bool) -> str:
    """Choose the kind of a timeline by its recorded rows."""
    producer = trace.meta.get("producer")
    if producer in FOREIGN:
        return str(producer)
    if counts["kernels"]:
        return next((code for code in _LAYOUTS if _has_note_code(trace, code)), "gpu")
    if _has_note_code(trace, INTERLEAVED):
        return INTERLEAVED
    if unread_count and unread_count >= UNREAD_RATIO * counts.get("rows", 0):
        return "unread-accelerator"
    if counts["launches"]:
        return "launches-only"
    return _choose_kind_without_launches(trace, counts, has_gpu)


def _choose_kind_without_launches(trace: Trace, counts: Counts, has_gpu: bool) -> str:
    """Choose the kind of a timeline without kernels and launches."""
    if _has_note_code(trace, NO_TIMES):
        return "unusable"
    if _has_note_code(trace, NO_EVENTS) or not _has_program_rows(trace):
        return "empty"
    if _FRONT_END.search(trace.source.name.rpartition("/")[2]):
        return "front-end"
    return _choose_host_only_kind(trace, counts, has_gpu)


def _choose_host_only_kind(trace: Trace, counts: Counts, has_gpu: bool) -> str:
    """Choose the kind of a timeline with host rows, and at most copies and fills on the device."""
    few_ops, few_copies = counts["ops"] < FEW_OPS, counts["device_ops"] < FEW_OPS
    if counts["calls"] and few_ops and few_copies:
        return "start-up"
    if counts["device_ops"]:
        return "gpu"
    has_ranges = mark_rows_of_kind(trace, "host_ops", "range").any()
    if has_gpu and counts["ops"] and few_ops and not has_ranges:
        return "start-up"
    return "ran-on-cpu" if has_gpu and _is_computed_on_cpu(trace) else "cpu-only"


def _has_note_code(trace: Trace, code: str) -> bool:
    """Check whether the trace has a note with this code."""
    return any(note.code == code for note in trace.notes)


def _has_program_rows(trace: Trace) -> bool:
    """Check whether anything of the program was recorded; rows of the system or the profiler do not count."""
    if mark_rows_of_kind(trace, "host_ops", "op", "range", "runtime", "python").any():
        return True
    if any(trace.row_count(name) for name in ("open_ranges", "memory_ops", "counters")):
        return True
    if trace.source.tool == "nsys":
        return bool(len(trace.numbers("device_ops", "ts_ns")))
    return bool(trace.meta.get("complete_count") or len(trace.numbers("device_ops", "ts_ns")))


def _get_unread_counts(trace: Trace) -> Mapping[str, int]:
    """Look up the counts of unread rows by category."""
    counts = trace.meta.get("unread_counts", {})
    return counts if isinstance(counts, Mapping) else {}


def _count_listed_devices(meta: Mapping[str, Any]) -> list[RecordingCount]:
    """Count the devices that the recording lists, by name; devices without a name are skipped."""
    properties = meta.get("deviceProperties")
    counts: Counts = {}
    for device in properties if isinstance(properties, list) else ():
        name = device.get("name") if isinstance(device, dict) else None
        if isinstance(name, str) and name:
            counts[name] = counts.get(name, 0) + 1
    return [RecordingCount("devices", count, name) for name, count in counts.items()]


def _find_top_op(trace: Trace) -> tuple[str, npt.NDArray[np.int64]] | None:
    """Find the operator with most self time, and its self times; None without operators."""
    rows = np.flatnonzero(mark_rows_of_kind(trace, "host_ops", "op"))
    names = trace.texts("host_ops", "name")
    own_ns = trace.derived(measure_exclusive_host_times)[rows]
    codes = names.codes[rows].astype(np.int64)
    own_ns, codes = own_ns[codes >= 0], codes[codes >= 0]
    if not len(own_ns):
        return None
    total = np.zeros(len(names.texts), np.int64)
    np.add.at(total, codes, own_ns)
    top = int(total.argmax())
    return names.texts[top], own_ns[codes == top]


def _is_computed_on_cpu(trace: Trace) -> bool:
    """Check whether the operator with most self time typically lasts as long as only computing does."""
    top = _find_top_op(trace)
    return top is not None and len(top[1]) >= FEW_OPS and float(np.median(top[1])) >= CPU_OP_NS


def _measure_top_op_time(trace: Trace) -> list[RecordingCount]:
    """Measure the self time of the top operator, and the whole time that it is part of."""
    top = _find_top_op(trace)
    if top is None:
        return []
    name, own_ns = top[0], int(top[1].sum())
    start = trace.numbers("host_ops", "ts_ns")
    end = start + trace.numbers("host_ops", "dur_ns")
    span_ns = int(end.max() - start.min())
    # Several threads may compute for longer than the recording lasts.
    whole_ns = span_ns if own_ns <= span_ns else int(trace.derived(measure_exclusive_host_times).sum())
    return [RecordingCount("top_op_ns", own_ns, name), RecordingCount("whole_ns", whole_ns)]


def _classify_memory_recording(trace: Trace) -> Classification:
    """Classify a memory snapshot or timeline."""
    if trace.source.reader == "memory_timeline":
        return Classification("memory-timeline", (_count_file_elements(trace),))
    columns = ("size_bytes", "active_bytes")
    reserved, active = (_sum_device_segments(trace, name) for name in columns)
    counts = (RecordingCount("reserved_bytes", reserved), RecordingCount("active_bytes", active))
    kind = "snapshot-without-history" if _has_note_code(trace, "no-history") else "snapshot"
    return Classification(kind, counts)


def _count_file_elements(trace: Trace) -> RecordingCount:
    """Count the elements of a file that has no other counts."""
    return RecordingCount("elements", int(trace.meta.get("element_count", 0)))


def _sum_device_segments(trace: Trace, column: str) -> int:
    """Sum one column over the device segments."""
    on_device = mask_value(trace.texts("memory_segments", "memory"), "device")
    return int(fill_missing(trace.nullable("memory_segments", column))[on_device].sum())


def _map_settings(trace: Trace) -> Mapping[str, str]:
    """Map the settings of a run to their values."""
    if not trace.has("log_settings"):
        return {}
    keys, values = (trace.texts("log_settings", name) for name in ("key", "value"))
    pairs = zip(keys.codes.tolist(), values.codes.tolist(), strict=True)
    return {keys.texts[key]: values.texts[value] for key, value in pairs}


def _classify_log(trace: Trace) -> Classification:
    """Classify a log by step."""
    if trace.source.reader == "memory_log":
        return Classification("memory-log", (_count_file_elements(trace),))
    if trace.source.reader in ("engine_log", "request_log"):
        return Classification("engine-log", (_count_file_elements(trace),))
    if trace.source.reader in ("flight_recorder", "thread_stacks", "watchdog_log", "ras"):
        return Classification("hang", (_count_file_elements(trace),))
    if trace.source.reader == "ray_timeline":
        return Classification("ray-timeline", (_count_file_elements(trace),))
    framework = find_framework(trace.texts("log_values", "name").texts)
    label = () if framework is None else (RecordingCount("framework", 1, framework.code),)
    profiled = parse_profiled_steps(_map_settings(trace))
    recorded = (RecordingCount("profiled", 1, format_ranges(profiled)),) if profiled else ()
    return Classification("driver-log", (RecordingCount("steps", _count_logged_steps(trace)), *label, *recorded))


def _count_logged_steps(trace: Trace) -> int:
    """Count the steps that a log times, once per part; all its steps if it has no time of a whole step.

    A validation before training is not a step, nor is one whose line was truncated.
    """
    step, names = trace.nullable("log_values", "step"), trace.texts("log_values", "name")
    is_step = np.array([*(name in list_step_keys() for name in names.texts), False])[names.codes]
    value = trace.nullable("log_values", "value")
    timed = is_step & ~step.missing & ~value.missing & (value.values > 0)
    rows = timed if timed.any() else ~step.missing
    pairs = np.column_stack((trace.numbers("log_values", "part")[rows], step.values[rows]))
    return len(np.unique(pairs, axis=0))
