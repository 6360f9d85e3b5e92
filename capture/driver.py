"""Let trainers follow requests: after the check for a configured step, they check for a request.

A trainer is a class with `_start_profiling` and `_stop_profiling`, in a module with "trainer" in its name: those of verl,
of VeRL-Omni, and classes derived from them. For a class in another module, call `follow`.
A trainer starts and stops its worker groups together, so all ranks are profiled in the same step. Configured steps
ignore requests. Rollout servers take no requests: they decide at their start whether they can be profiled.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

from capture.warn import warn

C = TypeVar("C")

_START, _STOP = _METHODS = ("_start_profiling", "_stop_profiling")
_WATCH, _ASKED, _DEPTH = "_capture_watch", "_capture_request", "_capture_depth"
_FOLLOWS = "_capture_follows"

_followed: list[tuple[type, str, Any]] = []
"""Replaced methods: (class, name, original), with None as the original of an inherited method."""

_said: set[str] = set()
"""Problems that were logged; a trainer repeats the same problem in every step."""


class FollowWhenImported(MetaPathFinder):
    """Let trainers follow requests when their modules are imported, without importing any."""

    def __init__(self) -> None:
        self._local = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own specification with a wrapped loader; None for modules without trainers."""
        del path, target
        if not _may_hold_trainers(name) or getattr(self._local, "looking", False):
            return None
        self._local.looking = True
        try:
            spec = find_spec(name)
        finally:
            self._local.looking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """A loader that looks for trainers in the module after loading it, and then restores the module's own loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _follow_in(module)

    def __getattr__(self, name: str) -> Any:  # get_source and others of the wrapped loader
        return getattr(self._loader, name)


def install() -> FollowWhenImported:
    """Install a finder for modules imported from now on; trainers that are already imported follow at once."""
    finder = FollowWhenImported()
    sys.meta_path.insert(0, finder)
    for name, module in [*sys.modules.items()]:
        if _may_hold_trainers(name):
            _follow_in(module)
    return finder


def uninstall(finder: FollowWhenImported) -> None:
    """Restore modules and trainers."""
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    while _followed:
        trainer, name, original = _followed.pop()
        if original is None:
            delattr(trainer, name)
        else:
            setattr(trainer, name, original)


def _may_hold_trainers(name: str) -> bool:
    """Whether a module may have trainers, by its name: there are thousands of modules."""
    return "trainer" in name


def _follow_in(module: Any) -> None:
    """Let the trainers that a module defines follow requests. Never raises."""
    try:
        for value in [*vars(module).values()]:
            remote = getattr(value, "__ray_metadata__", None)  # the class below `ray.remote`
            found = getattr(remote, "modified_class", value)
            for one in _own_classes(found, module):
                follow(one)
    except Exception as error:  # noqa: BLE001 - the import of a user's module must not fail
        _warn_driver_once(f"no request is followed in {module}: {type(error).__name__}: {error}")


def _own_classes(candidate: Any, module: Any) -> Iterator[type]:
    """Yield a class and its bases, if this module defines them."""
    for one in candidate.__mro__ if isinstance(candidate, type) else ():
        if one.__module__ == module.__name__:
            yield one


def follow(trainer: C) -> C:
    """Let a class of trainers check for requests where it starts and stops profiles; return the class.

    A class without these methods, or with coroutines, stays unchanged.
    """
    methods = [getattr(trainer, name, None) for name in _METHODS]
    if not isinstance(trainer, type) or any(map(_is_unfit, methods)):
        return trainer
    actions = (_guarded(_begin), _guarded(_end))
    for name, method, action in zip(_METHODS, methods, actions, strict=True):
        if getattr(method, _FOLLOWS, False):  # its own or an inherited method already follows
            continue
        _followed.append((trainer, name, vars(trainer).get(name)))
        setattr(trainer, name, _with_request(method, action, first=name == _STOP))
    return trainer


def _is_unfit(method: Any) -> bool:
    return not callable(method) or inspect.iscoroutinefunction(method)


def _with_request(method: Any, action: Callable[[Any], None], *, first: bool) -> Any:
    """Wrap a method to run the action before or after it, once even if the method calls its base's."""

    @functools.wraps(method)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = getattr(self, _DEPTH, 0)
        setattr(self, _DEPTH, depth + 1)
        try:
            if first and not depth:
                action(self)
            result = method(self, *args, **kwargs)
            if not first and not depth:
                action(self)
            return result
        finally:
            setattr(self, _DEPTH, depth)

    setattr(both, _FOLLOWS, True)
    return both


