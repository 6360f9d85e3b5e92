"""Data quality: content of each source, data loss, and failed checks (definition M19; R32)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.health.checks import Capture, diagnose
from tracekit.job.frames import make_label_headings, to_int_or_none
from tracekit.job.recording_kinds import map_classified_processes
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.inputs.note_codes import FILTERED_ROWS, INTERLEAVED, LOST_KERNELS, OF_TIMES, UNUSABLE_KERNELS
from tracekit.model.recording.kinds import FOREIGN
from tracekit.model.report import Finding, Heading, Metric, Place, Ranked, Section, Severity, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import make_nullable_numbers
from tracekit.model.tables.columns import TS
from tracekit.model.tables.keys import CAPTURE, Ints, list_row_dicts, mask_members, number_frames_alike
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Source, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.recording_kind import classify_recording
from tracekit.process.steps.windows import find_steps_and_stages

CAPTURES = Table(
    "captures",
    "one process in one source",
    {
        **KEYS,
        "world_size": Column("Int64", "Ranks in the job, where recorded."),
        "ts_ns": TS,
        "dur_ns": Column("int64", "From the first start to the last end of anything, ns."),
        "absolute_time": Column("bool", "Whether ts_ns counts from the Unix epoch."),
        "row_count": Column("int64", "Elements read."),
        "host_op_count": Column("int64", "Rows of host_ops but Python functions."),
        "device_op_count": Column("int64", "Rows of device_ops."),
        "device_name": Column("category", "GPU model, where recorded."),
        "backend": Column("category", "Communication backend, where recorded."),
    },
)


RECORDINGS = Table(
    "recordings",
    "one thing counted to tell what kind of recording one process in one source is",
    {
        **KEYS,
        "kind": Column("category", "Kind of recording."),
        "name": Column("category", "What was counted: rows, launches, kernels, unread rows, devices …"),
        "label": Column("category", "Which category, device or operator, where several are counted."),
        "count": Column("int64", "How many; ns or bytes where the name ends so."),
    },
)

_OF_PROGRAM = ("op", "range", "runtime")
_OF_NSYS = ("recorded", "cuda_calls", "kernels")
_TIMELINES = ("torch", "nsys")
_COUNTED_TABLES = ("device_ops", "open_ranges", "memory_ops", "counters")
_SHOWN_PLACES = 5


Check = tuple[int | None, int | None]
"""(count, nanoseconds) of a check; None for a number the check does not have."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the extent of one source, and one row per check."""
    host_start, host_dur = _list_host_spans(trace)
    device_start = trace.numbers("device_ops", "ts_ns")
    spans = ((host_start, host_dur), (device_start, trace.numbers("device_ops", "dur_ns")))
    recorded = [(start, dur) for start, dur in spans if len(start)]
    first = min((int(start.min()) for start, _ in recorded), default=0)
    last = max((int((start + dur).max()) for start, dur in recorded), default=0)
    distributed = trace.meta.get("distributedInfo")
    captures = {
        "world_size": make_nullable_numbers([trace.source.world_size]),
        "ts_ns": np.array([first]),
        "dur_ns": np.array([last - first]),
        "absolute_time": np.array([bool(trace.meta.get("absolute_time"))]),
        "row_count": np.array([int(trace.meta.get("element_count", 0))]),
        "host_op_count": np.array([len(host_start)]),
        "device_op_count": np.array([len(device_start)]),
        "device_name": [_find_gpu_model(trace.meta)],
        "backend": [_get_text_or_none(distributed.get("backend")) if isinstance(distributed, dict) else None],
    }
    checks = _count_quality_checks(trace)
    quality = {
        "name": np.array(list(checks), object),
        "count": make_nullable_numbers([count for count, _ in checks.values()]),
        "dur_ns": make_nullable_numbers([dur_ns for _, dur_ns in checks.values()]),
    }
    return {"captures": captures, "quality": quality, "recordings": _measure_recording_kind(trace)}


def _measure_recording_kind(trace: Trace) -> Mapping[str, Any]:
    """Classify the recording, one row per count that the kind is based on."""
    recorded = classify_recording(trace)
    counts = recorded.counts
    return {
        "kind": [recorded.kind] * len(counts),
        "name": [counted.name for counted in counts],
        "label": [counted.label for counted in counts],
        "count": np.array([counted.count for counted in counts]),
    }


def _list_host_spans(trace: Trace) -> tuple[Ints, Ints]:
    """List (starts, durations) of the rows of `host_ops` without Python functions, which are only partly read."""
    start, dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    python = mark_rows_of_kind(trace, "host_ops", "python")
    return (start[~python], dur[~python]) if python.any() else (start, dur)


