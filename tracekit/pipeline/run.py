"""The analysis pipeline: discover, read and measure each source, fold, concatenate, judge.

Shared by the command line and the Python API; independent of formats and questions.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.analyses import ANALYSES, Analysis, list_measured_tables, merge_thresholds
from tracekit.analyses.own import add_user_analyses, describe_load_error
from tracekit.analyses.rules import checked
from tracekit.discover import Discovery
from tracekit.discover.arguments import list_paths, split_label
from tracekit.discover.selection import note_unselected
from tracekit.discover.surveys import Survey
from tracekit.engine import Advance, local
from tracekit.engine.progress import is_live_terminal, show_count_line, show_progress_line
from tracekit.job.report.host_columns import add_host_columns
from tracekit.job.steps import steady_steps as counting
from tracekit.model import failed_questions
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.facts import Facts
from tracekit.model.inputs.page_blocks import PackedPage
from tracekit.model.inputs.sources import Read
from tracekit.model.records import dataclass
from tracekit.model.report import Remark, Report, Section
from tracekit.model.system.freed_memory import keep_freed_memory, release_freed_memory
from tracekit.model.tables import ASKED_COLUMNS, concatenate_table_parts
from tracekit.model.tables.arrays import Columns
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Failure, Measurements, Note, Source, Want
from tracekit.pipeline import question_selection
from tracekit.pipeline.build_report import build_report_of_sections, judge_section
from tracekit.pipeline.cache import measurement_cache, saved_measurements
from tracekit.pipeline.cache.file_index import discover_with_options
from tracekit.pipeline.measure_source import (
    READING_SHARE,
    ProcessId,
    add_graph,
    add_graph_inputs,
    add_page,
    copy_content_digest,
    digest_content_meanwhile,
    fold_sources,
    list_folding_ids,
    list_shared_processes,
    measure_selection,
    measure_trace,
    order_source_tables,
    read_parts,
    read_source,
    scale_progress,
)
from tracekit.pipeline.options import Options, parse_optional_numbers, parse_options
from tracekit.pipeline.prediction.predicting import PredictedSections, predict_savings
from tracekit.pipeline.prediction.run_graphs import add_missing_graphs, join_runs
from tracekit.pipeline.prediction.timelines import make_timeline, trace_critical_paths
from tracekit.pipeline.run_grouping import duplicate_recordings, logged_runs, split_runs
from tracekit.pipeline.run_grouping import merge as merging
from tracekit.pipeline.run_grouping.primary_tool import select_primary_tool
from tracekit.pipeline.summary.finding_parts import merge_stage_findings
from tracekit.pipeline.summary.start_up_share import rescale_after_start_up
from tracekit.pipeline.summary.unproven import drop_repeated_estimates
from tracekit.pipeline.wire_format.worker_tables import (
    LARGE_FILE_BYTES,
    MeasuredOutcome,
    MeasuredSource,
    chain_attribute,
    merge_outcome_tables,
    merge_worker_tables,
)
from tracekit.process import slice_trace
from tracekit.readers.loading import sniff

if TYPE_CHECKING:
    from tracekit.engine.ray_cluster import Cluster

__all__ = [
    "MeasuredSource",
    "Options",
    "RunResult",
    "analyze_uncached",
    "discover_sources",
    "judge",
    "list_wanted_inputs",
    "make_unreadable_error",
    "measure",
    "measure_source",
    "parse_options",
    "read_source",
    "reduce_outcomes",
]

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """A report, and the measurements it is based on."""

    report: Report
    measurements: Measurements

    @property
    def failed(self) -> bool:
        """Whether a source could not be read, or tracekit itself raised an error."""
        return bool(self.measurements.failures) or any(
            failed_questions.is_fault_remark(remark) for remark in self.report.remarks
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The sources that could not be read."""
        return self.measurements.failures

    @property
    def read(self) -> Read:
        """The number and total size of the files read."""
        sizes = {source.name: source.size_bytes for source in self.measurements.sources}
        return Read(len(sizes), sum(sizes.values()))


