"""Reports from measurements: the section of each question, and the report with its summary and main table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, TypeVar

from tracekit.analyses import Analysis
from tracekit.analyses.own import describe_load_error
from tracekit.job.collectives.clock_offsets import list_clock_offsets
from tracekit.job.frames import list_stage_ranges
from tracekit.job.recording_kinds import summarize_recordings
from tracekit.job.sessions import RunSpan, list_run_spans
from tracekit.job.steps import steady_steps as counting
from tracekit.model import failed_questions
from tracekit.model.report import (
    MADE_LATER,
    ClockOffset,
    Metric,
    Recording,
    Remark,
    Report,
    RunReplay,
    Section,
    Sheet,
    StepNumbers,
)
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements
from tracekit.model.version import VERSION
from tracekit.pipeline.summary import notes as appendix
from tracekit.pipeline.summary import screen as overview
from tracekit.pipeline.summary import stage_table
from tracekit.pipeline.summary.coverage import (
    describe_unexplained_time,
    describe_variation,
    find_window_mismatches,
    measure_unexplained_ratio,
)
from tracekit.pipeline.summary.run_logs import pick_run_log_table

log = logging.getLogger(__name__)

T = TypeVar("T")


def build_report_of_sections(
    measured: Measurements,
    steps: counting.Steps,
    sections: list[Section],
    errors: list[Remark],
    replays: tuple[RunReplay, ...] = (),
    *,
    details: bool = True,
) -> Report:
    """Build the report, with values for a later compare if `details`; a part that raises adds to `errors`."""
    of_steps = counting.drop_left_out_steps(measured, steps)

    def first_screen(part: Callable[[Measurements], T], otherwise: T, whom: Measurements = measured) -> T:
        return _make_summary_part(part, otherwise, whom, errors)

    def identity(whom: Measurements) -> tuple[str, ...]:
        return overview.list_run_facts(whom, steps)

    def of_windows(whom: Measurements) -> tuple[str, ...]:
        return (*find_window_mismatches(whom), *describe_variation(whom, sections))

    def counted_steps(whom: Measurements) -> tuple[StepNumbers, ...]:
        return counting.list_counted_steps(whom, steps)

    def table(whom: Measurements) -> Sheet | None:
        return stage_table.make_stage_table(whom) or pick_main_table(sections)

    nothing: tuple[str, ...] = ()
    no_spans: tuple[RunSpan, ...] = ()
    no_clocks: tuple[ClockOffset, ...] = ()
    no_steps: tuple[StepNumbers, ...] = ()
    facts: tuple[str, ...] = first_screen(identity, ())
    headline: tuple[Metric, ...] = first_screen(overview.make_headline, (), of_steps)
    unexplained = measure_unexplained_ratio(replays) if headline else ()
    first_table = first_screen(table, None, of_steps)
    fingerprint: tuple[tuple[str, str], ...] = first_screen(overview.list_comparable_facts, ())
    values = first_screen(_make_report_values, None) if details else None
    recordings: tuple[Recording, ...] = first_screen(_summarize_sound_recordings, ())
    of_steps_alone = first_screen(of_windows, nothing, of_steps)
    return Report(
        title=measured.facts.title,
        tool_version=VERSION,
        identity=facts,
        headline=(*headline, *unexplained),
        overview=first_table,
        sections=tuple(sections),
        fingerprint=fingerprint,
        remarks=(*errors, *appendix.list_remarks(measured)),
        unseen=overview.list_unseen(measured),
        values=values,
        contents=appendix.list_content_digests(measured),
        spans=first_screen(list_run_spans, no_spans),
        files=overview.count_files_by_state(measured),
        recordings=recordings,
        replays=replays,
        clocks=first_screen(_list_known_clocks, no_clocks),
        counted_steps=first_screen(counted_steps, no_steps),
        stage_order=first_screen(_list_stage_order, nothing),
        cautions=(*_list_report_cautions(measured, errors, replays), *of_steps_alone),
    )


def _list_report_cautions(
    measured: Measurements, errors: Sequence[Remark], replays: Sequence[RunReplay]
) -> Iterator[str]:
    """List the caveats of a report about the whole recording, most severe first."""
    yield from failed_questions.list_fault_cautions(measured)
    yield from (failed_questions.format_fault_caution(error.message, error.source) for error in errors)
    yield from overview.list_caveats(measured)
    yield from describe_unexplained_time(replays)
    yield from dict.fromkeys(caution for replay in replays for caution in replay.cautions)


def _make_summary_part(
    part: Callable[[Measurements], T], otherwise: T, measured: Measurements, errors: list[Remark]
) -> T:
    """Make one part of the summary; if it raises, append a remark to `errors` and return `otherwise`."""
    if not (measured.has("captures") or measured.faults):
        return otherwise
    try:
        return part(measured)
    except Exception as error:
        log.exception("%s failed", part.__name__)
        what = f"{part.__name__} could not be made: {describe_load_error(error)}"
        errors.append(failed_questions.make_fault_remark("overview", what))
        return otherwise


def _summarize_sound_recordings(measured: Measurements) -> tuple[Recording, ...]:
    """Summarize the kinds of recordings over the processes whose recording kind was measured."""
    nothing: tuple[Recording, ...] = ()
    of_sound = failed_questions.judge_without_faults(
        measured, lambda whom: failed_questions.judge_if_asked(whom, summarize_recordings, nothing)
    )
    return of_sound.value or nothing


def _list_known_clocks(measured: Measurements) -> tuple[ClockOffset, ...]:
    """List the clock offsets, if the questions asked measure them."""
    nothing: tuple[ClockOffset, ...] = ()
    return failed_questions.judge_if_asked(measured, list_clock_offsets, nothing)


def _list_stage_order(measured: Measurements) -> tuple[str, ...]:
    """List the stages of all steps in order of appearance, if the questions asked measure them."""
    nothing: tuple[str, ...] = ()
    return failed_questions.judge_if_asked(measured, _list_stages_by_start, nothing)


def _list_stages_by_start(measured: Measurements) -> tuple[str, ...]:
    return tuple(list_stage_ranges(measured).sort("ts_ns").distinct("canonical").values("canonical"))


def _make_report_values(measured: Measurements) -> Sheet | None:
    """Make the table of values for a later compare; None if the questions asked do not measure them."""
    return failed_questions.judge_if_asked(measured, appendix.make_value_table, None)


def judge_section(
    analysis: Analysis,
    measured: Measurements,
    thresholds: Thresholds,
    steps: counting.Steps,
    errors: list[Remark],
    *,
    details: bool = True,
) -> Section | None:
    """Judge one question; None if it does not apply. If it raises, its section has the status "failed".

    `steps` are the steps to leave out. Errors are appended to `errors`. Without `details`, tables and charts that the
    terminal does not show are made lazily. After a failed measurement they are made at once, because they may depend
    on the failed tables.
    """
    is_whole = details or analysis.id in SUMMARY_SECTIONS or failed_questions.has_faults(measured)
    judge = partial(_judge_question_in_full if is_whole else _judge_question, analysis, thresholds, steps)
    try:
        answer = failed_questions.judge_without_faults(measured, judge, analysis.id, analysis.tables)
    except Exception as error:
        log.exception("judging %s failed", analysis.id)
        what = f"{analysis.id} could not be judged: {describe_load_error(error, analysis.file)}"
        errors.append(failed_questions.make_fault_remark(analysis.id, what, analysis.file))
        reason = f"{failed_questions.attribute_error(analysis.file)}: {what}"
        return Section(analysis.id, analysis.title, "failed", reason)
    if not answer.faults:
        return answer.value
    if answer.value is None and not _is_question_affected(analysis, measured, thresholds, steps):
        return None
    if answer.value is None or answer.value.status != "ok":
        return Section(analysis.id, analysis.title, "failed", failed_questions.explain_faults(answer.faults))
    return failed_questions.mark_partial_section(
        answer.value, analysis.rules, failed_questions.describe_fault_caveat(measured, answer.faults)
    )


def _judge_question(
    analysis: Analysis, thresholds: Thresholds, steps: counting.Steps, measured: Measurements
) -> Section | None:
    """Judge a question on the steady steps, or on all steps if it asks for them; `steps` are those to leave out."""
    if analysis.every_step:
        return analysis.judge(measured, thresholds)
    return analysis.judge(counting.drop_left_out_steps(measured, steps), thresholds)


def _judge_question_in_full(
    analysis: Analysis, thresholds: Thresholds, steps: counting.Steps, measured: Measurements
) -> Section | None:
    """Judge a question and make its lazy parts now."""
    section = _judge_question(analysis, thresholds, steps, measured)
    if section is None:
        return None
    made: Any = {name: tuple(getattr(section, name)) for name in MADE_LATER}
    return replace(section, **made)


def _is_question_affected(
    analysis: Analysis, measured: Measurements, thresholds: Thresholds, steps: counting.Steps
) -> bool:
    """Check whether a question applies although a failure left it without a section.

    It does if one of its own tables failed, or if judging the incomplete measurements raises or gives a section.
    """
    if any(fault.question == analysis.id for fault in measured.faults):
        return True
    try:
        return _judge_question(analysis, thresholds, steps, measured) is not None
    except Exception:  # noqa: BLE001 - judging incomplete measurements may raise anything
        return True


MAX_MEMORY_ROWS = 8
"""Most rows of a memory table."""

MAX_TIME_ROWS = 5
"""Most rows of a table of kernels, operators or functions."""

MAX_STACK_ROWS = 8
"""Most rows of a table of stacks."""

_MEMORY_TABLES = (
    ("memory-peak", "live_peak", ("where", "size_bytes", "share_ratio", "block_count", "category")),
    ("memory-categories", "category_levels", ("who", "category", "peak_bytes", "share_ratio")),
)
"""(section, table, columns to show), most informative first."""

_TIME_TABLES = (
    ("kernels", "kernels", ("run", "name", "total_ns", "share_ratio", "count", "mean_ns")),
    ("operators", "operators_by_host_time", ("run", "name", "self_ns", "self_ratio", "total_ns", "count")),
    ("cpu", "cpu_frames", ("run", "name", "self_ns", "total_ns", "count")),
    ("steps", "ranges", ("run", "role", "parent", "stage", "count", "total_ns", "mean_ns")),
)
"""(section, table, columns to show) of tables that rank time; the first with rows is shown."""

_ENGINE_TABLES = (
    (
        "engine-log",
        "engine_time",
        ("run", "engine", "at_ns", "tokens_per_s", "running", "waiting", "kv_ratio", "preempted"),
    ),
    (
        "engine-log",
        "engines",
        ("run", "engine", "samples", "tokens_per_s", "running", "waiting", "kv_ratio", "preempted"),
    ),
    ("requests", "request_parts", ("run", "source", "part", "share_ratio", "mean_ns", "p95_ns", "tail_ratio")),
    (
        "ray-tasks",
        "ray_functions",
        ("run", "name", "tasks", "workers", "wall_ns", "share_ratio", "median_ns", "slowest"),
    ),
    ("engine-log", "machine_gpus", ("run", "gpu", "busy_ratio", "active_ratio", "memory_bytes", "memory_peak_bytes")),
    (
        "engine-log",
        "machine_processes",
        ("run", "process", "samples", "active_samples", "busy_ratio", "memory_bytes", "memory_peak_bytes"),
    ),
)
"""The same of engines and machines, where no profile was given."""

_HANG_TABLES = (("hang", "hang_stacks", ("run", "rank", "source", "stack")),)
"""The place of each rank in the program, where no finding names the rank that blocks the job."""

_STAGE_TABLES = (("rl-matrix", "matrix", ("run", "role", "canonical", "mean_ns", "share_ratio")),)
"""The table of stages without steps."""

SUMMARY_SECTIONS = frozenset(id_ for id_, _, _ in _MEMORY_TABLES)
"""The sections whose table may appear in the summary."""


def pick_main_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the main table of a summary without stages: top time, else top memory."""
    return (
        _pick_first_table(sections, _TIME_TABLES, MAX_TIME_ROWS)
        or pick_run_log_table(sections)
        or _pick_first_table(sections, _STAGE_TABLES, MAX_TIME_ROWS)
        or pick_memory_table(sections)
        or _pick_first_table(sections, _ENGINE_TABLES, MAX_TIME_ROWS)
        or _pick_first_table([each for each in sections if not each.findings], _HANG_TABLES, MAX_STACK_ROWS)
    )


