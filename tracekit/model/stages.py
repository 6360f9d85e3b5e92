"""Mapping of recorded names to canonical stages by one alias table; applied by rules, not by readers.

Stages are named for the work of an RL step (`gen`, `old_log_prob`, `update_actor` …), whatever a framework and its
version call the range. An unknown name stays as recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

STAGES: Mapping[str, tuple[str, ...]] = {
    "gen": (
        "gen",
        "generate",
        "generation",
        "generate_sequences",
        "rollout_generate",
        "generate_async",
        "exposed_generation",
        "generate_text",
    ),
    "reward": ("reward", "compute_rm_score", "reward_calculation", "compute_score", "score"),
    "old_log_prob": (
        "old_log_prob",
        "compute_log_prob",
        "actor_compute_log_prob",
        "infer_actor_batch",
        "get_logprobs",
        "get_logprobs_presharded",
    ),
    "ref": (
        "ref",
        "compute_ref_log_prob",
        "ref_compute_log_prob",
        "infer_ref_batch",
        "get_reference_policy_logprobs",
        "get_reference_policy_logprobs_presharded",
    ),
    "teacher": ("teacher", "infer_teacher_batch", "get_topk_logits", "get_topk_logits_presharded"),
    "values": ("values", "compute_values", "critic_compute_values", "get_values", "get_values_presharded"),
    "adv": ("adv", "advantage_calculation", "compute_advantage"),
    "update_critic": ("update_critic", "critic_update", "value_training"),
    "update_actor": ("update_actor", "actor_update", "update_policy", "policy_training"),
    "update_weights": (
        "update_weights",
        "sync_rollout_weights",
        "weight_sync",
        "update_weights_via_ipc_zmq",
        "update_weights_from_collective",
        "stream_weights_via_ipc_zmq",
        "update_weights_via_ipc_handles",
        "stream_weights_via_http",
        "broadcast_weights_for_collective",
        "transfer_and_update_weights",
        "param_sync",
    ),
    "save": ("save_checkpoint", "checkpointing", "save"),
    "test": ("testing", "validate", "validation", "validate_time", "total_validation_time"),
    "forward": ("forward", "forward_pass", "fwd"),
    "backward": ("backward", "backward_pass", "bwd"),
    "optimizer": ("optimizer", "optimizer_step", "optim_step"),
}
"""Canonical stage → names that frameworks record for it."""

RL_STAGES = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
"""Stages of an RL step in execution order."""

VALIDATION = "test"
"""The validation stage: a capture may contain it, but it is not part of a training step."""

_CANONICAL = {alias: stage for stage, aliases in STAGES.items() for alias in aliases}

WHOLE_STEP_SCOPES = ("train", "e2e", "step")
"""Scopes in file names that mean the whole step rather than a stage."""

_PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})\Z")

_NUMBERED_STEP = re.compile(
    r"(?:(?:global|train|training|rl|ppo|grpo|dpo|sft)[ _.-]?)?(?:step|iteration|iter)"
    r"[ _:#=.-]{0,3}(\d{1,18})\Z",
    re.IGNORECASE,
)

_WHOLE_STEP = re.compile(r"(?:(?:global|train|training|rl|ppo|grpo)[ _.-]?)?(?:step|iteration|iter)\Z", re.IGNORECASE)

_COLLECTIVE = re.compile(r"(nccl|gloo|rccl|hccl|mpi|c10d|ucc|xccl):|record_param_comms|p?nccl[A-Z]")

# Annotations of PyTorch itself and of serving engines: calls, modules, compilation, iterations.
_NOT_A_STAGE = re.compile(
    r"Optimizer\.|enumerate\(Data|ProfilerStep|<class |"
    r"DistributedDataParallel|FullyShardedDataParallel|FSDP|Call CompiledFxGraph|"
    r"Torch-Compiled|TorchDynamo|CompiledFunction|PyTorch Profiler|mini_batch|micro_batch|"
    r"execute_(new_|context|diffusion_|\d)|step\[[A-Za-z_]+[ \]]|(eager_)?(prefill|decode|draft)\[|hipGraph|cudaGraph|(?:[\w-]+/)?train_microbatch\Z"
)

_FRAMED = re.compile(r"##\s+(\S.*?)\s+##\Z")
"""Notation of stages in Meta's training loops; PyTorch writes its compiled graphs in the same way."""

_CALL = re.compile(r"\w+(?:\.\w+)*[ .]?\w*\(\)\Z")

_COMPILING = " (dynamo_timed)"
"""Suffix of every range that PyTorch records of its compiler."""


def parse_profiler_step(name: str) -> int | None:
    """Parse the n of a `ProfilerStep#n` range; None for any other name.

    >>> parse_profiler_step("ProfilerStep#12"), parse_profiler_step("train_batch")
    (12, None)
    """
    return _parse_step_number(_PROFILER_STEP, name)