def analyze_uncached(
    paths: str | Path | Sequence[str | Path], options: Options = Options(), discovery: Discovery | None = None
) -> RunResult:
    """Analyze files, directories or globs without the report cache; see `report_cache.analyze_cached`.

    `discovery` is the known discovery result for the paths that are not saved measurements.
    Raises `TracekitError` if it finds nothing, or cannot read any source.
    """
    predicts = options.questions is None and not options.stages
    measured = measure_all(paths, replace(options, graphs=predicts), discovery)
    report = judge(measured, progress=options.progress, question_files=options.question_files, details=options.details)
    return RunResult(report, measured)


def measure_all(
    paths: str | Path | Sequence[str | Path], options: Options = Options(), discovery: Discovery | None = None
) -> Measurements:
    """Measure files, directories or globs, and load saved measurements; see `analyze_uncached` for the arguments."""
    questions = load_every_question(options.question_files)
    ids = question_selection.select_question_ids(options.questions, options.skip, questions)
    paths = list_paths(paths)
    profiles: list[str | Path] = []
    saved_parts: dict[str, Measurements] = {}
    labels: list[str | None] = []
    parts: list[Measurements] = []
    of_run: dict[str | int, tuple[str, list[Measurements]]] = {}
    for argument in paths:
        label, path = split_label(argument)
        if saved_measurements.sniff_saved_form(path) != "measurements":
            profiles.append(argument)
            continue
        if options.cuts:
            raise TracekitError(
                f"{path}: saved results cannot be limited to ranks, steps or stages",
                "give the profile itself, or choose them when it is saved",
            )
        part = saved_parts[str(path)] = saved_measurements.load(path)
        # Saved files with the same label are measurements of one run by several nodes.
        if label is not None:
            part = merging.label_runs(part, label)
        of_run.setdefault(label or len(of_run), (label or path.stem, []))[1].append(part)
    for name, measured_on in of_run.values():
        parts.append(merging.merge(measured_on, one_run=True))
        labels.append(name)
    ids = question_selection.select_saved_questions(ids, options.tables, saved_parts, questions)
    if profiles or options.on_every_node or not parts:
        parts.append(_measure_profiles(profiles, replace(options, questions=ids, skip=()), discovery))
    measured = merging.merge(parts, labels)
    if ids is not None:
        # Merging the nodes' files of one run drops the record of the questions asked: restore it.
        all_parts = [*saved_parts.values(), *parts]
        measured = replace(
            measured, facts=replace(measured.facts, **question_selection.merge_selection_facts(ids, all_parts))
        )
    measured = replace(measured, facts=_add_stated_facts(measured.facts, options))
    return measured if options.timeline else replace(measured, pages=())


def _add_stated_facts(facts: Facts, options: Options) -> Facts:
    """Add the facts that the user states: work per step, memory per GPU, price of a GPU-hour."""
    if options.work:
        facts = replace(facts, work=dict(options.work))
    if options.device_memory is not None:
        facts = replace(facts, device_memory=options.device_memory)
    if options.gpu_hour_price is not None:
        facts = replace(facts, gpu_hour_price=float(options.gpu_hour_price))
    return facts


def _measure_profiles(profiles: Sequence[str | Path], options: Options, discovery: Discovery | None) -> Measurements:
    """Discover and measure the profiles with the selected engine."""
    if options.engine == "ray":
        from tracekit.engine import ray_cluster, ray_discover

        with ray_cluster.connect_cluster(options.ray_address) as cluster:
            elsewhere, holes = ray_discover.survey_cluster(cluster, options.on_every_node, options.exclude)
            measured = measure(discover_sources(profiles, options, elsewhere), options, cluster)
            return replace(measured, failures=(*holes, *measured.failures))
    if options.on_every_node or options.ray_address:
        raise TracekitError(
            "--on-every-node and --ray-address are for Ray, and the local engine was asked for", "add --engine ray"
        )
    return measure(discovery or discover_sources(profiles, options), options)


