"""Worker processes: parallel work, isolated so that one source cannot harm the others.

The pool is our own rather than an executor's: a killed worker identifies its source, the others keep theirs, and an
interrupt stops them at once. Each worker watches its driver process and exits when that ends, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import connection, current_process, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NoReturn

from tracekit.engine import Advance, R, Work
from tracekit.engine.attempts import (
    MEMORY_HINT,
    Attempt,
    Message,
    attempt_call,
    make_internal_failure,
    make_oom_attempt,
    throttle_progress,
)
from tracekit.model.records import dataclass
from tracekit.model.system.temporaries import new_folder
from tracekit.model.trace import Failure, Source

_LOG = logging.getLogger("tracekit")

_GRACE_S = 1.0
"""Time a stopped worker gets to remove its temporary files before it is killed."""

_SOCKET_FOLDER_BYTES = 80
"""Longest path of a folder for sockets: Linux limits it to 107 bytes including the socket's name."""

_LOOK_EVERY_S = 1.0
"""Polling interval for the parent's end where the kernel does not report it."""


@dataclass(eq=False, slots=True)
class _WorkerProcess:
    """A worker process and our end of the pipe to it."""

    process: BaseProcess
    connection: Connection[Any, Any]


class Processes(Generic[R]):
    """A pool of worker processes; a source that kills its worker is identified."""

    def __init__(self, function: Work[R]) -> None:
        self._payload = pickle.dumps(function)
        self._preload = _list_preload_modules(function)
        self._idle: list[_WorkerProcess] = []
        self._busy: dict[int, _WorkerProcess] = {}
        self._sources: dict[int, Source] = {}

    def start(self, index: int, source: Source) -> None:
        """Start the call for `source`, skipping idle workers that have died."""
        while True:
            fresh = not self._idle
            worker = self._hire() if fresh else self._idle.pop()
            self._busy[index], self._sources[index] = worker, source
            try:
                worker.connection.send(source)
                return
            except OSError:
                if fresh:  # wait() will find it dead and report it
                    return
                _stop_workers([worker])

    def _hire(self) -> _WorkerProcess:
        """Start a worker that does not hold an end of another worker's pipe."""
        others = [worker.connection for worker in (*self._idle, *self._busy.values())]
        return _start_worker(self._payload, self._preload, others)

    def wait(self) -> list[tuple[int, Message[R]]]:
        """Wait for messages of busy workers, one each; a dead worker is a lost attempt."""
        ready = set(connection.wait([worker.connection for worker in self._busy.values()]))
        messages: list[tuple[int, Message[R]]] = []
        for index, worker in list(self._busy.items()):
            if worker.connection not in ready:
                continue
            message, alive = self._hear(index, worker)
            messages.append((index, message))
            if not isinstance(message, int):
                del self._busy[index], self._sources[index]
                if alive and not message.lost:
                    self._idle.append(worker)
                else:
                    _stop_workers([worker])
        return messages

    def _hear(self, index: int, worker: _WorkerProcess) -> tuple[Message[R], bool]:
        """Receive a worker's next message; return it and whether the worker is still alive."""
        try:
            raw = worker.connection.recv_bytes()
        except (EOFError, OSError):
            worker.process.join(_GRACE_S)
            problem = f"the process that read it {_describe_exit(worker.process.exitcode)}"
            failure = Failure(self._sources[index].name, problem, MEMORY_HINT, "node-lost")
            return Attempt(None, failure, lost=True), False
        try:
            message: Message[R] = pickle.loads(raw)  # noqa: S301 - written by our own worker
        except Exception as error:  # noqa: BLE001 - a result that cannot be rebuilt, e.g. for memory
            return make_internal_failure(self._sources[index], error), True
        return message, True

    def shrink(self) -> None:
        """Stop idle workers."""
        _stop_workers(self._idle)
        self._idle = []

    def close(self) -> None:
        """Stop every worker; kill those that do not exit within the grace period."""
        _stop_workers([*self._idle, *self._busy.values()])
        self._idle, self._busy = [], {}


def _start_worker(payload: bytes, preload: list[str], open_pipes: Sequence[Connection[Any, Any]]) -> _WorkerProcess:
    """Start a worker process that does not run the program's main module.

    `open_pipes` are our ends of the pipes to other workers. A forked worker closes its copies; otherwise those workers would
    not notice that this process has ended.
    A worker forked from this process has everything imported, but forking is not safe once there are threads. Then it is
    forked from a fork server that imports everything once, or imports everything itself where there is no fork.
    """
    method = _choose_start_method()
    context: Any = get_context(method)
    driver_end, worker_end = context.Pipe()
    inherited = (driver_end, *open_pipes) if method == "fork" else ()
    args = (worker_end, payload, _LOG.level, dict(os.environ), os.getpid(), inherited)
    process = context.Process(target=run_worker_loop, args=args, daemon=True)
    with _hide_main_module():
        if method == "forkserver":
            _start_fork_server(preload)
        with _block_interrupts():
            process.start()
    worker_end.close()
    return _WorkerProcess(process, driver_end)


