"""Find what a run's configuration asks for and will not get: ranks and steps that do not exist, tools that nobody is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capture.config import ProfilerConfig
from capture.run_blocks import ROLES, GlobalProfile, at, given, read_role, read_shared

_TOKENS = ("profile_token_start", "profile_token_end")
_OLD_GLOBAL = {
    "profile_steps": "global_profiler.steps",
    "controller_nsight_options": "global_profiler.global_tool_config.nsys.controller_nsight_options",
    "worker_nsight_options": "global_profiler.global_tool_config.nsys.worker_nsight_options",
}
"""The keys of `trainer` in verl's configuration of 2025-06, and the keys that replaced them."""

_SERVER_TOOLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("vllm", "vllm_omni", "sglang"), ("torch", "npu")),
    "trtllm": ("torch", "npu", "nsys"),
}
"""The tools that the servers of an engine record with (verl 0.9.1)."""

_TOOLS = ("nsys", "torch", "torch_memory", "npu", "precision_debugger")
"""The tools of trainers' roles (verl 0.9.1)."""

_LENIENT = frozenset({"trtllm"})
"""The engines whose servers record without `discrete` too, and without any tool."""


def find_problems(config: Mapping[str, Any], total_steps: int | None = None) -> Iterator[str]:
    """Yield a sentence for each part of a configuration that has another effect than it seems to, or none.

    `total_steps` is the length of the run where it is known; else the configuration may say it.
    """
    shared = read_shared(config)
    blocks = {
        role: read_role(config, role)
        for role in ROLES
        if at(config, f"{role}.profiler") is not None
    }
    enabled = {role: block for role, block in blocks.items() if block.enable}
    yield from _old_keys(config, shared)
    yield from _step_problems(config, shared, enabled, total_steps)
    roles_by_problem: dict[str, list[str]] = {}
    for role, block in enabled.items():
        for problem in _role_problems(config, role, block, shared):
            roles_by_problem.setdefault(problem, []).append(role)
    for problem, roles in roles_by_problem.items():
        yield f"{', '.join(roles)}: {problem}"
    for name, options in (
        ("controller_nsight_options", shared.controller_nsight_options),
        ("worker_nsight_options", shared.worker_nsight_options),
    ):
        if "output" in options:
            yield f"{name}.output: Ray passes `-o` to nsys too, and nsys refuses both: name the key `o`"
    yield from _problems_of_one_worker(blocks, enabled)


def _role_problems(
    config: Mapping[str, Any], role: str, block: ProfilerConfig, shared: GlobalProfile
) -> Iterator[str]:
    """Yield the problems of one enabled role, without its name: a rollout's block often repeats the actor's."""
    problem = _tool_problem(config, role, block, shared)
    if problem:
        yield problem
        return  # without a tool nothing else about the role matters
    yield from _rank_problems(config, role, block)
    if _is_server(role):
        yield from _server_problems(config, role, block)
    elif shared.tool and block.tool != shared.tool:
        yield (
            f"the role records with {block.tool}, but processes start as the global tool {shared.tool} "
            "needs; set both to the same tool"
        )
    yield from _options_without_effect(role, block, shared)


def find_absent_steps(steps: Sequence[int], total: int | None = None) -> str | None:
    """Name the steps that a run never comes to; None where it comes to all, as far as `total` says."""
    absent = [step for step in steps if step < 1 or (total is not None and step > total)]
    if not absent:
        return None
    never = "nothing is profiled" if len(absent) == len(steps) else "the other steps are profiled"
    length = "steps count from 1" if total is None else f"this run has steps 1 to {total}"
    return f"steps {absent}: {length}; {never}"


def _old_keys(config: Mapping[str, Any], shared: GlobalProfile) -> Iterator[str]:
    """Keys of 2025-06 beside the block that replaced them: nothing reads them any more."""
    if at(config, "global_profiler") is None:
        return
    trainer = at(config, "trainer") or {}
    for old, new in _OLD_GLOBAL.items():
        if given(trainer, old) is not None:
            yield f"trainer.{old}: old key without effect, use {new}"
    for role in ROLES:
        block = at(config, f"{role}.profiler") or {}
        if "discrete" in block and ("enable" in block or "tool" in block):
            tool = given(block, "tool") or shared.tool or "TOOL"
            new = f"{role}.profiler.tool_config.{tool}.discrete"
            yield f"{role}.profiler.discrete: old key without effect, use {new}"


def _step_problems(
    config: Mapping[str, Any],
    shared: GlobalProfile,
    enabled: Mapping[str, ProfilerConfig],
    total: int | None,
) -> Iterator[str]:
    """Steps without a role, roles without a step, and steps that never come."""
    if shared.plan.steps and not enabled:
        yield (
            "global_profiler.steps names steps, but no role's profiler is enabled: nothing is profiled; "
            "set actor_rollout_ref.actor.profiler.enable=True"
        )
    if enabled and not shared.plan.steps:
        yield f"{', '.join(enabled)}: enabled, but global_profiler.steps names no step: nothing is profiled"
    steps = given(at(config, "global_profiler") or {}, "steps")
    if isinstance(steps, (int, str)):
        yield f"global_profiler.steps is {steps!r}, not a list: verl's trainers fail on it; write [1,2]"
    if total is None:
        total = given(at(config, "trainer") or {}, "total_training_steps")
    absent = find_absent_steps(shared.plan.steps, total if isinstance(total, int) else None)
    if absent and enabled:
        yield absent