def _get_text_or_none(value: object) -> str | None:
    """Get a text; None for any other value."""
    return value if isinstance(value, str) else None


def _find_gpu_model(meta: Mapping[str, Any]) -> str | None:
    """Find the GPU model, if all recorded devices have the same."""
    properties = meta.get("deviceProperties")
    names = {d.get("name") for d in properties if isinstance(d, dict)} if isinstance(properties, list) else set()
    return _get_text_or_none(names.pop()) or None if len(names) == 1 else None


def _count_quality_checks(trace: Trace) -> dict[str, Check]:
    """Count each check by name; checks without data are left out."""
    _, host_dur = _list_host_spans(trace)
    checks: dict[str, Check] = {"host_zero_duration": (int((host_dur == 0).sum()), None)}
    if trace.has("device_ops"):
        start = trace.numbers("device_ops", "ts_ns")
        dur = trace.numbers("device_ops", "dur_ns")
        links: Launches = trace.derived(find_launches)
        unlinked = ~links.linked
        early = links.linked & (start < links.ts_ns)
        checks |= {
            "device_ops": (len(dur), int(dur.sum())),
            "device_zero_duration": (int((dur == 0).sum()), None),
            "unlinked": (int(unlinked.sum()), int(dur[unlinked].sum())),
            "starts_before_launch": (int(early.sum()), None),
            "collectives_without_metadata": _count_collectives_without_args(trace),
        }
    checks["ranges_beyond_cap"] = (trace.derived(find_steps_and_stages).dropped, None)
    return checks | {name: (count, None) for name, count in count_nsys_recorded_rows(trace).items()}


def count_nsys_recorded_rows(trace: Trace) -> dict[str, int]:
    """Count the rows of an nsys recording: all of the program (`recorded`), `cuda_calls` and `kernels`.

    Ranges, ops, calls, GPU work, memory and metrics count; system activity does not. Empty for other tools.
    """
    if trace.source.tool != "nsys":
        return {}
    other_count = sum(len(trace.get(name)) for name in _COUNTED_TABLES)
    return {
        "recorded": int(mark_rows_of_kind(trace, "host_ops", *_OF_PROGRAM).sum()) + other_count,
        "cuda_calls": int(mark_rows_of_kind(trace, "host_ops", "runtime").sum()),
        "kernels": int(mark_rows_of_kind(trace, "device_ops", "kernel", "collective").sum()),
    }


def _count_collectives_without_args(trace: Trace) -> Check:
    """Count collective kernels known by name only, without size and group."""
    rows = np.flatnonzero(mark_rows_of_kind(trace, "device_ops", "collective"))
    if "Collective name" in trace.sparse:
        has_name = trace.sparse["Collective name"].rows
        rows = rows[~mask_members(trace.numbers("device_ops", "id")[rows], has_name)]
    return len(rows), int(trace.numbers("device_ops", "dur_ns")[rows].sum())


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report the sources with their content and checks; judge R32."""
    captures = measured["captures"]
    if not len(captures):
        return ANALYSIS.skipped("no source could be read")
    quality = measured["quality"]
    number, quality["process"] = number_frames_alike(CAPTURE, captures, quality)
    checks = quality["name"].to_numpy(object), quality["process"].to_numpy(np.int64)
    counts, times = (*checks, quality["count"]), (*checks, quality["dur_ns"])
    by_source = captures.set_index(number)
    gpu_ns = _get_check_results(times, "device_ops", by_source.index)
    by_source["unlinked"] = _get_check_results(counts, "unlinked", by_source.index)
    by_source["unlinked_ratio"] = (
        _get_check_results(times, "unlinked", by_source.index) / gpu_ns.where(gpu_ns > 0)
    ).astype("Float64")
    # Memory snapshots and logs cannot record ops: show no value rather than 0.
    timeline = captures["tool"].isin(_TIMELINES).to_numpy(bool)
    for name in ("dur_ns", "host_op_count", "device_op_count"):
        by_source[name] = by_source[name].astype("Int64").where(timeline)
    notes = pd.Series([note.source for note in measured.notes], dtype=object).value_counts()
    by_source["notes"] = captures["source"].map(notes).fillna(0).astype(int).to_numpy()
    has_gpu = bool((captures["device_op_count"] > 0).any())
    metrics = (
        Metric("sources", len(captures), "count"),
        Metric("elements", int(captures["row_count"].sum()), "count", label="elements read"),
    )
    headings = (*make_label_headings(measured), *SOURCE_HEADINGS)
    if has_gpu:
        headings += GPU_HEADINGS
    headings += (Heading("notes", "notes", "count"),)
    sources = by_source.reset_index(drop=True)
    of_nsys = {name: _get_check_results(counts, name, by_source.index).to_numpy() for name in _OF_NSYS}
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: (
            make_sheet("sources", "Sources", headings, sources, ranked=Ranked("notes")),
            *select_filled_sheets(_make_diagnosis_table(measured, captures.assign(**of_nsys))),
        ),
        findings=tuple(_find_profiling_artefacts(measured, by_source, thresholds)),
    )


SOURCE_HEADINGS = parse_headings("""
    source | source
    rank | rank | id
    dur_ns | span | ns | First start to last end of anything.
    host_op_count | host ops | count
