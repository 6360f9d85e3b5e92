"""The timeline file: writes each source to its own part in parallel, then concatenates the parts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from isal import isal_zlib

from tracekit.discover import Discovery, parse_numbers
from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.model.errors import TracekitError, UnwritableError
from tracekit.model.records import dataclass
from tracekit.model.system.files import check_writable, explain_write_errors, write_all_bytes, write_atomically
from tracekit.model.system.temporaries import BESIDE, IN_TMPDIR, new_folder
from tracekit.model.trace import Failure, Source, Want
from tracekit.model.version import VERSION
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import replay_measured
from tracekit.pipeline.timeline.annotations import Annotations, annotate_timeline, list_drawn_windows
from tracekit.pipeline.timeline.lanes import LEAD_NS, Lane, TimelinePlan, find_lane, plan_timeline
from tracekit.pipeline.timeline.rows import format_trace
from tracekit.pipeline.timeline.time_ranges import TimeRange
from tracekit.pipeline.timeline.window import DrawnWindow, resolve_time_range
from tracekit.replay.ledger import list_path_pieces

COPY_BYTES = 2**20
_GZIP_LEVEL = 1
_TIMELINE_TABLES = frozenset(
    {*("host_ops", "device_ops", "device_ranges", "syncs", "memory_ops"), *("counters", "flows", "windows", "threads")}
)


@dataclass(frozen=True, slots=True)
class ExportedTimeline:
    """Contents of a written timeline: rows by table over all sources, and the failures.

    `lanes` are the drawn processes; `annotations` counts steps, stages and findings.
    """

    rows: Mapping[str, int]
    lanes: tuple[Lane, ...]
    annotations: Annotations
    apart: tuple[str, ...]
    failures: tuple[Failure, ...]
    is_among_inputs: bool


def export_timeline(
    paths: str | Path | Sequence[str | Path],
    target: str | Path,
    options: Options = Options(),
    *,
    python: bool = False,
    correct_clocks: bool = True,
    critical_path: bool = False,
    time_range: TimeRange | None = None,
) -> ExportedTimeline:
    """Merge all traces of `paths` into one file `target` (gzip if it ends in .gz), and return its contents.

    Reads the traces twice: to judge them, which gives clock corrections and findings, and to write them. `python` keeps
    Python functions; `critical_path` draws the critical path of the run. `time_range` limits the file to a part of the time. Raises `TracekitError` if no source can be read, or the file cannot be written.
    """
    target = Path(target)
    check_writable(target)
    discovery = pipeline.discover_sources(paths, options)
    _refuse_input_target(target, discovery)
    measured = pipeline.measure(discovery, replace(options, graphs=critical_path))
    report = pipeline.judge(measured)
    where = plan_timeline(measured, correct_clocks=correct_clocks)
    if not where.lanes:
        raise TracekitError("none of these files is a trace", "name profiles, not logs alone")
    path = None
    if critical_path:
        replay = replay_measured(measured, options)
        path = list_path_pieces(replay.job, replay.steps)
    window = None
    if time_range is not None:
        drawn = list_drawn_windows(measured, where)
        window = resolve_time_range(time_range, drawn.steps, drawn.end_ns)
    annotations = annotate_timeline(measured, report, where, path, window)
    among = _is_target_among_inputs(target, discovery)
    with contextlib.ExitStack() as stack:
        with explain_write_errors(target):
            folder = stack.enter_context(_make_parts_folder(target))
        outcomes = _write_parts(discovery, where, folder, target, options, python=python, window=window)
        counts: Counter[str] = Counter()
        parts: list[Path] = []
        failures = list(measured.failures)
        for name, value in outcomes:
            if isinstance(value, Failure):
                failures.append(value)
                continue
            if isinstance(value, UnwrittenPart):
                raise TracekitError(value.problem, value.hint)
            counts.update(value)
            parts.append(folder / name)
        if not parts:
            raise TracekitError(f"no trace could be written out: {failures[0].problem}", failures[0].hint)
        pieces = _join_parts(where, annotations, window, parts, discovery.title, compressed=_is_gzip_target(target))
        write_atomically(target, pieces)
    return ExportedTimeline(counts, where.lanes, annotations, where.apart, _drop_repeated_failures(failures), among)


@dataclass(frozen=True, slots=True)
class UnwrittenPart:
    """A write error of one part, which is not the fault of its source and ends the export."""

    problem: str
    hint: str


def _write_parts(
    discovery: Discovery,
    where: TimelinePlan,
    folder: Path,
    target: Path,
    options: Options,
    *,
    python: bool,
    window: DrawnWindow | None,
) -> Iterator[tuple[str, Mapping[str, int] | Failure | UnwrittenPart]]:
    """Write every source in order, and yield (name of its part, rows by table or its failure)."""
    lanes = where.of_source()
    sources = [source for source in discovery.sources if source.name in lanes]
    work = partial(
        write_timeline_part,
        lanes=lanes,
        folder=folder,
        target=target,
        python=python,
        window=window,
        ranks=None if options.ranks is None else parse_numbers(options.ranks),
        steps=None if options.steps is None else parse_numbers(options.steps),
        stages=options.stages,
    )
    with show_progress_line(sys.stderr, enabled=options.progress) as on_progress:
        for outcome in local.run_locally(work, sources, jobs=options.jobs, on_progress=on_progress):
            name = _name_part(lanes[outcome.source.name][0])
            yield name, outcome.failure or outcome.value or {}


def write_timeline_part(  # noqa: PLR0913 - all but two are fixed for a whole export
    source: Source,
    advance: Advance,
    *,
    lanes: Mapping[str, tuple[Lane, ...]],
    folder: Path,
    target: Path,
    python: bool,
    window: DrawnWindow | None,
    ranks: frozenset[int] | None,
    steps: frozenset[int] | None,
    stages: tuple[str, ...],
) -> dict[str, int] | UnwrittenPart:
    """Write one source to a file in `folder` that can be concatenated with others; returns its rows by table."""
    want = Want(tables=_TIMELINE_TABLES, python=python, modules=python)
    candidates = lanes[source.name]
    counts: Counter[str] = Counter()

    def texts() -> Iterator[bytes]:
        traces = pipeline.read_source(source, advance, want, ranks=ranks, steps=steps, stages=stages)
        for trace in traces:
            lane = find_lane(candidates, trace.source.pid)
            if lane is None:
                continue
            for table, count, text in format_trace(trace, lane, is_part=bool(steps or stages), window=window):
                counts[table] += count
                yield text.encode()

    part = folder / _name_part(candidates[0])
    pieces = _compress_pieces(texts(), compressed=_is_gzip_target(target))
    try:
        _write_pieces(part, pieces, target)
    except UnwritableError as error:
        return UnwrittenPart(error.problem, error.hint)
    return {table: count for table, count in counts.items() if count}


def _write_pieces(part: Path, pieces: Iterable[bytes], target: Path) -> None:
    """Write the pieces to a part; an `UnwritableError` names the user's target, and read errors pass unchanged."""
    waits_elsewhere = part.parent.parent != _find_parts_room(target)
    wanted = f"{target}, whose parts wait in {part.parent.parent}" if waits_elsewhere else target
    with explain_write_errors(wanted):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            with explain_write_errors(wanted):
                write_all_bytes(descriptor, piece)
    finally:
        os.close(descriptor)


