"""Measuring one source, and merging the files of one process. Runs on every core and every Ray node.

Independent of formats and questions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

from tracekit.analyses import Analysis, Tables
from tracekit.analyses.own import describe_load_error
from tracekit.discover.contents import digest_content
from tracekit.discover.selection import SelectableParts
from tracekit.engine import Advance
from tracekit.job.driver_log import parse_timed_stage
from tracekit.model.inputs.page_blocks import pack_page_blocks
from tracekit.model.stages import get_canonical_stage, make_stage_filter
from tracekit.model.system.capacity import count_own_cores
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import trim_texts
from tracekit.model.trace import Fault, KeyLabels, Source, Trace, Want
from tracekit.pipeline.run_grouping.primary_tool import TIMING_TOOLS
from tracekit.pipeline.wire_format.worker_tables import (
    LARGE_FILE_BYTES,
    MeasuredSource,
    chain_attribute,
    concatenate_by_name,
)
from tracekit.process.slice_trace import drop_start_up, list_stage_names, list_step_numbers, slice_trace
from tracekit.readers import find_reader

RECORDING_OPTIONS = ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory")
"""Profiler options that a trace records."""

log = logging.getLogger(__name__)

ProcessId = tuple[str, str | None, int | None]
"""(run, host, pid): identifies the process that several files may share."""


def read_source(
    source: Source,
    advance: Advance,
    want: Want,
    *,
    ranks: frozenset[int] | None = None,
    steps: frozenset[int] | None = None,
    stages: tuple[str, ...] = (),
) -> Iterator[Trace]:
    """Read the traces of one source, cut to the selection; skips processes outside the selection."""
    parts = read_parts(source, advance, want, ranks=ranks, steps=steps, stages=stages)
    for _, part, _ in parts:
        if part is not None:
            yield part


def read_parts(
    source: Source,
    advance: Advance,
    want: Want,
    *,
    ranks: frozenset[int] | None = None,
    steps: frozenset[int] | None = None,
    stages: tuple[str, ...] = (),
) -> Iterator[tuple[Trace, Trace | None, int]]:
    """Read each trace of one source: (trace, its selected part or None, number of traces that follow)."""
    for trace, following in find_reader(source.reader).each(source, want, _make_increment_callback(advance)):
        rank, part = trace.source.rank, None
        if ranks is None or rank is None or rank in ranks:
            part = slice_trace(trace, steps, make_stage_filter(stages) if stages else None)
        yield trace, part, following
        # Free this trace before the reader makes the next one.
        del trace, part


def describe_holding(trace: Trace, stages: tuple[str, ...], *, is_kept: bool) -> SelectableParts:
    """Describe the ranks, steps and stages of a trace, for notes on an empty selection."""
    role, is_log = trace.source.role, trace.source.tool == "log"
    names = _list_logged_stages(trace) if is_log else list_stage_names(trace)
    is_wanted = make_stage_filter(stages)
    return SelectableParts(
        trace.source.rank,
        list_step_numbers(trace),
        frozenset(get_canonical_stage(name, role) for name in names),
        is_log=is_log,
        is_kept=is_kept,
        has_stage=any(is_wanted(name, role) for name in names),
    )


def _list_logged_stages(trace: Trace) -> frozenset[str]:
    """List the stages whose times a driver log records."""
    stages = (parse_timed_stage(name) for name in trim_texts(trace.texts("log_values", "name")).texts)
    return frozenset(stage for stage in stages if stage)


def add_content_digest(source: Source) -> Source:
    """Add the content digest to `source`; unchanged if the file is unreadable, because its reader reports that."""
    if source.content is not None:
        return source
    with contextlib.suppress(OSError):
        return replace(source, content=digest_content(source.path))
    return source


@contextlib.contextmanager
def digest_content_meanwhile(source: Source) -> Iterator[Callable[[], Source]]:
    """Compute the content digest of a source while the caller works on its file.

    Yields a function that returns the source with its digest. For a large file, a thread computes it if a core is free.
    """
    if source.size_bytes < LARGE_FILE_BYTES or count_own_cores() == 1:
        completed_source = add_content_digest(source)
        yield lambda: completed_source
        return
    with ThreadPoolExecutor(1, "tracekit-digest") as thread:
        yield thread.submit(add_content_digest, source).result


def copy_content_digest(parts: Sequence[MeasuredSource], source: Source) -> tuple[MeasuredSource, ...]:
    """Copy the content digest of `source` to each of its measured parts."""
    return tuple(
        part
        if part.source.content == source.content
        else replace(part, source=replace(part.source, content=source.content))
        for part in parts
    )


def _make_increment_callback(advance: Advance) -> Callable[[int], None]:
    """Convert the running totals that readers report into increments for `advance`."""
    seen = 0

    def on_bytes(total: int) -> None:
        nonlocal seen
        advance(total - seen)
        seen = total

    return on_bytes


READING_SHARE = 0.2
"""Share of the work on a file that reading takes; measuring takes the rest.

