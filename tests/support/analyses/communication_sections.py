"""The section on communication of hand-made traces, and what of it is compared."""

from chrome_builder import annotation, launched, step
from rules.firing import write_sources
from rules.traces_communication import nccl

from tracekit.analyses import load_analysis, load_default_thresholds
from tracekit.pipeline.run import Options, analyze_uncached

QUESTION = load_analysis("communication")


def measured(paths):
    return analyze_uncached(paths, Options(jobs=1, questions=("communication",))).measurements


def section(tmp_path, sources):
    return QUESTION.judge(measured(write_sources(tmp_path, sources)), load_default_thresholds())


def rows_of(section, name):
    sheet = next(s for s in section.sheets if s.name == name)
    columns = [heading.name for heading in sheet.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in sheet.rows]


def evidence(finding):
    return {metric.name: metric.value for metric in finding.evidence}


def answers(section, rule):
    return [(v.answer, v.reason) for v in section.verdicts if v.rule == rule]


def rules(section):
    return [finding.rule for finding in section.findings]


def late(rank1_at=40, whole=1000):
    """Two ranks, each one update of `integers`; two collectives end at 100 and 200: one of 60 (10) and one of 10."""
    files = {}
    for rank, first in ((0, 40), (1, rank1_at)):
        files[rank] = [
            step(1, 0, whole), annotation("actor_update", 0, whole), *launched("gemm", 0, 0, first, 1),
            *nccl("allreduce", 1, first, 100 - first, 2, 2**20), *launched("gemm", 2, 100, 90, 3),
            *nccl("allreduce", 3, 190, 10, 4, 2**20), *launched("gemm", 4, 200, whole - 200, 5),
        ]  # fmt: skip
    return files
