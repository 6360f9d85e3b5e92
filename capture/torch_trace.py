"""The tool `torch`: traces of torch.profiler, one for each capture, stage or window of mini-batches.

torch.profiler serves one capture at a time in a process. Whoever starts first owns it until it stops;
the stages of others appear in the owner's trace. A capture records the thread that starts it, which is also the
one that must stop it. All threads are recorded where `$CAPTURE_ALL_THREADS` is 1, and where a step starts on
another thread than the main one, as in Ray's threaded actors: such a capture starts and stops on the control
thread, and `capture.gate` keeps stages out while it ends. A profile of the user's own has precedence.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from capture import control, other_profiles
from capture.config import TorchProfilerToolConfig
from capture.extra_recording import experimental_config, extra_recording
from capture.file_names import trace_stem, written_whole
from capture.gate import Gate
from capture.gc_ranges import GcRanges
from capture.tools import NoTool, Stage, Target

log = logging.getLogger("capture")

_OTHER_RUNS = "another torch.profiler was running in this process"
_OTHER_BEGAN = "another torch.profiler started in this process, which ended the trace"

ALL_THREADS = "CAPTURE_ALL_THREADS"
"""Environment variable that requests traces of all threads."""

DRAIN_S = 0.02
"""Seconds to wait for operators in other threads after recording is turned off."""

_END = re.compile(rb'(\}|"traceEvents":\s*\[)\s*\]\s*(,\s*"[^"]*"\s*:\s*("[^"]*"|[^][{}",]+)\s*)*\}\s*\Z')
"""End of a trace's text."""


