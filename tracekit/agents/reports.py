"""The tools that read a report: `analyze` (its first screen) and `findings` (findings in full)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from tracekit.agents.bounds import (
    MAX_LIST_ENTRIES,
    MAX_ROW_CHARACTERS,
    limit_answer_rows,
    limit_sentences,
    truncate_answer_cell,
    truncate_answer_text,
)
from tracekit.agents.pages import RULES_HINT
from tracekit.agents.roots import Roots, resolve_inside_roots
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.sources import Failure
from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Finding, Metric, Recording, Report, RunReplay, Saving, Severity, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.pipeline import report_cache
from tracekit.pipeline.options import Options, parse_options
from tracekit.render import phrases, render
from tracekit.render.json import write_plain_json
from tracekit.render.tables import list_report_tables, name_columns_with_units

MAX_FINDING_PLACES = 20
"""Places per finding."""

Path = Annotated[
    str, "What to read: a directory of profiles, one file, or saved measurements (.tkm), relative to a root."
]
Ranks = Annotated[str | None, "Only these ranks: '0,2,8-15'. Without it, all."]
Steps = Annotated[str | None, "Only these training steps: '3,10-20'. Without it, all."]
Stages = Annotated[tuple[str, ...], "Only stages whose names match one of these patterns: ['update_actor', 'gen*']."]
Top = Annotated[int, "Rows of the table of stages, and findings.", range(1, 51)]


@dataclass(frozen=True, slots=True)
class AnalyzeArguments:
    """Arguments of the tool `analyze`."""

    path: Path
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()
    top: Top = 10


@dataclass(frozen=True, slots=True)
class ColumnNote:
    """A column of a table. Its name ends in its unit if that is `_ns`, `_bytes`, `_ratio`, `_gb_per_s` or `_count`."""

    name: str
    unit: Annotated[
        str,
        "ns (nanoseconds), bytes, ratio (0 to 1), factor, count, gb_per_s (1e9 bytes per second), id, text; empty: a bare number",
    ]
    meaning: str


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Rows with their columns. Values are exact and in the units of the columns; null means unknown."""

    name: str
    title: str
    columns: tuple[ColumnNote, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rows_total: Annotated[int, "Number of rows; `rows` may contain only the first ones."]


@dataclass(frozen=True, slots=True)
class FindingBrief:
    """A finding in one line."""

    number: Annotated[int, "Its rank, 1 is the first to fix; the tool `findings` has it in full."]
    rule: Annotated[str, "The rule's id; the tool `explain` has its page."]
    severity: Severity
    claim: str
    saving: Annotated[Saving | None, "The predicted step with its fix; null: not a matter of time, or not predicted."]


@dataclass(frozen=True, slots=True)
class UnreadAnswerFile:
    """A file that could not be read."""

    source: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class AnalyzeAnswer:
    """The first screen of a report as data."""

    path: str
    schema: Annotated[str, "Version of the underlying report."]
    identity: Annotated[tuple[str, ...], "Recorded facts: ranks, steps, hardware, versions."]
    answer: Annotated[str, "The first sentence, if numbers alone are not an answer; otherwise empty."]
    basis: tuple[str, ...]
    headline: Annotated[tuple[Metric, ...], "The main numbers of a step: its time, and GPU activity."]
    overview: Annotated[AnswerTable | None, "Where the step goes, by stage; or memory by category."]
    findings: tuple[FindingBrief, ...]
    findings_total: int
    replays: Annotated[tuple[RunReplay, ...], "The step of each run with all fixes, or why none is predicted."]
    recordings: Annotated[
        tuple[Recording, ...],
        "Kinds of recordings; those with a command limit the answer and are first.",
    ]
    cautions: Annotated[tuple[str, ...], "Notes on the answer, the most serious first."]
    not_analysed: Annotated[tuple[str, ...], "Unknown facts of this recording, and why: unknown, not zero."]
    unread: tuple[UnreadAnswerFile, ...]
    tables: Annotated[tuple[str, ...], "The tables of the report, for the tool `tables`."]


@dataclass(frozen=True, slots=True)
class FindingsArguments:
    """Arguments of the tool `findings`."""

    path: Path
    rule: Annotated[str | None, "Only those of this rule, by its id: 'exposed-communication'."] = None
    severity: Annotated[str | None, "Only those of this severity: 'high', 'medium', 'low' or 'info'."] = None
    offset: Annotated[int, "Skip this many.", range(100_000)] = 0
    limit: Annotated[int, "Findings at most.", range(1, 51)] = 10
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()


@dataclass(frozen=True, slots=True)
class NumberedFinding:
    """A finding in full, with its rank among all findings and its number of places (`places` contains the first)."""

    number: int
    finding: Finding
    places_total: int


@dataclass(frozen=True, slots=True)
class FindingsAnswer:
    """Findings in full, in the order of the tool `analyze`."""

    path: str
    findings: tuple[NumberedFinding, ...]
    matching: Annotated[int, "Number of findings of that rule and severity."]
    next_offset: Annotated[int | None, "Use this offset for the rest; null: no more."]
    step_ns: Annotated[float | None, "Mean time of a step, nanoseconds."]


def answer_analyze(roots: Roots, asked: AnalyzeArguments) -> tuple[str, AnalyzeAnswer]:
    """Analyze a path; return the first screen as text and as data."""
    path, report, failures = analyze_path(roots, asked.path, asked.ranks, asked.steps, asked.stages)
    text = str(render(report, "text", top=asked.top, width=120))
    unread = tuple(UnreadAnswerFile(f.source, f.problem, f.hint) for f in failures[:MAX_LIST_ENTRIES])
    if failures:
        text += f"\nNot read: {'; '.join(f'{f.source}: {f.problem}' for f in unread[:10])}\n"
    findings = report.findings
    briefs = tuple(_summarize_finding(number, finding) for number, finding in enumerate(findings[: asked.top], 1))
    answer = AnalyzeAnswer(
        path=path,
        schema=report.schema,
        identity=report.identity,
        answer=report.answer,
        basis=report.basis,
        headline=report.headline,
        overview=None if report.overview is None else make_answer_table(report.overview, asked.top),
        findings=briefs,
        findings_total=len(findings),
        replays=report.replays[:MAX_LIST_ENTRIES],
        recordings=tuple(
            replace(recording, sources=recording.sources[:MAX_LIST_ENTRIES])
            for recording in report.recordings[:MAX_LIST_ENTRIES]
        ),
        cautions=report.cautions,
        not_analysed=limit_sentences(phrases.list_unanswered(report)),
        unread=unread,
        tables=tuple(list_report_tables(report))[:MAX_LIST_ENTRIES],
    )
    count, table_count = len(findings), len(answer.tables)
    text += f"\nTool `findings`: {count} in full. Tool `tables`: {table_count} of numbers.\n"
    return truncate_answer_text(text, "The tools `findings` and `tables` have the rest."), answer


def answer_findings(roots: Roots, asked: FindingsArguments) -> tuple[str, FindingsAnswer]:
    """Select findings in full, as text and as data."""
    path, report, _ = analyze_path(roots, asked.path, asked.ranks, asked.steps, asked.stages)
    matching: list[NumberedFinding] = []
    for number, finding in enumerate(report.findings, 1):
        if asked.rule in (None, finding.rule) and asked.severity in (None, finding.severity):
            matching.append(NumberedFinding(number, _truncate_finding(finding), len(finding.places)))
    if not matching:
        _refuse_unknown_filter(asked)
    chosen = _limit_findings(matching[asked.offset : asked.offset + asked.limit])
    end = asked.offset + len(chosen)
    following = end if end < len(matching) else None
    step = next((m.value for m in report.headline if m.unit == "ns"), None)
    answer = FindingsAnswer(path, chosen, len(matching), following, step)
    lines = [phrases.describe_no_findings(report)]
    if matching:
        total, number = len(matching), asked.offset + 1
        lines = [f"{total} {choose_plural(total, 'finding')}; {len(chosen)} from number {number} on"]
    for numbered in chosen:
        lines += ["", *_format_finding_answer(numbered, report)]
    if following is not None:
        lines += ["", f"offset={following} shows the next"]
    return truncate_answer_text("\n".join(lines), "Ask for fewer with `limit`, or for one `rule`."), answer


def _truncate_finding(finding: Finding) -> Finding:
    """Truncate a finding's places and stages."""
    parts = tuple(_truncate_finding(part) for part in finding.parts[:MAX_FINDING_PLACES])
    return replace(finding, places=finding.places[:MAX_FINDING_PLACES], parts=parts)


def _limit_findings(numbered: Sequence[NumberedFinding]) -> tuple[NumberedFinding, ...]:
    """Take the first findings up to the size limit, but at least one."""
    first: list[NumberedFinding] = []
    size = 0
    for candidate in numbered:
        size += len(write_plain_json(candidate, "finding"))
        if first and size > MAX_ROW_CHARACTERS:
            break
        first.append(candidate)
    return tuple(first)


def analyze_path(
    roots: Roots, path_argument: str, ranks: str | None = None, steps: str | None = None, stages: Sequence[str] = ()
) -> tuple[str, Report, tuple[Failure, ...]]:
    """Analyze a path: (path as the tools name it, report, files that could not be read).

    Unchanged reports come from the cache. Raises `TracekitError`.
    """
    path = resolve_inside_roots(roots, path_argument)
    result = report_cache.analyze_cached([path], make_agent_options(roots, ranks, steps, stages))
    return path, result.report, tuple(result.failures)


def make_agent_options(roots: Roots, ranks: str | None, steps: str | None, stages: Sequence[str]) -> Options:
    """Build the reading options of a tool, which allow nothing outside the roots."""
    return parse_options({"ranks": ranks, "steps": steps, "stages": stages, "within": roots.within})


def _summarize_finding(number: int, finding: Finding) -> FindingBrief:
    """Summarize a finding in one line."""
    return FindingBrief(number, finding.rule, finding.severity, finding.claim, finding.saving)


def make_answer_table(sheet: Sheet, limit: int) -> AnswerTable:
    """Convert a table to its first rows with column descriptions."""
    rows = limit_answer_rows(sheet.rows, limit)
    return AnswerTable(sheet.name, sheet.title, describe_sheet_columns(sheet), rows, len(sheet.rows))


def describe_sheet_columns(sheet: Sheet) -> tuple[ColumnNote, ...]:
    """Describe the columns of a table."""
    named = zip(name_columns_with_units(sheet), sheet.headings, strict=True)
    return tuple(ColumnNote(name, heading.unit, heading.doc or heading.title) for name, heading in named)


def _refuse_unknown_filter(asked: FindingsArguments) -> None:
    """Raise `TracekitError` if the rule or the severity does not exist."""
    from tracekit.analyses import rules
    from tracekit.model.report import SEVERITIES

    if asked.rule is not None:
        rule = rules.find_rule(asked.rule, RULES_HINT)
        if rule.id != asked.rule:
            raise TracekitError(f"no rule {asked.rule!r}", f"its id is {rule.id}")
    if asked.severity is not None and asked.severity not in SEVERITIES:
        raise TracekitError(f"no severity {asked.severity!r}", f"there are: {', '.join(SEVERITIES)}")


def _format_finding_answer(numbered: NumberedFinding, report: Report) -> list[str]:
    """Format a finding as lines."""
    finding = numbered.finding
    gain = phrases.describe_saving(finding, report) or "no predicted saving"
    lines = [f"{numbered.number}. {finding.rule} · {finding.severity} · {gain}", finding.claim]
    if finding.evidence:
        lines.append("evidence: " + "; ".join(phrases.format_metric(metric) for metric in finding.evidence))
    if finding.places:
        places = [str(truncate_answer_cell(phrases.format_place(place))) for place in finding.places]
        hidden = numbered.places_total - len(places)
        more = f"; and {hidden:,} more" if hidden else ""
        lines.append("where: " + "; ".join(places) + more)
    parts = zip(finding.parts, phrases.format_costs(finding.parts), strict=True)
    lines += [f"stage: {time} ({share}): {part.claim}" for part, (time, share) in parts]
    lines.append("to try: " + finding.advice)
    lines += [f"caveat: {caveat}" for caveat in finding.caveats]
    return lines
