"""The tool `nsys`: capture ranges and NVTX ranges for a process that runs under Nsight Systems.

nsys writes the report: `capture-range: cudaProfilerApi` makes it start and end with these ranges.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capture.manifest import ELSEWHERE
from capture.marks import marked
from capture.tools import NoTool, Stage, Target

log = logging.getLogger("capture")

RAY_NSIGHT_LOG_DIR = "/tmp/ray/session_latest/logs/nsight"  # noqa: S108 - where Ray has it written
"""Folder in which Ray lets nsys write; the name is verl's."""

_NOT_UNDER_NSYS = "this process was not started under nsys"

_lock = threading.Lock()
_open_ranges = 0


def open_range() -> None:
    """Start the process's capture range, or count one more user of it. Raises what the device raises."""
    global _open_ranges  # noqa: PLW0603 - there is one capture range in a process
    with _lock:
        if _open_ranges == 0:
            _range_of_the_device()[0]()
        _open_ranges += 1


def close_range() -> None:
    """End the process's capture range when its last user has left it."""
    global _open_ranges  # noqa: PLW0603 - as above
    with _lock:
        _open_ranges = max(_open_ranges - 1, 0)
        if _open_ranges == 0:
            _range_of_the_device()[1]()


def _range_of_the_device() -> tuple[Callable[[], object], Callable[[], object]]:
    """Get the functions that start and stop a capture range: those of verl's platform if loaded, else CUDA's."""
    verls: Any = sys.modules.get("verl.plugin.platform")
    if verls is not None:
        platform = verls.get_platform()
        return platform.profiler_start, platform.profiler_stop
    import torch

    return torch.cuda.profiler.start, torch.cuda.profiler.stop


def forget() -> None:
    """Leave the capture range of the process that this one was forked from to it."""
    global _open_ranges, _lock
    _open_ranges, _lock = 0, threading.Lock()


class NsysRanges(NoTool):
    """One profiler's ranges."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._discrete: bool = target.config.discrete
        session = _session_folder()
        if session is not None and session.is_dir():
            target.manifest.beside = session  # lets the collector of reports find their worker
        self._open = self._warned = False
        self.can_record = _is_recorded_by_nsys()
        if not self.can_record:
            log.warning("rank %s: %s: no report is written", target.rank, _NOT_UNDER_NSYS)
        self._capture: dict[str, Any] | None = None

    def start(self, scope: str | None, step: int | None) -> None:
        """Begin the capture range of a step, unless stages have ranges of their own."""
        del scope, step
        self._capture = self._target.manifest.latest
        if self.can_record:
            folder = _session_folder()
            self._target.manifest.leave(self._capture, str(folder) if folder else None)
        else:
            self._target.manifest.lose(self._capture, _NOT_UNDER_NSYS)
        if not self._discrete and not self._open:
            self._open = self._opened()

    def stop(self) -> None:
        """End the capture range, if this profiler started one."""
        if self._open:
            self._open = False
            close_range()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Put the body into an NVTX range, and into its own capture range if requested."""
        own_range = self._discrete and self._opened()
        try:
            with marked(stage.name, stage.color, stage.domain, stage.category):
                yield
        finally:
            if own_range:
                close_range()

    def _opened(self) -> bool:
        """Whether a capture range could be opened; without CUDA none can, and NVTX ranges are all there is."""
        try:
            open_range()
        except Exception as error:  # noqa: BLE001 - torch raises AssertionError where it has no CUDA
            if not self._warned:
                message = "rank %s: no capture range for nsys: %s: %s"
                log.warning(message, self._target.rank, type(error).__name__, error)
            self._warned = True
            reason = f"no capture range: {type(error).__name__}: {error}"
            self._target.manifest.lose(self._capture, reason)
            return False
        return True

    def relocate(self, folder: Path) -> None:
        """Move this process's finished reports out of Ray's session to the folder, under verl's names."""
        parts = [self._target.worker] if self._target.worker else []
        manifest = self._target.manifest
        waiting = [one for one in manifest.captures if one["outcome"] == ELSEWHERE]
        for report in sorted(nsight_folder().glob(f"worker_process_{os.getpid()}.*nsys-rep")):
            if not report.stat().st_size:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "_".join([*parts, socket.gethostname(), report.name])
            shutil.move(report, path)
            # A report of a range belongs to one capture; with a range per stage, a step has several reports.
            manifest.add(path, captures=waiting if self._discrete else waiting[:1])
            waiting = waiting if self._discrete else waiting[1:]


def _is_recorded_by_nsys() -> bool:
    """Whether this process was started under nsys: it leaves variables of its own, and a library that is loaded first."""
    if any(name.startswith("NSYS") for name in os.environ) or "CUDA_INJECTION64_PATH" in os.environ:
        return True
    return "nsight" in os.environ.get("LD_PRELOAD", "").lower()


def nsight_folder() -> Path:
    """Return the nsys folder of this process's Ray session, else of the latest session."""
    return _session_folder() or Path(RAY_NSIGHT_LOG_DIR)


def _session_folder() -> Path | None:
    """Return the nsys folder of this process's Ray session; None outside Ray."""
    ray: Any = sys.modules.get("ray")
    try:
        session = Path(ray._private.worker._global_node.get_session_dir_path())  # noqa: SLF001 - Ray tells it nowhere else
    except AttributeError:  # no Ray, not started, or a Ray version that stores it elsewhere
        return None
    return session / "logs" / "nsight"
