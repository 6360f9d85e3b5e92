"""What a run's whole configuration says of profiling, in the form of verl 0.9 or of 2025-06.

The global block can be read here only: it holds keys that `ProfilerConfig` refuses, and so it cannot
be instantiated, in verl neither. Any mapping will do: a dict, a `DictConfig`, a config object.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from capture.config import ProfilerConfig, tool_config_of
from capture.plain import MISSING
from capture.steps import StepPlan

log = logging.getLogger("capture")

ROLES = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
    "critic",
    "reward.reward_model",
    "reward_model",
)
"""Where a role's `profiler` block lies in the configurations of verl and VeRL-Omni."""

without_effect: list[str] = []
"""What this process was told of its run's configuration that does not do what it seems to say."""

_SAVE_PATH = "outputs/profile"
_TOKENS = ("profile_token_start", "profile_token_end")
_GLOBAL_KEYS = frozenset({"steps", "profile_continuous_steps", *ProfilerConfig()})


@dataclass(frozen=True, slots=True)
class GlobalProfile:
    """The global block: tool, steps, directory, the options nsys gets, and each tool's settings."""

    tool: str | None = None
    plan: StepPlan = field(default_factory=StepPlan)
    save_path: str = _SAVE_PATH
    controller_nsight_options: Mapping[str, Any] = field(default_factory=dict)
    worker_nsight_options: Mapping[str, Any] = field(default_factory=dict)
    tool_config: Mapping[str, Any] = field(default_factory=dict)


def read_global(config: Mapping[str, Any]) -> GlobalProfile:
    """The global block of a run's configuration, or of the block alone; all defaults where there is none.

    Keys that are not known are passed over with a warning: the block is shared by many versions.
    In the form of 2025-06 (`trainer.profile_steps` …) the tool is nsys, there was no other. What
    `surprises` tells of a whole configuration is logged, once.
    """
    profile = _read_global(config)
    with contextlib.suppress(
        AssertionError
    ):  # a role's values that verl refuses: `read_role` raises
        for text in _surprises(config):
            _warn_once(text)
    return profile


@functools.cache
def _warn_once(text: str) -> None:
    without_effect.append(text)
    log.warning("profiler configuration: %s", text)


def _read_global(config: Mapping[str, Any]) -> GlobalProfile:
    block = _at(config, "global_profiler")
    if block is None and _GLOBAL_KEYS & set(config) - {"_target_"}:
        block = config
    if block is None:
        return _read_2025(_at(config, "trainer") or {})
    unknown = sorted(str(key) for key in block if key not in _GLOBAL_KEYS)
    if unknown:
        log.warning("global_profiler: not known and passed over: %s", ", ".join(unknown))
    tools = _given(block, "global_tool_config") or {}
    nsys = _given(tools, "nsys") or {}
    return GlobalProfile(
        tool=_given(block, "tool"),
        plan=_plan(block, "steps"),
        save_path=_given(block, "save_path") or _SAVE_PATH,
        controller_nsight_options=_given(nsys, "controller_nsight_options") or {},
        worker_nsight_options=_given(nsys, "worker_nsight_options") or {},
        tool_config=tools,
    )


def _read_2025(trainer: Mapping[str, Any]) -> GlobalProfile:
    """The global block as verl had it until 2025-08, in `trainer`."""
    plan = _plan(trainer, "profile_steps")
    return GlobalProfile(
        tool="nsys" if plan.steps else None,
        plan=plan,
        controller_nsight_options=_given(trainer, "controller_nsight_options") or {},
        worker_nsight_options=_given(trainer, "worker_nsight_options") or {},
    )


def _plan(block: Mapping[str, Any], key: str) -> StepPlan:
    continuous = bool(_given(block, "profile_continuous_steps"))
    return StepPlan.of(_given(block, key), continuous=continuous)


def read_role(config: Mapping[str, Any], role: str) -> ProfilerConfig:
    """The profiler configuration of one role (`actor_rollout_ref.actor`, `critic` …), ready to use.

    `tool_config` is that of the role's own tool. What the role leaves open comes from the global
    block: tool, path, and in `global_tool_config` the settings that role blocks have no keys for
    (`torch_memory.context`, `stacks`, `kw_args`). A block of 2025-06 (`discrete`, `all_ranks`,
    `ranks`) is enabled when steps are given. Raises `AssertionError` for values verl refuses.
    """
    shared, block = _read_global(config), _at(config, f"{role}.profiler") or {}
    tool, enable = _given(block, "tool") or shared.tool, bool(_given(block, "enable"))
    old = "enable" not in block and "tool" not in block
    if old:
        tool, enable = shared.tool, bool(block and shared.plan.steps)
    settings = dict(_given(_given(block, "tool_config") or {}, tool) or {})
    if old and "discrete" in block:
        settings["discrete"] = bool(block["discrete"])
    fields = {key: block[key] for key in _AS_THEY_ARE if key in block}
    return ProfilerConfig(
        tool=tool,
        enable=enable,
        all_ranks=bool(_given(block, "all_ranks")),
        ranks=_list(block, "ranks"),
        save_path=_given(block, "save_path") or shared.save_path,
        tool_config=tool_config_of(tool, settings),
        global_tool_config=shared.tool_config or None,
        finish_hook_ranks=_list(block, "finish_hook_ranks"),
        **fields,
    )


