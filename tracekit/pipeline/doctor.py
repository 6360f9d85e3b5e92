"""What went wrong in the captures of a directory: every file looked at lightly, then diagnosed."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.analyses.trust.data_quality import recorded_counts
from tracekit.discover import Discovery
from tracekit.discover import discover as find
from tracekit.discover.arguments import FileCounts, Ignored, accounted, counted
from tracekit.discover.manifests import Manifest
from tracekit.discover.nsys_files import REPORT_SUFFIXES
from tracekit.engine import Advance, local
from tracekit.engine.progress import progress_line
from tracekit.health.checks import Capture, Diagnosis, diagnose
from tracekit.health.ray_sessions import session_symptoms
from tracekit.health.signs import NAMED, Symptom, signs
from tracekit.model.codes import IGNORED
from tracekit.model.labels import natural, shown
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.model.units import numbers
from tracekit.pipeline import run as pipeline
from tracekit.process.steps import Windows, windows
from tracekit.readers.loading import sniff

WANT = Want(
    frozenset({"host_ops", "device_ops", "open_ranges", "memory_ops", "counters"}),
    args=(),
    modules=False,
)
"""As little as tells when something happened, how much, and in which step."""


@dataclass(frozen=True, slots=True)
class Looked:
    """One process of a source as it travels from the worker that read it."""

    capture: Capture
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What was looked at, and what is wrong with it; `read_count` sources of `source_count` could be read.

    `file_counts` are how many files were `read`, `refused`, `unreadable` and `duplicate`.
    """

    title: str
    source_count: int
    read_count: int
    ignored_count: int
    captures: tuple[Capture, ...]
    diagnoses: tuple[Diagnosis, ...]
    file_counts: FileCounts = ()
    profilers: tuple[str, ...] = ()
    """Who profiled, where processes left a manifest, each with how many did: `capture in the place of verl 0.9.1`."""


def examine(paths: Sequence[str | Path], options: pipeline.Options) -> Examination:
    """The examination of files, directories or globs. Raises `TracekitError` where a path does not exist."""
    found = find(paths, exclude=options.exclude, sniff=sniff, may_be_empty=True)
    with progress_line(sys.stderr, enabled=options.progress) as on_progress:
        outcomes = list(local.run(look, found.sources, jobs=options.jobs, on_progress=on_progress))
    looked = [one for outcome in outcomes for one in outcome.value or ()]
    captures = tuple(one.capture for one in looked)
    read = sum(outcome.failure is None for outcome in outcomes)
    failed = [o.source for o in outcomes if o.failure is not None]
    notes = [
        *(note for one in looked for note in one.notes),
        *(note for source in failed for note in source.notes),
        *found.notes,
        *_ignored(found.ignored, paths),
    ]
    failures = [o.failure for o in outcomes if o.failure is not None]
    seen = [*session_symptoms(_given(paths), _reports(found))]
    if not found.sources and not any(s.code in NAMED for s in signs(notes)):
        count = f"{len(found.ignored):,} {'file' if len(found.ignored) == 1 else 'files'}"
        seen.append(Symptom("no-profile", (), f"no profile among {count}"))
    excluded = any(i.reason.code == "excluded" for i in found.ignored)
    return Examination(
        title=found.title,
        source_count=len(found.sources),
        read_count=read,
        ignored_count=len(found.ignored),
        captures=captures,
        diagnoses=diagnose(captures, notes, failures, seen, complete=not excluded),
        file_counts=counted(read, len(failures), found.state_counts()),
        profilers=tuple(_profilers(found.manifests)),
    )


