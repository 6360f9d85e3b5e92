"""The profiler of one worker: whether this rank and step are profiled, and what its tool is then told.

Names, arguments and meaning are verl's. Profiling never changes what the caller gets: an annotated body
runs exactly once, its result and its exception are its own, and what fails in here is logged.
"""

from __future__ import annotations

import atexit
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from capture.config import MISSING, ProfilerConfig, tool_config_of
from capture.tools import NoTool, Stage, Target
from capture.warn import warn

if TYPE_CHECKING:
    from capture.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])

_VERLS_OWN = frozenset({"npu", "precision_debugger"})
_live: list[DistProfiler] = []
"""Every profiler of this process that has a tool: what is open when it ends can still be written."""


class DistProfiler:
    """A worker's profiler: `start` and `stop` around a step, `annotate` on what the step consists of.

    `config` None profiles nothing. `tool_config` is that of the config's tool, by default
    `config.tool_config`; `save_file_prefix` names the worker in files and manifest. Raises
    `AssertionError` for an enabled tool without its config, and for values that verl refuses. For the
    tools npu and precision_debugger this makes verl's own profiler, or raises `ImportError`.
    """

    def __new__(
        cls,
        rank: int,
        config: ProfilerConfig | None = None,
        tool_config: Any = None,
        save_file_prefix: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """A profiler of this class, or verl's for the tools that only verl has."""
        tool = getattr(config, "tool", None)
        if config is None or not config.enable or tool not in _VERLS_OWN:
            return super().__new__(cls)
        try:
            from verl.utils import profiler
        except ImportError as error:
            raise ImportError(f"the tool {tool} is verl's own, and verl is not here") from error
        return profiler.DistProfiler(rank, config, tool_config, save_file_prefix, **kwargs)

    def __init__(
        self,
        rank: int,
        config: ProfilerConfig | None = None,
        tool_config: Any = None,
        save_file_prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        del kwargs
        if config is None:
            config = ProfilerConfig(tool=None, save_path=None, tool_config=None)
        self.rank, self.config, self.save_file_prefix = rank, config, save_file_prefix
        self.tool_config = config.tool_config if tool_config is None else tool_config
        self._tool = config.tool
        self._enable = bool(config.enable)
        self._this_step = False
        self._this_rank = _selected(
            rank, config.all_ranks, config.ranks, self._enable and rank == 0
        )
        self._hook_here = _selected(
            rank,
            getattr(config, "finish_hook_all_ranks", False),
            getattr(config, "finish_hook_ranks", None),
            self._this_rank,
        )
        settings = _settings(self._tool, self.tool_config)
        self._discrete = bool((settings or {}).get("discrete", False))
        self._told: set[str] = set()
        self._impl: Tool = NoTool()
        self._manifest: Any = None
        if self._enable and self._tool in _TOOLS:
            if settings is None and self._tool != "torch_memory":
                raise AssertionError("tool_config must be provided when profiler is enabled")
            made = tool_config_of(self._tool, settings or {})
            if self._this_rank:
                self._try("setting up", lambda: self._set_up(made))
        elif self._enable and self._tool not in (None, MISSING):
            warn("rank %s: there is no tool %r: nothing is profiled", rank, self._tool)

    def _set_up(self, settings: Any) -> None:
        from pathlib import Path

        from capture.manifest import manifest_of

        assert self._tool is not None
        folder = Path(_path(self.config.save_path)).absolute()
        manifest = manifest_of(folder, self._tool, self.rank, self.save_file_prefix)
        shared = getattr(self.config, "global_tool_config", None)
        target = Target(
            self.rank,
            self.save_file_prefix,
            folder,
            settings,
            manifest,
            shared if isinstance(shared, Mapping) else {},
        )
        self._impl = _TOOLS[self._tool](target)
        self._manifest = manifest
        _live.append(self)

    def check_enable(self) -> bool:
        """Whether the configuration enables profiling."""
        return self._enable

    def check_this_rank(self) -> bool:
        """Whether this rank is one of those profiled."""
        return self._this_rank

    def check_this_step(self) -> bool:
        """Whether a step is being profiled now."""
        return self._this_step

    def is_discrete_mode(self) -> bool:
        """Whether every stage has a capture of its own."""
        return self._discrete

    def start(self, **kwargs: Any) -> None:
        """Begin to profile a step: `profile_step` or `global_step` its number, `role` the scope in names."""
        if not (self._enable and self._this_rank):
            return
        if self._this_step:
            self._tell("start", "a step is being profiled already")
            return
        others = [p for p in _live if p.check_this_step() and p.config.tool == self._tool]
        if any(p.is_discrete_mode() != self._discrete for p in others):
            self._tell("start", "another worker in this process profiles with the other discrete")
            return
        self._this_step = True
        step = kwargs.get("profile_step", kwargs.get("global_step"))
        if self._manifest is not None:
            self._try("manifest", lambda: self._manifest.begin(step))
        self._try("start", lambda: self._impl.start(kwargs.get("role"), step))

    def stop(self, run_command: bool = True) -> None:
        """End what `start` began, move results and, with `run_command`, run the finish command."""
        self._stop()
        self.run_finish_hook(run_command)

    def _stop(self) -> None:
        if self._this_step:
            self._this_step = False
            self._try("stop", self._impl.stop)
            if self._manifest is not None:
                self._try("manifest", self._manifest.end)

    def close(self) -> None:
        """Write what is still open: for the end of the process, where no `stop` is going to come."""
        self._stop()
        self._try("finish", self._impl.finish)
        if self._manifest is not None and self._manifest.files:
            self._try("manifest", self._manifest.save)

    def step(self) -> None:
        """Go on to the next mini-batch, of whichever worker's capture is running in this process."""
        if self._enable and self._this_rank:
            self._try("step", self._impl.advance)

    def run_finish_hook(self, run_command: bool = True) -> None:
        """Move results to `save_path` where that is wanted; with `run_command`, run `finish_hook_cmd`."""
        if not self._enable:
            return
        folder = self.config.save_path
        if getattr(self.config, "relocate_results", False) and self._this_rank and folder:
            from pathlib import Path

            self._try("moving results", lambda: self._impl.relocate(Path(folder).absolute()))
        command = getattr(self.config, "finish_hook_cmd", None)
        if run_command and command and self._hook_here:
            from capture.finish_command import run

            self._try("finish command", lambda: run(command, self._told_to_command()))

    def _told_to_command(self) -> dict[str, object]:
        """What the finish command may want to know, by the ends of verl's names for it."""
        told: dict[str, object] = {
            "SAVE_PATH": self.config.save_path or "",
            "TOOL": self._tool or "",
            "RANK": self.rank,
        }
        return told | ({"ROLE": self.save_file_prefix} if self.save_file_prefix else {})

    @classmethod
    def annotate(
        cls,
        message: str | None = None,
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
        **kwargs_outer: Any,
    ) -> Callable[[F], F]:
        """A decorator that makes a method a stage, for objects whose `profiler` is a `DistProfiler`.

        The stage is named by `message`, else `role`, else the method. `scheduled=True` says that its
        loop calls `step` after every mini-batch, so that a schedule applies to it.
        """

        def decorate(function: F) -> F:
            stage = Stage(
                message or kwargs_outer.get("role") or function.__name__,
                kwargs_outer.get("role"),
                bool(kwargs_outer.get("scheduled", False)),
                color,
                domain,
                category,
            )

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
                    profiler = getattr(self, "profiler", None)
                    if not (isinstance(profiler, DistProfiler) and profiler.check_this_step()):
                        return await function(self, *args, **kwargs)
                    leave = profiler.enter(stage)
                    try:
                        return await function(self, *args, **kwargs)
                    finally:
                        leave()

                return awaited  # type: ignore[return-value] # both are what F is, a coroutine function

            @functools.wraps(function)
            def called(self: Any, *args: Any, **kwargs: Any) -> Any:
                try:  # all that a stage costs while nothing is profiled
                    profiled = self.profiler._this_step  # noqa: SLF001 - a method would cost a call
                except AttributeError:
                    profiled = False
                if not profiled:
                    return function(self, *args, **kwargs)
                profiler = self.profiler
                if not isinstance(profiler, DistProfiler):  # verl's, for a tool that only verl has
                    verls: Any = type(profiler)
                    mark = verls.annotate(message, color, domain, category, **kwargs_outer)
                    return mark(function)(self, *args, **kwargs)
                leave = profiler.enter(stage)
                try:
                    return function(self, *args, **kwargs)
                finally:
                    leave()

            return called  # type: ignore[return-value] # as F in all that it takes and gives

        return decorate

    def enter(self, stage: Stage) -> Callable[[], None]:
        """What ends the stage that it begins. Neither raises."""
        try:
            context = self._impl.stage(stage)
            context.__enter__()
        except Exception as error:  # noqa: BLE001 - the body runs all the same, unprofiled
            self._tell(f"stage {stage.name}", error)
            return _nothing
        if self._manifest is not None:
            self._manifest.saw(stage.name)
        return lambda: self._try(f"stage {stage.name}", lambda: context.__exit__(None, None, None))

    def _try(self, what: str, action: Callable[[], object]) -> None:
        """Do it; an error is logged, not raised."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - profiling is never worth the training
            self._tell(what, error)

    def _tell(self, what: str, problem: object) -> None:
        """Log a problem, once."""
        kind = f"{type(problem).__name__}: " if isinstance(problem, Exception) else ""
        text = f"{what}: {kind}{problem}"
        if text not in self._told:
            self._told.add(text)
            warn("rank %s: profiler: %s; the training goes on", self.rank, text)


def _torch(target: Target) -> Tool:
    from capture.torch_trace import TorchTrace

    return TorchTrace(target)


def _torch_memory(target: Target) -> Tool:
    from capture.memory_snapshots import MemorySnapshots

    return MemorySnapshots(target)


def _nsys(target: Target) -> Tool:
    from capture.nsys_ranges import NsysRanges

    return NsysRanges(target)


_TOOLS: Mapping[str, Callable[[Target], Tool]] = {
    "nsys": _nsys,
    "torch": _torch,
    "torch_memory": _torch_memory,
}
"""The tools, each imported when it is used."""


@atexit.register
def _close_all() -> None:
    """Write the captures that are open when the interpreter ends: a trace that nobody stopped is not lost."""
    for profiler in _live:
        profiler.close()


def _nothing() -> None:
    """What ends a stage that never began."""


def _selected(rank: int, all_ranks: bool, ranks: Any, otherwise: bool) -> bool:
    """Whether a rank is among those named; where none is, what holds otherwise."""
    if all_ranks:
        return True
    return rank in ranks if ranks else otherwise


def _settings(tool: str | None, given: Any) -> Mapping[str, Any] | None:
    """The settings of the tool in what was given: its config, or a mapping of tools to configs."""
    if given is None or isinstance(given, str):
        return None
    if isinstance(given, Mapping) and tool is not None and tool in given:
        given = given[tool]
    found: Mapping[str, Any] = given if isinstance(given, Mapping) else vars(given)
    return found


def _path(path: str | None) -> str:
    """`save_path`, verl's default where it is not given."""
    return "outputs/profile" if not path or path == MISSING else str(path)
