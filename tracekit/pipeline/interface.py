"""The Python API that measures a profile without judging it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit.model.trace import Measurements
from tracekit.pipeline import run
from tracekit.pipeline.options import parse_options


def measure(  # noqa: PLR0913 - one per option
    path: str | Path | Sequence[str | Path] = (),
    *,
    ranks: str | None = None,
    steps: str | None = None,
    stages: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    sample: int | None = None,
    questions: str | Sequence[str] | None = None,
    skip: str | Sequence[str] = (),
    question_files: str | Sequence[str] = (),
    cache: bool = True,
) -> Measurements:
    """Measure a profile and return the tables that `analyze` judges: `measure(path).tables["kernels"]` is a DataFrame.

    Its rows cover every process, step and stage. `tracekit tables NAME` describes the columns; a column's suffix is its
    unit, which `attrs["units"]` repeats. The options are those of `analyze`; `path` may be saved measurements (`.tkm`).
    Raises `TracekitError` if it finds nothing or cannot read any source.
    """
    chosen = {
        "ranks": ranks,
        "steps": steps,
        "stages": stages,
        "exclude": exclude,
        "jobs": jobs,
        "sample": sample,
        "questions": questions,
        "skip": skip,
        "question_files": question_files,
        "cache": cache,
    }
    return run.measure_all(path, parse_options(chosen))