""")
GPU_HEADINGS = parse_headings("""
    device_op_count | device ops | count
    unlinked_ratio | unlinked | ratio | GPU time whose launch is not in the trace, of all GPU time.
""")


Checks = tuple[npt.NDArray[np.object_], npt.NDArray[np.int64], pd.Series]
"""(name of each check, number of its process, its result)."""


def _get_check_results(checks: Checks, name: str, index: pd.Index[Any]) -> pd.Series[Any]:
    """Get the results of one check by process; NA if it was not made."""
    names, process, values = checks
    rows = np.flatnonzero((names == name) & values.notna().to_numpy())
    room = int(max(process.max(initial=0), index.max())) + 1
    results = pd.array([None] * room, dtype="Int64")
    results[process[rows[::-1]]] = values.array[rows[::-1]].astype("Int64")
    return pd.Series(results[index.to_numpy()], index, copy=False)


def _make_diagnosis_table(measured: Measurements, captures: pd.DataFrame) -> Sheet:
    """Make the table of problems in the capture, with cause and remedy, most severe first."""
    recorded_captures = (_make_capture(source, row) for source, row in _match_sources_to_captures(measured, captures))
    chosen = measured.facts.excluded_count > 0 or any(note.code == "left-out" for note in measured.notes)
    problems = [
        {
            "what": d.what,
            "places": ", ".join(d.places[:_SHOWN_PLACES]) + (" …" if len(d.places) > _SHOWN_PLACES else ""),
            "cause": d.cause,
            "remedy": d.remedy,
        }
        for d in diagnose(tuple(recorded_captures), measured.notes, measured.failures, complete=not chosen)
        if d.severity != "info"
    ]
    headings = parse_headings("""
        what | what
        places | files
        cause | cause
        remedy | to do
    """)
    frame = pd.DataFrame(problems, columns=[heading.name for heading in headings])
    return make_sheet("diagnoses", "What went wrong in the capture", headings, frame)


def _match_sources_to_captures(measured: Measurements, captures: pd.DataFrame) -> list[tuple[Source, dict[str, Any]]]:
    """Match each source with its row of the captures; adds its step numbers as `steps` and its kind as `recording`."""
    steps = measured["steps"]
    numbered = steps[steps["step"].notna()].groupby([*CAPTURE], dropna=False, sort=False)["step"]
    steps_by_process = {_make_process_key(str(s), pid): frozenset(numbers.tolist()) for (s, pid), numbers in numbered}
    rows = {_make_process_key(row["source"], row["pid"]): row for row in list_row_dicts(captures)}
    keys = [(source, _make_process_key(source.name, source.pid)) for source in measured.sources]
    kinds = map_classified_processes(measured)
    return [
        (
            source,
            {str(k): v for k, v in rows[key].items()}
            | {
                "steps": steps_by_process.get(key, frozenset()),
                "recording": kinds[key].classified if key in kinds else None,
            },
        )
        for source, key in keys
        if key in rows
    ]


def _make_process_key(source: str, pid: Any) -> tuple[str, int | None]:
    """Make the key of a process: its source and pid."""
    return source, to_int_or_none(pid)


def _make_capture(source: Source, row: Mapping[str, Any]) -> Capture:
    """Make the record of one process in one source that is diagnosed."""
    return Capture(
        source=source,
        first_ns=int(row["ts_ns"]),
        last_ns=int(row["ts_ns"]) + int(row["dur_ns"]),
        absolute_time=bool(row["absolute_time"]),
        host_op_count=int(row["host_op_count"]),
        device_op_count=int(row["device_op_count"]),
        recorded=to_int_or_none(row["recorded"]),
        call_count=to_int_or_none(row["cuda_calls"]),
        kernel_count=to_int_or_none(row["kernels"]),
        steps=row["steps"],
        recording=row["recording"],
    )


def _find_profiling_artefacts(measured: Measurements, captures: pd.DataFrame, thresholds: Thresholds) -> list[Finding]:
    """Find R32: problems that make other numbers unreliable; one finding per kind, with its sources."""
    limit = thresholds.of("profiling-artefact")
    kind_of = {recorded.source: recorded.classified.kind for recorded in map_classified_processes(measured).values()}
    interleaved = _list_noted_sources(measured, {INTERLEAVED})
    losses = {note.code for note in measured.notes if note.severity == "data_loss"} - OF_TIMES
    lossy = [
        source
        for source in _list_noted_sources(measured, losses)
        if source not in interleaved and kind_of.get(source) not in OWN_LOSSES
    ]
    failed = sorted(failure.source for failure in measured.failures)
    unlinked = captures[(captures["unlinked_ratio"] > limit["unlinked_ratio"]).fillna(value=False)]
    mixed = (
        captures[captures["device_op_count"].eq(0).fillna(value=False)]
        if (captures["device_op_count"] > 0).any()
        else captures.iloc[:0]
    )
    mixed = mixed[~mixed["source"].map(kind_of).isin(WITHOUT_GPU_BY_DESIGN)]
    without_launch = f"have over {format_quantity(limit['unlinked_ratio'], 'ratio')} of GPU time without its launch: no op is known for it, and its stage at best by GPU annotation or by when it ran"
    kinds: tuple[tuple[list[str], Severity, str, str], ...] = (
        (failed, "high", *FAILED),
        (interleaved, "high", *TWO_PROCESSES),
        (lossy, "high", *LOSSY),
        (_list_noted_sources(measured, OF_TIMES - OF_FIRST_KERNELS), "high", *IMPOSSIBLE_ROWS),
        (_list_noted_sources(measured, OF_FIRST_KERNELS), "high", *LOST_FIRST_KERNELS),
        (_list_noted_sources(measured, {FILTERED_ROWS}), "high", *REMOVED_ROWS),
        (unlinked["source"].tolist(), "info", without_launch, WARM_UP),
        (mixed["source"].tolist(), "info", *WITHOUT_GPU),
    )
    return [
        Finding(
            "profiling-artefact",
            severity,
            f"{len(sources):,} of {len(captures) + len(failed):,} sources {text}",
            advice,
            (Metric("sources", len(sources), "count", "lower"),),
            tuple(Place(source=source) for source in sources[:50]),
        )
        for sources, severity, text, advice in kinds
        if sources
    ]


OWN_LOSSES = frozenset({"interleaved-processes", "unusable"})
"""Kinds of recordings whose own message names the loss."""

WITHOUT_GPU_BY_DESIGN = frozenset({"front-end", *FOREIGN})
"""Kinds of recordings that have no GPU rows by design."""


def _list_noted_sources(measured: Measurements, codes: Collection[str]) -> list[str]:
    """List the sources with a note of any of these codes."""
    return sorted({note.source for note in measured.notes if note.code in codes})


FAILED = ("could not be read", "copy the files again, or leave them out with --exclude")
LOSSY = (
    "are damaged or cut off: what is missing counts as nothing",
    "check the copy and that the profiler was stopped before the job ended",
)
TWO_PROCESSES = (
    "were written by two processes at the same time: no figure is shown",
    "put rank and pid into the name of the trace file, and record again",
)
OF_FIRST_KERNELS = frozenset({UNUSABLE_KERNELS, LOST_KERNELS})
"""Codes of notes on kernels that the profiler lost at the start of the recording."""

IMPOSSIBLE_ROWS = (
    "have rows with impossible times, which are left out: GPU time may be too low",
    "record again with a newer torch",
)
LOST_FIRST_KERNELS = (
    "lack usable kernels for their first launches: GPU time is too low there",
    "start recording later (schedule warmup=1 or more), with a newer driver",
)
REMOVED_ROWS = (
    "are a sample of the recorded rows: idle time, counts and shares are not those of the run",
    "analyze the trace as the profiler wrote it",
)
WARM_UP = "warm the profiler up one step before recording (schedule warmup=1)"
WITHOUT_GPU = ("have no GPU activity while others do", "check that no other profiler was attached on those ranks")


ANALYSIS = Analysis(
    id="data-quality",
    title="Can the numbers be trusted?",
    reads=(
        "host_ops",
        "device_ops",
        "device_ranges",
        "memory_ops",
        "open_ranges",
        "counters",
        "windows",
        "memory_segments",
        "log_values",
    ),
    args=("In msg nelems",),
    writes=(CAPTURES, RECORDINGS, "quality"),
    rests_on=("quality",),
    rules=("profiling-artefact",),
    thresholds={
        "profiling-artefact": {
            # GPU time without a known launch, as a share of all GPU time.
            "unlinked_ratio": 0.05
        }
    },
    any_source=True,
    measure=measure,
    judge=judge,
    whole_recording=True,
)
