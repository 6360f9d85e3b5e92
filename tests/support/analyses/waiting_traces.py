"""Waits and stages measured and judged: what their tests need, and nothing else."""

from pathlib import Path

from tracekit.analyses import load_analysis, load_default_thresholds
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("steps", "data-quality", "communication", "stragglers", "imbalance")


def measure_folder(folder: Path, questions=QUESTIONS):
    """The measurements of a folder's files for these questions."""
    measured = analyze_uncached(folder, Options(jobs=1, questions=questions)).measurements
    assert [note.message for note in measured.notes if note.severity == "error"] == []
    return measured


def section(measured, name="stragglers", thresholds=None):
    """What one analysis says of measurements."""
    return load_analysis(name).judge(measured, thresholds or load_default_thresholds())


def rows_of(part, name):
    """The rows of one sheet of a section, as dictionaries; none where it is not shown."""
    for table in part.sheets:
        if table.name == name:
            columns = [heading.name for heading in table.headings]
            return [dict(zip(columns, row, strict=True)) for row in table.rows]
    return []
