"""Write requests for a profile: files in the directory that a job watches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capture.config import tool_config_of
from capture.file_names import written_whole

SCHEMA = "capture/request/1"
TOOLS = ("torch", "torch_memory", "nsys")
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
    if the file cannot be written, and `ValueError` for a request that no job could follow.
    """
    _check_request(tool, ranks, steps, tool_config)
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


def _check_request(tool: str, ranks: Sequence[int] | None, steps: int, tool_config: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a request that no job could follow: the job's log may be on another machine."""
    if tool not in TOOLS:
        raise ValueError(f"there is no tool {tool!r}; tools are {', '.join(TOOLS)}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if ranks is not None and (not ranks or min(ranks) < 0):
        raise ValueError(f"ranks must be 0 or above, got {[*ranks]}; None asks all ranks")
    known = sorted({*tool_config_of(tool, {})} - {"_target_", "name"})
    unknown = sorted({*tool_config} - {*known})
    if unknown:
        raise ValueError(f"{tool} has no setting {', '.join(unknown)}; it has {', '.join(known)}")
    try:
        tool_config_of(tool, tool_config)
    except AssertionError as error:
        raise ValueError(str(error)) from None


def request_path(folder: Path) -> Path:
    """Path of the latest request."""
    return folder / HIDDEN / "request"
