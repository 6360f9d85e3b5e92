"""From files to a report: discover, read and measure each source, fold, concatenate, judge.

What the command line and the Python functions call; nothing here knows a format or a question.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from tracekit import appendix, merging, overview, saved
from tracekit.analyses import ANALYSES, Analysis, Frames
from tracekit.derived.cut import cut
from tracekit.device_sizes import DEVICE_MEMORY
from tracekit.discover import Discovery, parse_numbers
from tracekit.discover import discover as find
from tracekit.engine import Advance, Outcome, local
from tracekit.engine.progress import progress_line
from tracekit.errors import TracekitError
from tracekit.first_sheet import what_fills_memory
from tracekit.job_values import WORK
from tracekit.loading import reader_named, sniff
from tracekit.report import Remark, Report, Section
from tracekit.rules import checked
from tracekit.schema import MEASURED, TABLES, concat
from tracekit.thresholds import Thresholds, defaults
from tracekit.tool_choice import one_tool
from tracekit.trace import Measurements, Note, Source, Trace, Want, labelled
from tracekit.version import VERSION

T = TypeVar("T")

RECORDING = ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory")
"""Options of a profiler that a trace names."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What to leave out and how to run; the defaults read everything on all cores.

    `work` is how many tokens, samples or images every step holds, `device_memory` how many bytes each
    GPU has, where a person tells.
    """

    ranks: str | None = None
    steps: str | None = None
    stages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int | None = None
    progress: bool = False
    work: Mapping[str, float] = field(default_factory=dict[str, float])
    device_memory: int | None = None

    @property
    def cuts(self) -> bool:
        """Whether less is asked for than the profile holds."""
        return bool(self.ranks or self.steps or self.stages)


@dataclass(frozen=True, slots=True)
class Result:
    """A report, and the measurements it was judged from."""

    report: Report
    measurements: Measurements


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """What travels from a worker: measured frames by analysis, nothing of the trace itself."""

    source: Source
    frames: Mapping[str, Frames]
    notes: tuple[Note, ...]
    versions: Mapping[str, str]
    simulated: bool
    options: Mapping[str, str] = field(default_factory=dict[str, str])


def analyze(paths: str | Path | Sequence[str | Path], options: Options = Options()) -> Result:
    """The report on files, directories or globs, and the measurements behind it.

    Raises `TracekitError` when nothing was found, or when no source could be read.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    profiles: list[str | Path] = []
    labels: list[str | None] = []
    parts: list[Measurements] = []
    for given in several:
        label, path = _saved(given)
        if path is None:
            profiles.append(given)
            continue
        if options.cuts:
            raise TracekitError(
                f"{path}: what was saved cannot be cut to ranks, steps or stages",
                "give the profile itself, or choose them when it is saved",
            )
        part = saved.load(path)
        parts.append(part if label is None else merging.labelled(part, label))
        labels.append(label or path.stem)
    if profiles or not parts:
        parts.append(measure(discover(profiles, options), options))
    measured = merging.merge(parts, labels)
    if options.work:
        measured = replace(measured, facts={**measured.facts, WORK: dict(options.work)})
    if options.device_memory is not None:
        told = {DEVICE_MEMORY: options.device_memory}
        measured = replace(measured, facts={**measured.facts, **told})
    return Result(judge(measured), measured)


def _saved(given: str | Path) -> tuple[str | None, Path | None]:
    """(label, path) of an argument that is a file of saved measurements, by its content."""
    if _is_saved(given):
        return None, Path(given)
    label, equals, path = given.partition("=") if isinstance(given, str) else ("", "", "")
    return (label, Path(path)) if label and equals and _is_saved(path) else (None, None)


def _is_saved(path: str | Path) -> bool:
    try:
        with Path(path).open("rb") as file:
            return saved.is_saved(file.read(saved.HEAD_BYTES))
    except (OSError, ValueError):
        return False


def discover(paths: str | Path | Sequence[str | Path], options: Options = Options()) -> Discovery:
    """The sources among these files, directories and globs, and how each was recognised."""
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    return find(
        several,
        exclude=options.exclude,
        ranks=_numbers(options.ranks),
        steps=_numbers(options.steps),
        stages=options.stages,
        sniff=sniff,
    )


def measure(found: Discovery, options: Options = Options()) -> Measurements:
    """Every source read and measured in parallel, then folded and concatenated in a fixed order."""
    work = partial(
        measure_source,
        ranks=_numbers(options.ranks),
        steps=_numbers(options.steps),
        stages=options.stages,
    )
    with progress_line(sys.stderr, enabled=options.progress) as on_progress:
        outcomes = list(local.run(work, found.sources, jobs=options.jobs, on_progress=on_progress))
    return reduce(outcomes, found, options)


def measure_source(source: Source, advance: Advance, **chosen: Any) -> tuple[MeasuredSource, ...]:
    """One source read and measured; `chosen` ranks, steps and stages are as for `read_source`."""
    with _light_text():
        return tuple(map(_measure, read_source(source, advance, wanted(), **chosen)))


def _light_text() -> AbstractContextManager[None]:
    """Column names and other small texts as Python's own: a third of judging was their conversion."""
    return pd.option_context("mode.string_storage", "python")


def wanted() -> Want:
    """What all questions together read of a source."""
    return Want(
        tables=frozenset(name for analysis in ANALYSES for name in analysis.needs) | {"threads"},
        args=tuple(sorted({arg for analysis in ANALYSES for arg in analysis.args})),
    )


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