def _guarded(action: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap an action to log its errors instead of raising them in the trainer."""

    def run(trainer: Any) -> None:
        try:
            action(trainer)
        except Exception as error:  # noqa: BLE001 - profiling never ends a trainer
            _warn_driver_once(f"request for a profile not followed: {type(error).__name__}: {error}")

    return run


def _warn_driver_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warn("%s", text)


def _begin(trainer: Any) -> None:
    """Start profiling on the workers if a request is due and the step is not a configured one."""
    block, step = trainer.config.global_profiler, step_of(trainer)
    watch = getattr(trainer, _WATCH, None)
    if watch is None:
        from capture import on_signal
        from capture.trigger import Watch

        watch = Watch(block.save_path or "outputs/profile", alone=True)
        setattr(trainer, _WATCH, watch)
        on_signal.announce_watched_folder(watch.folder)
        _check_trainer_config(trainer)
        return  # a request older than the first step precedes the run
    if step in (block.steps or ()):
        return
    request = watch.due(step)
    if request is None:
        return
    from capture import ray

    groups = _groups(trainer)
    setattr(trainer, _ASKED, groups)
    _warn_of_absent_ranks(groups, request.ranks or ())
    for role, group in groups:
        ray.start(group, trainer.global_steps, role=role, on_demand=request.settings())


def step_of(trainer: Any) -> int:
    """Return the configuration's number of this step.

    Fully asynchronous training counts parameter versions: the current step makes the next version, and may take
    several updates. Files are still named by `global_steps`, as in verl.
    """
    version: int | None = getattr(trainer, "current_param_version", None)
    steps: int = trainer.global_steps
    return steps if version is None else version + 1


def _warn_of_absent_ranks(groups: Sequence[tuple[str | None, Any]], ranks: Sequence[int]) -> None:
    """Log which ranks of a request no group has, unless a group has no known size."""
    sizes = [getattr(group, "world_size", None) for _, group in groups]
    last = max((size for size in sizes if isinstance(size, int)), default=0) - 1
    absent = [rank for rank in ranks if rank > last]
    if absent and None not in sizes:
        _warn_driver_once(f"request for a profile: ranks {absent} do not exist: the run has ranks 0 to {last}")


def _check_trainer_config(trainer: Any) -> None:
    """Log the settings of the run without effect; the trainer knows the number of steps."""
    if not isinstance(trainer.config, Mapping):
        return
    from capture.run_config import warn_of

    counts_steps = getattr(trainer, "current_param_version", None) is None
    total = getattr(trainer, "total_training_steps", None) if counts_steps else None
    warn_of(trainer.config, total if isinstance(total, int) else None)


def _end(trainer: Any) -> None:
    """Stop profiling on the workers that a request started."""
    groups = getattr(trainer, _ASKED, ())
    setattr(trainer, _ASKED, ())
    if groups:
        from capture import ray

        for _, group in groups:
            ray.stop(group, run_command=False)


def _groups(trainer: Any) -> list[tuple[str | None, Any]]:
    """Return (role in file names, worker group) for each group that verl profiles, each group once."""
    named: list[tuple[str | None, Any]] = [("train", trainer.actor_rollout_wg)]
    if getattr(trainer, "use_reference_policy", False):
        named.append((None, getattr(trainer, "ref_policy_wg", None)))
    if getattr(trainer, "use_critic", False):
        named.append((None, getattr(trainer, "critic_wg", None)))
    distinct = {id(group): (role, group) for role, group in reversed(named) if group is not None}
    return [*reversed(distinct.values())]
