"""Find settings of a run that cannot take effect: ranks and steps that do not exist, missing tools, old keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capture.config import ProfilerConfig
from capture.run_blocks import ROLES, GlobalProfile, get_config_block, get_config_value, read_role, read_shared

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
"""Tools that record the servers of each engine (verl 0.9.1)."""

_TOOLS = ("nsys", "torch", "torch_memory", "npu", "precision_debugger")
"""Tools of trainers' roles (verl 0.9.1)."""

_LENIENT = frozenset({"trtllm"})
"""Engines whose servers record without `discrete` too, and without any tool."""


def find_problems(config: Mapping[str, Any], total_steps: int | None = None) -> Iterator[str]:
    """Yield a sentence for each setting with a different effect than it seems to have, or none.

    `total_steps` is the length of the run if it is known; the configuration may have it too.
    """
    shared = read_shared(config)
    blocks = {
        role: read_role(config, role) for role in ROLES if get_config_block(config, f"{role}.profiler") is not None
    }
    enabled = {role: block for role, block in blocks.items() if block.enable}
    yield from _old_keys(config, shared)
    tool_problems = {role: _tool_problem(config, role, block, shared) for role, block in enabled.items()}
    records = any(tool_problems[role] is None and _has_rank(config, role, block) for role, block in enabled.items())
    yield from _step_problems(config, shared, enabled, total_steps, records=records)
    steps, total = shared.plan.steps, _total_steps(config, total_steps)
    has_step = len(_absent_steps(steps, total)) < len(steps)
    roles_by_problem: dict[str, list[str]] = {}
    for role, block in enabled.items():
        for problem in _role_problems(config, role, block, shared, tool_problem=tool_problems[role], has_step=has_step):
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


def _absent_steps(steps: Sequence[int], total: int | None) -> list[int]:
    """List the steps that a run never reaches; `total` is its length where it is known."""
    return [step for step in steps if step < 1 or (total is not None and step > total)]


def _total_steps(config: Mapping[str, Any], total: int | None) -> int | None:
    """Return the length of the run, else that of its configuration, else None."""
    if total is None:
        total = get_config_value(get_config_block(config, "trainer") or {}, "total_training_steps")
    return total if isinstance(total, int) else None


def _role_problems(
    config: Mapping[str, Any],
    role: str,
    block: ProfilerConfig,
    shared: GlobalProfile,
    *,
    tool_problem: str | None,
    has_step: bool,
) -> Iterator[str]:
    """Yield the problems of one enabled role, without its name: a rollout's block often repeats the actor's."""
    if tool_problem:
        yield tool_problem
        return  # without a tool nothing else about the role matters
    yield from _rank_problems(config, role, block, has_step=has_step)
    if _is_server(role):
        yield from _server_problems(config, role, block)
    elif shared.tool and block.tool != shared.tool:
        yield (
            f"the role records with {block.tool}, but processes start as the global tool {shared.tool} "
            "needs; set both to the same tool"
        )
    yield from _options_without_effect(role, block, shared)


def _old_keys(config: Mapping[str, Any], shared: GlobalProfile) -> Iterator[str]:
    """Yield keys of 2025-06 that have no effect next to the block that replaced them."""
    if get_config_block(config, "global_profiler") is None:
        return
    trainer = get_config_block(config, "trainer") or {}
    for old, new in _OLD_GLOBAL.items():
        if get_config_value(trainer, old) is not None:
            yield f"trainer.{old}: old key without effect, use {new}"
    for role in ROLES:
        block = get_config_block(config, f"{role}.profiler") or {}
        if "discrete" in block and ("enable" in block or "tool" in block):
            tool = get_config_value(block, "tool") or shared.tool or "TOOL"
            new = f"{role}.profiler.tool_config.{tool}.discrete"
            yield f"{role}.profiler.discrete: old key without effect, use {new}"


def _step_problems(
    config: Mapping[str, Any],
    shared: GlobalProfile,
    enabled: Mapping[str, ProfilerConfig],
    total: int | None,
    *,
    records: bool,
) -> Iterator[str]:
    """Yield steps without a role, roles without a step, and steps that never come; `records`: some role has a tool."""
    if shared.plan.steps and not enabled:
        yield (
            "global_profiler.steps names steps, but no role's profiler is enabled: nothing is profiled; "
            "set actor_rollout_ref.actor.profiler.enable=True"
        )
    if enabled and not shared.plan.steps:
        yield f"{', '.join(enabled)}: enabled, but global_profiler.steps names no step: nothing is profiled"
    steps = get_config_value(get_config_block(config, "global_profiler") or {}, "steps")
    if isinstance(steps, (int, str)):
        yield f"global_profiler.steps is {steps!r}, not a list: verl's trainers fail on it; write [1,2]"
    total = _total_steps(config, total)
    absent = _absent_steps(shared.plan.steps, total)
    if absent and enabled:
        is_rest = records and len(absent) < len(shared.plan.steps)
        rest = "the other steps are" if is_rest else "nothing is"
        length = "steps count from 1" if total is None else f"this run has steps 1 to {total}"
        yield f"steps {absent}: {length}; {rest} profiled"


