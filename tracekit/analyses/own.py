"""User-defined analyses: Python files that end with a record `ANALYSIS`, loaded by path."""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tracekit.analyses import Analysis
from tracekit.model.errors import TracekitError

_USER_ANALYSIS_HINT = "examples/own_question.py is one"


@cache
def load(path: str) -> Analysis:
    """Load the analysis in a file, once per process.

    Raises `TracekitError` with the file's name if the file cannot be run or defines no analysis.
    """
    file = Path(path)
    if not file.is_file():
        raise TracekitError(f"{path}: no such file", f"a question is a Python file; {_USER_ANALYSIS_HINT}")
    name = f"tracekit_question_{blake2b(path.encode(), digest_size=8).hexdigest()}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TracekitError(f"{path}: not a Python file", f"a question is x.py; {_USER_ANALYSIS_HINT}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TracekitError(
            f"{path}: it cannot be loaded: {describe_load_error(error, path)}", _USER_ANALYSIS_HINT
        ) from error
    analysis = getattr(module, "ANALYSIS", None)
    if not isinstance(analysis, Analysis):
        raise TracekitError(
            f"{path}: it contains no question", f"end it with ANALYSIS = Analysis(…); {_USER_ANALYSIS_HINT}"
        )
    return replace(analysis, file=path)


def describe_load_error(error: Exception, path: str = "") -> str:
    """Format the error in one line, with the last line of the user's file in its traceback where `path` is given."""
    text = f"{type(error).__name__}: {error}"
    if not path:
        return text
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path and frame.lineno]
    place = f", line {lines[-1]}" if lines else ""
    return f"{text} ({Path(path).name}{place})"


def add_user_analyses(analyses: tuple[Analysis, ...], paths: tuple[str, ...]) -> tuple[Analysis, ...]:
    """Add the analyses in these files to `analyses`.

    Raises `TracekitError` if two analyses share an id.
    """
    questions = list(analyses)
    for path in paths:
        analysis = load(str(Path(path).resolve()))
        if any(analysis.id == other.id for other in questions):
            raise TracekitError(f"{path}: there is a question {analysis.id!r} already", "give it another id")
        questions.append(analysis)
    return tuple(questions)
