"""The profiler of one worker: it decides whether this rank and step are profiled, and drives its tool.

Names, arguments and meaning are verl's. Profiling never changes what the caller gets: an annotated body
runs exactly once, its result and its exception are its own, and internal failures are logged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from capture.config import ProfilerConfig, tool_config_of
from capture.plain import plain
from capture.tools import NoTool, Stage, Target
from capture.warn import warn

if TYPE_CHECKING:
    from capture.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])

_VERLS_OWN = frozenset({"npu", "precision_debugger"})


class DistProfiler:
    """A worker's profiler: `start` and `stop` around a step, `annotate` on the parts of the step.

    `config` None profiles nothing; it may be a config object of verl, of OmegaConf or of this package, or a
    mapping. `tool_config` is that of the config's tool, by default `config.tool_config`; `save_file_prefix`
    names the worker in files and manifest. Never raises: if a configuration cannot be followed, the log
    says why, and nothing is profiled. For the tools npu and precision_debugger this makes verl's own profiler.
    """

    def __new__(
        cls, rank: int, config: Any = None, tool_config: Any = None, save_file_prefix: str | None = None, **kwargs: Any
    ) -> Any:
        """Create a profiler of this class, or verl's for tools that only verl has."""
        settings = plain(config)
        if cls is DistProfiler and settings.get("enable") and settings.get("tool") in _VERLS_OWN:
            try:
                return _of_verl()(rank, config, tool_config, save_file_prefix, **kwargs)
            except ImportError:
                warn(
                    "rank %s: the tool %s needs verl, and verl cannot be imported: nothing is profiled",
                    rank,
                    settings["tool"],
                )
        return super().__new__(cls)

    def __init__(
        self, rank: int, config: Any = None, tool_config: Any = None, save_file_prefix: str | None = None, **kwargs: Any
    ) -> None:
        self._on_demand = bool(kwargs.get("on_demand"))
        if config is None:
            config = ProfilerConfig(tool=None, save_path=None, tool_config=None)
        settings = plain(config)
        self.rank, self.config, self.save_file_prefix = rank, config, save_file_prefix
        self.tool_config = settings.get("tool_config") if tool_config is None else tool_config
        self._tool: str | None = settings.get("tool")
        self._enable = bool(settings.get("enable"))
        self._this_step = self._this_rank = self._hook_here = self._discrete = False
        self._told: set[str] = set()
        self._backend: Tool = NoTool()
        self._manifest: Any = None
        self._under_way: Any = None
        self._guest: Any = None
        self._given = settings
        self._try("configuration", self._configure)

    def _configure(self) -> None:
        """Follow the configuration; raises where it cannot be followed."""
        config, rank = self._given, self.rank
        self._this_rank = _selected(
            rank, bool(config.get("all_ranks")), config.get("ranks"), self._enable and rank == 0
        )
        self._hook_here = _selected(
            rank, bool(config.get("finish_hook_all_ranks")), config.get("finish_hook_ranks"), self._this_rank
        )
        settings = _settings(self._tool, self.tool_config)
        self._discrete = bool(settings.get("discrete", False))
        if self._enable and self._tool in _TOOLS:
            tool_config = tool_config_of(self._tool, settings)
            if self._this_rank:
                self._set_up(tool_config)
        elif self._enable and self._tool is not None and self._tool not in _VERLS_OWN:
            warn(
                "rank %s: there is no tool %r: nothing is profiled; tools are %s",
                *(rank, self._tool, ", ".join([*_TOOLS, *sorted(_VERLS_OWN)])),
            )

    def _set_up(self, settings: Any) -> None:
        from pathlib import Path

        from capture import endings
        from capture.manifest import asked, manifest_of

        assert self._tool is not None
        folder = Path(_path(self._given.get("save_path"))).absolute()
        manifest = manifest_of(folder, self._tool, self.rank, self.save_file_prefix)
        manifest.asked = asked(self._given | {"tool_config": plain(settings)})
        shared = plain(self._given.get("global_tool_config"))
        target = Target(self.rank, self.save_file_prefix, folder, settings, manifest, shared, self._on_demand)
        self._manifest = manifest  # before the tool, so that its failures are recorded too
        endings.live.append(self)
        self._backend = _TOOLS[self._tool](target)

    @property
    def _impl(self) -> DistProfiler:
        """Itself: a stage that verl's own `annotate` marked asks for its backend by this name."""
        return self

    @property
    def tool(self) -> str | None:
        """Tool named by the configuration; None for none."""
        return self._tool

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
        """Begin to profile a step: `profile_step` or `global_step` its number, `role` the scope in names.

        `on_demand` are the settings of a request (`capture.trigger`): this step is profiled as it asks, whatever
        the configuration says.
        """
        if kwargs.get("on_demand") is not None:
            request = kwargs.pop("on_demand")
            self._try("request", lambda: self._follow(request, kwargs))
            return
        if not (self._enable and self._this_rank):
            return
        if self._this_step:
            self._tell("start", "a step is being profiled already")
            return
        from capture import endings

        profiling = [p for p in endings.live if p.check_this_step() and p.tool == self._tool]
        if any(p.is_discrete_mode() != self._discrete for p in profiling):
            self._tell("start", "another worker in this process has the other value of discrete: set the same for both")
            return
        self._this_step = True
        step = kwargs.get("profile_step", kwargs.get("global_step"))
        if isinstance(step, str) and step.isascii() and step.isdecimal() and len(step) < 19:
            step = int(step)
        if self._manifest is not None:
            self._try("manifest", lambda: self._begin(step, kwargs.get("role")))
            self._try("SIGTERM", endings.mind_sigterm)
        self._tool_does("start", lambda: self._backend.start(kwargs.get("role"), step))

    def stop(self, run_command: bool = True) -> None:
        """End what `start` started, move results and, with `run_command`, run the finish command."""
        self._stop()
        self.run_finish_hook(run_command)

    def _stop(self) -> None:
        if self._guest is not None:
            self._try("request", self._dismiss)
        elif self._this_step:
            self._this_step = False
            self._tool_does("stop", self._backend.stop)
            if self._manifest is not None:
                from capture import endings

                self._try("manifest", self._end)
                self._try("SIGTERM", endings.forget_sigterm)

    def _follow(self, request: Any, start: Mapping[str, Any]) -> None:
        """Profile a step as a request asks, ignoring the configuration. Raises if the request is invalid."""
        asked = plain(request)
        if self._this_step:
            self._tell("request", "a step is being profiled already")
            return
        if asked.get("ranks") is not None and self.rank not in asked["ranks"]:
            return
        config = ProfilerConfig(
            tool=asked["tool"],
            enable=True,
            all_ranks=True,
            save_path=asked["folder"],
            tool_config=tool_config_of(asked["tool"], self._settings_for(asked)),
            global_tool_config=self._given.get("global_tool_config"),
        )
        guest = DistProfiler(self.rank, config, save_file_prefix=self.save_file_prefix, on_demand=True)
        guest.start(**start)
        if guest.check_this_step():
            self._guest = guest, self._backend, self._manifest
            self._this_step = True
            self._backend, self._manifest = guest._backend, guest._manifest

    def _settings_for(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Get the tool's settings in a request; memory histories default to the run's own settings."""
        tool, settings = asked["tool"], plain(asked.get("tool_config"))
        if tool != "torch_memory":
            return settings
        shared = plain(plain(self._given.get("global_tool_config")).get(tool))
        own = self.tool_config if self._tool == tool else plain(self.tool_config).get(tool)
        return shared | _settings(tool, own) | {"memory_snapshot_num_steps": 1} | settings

    def _dismiss(self) -> None:
        """End the capture of a request, and restore the configured state."""
        from capture import endings

        guest, self._backend, self._manifest = self._guest
        self._guest, self._this_step = None, False
        guest.close()
        endings.live.remove(guest)

    def _begin(self, step: int | None, scope: str | None) -> None:
        self._under_way = self._manifest.begin(step, scope)
        self._manifest.save()

    def _end(self) -> None:
        capture, self._under_way = self._under_way, None
        if capture is not None:
            self._manifest.end(capture)

    def close(self) -> None:
        """Write open captures at the end of the process, when no `stop` will follow."""
        self._stop()
        self._try("finish", self._backend.finish)
        if self._manifest is not None and self._manifest.captures:
            self._try("manifest", self._manifest.save)

    def abandon(self) -> None:
        """Capture nothing any more, and write nothing: for a process that was forked off while this captured."""
        self._enable = self._this_step = False
        self._backend, self._manifest, self._under_way, self._guest = NoTool(), None, None, None

    def step(self) -> None:
        """Advance the running capture of this process, whichever worker's it is, to the next mini-batch."""
        if (self._enable and self._this_rank) or self._guest is not None:
            self._try("step", self._backend.advance)

    def run_finish_hook(self, run_command: bool = True) -> None:
        """Move results to `save_path` where that is wanted; with `run_command`, run `finish_hook_cmd`."""
        if not self._enable:
            return
        folder = self._given.get("save_path")
        if self._given.get("relocate_results") and self._this_rank and folder:
            from pathlib import Path

            self._try("moving results", lambda: self._backend.relocate(Path(folder).absolute()))
        command = self._given.get("finish_hook_cmd")
        if run_command and command and self._hook_here:
            from capture.finish_command import run_finish_command

            self._try("finish command", lambda: run_finish_command(command, self._told_to_command()))

    def _told_to_command(self) -> dict[str, object]:
        """Values for the finish command, by the suffixes of verl's variable names."""
        facts: dict[str, object] = {
            "SAVE_PATH": self._given.get("save_path") or "",
            "TOOL": self._tool or "",
            "RANK": self.rank,
        }
        return facts | ({"ROLE": self.save_file_prefix} if self.save_file_prefix else {})

    @classmethod
    def annotate(
        cls,
        message: str | None = None,
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
        **kwargs_outer: Any,
    ) -> Callable[[F], F]:
        """Decorate a method as a stage, for objects whose `profiler` is a `DistProfiler`.

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

            lasting = _lasting(function, stage)
            if lasting is not None:
                return lasting  # type: ignore[no-any-return] # as F in all that it takes and gives

            @functools.wraps(function)
            def called(self: Any, *args: Any, **kwargs: Any) -> Any:
                try:  # the only cost of a stage while nothing is profiled
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
        """Begin a stage and return the function that ends it. Neither raises."""
        try:
            context = self._backend.stage(stage)
            context.__enter__()
        except Exception as error:  # noqa: BLE001 - the body runs all the same, unprofiled
            self._lose(f"stage {stage.name}", error)
            return _nothing
        if self._manifest is not None:
            self._manifest.saw(stage.name)
        return lambda: self._tool_does(f"stage {stage.name}", lambda: context.__exit__(None, None, None))

    def _try(self, what: str, action: Callable[[], object]) -> None:
        """Do it; an error is logged, not raised."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - profiling is never worth the training
            self._tell(what, error)

    def _tool_does(self, what: str, action: Callable[[], object]) -> None:
        """Have the tool do it; an error is logged, and costs the capture."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - as above
            self._lose(what, error)

    def _lose(self, what: str, error: Exception) -> None:
        """Log a failure of the tool, and record it with the open capture."""
        self._tell(what, error)
        if self._manifest is not None:
            self._manifest.lose(self._under_way, _described(what, error))

    def _tell(self, what: str, problem: object) -> None:
        """Log a problem, once."""
        text = _described(what, problem)
        if text not in self._told:
            self._told.add(text)
            if self._manifest is not None:
                self._manifest.failed(text)
            warn("rank %s: profiler: %s; the training goes on", self.rank, text)


def _described(what: str, problem: object) -> str:
    """Describe a problem with its exception type."""
    kind = f"{type(problem).__name__}: " if isinstance(problem, Exception) else ""
    return f"{what}: {kind}{problem}"


def _lasting(function: Any, stage: Stage) -> Any:
    """Wrap a coroutine or generator function, which is not over when it returns, in a stage; None for others.

    The stage lasts until the coroutine is done or the generator is exhausted or closed. That includes the
    caller's work in between, because the caller has it open for so long.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _in_stage(self, stage):
                return await function(self, *args, **kwargs)

        return awaited
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _in_stage(self, stage):
                return (yield from function(self, *args, **kwargs))

        return generated
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def streamed(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _in_stage(self, stage):
                async with aclosing(function(self, *args, **kwargs)) as items:
                    async for item in items:
                        yield item

        return streamed
    return None


@contextmanager
def _in_stage(worker: Any, stage: Stage) -> Iterator[None]:
    """Run the body in the stage, while a step of the worker is profiled."""
    profiler = getattr(worker, "profiler", None)
    if not (isinstance(profiler, DistProfiler) and profiler.check_this_step()):
        yield
        return
    leave = profiler.enter(stage)
    try:
        yield
    finally:
        leave()


def _torch(target: Target) -> Tool:
    from capture.torch_trace import TorchTrace

    return TorchTrace(target)


def _torch_memory(target: Target) -> Tool:
    from capture.memory_snapshots import MemorySnapshots

    return MemorySnapshots(target)


def _nsys(target: Target) -> Tool:
    from capture.nsys_ranges import NsysRanges

    return NsysRanges(target)


_TOOLS: Mapping[str, Callable[[Target], Tool]] = {"nsys": _nsys, "torch": _torch, "torch_memory": _torch_memory}
"""Modules of the tools, imported on first use."""


def _nothing() -> None:
    """End a stage that never started."""


def _selected(rank: int, all_ranks: bool, ranks: Any, otherwise: bool) -> bool:
    """Check whether a rank is selected; without named ranks, use the default."""
    if all_ranks:
        return True
    return rank in ranks if ranks else otherwise


def _settings(tool: str | None, config: Any) -> dict[str, Any]:
    """Get the settings of the tool from its config, or from a mapping of tools to configs."""
    settings = plain(config)
    of_tool = settings.get(tool) if tool is not None else None
    return settings if of_tool is None or isinstance(of_tool, (str, int, float)) else plain(of_tool)


def _of_verl() -> Any:
    """Return verl's own profiler, also if capture replaces it. Raises `ImportError` without verl."""
    import sys

    switch = sys.modules.get("capture.verl")
    if switch is not None and switch.active():
        return switch.original("DistProfiler")
    from verl.utils import profiler

    return profiler.DistProfiler


def _path(path: str | None) -> str:
    """`save_path`, verl's default where it is not given."""
    return str(path) if path else "outputs/profile"
