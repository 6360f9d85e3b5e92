"""NeMo-RL's profiling by environment variables, which are read when needed, not at import.

`NRL_NSYS_PROFILE_STEP_RANGE=start:stop` (from 1, stop exclusive), `NRL_NSYS_WORKER_PATTERNS=*policy*,*vllm*`
and `NRL_NSYS_EXTRA_OPTIONS={"gpu-metrics-devices": "all"}`. Values that NeMo-RL refuses are refused here.
"""

from __future__ import annotations

import atexit
import fnmatch
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from capture.marks import mark_annotate

log = logging.getLogger("capture")

P = ParamSpec("P")
R = TypeVar("R")

RANGE = "NRL_NSYS_PROFILE_STEP_RANGE"
PATTERNS = "NRL_NSYS_WORKER_PATTERNS"
EXTRA = "NRL_NSYS_EXTRA_OPTIONS"


class Policy(Protocol):
    """Interface of the object that drives the workers of a policy."""

    def start_gpu_profiling(self) -> None:
        """Open the capture range in every worker."""

    def stop_gpu_profiling(self) -> None:
        """Close it."""


_profiled: list[Policy] = []
"""Policies whose range is open."""


def step_range(environment: Mapping[str, str] | None = None) -> range | None:
    """Get the steps to profile; None if the variables are not set.

    Raises `AssertionError` if only one of the two is set or the range has no step, `ValueError`
    if it is not a range.
    """
    environment = os.environ if environment is None else environment
    text, patterns = environment.get(RANGE, ""), environment.get(PATTERNS, "")
    if bool(text) != bool(patterns):
        raise AssertionError(f"set both {PATTERNS} and {RANGE}, or neither")
    if not text:
        return None
    try:
        first, stop = (int(part) for part in text.split(":"))
    except ValueError as error:
        raise ValueError(f"{RANGE}={text!r} must be start:stop, two whole numbers") from error
    if not 1 <= first < stop:
        raise AssertionError(f"{RANGE}={text!r} must be start:stop with 1 <= start < stop")
    return range(first, stop)


def nsight_config(worker: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make `{"nsight": …}` for a worker whose name matches one of the patterns, else `{}`.

    The extra options override NeMo-RL's own. Raises what `step_range` raises, and `ValueError` for
    extra options that are not a JSON object.
    """
    environment = os.environ if environment is None else environment
    if step_range(environment) is None:
        return {}
    patterns = [pattern.strip() for pattern in environment[PATTERNS].split(",")]
    if not any(fnmatch.fnmatch(worker, pattern) for pattern in patterns if pattern):
        return {}
    nemo_options = {
        "t": "cuda,nvtx",
        "o": f"'{worker}_{environment[RANGE]}_%p'",
        "stop-on-exit": "true",
        "s": "none",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "stop",
        "cuda-graph-trace": "node",
    }
    return {"nsight": nemo_options | _extra_options(environment)}


def vllm_tp_nsight_config(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make `{"nsight": …}` for tensor-parallel workers that vLLM starts by itself; `{}` without profiling.

    vLLM's own options record from the start and keep the report open until the worker is killed, so no report
    is written. These wait for the capture range, as NeMo-RL's do, and end with it. They belong where vLLM makes
    the runtime environment of its Ray workers (`ray_workers_use_nsight`), which may be a process of its own: a plugin
    of vLLM's group `vllm.general_plugins` reaches it. Raises what `nsight_config` raises.
    """
    environment = os.environ if environment is None else environment
    if step_range(environment) is None:
        return {}
    nemo_options = {
        "t": "cuda,cudnn,cublas,nvtx",
        "o": f"'vllm_tp_worker_{environment[RANGE]}_%p'",
        "stop-on-exit": "true",
        "s": "none",
        "capture-range": "cudaProfilerApi",
        "wait": "primary",
        "capture-range-end": "stop",
    }
    return {"nsight": nemo_options | _extra_options(environment)}


def _extra_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Get the options that override NeMo-RL's own. Raises `ValueError` if they are not a JSON object."""
    try:
        extra = json.loads(environment.get(EXTRA) or "{}")
    except ValueError as error:
        raise ValueError(f"{EXTRA} is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ValueError(f"{EXTRA} must be a JSON object")  # noqa: TRY004 - a bad value of a variable
    return {key: value for key, value in extra.items() if value is not None}


def maybe_gpu_profile_step(policy: Policy, step: int) -> None:
    """Open the policy's capture range with the first step of `step_range`, close it after the last.

    Call it before every step. A range that is still open at interpreter exit is closed then, and only
    then. Errors of the policy are logged. Raises what `step_range` raises.
    """
    steps = step_range()
    if steps is None:
        return
    open_now = any(profiled is policy for profiled in _profiled)
    if step in steps and not open_now:
        if not _profiled:
            atexit.unregister(_close_open_policies)
            atexit.register(_close_open_policies)
        _profiled.append(policy)
        _safely(policy.start_gpu_profiling, step)
    elif step not in steps and open_now:
        _forget_policy(policy)
        _safely(policy.stop_gpu_profiling, step)


def _forget_policy(policy: Policy) -> None:
    _profiled[:] = [profiled for profiled in _profiled if profiled is not policy]


def _close_open_policies() -> None:
    """Close what training left open: it ended within the range."""
    while _profiled:
        _safely(_profiled.pop().stop_gpu_profiling, None)


def _safely(action: Callable[[], None], step: int | None) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - profiling is never worth the training
        name = getattr(action, "__name__", "profiling")
        log.warning("step %s: %s failed, the training goes on: %s", step, name, error)


def wrap_with_nvtx_name(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a worker's method to run in an NVTX range, closed even if it raises."""
    return mark_annotate(name)