def _name_part(lane: Lane) -> str:
    """Name the part of a source."""
    return f"{lane.source_number}"


def _compress_pieces(pieces: Iterable[bytes], *, compressed: bool) -> Iterator[bytes]:
    """Compress the pieces into one gzip member if `compressed`; the same input gives the same bytes."""
    if not compressed:
        yield from pieces
        return
    member = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    for piece in pieces:
        yield member.compress(piece)
    yield member.flush()


def _join_parts(
    where: TimelinePlan,
    annotations: Annotations,
    window: DrawnWindow | None,
    parts: Sequence[Path],
    title: str,
    *,
    compressed: bool,
) -> Iterator[bytes]:
    """Yield the whole file: header with facts and annotations, the sources, and the end."""
    facts = {
        "displayTimeUnit": "ms",
        **({} if where.zero_ns is None else {"baseTimeNanoseconds": where.zero_ns}),
        "tracekit": {**_make_timeline_facts(where, annotations, title), **_make_window_facts(window)},
    }
    # Each row starts with a comma; drop that of the first row.
    head = f'{json.dumps(facts)[:-1]},"traceEvents":[{annotations.text.removeprefix(",")}'
    yield from _compress_pieces([head.encode()], compressed=compressed)
    for part in parts:
        with part.open("rb") as file:
            while piece := file.read(COPY_BYTES):
                yield piece
    yield from _compress_pieces([b"\n]}\n"], compressed=compressed)


def _make_window_facts(window: DrawnWindow | None) -> dict[str, Any]:
    """Make the metadata of a part of the timeline: its time since the start of the recording."""
    if window is None:
        return {}
    return {"range": {"start_ns": window.start_ns - LEAD_NS, "end_ns": window.end_ns - LEAD_NS}}


def _make_timeline_facts(where: TimelinePlan, annotations: Annotations, title: str) -> dict[str, Any]:
    """Make the metadata of the file: how times and ids of each source were changed."""
    return {
        "version": VERSION,
        "title": title,
        "times": "drawn = recorded − shift_ns; shift_ns holds clock_offset_ns",
        "ids": "correlation ids, external ids and arrows are increased by trace × 2^32",
        "apart": list(where.apart),
        "annotations_left_out": annotations.omitted,
        "sources": [
            {
                "file": lane.source.name,
                "source": lane.source_number,
                "trace": lane.trace_number,
                "process": lane.name,
                "pid": lane.pid(0),
                "run": lane.source.run,
                "role": lane.source.role,
                "rank": lane.source.rank,
                "shift_ns": lane.shift_ns,
                "clock_offset_ns": lane.offset_ns,
                "clock_uncertainty_ns": lane.uncertainty_ns,
            }
            for lane in where.lanes
        ],
    }


def _is_gzip_target(target: Path) -> bool:
    """Check whether the file is to be gzip."""
    return target.suffix.lower() == ".gz"


def _make_parts_folder(target: Path) -> contextlib.AbstractContextManager[Path]:
    """Make a temporary folder for the parts."""
    room = _find_parts_room(target)
    return new_folder(room, IN_TMPDIR if room is None else BESIDE)


def _find_parts_room(target: Path) -> Path | None:
    """Find the directory for the parts: next to the file, or None for the system's temporary directory."""
    folder = Path(os.path.realpath(target)).parent
    return folder if os.access(folder, os.W_OK) and not str(folder).startswith("/dev") else None


def _refuse_input_target(target: Path, discovery: Discovery) -> None:
    """Raise `TracekitError` if the target is one of the input files, also under another name."""
    if target.exists() and any(target.samefile(source.path) for source in discovery.sources):
        raise TracekitError(f"{target}: is one of the files to be read", "name another file")


def _is_target_among_inputs(target: Path, discovery: Discovery) -> bool:
    """Check whether the timeline is in a directory of the inputs, where the next analysis would read it too."""
    folder = Path(os.path.realpath(target)).parent
    inputs = {Path(os.path.realpath(source.path)).parent for source in discovery.sources}
    return folder in inputs


def _drop_repeated_failures(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Keep one failure per source."""
    return tuple({failure.source: failure for failure in failures}.values())
