"""Waits and stages measured and judged in this process: what their tests need, and nothing else."""

from pathlib import Path

from tracekit.analyses import question
from tracekit.engine import Outcome
from tracekit.model.thresholds import defaults
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options

NAMES = ("steps", "data_quality", "communication", "stragglers", "imbalance")


def measure_folder(folder: Path, names=NAMES):
    """The measurements of a folder's files by the analyses of these names."""
    kept = pipeline.ANALYSES
    pipeline.ANALYSES = tuple(question(name) for name in names)
    try:
        found = pipeline.discover(folder, Options())
        outcomes = [
            Outcome(source, pipeline.measure_source(source, lambda _: None))
            for source in found.sources
        ]
        measured = pipeline.reduce(outcomes, found, Options())
    finally:
        pipeline.ANALYSES = kept
    assert [note.message for note in measured.notes if note.severity == "error"] == []
    return measured


def section(measured, name="stragglers", thresholds=None):
    """What one analysis says of measurements."""
    return question(name).judge(measured, thresholds or defaults())


def rows_of(part, name):
    """The rows of one sheet of a section, as dictionaries; none where it is not shown."""
    for table in part.sheets:
        if table.name == name:
            columns = [heading.name for heading in table.headings]
            return [dict(zip(columns, row, strict=True)) for row in table.rows]
    return []
