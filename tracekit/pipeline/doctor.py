"""Capture diagnosis: reads each file of a directory lightly, and finds out which captures failed and why."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from tracekit.analyses.trust.data_quality import count_nsys_recorded_rows
from tracekit.discover import Discovery
from tracekit.discover import discover as find
from tracekit.discover.arguments import FileCounts, UnreadFile, count_found_files, format_file_counts
from tracekit.discover.manifests import Manifest
from tracekit.discover.nsys_files import REPORT_SUFFIXES
from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.health.checks import Capture, Diagnosis, diagnose, summarize_capture_kinds
from tracekit.health.ray_sessions import find_session_symptoms
from tracekit.health.signs import NAMED, Symptom, find_note_symptoms
from tracekit.model.inputs.note_codes import IGNORED
from tracekit.model.records import dataclass
from tracekit.model.report import Recording
from tracekit.model.text.labels import choose_plural, join_first_few, make_displayable, make_natural_key
from tracekit.model.trace import Failure, Note, Source, Trace, Want
from tracekit.model.units import format_ranges
from tracekit.pipeline import run as pipeline
from tracekit.process import recording_kind
from tracekit.process.steps.windows import StepsAndStages, find_steps_and_stages
from tracekit.readers.loading import sniff

DOCTOR_WANT = Want(frozenset(recording_kind.READS), args=(), modules=False)
"""The smallest set of tables that gives the time range, the amount of work and the steps of a capture."""


@dataclass(frozen=True, slots=True)
class ExaminedProcess:
    """One process of a source, as the worker that read it returns it."""

    capture: Capture
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class CaptureExamination:
    """The examined captures and their diagnoses; `read_count` of `source_count` sources were readable.

    `file_counts` counts the files that were `read`, `refused`, `unreadable` and `duplicate`.
    """

    title: str
    source_count: int
    read_count: int
    ignored_count: int
    captures: tuple[Capture, ...]
    diagnoses: tuple[Diagnosis, ...]
    file_counts: FileCounts = ()
    recordings: tuple[Recording, ...] = ()
    """Kinds of recordings among the files, as in the report of `analyze`."""
    profilers: tuple[str, ...] = ()
    """Who profiled, where processes left a manifest, each with how many did: `capture instead of verl 0.9.1`."""


def examine_captures(paths: Sequence[str | Path], options: pipeline.Options) -> CaptureExamination:
    """Diagnose the captures among files, directories or globs. Raises `TracekitError` if a path does not exist."""
    discovery = find(paths, exclude=options.exclude, sniff=sniff, may_be_empty=True)
    sources = discovery.sources
    with show_progress_line(sys.stderr, enabled=options.progress) as on_progress:
        outcomes = list(local.run_locally(examine_source, sources, jobs=options.jobs, on_progress=on_progress))
    captures: list[Capture] = []
    read_notes: list[Note] = []
    source_notes: list[Note] = []
    failures: list[Failure] = []
    for outcome in outcomes:
        for looked in outcome.value or ():
            captures.append(looked.capture)
            read_notes += looked.notes
        if outcome.failure is not None:
            failures.append(outcome.failure)
            source_notes += outcome.source.notes
    ignored = discovery.ignored
    notes = [*read_notes, *source_notes, *discovery.notes, *_note_ignored_files(ignored, paths)]
    symptoms = [*find_session_symptoms(_list_given_folders(paths), _list_nsys_reports(discovery))]
    recordings = summarize_capture_kinds(captures, notes)
    explained = NAMED | {"elsewhere", "lost-capture", "never-closed"}
    if not (sources or recordings or any(sign.code in explained for sign in find_note_symptoms(notes))):
        count = len(ignored)
        message = f"no profile among {count:,} {choose_plural(count, 'file')}"
        symptoms.append(Symptom("no-profile", (), message))
    excluded = any(entry.reason.code == "excluded" for entry in ignored)
    read_count = len(outcomes) - len(failures)
    return CaptureExamination(
        title=discovery.title,
        source_count=len(sources),
        read_count=read_count,
        ignored_count=len(ignored),
        captures=tuple(captures),
        diagnoses=diagnose(captures, notes, failures, symptoms, complete=not excluded),
        file_counts=count_found_files(read_count, len(failures), discovery.state_counts()),
        recordings=recordings,
        profilers=tuple(_count_profilers(discovery.manifests)),
    )


def _count_profilers(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Count the processes with a manifest, by the profiler that `capture` replaced."""
    processes = {}
    for manifest in manifests:
        process = manifest.name if manifest.pid is None else manifest.pid
        processes[manifest.host, process] = manifest.in_place_of
    for replaced, count in Counter(processes.values()).most_common():
        place = f" instead of {replaced}'s profiler" if replaced else ""
        yield f"profiled by capture{place} ({count:,} {choose_plural(count, 'process', 'processes')})"


def examine_source(source: Source, advance: Advance) -> tuple[ExaminedProcess, ...]:
    """Summarize the processes of one source in a few numbers; raises the errors of its reader."""
    traces = pipeline.read_source(source, advance, DOCTOR_WANT)
    return tuple(ExaminedProcess(summarize_capture(t), (*t.source.notes, *t.notes)) for t in traces)