def _choose_start_method() -> str:
    """Choose the start method: fork if this process has one thread (as on the command line), else forkserver or spawn."""
    tasks = Path("/proc/self/task")
    if sys.platform == "linux" and tasks.is_dir() and len(list(tasks.iterdir())) == 1:
        return "fork"
    return "forkserver" if "forkserver" in get_all_start_methods() else "spawn"


def _start_fork_server(preload: list[str]) -> None:
    """Start the fork server if it is not running yet."""
    from multiprocessing import forkserver

    _claim_socket_folder()
    # A BLAS pool would be a thread in the server, which forks afterwards, and one pool per worker too many.
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        forkserver.set_forkserver_preload(preload)
        with _block_interrupts():
            forkserver.ensure_running()
    finally:
        if threads is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = threads


def _claim_socket_folder() -> None:
    """Make multiprocessing keep its socket in our temporary folder, which the next run removes if this one is killed."""
    options = getattr(current_process(), "_config", None)  # what util.get_temp_dir() reads
    if not isinstance(options, dict) or options.get("tempdir"):
        return
    stack = contextlib.ExitStack()
    folder = str(stack.enter_context(new_folder()))
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES:
        stack.close()
        return
    options["tempdir"] = folder
    atexit.register(stack.close)


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block Ctrl-C here and in children started meanwhile, so that only this process handles it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """Hide the main module while processes start, which would run it again.

    A script without an `if __name__ == "__main__"` guard would otherwise start its own analysis in every worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def run_worker_loop(
    pipe: Connection[Any, Any],
    payload: bytes,
    log_level: int,
    environment: Mapping[str, str],
    driver: int,
    inherited: Sequence[Connection[Any, Any]],
) -> None:
    """Run the worker loop: answer each source from `pipe` with its attempt, until the pipe closes or `driver` ends."""
    for copy in inherited:
        copy.close()
    # The fork server still has the environment of the time it started.
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    threading.Thread(target=_exit_with_driver, args=(driver, os.getppid()), daemon=True).start()
    if log_level:  # the parent shows its log, so the worker does too
        logging.basicConfig(format="%(message)s")
        _LOG.setLevel(log_level)

    def tell(count: int) -> None:
        try:
            pipe.send(count)
        except OSError:  # the driver is gone
            raise SystemExit(1) from None

    def call(source: Source, advance: Advance) -> Any:
        # Unpickled within the attempt: a function that cannot be imported here becomes a failure.
        return pickle.loads(payload)(source, advance)  # noqa: S301 - written by our own parent

    while True:
        try:
            source = pipe.recv()
        except (EOFError, OSError):
            return
        _send_attempt(pipe, source, attempt_call(call, source, throttle_progress(tell)))


def _send_attempt(pipe: Connection[Any, Any], source: Source, ended: Attempt[Any]) -> None:
    """Send an attempt; a value that cannot be sent becomes a failure."""
    try:
        pipe.send(ended)
    except OSError:
        raise SystemExit(1) from None
    except MemoryError:
        pipe.send(make_oom_attempt(source))
    except Exception as error:  # noqa: BLE001 - pickle raises many kinds
        pipe.send(make_internal_failure(source, error))


def _exit_on_sigterm(*_: object) -> NoReturn:
    """Exit by exception, which removes temporary files on the way out."""
    raise SystemExit(128 + signal.SIGTERM)


def _exit_with_driver(driver: int, parent: int) -> None:
    """Terminate this process once `driver` or our `parent` has ended; kill it after the grace period.

    Runs in a thread. PR_SET_PDEATHSIG would fire when the *thread* that started this process ends, and workers forked from
    a fork server are not children of the driver.
    """
    ends: list[Any] = []
    starter = parent_process()
    if starter is not None:
        ends.append(starter.sentinel)
    is_running = True
    try:
        ends.append(os.pidfd_open(driver))
    except ProcessLookupError:
        is_running = False
    except (AttributeError, OSError):  # needs Linux 5.3
        pass
    while is_running and os.getppid() == parent:
        is_running = not connection.wait(ends, _LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _stop_workers(workers: list[_WorkerProcess]) -> None:
    """Terminate processes, and kill those that do not exit within the grace period."""
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _describe_exit(exitcode: int | None) -> str:
    """Describe how a process ended, as the predicate of a sentence."""
    if exitcode is None or exitcode >= 0:
        return f"ended with status {exitcode}" if exitcode is not None else "stopped answering"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"was killed ({name}{', usually by the OOM killer' if name == 'SIGKILL' else ''})"


def _list_preload_modules(function: Callable[..., Any]) -> list[str]:
    """List modules to import once for all workers: the function's own, and those of functions it wraps."""
    modules: list[str] = []
    functions = [function]
    while functions:
        function = functions.pop()
        if isinstance(function, partial):
            functions += [function.func, *(argument for argument in function.args if callable(argument))]
            continue
        module = str(getattr(function, "__module__", None) or "__main__")
        if module not in ("__main__", *modules):
            modules.append(module)
    return modules
