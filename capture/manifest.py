"""Write a process's manifest of its captures: `capture_<tool>_[<worker>_]rank<r>_pid<pid>.manifest` beside the traces.

It is written when a capture starts (`"status": "open"`) and when it stops, so a process that dies in between leaves a
trace. It has details that do not fit in file names, and maps nsys reports, which record little more than a process id,
to processes. It is a ledger: every capture ends with an `outcome`.

- `file`: its files are in `files`; `because` lists missing parts.
- `elsewhere`: another program or role writes it, to `where` (nsys in Ray's session; another role's trace).
- `lost`: no file was written; `because` lists the reasons.
- `waiting`: a window of several steps is not complete.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capture.cores import list_cores
from capture.file_names import label, manifest_name, topology, written_whole
from capture.plain import plain

SCHEMA = "capture/2"
MOST_PROBLEMS = 20
MOST_REASONS = 5
FILE, ELSEWHERE, LOST, WAITING = "file", "elsewhere", "lost", "waiting"
_OF_PROCESS: dict[tuple[object, ...], Manifest] = {}
_VERSIONS = ("torch", "ray", "verl", "nvtx", "vllm", "sglang", "transformers")
_ASKED = ("tool", "all_ranks", "ranks", "tool_config", "global_tool_config", "relocate_results")
_DEEPEST = 6


@dataclass(slots=True)
class Manifest:
    """Captures of one worker and rank in this process.

    `folder` is for its files, `beside` for a copy of the manifest. `files` have a path (relative if inside the folder),
    step, stage, start and stop; `captures` have the step, scope, outcome and clocks of each start and stop. `asked` is
    the given configuration, `problems` are logged problems, `ignored` options without effect.
    """

    folder: Path
    tool: str
    rank: int
    worker: str | None = None
    steps: list[int] = field(default_factory=list[int])
    stages: list[str] = field(default_factory=list[str])
    files: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    captures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problems: list[str] = field(default_factory=list[str])
    ignored: list[str] = field(default_factory=list[str])
    beside: Path | None = None

    def begin(self, step: int | None, scope: str | None = None) -> dict[str, Any]:
        """Begin the capture of a step and return it for `end`, without writing the manifest."""
        if step is not None and step not in self.steps:
            self.steps.append(step)
        capture: dict[str, Any] = {
            "step": step,
            "scope": scope,
            "start": clock(),
            "stop": None,
            "outcome": None,
            "where": None,
            "because": [],
        }
        self.captures.append(capture)
        return capture

    @property
    def latest(self) -> dict[str, Any] | None:
        """The capture that started last."""
        return self.captures[-1] if self.captures else None

    def lose(self, capture: dict[str, Any] | None, reason: str) -> None:
        """Record why a capture, or a part of it, is not written."""
        if capture is None:
            return
        if reason not in capture["because"] and len(capture["because"]) < MOST_REASONS:
            capture["because"].append(reason)
        if capture["outcome"] == WAITING:
            capture["outcome"] = LOST

    def leave(self, capture: dict[str, Any] | None, where: str | None) -> None:
        """Record that another program writes a capture, to this place if it is known."""
        if capture is not None and capture["outcome"] is None:
            capture |= {"outcome": ELSEWHERE, "where": where}

    def wait(self, capture: dict[str, Any] | None) -> None:
        """Record that a capture is written together with later ones."""
        if capture is not None and capture["outcome"] is None:
            capture["outcome"] = WAITING

    def saw(self, stage: str) -> None:
        """Record a captured stage, without writing the manifest."""
        if stage not in self.stages:
            self.stages.append(stage)

    def failed(self, problem: str) -> None:
        """Record a logged problem, without writing the manifest."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def ignore(self, option: str) -> None:
        """Record an option without effect, without writing the manifest; it is not a problem of the capture."""
        if option not in self.ignored and len(self.ignored) < MOST_PROBLEMS:
            self.ignored.append(option)

    def add(
        self,
        path: Path,
        *,
        step: int | None = None,
        stage: str | None = None,
        start_unix_ns: int | None = None,
        captures: Iterable[dict[str, Any] | None] = (),
    ) -> None:
        """Record a written file of these captures; it ends now, and starts at `start_unix_ns` if that is known."""
        for capture in captures:
            if capture is not None:
                capture["outcome"] = FILE
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

    def end(self, capture: dict[str, Any]) -> None:
        """Record that a capture is complete or lost, and write the manifest. Raises `OSError` if that fails."""
        capture["stop"] = clock()
        if capture["outcome"] is None:
            capture["outcome"] = LOST
            capture["because"] = capture["because"] or ["no file was written"]
        self.save()

    def save(self) -> None:
        """Write the manifest. Raises `OSError` if that fails."""
        place = topology()
        rank = place.get("rank", self.rank)
        under_way = any(capture["stop"] is None or capture["outcome"] == WAITING for capture in self.captures)
        account: Mapping[str, Any] = {
            "schema": SCHEMA,
            "run_id": run_id(),
            "ray_worker": ray_worker(),
            "role": label(self.worker) if self.worker else None,
            "rank": rank,
            "world_size": place.get("world_size"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "cores": list_cores(),
            "tool": self.tool,
            "steps": self.steps,
            "stages": self.stages,
            "captures": self.captures,
            "files": self.files,
            "asked": self.asked,
            "ignored": [*without_effect(), *self.ignored],
            "problems": self.problems,
            "in_place_of": replaced(),
            "clock": clock(),
            "versions": versions(),
            "status": "open" if under_way else "closed",
        }
        text = json.dumps(account, indent=1) + "\n"
        name = manifest_name(self.tool, rank, self.worker)
        for folder in filter(None, (self.folder, self.beside)):
            _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    """Write a manifest atomically; if the disk is full, overwrite the existing one. Raises `OSError`.

    Without that, a ledger that could not record the full disk would show a process that never finished.
    """
    try:
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _fits(path, text):
            raise
        with path.open("r+", encoding="utf-8") as stream:
            stream.write(text)
            stream.truncate()


def _fits(path: Path, text: str) -> bool:
    """Whether a file has room for the text in the blocks that it has already."""
    try:
        return len(text.encode()) <= path.stat().st_blocks * 512
    except OSError:
        return False


def clock() -> dict[str, int]:
    """Return the current wall-clock and monotonic times."""
    return {"unix_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}


def asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profiler settings of a configuration as JSON values."""
    return {name: _json(config[name]) for name in _ASKED if name in config}


def _json(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON values: objects become mappings of their attributes."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, (list, tuple, set)):
        return [_json(item, depth + 1) for item in value]
    items = plain(value).items()
    return {name: _json(item, depth + 1) for name, item in items if not name.startswith("_")}


def without_effect() -> list[str]:
    """List settings of the run without effect, if this process has seen the whole configuration."""
    run_config: Any = sys.modules.get("capture.run_config")
    return [] if run_config is None else list(run_config.without_effect)


def replaced() -> str | None:
    """Name the framework whose profiler capture replaces, as `verl 0.9.1`; None if nothing is replaced."""
    switch: Any = sys.modules.get("capture.verl")
    if switch is None or not switch.active():
        return None
    return f"verl {getattr(sys.modules.get('verl'), '__version__', '')}".strip()


def manifest_of(folder: Path, tool: str, rank: int, worker: str | None) -> Manifest:
    """Return this process's manifest for a tool, worker and rank; several profilers share it."""
    key = (os.getpid(), folder, tool, rank, worker)
    return _OF_PROCESS.setdefault(key, Manifest(folder, tool, rank, worker))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the loaded packages."""
    loaded = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _VERSIONS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            loaded[name] = version
    return loaded


def run_id() -> str | None:
    """Identify this run by `$CAPTURE_RUN_ID`, else by Ray's session and job; None without either."""
    named = os.environ.get("CAPTURE_RUN_ID")
    return named or _ask_ray(lambda context: f"{context.get_session_name()}/{context.get_job_id()}")


def ray_worker() -> str | None:
    """Identify this process in `ray timeline` by its worker id; None outside Ray."""
    return _ask_ray(lambda context: str(context.get_worker_id()))


def _ask_ray(ask: Callable[[Any], str]) -> str | None:
    """Ask the runtime context of Ray; None outside Ray."""
    ray: Any = sys.modules.get("ray")
    if ray is None:
        return None
    try:
        # Asking for the context would start or join a cluster.
        return ask(ray.get_runtime_context()) if ray.is_initialized() else None
    except Exception:  # noqa: BLE001 - Ray is loaded but not started, or an older one
        return None
