"""Small inputs with known truth (`tests/data/cases`): what `analyze` and `doctor` say of each."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import invoke

from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

CASES = Path(__file__).parents[1] / "data" / "cases"


@cache
def analyze_case(name):
    """The report on one case as data, and what the two commands print of it."""
    path = CASES / name
    screen, doctor = invoke("analyze", path), invoke("doctor", path)
    assert screen.exit_code in (0, 2), screen.output
    return SimpleNamespace(
        path=path,
        report=analyze_uncached(path, Options()).report,
        screen=screen.stdout,
        doctor=doctor.stdout,
        status=screen.exit_code,
    )


@pytest.fixture
def case():
    """A function from the name of a case to `report`, `screen`, `doctor` and `status`."""
    return analyze_case
