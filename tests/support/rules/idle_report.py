"""Reports of the questions about idle GPU time alone."""

from rules.firing import write_sources

from tracekit.pipeline.run import Options, analyze_uncached

FEW = ("steps", "gpu-time", "idle", "syncs", "stage-edges", "launch-queues", "data-quality")
RULES = ("host-sync-stalls", "stage-edge-idle", "host-silence")


def result(path, questions=FEW):
    """The report on a path, asked these questions (None: all), and its measurements."""
    found = analyze_uncached(path, Options(jobs=1, questions=questions))
    assert [(s.id, s.reason) for s in found.report.sections if s.status == "failed"] == []
    assert [r.message for r in found.report.remarks if r.code.startswith("failed:")] == []
    return found


def findings(tmp_path, rows, name=None):
    found = result(write_sources(tmp_path, rows)).report.findings
    return [f for f in found if f.rule in ((name,) if name else RULES)]


def section(path, name):
    return next(s for s in result(path).report.sections if s.id == name)


def rows_of(shown, name):
    """The rows of a sheet as dictionaries."""
    chosen = next(s for s in shown.sheets if s.name == name)
    names = [heading.name for heading in chosen.headings]
    return [dict(zip(names, row, strict=True)) for row in chosen.rows]


def answers(path, name):
    shown = next(s for s in result(path).report.sections if s.id == "rules")
    return [(r["answer"], r.get("reason")) for r in rows_of(shown, "rules") if r["rule"] == name]


def evidence(finding):
    return {metric.name: metric.value for metric in finding.evidence}
