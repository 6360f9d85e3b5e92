"""The two functions of the Python interface that read: `load` a file, `analyze` a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit import pipeline
from tracekit.pipeline import load
from tracekit.report import Report

__all__ = ["analyze", "load"]


def analyze(
    path: str | Path | Sequence[str | Path],
    *,
    ranks: str | None = None,
    steps: str | None = None,
    stages: Sequence[str] = (),
    exclude: Sequence[str] = (),
    jobs: int | None = None,
) -> Report:
    """The report on a profile directory, a file, a glob, or several of them.

    `ranks` and `steps` are like "0-3,7", `stages` and `exclude` patterns. Raises `TracekitError` when
    nothing was found or could be read.
    """
    options = pipeline.Options(ranks, steps, tuple(stages), tuple(exclude), jobs)
    return pipeline.analyze(path, options).report