_AS_THEY_ARE = ("relocate_results", "finish_hook_cmd", "finish_hook_all_ranks")
"""Keys of a role's block that are taken over without a look at their values."""


def colocated(blocks: Mapping[str, ProfilerConfig]) -> ProfilerConfig:
    """The configuration that counts where roles share one worker: the actor's, else the first one.

    One process makes one capture at a time. So raises `ValueError` where two enabled blocks disagree
    on `discrete`: a stage's capture would end that of the whole step.
    """
    if not blocks:
        raise ValueError("a worker without any role has no profiler configuration")
    modes = {role: _discrete(block) for role, block in blocks.items() if block.enable}
    if len(set(modes.values())) > 1:
        listed = ", ".join(f"{role}: {mode}" for role, mode in modes.items())
        raise ValueError(f"roles in one worker must agree on discrete, got {listed}")
    return blocks.get("actor") or next(iter(blocks.values()))


def _discrete(block: ProfilerConfig) -> bool:
    settings = block.tool_config
    return bool(settings.get("discrete", False)) if isinstance(settings, Mapping) else False


def surprises(config: Mapping[str, Any]) -> list[str]:
    """What in a run's configuration will not do what it seems to say, a sentence each."""
    return [*_surprises(config)]


def _surprises(config: Mapping[str, Any]) -> Iterator[str]:
    shared = _read_global(config)
    present = [role for role in ROLES if _at(config, f"{role}.profiler") is not None]
    blocks = {role: read_role(config, role) for role in present}
    enabled = {role: block for role, block in blocks.items() if block.enable}
    if shared.plan.steps and not enabled:
        yield "steps are given, but no role's profiler is enabled: nothing is profiled"
    if enabled and not shared.plan.steps:
        yield f"{_names(enabled)}: enabled, but global_profiler.steps names no step: nothing is profiled"
    steps = _given(_at(config, "global_profiler") or {}, "steps")
    if isinstance(steps, (int, str)):
        yield f"steps is {steps!r}: verl's trainers look for a step's number in a list, [1, 2]"
    for role, block in enabled.items():
        yield from _tool_surprises(role, block, shared)
        yield from _options_without_effect(role, block, shared)
    for name, options in (
        ("controller_nsight_options", shared.controller_nsight_options),
        ("worker_nsight_options", shared.worker_nsight_options),
    ):
        if "output" in options:
            yield f"{name}.output: Ray gives nsys `-o` as well, and nsys starts nothing with both: name it `o`"
    yield from _surprises_of_one_worker(blocks, enabled)


def _tool_surprises(role: str, block: ProfilerConfig, shared: GlobalProfile) -> Iterator[str]:
    """What an enabled role's tool does not do."""
    if block.tool is None:
        yield f"{role}: enabled, but neither it nor the global block names a tool: nothing is profiled"
    elif shared.tool and block.tool != shared.tool:
        yield (
            f"{role}: its tool {block.tool} collects, while the global tool {shared.tool} "
            "decides how processes are launched"
        )


def _surprises_of_one_worker(
    blocks: Mapping[str, ProfilerConfig], enabled: Mapping[str, ProfilerConfig]
) -> Iterator[str]:
    """What roles that share the actor's worker cannot each have as they say."""
    actor = blocks.get("actor_rollout_ref.actor")
    for role in ("actor_rollout_ref.ref", "actor_rollout_ref.rollout"):
        if role in enabled and actor is not None and not actor.enable:
            yield f"{role}: enabled alone, but in one worker with the actor only the actor's block counts"
    in_one_worker = {}
    for role, block in enabled.items():
        if role.startswith("actor_rollout_ref."):
            in_one_worker[role.removeprefix("actor_rollout_ref.")] = block
    if len(set(map(_discrete, in_one_worker.values()))) > 1:
        yield f"{_names(in_one_worker)}: they differ in discrete, and one worker can follow only one of them"


def _options_without_effect(
    role: str, block: ProfilerConfig, shared: GlobalProfile
) -> Iterator[str]:
    """What of an enabled role's options does nothing."""
    settings = block.tool_config
    if block.tool == "torch" and not role.endswith("rollout"):
        named = [name for name in _TOKENS if settings[name] is not None]
        if named:
            yield f"{role}: {', '.join(named)}: only rollout servers follow tokens"
    if block.relocate_results and block.tool in ("torch", "torch_memory"):
        yield f"{role}: relocate_results: what the tool {block.tool} writes lies in save_path already"
    if block.relocate_results and block.tool == "nsys":
        end = str(shared.worker_nsight_options.get("capture-range-end") or "")
        if not end.startswith(("repeat-shutdown", "stop")):
            yield (
                f"{role}: relocate_results: unless capture-range-end is repeat-shutdown and the number of captures, "
                "nsys writes its reports when the processes end, and there is nothing to move before"
            )


def _list(block: Mapping[str, Any], key: str) -> list[Any]:
    """What a key lists; nothing where it is absent."""
    return list(_given(block, key) or ())


def _names(roles: Mapping[str, object]) -> str:
    return ", ".join(roles)


def _at(config: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The mapping at a dotted path; None where there is none."""
    node: Any = config
    for key in path.split("."):
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node if isinstance(node, Mapping) else None


def _given(block: Mapping[str, Any], key: str | None) -> Any:
    """The value of a key; None where it is absent or marked as still to be given."""
    if key is None or key not in block:
        return None
    value = block[key]
    return None if isinstance(value, str) and value == MISSING else value