def _tool_problem(config: Mapping[str, Any], role: str, block: ProfilerConfig, shared: GlobalProfile) -> str | None:
    """Say why an enabled role has no tool; None where it has one."""
    if _is_server(role) and _engine(config, role) in _LENIENT:
        return None
    if block.tool is None:
        return "enabled, but neither the role nor the global block names a tool: nothing is profiled; set global_profiler.tool"
    own = get_config_block(config, f"{role}.profiler") or {}
    if "tool" in own and own["tool"] is None:
        return (
            f"enabled, but its own tool is null, which the global tool {shared.tool} "
            f"does not replace: nothing is profiled; set {role}.profiler.tool={shared.tool}"
        )
    if block.tool not in _TOOLS:
        return f"there is no tool {block.tool!r}: nothing is profiled; tools are {', '.join(_TOOLS)}"
    return None


def _rank_problems(config: Mapping[str, Any], role: str, block: ProfilerConfig, *, has_step: bool) -> Iterator[str]:
    """Yield the ranks that the run does not have, where the configuration says how many it has."""
    world, absent = _world_size(config, role), _absent_ranks(config, role, block)
    if world is not None and absent:
        is_rest = has_step and _has_rank(config, role, block)
        rest = "only the others" if is_rest else "nothing"
        last = f"ranks 0 to {world - 1}" if world > 1 else "rank 0 only"
        verb = "is" if rest == "nothing" else "are"
        yield f"ranks {absent} do not exist: the run has {last}; {rest} {verb} profiled"


def _absent_ranks(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> list[int]:
    """Return the ranks of a block that the run does not have; empty if the number of ranks is unknown."""
    world = _world_size(config, role)
    if world is None or block.all_ranks:
        return []
    ranks: list[Any] = block.ranks  # verl ignores all of them
    return [rank for rank in ranks if isinstance(rank, int) and not 0 <= rank < world]


def _has_rank(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> bool:
    """Whether the run has at least one rank of a block (rank 0 if the block lists none)."""
    return not block.ranks or len(_absent_ranks(config, role, block)) < len(block.ranks)


def _world_size(config: Mapping[str, Any], role: str) -> int | None:
    """Return the maximum number of ranks of a role; None if the configuration does not have it."""
    size = _pool_size(get_config_block(config, "trainer") or {})
    if size is None or not _is_server(role):
        return size
    pools = (
        get_config_block(config, role),
        get_config_block(config, role.rpartition(".")[0]),
        get_config_block(config, "rollout"),
    )
    return size + sum(_pool_size(pool) or 0 for pool in pools if pool is not None)


def _pool_size(pool: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs in a pool: nodes times GPUs per node; None if either is missing."""
    nodes, gpus = get_config_value(pool, "nnodes"), get_config_value(pool, "n_gpus_per_node")
    return nodes * gpus if isinstance(nodes, int) and isinstance(gpus, int) else None


def _is_server(role: str) -> bool:
    """Whether a role's work is done by inference servers, each a process of its own."""
    return role.endswith(".rollout")


def _engine(config: Mapping[str, Any], role: str) -> str:
    """Get the inference engine of a role's servers."""
    return str(get_config_value(get_config_block(config, role) or {}, "name") or "vllm")


def _server_problems(config: Mapping[str, Any], role: str, block: ProfilerConfig) -> Iterator[str]:
    """Yield the reason why the servers of an enabled role record nothing; verl's servers do not log it."""
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
    """Whether a role's own tool settings enable `discrete`, for any tool."""
    settings = get_config_block(config, f"{role}.profiler.tool_config.{block.tool}")
    return is_discrete(block) if settings is None else bool(get_config_value(settings, "discrete"))


def is_discrete(block: ProfilerConfig) -> bool:
    """Whether a block asks for a capture of each stage."""
    settings = block.tool_config
    return bool(settings.get("discrete", False)) if isinstance(settings, Mapping) else False


def _problems_of_one_worker(
    blocks: Mapping[str, ProfilerConfig], enabled: Mapping[str, ProfilerConfig]
) -> Iterator[str]:
    """Yield conflicts between actor and reference, which share a worker; rollout servers have their own processes."""
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


def _options_without_effect(role: str, block: ProfilerConfig, shared: GlobalProfile) -> Iterator[str]:
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