def discover_sources(
    paths: str | Path | Sequence[str | Path], options: Options = Options(), elsewhere: Sequence[Survey] = ()
) -> Discovery:
    """Find the sources among files, directories and globs, with how each was recognized.

    `elsewhere` are the surveys of cluster nodes.
    """
    return discover_with_options(paths, options, sniff, elsewhere)


MEASURING_SHARE = 0.8
"""Share of the analysis done once all files are measured: 0.7 to 0.95 of the CPU seconds, less for few files."""


def measure(discovery: Discovery, options: Options = Options(), cluster: Cluster | None = None) -> Measurements:
    """Measure every source in parallel, then fold and concatenate in a fixed order.

    With a `cluster`, its nodes read and measure the sources, and fold their measurements before sending them.
    """
    files = tuple(str(Path(file).resolve()) for file in options.question_files)
    questions = load_every_question(files)
    ids = question_selection.select_question_ids(options.questions, options.skip, questions)
    if ids is not None:
        to_measure = question_selection.select_measured_questions(ids, options.tables, questions)
        ids = tuple(question.id for question in to_measure)
    work = partial(
        measure_source,
        questions=ids,
        question_files=files,
        ranks=parse_optional_numbers(options.ranks),
        steps=parse_optional_numbers(options.steps),
        stages=options.stages,
        graphs=options.graphs,
        timeline=options.timeline,
    )
    line = show_progress_line(sys.stderr, "measuring", share=MEASURING_SHARE, enabled=options.progress)
    with line as on_progress:
        apart = list_folding_ids(questions)
        if cluster is None:
            run = partial(
                local.run_locally,
                jobs=options.jobs,
                on_progress=on_progress,
                combine=partial(merge_worker_tables, folding=apart),
            )
            # A question of the user may depend on any input: do not cache it.
            shelf = measurement_cache.open_measurement_cache(work.keywords) if options.cache and not files else None
            # The cache computes content digests itself.
            work = partial(work, contents=options.details and shelf is None)
            results = measurement_cache.measure_or_load(work, discovery.sources, shelf, run)
            reduced = reduce_outcomes(merge_outcome_tables(results, apart), discovery, options)
            return add_missing_graphs(reduced, discovery.sources, options) if options.graphs else reduced
        from tracekit.engine import ray, ray_discover

        outcomes = ray.run_and_fold_on_ray(
            work,
            discovery.sources,
            keys_of=partial(_list_shared_processes_of, files),
            fold_all=partial(_fold_without_copies, files),
            jobs=options.jobs,
            on_progress=on_progress if options.progress and is_live_terminal(sys.stderr) else None,
            cluster=cluster,
            seen_by=ray_discover.find_visible_nodes(cluster, discovery.sources, discovery.seen_by),
        )
        reduced = reduce_outcomes(merge_outcome_tables(outcomes, apart), discovery, options, already_folded=True)
    count = len(cluster.nodes)
    engine = f"read by Ray on {count} {choose_plural(count, 'node')}"
    return replace(reduced, facts=replace(reduced.facts, engine=engine))


def load_every_question(files: tuple[str, ...]) -> tuple[Analysis, ...]:
    """Load all questions, including those of the user's files."""
    return add_user_analyses(ANALYSES, files)


def _list_shared_processes_of(files: tuple[str, ...], parts: Sequence[MeasuredSource]) -> frozenset[ProcessId]:
    return list_shared_processes(parts, load_every_question(files))


def _fold_without_copies(
    files: tuple[str, ...], sources: Sequence[tuple[MeasuredSource, ...]]
) -> list[tuple[MeasuredSource, ...]]:
    return fold_sources(duplicate_recordings.drop_duplicate_recordings(sources), load_every_question(files))