def pick_memory_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the table of the largest allocation sites at peak memory, else of its categories; None without either."""
    return _pick_first_table(sections, _MEMORY_TABLES, MAX_MEMORY_ROWS)


def _pick_first_table(
    sections: Sequence[Section], choices: Sequence[tuple[str, str, tuple[str, ...]]], limit: int
) -> Sheet | None:
    """Pick the first of these tables with rows, cut to the columns to show and `limit` rows."""
    by_id = {section.id: section for section in sections}
    for id_, name, columns in choices:
        section = by_id.get(id_)
        if section is None or section.status != "ok":
            continue
        sheet = next((s for s in section.sheets if s.name == name), None)
        if sheet is not None and sheet.rows:
            return _shorten_table(sheet, columns, limit, id_)
    return None


def _shorten_table(sheet: Sheet, columns: Sequence[str], limit: int, section: str) -> Sheet:
    """Shorten a table to its first rows and these columns; drops empty columns."""
    first_rows = sheet.rows[:limit]
    fits: list[bool] = []
    for heading, cells in zip(sheet.headings, zip(*first_rows, strict=True), strict=True):
        fits.append(heading.name in columns and set(cells) != {None})
    rows = tuple(tuple(compress(row, fits)) for row in first_rows)
    headings = tuple(compress(sheet.headings, fits))
    total = sheet.omitted + len(sheet.rows)
    # The matrix has a column per step; its caption is about those.
    captions = [] if sheet.name == "matrix" else [sheet.caption]
    if total > len(rows):
        captions.insert(0, f"{len(rows)} of {total:,} rows; more in section {section}")
    return Sheet("overview", sheet.title, headings, rows, 0, " · ".join(caption for caption in captions if caption))