def summarize_capture(trace: Trace) -> Capture:
    """Summarize one process: time range, op counts, steps and recording kind."""
    host, device = trace.get_or_empty("host_ops"), trace.get_or_empty("device_ops")
    start = np.concatenate([host["ts_ns"].to_numpy(), device["ts_ns"].to_numpy()])
    dur = np.concatenate([host["dur_ns"].to_numpy(), device["dur_ns"].to_numpy()])
    first_ns = last_ns = 0
    if len(start):
        first_ns, last_ns = int(start.min()), int((start + dur).max())
    steps: StepsAndStages = trace.derived(find_steps_and_stages)
    counts = count_nsys_recorded_rows(trace)
    session = trace.meta.get("capture_uuid")
    return Capture(
        source=trace.source,
        first_ns=first_ns,
        last_ns=last_ns,
        absolute_time=bool(trace.meta.get("absolute_time")),
        host_op_count=len(host),
        device_op_count=len(device),
        recorded=counts.get("recorded"),
        call_count=counts.get("cuda_calls"),
        kernel_count=counts.get("kernels"),
        has_collectives=bool((device["kind"] == "collective").any()),
        steps=frozenset(steps.steps["step"].dropna().astype("int64").tolist()),
        session=session if isinstance(session, str) else None,
        recording=recording_kind.classify_recording(trace),
    )


def _list_given_folders(paths: Sequence[str | Path]) -> list[Path]:
    """List the absolute paths of the directories among the arguments."""
    return [Path(os.path.abspath(p)) for p in paths if os.path.isdir(p)]  # noqa: PTH100, PTH112 - a link keeps its name


def _find_common_folder(paths: Sequence[str | Path]) -> list[Path]:
    """Find the deepest directory that contains all files given one by one; empty if none were."""
    folders = [os.path.dirname(os.path.abspath(p)) for p in paths if os.path.isfile(p)]  # noqa: PTH100, PTH113, PTH120
    return [Path(os.path.commonpath(folders))] if folders else []


def _list_nsys_reports(discovery: Discovery) -> list[Path]:
    """List the nsys reports among the sources and the ignored files."""
    reports = [source.path for source in discovery.sources if source.tool == "nsys"]
    for entry in discovery.ignored:
        if entry.path.name.endswith(REPORT_SUFFIXES):
            reports.append(entry.path)
    return reports


def _note_ignored_files(ignored: Sequence[UnreadFile], paths: Sequence[str | Path]) -> Iterator[Note]:
    """Make a note for each ignored file, with its path relative to the given directory."""
    bases = [*_list_given_folders(paths), *_find_common_folder(paths)]
    for entry in ignored:
        path = entry.path
        base = next((base for base in bases if path.is_relative_to(base)), None)
        if base:
            path = path.relative_to(base)
        data = entry.reason.note_data()
        yield Note("info", IGNORED, entry.reason.text, make_displayable(str(path)), data=data)


def summarize_examination(examination: CaptureExamination) -> tuple[str, ...]:
    """Summarize the readable captures in short phrases: files, ranks, roles, steps, GPU work."""
    captures = [capture for capture in examination.captures if capture.source.tool != "log" and capture.recorded != 0]
    facts = [_count_read_files(examination), *_summarize_captures(captures), *examination.profilers]
    return tuple(fact for fact in facts if fact)


def _count_read_files(examination: CaptureExamination) -> str:
    """Summarize how many files there are and how many were readable."""
    if len(examination.file_counts) > 1:
        return format_file_counts(examination.file_counts)
    count = examination.source_count
    return f"{examination.read_count:,} of {count:,} {choose_plural(count, 'file')} read"


def _summarize_captures(captures: Sequence[Capture]) -> Iterator[str]:
    """Summarize runs, ranks, roles, steps and GPU work of the captures; an unknown one gives an empty text."""
    sources = [capture.source for capture in captures]
    runs = {source.run for source in sources}
    if len(runs) > 1:
        yield f"{len(runs):,} runs"
    yield _format_id_range("rank", (source.rank for source in sources))
    roles = {source.role for source in sources if source.role is not None}
    yield join_first_few(sorted(roles, key=make_natural_key), 4)
    steps_of_captures = [capture.steps for capture in captures]
    yield _format_id_range("step", chain((source.step for source in sources), *steps_of_captures))
    with_gpu = len({capture.source.name for capture in captures if capture.device_op_count})
    if with_gpu:
        yield f"GPU work in {with_gpu:,}"
    elif sources:
        yield "no GPU work recorded"


def _format_id_range(name: str, ids: Iterable[int | None]) -> str:
    """Format ranks or steps as `ranks 0–7`; empty if none is known."""
    known_ids = {id_ for id_ in ids if id_ is not None}
    if not known_ids:
        return ""
    return f"{choose_plural(len(known_ids), name)} {format_ranges(known_ids)}"
