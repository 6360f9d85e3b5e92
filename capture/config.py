"""Profiler configuration with verl's names: fields, order, defaults and checks of verl 0.9.1.

A configuration written for ``verl.utils.profiler.config`` works here after changing the module in
its Hydra ``_target_``::

    _target_: capture.config.ProfilerConfig

and instantiating with ``_convert_="partial"``, as verl does, so that lists arrive as lists.

Three things differ on purpose. The checks are statements, not ``assert``, so ``python -O`` keeps
them; they still raise `AssertionError`, which is what code written against verl catches.
``contents`` that are no list are reported as that, not by their first letter or as a `TypeError`.
And ``"key" in config`` answers, where verl's raises `AttributeError` for a key that is no field.

What verl accepts is accepted, even where it cannot do what it says: an unknown ``tool``, ranks
that are no numbers, a ``discrete`` that is a word. The profiler that reads the value judges it.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar

from capture.plain import MISSING, plain

TORCH_CONTENTS = ("cuda", "cpu", "memory", "shapes", "stack")
"""Values of `TorchProfilerToolConfig.contents`; an empty list collects CPU and CUDA."""


def _require(holds: bool, message: str) -> None:
    """Raise the error of verl's ``assert`` unless the condition is true."""
    if not holds:
        raise AssertionError(message)


def _require_int(name: str, value: object, *, minimum: int, or_none: bool = False) -> None:
    """Raise unless the value is an int of at least `minimum`, or None if None is allowed.

    A bool passes, as it does in verl: it is an int to Python.
    """
    if or_none and value is None:
        return
    if not isinstance(value, int):
        kind = "int or None" if or_none else "int"
        raise AssertionError(f"{name} must be {kind}, got {type(value)}")  # noqa: TRY004 - as verl
    bound = "positive" if minimum == 1 else f">= {minimum}"
    _require(value >= minimum, f"{name} must be {bound}, got {value}")


def _require_ranks(name: str, value: object) -> None:
    """Raise unless the value is a collection; its ranks are not checked."""
    message = f"Profiler {name} must be of type list, got {type(value)}"
    _require(isinstance(value, (set, list, tuple)), message)


