"""Reports of the questions about the RL step."""

from tracekit.pipeline.run import Options, analyze_uncached

OURS = ("driver-log", "rl-matrix", "transfers", "micro-batches", "fleets", "communication", "rollout")


def result(*paths):
    """Report and measurements of these paths, asked these questions."""
    found = analyze_uncached([*paths], Options(jobs=1, questions=OURS))
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
