"""What workers of a benchmark do: measure a source, and write down the CPU that it took; importable where they run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tracekit.pipeline.run import measure_source as measured

LOG = "SCALE_LOG"
"""The variable that names the folder in which every worker has a file of its own, a line a source."""


def measure_source(*source: Any, **chosen: Any) -> Any:
    """What `pipeline.measure_source` gives."""
    started = time.process_time()
    try:
        return measured(*source, **chosen)
    finally:
        with Path(os.environ[LOG], str(os.getpid())).open("a", encoding="ascii") as file:
            file.write(f"{time.process_time() - started}\n")


def cpu_of_sources(folder: Path) -> list[float]:
    """The CPU seconds of every source but the first of each worker: that one imports what it needs."""
    texts = (path.read_text(encoding="ascii") for path in folder.iterdir())
    return [float(line) for text in texts for line in text.split()[1:]]


def cpu_here(folder: Path) -> float:
    """The CPU seconds of the sources that this process measured itself: few small ones need no worker."""
    path = folder / str(os.getpid())
    return sum(map(float, path.read_text(encoding="ascii").split())) if path.exists() else 0.0
