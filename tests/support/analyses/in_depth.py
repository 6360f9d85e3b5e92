"""Reports with the operator view in depth."""

from __future__ import annotations

from rules.firing import write_sources

from tracekit.pipeline.run import Options, analyze_uncached

IN_DEPTH = ("shapes", "matmuls", "unfused", "forward-batches", "modules")


def result_of(path, only=(*IN_DEPTH, "operators")):
    """Report and measurements of what lies at a path, asked these questions."""
    found = analyze_uncached(path, Options(jobs=1, questions=only))
    assert [(s.id, s.reason) for s in found.report.sections if s.status == "failed"] == []
    assert [r.message for r in found.report.remarks if r.severity == "error"] == []
    return found


def report_of(folder, sources, only=(*IN_DEPTH, "operators")):
    return result_of(write_sources(folder, sources), only).report


def section(report, name):
    return next(s for s in report.sections if s.id == name)


def rows_of(part, name):
    """The rows of a sheet as dictionaries; empty where there is no such sheet."""
    for sheet in part.sheets:
        if sheet.name == name:
            columns = [heading.name for heading in sheet.headings]
            return [dict(zip(columns, cells, strict=True)) for cells in sheet.rows]
    return []


def verdicts(report, rule):
    return [(v.answer, v.reason) for s in report.sections for v in s.verdicts if v.rule == rule]


def text_of(report):
    """All text of the sections, for words that must not be there."""
    return repr(
        [(s.title, s.reason, s.metrics, s.sheets, s.findings, s.caveats) for s in report.sections if s.id in IN_DEPTH]
    )
