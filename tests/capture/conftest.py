"""A torch of our own for every test here, and a process that has profiled nothing yet."""

import sys
import types

import fake_torch
import pytest

from capture import endings, manifest, marks, nsys_ranges, on_signal, run_config
from capture.memory_snapshots import MemorySnapshots
from capture.torch_trace import TorchTrace


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """The fake torch; what `capture` keeps of the process is as at its start, and so it is left."""
    marks._nvtx.cache_clear()
    monkeypatch.setattr(endings, "live", [])
    monkeypatch.setattr(manifest, "_OF_PROCESS", {})
    run_config._warn_run_once.cache_clear()
    monkeypatch.setattr(run_config, "without_effect", [])
    monkeypatch.setattr(nsys_ranges, "_open_ranges", 0)
    monkeypatch.setattr(on_signal, "_folder", None)
    monkeypatch.delenv(on_signal.DRIVER, raising=False)
    monkeypatch.setattr(TorchTrace, "owner", None)
    monkeypatch.setattr(TorchTrace, "scheduled", None)
    monkeypatch.setattr(TorchTrace, "ranges", [])
    monkeypatch.setattr(TorchTrace, "lost", [])
    for name in ("recording", "observed"):
        monkeypatch.setattr(MemorySnapshots, name, False)
    monkeypatch.setattr(MemorySnapshots, "recorder", None)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WG_BACKEND", raising=False)
    monkeypatch.delenv("CAPTURE_RUN_ID", raising=False)
    yield fake_torch.Torch().install(monkeypatch)
    marks._nvtx.cache_clear()


@pytest.fixture
def nvtx(monkeypatch):
    """The log of a fake nvtx, which takes only the colours that the real one takes without matplotlib."""
    log = []
    known = {"green", "blue", "yellow", "purple", "rapids", "cyan", "red", "white", "darkgreen", "orange"}  # fmt: skip

    def start_range(message=None, color=None, domain=None, category=None):
        if isinstance(color, str) and color not in known:
            raise TypeError(f"Invalid color {color}. Please install matplotlib to use this color.")
        log.append(("start", message, color, domain, category))
        return len(log)

    module = types.ModuleType("nvtx")
    module.start_range = start_range
    module.end_range = lambda number: log.append(("end", log[number - 1][1]))
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return log
