"""Sources without content, and functions that worker processes can import."""

import importlib
from pathlib import Path

import pytest

from tracekit.model.trace import Source


@pytest.fixture
def work(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("workloads")


@pytest.fixture
def make_sources(tmp_path):
    def make(*names, size_bytes=100):
        return [Source(tmp_path / name, name, "none", size_bytes=size_bytes) for name in names]

    return make
