"""Profiling blocks of a run's configuration, in the form of verl 0.9 or of 2025-06.

The global block can only be read here: it has keys that `ProfilerConfig` refuses, so it cannot
be instantiated, in verl neither. Any mapping works: a dict, a `DictConfig`, a config object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    "reward.reward_model.rollout",
    "reward_model",
)
"""Paths of the roles' `profiler` blocks in the configurations of verl and VeRL-Omni."""

_SAVE_PATH = "outputs/profile"
_GLOBAL_KEYS = frozenset({"steps", "profile_continuous_steps", *ProfilerConfig()})


@dataclass(frozen=True, slots=True)
class GlobalProfile:
    """The global block: tool, steps, directory, nsys options, and each tool's settings."""

    tool: str | None = None
    plan: StepPlan = field(default_factory=StepPlan)
    save_path: str = _SAVE_PATH
    controller_nsight_options: Mapping[str, Any] = field(default_factory=dict)
    worker_nsight_options: Mapping[str, Any] = field(default_factory=dict)
    tool_config: Mapping[str, Any] = field(default_factory=dict)


def read_shared(config: Mapping[str, Any]) -> GlobalProfile:
    """Read the global block as `read_global` does, without a word on what has no effect."""
    block = get_config_block(config, "global_profiler")
    if block is None and _GLOBAL_KEYS & set(config) - {"_target_"}:
        block = config
    if block is None:
        return _read_2025(get_config_block(config, "trainer") or {})
    unknown = sorted(str(key) for key in block if key not in _GLOBAL_KEYS)
    if unknown:
        log.warning("global_profiler: unknown keys have no effect: %s", ", ".join(unknown))
    tools = get_config_value(block, "global_tool_config") or {}
    nsys = get_config_value(tools, "nsys") or {}
    return GlobalProfile(
        tool=get_config_value(block, "tool"),
        plan=_plan(block, "steps"),
        save_path=get_config_value(block, "save_path") or _SAVE_PATH,
        controller_nsight_options=get_config_value(nsys, "controller_nsight_options") or {},
        worker_nsight_options=get_config_value(nsys, "worker_nsight_options") or {},
        tool_config=tools,
    )


def _read_2025(trainer: Mapping[str, Any]) -> GlobalProfile:
    """Read the global block in `trainer`, as verl had it until 2025-08."""
    plan = _plan(trainer, "profile_steps")
    return GlobalProfile(
        tool="nsys" if plan.steps else None,
        plan=plan,
        controller_nsight_options=get_config_value(trainer, "controller_nsight_options") or {},
        worker_nsight_options=get_config_value(trainer, "worker_nsight_options") or {},
    )


def _plan(block: Mapping[str, Any], key: str) -> StepPlan:
    continuous = bool(get_config_value(block, "profile_continuous_steps"))
    return StepPlan.of(get_config_value(block, key), continuous=continuous)


def read_role(config: Mapping[str, Any], role: str) -> ProfilerConfig:
    """Read the profiler configuration of one role (`actor_rollout_ref.actor`, `critic` …), ready to use.

    `tool_config` is that of the role's own tool. Values that the role does not set come from the global
    block: tool, path, and in `global_tool_config` the settings that role blocks have no keys for
    (`torch_memory.context`, `stacks`, `kw_args`). A block of 2025-06 (`discrete`, `all_ranks`,
    `ranks`) is enabled when steps are given. Raises `AssertionError` for values that verl refuses.
    """
    shared, block = read_shared(config), get_config_block(config, f"{role}.profiler") or {}
    tool, enable = (get_config_value(block, "tool") or shared.tool, bool(get_config_value(block, "enable")))
    old = "enable" not in block and "tool" not in block
    if old:
        tool, enable = shared.tool, bool(block and shared.plan.steps)
    settings = dict(get_config_value(get_config_value(block, "tool_config") or {}, tool) or {})
    if old and "discrete" in block:
        settings["discrete"] = bool(block["discrete"])
    fields = {key: block[key] for key in _AS_THEY_ARE if key in block}
    return ProfilerConfig(
        tool=tool,
        enable=enable,
        all_ranks=bool(get_config_value(block, "all_ranks")),
        ranks=list_config_values(block, "ranks"),
        save_path=get_config_value(block, "save_path") or shared.save_path,
        tool_config=tool_config_of(tool, settings),
        global_tool_config=shared.tool_config or None,
        finish_hook_ranks=list_config_values(block, "finish_hook_ranks"),
        **fields,
    )


_AS_THEY_ARE = ("relocate_results", "finish_hook_cmd", "finish_hook_all_ranks")
"""Keys of a role's block that are taken over without a look at their values."""


def list_config_values(block: Mapping[str, Any], key: str) -> list[Any]:
    """List the values of a key; empty if it is absent."""
    return list(get_config_value(block, key) or ())


def get_config_block(config: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Get the mapping at a dotted path; None if there is none."""
    node: Any = config
    for key in path.split("."):
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node if isinstance(node, Mapping) else None


def get_config_value(block: Mapping[str, Any], key: str | None) -> Any:
    """Get the value of a key; None if it is absent or marked as missing."""
    if key is None or key not in block:
        return None
    value = block[key]
    return None if isinstance(value, str) and value == MISSING else value
