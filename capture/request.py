"""Write requests for a profile: files in the directory that a job watches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capture.file_names import written_whole

SCHEMA = "capture/request/1"
HIDDEN = ".capture"
"""Subfolder for requests."""


def trigger(
    folder: str | os.PathLike[str],
    *,
    tool: str = "torch",
    ranks: Sequence[int] | None = (0,),
    steps: int = 1,
    **tool_config: Any,
) -> Path:
    """Write a request to the directory that a job watches, and return its path; it replaces an earlier one.

    `ranks` None means all ranks; `tool_config` are settings of the tool (`contents=["cpu"]`). Raises `OSError`
    if the file cannot be written, and `ValueError` for fewer than one step.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    request = {
        "schema": SCHEMA,
        "id": f"{time.time_ns()}-{os.getpid()}",
        "tool": tool,
        "ranks": None if ranks is None else [int(rank) for rank in ranks],
        "steps": steps,
        "tool_config": tool_config,
    }
    path = request_path(Path(folder))
    with written_whole(path) as partial:
        partial.write_text(json.dumps(request) + "\n", encoding="utf-8")
    return path


def request_path(folder: Path) -> Path:
    """Path of the latest request."""
    return folder / HIDDEN / "request"
