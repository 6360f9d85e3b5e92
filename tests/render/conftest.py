"""What the tests of the outputs share. `TRACEKIT_UPDATE_GOLDEN=1 pytest tests/render` writes the goldens."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def sample():
    from sample_report import sample_report

    return sample_report()


@pytest.fixture
def golden():
    """A check that a text is the one kept under this name in `golden/`."""

    def check(name, text):
        path = HERE / "golden" / name
        if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        assert path.exists(), f"no golden {name}: run with TRACEKIT_UPDATE_GOLDEN=1"
        assert text.split("\n") == path.read_bytes().decode("utf-8").split("\n")

    return check
