"""Switch to capture: importing this replaces verl's profiler, timers and marks in the process.

    VERL_USE_EXTERNAL_MODULES=capture.verl python -m verl.trainer.main_ppo …
    VERL_USE_EXTERNAL_PLUGINS=capture bash script_that_sets_the_other_variable.sh
    python -m capture.verl verl.trainer.main_ppo …

verl imports the modules of the first variable, and loads the plugins that the second names (`capture.plugin`), in
every process, before its workers look anything up; modules that did so earlier are patched too. verl's
configuration stays unchanged. The third form sets the first variable. Each passes its variable to the processes
that Ray starts. Failures here are logged, and verl's own profiler stays.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeVar

import capture
from capture import driver, on_signal, verl_plugins
from capture.profiler import DistProfiler

log = logging.getLogger("capture")

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "VERL_USE_EXTERNAL_MODULES"
"""verl imports the modules that it names, separated by commas, in every process."""

_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""In this variable Ray gives a submitted job its configuration, as JSON."""

_HOMES = {
    "verl.utils.profiler.profile": (
        *("DistProfiler", "DistProfilerExtension", "build_rollout_dist_profiler"),
        *("mark_annotate", "mark_end_range", "mark_start_range"),
    ),
    "verl.utils.profiler.config": (
        *("ProfilerConfig", "NsightToolConfig", "TorchMemoryToolConfig"),
        *("TorchProfilerToolConfig", "TorchProfilerScheduleConfig"),
    ),
    "verl.utils.profiler.performance": ("marked_timer", "simple_timer"),
    "verl.utils.profiler.nvtx_profile": (*("mark_annotate", "mark_end_range", "mark_start_range", "marked_timer"),),
}
"""Modules that define the replaced objects, and their names; older versions of verl lack some."""

_ASKED_TOO = ("verl.utils.profiler.torch_profile", "verl.utils.profiler.torch_memory_profile")
"""verl's own tools, imported before the switch so that verl's profiler can still use them after it."""

_originals: dict[str, Any] = {}
_replaced: list[tuple[Any, str, Any]] = []
"""Replaced objects: (module, name, original)."""


_finders: list[driver.FollowWhenImported] = []


_decides_only: ContextVar[bool] = ContextVar("_decides_only", default=False)
"""Whether the profiler being made is one that a rollout server asks whether to record: its engine does the recording."""


class SwitchedProfiler(DistProfiler):
    """Profiler that replaces verl's; it also reports stages to RL-Insight if the run enables that."""

    def _set_up(self, settings: Any) -> None:
        if not _decides_only.get():
            super()._set_up(settings)
            if self._backend.can_record:
                _tell_that_it_is_active()

    @classmethod
    def annotate(
        cls,
        message: str | None = None,
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
        **kwargs_outer: Any,
    ) -> Callable[[F], F]:
        """Decorate a method as `DistProfiler.annotate` does."""
        mark = super().annotate(message, color, domain, category, **kwargs_outer)
        if os.environ.get("VERL_RL_INSIGHT_ENABLE") != "1":
            return mark
        return lambda function: _report_to_rl_insight(mark(function), kwargs_outer.get("role"))


@functools.cache
def _tell_that_it_is_active() -> None:
    """Log once whose profiler this process has: as a warning, because verl hides lower levels."""
    version = getattr(sys.modules.get("verl"), "__version__", "of an unknown version")
    log.warning("capture replaces verl's profiler in this process (verl %s)", version)


