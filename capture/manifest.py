"""A process's account of its own profile: `capture_[<worker>_]rank<r>_pid<pid>.json` beside the traces.

Written when a capture starts (`"status": "open"`) and again when it stops, so that a process that dies
in between can be named afterwards. It says what file names are too short to say.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capture.file_names import manifest_name, topology, written_whole

SCHEMA = "capture/1"
_OF_PROCESS: dict[tuple[object, ...], Manifest] = {}
_VERSIONS = ("torch", "ray", "verl", "nvtx", "vllm", "sglang", "transformers")


@dataclass(slots=True)
class Manifest:
    """What this process has captured for one worker and rank; `folder` is where its files go.

    `files` hold path (relative to the folder where it lies in it), step, stage, start and stop.
    """

    folder: Path
    tool: str
    rank: int
    worker: str | None = None
    steps: list[int] = field(default_factory=list[int])
    stages: list[str] = field(default_factory=list[str])
    files: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    under_way: int = 0

    def begin(self, step: int | None) -> None:
        """Write that a capture of this step is under way. Raises `OSError` where that cannot be written."""
        if step is not None and step not in self.steps:
            self.steps.append(step)
        self.under_way += 1
        self.save()

    def saw(self, stage: str) -> None:
        """Note that a stage was captured; it is written with the rest."""
        if stage not in self.stages:
            self.stages.append(stage)

    def add(
        self,
        path: Path,
        *,
        step: int | None = None,
        stage: str | None = None,
        start_unix_ns: int | None = None,
    ) -> None:
        """Note that a file was written, of a capture that began then, where that is known, and ends now."""
        inside = path.is_relative_to(self.folder)
        self.files.append(
            {
                "path": str(path.relative_to(self.folder) if inside else path),
                "step": step,
                "stage": stage,
                "start_unix_ns": start_unix_ns,
                "stop_unix_ns": None if start_unix_ns is None else time.time_ns(),
            }
        )

    def end(self) -> None:
        """Write that the capture is complete. Raises `OSError` where that cannot be written."""
        self.under_way -= 1
        self.save()

    def save(self) -> None:
        """Write all of it. Raises `OSError` where that cannot be done."""
        place = topology()
        rank = place.get("rank", self.rank)
        told: Mapping[str, Any] = {
            "schema": SCHEMA,
            "run_id": run_id(),
            "role": self.worker,
            "rank": rank,
            "world_size": place.get("world_size"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "tool": self.tool,
            "steps": self.steps,
            "stages": self.stages,
            "files": self.files,
            "clock": {"unix_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()},
            "versions": versions(),
            "status": "open" if self.under_way else "closed",
        }
        with written_whole(self.folder / manifest_name(rank, self.worker)) as path:
            path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def manifest_of(folder: Path, tool: str, rank: int, worker: str | None) -> Manifest:
    """The manifest for this tool, worker and rank of this process: one file, however many profilers."""
    key = (os.getpid(), folder, tool, rank, worker)
    return _OF_PROCESS.setdefault(key, Manifest(folder, tool, rank, worker))


def versions() -> dict[str, str]:
    """The versions of Python and of those packages that this process has loaded."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _VERSIONS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def run_id() -> str | None:
    """What tells this run from others: `$CAPTURE_RUN_ID`, else Ray's session and job; None without both."""
    named = os.environ.get("CAPTURE_RUN_ID")
    ray: Any = sys.modules.get("ray")
    if named or ray is None:
        return named or None
    try:
        if not ray.is_initialized():  # asked for its context, Ray would start or join a cluster
            return None
        context = ray.get_runtime_context()
        return f"{context.get_session_name()}/{context.get_job_id()}"
    except Exception:  # noqa: BLE001 - Ray is loaded but not started, or an older one
        return None