def parse_numbered_step(name: str) -> int | None:
    """Parse the step number from a range that the program itself names after a step; None for any other name.

    >>> [parse_numbered_step(name) for name in ("step 12", "train_step_3", "step:0", "denoise_step_3", "steps")]
    [12, 3, 0, None, None]
    """
    return _parse_step_number(_NUMBERED_STEP, name)


def _parse_step_number(pattern: re.Pattern[str], name: str) -> int | None:
    """Parse the number in the first group of a match at the start of a name; None without a match."""
    match = pattern.match(name)
    return int(match.group(1)) if match else None


def is_whole_step(name: str) -> bool:
    """Whether a range of this name that contains stages is a step without a number.

    >>> [is_whole_step(name) for name in ("step", "training_step", "optimizer_step", "actor_update")]
    [True, True, False, False]
    """
    return _WHOLE_STEP.match(name) is not None


def is_known_stage(name: str) -> bool:
    """Whether a recorded name is an alias of a canonical stage.

    >>> is_known_stage("generate_sequences"), is_known_stage("epoch 1")
    (True, False)
    """
    return get_canonical_stage(name) in STAGES


@lru_cache(4096)
def is_possible_stage(name: str) -> bool:
    """Whether a range of this name can be a stage.

    Collectives, optimizer calls, iterations of a serving engine and empty names cannot.

    >>> is_possible_stage("actor_update"), is_possible_stage("nccl:all_reduce"), is_possible_stage("step[DECODE bs=8]")
    (True, False, False)
    >>> is_possible_stage("## forward ##"), is_possible_stage("## Call CompiledFxGraph f2 ##"), is_possible_stage("## Awaitable wait() ##")
    (True, False, False)
    """
    framed = _FRAMED.match(name)
    if framed is not None:
        name = framed.group(1)
        if _CALL.match(name):
            return False
    elif name.startswith("## "):
        return False
    is_other = _NOT_A_STAGE.match(name) is not None or name.endswith(_COMPILING)
    return bool(name.strip()) and not is_other and not is_collective_range(name)


@lru_cache(4096)
def is_collective_range(name: str) -> bool:
    """Whether a host range of this name is one collective operation."""
    return _COLLECTIVE.match(name) is not None


def get_canonical_stage(name: str, role: str | None = None) -> str:
    """Map a recorded range name or file scope to its canonical stage; an unknown name stays as recorded.

    >>> get_canonical_stage("actor_update"), get_canonical_stage("actor-update"), get_canonical_stage("train_batch", "value-model")
    ('update_actor', 'update_actor', 'update_critic')
    >>> get_canonical_stage("## backward ##"), get_canonical_stage("## data_load ##")
    ('backward', 'data_load')
    """
    framed = _FRAMED.match(name)
    if framed is not None:
        name = framed.group(1)
    owner, _, last = name.rpartition("/")
    plain, whose = last.replace("-", "_"), owner or role
    if plain in ("train_batch", "train", "train_presharded") and whose is not None:
        return "update_critic" if re.search("critic|value", whose) else "update_actor"
    return _CANONICAL.get(plain, name)


def get_stage_name(stage: str | None, role: str | None, scope: str | None) -> str | None:
    """Map a recorded range to its canonical stage; fall back to the stage of the file's scope.

    The fallback applies if there is no range or if it cannot be a stage.

    >>> get_stage_name("actor_update", None, "ref"), get_stage_name("mini_batch 3", None, "ref"), get_stage_name(None, None, None)
    ('update_actor', 'ref', None)
    """
    if stage is not None and is_possible_stage(stage):
        return get_canonical_stage(stage, role)
    return get_scope_stage(scope, role)


def get_scope_stage(scope: str | None, role: str | None = None) -> str | None:
    """Map a file's scope to its canonical stage; None if it covers the whole step or is unknown."""
    if scope is None or scope in WHOLE_STEP_SCOPES:
        return None
    return get_canonical_stage(scope, role)


def make_stage_filter(patterns: Sequence[str]) -> Callable[[str, str | None], bool]:
    """Make a predicate (recorded name, role) that selects the stages matching one of these globs.

    Globs are matched against the whole recorded name and against its canonical stage, ignoring case and treating `-` and
    `_` alike. A pattern that is itself a recorded name of a stage selects that stage.

    >>> wanted = make_stage_filter(["update*", "actor_compute_log_prob"])
    >>> wanted("actor-update", None), wanted("old_log_prob", None), wanted("date", None)
    (True, True, False)
    """
    globs = {
        _normalize_stage_spelling(name)
        for pattern in patterns
        for name in (pattern, get_canonical_stage(_normalize_stage_spelling(pattern)))
    }

    def is_wanted(name: str, role: str | None) -> bool:
        names = {_normalize_stage_spelling(name), _normalize_stage_spelling(get_canonical_stage(name, role))}
        return any(fnmatchcase(spelt, pattern) for spelt in names for pattern in globs)

    return is_wanted


def _normalize_stage_spelling(name: str) -> str:
    """Normalize a name for comparison: lower case, `_` instead of `-`."""
    return name.lower().replace("-", "_")
