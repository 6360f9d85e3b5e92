"""Comparison from paths: reads each side as a profile, or loads its saved measurements or reports."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tracekit.analyses.own import describe_load_error
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import Comparison
from tracekit.compare.critical_path import compare_critical_paths
from tracekit.compare.judge import compare_sides
from tracekit.compare.noise import NoiseFile, calibrated
from tracekit.compare.reports.noise_report import list_noise_notes
from tracekit.compare.sides import ComparedInput, ComparedSide, build_side, unify_role_spellings
from tracekit.compare.step_log import StepLog, add_step_log, add_step_logs, list_driver_logs, read_step_table
from tracekit.discover.arguments import refuse_missing, split_label
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.inputs.timeline import Timeline, TimelineSide
from tracekit.model.metrics import STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.prediction.run_graphs import RunGraph, join_runs, lacks_graphs
from tracekit.pipeline.prediction.timelines import list_timeline_processes, trace_critical_paths
from tracekit.pipeline.run_grouping.primary_tool import select_primary_tool
from tracekit.pipeline.summary.notes import list_value_rows
from tracekit.readers import SERVER_LOGS, TRAINING_LOGS
from tracekit.readers.loading import sniff
from tracekit.render.json import read_report_json
from tracekit.replay.path_owners import PathOwners, measure_path_owners

COMPARED_TABLES = (
    "category_peaks",
    "collectives",
    "engine_levels",
    "engine_samples",
    "free_space",
    "gpu_time",
    "interruptions",
    "kernels",
    "live_sites",
    "logged",
    "matrix_products",
    "metrics",
    "operators",
    "out_of_memory",
    "quality",
    "ray_tasks",
    "recurrences",
    "segments",
    "slots",
    "snapshot_levels",
    "snapshot_windows",
    "survivors",
)
"""The measured tables that a comparison reads; it judges no question and measures no other table."""


@dataclass(frozen=True, slots=True)
class ComparedPaths:
    """A comparison, and its number of failures: sources that could not be read, and errors of tracekit."""

    comparison: Comparison
    failures: int


def compare_paths(
    base: Sequence[str | Path],
    opt: Sequence[str | Path],
    options: pipeline.Options = pipeline.Options(),
    choices: ComparisonChoices = ComparisonChoices(),
    base_steps: Sequence[str | Path] = (),
    opt_steps: Sequence[str | Path] = (),
    work: Sequence[Mapping[str, float]] = ({}, {}),
) -> ComparedPaths:
    """Compare two sides, each given as profiles, saved measurements or saved reports.

    `base_steps` and `opt_steps` are logs of runs without a profiler; with them, the comparison uses their steps.
    A side with such logs needs no profile. `work` is the number of tokens, samples or images per step on each side.
    Raises `TracekitError` if a side cannot be read, or if a side has no steady step and not both sides have memory
    snapshots.
    """
    refuse_missing([*base, *opt, *base_steps, *opt_steps])
    names = _name_compared_sides(base, opt)
    if all(is_step_log(path) for path in base):
        base, base_steps = (), (*base, *base_steps)
    if all(is_step_log(path) for path in opt):
        opt, opt_steps = (), (*opt, *opt_steps)
    logs = read_step_logs(base_steps, options), read_step_logs(opt_steps, options)
    if bool(logs[0]) != bool(logs[1]):
        missing = names[1] if logs[0] else names[0]
        raise TracekitError(
            f"{missing}: no un-profiled steps, and the other side has some",
            "give logs of both sides: --steps-from base=FILE --steps-from opt=FILE",
        )
    before = read_side(names[0], base, replace(options, work=work[0]), choices)
    after = read_side(names[1], opt, replace(options, work=work[1]), choices)
    before, after = unify_role_spellings(before, after)
    if logs[0]:
        before, after = add_step_logs(before, after, logs[0], logs[1], choices.drop_first)
    failures = sum(len(part.failures) for part in (*before.measured, *after.measured))
    failures += len(before.errors) + len(after.errors)
    comparison = compare_sides(before, after, choices)
    if options.timeline:
        comparison = replace(comparison, timeline=Timeline((), sides=_make_timeline_sides(before, after)))
    if options.graphs:
        comparison = _add_critical_paths(comparison, before, after)
    return ComparedPaths(comparison, failures)


def _add_critical_paths(comparison: Comparison, base: ComparedSide, opt: ComparedSide) -> Comparison:
    """Add the critical paths of both sides, compared and on the timeline; a warning if that raises.

    Without steps on both sides, or without the graph of each run, they are not compared.
    """
    sides = comparison.timeline.sides if comparison.timeline else ()
    owners, traced = [], []
    try:
        for side in (base, opt):
            graphs = _join_side_graphs(side)
            owners.append(_measure_side_paths(side, graphs))
            traced.append(trace_critical_paths(graphs) if sides else None)
    except TracekitError:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("comparing critical paths failed")
        warning = f"critical paths could not be compared: {describe_load_error(error)}"
        return replace(comparison, warnings=(*comparison.warnings, warning))
    if sides:
        shown = tuple(replace(side, critical=pieces) for side, pieces in zip(sides, traced, strict=True))
        comparison = replace(comparison, timeline=Timeline((), sides=shown))
    return replace(comparison, critical=compare_critical_paths(*owners))


def _join_side_graphs(side: ComparedSide) -> list[RunGraph]:
    """Join the graphs of the runs of a side; none if the graph of a trace is missing."""
    if any(map(lacks_graphs, side.measured)):
        return []
    return list(chain.from_iterable(join_runs(measured, side.dropped) for measured in side.measured))


def _measure_side_paths(side: ComparedSide, graphs: Sequence[RunGraph]) -> list[PathOwners]:
    """Measure the critical path of each run that counts; none if the graph of one is missing."""
    steps = side.samples.get((STEP_TIME, None, None))
    if steps is None:
        return []
    paths = [measure_path_owners(graph.job, graph.steps) for graph in graphs if (graph.run or "") in steps.runs]
    known = [path for path in paths if path is not None]
    return known if len(known) == len(steps.runs) else []


def _make_timeline_sides(base: ComparedSide, opt: ComparedSide) -> tuple[TimelineSide, ...]:
    """Make the sides of the page of their processes; of their logs, if no side has a process and each has a log."""
    sides = (base, opt)
    processes = [[process for part in side.measured for process in list_timeline_processes(part)] for side in sides]
    if not any(processes) and all(side.log_strips for side in sides):
        processes = [list(side.log_strips) for side in sides]
    return tuple(TimelineSide(side.name, tuple(of_side)) for side, of_side in zip(sides, processes, strict=True))


def read_side(
    name: str,
    paths: Sequence[str | Path],
    options: pipeline.Options = pipeline.Options(),
    choices: ComparisonChoices = ComparisonChoices(),
) -> ComparedSide:
    """Read one side: loads saved reports, and measures everything else. The order of `paths` does not matter.

    Without a path the side is empty; its steps may come from logs alone.
    """
    if not paths:
        return ComparedSide(name, {}, (), {}, (), simulated=False)
    paths = sorted(paths, key=str)
    _refuse_partial_saved(paths, options)
    reports: list[str | Path] = []
    profiles: list[str | Path] = []
    for path in paths:
        (reports if _sniff_argument_form(path) == "report" else profiles).append(path)
    inputs = []
    if profiles:
        inputs.append(_measure_compared_profiles(name, profiles, options))
    for report in reports:
        label, path = split_label(report)
        inputs.append(ComparedInput(label or path.stem, _load_saved_report(path), None))
    return build_side(name, inputs, choices.drop_first)


def _measure_compared_profiles(name: str, profiles: Sequence[str | Path], options: pipeline.Options) -> ComparedInput:
    """Measure the profiles of one side, and judge them without graphs: a comparison predicts no fix."""
    measured = pipeline.measure_all(profiles, replace(options, questions=(), skip=(), tables=COMPARED_TABLES))
    report = pipeline.judge(
        replace(measured, graphs=()),
        progress=options.progress,
        question_files=options.question_files,
        details=options.details,
    )
    used = select_primary_tool(measured)
    return ComparedInput(name, report, used, _load_all_values(report, used))


def read_side_with_logs(
    name: str,
    paths: Sequence[str | Path],
    options: pipeline.Options = pipeline.Options(),
    choices: ComparisonChoices = ComparisonChoices(),
    logs: Sequence[str | Path] = (),
) -> ComparedSide:
    """Read one side of profiles, reports or step logs, and add the steps of `logs`."""
    refuse_missing([*paths, *logs])
    if all(is_step_log(path) for path in paths):
        paths, logs = (), (*paths, *logs)
    runs = read_side(name, paths, options, choices)
    return add_step_log(runs, read_step_logs(logs, options), choices.drop_first) if logs else runs


def calibrate_run_noise(
    paths: Sequence[str | Path],
    options: pipeline.Options = pipeline.Options(),
    *,
    drop_first: int | None = None,
    logs: Sequence[str | Path] = (),
) -> tuple[ComparedSide, NoiseFile]:
    """Measure the noise between runs: (the side of all paths and logs, its calibrated noise).

    Raises `TracekitError` for fewer than two runs.
    """
    if not paths and not logs:
        raise TracekitError("no run is named", "tracekit noise RUN RUN RUN RUN -o noise.json")
    runs = read_side_with_logs("noise", paths, options, ComparisonChoices(drop_first=drop_first), logs)
    return runs, calibrated(runs, tuple(list_noise_notes(runs)))


def read_step_logs(paths: Sequence[str | Path], options: pipeline.Options = pipeline.Options()) -> tuple[StepLog, ...]:
    """Read logs of step times, one run per file or directory: driver logs, or tables of step and seconds."""
    step_logs: list[StepLog] = []
    labelled = [split_label(argument) for argument in paths]
    for name, (_, path) in zip(_name_step_logs(labelled), labelled, strict=True):
        if path.is_dir() or sniff(path).reader is not None:
            measured = pipeline.measure(pipeline.discover_sources([path]), pipeline.Options(jobs=options.jobs))
            strips = list_timeline_processes(measured) if options.timeline else ()
            step_logs += list_driver_logs(measured, name, path, strips)
        else:
            step_logs.append(read_step_table(path, name))
    return tuple(step_logs)


def _name_step_logs(labelled: Sequence[tuple[str | None, Path]]) -> list[str]:
    """Name each log after its label or file, with its directory if several files have the same name."""
    names = [label or path.stem or str(path) for label, path in labelled]
    counts = Counter(names)
    named = []
    for name, (label, path) in zip(names, labelled, strict=True):
        is_shared = label is None and counts[name] > 1 and path.parent.name
        named.append(f"{path.parent.name}/{name}" if is_shared else name)
    return named


def is_step_log(argument: str | Path) -> bool:
    """Check whether a path is a list of step times: a driver log, or a .csv or .jsonl file that no reader claims."""
    path = split_label(argument)[1]
    if path.is_dir():
        return _has_only_logs(path)
    if not path.is_file():
        return False
    sniffed = sniff(path)
    table = sniffed.reader is None and path.suffix.lower() in (".csv", ".jsonl")
    return sniffed.reader in TRAINING_LOGS or table


def _has_only_logs(folder: Path) -> bool:
    """Check whether a directory has training logs, in it or below it, and no profile."""
    has_log = False
    for reader in _yield_readers(folder):
        if reader not in (None, *TRAINING_LOGS, *SERVER_LOGS):
            return False
        has_log |= reader in TRAINING_LOGS
    return has_log


def _yield_readers(folder: Path) -> Iterator[str | None]:
    """Yield the reader of each file in a directory and below it, in order."""
    for place, (above, folders, names) in enumerate(os.walk(folder)):
        folders.sort()
        if place >= MAX_LOG_FOLDERS or len(names) > MAX_LOG_FILES:
            yield "too many"
            return
        paths = [Path(above, name) for name in sorted(names)]
        yield from (sniff(path).reader for path in paths if path.is_file())


MAX_LOG_FOLDERS, MAX_LOG_FILES = 1_000, 1_000
"""Limits of a directory, and of each directory in it, that is searched for logs."""


def _refuse_partial_saved(paths: Sequence[str | Path], options: pipeline.Options) -> None:
    """Raise `TracekitError` if a selection is requested of a saved file, or `work` is given for a saved report."""
    for argument in paths:
        form, path = _sniff_argument_form(argument), split_label(argument)[1]
        if form == "report" and options.work:
            raise TracekitError(
                f"{path}: the work of a saved report's steps is fixed when it is made",
                "pass --tokens, --samples or --images to tracekit analyze",
            )
        if form is not None and options.cuts:
            raise TracekitError(
                f"{path}: saved results cannot be limited to ranks, steps or stages",
                "give the profile itself, or choose them when it is saved",
            )


def _sniff_argument_form(argument: str | Path) -> saved_measurements.SavedForm | None:
    """Sniff whether an argument is a saved report or saved measurements; None for a profile."""
    return saved_measurements.sniff_saved_form(split_label(argument)[1])


def _load_all_values(report: Report, measured: Measurements) -> Frame | None:
    """Load every value if the report holds only some of them; None if it holds all."""
    return measured.derived(list_value_rows) if report.values and report.values.omitted else None


def _load_saved_report(path: Path) -> Report:
    try:
        return read_report_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error}"
        raise TraceFormatError(path, problem, "write it again", code="cannot-be-read") from error
    except TracekitError as error:
        raise TraceFormatError(path, error.problem, error.hint, code="unfit") from error


def _name_compared_sides(base: Sequence[str | Path], opt: Sequence[str | Path]) -> tuple[str, str]:
    """Name the two sides: after their paths, if each is one path and the names differ, else "base" and "opt"."""
    if len(base) == len(opt) == 1:
        base_name, opt_name = _name_argument(base[0]), _name_argument(opt[0])
        if base_name != opt_name:
            return base_name, opt_name
    return "base", "opt"


def _name_argument(argument: str | Path) -> str:
    """Name a path by its label, else by its last component."""
    label, path = split_label(argument)
    return label or path.name or str(path)
