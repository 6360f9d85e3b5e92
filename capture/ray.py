"""Profiles of any Ray job: workers that can be profiled, a driver that starts and stops them, and nsys for both.

    @ray.remote
    @capture.ray.profiled(config)
    class Worker: ...

    for step in range(1, last + 1):
        with capture.ray.profiling(workers, step, plan, last=step == last):
            train(workers)

A worker that died or hangs costs a driver the time-out and a line in the log, never the run.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from capture.config import ProfilerConfig
from capture.extension import DistProfilerExtension
from capture.profiler import DistProfiler
from capture.steps import StepPlan
from capture.trigger import Request, Watch

log = logging.getLogger("capture")

C = TypeVar("C", bound=type)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 600.0
"""Traces are written while a driver waits for the stop; gigabytes take minutes."""

_METHODS = ("start_profile", "stop_profile", "step_profile", "__ray_shutdown__")


@dataclass(frozen=True, slots=True)
class Unreached:
    """A worker that did not do what it was asked: its index among the workers, and the reason."""

    worker: int
    problem: str


def profiled(config: ProfilerConfig | None, *, role: str | None = None) -> Callable[[C], C]:
    """Decorate a worker class to give every worker a `profiler` and the methods to start and stop it.

    It goes below `ray.remote`. The rank is the worker's own `rank`, else its argument of that name,
    else `$RANK`; a worker without any counts as rank 0. `role` names it in files, by default its class.
    """

    def decorate(worker: C) -> C:
        build: Any = worker.__init__  # type: ignore[misc] # the class itself, no instance

        @functools.wraps(build)
        def built(self: Any, *args: Any, **kwargs: Any) -> None:
            build(self, *args, **kwargs)
            if getattr(self, "profiler", None) is None:
                rank = _get_worker_rank(self, kwargs)
                name = worker.__name__ if role is None else role
                self.profiler = DistProfiler(rank, config, save_file_prefix=name)

        worker.__init__ = built  # type: ignore[misc] # as above
        for name in _METHODS:
            if not hasattr(worker, name):
                setattr(worker, name, getattr(DistProfilerExtension, name))
        return worker

    return decorate


def _get_worker_rank(worker: object, arguments: Mapping[str, Any]) -> int:
    """Get the rank that a worker was given in one of the usual ways."""
    for value in (getattr(worker, "rank", None), arguments.get("rank"), os.environ.get("RANK")):
        if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
            return int(value)
    log.warning("%s has no rank and counts as rank 0: give it an attribute or argument `rank`", type(worker).__name__)
    return 0


def start(
    workers: Any,
    step: int | None = None,
    *,
    role: str | None = "train",
    timeout_s: float = START_TIMEOUT_S,
    on_demand: Mapping[str, Any] | None = None,
) -> list[Unreached]:
    """Start profiling this step on all workers, and list those that failed to start.

    `workers`: actor handles, or one of verl's worker groups. `role`: the scope in file names. `on_demand`: the
    settings of a request (`capture.trigger`), which override the workers' configuration.
    """
    _log_driver_process()
    arguments: dict[str, Any] = {"role": role, "profile_step": step}
    if on_demand is not None:
        arguments["on_demand"] = dict(on_demand)
    return _call_workers(workers, "start_profile", timeout_s, arguments)


def stop(workers: Any, *, run_command: bool = True, timeout_s: float = STOP_TIMEOUT_S) -> list[Unreached]:
    """Stop the capture of all workers, which then have written it, and list those that failed to stop."""
    return _call_workers(workers, "stop_profile", timeout_s, {"run_command": run_command})


@contextmanager
def profiling(
    workers: Any,
    step: int,
    plan: StepPlan | None = None,
    *,
    last: bool = False,
    role: str | None = "train",
    timeout_s: float = STOP_TIMEOUT_S,
    watch: Watch | None = None,
) -> Iterator[None]:
    """Profile the body as one step if the plan includes it; without plan and watch, always.

    `last`: no step follows, so that a capture over several steps ends here. It also ends here if
    the body raises. `watch`: where to look for requests, on steps outside the plan.
    """
    if plan is None:
        plan = StepPlan((step,)) if watch is None else StepPlan()
    request = None if watch is None or step in plan else watch.due(step)
    if request is not None:
        with _on_demand(workers, step, request, role, timeout_s):
            yield
        return
    if plan.opens(step):
        start(workers, step, role=role, timeout_s=min(timeout_s, START_TIMEOUT_S))
    closes = plan.closes(step, last=last)
    try:
        yield
    except BaseException:
        closes = step in plan
        raise
    finally:
        if closes:
            final = plan.is_final(step, last=last)
            stop(workers, run_command=final, timeout_s=timeout_s)


@contextmanager
def _on_demand(workers: Any, step: int, request: Request, role: str | None, timeout_s: float) -> Iterator[None]:
    """Profile the body as one step that a request asks for."""
    start(workers, step, role=role, timeout_s=min(timeout_s, START_TIMEOUT_S), on_demand=request.settings())
    try:
        yield
    finally:
        stop(workers, run_command=False, timeout_s=timeout_s)


def _call_workers(workers: Any, method: str, timeout_s: float, arguments: dict[str, Any]) -> list[Unreached]:
    """Call a method of all workers and wait for them, together no longer than the time-out."""
    import ray

    refs, unreached = dict[Any, int](), list[Unreached]()
    for number, call in enumerate(_calls(workers, method)):
        try:
            refs[call(**arguments)] = number
        except Exception as error:  # noqa: BLE001 - a worker that died, or has no such method
            unreached.append(_unreached(number, method, error))
    done, late = ray.wait([*refs], num_returns=len(refs), timeout=timeout_s) if refs else ([], [])
    for ref in done:
        try:
            ray.get(ref)
        except Exception as error:  # noqa: BLE001 - whatever its worker died of
            unreached.append(_unreached(refs[ref], method, error))
    waited = f"no answer within {timeout_s:g} s"
    unreached += [_unreached(refs[ref], method, waited) for ref in late]
    return sorted(unreached, key=lambda one: one.worker)


def _calls(workers: Any, method: str) -> list[Callable[..., Any]]:
    """List functions that call the method on each worker and return a reference to its answer."""
    single = getattr(workers, "_execute_remote_single_worker", None)
    if single is not None:  # a worker group of verl
        return [functools.partial(single, worker, _named_by(workers, worker, method)) for worker in workers.workers]
    handles: Iterable[Any] = workers if isinstance(workers, Iterable) else [workers]
    return [functools.partial(_remote, handle, method) for handle in handles]


def _named_by(group: Any, worker: Any, method: str) -> str:
    """Get the worker's name of a group method: roles that share a worker have a prefix each."""
    if hasattr(worker, method) or not hasattr(group, method):
        return method
    prefixed = type(getattr(group, method)).__name__  # verl creates a class of that name per method
    return prefixed if hasattr(worker, prefixed) else method