class TorchTrace(NoTool):
    """One profiler's use of torch.profiler."""

    owner: ClassVar[TorchTrace | None] = None
    """Profiler whose capture is running in this process."""

    scheduled: ClassVar[_Capture | None] = None
    """The running capture if mini-batches advance it, whichever worker counts them."""

    ranges: ClassVar[list[_Range]] = []
    """Open stages in this process, outermost first."""

    lost: ClassVar[list[_Capture | None]] = []
    """Captures that torch could not end: let go of, they would end the process."""

    taking: ClassVar[Any] = threading.RLock()
    """Lock while a capture is started or ended: stages may start and end on several threads at once."""

    gate: ClassVar[Gate] = Gate()
    """Stages of all threads, which a capture of all threads waits for before it ends."""

    used: ClassVar[bool] = False
    """Whether this process has ever started a profile."""

    def __init__(self, target: Target) -> None:
        import torch.profiler

        self._torch = torch.profiler
        self._target = target
        self._config: TorchProfilerToolConfig = target.config
        self._step: int | None = None
        self._account: dict[str, Any] | None = None
        self._capture: _Capture | None = None
        self._told = False
        other_profiles.watch(_give_way)

    def start(self, scope: str | None, step: int | None) -> None:
        """Begin the trace of a step, unless stages have traces of their own or another is running."""
        self._step, self._account = step, self._target.manifest.latest
        if self._config.discrete:
            return
        schedule = self._schedule()
        if schedule:
            # verl keeps one window per step unless more are requested.
            schedule["repeat"] = schedule["repeat"] or 1
        self._begin(scope, schedule, by_stage=False)

    def stop(self) -> None:
        """End the trace, if it is this profiler's own."""
        if TorchTrace.owner is self:
            self._end()
        account, self._account = self._account, None
        if self._config.discrete and account and not (account["outcome"] or account["because"]):
            self._target.manifest.lose(account, "no annotated stage ran, and with `discrete` only stages are recorded")

    def finish(self) -> None:
        """End captures that no `stop` could end because it ran on another thread."""
        try:
            self.stop()
        except RuntimeError:
            exit_without_destructors()  # destructors would crash a process with a running profile (SIGSEGV)
            raise

    def advance(self) -> None:
        """Tell the running schedule that a mini-batch is over."""
        running = TorchTrace.scheduled
        if running is not None:
            running.advance()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Record the body as a range in the trace, or as a trace of its own."""
        token = TorchTrace.gate.enter()
        try:
            with self._marked(stage):
                yield
        finally:
            TorchTrace.gate.leave(token)

    @contextmanager
    def _marked(self, stage: Stage) -> Iterator[None]:
        own_trace = None
        if self._config.discrete:
            schedule = self._schedule() if stage.scheduled else None
            own_trace = self._begin(stage.scope or stage.name, schedule, by_stage=True)
        mark = _Range(self._torch.record_function(stage.name))
        TorchTrace.ranges.append(mark)
        try:
            yield
        finally:
            mark.end()
            if mark in TorchTrace.ranges:
                TorchTrace.ranges.remove(mark)
            if own_trace is not None and self._capture is own_trace:
                self._end()

    def _tell(self) -> None:
        """Log once why there is no trace."""
        if not self._told:
            self._told = True
            message = "rank %s: another torch.profiler is running in this process: no trace until it stops"
            log.warning(message, self._target.rank)

    def _begin(self, scope: str | None, schedule: dict[str, int] | None, *, by_stage: bool) -> _Capture | None:
        """Start the capture of this profiler; None if another one runs. Raises what torch raises.

        A step waits for a capture that another thread starts or ends; a stage does not, because it has work to do.
        """
        if not TorchTrace.taking.acquire(blocking=not by_stage):
            return None
        try:
            owner = TorchTrace.owner
            if owner is not None and not owner._ended_late():  # noqa: SLF001 - the class's own
                if owner is not self and owner._capture is not None:  # noqa: SLF001 - the class's own
                    self._target.manifest.leave(self._account, owner._capture.stem)  # noqa: SLF001
                return None
            if other_profiles.under_way():
                self._tell()
                self._target.manifest.lose(self._account, _OTHER_RUNS)
                return None
            capture = _Capture(self._torch, self._target, scope, self._step, schedule, by_stage=by_stage)
            capture.account = self._account
            capture.start()
            self._capture, TorchTrace.owner = capture, self
            TorchTrace.used = True
            TorchTrace.scheduled = capture if schedule else None
            return capture
        finally:
            TorchTrace.taking.release()

    def _end(self) -> None:
        """End the capture, if there is still one; if that fails, the next one can start anyway."""
        with TorchTrace.taking:
            capture = self._capture
            if capture is None:
                return
            capture.require_its_thread()
            capture.silence()
            _end_ranges()
            self._capture = TorchTrace.scheduled = None
            try:
                capture.stop()
            finally:
                TorchTrace.owner = None

    def _ended_late(self) -> bool:
        """End a capture that `stop` had to leave because stages ran on other threads; whether it was one."""
        if self._capture is None or not self._capture.waiting:
            return False
        self._end()
        return True

    def _lose(self) -> None:
        """Be the owner no more, without a trace."""
        self._target.manifest.lose(self._account, _OTHER_BEGAN)
        TorchTrace.lost.append(self._capture)
        self._capture = None
        TorchTrace.owner = TorchTrace.scheduled = None
        TorchTrace.ranges.clear()

    def _schedule(self) -> dict[str, int] | None:
        """Get the arguments of torch.profiler.schedule; None if the whole loop is recorded."""
        schedule = self._config.schedule
        if schedule is None or not schedule.enabled:
            return None
        return {k: int(schedule[k]) for k in ("skip_first", "wait", "warmup", "active", "repeat")}


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _wants_all_threads(*, by_stage: bool) -> bool:
    """Check whether a starting capture must record all threads: on request, or because it would be empty.

    A stage's own trace starts and ends on the thread of that stage.
    """
    asked = os.environ.get(ALL_THREADS, "0") not in ("", "0")
    return asked or not (by_stage or _on_main_thread())


def forget() -> None:
    """Leave the captures of the parent process to it after a fork, and record nothing here."""
    owner, ranges = TorchTrace.owner, [*TorchTrace.ranges]
    if owner is not None:
        TorchTrace.lost.append(owner._capture)  # noqa: SLF001 - the class's own
    TorchTrace.owner = TorchTrace.scheduled = None
    TorchTrace.ranges.clear()
    TorchTrace.taking, TorchTrace.gate = threading.RLock(), Gate()
    other_profiles.forget()
    for mark in ranges:
        mark.drop()
    if owner is not None and owner._capture is not None:  # noqa: SLF001
        owner._capture.detach()  # noqa: SLF001
    if TorchTrace.used:
        exit_without_destructors()


def exit_without_destructors() -> None:
    """Let this process end without the destructors of C++ libraries.

    In a forked process, Kineto's waits for ever for a thread that only the parent has (`~ConfigLoader` in torch 2.13).
    glibc calls the functions given to `on_exit` in reverse order, before the destructors; they are C functions,
    since Python has ended by then.
    """
    with contextlib.suppress(Exception):  # no glibc: let torch end the process
        import ctypes

        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # noqa: SLF001 - a function of C
        libc.on_exit(libc.fcloseall, None)


def _give_way() -> None:
    """End the running capture when another user starts to profile: torch would crash with both."""
    with TorchTrace.taking:
        owner = TorchTrace.owner
        if owner is None:
            return
        message = "rank %s: another torch.profiler starts in this process: this trace ends now"
        log.warning(message, owner._target.rank)  # noqa: SLF001 - the class's own
        owner._target.manifest.lose(owner._account, _OTHER_BEGAN)  # noqa: SLF001
        try:
            owner._end()  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - on a thread where torch cannot end it
            log.warning("rank %s: the trace of this step is lost: %s", owner._target.rank, error)  # noqa: SLF001
            owner._lose()  # noqa: SLF001


class _Range:
    """A range in the trace, from now until the first caller ends it."""

    def __init__(self, mark: Any) -> None:
        self._open = [mark]
        mark.__enter__()

    def end(self) -> None:
        """End it once, whichever of two threads comes first."""
        with contextlib.suppress(IndexError):
            self._open.pop().__exit__(None, None, None)

    def drop(self) -> None:
        """Never end it: the profile that it is in belongs to the process that this one was forked from."""
        self._open.clear()


def _end_ranges() -> None:
    """End the ranges of all open stages before their recording ends.

    A range that ended in a later window would be written to memory that the earlier one has freed:
    torch 2.13 does not check, and the process may crash.
    """
    while TorchTrace.ranges:
        TorchTrace.ranges.pop().end()


class _Capture:
    """One run of torch.profiler, and its files."""

    def __init__(
        self,
        torch: Any,
        target: Target,
        scope: str | None,
        step: int | None,
        schedule: dict[str, int] | None,
        *,
        by_stage: bool,
    ) -> None:
        self.schedule, self._by_stage = schedule, by_stage
        self._torch, self._target, self._scope, self._step = torch, target, scope, step
        self.stem = trace_stem(target.rank, scope, target.worker, step)
        self.account: dict[str, Any] | None = None
        self._written, self._start_ns, self._empty = 0, 0, False
        contents = set(target.config.contents)
        kinds = torch.ProfilerActivity
        if "memory" in contents and _wants_all_threads(by_stage=by_stage):
            contents = self._without_memory(contents)
        options = extra_recording(contents, all_threads=_wants_all_threads(by_stage=by_stage))
        self.waiting, self._all_threads = False, "profile_all_threads" in options
        alone = _on_main_thread() or not self._all_threads
        self._thread = threading.get_ident() if alone else None
        # A collection on a thread outside any stage could outlast a capture of all threads.
        own_ranges = not (self._all_threads or "record_python_gc_info" in options)
        self._gc_ranges = GcRanges(torch.record_function) if own_ranges else None
        self.profiler: Any = torch.profile(
            # Stages are ranges of the host: without CPU activity no kernel has a stage.
            activities=[kinds.CPU, *([kinds.CUDA] if not contents or "cuda" in contents else [])],
            schedule=torch.schedule(**schedule) if schedule else None,
            on_trace_ready=self._save,
            record_shapes="shapes" in contents,
            profile_memory="memory" in contents,
            with_stack="stack" in contents,
            **experimental_config(options),
        )
        # Its steps would be mini-batches here, which contradicts the rows ProfilerStep#n.
        self.profiler.record_steps = False

    def _without_memory(self, contents: set[str]) -> set[str]:
        """Remove `memory` from the contents, which a profile of all threads cannot record, with a warning."""
        problem = "a trace of all threads cannot record allocations: `memory` is left out of contents"
        log.warning("rank %s: %s", self._target.rank, problem)
        self._target.manifest.ignore(problem)
        return contents - {"memory"}

    def start(self) -> None:
        """Start collecting."""
        self._start_ns = time.time_ns()
        self._run(self.profiler.start)
        if self._gc_ranges is not None:
            self._gc_ranges.start()

    def advance(self) -> None:
        """Go on to the next mini-batch. Raises `RuntimeError` where the window cannot end now."""
        if self.waiting:
            return
        if self.profiler.current_action is self._torch.ProfilerAction.RECORD_AND_SAVE:
            self.silence()
            _end_ranges()
        self._run(self.profiler.step)

    def silence(self) -> None:
        """Stop recording other threads before the profile ends.

        Raises `RuntimeError` where they stay in their stages; it then ends with the next `start` or with the process.
        """
        if not self._all_threads:
            return
        with TorchTrace.gate.closed() as alone:
            if alone:
                _end_ranges()
            self._run(self._turn_off)
            time.sleep(DRAIN_S)
        self.waiting = not alone
        if self.waiting:
            raise RuntimeError("stages still run on other threads: this trace is written later")

    def _turn_off(self) -> None:
        profile = self.profiler.profiler
        if profile is not None:  # a schedule that has not started has none
            profile.toggle_collection_dynamic(False, [self._torch.ProfilerActivity.CPU])  # noqa: FBT003 - torch names it differently

    def detach(self) -> None:
        """Record nothing in a forked process. Never raises."""
        if self._gc_ranges is not None:
            self._gc_ranges.drop()
        with contextlib.suppress(Exception):  # this thread was not recorded
            self._turn_off()
        if "stack" in self._target.config.contents:
            sys.setprofile(None)

    def stop(self) -> None:
        """Stop collecting; keep a window in which the loop ended, unless it had just started."""
        if self.schedule:
            self._empty = self._by_stage and self._window_just_began()
            actions = self._torch.ProfilerAction
            if self.profiler.current_action is actions.RECORD:
                self.profiler.current_action = actions.RECORD_AND_SAVE
        if self._gc_ranges is not None:
            self._gc_ranges.stop()
        self._run(self.profiler.stop)

    def require_its_thread(self) -> None:
        """Raise `RuntimeError` if this thread must not stop the profile: torch would end the process."""
        if self._thread not in (None, threading.get_ident()):
            raise RuntimeError("torch stops a profile only on the thread that started it: call stop on that thread")

    def _run(self, action: Callable[[], object]) -> None:
        def act() -> None:
            other_profiles.run_own_profile_action(action)

        if self._thread is None:
            control.run_on_control_thread(act)
        else:
            self.require_its_thread()
            act()

    def _window_just_began(self) -> bool:
        """Whether no mini-batch has run in the window that is open."""
        assert self.schedule is not None
        step: int = self.profiler.step_num
        done = step - self.schedule["skip_first"]
        quiet = self.schedule["wait"] + self.schedule["warmup"]
        cycle = quiet + self.schedule["active"]
        return step > 0 and done >= 0 and done % cycle == quiet

    def _suffix(self, profiler: Any) -> str:
        """Return the part of a name that separates files of one capture, as in verl."""
        if not (self._by_stage and self.schedule):
            return f"_part{self._written}" if self._written else ""
        skip, quiet = self.schedule["skip_first"], self.schedule["wait"] + self.schedule["warmup"]
        cycle = quiet + self.schedule["active"]
        last = max(profiler.step_num - 1, 0)
        first = skip + max(last - skip, 0) // cycle * cycle + quiet
        return f"_mb{last}" if first >= last else f"_mb{first}-{last}"

    def _save(self, profiler: Any) -> None:
        """Write one trace. Errors are caught: raised, they would leave torch.profiler between two states."""
        if self._empty:
            return
        folder = self._target.folder
        path = folder / f"{self.stem}{self._suffix(profiler)}.json.gz"
        self._written += 1
        try:
            export(profiler, path)
        except Exception as error:  # noqa: BLE001 - a full disk, a lost mount, whatever torch meets
            message = "rank %s: the trace %s was not written: %s%s"
            log.warning(message, self._target.rank, path, error, _free(folder, error))
            reason = f"the trace was not written: {error}"
            self._target.manifest.lose(self.account, reason)
            return
        self._target.manifest.add(
            path, step=self._step, stage=self._scope, start_unix_ns=self._start_ns, captures=[self.account]
        )


def export(profiler: Any, path: Path) -> None:
    """Write the trace of a torch profiler, whole or not at all. Raises what torch and the disk raise."""
    with written_whole(path) as partial, tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        # If torch cannot write, it prints to stderr and leaves a partial file.
        if not plain.exists() or not _has_its_end(plain):
            raise OSError(f"torch wrote only part of it: is the disk of {scratch} full (TMPDIR)?")
        with plain.open("rb") as text, gzip.open(partial, "wb") as packed:
            shutil.copyfileobj(text, packed, 1 << 20)


def _has_its_end(path: Path) -> bool:
    """Whether a trace ends as one does: its events closed, and after them nothing but names and plain values."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 4096, 0))
        return _END.search(stream.read()) is not None


def _free(folder: Path, error: Exception) -> str:
    """Describe the free space of the folder's disk; empty for other errors, or if it is unknown."""
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOSPC, errno.EDQUOT):
        return ""
    try:
        return f" ({shutil.disk_usage(folder).free / 1e6:.0f} MB are free there)"
    except OSError:
        return ""