def _profilers(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Who profiled the processes that left a manifest, and how many they are."""
    processes = {
        (one.host, one.pid if one.pid is not None else one.name): one.in_place_of
        for one in manifests
    }
    for replaced, count in Counter(processes.values()).most_common():
        place = f" in the place of {replaced}'s profiler" if replaced else ""
        yield f"profiled by capture{place} ({count:,} {'process' if count == 1 else 'processes'})"


def look(source: Source, advance: Advance) -> tuple[Looked, ...]:
    """The processes of one source, each as a few numbers; raises what its reader raises."""
    traces = pipeline.read_source(source, advance, WANT)
    return tuple(Looked(capture_of(t), (*t.source.notes, *t.notes)) for t in traces)


def capture_of(trace: Trace) -> Capture:
    """When something happened in one process, and how much."""
    host, device = trace.get("host_ops"), trace.get("device_ops")
    start = np.concatenate([frame["ts_ns"].to_numpy() for frame in (host, device)])
    dur = np.concatenate([frame["dur_ns"].to_numpy() for frame in (host, device)])
    steps: Windows = trace.derived(windows)
    counts = recorded_counts(trace)
    session = trace.meta.get("capture_uuid")
    return Capture(
        source=trace.source,
        first_ns=int(start.min()) if len(start) else 0,
        last_ns=int((start + dur).max()) if len(start) else 0,
        absolute_time=bool(trace.meta.get("absolute_time")),
        host_op_count=len(host),
        device_op_count=len(device),
        recorded=counts.get("recorded"),
        call_count=counts.get("cuda_calls"),
        kernel_count=counts.get("kernels"),
        has_collectives=bool((device["kind"] == "collective").any()),
        steps=frozenset(steps.steps["step"].dropna().astype("int64").tolist()),
        session=session if isinstance(session, str) else None,
    )


def _given(paths: Sequence[str | Path]) -> list[Path]:
    """The directories that were named outright."""
    return [Path(os.path.abspath(p)) for p in paths if os.path.isdir(p)]  # noqa: PTH100, PTH112 - a link keeps its name


def _above_files(paths: Sequence[str | Path]) -> list[Path]:
    """The directory from which files that were named one by one are named: the nearest that holds them all."""
    folders = [os.path.dirname(os.path.abspath(p)) for p in paths if os.path.isfile(p)]  # noqa: PTH100, PTH113, PTH120
    return [Path(os.path.commonpath(folders))] if folders else []


def _reports(found: Discovery) -> list[Path]:
    """The files that nsys wrote, read or passed over."""
    read = [source.path for source in found.sources if source.tool == "nsys"]
    return [*read, *(i.path for i in found.ignored if i.path.name.endswith(REPORT_SUFFIXES))]


def _ignored(ignored: Sequence[Ignored], paths: Sequence[str | Path]) -> Iterator[Note]:
    """What was passed over as notes, named from the directory that was given."""
    bases = [*_given(paths), *_above_files(paths)]
    for one in ignored:
        base = next((b for b in bases if one.path.is_relative_to(b)), None)
        name = str(one.path.relative_to(base)) if base else str(one.path)
        data = one.reason.note_data()
        yield Note("info", IGNORED, one.reason.text, shown(name), data=data)


def held(examination: Examination) -> tuple[str, ...]:
    """What could be read, in a few words each: files, ranks, roles, steps, GPU work."""
    captures = [c for c in examination.captures if c.source.tool != "log" and c.recorded != 0]
    sources = [c.source for c in captures]
    runs = {s.run for s in sources}
    ranks = {s.rank for s in sources if s.rank is not None}
    roles = sorted({s.role for s in sources if s.role is not None}, key=natural)
    steps = {step for c in captures for step in c.steps}
    steps |= {s.step for s in sources if s.step is not None}
    with_gpu = len({c.source.name for c in captures if c.device_op_count})
    counts = examination.file_counts
    count = f"{examination.read_count:,} of {examination.source_count:,}"
    facts = (
        accounted(counts)
        if len(counts) > 1
        else f"{count} {'file' if examination.source_count == 1 else 'files'} read",
        f"{len(runs):,} runs" if len(runs) > 1 else "",
        f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}" if ranks else "",
        ", ".join(roles[:4]) + (" …" if len(roles) > 4 else ""),
        f"{'step' if len(steps) == 1 else 'steps'} {numbers(steps)}" if steps else "",
        f"GPU work in {with_gpu:,}" if with_gpu else "no GPU work" if sources else "",
        *examination.profilers,
    )
    return tuple(fact for fact in facts if fact)