0.16 to 0.24 of the CPU seconds for gzip traces and pickled snapshots of 2 to 4 MB.
"""


def scale_progress(advance: Advance, share: float) -> Callable[[float], None]:
    """Make a progress callback that reports `share` of its counts in whole bytes, and carries over the remainder."""
    left_over = 0.0

    def tell(count: float) -> None:
        nonlocal left_over
        left_over += count * share
        whole = int(left_over)
        left_over -= whole
        advance(whole)

    return tell


def measure_trace(
    trace: Trace, analyses: Sequence[Analysis], on_question: Callable[[], None] = lambda: None
) -> MeasuredSource:
    """Measure one trace for these questions; a question that raises loses only its own tables.

    Calls `on_question` after each question.
    """
    tables: dict[str, Tables] = {}
    faults: list[Fault] = []
    labels = KeyLabels(trace.source)
    work = drop_start_up(trace)
    for analysis in analyses:
        part = trace if analysis.whole_recording else work
        try:
            columns_of = analysis.measure(part) if analysis.concerns(part) else {}
            tables[analysis.id] = {name: labels.before(TABLES[name], columns) for name, columns in columns_of.items()}
        except Exception as error:
            log.exception("measuring %s of %s failed", analysis.id, trace.source.name)
            faults.append(
                _make_measuring_fault(analysis, "measured", trace.source, describe_load_error(error, analysis.file))
            )
        on_question()
    return MeasuredSource(
        trace.source,
        tables,
        (*trace.source.notes, *trace.notes),
        _list_runtime_versions(trace.meta),
        bool(trace.meta.get("simulated")),
        _list_recording_options(trace.meta),
        faults=tuple(faults),
    )


def _make_measuring_fault(
    analysis: Analysis, action: Literal["measured", "folded"], source: Source, error: str
) -> Fault:
    """Make the fault of a question that raised on one process of a source."""
    return Fault(analysis.id, action, error, source.name, source.pid, analysis.tables, analysis.metrics, analysis.file)


def measure_selection(
    trace: Trace,
    part: Trace | None,
    analyses: Sequence[Analysis],
    stages: tuple[str, ...],
    on_question: Callable[[], None] = lambda: None,
) -> MeasuredSource:
    """Measure the selected part of a trace; without one, return only a description of the trace."""
    of_trace = describe_holding(trace, stages, is_kept=part is not None)
    if part is None:
        return MeasuredSource(trace.source, {}, (), {}, simulated=False, holding=of_trace)
    return replace(measure_trace(part, analyses, on_question), holding=of_trace)


GRAPH, PAGE = "replay", "timeline"
"""Questions of the faults of dependency graphs and of the explorer page."""


def add_graph_inputs(want: Want) -> Want:
    """Add to `want` what dependency graphs are built from."""
    from tracekit.replay.process_graph import ARGUMENTS, READS

    tables = None if want.tables is None else want.tables | READS
    args = None if want.args is None else tuple(sorted({*want.args, *ARGUMENTS}))
    return replace(want, tables=tables, args=args)


def add_graph(part: MeasuredSource, trace: Trace) -> MeasuredSource:
    """Build the dependency graph of a whole trace and add it to its measurements; an error loses only the graph."""
    from tracekit.pipeline.wire_format.packed_graphs import build_graph_columns

    if trace.source.tool not in TIMING_TOOLS:
        return part
    try:
        return replace(part, graph=build_graph_columns(trace))
    except Exception as error:
        log.exception("building the graph of %s failed", trace.source.name)
        fault = Fault(GRAPH, "measured", describe_load_error(error, ""), trace.source.name, trace.source.pid, ())
        return replace(part, faults=(*part.faults, fault))


def add_page(part: MeasuredSource, trace: Trace) -> MeasuredSource:
    """Build the data of the explorer page from a trace and add it to its measurements; an error loses only the page."""
    from tracekit.job.idle_time.causes import make_idle_time_measurement
    from tracekit.process.page_blocks.build import build_page_blocks

    try:
        devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
        blocks = build_page_blocks(trace, devices)
        return replace(part, page=pack_page_blocks(blocks)) if blocks.numbers else part
    except Exception as error:
        log.exception("building the timeline of %s failed", trace.source.name)
        fault = Fault(PAGE, "measured", describe_load_error(error, ""), trace.source.name, trace.source.pid, ())
        return replace(part, faults=(*part.faults, fault))


def _list_recording_options(meta: Mapping[str, Any]) -> dict[str, str]:
    """List the extra profiler options as `on` or `off`, where the trace records them; these options slow a run down."""
    return {name: "on" if meta[name] else "off" for name in RECORDING_OPTIONS if meta.get(name) in (0, 1)}


def _list_runtime_versions(meta: Mapping[str, Any]) -> dict[str, str]:
    """List the versions of CUDA, HIP and NCCL that the trace records."""
    versions: dict[str, str] = {}
    for label, key in (("CUDA", "cuda_runtime_version"), ("HIP", "hip_runtime_version")):
        number = meta.get(key)
        if isinstance(number, int) and not isinstance(number, bool) and 1000 <= number < 10**6:
            versions[label] = f"{number // 1000}.{number % 1000 // 10}"
    distributed = meta.get("distributedInfo")
    if isinstance(distributed, dict) and isinstance(distributed.get("nccl_version"), str):
        versions["NCCL"] = distributed["nccl_version"]
    return versions


def list_shared_processes(parts: Sequence[MeasuredSource], analyses: Sequence[Analysis]) -> frozenset[ProcessId]:
    """List the processes whose measurements in this source must be folded with those of other sources."""
    ids = list_folding_ids(analyses)
    shared: set[ProcessId] = set()
    for part in parts:
        failed = {fault.question for fault in part.faults}
        if any(part.tables.get(question) for question in ids) or not ids.isdisjoint(failed):
            shared.add(_make_process_id(part))
    return frozenset(shared)


def list_folding_ids(analyses: Sequence[Analysis]) -> frozenset[str]:
    """List the ids of the questions that fold the measurements of one process."""
    return frozenset(analysis.id for analysis in analyses if analysis.fold is not None)


def fold_sources(
    sources: Sequence[Sequence[MeasuredSource]], analyses: Sequence[Analysis]
) -> list[tuple[MeasuredSource, ...]]:
    """Fold the tables of each process into its first part, for every analysis that folds.

    `sources` must contain every part of a process, in source order. If a part failed or folding raises, the question
    fails for the whole process.
    """
    parts = list(chain.from_iterable(sources))
    of_process: dict[ProcessId, list[int]] = {}
    for place, part in enumerate(parts):
        of_process.setdefault(_make_process_id(part), []).append(place)
    for analysis in analyses:
        if analysis.fold is None:
            continue
        for places in of_process.values():
            folded_parts = _fold_process(analysis, [parts[i] for i in places])
            for i, part in zip(places, folded_parts, strict=True):
                parts[i] = part
    remaining = iter(parts)
    return [tuple(islice(remaining, len(source))) for source in sources]


def _make_process_id(part: MeasuredSource) -> ProcessId:
    return part.source.run, part.source.host, part.source.pid


def _fold_process(analysis: Analysis, parts: Sequence[MeasuredSource]) -> Sequence[MeasuredSource]:
    """Fold one question's tables of the parts of a process into the first part."""
    assert analysis.fold is not None, "only what folds is folded"
    for fault in chain_attribute(parts, "faults"):
        if fault.question == analysis.id:
            return [_fail_folding(analysis, part, fault.error) for part in parts]
    measured_parts = [part.tables.get(analysis.id, {}) for part in parts]
    if not any(measured_parts):
        return parts
    try:
        merged = analysis.fold(concatenate_by_name(measured_parts))
    except Exception as error:
        log.exception("folding %s of %s failed", analysis.id, parts[0].source.name)
        return [_fail_folding(analysis, part, describe_load_error(error, analysis.file)) for part in parts]
    first, *others = [_drop_question(part, analysis.id) for part in parts]
    return [replace(first, tables={**first.tables, analysis.id: merged}), *others]


def _fail_folding(analysis: Analysis, part: MeasuredSource, error: str) -> MeasuredSource:
    """Drop the question's tables from the part and mark the question as failed, unless it failed before."""
    faults = part.faults
    if all(fault.question != analysis.id for fault in faults):
        faults = (*faults, _make_measuring_fault(analysis, "folded", part.source, error))
    return replace(_drop_question(part, analysis.id), faults=faults)


def _drop_question(part: MeasuredSource, question: str) -> MeasuredSource:
    return replace(part, tables={id_: t for id_, t in part.tables.items() if id_ != question})


def order_source_tables(parts: Sequence[MeasuredSource], analyses: Sequence[Analysis]) -> list[Tables]:
    """Order the tables of all sources: those of folding questions last, grouped by question."""
    last: dict[str, list[Tables]] = {a.id: [] for a in analyses if a.fold is not None}
    tables: list[Tables] = []
    for part in parts:
        for id_, of_question in part.tables.items():
            last.get(id_, tables).append(of_question)
    return [*tables, *chain.from_iterable(last.values())]
