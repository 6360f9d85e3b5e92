"""Trainers follow requests: after they have looked whether a step is one of theirs, they look for a request.

A trainer is a class with `_start_profiling` and `_stop_profiling`, in a module with "trainer" in its name: verl's, those of
VeRL-Omni, those that derive from them. For a class in another module, call `follow`.
A trainer's worker groups begin and end together, so all ranks are profiled in the same step. Steps that the
configuration names are left to it. Rollout servers are not asked: they decide at their start whether they can be.
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
"""(class, method, what stood there; None where it was inherited) of everything that was replaced."""

_said: set[str] = set()
"""Problems that were logged: a trainer meets the same one in every step."""


class FollowWhenImported(MetaPathFinder):
    """Lets trainers follow requests as soon as somebody imports them; nothing is imported for that."""

    def __init__(self) -> None:
        self._local = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, its loader wrapped; None for modules that hold no trainer."""
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
    """A loader that looks for trainers in the module that it has loaded, and then leaves it to its own loader."""

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

    def __getattr__(self, name: str) -> Any:  # get_source and the like, of whatever loader it is
        return getattr(self._loader, name)


def install() -> FollowWhenImported:
    """Make the finder that is asked for modules from now on; trainers that are here already follow at once."""
    finder = FollowWhenImported()
    sys.meta_path.insert(0, finder)
    for name, module in [*sys.modules.items()]:
        if _may_hold_trainers(name):
            _follow_in(module)
    return finder


def uninstall(finder: FollowWhenImported) -> None:
    """Leave modules and trainers as they were."""
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    while _followed:
        trainer, name, original = _followed.pop()
        if original is None:
            delattr(trainer, name)
        else:
            setattr(trainer, name, original)


def _may_hold_trainers(name: str) -> bool:
    """Whether a module is looked through: by its name, since there are thousands."""
    return "trainer" in name


def _follow_in(module: Any) -> None:
    """Let the trainers that a module defines follow requests. Raises nothing."""
    try:
        for value in [*vars(module).values()]:
            remote = getattr(value, "__ray_metadata__", None)  # the class below `ray.remote`
            found = getattr(remote, "modified_class", value)
            for one in _own_classes(found, module):
                follow(one)
    except Exception as error:  # noqa: BLE001 - a module that answers no question is the user's all the same
        _warn_once(f"no request is followed in {module}: {type(error).__name__}: {error}")


def _own_classes(found: Any, module: Any) -> Iterator[type]:
    """A class and those that it derives from, as far as this module defines them."""
    for one in found.__mro__ if isinstance(found, type) else ():
        if one.__module__ == module.__name__:
            yield one


def follow(trainer: C) -> C:
    """Let a class of trainers look for requests where it starts and stops profiles; give the class back.

    A class that has no such methods, or has them as coroutines, stays as it is.
    """
    methods = [getattr(trainer, name, None) for name in _METHODS]
    if not isinstance(trainer, type) or any(map(_is_unfit, methods)):
        return trainer
    actions = (_guarded(_begin), _guarded(_end))
    for name, method, action in zip(_METHODS, methods, actions, strict=True):
        if getattr(method, _FOLLOWS, False):  # its own, or one that it inherits, follows already
            continue
        _followed.append((trainer, name, vars(trainer).get(name)))
        setattr(trainer, name, _with_request(method, action, first=name == _STOP))
    return trainer


def _is_unfit(method: Any) -> bool:
    return not callable(method) or inspect.iscoroutinefunction(method)


def _with_request(method: Any, action: Callable[[Any], None], *, first: bool) -> Any:
    """The method, and before or after it the action; once, where a method calls that of its base."""

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
    """The same, but what goes wrong is logged: no trainer ends of it."""

    def run(trainer: Any) -> None:
        try:
            action(trainer)
        except Exception as error:  # noqa: BLE001 - as said
            _warn_once(f"request for a profile not followed: {type(error).__name__}: {error}")

    return run


def _warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warn("%s", text)


def _begin(trainer: Any) -> None:
    """Start the workers where a request is due and the step is not profiled anyway."""
    block, step = trainer.config.global_profiler, step_of(trainer)
    watch = getattr(trainer, _WATCH, None)
    if watch is None:
        from capture import on_signal
        from capture.trigger import Watch

        watch = Watch(block.save_path or "outputs/profile", alone=True)
        setattr(trainer, _WATCH, watch)
        on_signal.announce(watch.folder)
        _check(trainer)
        return  # what lies there before the first step is older than the run
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
    """The number by which the configuration names this step.

    Fully asynchronous training counts versions of the parameters: the step on its way makes the next one, and may
    be several updates long. Files are named by `global_steps` there too, as verl names them.
    """
    version: int | None = getattr(trainer, "current_param_version", None)
    steps: int = trainer.global_steps
    return steps if version is None else version + 1


def _warn_of_absent_ranks(groups: Sequence[tuple[str | None, Any]], ranks: Sequence[int]) -> None:
    """Log which ranks of a request no group has; nothing where a group does not tell its size."""
    sizes = [getattr(group, "world_size", None) for _, group in groups]
    last = max((size for size in sizes if isinstance(size, int)), default=0) - 1
    absent = [rank for rank in ranks if rank > last]
    if absent and None not in sizes:
        _warn_once(
            f"request for a profile: ranks {absent} do not exist: the run has ranks 0 to {last}"
        )


def _check(trainer: Any) -> None:
    """Log what of the run's configuration has no effect; the trainer knows how many steps there will be."""
    if not isinstance(trainer.config, Mapping):
        return
    from capture.run_config import warn_of

    counts_steps = getattr(trainer, "current_param_version", None) is None
    total = getattr(trainer, "total_training_steps", None) if counts_steps else None
    warn_of(trainer.config, total if isinstance(total, int) else None)


def _end(trainer: Any) -> None:
    """Stop the workers that a request has started."""
    groups = getattr(trainer, _ASKED, ())
    setattr(trainer, _ASKED, ())
    if groups:
        from capture import ray

        for _, group in groups:
            ray.stop(group, run_command=False)


def _groups(trainer: Any) -> list[tuple[str | None, Any]]:
    """(role in file names, worker group) of each group that verl profiles; one that has two names once."""
    named: list[tuple[str | None, Any]] = [("train", trainer.actor_rollout_wg)]
    if getattr(trainer, "use_reference_policy", False):
        named.append((None, getattr(trainer, "ref_policy_wg", None)))
    if getattr(trainer, "use_critic", False):
        named.append((None, getattr(trainer, "critic_wg", None)))
    distinct = {id(group): (role, group) for role, group in reversed(named) if group is not None}
    return [*reversed(distinct.values())]
