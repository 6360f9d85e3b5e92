"""The tool `torch_memory`: snapshots of the CUDA allocator, with the history of what it allocated.

`step<S>/torch_memory_rank<r>_pid<pid>.pickle` after every step, `steps<a>-<b>/` after several, and
`oom_<time>/torch_memory_oom_rank<r>_pid<pid>.pickle` when memory runs out; with `_part<k>` where two
workers of one process write for the same step. History begins when the worker is built, since the blocks that weigh
most are allocated then; that of a request (`capture.trigger`) begins and ends with the request.

A history has Python stacks only, unless C++ frames are asked for: with those a snapshot of 100,000 entries may take
minutes to write (pytorch/torchtitan#3628: 461 s instead of 4 s). verl's own configuration says `stacks: all`, so
its untouched block does not count as asking; `kw_args.stacks=all` does.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from capture.config import TorchMemoryToolConfig
from capture.file_names import unused, written_whole
from capture.plain import plain
from capture.tools import NoTool, Target

log = logging.getLogger("capture")


_NO_CUDA = "torch_memory needs CUDA, and torch finds no CUDA device"


class MemorySnapshots(NoTool):
    """One profiler's snapshots; the history is the process's."""

    recording: ClassVar[bool] = False
    recorder: ClassVar[MemorySnapshots | None] = None
    """Profiler whose history is recorded; it writes the snapshot on OOM."""

    observed: ClassVar[bool] = False

    def __init__(self, target: Target) -> None:
        import torch.cuda.memory

        self._torch: Any = torch
        self._target = target
        self._config: TorchMemoryToolConfig = target.config
        self._steps: list[int | None] = []
        self._captures: list[dict[str, Any] | None] = []
        self._under_way = False
        self._start_ns = 0
        self.can_record = torch.cuda.is_available()
        if not self.can_record:
            log.warning("rank %s: %s: no snapshot is written", target.rank, _NO_CUDA)
        elif not MemorySnapshots.recording:
            self._record()
        if MemorySnapshots.recording and not MemorySnapshots.observed:
            # Set even on failure: a second attempt would fail in the same way.
            MemorySnapshots.observed = True
            self._observe()

    def start(self, scope: str | None, step: int | None) -> None:
        """Begin a window of steps, or go on with it."""
        del scope
        if not MemorySnapshots.recording and self.can_record:
            self._record()  # a request during construction has ended its history
        if not self._steps:
            self._start_ns = time.time_ns()
        self._steps.append(step)
        self._captures.append(self._target.manifest.latest)
        self._under_way = True

    def stop(self) -> None:
        """Write the snapshot once the window has its steps."""
        if not self._under_way:
            return
        self._under_way = False
        if len(self._steps) >= self._config.memory_snapshot_num_steps:
            self._dump_window()
        elif MemorySnapshots.recording:
            self._target.manifest.wait(self._captures[-1])

    def finish(self) -> None:
        """Write the snapshot of a window that has fewer steps than it should; end the history of a request."""
        try:
            if self._steps:
                self._dump_window()
        finally:
            if self._target.on_demand and MemorySnapshots.recorder is self:
                MemorySnapshots.recording, MemorySnapshots.recorder = False, None
                self._torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - torch names it so

    def _dump_window(self) -> None:
        """Write the snapshot of the steps so far, and start a new history."""
        steps, self._steps = self._steps, []
        captures, self._captures = self._captures, []
        manifest = self._target.manifest
        if not MemorySnapshots.recording:
            for capture in captures:
                manifest.lose(capture, _NO_CUDA)
            return
        try:
            self._write(steps, captures)
        except Exception as error:
            for capture in captures:
                manifest.lose(capture, f"the snapshot was not written: {error}")
            raise
        if not self._target.on_demand:  # a request must not touch the run's own history
            self._torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - torch names it so
            self._record()

    def _write(self, steps: list[int | None], captures: list[dict[str, Any] | None]) -> None:
        """Write the snapshot of these steps. Raises what torch and the disk raise."""
        self._torch.cuda.synchronize()
        first, last = steps[0], steps[-1]
        if first is None:
            folder = datetime.now().astimezone().strftime("%Y%m%d-%H%M")
        else:
            folder = f"step{first}" if first == last else f"steps{first}-{last}"
        path = self._dump(folder, "torch_memory")
        self._target.manifest.add(path, step=first, start_unix_ns=self._start_ns, captures=captures)

    def _dump(self, folder: str, label: str) -> Path:
        rank = os.environ.get("RANK") or self._target.rank
        name = f"{label}_rank{rank}_pid{os.getpid()}.pickle"
        path = unused(self._target.folder / folder / name)
        with written_whole(path) as partial:
            self._torch.cuda.memory._dump_snapshot(str(partial))  # noqa: SLF001 - as above
        return path

    def _record(self) -> None:
        """Start a history. `context`, `stacks` and `kw_args` of the global block set its contents."""
        shared = plain(self._target.shared.get("torch_memory"))
        record = self._torch.cuda.memory._record_memory_history  # noqa: SLF001 - as above
        record(
            **{
                "context": shared.get("context", "all"),
                "stacks": _stacks(shared),
                "max_entries": self._config.trace_alloc_max_entries,
                **self._depth(record),
                **plain(shared.get("kw_args")),
            }
        )
        self._torch.cuda.reset_peak_memory_stats()
        MemorySnapshots.recording, MemorySnapshots.recorder = True, self

    def _depth(self, record: Callable[..., object]) -> dict[str, int]:
        """Get the argument that limits stack depth; empty, with a warning, if this torch has none."""
        depth = self._config.stack_depth
        with contextlib.suppress(TypeError, ValueError):  # some torch versions hide their arguments
            if "stack_depth" in inspect.signature(record).parameters:
                return {"stack_depth": depth}
        if depth != TorchMemoryToolConfig().stack_depth and not MemorySnapshots.recording:
            problem = f"stack_depth {depth} has no effect: this torch keeps whole stacks"
            log.warning("rank %s: torch_memory: %s", self._target.rank, problem)
            self._target.manifest.ignore(problem)
        return {}

    def _observe(self) -> None:
        """Have a snapshot written when an allocation fails."""
        try:
            self._torch._C._cuda_attach_out_of_memory_observer(_out_of_memory)  # noqa: SLF001 - as above
        except Exception as error:  # noqa: BLE001 - builds without it, and whatever CUDA says
            message = "rank %s: cannot watch for OOM, so an OOM leaves no snapshot: %s"
            log.warning(message, self._target.rank, error)

    def _out_of_memory(self, device: int, wanted: int, total: int, free: int) -> None:
        """Write a snapshot of an OOM. The allocator calls this: it must not raise or wait for the device."""
        moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-%f")
        message = "rank %s: OOM on device %s: %s bytes requested, %s of %s free"
        log.error(message, self._target.rank, device, wanted, free, total)
        try:
            start_ns = time.time_ns()
            path = self._dump(f"oom_{moment}", "torch_memory_oom")
            step = self._steps[-1] if self._under_way else None
            self._target.manifest.add(path, step=step, start_unix_ns=start_ns)
            self._target.manifest.save()
        except Exception as error:  # noqa: BLE001 - the allocation fails with its own error
            log.warning("rank %s: the snapshot of this OOM was not written: %s", self._target.rank, error)


def _stacks(shared: Mapping[str, Any]) -> str:
    """Which frames a history has: Python's, unless the configuration asks for others."""
    stacks = str(shared.get("stacks", "python"))
    untouched = {"context": "all", "stacks": "all"}.items() <= shared.items() and "kw_args" in shared
    return "python" if untouched and not plain(shared["kw_args"]) else stacks


def _out_of_memory(device: int, wanted: int, total: int, free: int) -> None:
    """Let the recording profiler write a snapshot; torch keeps calling this when none records any more."""
    recorder = MemorySnapshots.recorder
    if recorder is not None:
        recorder._out_of_memory(device, wanted, total, free)  # noqa: SLF001 - the class's own
