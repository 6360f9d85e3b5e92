"""Data quality: content of each source, data loss, and failed checks (definition M19; R32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.health.checks import Capture, diagnose
from tracekit.job.frames import make_label_headings
from tracekit.job.recording_kinds import map_classified_processes
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.inputs.note_codes import FILTERED_ROWS, INTERLEAVED, LOST_KERNELS, OF_TIMES, UNUSABLE_KERNELS
from tracekit.model.recording.kinds import FOREIGN
from tracekit.model.report import Finding, Heading, Metric, Place, Ranked, Section, Severity, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, make_nullable_numbers
from tracekit.model.tables.columns import TS
from tracekit.model.tables.frame import Frame, divide, from_rows, where
from tracekit.model.tables.keys import CAPTURE, Ints, mask_members
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
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
    "one count behind the recording kind of one process in one source",
    {
        **KEYS,
        "kind": Column("category", "Kind of recording."),
        "name": Column("category", "Subject of the count: rows, launches, kernels, unread rows, devices …"),
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
    other_count = sum(trace.row_count(name) for name in _COUNTED_TABLES)
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
    captures, quality = measured.frame("captures"), measured.frame("quality")
    if not len(captures):
        return ANALYSIS.skipped("no source could be read")
    unlinked_ns, gpu_ns = (_get_check_results(captures, quality, name, "dur_ns") for name in ("unlinked", "device_ops"))
    # Memory snapshots and logs cannot record ops: show no value rather than 0.
    is_timeline = captures.is_in("tool", _TIMELINES)
    shown = {name: where(is_timeline, captures[name]) for name in ("dur_ns", "host_op_count", "device_op_count")}
    notes = Counter(note.source for note in measured.notes)
    sources = captures.with_columns(
        **shown,
        unlinked_ratio=divide(unlinked_ns, gpu_ns),
        notes=np.array([notes[source] for source in captures.values("source")]),
    )
    has_gpu = bool((captures["device_op_count"] > 0).any())
    metrics = (
        Metric("sources", len(captures), "count"),
        Metric("elements", int(captures["row_count"].sum()), "count", label="elements read"),
    )
    headings = (*make_label_headings(measured), *SOURCE_HEADINGS)
    if has_gpu:
        headings += GPU_HEADINGS
    headings += (Heading("notes", "notes", "count"),)
    of_nsys = {name: _get_check_results(captures, quality, name, "count") for name in _OF_NSYS}
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: (
            make_sheet("sources", "Sources", headings, sources, ranked=Ranked("notes")),
            *select_filled_sheets(_make_diagnosis_table(measured, captures.with_columns(**of_nsys))),
        ),
        findings=tuple(_find_profiling_artefacts(measured, sources, thresholds)),
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


def _get_check_results(captures: Frame, quality: Frame, check: str, column: str) -> Array:
    """Get the results of one check by capture; missing if it was not made."""
    results = quality.filter(quality.equals("name", check) & ~quality.is_missing(column)).distinct(*CAPTURE)
    results = results.select(*CAPTURE, column)
    return captures.select(*CAPTURE).join(results, CAPTURE, "left", optional=CAPTURE).columns[column]


def _make_diagnosis_table(measured: Measurements, captures: Frame) -> Sheet:
    """Make the table of problems in the capture, with cause and remedy, most severe first."""
    chosen = measured.facts.excluded_count > 0 or any(note.code == "left-out" for note in measured.notes)
    diagnoses = diagnose(
        _list_diagnosed_captures(measured, captures), measured.notes, measured.failures, complete=not chosen
    )
    problems = [
        (
            d.what,
            ", ".join(d.places[:_SHOWN_PLACES]) + (" …" if len(d.places) > _SHOWN_PLACES else ""),
            d.cause,
            d.remedy,
        )
        for d in diagnoses
        if d.severity != "info"
    ]
    headings = parse_headings("""
        what | problem
        places | files
        cause | cause
        remedy | to do
    """)
    table = from_rows([heading.name for heading in headings], problems)
    return make_sheet("diagnoses", "Problems of the capture", headings, table)


def _list_diagnosed_captures(measured: Measurements, captures: Frame) -> list[Capture]:
    """List the record of each process in one source that is diagnosed."""
    steps_by_process: dict[tuple[str, int | None], set[int]] = {}
    steps = measured.frame("steps")
    for row in steps.filter(~steps.is_missing("step")).rows(*CAPTURE, "step"):
        steps_by_process.setdefault((row["source"], row["pid"]), set()).add(row["step"])
    rows = {(row["source"], row["pid"]): row for row in captures.rows()}
    kinds = map_classified_processes(measured)
    recorded = []
    for source in measured.sources:
        process = source.name, source.pid
        if process not in rows:
            continue
        row = rows[process]
        recorded.append(
            Capture(
                source=source,
                first_ns=row["ts_ns"],
                last_ns=row["ts_ns"] + row["dur_ns"],
                absolute_time=row["absolute_time"],
                host_op_count=row["host_op_count"],
                device_op_count=row["device_op_count"],
                recorded=row["recorded"],
                call_count=row["cuda_calls"],
                kernel_count=row["kernels"],
                steps=frozenset(steps_by_process.get(process, ())),
                recording=kinds[process].classified if process in kinds else None,
            )
        )
    return recorded


def _find_profiling_artefacts(measured: Measurements, captures: Frame, thresholds: Thresholds) -> list[Finding]:
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
    unlinked = captures.filter(captures.number("unlinked_ratio", missing=0) > limit["unlinked_ratio"])
    without_gpu = captures.filter(captures.equals("device_op_count", 0))
    mixed = [source for source in without_gpu.values("source") if kind_of.get(source) not in WITHOUT_GPU_BY_DESIGN]
    if not captures.integers("device_op_count").any():
        mixed = []
    without_launch = f"have over {format_quantity(limit['unlinked_ratio'], 'ratio')} of GPU time without a recorded launch: its op is unknown, and its stage is known only by GPU annotation or by run time"
    kinds: tuple[tuple[list[str], Severity, str, str], ...] = (
        (failed, "high", *FAILED),
        (interleaved, "high", *TWO_PROCESSES),
        (lossy, "high", *LOSSY),
        (_list_noted_sources(measured, OF_TIMES - OF_FIRST_KERNELS), "high", *IMPOSSIBLE_ROWS),
        (_list_noted_sources(measured, OF_FIRST_KERNELS), "high", *LOST_FIRST_KERNELS),
        (_list_noted_sources(measured, {FILTERED_ROWS}), "high", *REMOVED_ROWS),
        (unlinked.values("source"), "info", without_launch, WARM_UP),
        (mixed, "info", *WITHOUT_GPU),
    )
    return [
        Finding(
            "profiling-artefact",
            severity,
            f"{len(sources):,} of {len(captures) + len(failed):,} sources {_agree_with_count(text, len(sources))}",
            advice,
            (Metric("sources", len(sources), "count", "lower"),),
            tuple(Place(source=source) for source in sources[:50]),
        )
        for sources, severity, text, advice in kinds
        if sources
    ]


_SINGULAR = {"are": "is", "were": "was", "have": "has", "lack": "lacks"}


def _agree_with_count(predicate: str, count: int) -> str:
    """Put the verb at the start of a predicate into the singular for one source."""
    verb, _, rest = predicate.partition(" ")
    return f"{_SINGULAR.get(verb, verb)} {rest}" if count == 1 else predicate


OWN_LOSSES = frozenset({"interleaved-processes", "unusable"})
"""Kinds of recordings whose own message names the loss."""

WITHOUT_GPU_BY_DESIGN = frozenset({"front-end", *FOREIGN})
"""Kinds of recordings that have no GPU rows by design."""


def _list_noted_sources(measured: Measurements, codes: Collection[str]) -> list[str]:
    """List the sources with a note of any of these codes."""
    return sorted({note.source for note in measured.notes if note.code in codes})


FAILED = ("could not be read", "copy the files again, or leave them out with --exclude")
LOSSY = (
    "are damaged or cut off: missing rows count as 0",
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
    "lack usable kernels for the first launches: the GPU time is too low",
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
        "engine_log",
        "engine_requests",
        "ray_rows",
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
