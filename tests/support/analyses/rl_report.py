"""Reports with the analyses of the RL step in them, whether the report has them already or not."""

import pytest

from tracekit.analyses import ANALYSES, question
from tracekit.engine import Outcome
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options, Result, discover, judge, measure_source, reduce

OURS = ("driver_log", "rl_matrix", "transfers", "micro_batches", "fleets", "communication")


def ask_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every report ask these too."""
    known = {analysis.id for analysis in ANALYSES}
    more = [a for a in map(question, OURS) if a.id not in known]
    monkeypatch.setattr(pipeline, "ANALYSES", (*ANALYSES, *more))


def result(*paths):
    """Report and measurements, measured in this process: others would not know what was asked here."""
    sources = discover([*paths])
    outcomes = [
        Outcome(source, measure_source(source, lambda _: None)) for source in sources.sources
    ]
    measured = reduce(outcomes, sources, Options())
    found = Result(judge(measured), measured)
    failed = [(s.id, s.reason) for s in found.report.sections if s.status == "failed"]
    errors = [r.message for r in found.report.remarks if r.severity == "error"]
    assert (failed, errors) == ([], [])
    return found


def section(report, name):
    return next(s for s in report.sections if s.id == name)


def rows(report, name, sheet):
    """The rows of one sheet by the titles of their columns; none where there is no such sheet."""
    for found in section(report, name).sheets:
        if found.name == sheet:
            titles = [heading.title for heading in found.headings]
            return [dict(zip(titles, cells, strict=True)) for cells in found.rows]
    return []


def by_stage(report, name, sheet, column):
    """One column of a sheet by stage."""
    return {row["stage"]: row.get(column) for row in rows(report, name, sheet)}
