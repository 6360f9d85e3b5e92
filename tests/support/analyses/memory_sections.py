"""What the tests of memory share: the sections of a report with the analyses of memory in it."""

import os
from pathlib import Path

import pytest
from chrome_builder import write
from process.idle_traces import frame_of

import tracekit
from tracekit.analyses.memory import memory
from tracekit.pipeline import run as pipeline

REAL = os.environ.get("TRACEKIT_REAL_DATA")


QUESTIONS = ("memory", "memory-growth")


def analyze(path, questions=QUESTIONS):
    return pipeline.analyze_uncached(path, pipeline.Options(jobs=1, questions=questions))


def sections(path):
    return {s.id: s for s in analyze(path).report.sections if s.id in ("memory", "memory-growth")}


def sheet(section, name):
    one = next(s for s in section.sheets if s.name == name)
    columns = [heading.name for heading in one.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in one.rows]


def measured(tmp_path, rows, table, **meta):
    trace = tracekit.load(write(tmp_path / "rank0.json", rows, **meta))
    return frame_of(memory.measure(trace)[table])


def verdicts(section):
    return {v.rule: (v.answer, v.reason) for v in section.verdicts}


def real(*parts):
    """A real file or folder; without them the test is skipped."""
    if REAL is None:
        pytest.skip("real profiles are not here")
    return Path(REAL, "chrome", *parts)
