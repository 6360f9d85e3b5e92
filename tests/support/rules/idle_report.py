"""Reports of the analyses about idle GPU time alone, measured in this process."""

from rules.firing import write_sources

from tracekit.analyses import question
from tracekit.engine import Outcome
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options, Result

FEW = ("steps", "gpu_time", "idle", "syncs", "edges", "launch_queues", "data_quality")
RULES = ("host-sync-stalls", "stage-edge-idle", "host-silence")


def only_few(monkeypatch):
    """Only these analyses are asked, and those that every judgement of idle time needs."""
    monkeypatch.setattr(pipeline, "ANALYSES", tuple(question(name) for name in FEW))


def measured_of(path):
    """The measurements of a path, in this process, with no question judged."""
    given = pipeline.discover(path)
    outcomes = [Outcome(s, pipeline.measure_source(s, lambda _: None)) for s in given.sources]
    return pipeline.reduce(outcomes, given, Options())


def result(path):
    """The report on a path and its measurements, all in this process."""
    measured = measured_of(path)
    found = Result(pipeline.judge(measured), measured)
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
