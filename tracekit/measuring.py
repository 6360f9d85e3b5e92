"""One source read and measured, and what several files of one process say put together: before anything is joined.

What runs on every core and every node; nothing here knows a format or a question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from tracekit.analyses import Analysis, Frames
from tracekit.derived.cut import cut
from tracekit.engine import Advance
from tracekit.gathering import MeasuredSource, light_text, put_together
from tracekit.loading import reader_named
from tracekit.schema import TABLES
from tracekit.schema.table import Part
from tracekit.trace import Note, Source, Trace, Want, labelled

RECORDING = ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory")
"""Options of a profiler that a trace names."""

log = logging.getLogger(__name__)

Process = tuple[str, str | None, int | None]
"""Run, host and pid: what several files may belong to."""


def read_source(
    source: Source,
    advance: Advance,
    want: Want,
    *,
    ranks: frozenset[int] | None = None,
    steps: frozenset[int] | None = None,
    stages: tuple[str, ...] = (),
) -> Iterator[Trace]:
    """The traces of one source, cut to what was asked for; none where it holds nothing of that."""
    for trace in reader_named(source.reader).read(source, want, _increments(advance)):
        rank = trace.source.rank
        if ranks is None or rank is None or rank in ranks:
            part = cut(trace, steps, _stage_filter(stages))
            if part is not None:
                yield part


def _increments(advance: Advance) -> Callable[[int], None]:
    """Totals so far, as readers tell them, turned into increments."""
    seen = 0

    def on_bytes(total: int) -> None:
        nonlocal seen
        advance(total - seen)
        seen = total

    return on_bytes


def _stage_filter(patterns: tuple[str, ...]) -> Callable[[str], bool] | None:
    """Whether a stage was asked for; None when all are."""
    if not patterns:
        return None
    return lambda name: any(fnmatchcase(name, p) or p in name for p in patterns)


def measured(trace: Trace, analyses: Sequence[Analysis]) -> MeasuredSource:
    """These questions measured on one trace; a question that breaks loses only itself."""
    frames: dict[str, Frames] = {}
    notes = [*trace.source.notes, *trace.notes]
    for analysis in analyses:
        try:
            tables = analysis.measure(trace) if analysis.concerns(trace) else {}
            frames[analysis.id] = {
                name: labelled(TABLES[name], columns, trace.source)
                for name, columns in tables.items()
            }
        except Exception as error:
            log.exception("measuring %s of %s failed", analysis.id, trace.source.name)
            text = f"{analysis.id} could not be measured: {type(error).__name__}: {error}"
            notes.append(Note("error", f"failed:{analysis.id}", text, trace.source.name))
    simulated = bool(trace.meta.get("simulated"))
    return MeasuredSource(
        trace.source, frames, tuple(notes), _versions(trace.meta), simulated, _recording(trace.meta)
    )


def _recording(meta: Mapping[str, Any]) -> dict[str, str]:
    """What the profiler was told to record besides, `on` or `off`, as far as the trace says: it slows a run."""
    return {name: "on" if meta[name] else "off" for name in RECORDING if meta.get(name) in (0, 1)}


def _versions(meta: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what the run used, as far as the trace names them."""
    found: dict[str, str] = {}
    for label, key in (("CUDA", "cuda_runtime_version"), ("HIP", "hip_runtime_version")):
        number = meta.get(key)
        if isinstance(number, int) and not isinstance(number, bool) and 1000 <= number < 10**6:
            found[label] = f"{number // 1000}.{number % 1000 // 10}"
    distributed = meta.get("distributedInfo")
    if isinstance(distributed, dict) and isinstance(distributed.get("nccl_version"), str):
        found["NCCL"] = distributed["nccl_version"]
    return found


def processes(parts: Sequence[MeasuredSource], analyses: Sequence[Analysis]) -> frozenset[Process]:
    """The processes of which a source says something that is to be folded with what others say."""
    folding = [analysis.id for analysis in analyses if analysis.fold is not None]
    return frozenset(
        _process(part) for part in parts if any(part.frames.get(id_) for id_ in folding)
    )


def folded(
    sources: Sequence[Sequence[MeasuredSource]], analyses: Sequence[Analysis]
) -> list[tuple[MeasuredSource, ...]]:
    """The same sources, the frames of each process merged into its first part by the analyses that fold.

    Every part of a process has to be among them, in the order of the sources.
    """
    parts = [part for source in sources for part in source]
    of_process: dict[Process, list[int]] = {}
    for place, part in enumerate(parts):
        of_process.setdefault(_process(part), []).append(place)
    with light_text():
        for analysis in analyses:
            if analysis.fold is None:
                continue
            for places in of_process.values():
                if not any(parts[i].frames.get(analysis.id) for i in places):
                    continue
                merged = _fold(analysis, [parts[i].frames.get(analysis.id, {}) for i in places])
                for i in places:
                    rest = {id_: f for id_, f in parts[i].frames.items() if id_ != analysis.id}
                    told = {analysis.id: merged} if i == places[0] else {}
                    parts[i] = replace(parts[i], frames={**rest, **told})
    rest_of = iter(parts)
    return [tuple(next(rest_of) for _ in source) for source in sources]


def _process(part: MeasuredSource) -> Process:
    return part.source.run, part.source.host, part.source.pid


def _fold(analysis: Analysis, parts: Sequence[Mapping[str, Part]]) -> Frames:
    joined = put_together(parts)
    return analysis.fold(joined) if analysis.fold is not None else joined


def in_order(
    parts: Sequence[MeasuredSource], analyses: Sequence[Analysis]
) -> list[Mapping[str, Part]]:
    """The frames of every source, those that were folded last and by analysis."""
    last = [analysis.id for analysis in analyses if analysis.fold is not None]
    frames = [f for part in parts for id_, f in part.frames.items() if id_ not in last]
    return frames + [part.frames[id_] for id_ in last for part in parts if id_ in part.frames]