def measure_source(
    source: Source,
    advance: Advance,
    *,
    questions: tuple[str, ...] | None = None,
    question_files: tuple[str, ...] = (),
    contents: bool = True,
    graphs: bool = False,
    timeline: bool = False,
    **chosen: Any,
) -> tuple[MeasuredSource, ...]:
    """Read one source and measure it for these questions (ids; None: all).

    `chosen` holds ranks, steps and stages, as for `read_source`. Without `contents`, the file's digest is not computed.
    With `graphs`, the dependency graph of each process is built as well, of all its steps and stages. With `timeline`,
    the data of the explorer page is.
    """
    analyses = load_every_question(question_files)
    if questions is not None:
        analyses = tuple(analysis for analysis in analyses if analysis.id in questions)
    if not contents:
        return _measure_processes(source, advance, analyses, chosen, graphs=graphs, timeline=timeline)
    with digest_content_meanwhile(source) as completed:
        parts = _measure_processes(source, advance, analyses, chosen, graphs=graphs, timeline=timeline)
        return copy_content_digest(parts, completed())


def _measure_processes(
    source: Source,
    advance: Advance,
    analyses: Sequence[Analysis],
    chosen: Mapping[str, Any],
    *,
    graphs: bool,
    timeline: bool,
) -> tuple[MeasuredSource, ...]:
    """Measure each process of a source."""
    if source.size_bytes >= LARGE_FILE_BYTES:
        keep_freed_memory()
    on_read = scale_progress(advance, READING_SHARE)
    want = list_wanted_inputs(analyses)
    if any(chosen.values()):
        want = replace(want, tables=(want.tables or frozenset()) | slice_trace.READS)
    if graphs or timeline:
        want = add_graph_inputs(want)
    on_bytes = scale_progress(advance, 1 / max(1, len(analyses)))
    unmeasured_share = 1 - READING_SHARE
    sources: list[MeasuredSource] = []
    for trace, part, following in read_parts(source, on_read, want, **chosen):
        if source.size_bytes >= LARGE_FILE_BYTES:
            release_freed_memory()
        share = unmeasured_share / (following + 1)
        unmeasured_share -= share
        on_question = partial(on_bytes, source.size_bytes * share)
        if any(chosen.values()):
            stages = chosen["stages"]
            sources.append(measure_selection(trace, part, analyses, stages, on_question))
        elif part is not None:
            sources.append(measure_trace(part, analyses, on_question))
        if graphs and part is not None:
            sources[-1] = add_graph(sources[-1], trace)
        if timeline and part is not None:
            sources[-1] = add_page(sources[-1], part)
        # Free the trace and its derived values before the reader makes the next one.
        del trace, part
    return tuple(sources)


def list_wanted_inputs(analyses: Sequence[Analysis] | None = None) -> Want:
    """List the tables, args and columns that these questions, or all of them, read."""
    if analyses is None:
        analyses = ANALYSES
    # A question of the user may read any column.
    is_ours = not any(analysis.file for analysis in analyses)
    return Want(
        tables=frozenset({"threads", *chain_attribute(analyses, "reads")}),
        args=tuple(sorted(set(chain_attribute(analyses, "args")))),
        columns=ASKED_COLUMNS if is_ours else None,
    )