def _deciding(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's function that makes a rollout server's profiler, without a tool: the server never starts it."""

    @functools.wraps(build)
    def built(*args: Any, **kwargs: Any) -> Any:
        token = _decides_only.set(True)
        try:
            return build(*args, **kwargs)
        finally:
            _decides_only.reset(token)

    return built


def _report_to_rl_insight(function: F, role: str | None) -> F:
    """Report the calls of a function to RL-Insight, as verl does."""
    logger = getattr(import_module("verl.utils.tracking"), "RLInsightLogger", None)
    if logger is None:
        return function

    @functools.wraps(function)
    def report_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        profiler = getattr(self, "profiler", None)
        if profiler is None:
            return function(self, *args, **kwargs)
        state = role or function.__qualname__
        with logger.trace_state(state, state_lane_id=f"rank_{profiler.rank}"):
            return function(self, *args, **kwargs)

    return report_and_call  # type: ignore[return-value] # as F in all that it takes and gives


def active() -> bool:
    """Whether capture replaces verl's profiler in this process."""
    return bool(_replaced)


def original(name: str) -> Any:
    """Return verl's original object of this name. Raises `KeyError` for other names."""
    return _originals[name]


def install() -> bool:
    """Replace verl's profiler; return whether capture replaces it now. Never raises."""
    if active():
        return True
    try:
        _replace_all(_found_in_verl())
        _hand_to_ray()
        _finders.append(driver.install())
        on_signal.install()
    except Exception as error:  # noqa: BLE001 - a verl that is built otherwise, or none at all
        _put_back()
        message = "capture cannot replace verl's profiler, which stays in use: %s: %s"
        log.warning(message, type(error).__name__, error)
    return active()


def uninstall() -> None:
    """Put back what stood in verl, and wherever else it was looked up, before `install`."""
    on_signal.uninstall()
    _put_back()


def _put_back() -> None:
    while _finders:
        driver.uninstall(_finders.pop())
    while _replaced:
        module, name, before = _replaced.pop()
        setattr(module, name, before)
    _originals.clear()


def _found_in_verl() -> dict[int, Any]:
    """Return replacements for objects of verl, by `id` of the object."""
    import_module("verl.utils.profiler")
    for name in _ASKED_TOO:
        with suppress(ImportError):
            import_module(name)
    replacements: dict[int, Any] = {}
    for home, names in _HOMES.items():
        try:
            module = import_module(home)
        except ImportError:  # no nvtx: there are no ranges of it to replace
            continue
        for name in names:
            if name in vars(module):
                verls = vars(module)[name]
                _originals.setdefault(name, verls)
                replacements[id(verls)] = _make_verl_replacement(name, verls)
    if "DistProfiler" not in _originals:
        raise ImportError("verl.utils.profiler.profile has no DistProfiler")
    config = import_module("verl.utils.config")
    if hasattr(config, "omega_conf_to_dataclass"):
        convert = _originals["omega_conf_to_dataclass"] = config.omega_conf_to_dataclass
        replacements[id(convert)] = _with_the_global_block(convert)
    return replacements


def _make_verl_replacement(name: str, verls: Any) -> Any:
    """Return the replacement for an object of verl."""
    if name == "build_rollout_dist_profiler":
        return _deciding(verls)
    return SwitchedProfiler if name == "DistProfiler" else getattr(capture, name)


def _replace_all(replacements: dict[int, Any]) -> None:
    """Replace objects of verl in all loaded modules, under any name."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", __name__) == __name__:
            continue
        names = getattr(module, "__dict__", {})
        for name, value in [*names.items()]:
            if id(value) in replacements:
                _replaced.append((module, name, value))
                setattr(module, name, replacements[id(value)])


def _with_the_global_block(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Verl's conversion of a configuration; a role's profiler gets the settings of the global block as well.

    verl gives a worker its role's block only: `context` and `stacks` of torch_memory are in the other one.
    """

    @functools.wraps(convert)
    def converted(config: Any, *args: Any, **kwargs: Any) -> Any:
        result = convert(config, *args, **kwargs)
        if isinstance(result, capture.ProfilerConfig):
            try:
                _add_global(config, result)
            except Exception as error:  # noqa: BLE001 - a configuration of another form
                log.warning("cannot read global_profiler, so settings of torch_memory in it have no effect: %s", error)
        return result

    return converted


def _add_global(config: Any, role_config: capture.ProfilerConfig) -> None:
    """Give a role's profiler the tools' settings of the run, and warn once of settings without effect."""
    root = config._get_root() if hasattr(config, "_get_root") else None  # noqa: SLF001 - OmegaConf has no other way up
    if root is None or "global_profiler" not in root:
        return
    from capture.run_config import read_global

    shared = read_global(root).tool_config
    if role_config.global_tool_config is None and shared:
        object.__setattr__(role_config, "global_tool_config", shared)


def _hand_to_ray() -> None:
    """Let the processes that Ray starts for this job, on any node, import this module too."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "init"):
        return
    start = ray.init

    @functools.wraps(start)
    def init(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            kwargs["runtime_env"] = _with_variable(kwargs.get("runtime_env"))
        return start(*args, **kwargs)

    _replaced.append((ray, "init", start))
    ray.init = init


def _with_variable(runtime_env: Any) -> dict[str, Any]:
    """Extend a runtime environment so that its processes switch as this one did.

    Variables that a submitted job sets are left to it: Ray refuses to start if both set them.
    """
    settings = {} if runtime_env is None else dict(runtime_env)
    variables = dict(settings.get("env_vars") or {})
    of_job = _variables_of_job()
    plugins = os.environ.get(verl_plugins.VARIABLE, "")
    if verl_plugins.is_named_in(plugins):
        if verl_plugins.VARIABLE not in of_job:
            variables.setdefault(verl_plugins.VARIABLE, plugins)
    elif VARIABLE not in of_job:
        variables[VARIABLE] = _named(variables.get(VARIABLE) or os.environ.get(VARIABLE, ""))
    if on_signal.DRIVER not in of_job:
        variables[on_signal.DRIVER] = on_signal.own_name()
    return {**settings, "env_vars": variables} if variables else settings


def _variables_of_job() -> set[str]:
    """Collect the variables that a submitted job sets for all of its processes; empty for other jobs."""
    with suppress(ValueError, AttributeError):
        job = json.loads(os.environ.get(_JOB) or "{}")
        return set((job.get("runtime_env") or {}).get("env_vars") or {})
    return set()


def _named(modules: str) -> str:
    """List the modules that verl imports, with this one added."""
    names = [name for name in modules.split(",") if name]
    return ",".join(names if "capture.verl" in names else [*names, "capture.verl"])


def main(arguments: Sequence[str]) -> int:
    """Run a module as `python -m` does, with the switch on: `verl.trainer.main_ppo key=value …`."""
    if not arguments or arguments[0].startswith("-"):
        is_help = arguments[:1] in (["-h"], ["--help"])
        usage = "usage: python -m capture.verl MODULE [ARGUMENT…]\n"
        example = "example: python -m capture.verl verl.trainer.main_ppo global_profiler.tool=torch …\n"
        (sys.stdout if is_help else sys.stderr).write(usage + example)
        return 0 if is_help else 2
    import runpy

    on_signal.install()
    os.environ[VARIABLE] = _named(os.environ.get(VARIABLE, ""))
    sys.argv = [*arguments]
    import_module("capture.verl")
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
    install()