def _remote(handle: Any, method: str, **arguments: Any) -> Any:
    return getattr(handle, method).remote(**arguments)


def _unreached(number: int, method: str, problem: object) -> Unreached:
    kind = f"{type(problem).__name__}: " if isinstance(problem, Exception) else ""
    text = f"{kind}{problem}".strip().partition("\n")[0]
    log.warning("worker %s: %s: %s; the training goes on", number, method, text)
    return Unreached(number, text)


@functools.cache
def _log_driver_process() -> None:
    """Say once where the driver runs: its own report is found by host and process."""
    log.info("the driver is process %s on %s", os.getpid(), socket.gethostname())


def nsight_runtime_env(
    options: Mapping[str, Any], plan: StepPlan | None = None, *, stages: int | None = None
) -> dict[str, Any]:
    """`{"nsight": …}` to merge into the `runtime_env` of workers or of the controller; `{}` where nsys is missing.

    Options without a value are dropped: Ray would pass `--x=None`. With `capture-range:
    cudaProfilerApi` and no end given, the end is after exactly as many ranges as the plan makes, so
    that nsys writes its reports then and not when Ray kills the process. `stages`: how many annotated
    calls a step makes, where `discrete` gives each a range. Without a plan nothing is added: the
    controller opens no range and is recorded as a whole.
    """
    if plan is not None and not plan.steps:
        return {}
    nsys, python = shutil.which("nsys"), shutil.which("python")
    if nsys is None:
        # Ray does not report this: the actor waits for a worker that never starts.
        log.warning("nsys is not on the PATH of %s: processes start without it", socket.gethostname())
        return {}
    if python is None or os.path.dirname(python) != os.path.dirname(sys.executable):  # noqa: PTH120 - links are not to be followed
        message = (
            "Ray starts a process under nsys with the first python on the PATH, %s, not with %s: "
            'add "env_vars": {"PATH": "%s:${PATH}"} to the same runtime_env'
        )
        log.warning(message, python, sys.executable, os.path.dirname(sys.executable))  # noqa: PTH120 - as above
    nsight_options = {str(key): value for key, value in options.items() if value is not None}
    if "output" in nsight_options:  # Ray adds `-o` in any case, and nsys refuses both
        name = nsight_options.pop("output")
        nsight_options.setdefault("o", os.path.basename(str(name)))  # noqa: PTH119 - text
        log.warning(
            "nsight option output: Ray writes reports to logs/nsight of its session, as %s", nsight_options["o"]
        )
    by_range = nsight_options.get("capture-range") == "cudaProfilerApi"
    if plan is not None and by_range and "capture-range-end" not in nsight_options:
        nsight_options["capture-range-end"] = f"repeat-shutdown:{plan.captures(stages)}"
    return {"nsight": nsight_options}