def reduce_outcomes(
    outcomes: Iterable[MeasuredOutcome], discovery: Discovery, options: Options, *, already_folded: bool = False
) -> Measurements:
    """Merge the measurements of all sources: split runs, fold per process, concatenate, add failures and notes.

    Raises `TracekitError` if no source could be read.
    """
    failures: list[Failure] = []
    values: list[tuple[MeasuredSource, ...]] = []
    for outcome in outcomes:
        if outcome.failure is not None:
            failures.append(outcome.failure)
        if outcome.value is not None:
            values.append(outcome.value)
    new_runs, run_notes = _split_runs(discovery, list(chain.from_iterable(values)))
    values = [tuple(split_runs.move_to_run(part, new_runs) for part in value) for value in values]
    # A node cannot detect copies of its recordings on other nodes: find them here.
    fold = (
        duplicate_recordings.drop_duplicate_recordings
        if already_folded
        else partial(_fold_without_copies, options.question_files)
    )
    parts = list(chain.from_iterable(fold(values)))
    if not parts and failures:
        raise make_unreadable_error(failures)
    light_parts = [replace(part, tables={}) for part in parts]
    questions = load_every_question(options.question_files)
    tables_of_sources = [dict(ordered) for ordered in order_source_tables(parts, questions)]
    del values, parts
    tables = _concatenate_tables(tables_of_sources, new_runs)
    release_freed_memory()
    measured = _make_measurements(tables, light_parts, discovery, options)
    notes = (*measured.notes, *discovery.notes, *run_notes, *_note_empty_selection(light_parts, discovery, options))
    return replace(measured, failures=tuple(failures), notes=notes)


def _split_runs(discovery: Discovery, parts: Sequence[MeasuredSource]) -> tuple[dict[str, str], list[Note]]:
    """Split directories with several runs, of profiles or of logs: (new run of each source that changes it, notes)."""
    of_profiles, profile_notes = split_runs.split_discovered_runs(discovery, parts)
    of_logs, log_notes = logged_runs.split_logged_runs(discovery, parts)
    return {**of_profiles, **of_logs}, [*profile_notes, *log_notes]


def _make_measurements(
    tables: Mapping[str, Columns], light_parts: Sequence[MeasuredSource], discovery: Discovery, options: Options
) -> Measurements:
    """Make measurements of these tables, with their sources and notes; copies contribute only notes."""
    copies: list[MeasuredSource] = []
    parts: list[MeasuredSource] = []
    for part in light_parts:
        if part.original is not None:
            copies.append(part)
        elif part.holding is None or part.holding.is_kept:
            parts.append(part)
    return Measurements(
        tables,
        tuple(part.source for part in parts),
        notes=tuple(chain_attribute((*parts, *copies), "notes")),
        facts=_make_run_facts(parts, len(copies), discovery, options),
        faults=tuple(chain_attribute(parts, "faults")),
        graphs=tuple(replace(part.graph, source=part.source) for part in parts if part.graph is not None),
        pages=_list_page_data(parts) if options.timeline else (),
    )


def _list_page_data(parts: Sequence[MeasuredSource]) -> tuple[PackedPage, ...]:
    """List the data of the explorer page of all processes that have any."""
    return tuple(PackedPage(part.source, part.page) for part in parts if part.page is not None)


def make_unreadable_error(failures: Sequence[Failure]) -> TracekitError:
    """Make the error of a profile without a readable source; it quotes the first failure."""
    first = failures[0]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    problem = f"no source could be read: {first.source}: {first.problem}{more}"
    return TracekitError(problem, first.hint)


def _note_empty_selection(parts: Sequence[MeasuredSource], discovery: Discovery, options: Options) -> list[Note]:
    """Make the notes on sources without the selected ranks, steps or stages."""
    holdings = [part.holding for part in parts if part.holding and not part.original]
    cuts = (parse_optional_numbers(options.ranks), parse_optional_numbers(options.steps), options.stages)
    return note_unselected(holdings, discovery.left_out, *cuts)


def _concatenate_tables(
    tables_of_sources: Sequence[dict[str, Columns]], new_runs: Mapping[str, str]
) -> dict[str, Columns]:
    """Concatenate each table over all sources, and free the parts on the way to save memory."""
    tables = {}
    for table in list_measured_tables():
        rows = [of.pop(table.name) for of in tables_of_sources if table.name in of]
        if rows:
            tables[table.name] = split_runs.rename_table_runs(concatenate_table_parts(table, rows), new_runs)
        del rows
    return tables