def _measure(trace: Trace) -> MeasuredSource:
    """All questions measured on one trace; a question that breaks loses only itself."""
    frames: dict[str, Frames] = {}
    notes = [*trace.source.notes, *trace.notes]
    for analysis in ANALYSES:
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


def reduce(
    outcomes: Sequence[Outcome[tuple[MeasuredSource, ...]]], found: Discovery, options: Options
) -> Measurements:
    """The measurements of all sources: folded per process, concatenated, with what failed beside them."""
    measured = [part for outcome in outcomes for part in outcome.value or ()]
    failures = tuple(o.failure for o in outcomes if o.failure is not None)
    if not measured and failures:
        first = failures[0]
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise TracekitError(
            f"no source could be read: {first.source}: {first.problem}{more}", first.hint
        )
    left_out = sum(outcome.failure is None and not outcome.value for outcome in outcomes)
    notes = list(found.notes)
    if left_out:
        message = f"{left_out} of {len(outcomes)} sources hold nothing of what was asked for"
        if not measured:
            raise TracekitError(
                message, "leave out --ranks, --steps and --stages to see what there is"
            )
        notes.append(Note("info", "left-out", message, count=left_out))
    tables, folded = {}, _folded(measured)
    with _light_text():
        for table in MEASURED:
            frames = [part[table.name] for part in folded if table.name in part]
            if frames:
                tables[table.name] = concat(table, frames)
    return Measurements(
        tables,
        tuple(part.source for part in measured),
        failures,
        (*(note for part in measured for note in part.notes), *notes),
        {
            "title": found.title,
            "versions": merging.agreed([part.versions for part in measured]),
            "options": merging.agreed([part.options for part in measured]),
            "ignored": list(_ignored(found)),
            "simulated": any(part.simulated for part in measured),
            "stages": list(options.stages),
        },
    )


def _folded(measured: Sequence[MeasuredSource]) -> list[Frames]:
    """The frames of every source, those of one process merged by the analyses that fold."""
    folding = [analysis for analysis in ANALYSES if analysis.fold is not None]
    frames = [
        f
        for part in measured
        for id_, f in part.frames.items()
        if id_ not in {a.id for a in folding}
    ]
    for analysis in folding:
        processes: dict[tuple[object, ...], list[Frames]] = {}
        for part in measured:
            key = (part.source.run, part.source.host, part.source.pid)
            processes.setdefault(key, []).append(part.frames.get(analysis.id, {}))
        frames += [_fold(analysis, parts) for parts in processes.values()]
    return frames


def _fold(analysis: Analysis, parts: Sequence[Frames]) -> Frames:
    names = {name for part in parts for name in part}
    joined = {n: concat(TABLES[n], [p[n] for p in parts if n in p]) for n in sorted(names)}
    return analysis.fold(joined) if analysis.fold is not None else joined


def _ignored(found: Discovery) -> list[str]:
    """Files that no reader claimed, by reason."""
    by_reason: dict[str, int] = {}
    for ignored in found.ignored:
        by_reason[ignored.reason] = by_reason.get(ignored.reason, 0) + 1
    return [
        f"{count:,} {'file' if count == 1 else 'files'}: {reason}"
        for reason, count in sorted(by_reason.items())
    ]


def judge(measured: Measurements, thresholds: Thresholds | None = None) -> Report:
    """The report on measurements, freshly read or loaded again; the same measurements give the same report."""
    with _light_text():
        return _judge(one_tool(measured), thresholds or defaults())


def _judge(measured: Measurements, limits: Thresholds) -> Report:
    answers = (_section(analysis, measured, limits) for analysis in ANALYSES)
    found = [answer for answer in answers if answer is not None]
    owned = {analysis.id: analysis.rules for analysis in ANALYSES}
    # What could not be asked of these sources is not what a reader came for: it comes last.
    sections = sorted(
        [*found, checked.section(found, owned, limits)],
        key=lambda section: section.status == "skipped",
    )
    faults: list[Remark] = []

    def first_screen(part: Callable[[Measurements], T], otherwise: T) -> T:
        """A part of the first screen; one that breaks is left out and said to be."""
        if not measured.has("captures"):
            return otherwise
        try:
            return part(measured)
        except Exception as error:
            log.exception("%s failed", part.__name__)
            text = f"{part.__name__} could not be made: {type(error).__name__}: {error}"
            faults.append(Remark("error", "failed:overview", text))
            return otherwise

    return Report(
        title=str(measured.facts.get("title", "")),
        tool_version=VERSION,
        identity=first_screen(overview.identity, ()),
        headline=first_screen(overview.headline, ()),
        overview=first_screen(overview.where_it_goes, None) or what_fills_memory(sections),
        sections=tuple(sections),
        fingerprint=first_screen(overview.fingerprint, ()),
        remarks=(*faults, *appendix.remarks(measured)),
        unseen=overview.unseen(measured),
        values=appendix.values(measured),
    )


def _section(analysis: Analysis, measured: Measurements, thresholds: Thresholds) -> Section | None:
    """One question judged, None where it does not arise; one that breaks is a failed section and hides nothing else."""
    failed = sum(note.count for note in measured.notes if note.code == f"failed:{analysis.id}")
    try:
        section = analysis.judge(measured, thresholds)
    except Exception as error:
        log.exception("judging %s failed", analysis.id)
        return Section(analysis.id, analysis.title, "failed", f"{type(error).__name__}: {error}")
    if failed and section is not None:
        caveat = f"{failed} sources could not be measured for this: see the notes"
        return replace(section, caveats=(*section.caveats, caveat))
    return section


def _numbers(spec: str | None) -> frozenset[int] | None:
    return None if spec is None else parse_numbers(spec)
