"""verl's trainers follow requests: after they have looked whether a step is one of theirs, they look for a request.

A trainer's worker groups begin and end together, so all ranks are profiled in the same step. Steps that the
configuration names are left to it. Rollout servers are not asked: they decide at their start whether they can be.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from capture.warn import warn

TRAINERS = {
    "verl.trainer.ppo.ray_trainer": "RayPPOTrainer",
    "verl.trainer.ppo.v1.trainer_base": "PPOTrainer",
}
"""The classes of verl that drive worker groups through steps, by the module that has them."""

_WATCH, _ASKED = "_capture_watch", "_capture_request"


class FollowWhenImported(MetaPathFinder):
    """Lets the trainers follow requests as soon as somebody imports them; nothing is imported for that."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, its loader wrapped; None for all other modules."""
        del path, target
        if name not in TRAINERS or self._looking:
            return None
        self._looking = True
        try:
            spec = find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, name)
        return spec


class _Loader(Loader):
    """A loader that changes one class of the module it has loaded."""

    def __init__(self, loader: Loader, name: str) -> None:
        self._loader, self._name = loader, name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        follow(getattr(module, TRAINERS[self._name], None))

    def __getattr__(self, name: str) -> Any:  # get_source and the like, of whatever loader it is
        return getattr(self._loader, name)


def install() -> FollowWhenImported:
    """The finder that is asked for modules from now on; trainers that are here already follow at once."""
    finder = FollowWhenImported()
    sys.meta_path.insert(0, finder)
    for module, name in TRAINERS.items():
        follow(getattr(sys.modules.get(module), name, None))
    return finder


def uninstall(finder: FollowWhenImported) -> None:
    """Leave modules and trainers as they were."""
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    for module, name in TRAINERS.items():
        trainer = getattr(sys.modules.get(module), name, None)
        for method in ("_start_profiling", "_stop_profiling"):
            original = getattr(vars(trainer).get(method) if trainer else None, "__wrapped__", None)
            if original is not None:
                setattr(trainer, method, original)


def follow(trainer: Any) -> None:
    """Let a class of trainers look for requests where it starts and stops profiles; nothing for one that has no such place."""
    methods = [getattr(trainer, name, None) for name in ("_start_profiling", "_stop_profiling")]
    if None in methods or any(hasattr(method, "__wrapped__") for method in methods):
        return
    start, stop = (_guarded(action) for action in (_begin, _end))
    trainer._start_profiling = _then(methods[0], start)  # noqa: SLF001 - verl names it so
    trainer._stop_profiling = _after(stop, methods[1])  # noqa: SLF001 - as above


def _then(method: Any, action: Callable[[Any], None]) -> Any:
    @functools.wraps(method)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        action(self)
        return result

    return both


def _after(action: Callable[[Any], None], method: Any) -> Any:
    @functools.wraps(method)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        action(self)
        return method(self, *args, **kwargs)

    return both


def _guarded(action: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same, but what goes wrong is logged: no trainer ends of it."""

    def run(trainer: Any) -> None:
        try:
            action(trainer)
        except Exception as error:  # noqa: BLE001 - as said
            warn("request for a profile not followed: %s: %s", type(error).__name__, error)

    return run


def _begin(trainer: Any) -> None:
    """Start the workers where a request is due and the step is not profiled anyway."""
    block, step = trainer.config.global_profiler, trainer.global_steps
    watch = getattr(trainer, _WATCH, None)
    if watch is None:
        from capture import on_signal
        from capture.trigger import Watch

        watch = Watch(block.save_path or "outputs/profile", alone=True)
        setattr(trainer, _WATCH, watch)
        on_signal.announce(watch.folder)
        return  # what lies there before the first step is older than the run
    if step in (block.steps or ()):
        return
    request = watch.due(step)
    if request is None:
        return
    from capture import ray

    groups = _groups(trainer)
    setattr(trainer, _ASKED, groups)
    for role, group in groups:
        ray.start(group, step, role=role, on_demand=request.settings())


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