def _make_run_facts(parts: Sequence[MeasuredSource], copy_count: int, discovery: Discovery, options: Options) -> Facts:
    """Make the facts of all sources together."""
    questions = load_every_question(options.question_files)
    return Facts(
        title=discovery.title,
        versions=merging.keep_agreed_versions(part.versions for part in parts),
        options=merging.keep_agreed_versions(part.options for part in parts),
        ignored=tuple(_count_ignored_files(discovery)),
        files=discovery.state_counts(copies=copy_count),
        simulated=any(part.simulated for part in parts),
        stages=tuple(options.stages),
        has_chosen_steps=options.steps is not None,
        excluded_count=sum(ignored.reason.code == "excluded" for ignored in discovery.ignored),
        **question_selection.make_selection_facts(options.questions, options.skip, options.tables, questions),
    )


def _count_ignored_files(discovery: Discovery) -> list[str]:
    """Count the files that no reader claimed, by reason."""
    counts = sorted(discovery.ignored_counts().items())
    return [f"{count:,} {choose_plural(count, 'file')}: {reason}" for reason, count in counts]


def judge(
    measured: Measurements,
    thresholds: Thresholds | None = None,
    *,
    progress: bool = False,
    question_files: tuple[str, ...] = (),
    details: bool = True,
) -> Report:
    """Judge measurements, fresh or loaded, and build the report; the same measurements give the same report.

    If the measurements include graphs, the report predicts what the fixes of the findings save. With `progress`, a line on the terminal counts the questions. Without `details`, the report is for the terminal: tables
    and charts are made on first access, and it has no values for a later compare.
    """
    questions = load_every_question(question_files)
    analyses = question_selection.select_judged_questions(measured, questions)
    limits = merge_thresholds(questions)
    if thresholds is not None:
        limits = thresholds.with_defaults(limits)
    line = show_count_line(sys.stderr, "judging {} questions", len(analyses), enabled=progress)
    with line as on_question:
        return _judge_questions(select_primary_tool(measured), analyses, limits, on_question, details=details)


def _predict_safely(
    measured: Measurements, sections: Sequence[Section], limits: Thresholds, errors: list[Remark]
) -> PredictedSections:
    """Predict what fixes save; if that raises, append a remark to `errors` and predict nothing."""
    try:
        graphs = join_runs(measured)
        predicted = predict_savings(graphs, sections, limits)
        return replace(predicted, critical=trace_critical_paths(graphs)) if measured.pages else predicted
    except TracekitError:
        raise
    except Exception as error:
        log.exception("predicting steps failed")
        what = f"steps could not be predicted: {describe_load_error(error)}"
        errors.append(failed_questions.make_fault_remark("predictions", what))
        return PredictedSections(tuple(sections), ())


def _judge_questions(
    measured: Measurements,
    analyses: Sequence[Analysis],
    limits: Thresholds,
    on_question: Callable[[], None],
    *,
    details: bool,
) -> Report:
    errors: list[Remark] = []
    sections: list[Section] = []
    steps = counting.list_left_out_steps(measured)
    for analysis in analyses:
        answer = judge_section(analysis, measured, limits, steps, errors, details=details)
        if answer is not None:
            sections.append(add_host_columns(measured, answer) if details else answer)
        on_question()
    sections = rescale_after_start_up(measured, drop_repeated_estimates(merge_stage_findings(sections, limits)), limits)
    if measured.graphs:
        for judged in (measured, counting.drop_left_out_steps(measured, steps)):
            judged.forget_key_columns()
        release_freed_memory()
    predicted = _predict_safely(measured, sections, limits, errors)
    sections = list(predicted.sections)
    rules = {analysis.id: analysis.rules for analysis in analyses}
    if len(analyses) < len(ANALYSES):
        limits = limits.only({"severity"}.union(*rules.values()))
    if any(rules.values()):
        sections.append(checked.make_rules_section(sections, rules, limits))
    # Skipped questions are least interesting to readers: list them last.
    sections.sort(key=lambda section: section.status == "skipped")
    report = build_report_of_sections(measured, steps, sections, errors, predicted.replays, details=details)
    return replace(report, timeline=make_timeline(measured, predicted.critical))
