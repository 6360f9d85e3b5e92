"""Reports of the questions about the host alone."""

from chrome_builder import write
from rules.firing import write_sources

import tracekit
from tracekit.model.tables.arrays import Columns, make_bare
from tracekit.pipeline.run import Options, analyze_uncached

OURS = ("host", "interruptions", "data-loading", "optimizer")
RULES = ("launch-bound", "small-ops", "data-loader-wait", "allocator-calls", "unfused-optimizer", "recompilation", "graph-capture")  # fmt: skip
STEP = "Optimizer.step#AdamW.step"


def report(path, questions=OURS):
    """The report on a path, asked these questions (None: all)."""
    out = analyze_uncached(path, Options(jobs=1, questions=questions)).report
    assert [s.reason for s in out.sections if s.status == "failed"] == []
    assert [r.message for r in out.remarks if r.severity == "error"] == []
    return out


def of(path, *rules):
    return [f for f in report(path).findings if f.rule in (rules or RULES)]


def on(tmp_path, rows, *rules):
    return of(write_sources(tmp_path, rows), *rules)


def evidence(finding):
    return {metric.name: metric.value for metric in finding.evidence}


def verdicts(path, name):
    sheet = next(s for s in report(path).sections if s.id == "rules").sheets[0]
    columns = [h.name for h in sheet.headings]
    rows = [dict(zip(columns, row, strict=True)) for row in sheet.rows]
    return [(row["answer"], row.get("reason")) for row in rows if row["rule"] == name]


def load(tmp_path, rows):
    return tracekit.load(write(tmp_path / "rank0.json", rows))


def table(tmp_path, rows, module, name):
    return frame_of(module.measure(load(tmp_path, rows))[name])


def frame_of(columns):
    """The frame of columns as measuring gives them."""
    arrays = {key: make_bare(values) for key, values in columns.items()}
    return Columns(len(next(iter(arrays.values()), ())), arrays).frame()
