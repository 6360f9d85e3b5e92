"""From files to a report: discover, read and measure each source, fold, concatenate, judge.

What the command line and the Python functions call; nothing here knows a format or a question.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tracekit import appendix, merging, on_nodes, overview, saved
from tracekit.analyses import ANALYSES, Analysis
from tracekit.device_sizes import DEVICE_MEMORY
from tracekit.discover import Discovery, parse_numbers
from tracekit.discover import discover as find
from tracekit.engine import Advance, local, ray
from tracekit.engine.progress import is_live, progress_line
from tracekit.engine.ray_cluster import Cluster, connected
from tracekit.errors import TracekitError
from tracekit.first_sheet import what_fills_memory
from tracekit.gathering import Measured, MeasuredSource, give_back, light_text, together
from tracekit.job_values import WORK
from tracekit.loading import sniff
from tracekit.measuring import (
    Process,
    folded,
    in_order,
    measured,
    processes,
    read_source,
)
from tracekit.overview import ENGINE
from tracekit.report import Remark, Report, Section
from tracekit.rules import checked
from tracekit.schema import MEASURED, concat
from tracekit.surveys import Survey
from tracekit.thresholds import Thresholds, defaults
from tracekit.tool_choice import one_tool
from tracekit.trace import Measurements, Note, Source, Want
from tracekit.version import VERSION

__all__ = [
    "MeasuredSource",
    "Options",
    "Result",
    "analyze",
    "discover",
    "judge",
    "measure",
    "measure_source",
    "read_source",
    "reduce",
    "wanted",
]

T = TypeVar("T")
EngineName = Literal["local", "ray"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What to leave out and how to run; the defaults read everything on all cores.

    `work` is how many tokens, samples or images every step holds, `device_memory` how many bytes each
    GPU has, where a person tells; `sample` how many ranks are to be read. With the engine "ray" sources are read on the nodes of the cluster at
    `ray_address` (None: one started here), and `on_every_node` are patterns that each node looks at itself.
    """

    ranks: str | None = None
    steps: str | None = None
    stages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int | None = None
    progress: bool = False
    work: Mapping[str, float] = field(default_factory=dict[str, float])
    device_memory: int | None = None
    sample: int | None = None
    engine: EngineName = "local"
    ray_address: str | None = None
    on_every_node: tuple[str, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether less is asked for than the profile holds."""
        return bool(self.ranks or self.steps or self.stages or self.sample)


@dataclass(frozen=True, slots=True)
class Result:
    """A report, and the measurements it was judged from."""

    report: Report
    measurements: Measurements


def analyze(paths: str | Path | Sequence[str | Path], options: Options = Options()) -> Result:
    """The report on files, directories or globs, and the measurements behind it.

    Raises `TracekitError` when nothing was found, or when no source could be read.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    profiles: list[str | Path] = []
    labels: list[str | None] = []
    parts: list[Measurements] = []
    of_run: dict[str | int, tuple[str, list[Measurements]]] = {}
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
        # Saved files under one label are what several nodes measured of one run.
        named = part if label is None else merging.labelled(part, label)
        of_run.setdefault(label or len(of_run), (label or path.stem, []))[1].append(named)
    for name, measured_on in of_run.values():
        parts.append(merging.merge(measured_on, one_run=True))
        labels.append(name)
    if profiles or options.on_every_node or not parts:
        parts.append(_read(profiles, options))
    measured = merging.merge(parts, labels)
    if options.work:
        measured = replace(measured, facts={**measured.facts, WORK: dict(options.work)})
    if options.device_memory is not None:
        told = {DEVICE_MEMORY: options.device_memory}
        measured = replace(measured, facts={**measured.facts, **told})
    return Result(judge(measured), measured)


def _read(profiles: Sequence[str | Path], options: Options) -> Measurements:
    """The measurements of what was given and is not measured yet, by the engine that was chosen."""
    if options.engine == "ray":
        with connected(options.ray_address) as cluster:
            elsewhere, holes = on_nodes.surveys(cluster, options.on_every_node, options.exclude)
            found = measure(discover(profiles, options, elsewhere), options, cluster)
            return replace(found, failures=(*holes, *found.failures))
    if options.on_every_node or options.ray_address:
        raise TracekitError(
            "--on-every-node and --ray-address are for Ray, and the local engine was asked for",
            "add --engine ray",
        )
    return measure(discover(profiles, options), options)


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


def discover(
    paths: str | Path | Sequence[str | Path],
    options: Options = Options(),
    elsewhere: Sequence[Survey] = (),
) -> Discovery:
    """The sources among these files, directories and globs, and how each was recognised.

    `elsewhere` is what nodes of a cluster have seen.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    return find(
        several,
        exclude=options.exclude,
        ranks=_numbers(options.ranks),
        steps=_numbers(options.steps),
        stages=options.stages,
        sample=options.sample,
        sniff=sniff,
        elsewhere=elsewhere,
    )


def measure(
    found: Discovery, options: Options = Options(), cluster: Cluster | None = None
) -> Measurements:
    """Every source read and measured in parallel, then folded and concatenated in a fixed order.

    Here, or on the nodes of a cluster: they fold what they have measured before it travels.
    """
    work = partial(
        measure_source,
        ranks=_numbers(options.ranks),
        steps=_numbers(options.steps),
        stages=options.stages,
    )
    with progress_line(sys.stderr, enabled=options.progress) as on_progress:
        if cluster is None:
            here = local.run(work, found.sources, jobs=options.jobs, on_progress=on_progress)
            return reduce(together(here, folding()), found, options)
        outcomes = ray.run_folded(
            work,
            found.sources,
            keys_of=_processes,
            fold_all=_folded,
            jobs=options.jobs,
            on_progress=on_progress if options.progress and is_live(sys.stderr) else None,
            cluster=cluster,
            seen_by=on_nodes.places(cluster, found.sources, found.seen_by),
        )
        reduced = reduce(together(outcomes, folding()), found, options, already_folded=True)
    count = len(cluster.nodes)
    told = f"read by Ray on {count} {'node' if count == 1 else 'nodes'}"
    return replace(reduced, facts={**reduced.facts, ENGINE: told})


def folding() -> frozenset[str]:
    """The analyses that fold what they measured of one process."""
    return frozenset(analysis.id for analysis in ANALYSES if analysis.fold is not None)


def _processes(parts: Sequence[MeasuredSource]) -> frozenset[Process]:
    return processes(parts, ANALYSES)


def _folded(sources: Sequence[tuple[MeasuredSource, ...]]) -> list[tuple[MeasuredSource, ...]]:
    return folded(sources, ANALYSES)


def measure_source(source: Source, advance: Advance, **chosen: Any) -> tuple[MeasuredSource, ...]:
    """One source read and measured; `chosen` ranks, steps and stages are as for `read_source`."""
    with light_text():
        traces = read_source(source, advance, wanted(), **chosen)
        return tuple(measured(trace, ANALYSES) for trace in traces)


def wanted() -> Want:
    """What all questions together read of a source."""
    return Want(
        tables=frozenset(name for analysis in ANALYSES for name in analysis.needs) | {"threads"},
        args=tuple(sorted({arg for analysis in ANALYSES for arg in analysis.args})),
    )


def reduce(
    given: Iterable[Measured],
    found: Discovery,
    options: Options,
    *,
    already_folded: bool = False,
) -> Measurements:
    """The measurements of all sources: folded per process, concatenated, with what failed beside them."""
    outcomes = list(given)
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    parts = [part for value in (values if already_folded else _folded(values)) for part in value]
    failures = tuple(o.failure for o in outcomes if o.failure is not None)
    if not parts and failures:
        first = failures[0]
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise TracekitError(
            f"no source could be read: {first.source}: {first.problem}{more}", first.hint
        )
    left_out = sum(outcome.failure is None and not outcome.value for outcome in outcomes)
    notes = list(found.notes)
    if left_out:
        message = f"{left_out} of {len(outcomes)} sources hold nothing of what was asked for"
        if not parts:
            raise TracekitError(
                message, "leave out --ranks, --steps and --stages to see what there is"
            )
        notes.append(Note("info", "left-out", message, count=left_out))
    told = [replace(part, frames={}) for part in parts]
    ordered = [dict(frames) for frames in in_order(parts, ANALYSES)]
    del outcomes, values, parts
    tables = {}
    with light_text():
        for table in MEASURED:
            # Given up as they are put together: a thousand sources are not held twice.
            frames = [of.pop(table.name) for of in ordered if table.name in of]
            if frames:
                tables[table.name] = concat(table, frames)
            del frames
    give_back()
    return Measurements(
        tables,
        tuple(part.source for part in told),
        failures,
        (*(note for part in told for note in part.notes), *notes),
        {
            "title": found.title,
            "versions": merging.agreed([part.versions for part in told]),
            "options": merging.agreed([part.options for part in told]),
            "ignored": list(_ignored(found)),
            "simulated": any(part.simulated for part in told),
            "stages": list(options.stages),
        },
    )


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
    with light_text():
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
