"""The tools that read a report: `analyze` (its first screen) and `findings` (findings in full)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from tracekit.agents.bounds import (
    LISTED,
    ROW_CHARACTERS,
    cell_within,
    rows_within,
    sentences_within,
    text_within,
)
from tracekit.agents.pages import RULES_HINT
from tracekit.agents.roots import Roots, inside
from tracekit.model.errors import TracekitError
from tracekit.model.labels import plural
from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Finding, Metric, Recording, Report, Severity, Sheet
from tracekit.model.sources import Failure
from tracekit.pipeline import report_cache
from tracekit.pipeline.options import Options, options_of
from tracekit.render import phrases, render
from tracekit.render.json import plain_json
from tracekit.render.tables import column_names, tables

PLACES = 20
"""Places per finding."""

Path = Annotated[
    str,
    "What to read: a directory of profiles, one file, or saved measurements (.tkm), relative to a root.",
]
Ranks = Annotated[str | None, "Only these ranks: '0,2,8-15'. Without it, all."]
Steps = Annotated[str | None, "Only these training steps: '3,10-20'. Without it, all."]
Stages = Annotated[
    tuple[str, ...],
    "Only stages whose names match one of these patterns: ['update_actor', 'gen*'].",
]
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
        "ns (nanoseconds), bytes, ratio (0 to 1), factor, count, gb_per_s (1e9 bytes a second), id, text; empty: a bare number",
    ]
    meaning: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows with their columns. Values are exact and in the units of the columns; null means unknown."""

    name: str
    title: str
    columns: tuple[ColumnNote, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rows_total: Annotated[int, "How many rows there are; `rows` may be the first of them."]


@dataclass(frozen=True, slots=True)
class Brief:
    """A finding in one line."""

    number: Annotated[int, "Its place, 1 is what gives most; the tool `findings` has it in full."]
    rule: Annotated[str, "The rule's id; the tool `explain` has its page."]
    severity: Severity
    claim: str
    recoverable_ns: Annotated[
        int | None,
        "At most so many nanoseconds of a step would be saved; null: not a matter of time, or unknown.",
    ]
    recoverable_ratio: Annotated[float | None, "The same as a share of the step, 0 to 1."]


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be read."""

    source: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class AnalyzeAnswer:
    """The first screen of a report as data."""

    path: str
    schema: Annotated[str, "Version of the report that this is taken from."]
    identity: Annotated[tuple[str, ...], "What was recorded: ranks, steps, hardware, versions."]
    answer: Annotated[str, "The first sentence, where numbers alone are no answer; else empty."]
    basis: tuple[str, ...]
    headline: Annotated[
        tuple[Metric, ...], "The main numbers of a step: its time, what the GPUs did meanwhile."
    ]
    overview: Annotated[Grid | None, "Where the step goes, by stage; or where memory is held."]
    findings: tuple[Brief, ...]
    findings_total: int
    recordings: Annotated[
        tuple[Recording, ...],
        "What kinds of recordings the files are; those with a command limit the answer and come first.",
    ]
    cautions: Annotated[tuple[str, ...], "What to keep in mind, the gravest first."]
    not_analysed: Annotated[
        tuple[str, ...], "What could not be told from this recording, and why: unknown, not zero."
    ]
    unread: tuple[Unread, ...]
    tables: Annotated[tuple[str, ...], "The tables of the report, for the tool `tables`."]


@dataclass(frozen=True, slots=True)
class FindingsArguments:
    """Arguments of the tool `findings`."""

    path: Path
    rule: Annotated[str | None, "Only those of this rule, by its id: 'exposed-communication'."] = (
        None
    )
    severity: Annotated[
        str | None, "Only those of this severity: 'high', 'medium', 'low' or 'info'."
    ] = None
    offset: Annotated[int, "Pass over so many.", range(100_000)] = 0
    limit: Annotated[int, "Findings at most.", range(1, 51)] = 10
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()


@dataclass(frozen=True, slots=True)
class Numbered:
    """A finding in full, with its rank among all findings and its number of places (`places` contains the first)."""

    number: int
    finding: Finding
    places_total: int


@dataclass(frozen=True, slots=True)
class FindingsAnswer:
    """Findings in full, largest saving first, as in the tool `analyze`."""

    path: str
    findings: tuple[Numbered, ...]
    matching: Annotated[int, "How many there are of that rule and severity."]
    next_offset: Annotated[int | None, "Ask with this offset for the rest; null: that was all."]
    step_ns: Annotated[float | None, "Mean time of a step, nanoseconds."]


def analyze(roots: Roots, asked: AnalyzeArguments) -> tuple[str, AnalyzeAnswer]:
    """Analyze a path; return the first screen as text and as data."""
    path, report, failures = report_on(roots, asked.path, asked.ranks, asked.steps, asked.stages)
    text = str(render(report, "text", top=asked.top, width=120))
    unread = tuple(Unread(f.source, f.problem, f.hint) for f in failures[:LISTED])
    if failures:
        text += f"\nNot read: {'; '.join(f'{f.source}: {f.problem}' for f in unread[:10])}\n"
    findings = report.findings
    briefs = tuple(map(_brief, range(1, asked.top + 1), findings))
    answer = AnalyzeAnswer(
        path=path,
        schema=report.schema,
        identity=report.identity,
        answer=report.answer,
        basis=report.basis,
        headline=report.headline,
        overview=None if report.overview is None else grid_of(report.overview, asked.top),
        findings=briefs,
        findings_total=len(findings),
        recordings=tuple(
            replace(recording, sources=recording.sources[:LISTED])
            for recording in report.recordings[:LISTED]
        ),
        cautions=report.cautions,
        not_analysed=sentences_within(phrases.not_analysed(report)),
        unread=unread,
        tables=tuple(tables(report))[:LISTED],
    )
    count, table_count = len(findings), len(answer.tables)
    text += f"\nTool `findings`: {count} in full. Tool `tables`: {table_count} of numbers.\n"
    return text_within(text, "The tools `findings` and `tables` tell the rest."), answer


def findings(roots: Roots, asked: FindingsArguments) -> tuple[str, FindingsAnswer]:
    """Select findings in full, as text and as data."""
    path, report, _ = report_on(roots, asked.path, asked.ranks, asked.steps, asked.stages)
    matching: list[Numbered] = []
    for number, finding in enumerate(report.findings, 1):
        if asked.rule in (None, finding.rule) and asked.severity in (None, finding.severity):
            matching.append(Numbered(number, _bounded(finding), len(finding.places)))
    if not matching:
        _refuse_unknown(asked)
    chosen = _fitting(matching[asked.offset : asked.offset + asked.limit])
    end = asked.offset + len(chosen)
    following = end if end < len(matching) else None
    step = next((m.value for m in report.headline if m.unit == "ns"), None)
    answer = FindingsAnswer(path, chosen, len(matching), following, step)
    lines = [phrases.no_findings(report)]
    if matching:
        total, number = len(matching), asked.offset + 1
        lines = [f"{total} {plural(total, 'finding')}; {len(chosen)} from number {number} on"]
    for numbered in chosen:
        lines += ["", *_finding_lines(numbered)]
    if following is not None:
        lines += ["", f"offset={following} shows the next"]
    return text_within("\n".join(lines), "Ask for fewer with `limit`, or for one `rule`."), answer


def _bounded(finding: Finding) -> Finding:
    """Truncate a finding's places and stages."""
    parts = tuple(map(_bounded, finding.parts[:PLACES]))
    return replace(finding, places=finding.places[:PLACES], parts=parts)


def _fitting(numbered: Sequence[Numbered]) -> tuple[Numbered, ...]:
    """Take the first findings up to the size limit, but at least one."""
    first: list[Numbered] = []
    size = 0
    for candidate in numbered:
        size += len(plain_json(candidate, "finding"))
        if first and size > ROW_CHARACTERS:
            break
        first.append(candidate)
    return tuple(first)


def report_on(
    roots: Roots,
    given: str,
    ranks: str | None = None,
    steps: str | None = None,
    stages: Sequence[str] = (),
) -> tuple[str, Report, tuple[Failure, ...]]:
    """Analyze a path: (path as the tools name it, report, files that could not be read).

    Unchanged reports come from the cache. Raises `TracekitError`.
    """
    path = inside(roots, given)
    result = report_cache.analyze([path], options(roots, ranks, steps, stages))
    return path, result.report, tuple(result.failures)


def options(
    roots: Roots,
    ranks: str | None = None,
    steps: str | None = None,
    stages: Sequence[str] = (),
) -> Options:
    """Build the reading options of a tool, which allow nothing outside the roots."""
    return options_of({"ranks": ranks, "steps": steps, "stages": stages, "within": roots.within})


def _brief(number: int, finding: Finding) -> Brief:
    """Summarize a finding in one line."""
    return Brief(
        number,
        finding.rule,
        finding.severity,
        finding.claim,
        finding.recoverable_ns,
        finding.recoverable_ratio,
    )


def grid_of(sheet: Sheet, limit: int) -> Grid:
    """Convert a table to its first rows with column descriptions."""
    rows = rows_within(sheet.rows, limit)
    return Grid(sheet.name, sheet.title, columns_of(sheet), rows, len(sheet.rows))


def columns_of(sheet: Sheet) -> tuple[ColumnNote, ...]:
    """Describe the columns of a table."""
    columns: list[ColumnNote] = []
    for name, heading in zip(column_names(sheet), sheet.headings, strict=True):
        columns.append(ColumnNote(name, heading.unit, heading.doc or heading.title))
    return tuple(columns)


def _refuse_unknown(asked: FindingsArguments) -> None:
    """Raise `TracekitError` if the rule or the severity does not exist."""
    from tracekit.analyses import rules
    from tracekit.model.report import SEVERITIES

    if asked.rule is not None:
        rule = rules.rule(asked.rule, RULES_HINT)
        if rule.id != asked.rule:
            raise TracekitError(f"no rule {asked.rule!r}", f"its id is {rule.id}")
    if asked.severity is not None and asked.severity not in SEVERITIES:
        raise TracekitError(
            f"no severity {asked.severity!r}", f"there are: {', '.join(SEVERITIES)}"
        )


def _finding_lines(numbered: Numbered) -> list[str]:
    """Format a finding as lines."""
    finding = numbered.finding
    ((time, share),) = phrases.recoverable([finding])
    gain = "no time to win back"
    if finding.recoverable_ns is not None:
        gain = f"up to {time} ({share}) per step"
    lines = [f"{numbered.number}. {finding.rule} · {finding.severity} · {gain}", finding.claim]
    if finding.evidence:
        lines.append("evidence: " + "; ".join(map(phrases.metric_phrase, finding.evidence)))
    if finding.places:
        places = [str(cell_within(phrases.place_phrase(place))) for place in finding.places]
        hidden = numbered.places_total - len(places)
        more = f"; and {hidden:,} more" if hidden else ""
        lines.append("where: " + "; ".join(places) + more)
    parts = zip(finding.parts, phrases.recoverable(finding.parts), strict=True)
    lines += [f"stage: {time} ({share}): {part.claim}" for part, (time, share) in parts]
    lines.append("to try: " + finding.advice)
    lines += [f"careful: {caveat}" for caveat in finding.caveats]
    return lines
