"""Display of results at a prompt or in a notebook: one line of text, or HTML with a strip of stages and folded sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from html import escape
from itertools import chain
from typing import Any

from tracekit.model.report import Finding, Report, Section, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.grid import make_grid
from tracekit.render.options import RenderOptions
from tracekit.render.plots.strip import make_strip_html
from tracekit.render.text import render_text

WIDTH, ROWS, LINE = 110, 20, 160
"""Limits: characters per line of the answer, rows of a folded table, characters of one line at a prompt."""


def summarize_in_line(thing: Any) -> str:
    """Summarize the object in one line of at most `LINE` characters, in angle brackets."""
    words = _find_summarizer(thing)(thing)
    return f"<{make_printable(f'{type(thing).__name__} {words}', LINE)}>"


def make_notebook_html(thing: Any) -> str:
    """Render the object as stand-alone HTML, with all text from profiles escaped."""
    if isinstance(thing, Sheet):
        return _make_table_html(thing)
    if isinstance(thing, Finding):
        return _make_pre_block(_list_finding_lines(thing))
    if isinstance(thing, Section):
        return "".join(_make_section_html(thing))
    report = thing if isinstance(thing, Report) else thing.report()
    answer = render_text(report, RenderOptions(width=WIDTH))
    assert isinstance(answer, str), "text is text"
    folded = [_fold_section(section) for section in report.sections]
    return f"<div>{make_strip_html(report)}{_make_pre_block([answer.rstrip()])}{''.join(folded)}</div>"


# One line


def _find_summarizer(thing: Any) -> Callable[[Any], str]:
    """Find the function that summarizes this kind of object."""
    for kind, words in _WORDS.items():
        if isinstance(thing, kind):
            return words
    return _summarize_comparison


def _count_things(things: Sized, noun: str) -> str:
    """Count things with their noun."""
    return f"{len(things):,} {choose_plural(len(things), noun)}"


def _summarize_report(report: Report) -> str:
    """Summarize a report: its title, its first number, and its size."""
    facts = (
        report.title,
        report.answer or "".join(phrases.format_metric(metric) for metric in report.headline[:1]),
        _count_things(report.findings, "finding"),
        _count_things(report.sections, "section"),
    )
    return " · ".join(fact for fact in facts if fact)


def _summarize_section(section: Section) -> str:
    """Summarize a section: its question, and its contents or the reason for having none."""
    if section.status != "ok":
        return f"{section.id} · {section.status}: {section.reason}"
    parts = _count_things(section.sheets, "table"), _count_things(section.charts, "chart")
    return " · ".join((section.id, *parts, _count_things(section.findings, "finding")))


def _summarize_notebook_finding(finding: Finding) -> str:
    """Summarize a finding: the rule, its saving, the claim."""
    gain = ""
    if finding.saving is not None:
        gain = f"step {phrases.format_steps([finding.saving.before_ns, finding.saving.step_ns])}"
    return " · ".join(part for part in (finding.rule, gain, phrases.format_claim(finding)) if part)


def _summarize_sheet(sheet: Sheet) -> str:
    """Summarize a table: its name, rows and columns."""
    return f"{sheet.name} · {_count_things(sheet.rows, 'row')} × {_count_things(sheet.headings, 'column')}"


def _summarize_comparison(comparison: Any) -> str:
    """Summarize a comparison: its sides and its verdict."""
    report: Report = comparison.report()
    return f"{comparison.base} → {comparison.opt} · {report.answer or comparison.verdict}"


_WORDS: dict[type, Callable[[Any], str]] = {
    Report: _summarize_report,
    Section: _summarize_section,
    Finding: _summarize_notebook_finding,
    Sheet: _summarize_sheet,
}


# HTML


def _make_pre_block(lines: Iterable[str]) -> str:
    """Format lines unchanged in a monospace font."""
    style = "line-height:1.3;white-space:pre-wrap;overflow-x:auto"
    return f'<pre style="{style}">{escape(chr(10).join(lines))}</pre>'


def _list_finding_lines(finding: Finding) -> Iterator[str]:
    """List the claim, advice and evidence of a finding."""
    yield _summarize_notebook_finding(finding)
    if finding.advice:
        yield f"  → {make_printable(finding.advice)}"
    if finding.evidence:
        yield f"  Evidence: {' · '.join(phrases.format_metric(metric) for metric in finding.evidence)}"
    if finding.places:
        yield f"  Where: {'; '.join(phrases.format_place(place) for place in finding.places[:3])}"
    for caveat in finding.caveats:
        yield f"  Caveat: {make_printable(caveat)}"


def _fold_section(section: Section) -> str:
    """Fold a section under its title."""
    note = "" if section.status == "ok" else f" ({section.status})"
    title = escape(make_printable(f"{section.title}{note}", LINE))
    return f"<details><summary>{title}</summary>{''.join(_make_section_html(section))}</details>"


def _make_section_html(section: Section) -> Iterator[str]:
    """Render the contents of a section."""
    if section.status != "ok":
        yield _make_pre_block([make_printable(section.reason)])
    if section.metrics:
        yield _make_pre_block(phrases.format_metric(metric) for metric in section.metrics)
    yield from (_make_table_html(sheet) for sheet in section.sheets)
    if section.findings:
        yield _make_pre_block(chain.from_iterable(_list_finding_lines(finding) for finding in section.findings))
    if section.caveats:
        yield _make_pre_block(f"Note: {make_printable(caveat)}" for caveat in section.caveats)


def _make_table_html(sheet: Sheet) -> str:
    """Render the first rows of a sheet as a table."""
    table = make_grid(sheet, ROWS)
    lines = [f"<table><caption>{escape(table.title)}</caption><thead><tr>"]
    for column in table.columns:
        lines.append(f'<th title="{escape(column.doc)}">{escape(column.title)}</th>')
    lines.append("</tr></thead><tbody>")
    for row in table.rows:
        cells = "</td><td>".join(escape(cell) for cell in row)
        lines.append(f"<tr><td>{cells}</td></tr>")
    note = phrases.describe_missing_rows(len(table.rows), table.more, table.omitted, "all in report.tables")
    notes = ". ".join(part for part in (note, table.caption) if part)
    lines.append(f"</tbody></table><p><small>{escape(notes)}</small></p>")
    return "".join(lines)