@dataclass
class BaseConfig(Mapping[str, Any]):
    """An immutable dataclass that reads like a mapping of its fields.

    ``config["tool"]``, ``config.get("tool")``, ``dict(config)``, ``**config``, ``len`` and
    iteration see the fields in their order, ``_target_`` first. An unknown name
    raises `AttributeError` from ``config[name]`` too, as in verl.

    The dataclass is not declared frozen: verl's users derive plain dataclasses from theirs, and
    Python forbids that below a frozen one. A subclass may name fields in ``_mutable_fields``.
    """

    _mutable_fields: ClassVar[AbstractSet[str]] = frozenset()

    _target_: str = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and name not in self._mutable_fields:
            raise FrozenInstanceError(f"Field '{name}' is frozen and cannot be modified")
        super().__setattr__(name, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Get the attribute of that name, or the default."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return any(item.name == key for item in fields(self))

    def __iter__(self) -> Iterator[str]:
        return (item.name for item in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


@dataclass
class NsightToolConfig(BaseConfig):
    """Capture mode of Nsight Systems."""

    discrete: bool = False
    name: str = "nsight"


@dataclass
class TorchProfilerScheduleConfig(BaseConfig):
    """Mini-batches of an update loop that the torch profiler records.

    ``skip_first`` mini-batches are skipped; then, ``repeat`` times (0: until the end),
    ``wait`` are not collected, ``warmup`` are collected and dropped, ``active`` are kept.
    With ``active`` at 0 there is no schedule and the whole loop is kept.
    """

    skip_first: int = 0
    wait: int = 0
    warmup: int = 0
    active: int = 0
    repeat: int = 0
    name: str = "torch_schedule"

    def __post_init__(self) -> None:
        for name in ("skip_first", "wait", "warmup", "active", "repeat"):
            _require_int(name, getattr(self, name), minimum=0)

    @property
    def enabled(self) -> bool:
        """Whether there is a schedule at all."""
        return self.active > 0


@dataclass
class TorchProfilerToolConfig(BaseConfig):
    """Contents and files of the torch profiler.

    ``contents`` names of `TORCH_CONTENTS`; CPU is always collected, for the stage ranges.
    ``discrete``: a trace of its own for each stage, instead of one for the whole step.
    ``profile_token_start`` and ``profile_token_end`` (exclusive): the response tokens that a
    rollout engine records. ``schedule``: fewer mini-batches of the update loop.
    """

    contents: list[str] = field(default_factory=list)
    discrete: bool = False
    profile_token_start: int | None = None
    profile_token_end: int | None = None
    schedule: TorchProfilerScheduleConfig | None = None
    name: str = "torch"

    def __post_init__(self) -> None:
        # Check the type before the items, or a bare "cpu" would be reported letter by letter.
        message = f"Profiler contents must be of type list, got {type(self.contents)}"
        _require(isinstance(self.contents, list), message)
        for content in self.contents:
            message = f"Profiler contents only supports {list(TORCH_CONTENTS)}, but gets {content}"
            _require(content in TORCH_CONTENTS, message)

        start, stop = self.profile_token_start, self.profile_token_end
        _require_int("profile_token_start", start, minimum=0, or_none=True)
        _require_int("profile_token_end", stop, minimum=0, or_none=True)
        message = f"profile_token_end must be > profile_token_start, got {start=}, {stop=}"
        _require(start is None or stop is None or stop > start, message)


@dataclass
class TorchMemoryToolConfig(BaseConfig):
    """Length and detail of the CUDA allocator history in a memory snapshot.

    ``trace_alloc_max_entries`` allocations, with ``stack_depth`` frames of stack each; a snapshot
    is written after every ``memory_snapshot_num_steps`` profiled steps.
    """

    trace_alloc_max_entries: int = 100_000
    stack_depth: int = 32
    memory_snapshot_num_steps: int = 1
    name: str = "torch_memory"

    def __post_init__(self) -> None:
        for name in ("trace_alloc_max_entries", "stack_depth", "memory_snapshot_num_steps"):
            _require_int(name, getattr(self, name), minimum=1)


@dataclass
class ProfilerConfig(BaseConfig):
    """Profiler configuration of one role: its tool, ranks and output folder.

    ``tool``: nsys, torch, torch_memory, or None for none; other names profile nothing.
    ``enable``, ``all_ranks``, ``ranks``: whether, and on which ranks; with neither of the last
    two set, rank 0. ``tool_config``: the configuration of the tool, or a mapping of tool to
    configuration. ``relocate_results``: move files that a framework wrote elsewhere to ``save_path``.
    ``finish_hook_cmd``: a shell command run once after the last profiled step, on
    ``finish_hook_ranks`` or all ranks; by default on the profiled ranks.

    This is the block of a role. The global block of a verl configuration has other keys
    (``steps``, ``profile_continuous_steps``) and is refused with `TypeError`, as by verl.
    """

    tool: str | None = MISSING
    enable: bool = False
    all_ranks: bool = False
    ranks: list[int] = field(default_factory=list)
    save_path: str | None = MISSING
    tool_config: Any = MISSING
    global_tool_config: Any | None = None
    relocate_results: bool = False
    finish_hook_cmd: str | None = None
    finish_hook_all_ranks: bool = False
    finish_hook_ranks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        _require_ranks("ranks", self.ranks)
        _require_ranks("finish_hook_ranks", self.finish_hook_ranks)
        command = self.finish_hook_cmd
        message = f"finish_hook_cmd must be str or None, got {type(command)}"
        _require(command is None or isinstance(command, str), message)

    def union(self, other: "ProfilerConfig") -> "ProfilerConfig":
        """Combine two configurations to profile everything that either would; both must name the same tool.

        The path and the tool's configuration are this one's; the global tool configuration and
        the command are the first that is set. Ranks are in order of first mention.
        """
        self._require_same_tool(other, "union")
        return ProfilerConfig(
            tool=self.tool,
            enable=self.enable or other.enable,
            all_ranks=self.all_ranks or other.all_ranks,
            ranks=_either(self.ranks, other.ranks),
            save_path=self.save_path,
            tool_config=self.tool_config,
            global_tool_config=self.global_tool_config or other.global_tool_config,
            relocate_results=self.relocate_results or other.relocate_results,
            finish_hook_cmd=self.finish_hook_cmd or other.finish_hook_cmd,
            finish_hook_all_ranks=self.finish_hook_all_ranks or other.finish_hook_all_ranks,
            finish_hook_ranks=_either(self.finish_hook_ranks, other.finish_hook_ranks),
        )

    def intersect(self, other: "ProfilerConfig") -> "ProfilerConfig":
        """Combine two configurations to profile only what both would; both must name the same tool.

        Path, tool configuration, global tool configuration and command are as in `union`.
        """
        self._require_same_tool(other, "intersect")
        return ProfilerConfig(
            tool=self.tool,
            enable=self.enable and other.enable,
            all_ranks=self.all_ranks and other.all_ranks,
            ranks=_both(self.ranks, other.ranks),
            save_path=self.save_path,
            tool_config=self.tool_config,
            global_tool_config=self.global_tool_config or other.global_tool_config,
            relocate_results=self.relocate_results and other.relocate_results,
            finish_hook_cmd=self.finish_hook_cmd or other.finish_hook_cmd,
            finish_hook_all_ranks=self.finish_hook_all_ranks and other.finish_hook_all_ranks,
            finish_hook_ranks=_both(self.finish_hook_ranks, other.finish_hook_ranks),
        )

    def _require_same_tool(self, other: "ProfilerConfig", verb: str) -> None:
        message = f"Cannot {verb} ProfilerConfig with different tools: {self.tool} vs {other.tool}"
        _require(self.tool == other.tool, message)


def _either(first: Sequence[int], other: Sequence[int]) -> list[int]:
    """List the ranks of both, each once, in order of first mention."""
    return list(dict.fromkeys([*first, *other]))


def _both(first: Sequence[int], other: Sequence[int]) -> list[int]:
    """List the ranks that are in both, each once, in the first one's order."""
    return [rank for rank in dict.fromkeys(first) if rank in other]


_TOOL_CONFIGS: Mapping[str, type[BaseConfig]] = {
    "nsys": NsightToolConfig,
    "torch": TorchProfilerToolConfig,
    "torch_memory": TorchMemoryToolConfig,
}


def tool_config_of(tool: str | None, settings: Mapping[str, Any]) -> Any:
    """Convert the settings of a tool to its config class; None for a tool without one.

    Unknown keys are ignored. Raises `AssertionError` for values that verl refuses.
    """
    kind = _TOOL_CONFIGS.get(tool or "")
    if kind is None:
        return None
    values = {key: settings[key] for key in kind() if key in settings}
    if "contents" in values and not isinstance(values["contents"], str):
        values["contents"] = list(values["contents"] or ())
    if values.get("schedule") is not None:
        schedule = plain(values["schedule"])
        names = TorchProfilerScheduleConfig()
        values["schedule"] = TorchProfilerScheduleConfig(**{key: schedule[key] for key in names if key in schedule})
    return kind(**values)
