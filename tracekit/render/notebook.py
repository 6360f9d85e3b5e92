"""Display of results at a prompt or in a notebook: one line of text, or HTML with folded sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from html import escape
from itertools import chain
from typing import Any

from tracekit.model.labels import plural
from tracekit.model.report import Finding, Report, Section, Sheet
from tracekit.model.units import show
from tracekit.render import phrases
from tracekit.render.escape import printable
from tracekit.render.grid import grid
from tracekit.render.options import Options
from tracekit.render.text import render_text

WIDTH, ROWS, LINE = 110, 20, 160
"""Limits: characters per line of the answer, rows of a folded table, characters of one line at a prompt."""


def summarize(thing: Any) -> str:
    """Summarize the object in one line of at most `LINE` characters, in angle brackets."""
    words = _words_of(thing)(thing)
    return f"<{printable(f'{type(thing).__name__} {words}', LINE)}>"


def to_html(thing: Any) -> str:
    """Render the object as stand-alone HTML, with all text from profiles escaped."""
    if isinstance(thing, Sheet):
        return _table(thing)
    if isinstance(thing, Finding):
        return _block(_finding_lines(thing))
    if isinstance(thing, Section):
        return "".join(_section(thing))
    report = thing if isinstance(thing, Report) else thing.report()
    answer = render_text(report, Options(width=WIDTH))
    assert isinstance(answer, str), "text is text"
    folded = map(_folded, report.sections)
    return f"<div>{_block([answer.rstrip()])}{''.join(folded)}</div>"


# One line


def _words_of(thing: Any) -> Callable[[Any], str]:
    """Find the function that summarizes this kind of object."""
    for kind, words in _WORDS.items():
        if isinstance(thing, kind):
            return words
    return _of_comparison


def _counted(things: Sized, noun: str) -> str:
    """Count things with their noun."""
    return f"{len(things):,} {plural(len(things), noun)}"


def _of_report(report: Report) -> str:
    """Summarize a report: its title, its first number, and its size."""
    numbers = map(phrases.metric_phrase, report.headline[:1])
    facts = (
        report.title,
        report.answer or next(numbers, ""),
        _counted(report.findings, "finding"),
        _counted(report.sections, "section"),
    )
    return " · ".join(filter(None, facts))


def _of_section(section: Section) -> str:
    """Summarize a section: its question, and its contents or the reason for having none."""
    if section.status != "ok":
        return f"{section.id} · {section.status}: {section.reason}"
    parts = _counted(section.sheets, "table"), _counted(section.charts, "chart")
    return " · ".join((section.id, *parts, _counted(section.findings, "finding")))


def _of_finding(finding: Finding) -> str:
    """Summarize a finding: the rule, its saving, the claim."""
    gain = ""
    if finding.recoverable_ns is not None:
        gain = f"up to {show(finding.recoverable_ns, 'ns')} per step"
    return " · ".join(filter(None, (finding.rule, gain, phrases.claim(finding))))


def _of_sheet(sheet: Sheet) -> str:
    """Summarize a table: its name, rows and columns."""
    return f"{sheet.name} · {_counted(sheet.rows, 'row')} × {_counted(sheet.headings, 'column')}"


def _of_comparison(comparison: Any) -> str:
    """Summarize a comparison: its sides and its verdict."""
    report: Report = comparison.report()
    return f"{comparison.base} → {comparison.opt} · {report.answer or comparison.verdict}"


_WORDS: dict[type, Callable[[Any], str]] = {
    Report: _of_report,
    Section: _of_section,
    Finding: _of_finding,
    Sheet: _of_sheet,
}


# HTML


def _block(lines: Iterable[str]) -> str:
    """Format lines unchanged in a monospace font."""
    style = "line-height:1.3;white-space:pre-wrap;overflow-x:auto"
    return f'<pre style="{style}">{escape(chr(10).join(lines))}</pre>'


def _finding_lines(finding: Finding) -> Iterator[str]:
    """List the claim, advice and evidence of a finding."""
    yield _of_finding(finding)
    if finding.advice:
        yield f"  → {printable(finding.advice)}"
    if finding.evidence:
        yield f"  Evidence: {' · '.join(map(phrases.metric_phrase, finding.evidence))}"
    if finding.places:
        yield f"  Where: {'; '.join(map(phrases.place_phrase, finding.places[:3]))}"
    for caveat in finding.caveats:
        yield f"  Careful: {printable(caveat)}"


def _folded(section: Section) -> str:
    """Fold a section under its title."""
    note = "" if section.status == "ok" else f" ({section.status})"
    title = escape(printable(f"{section.title}{note}", LINE))
    return f"<details><summary>{title}</summary>{''.join(_section(section))}</details>"


def _section(section: Section) -> Iterator[str]:
    """Render the contents of a section."""
    if section.status != "ok":
        yield _block([printable(section.reason)])
    if section.metrics:
        yield _block(map(phrases.metric_phrase, section.metrics))
    yield from map(_table, section.sheets)
    if section.findings:
        yield _block(chain.from_iterable(map(_finding_lines, section.findings)))
    if section.caveats:
        yield _block(f"Careful: {printable(caveat)}" for caveat in section.caveats)


def _table(sheet: Sheet) -> str:
    """Render the first rows of a sheet as a table."""
    table = grid(sheet, ROWS)
    lines = [f"<table><caption>{escape(table.title)}</caption><thead><tr>"]
    for column in table.columns:
        lines.append(f'<th title="{escape(column.doc)}">{escape(column.title)}</th>')
    lines.append("</tr></thead><tbody>")
    for row in table.rows:
        cells = "</td><td>".join(map(escape, row))
        lines.append(f"<tr><td>{cells}</td></tr>")
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, "all in report.tables")
    notes = ". ".join(filter(None, (note, table.caption)))
    lines.append(f"</tbody></table><p><small>{escape(notes)}</small></p>")
    return "".join(lines)