def _tool_problem(
    config: Mapping[str, Any], role: str, block: ProfilerConfig, shared: GlobalProfile
) -> str | None:
    """Say why an enabled role has no tool; None where it has one."""
    if _is_server(role) and _engine(config, role) in _LENIENT:
        return None
    if block.tool is None:
        return "enabled, but neither the role nor the global block names a tool: nothing is profiled; set global_profiler.tool"
    own = at(config, f"{role}.profiler") or {}
    if "tool" in own and own["tool"] is None:
        return (
            f"enabled, but its own tool is null, which the global tool {shared.tool} "
            f"does not replace: nothing is profiled; set {role}.profiler.tool={shared.tool}"
        )
    if block.tool not in _TOOLS:
        return (
            f"there is no tool {block.tool!r}: nothing is profiled; tools are {', '.join(_TOOLS)}"
        )
    return None


def _rank_problems(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> Iterator[str]:
    """Ranks that the run does not have, where the configuration says how many it has."""
    world = _world_size(config, role)
    if world is None or block.all_ranks:
        return
    ranks: list[Any] = block.ranks  # verl looks at none of them
    absent = [rank for rank in ranks if isinstance(rank, int) and not 0 <= rank < world]
    if absent:
        rest = "nothing" if len(absent) == len(ranks) else "only the others"
        last = f"ranks 0 to {world - 1}" if world > 1 else "rank 0 only"
        verb = "is" if rest == "nothing" else "are"
        yield f"ranks {absent} do not exist: the run has {last}; {rest} {verb} profiled"


def _world_size(config: Mapping[str, Any], role: str) -> int | None:
    """How many ranks a role has at most; None where the configuration does not say."""
    size = _pool_size(at(config, "trainer") or {})
    if size is None or not _is_server(role):
        return size
    pools = (at(config, role), at(config, role.rpartition(".")[0]), at(config, "rollout"))
    return size + sum(_pool_size(pool) or 0 for pool in pools if pool is not None)


def _pool_size(pool: Mapping[str, Any]) -> int | None:
    """The GPUs of a pool: nodes times GPUs of a node; None where one of them is not given."""
    nodes, gpus = given(pool, "nnodes"), given(pool, "n_gpus_per_node")
    return nodes * gpus if isinstance(nodes, int) and isinstance(gpus, int) else None


def _is_server(role: str) -> bool:
    """Whether a role's work is done by inference servers, each a process of its own."""
    return role.endswith(".rollout")


def _engine(config: Mapping[str, Any], role: str) -> str:
    """The inference engine of a role's servers."""
    return str(given(at(config, role) or {}, "name") or "vllm")


def _server_problems(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> Iterator[str]:
    """Why the servers of an enabled role record nothing: verl's servers say no word of it."""
    engine = _engine(config, role)
    tools = _SERVER_TOOLS.get(engine)
    if tools is None or (block.tool is None and engine in _LENIENT):
        return
    if block.tool not in tools:
        names = " or ".join(tools)
        yield f"{engine} servers record with {names} only, not {block.tool}: they write no trace"
    elif engine not in _LENIENT and not _asks_discrete(config, role, block):
        key = f"{role}.profiler.tool_config.{block.tool}.discrete=True"
        yield f"{engine} servers record only in discrete mode: they write no trace; set {key}"


def _asks_discrete(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> bool:
    """Whether a role's own settings of its tool say `discrete`, whatever the tool is."""
    settings = at(config, f"{role}.profiler.tool_config.{block.tool}")
    return is_discrete(block) if settings is None else bool(given(settings, "discrete"))


def is_discrete(block: ProfilerConfig) -> bool:
    """Whether a block asks for a capture of each stage."""
    settings = block.tool_config
    return bool(settings.get("discrete", False)) if isinstance(settings, Mapping) else False


def _problems_of_one_worker(
    blocks: Mapping[str, ProfilerConfig], enabled: Mapping[str, ProfilerConfig]
) -> Iterator[str]:
    """What actor and reference, which share a worker, cannot each have; rollout servers are processes of their own."""
    actor, ref = (blocks.get(f"actor_rollout_ref.{name}") for name in ("actor", "ref"))
    if ref is None or actor is None or "actor_rollout_ref.ref" not in enabled:
        return
    if not actor.enable:
        yield (
            "actor_rollout_ref.ref: enabled without the actor, whose block decides for their common worker: "
            "set actor_rollout_ref.actor.profiler.enable=True"
        )
    elif is_discrete(actor) != is_discrete(ref):
        yield (
            "actor_rollout_ref.actor, actor_rollout_ref.ref: discrete differs, "
            "and the actor's block decides for their common worker"
        )


def _options_without_effect(
    role: str, block: ProfilerConfig, shared: GlobalProfile
) -> Iterator[str]:
    """Options of an enabled role that do nothing."""
    settings = block.tool_config
    if block.tool == "torch" and not _is_server(role):
        named = [name for name in _TOKENS if settings[name] is not None]
        if named:
            yield f"{', '.join(named)}: no effect here, only rollout servers read it"
    if block.relocate_results and block.tool in ("torch", "torch_memory") and not _is_server(role):
        yield f"relocate_results: no effect, the tool {block.tool} writes to save_path already"
    if block.relocate_results and block.tool == "nsys":
        end = str(shared.worker_nsight_options.get("capture-range-end") or "")
        if not end.startswith(("repeat-shutdown", "stop")):
            yield (
                "relocate_results: nsys writes its reports when the processes end, too late to move them; "
                "set capture-range-end=repeat-shutdown:N, N the number of captures"
            )
