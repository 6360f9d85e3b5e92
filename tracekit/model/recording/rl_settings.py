"""Settings of RL frameworks that findings name: the only values of a run's configuration that tracekit keeps.

A configuration also has addresses, paths and keys of services. They are never kept: a setting that is not in this
list, or whose value is not a number, a switch or one of a few words, is dropped where the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VERL_SETTINGS = frozenset(
    {
        *(f"rollout.{name}" for name in ("nnodes", "n_gpus_per_node")),
        *(f"trainer.{name}" for name in ("nnodes", "n_gpus_per_node", "balance_batch", "test_freq", "save_freq")),
        *(f"async_training.{name}" for name in ("staleness_threshold", "trigger_parameter_sync_step")),
        *(f"async_training.{name}" for name in ("partial_rollout", "use_trainer_do_validate")),
        "trainer.v1.separate_async.hybrid_rollout.enable_switch",
        *(f"trainer.v1.sampler.max_off_policy_{name}" for name in ("threshold", "strategy")),
        "data.max_response_length",
        *(f"reward.{name}" for name in ("num_workers", "sandbox_fusion.max_concurrent")),
        *(
            f"actor_rollout_ref.rollout.{name}"
            for name in (
                *("n", "nnodes", "over_sample_rate", "agent.num_workers", "gpu_memory_utilization", "max_num_seqs"),
                *("multi_turn.max_parallel_calls", "multi_turn.max_assistant_turns"),
                *("checkpoint_engine.backend", "checkpoint_engine.update_weights_bucket_megabytes"),
            )
        ),
        *(
            f"actor_rollout_ref.actor.{name}"
            for name in (
                *("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
                *("fsdp_config.param_offload", "fsdp_config.optimizer_offload", "ulysses_sequence_parallel_size"),
                "checkpoint.async_save",
            )
        ),
        "actor_rollout_ref.model.use_remove_padding",
    }
)

NEMO_RL_SETTINGS = frozenset(
    {
        *("grpo.val_period", "grpo.max_val_samples", "grpo.async_grpo.max_trajectory_age_steps"),
        *("checkpointing.save_period", "policy.train_micro_batch_size"),
        *("policy.sequence_packing.enabled", "policy.dynamic_batching.enabled", "policy.dtensor_cfg.cpu_offload"),
        "policy.generation.colocated.resources.num_nodes",
    }
)

ROLL_SETTINGS = frozenset({"eval_steps", "save_steps"})
AREAL_SETTINGS = frozenset({"evaluator.freq_steps", "saver.freq_steps"})

PROFILER_SETTINGS = frozenset({"global_profiler.tool", "global_profiler.steps"})
"""Settings of verl's profiler: the tool, and the numbers of the profiled steps."""

KNOWN_SETTINGS = VERL_SETTINGS | NEMO_RL_SETTINGS | ROLL_SETTINGS | AREAL_SETTINGS | PROFILER_SETTINGS

_WORDS = frozenset({"true", "false", "none", "null", "naive", "nccl", "nixl", "hccl", "drop", "wait"})
_TOOLS = frozenset({"torch", "nsys", "npu", "torch_memory"})
_STEPS = re.compile(r"\[[0-9]{1,12}(?:, ?[0-9]{1,12}){0,99}\]")
_INTEGER = re.compile("[0-9]+")
_NUMBER = re.compile(r"[-+]?[0-9]{1,12}(?:\.[0-9]{1,12})?(?:[eE][-+]?[0-9]{1,3})?")


def clean_setting(key: str, value: str) -> str | None:
    """Clean the value of a known setting; None for other settings, and for values of another form.

    >>> clean_setting("trainer.test_freq", " 5 "), clean_setting("trainer.balance_batch", "True")
    ('5', 'True')
    >>> clean_setting("trainer.logger.key", "5"), clean_setting("trainer.test_freq", "hf_Zx81")
    (None, None)
    >>> clean_setting("global_profiler.steps", "[2, 4]")
    '[2, 4]'
    """
    if key not in KNOWN_SETTINGS:
        return None
    text = value.strip()
    if key in PROFILER_SETTINGS and (text in _TOOLS or _STEPS.fullmatch(text)):
        return text
    return text if _NUMBER.fullmatch(text) or text.lower() in _WORDS else None


def parse_profiled_steps(settings: Mapping[str, str]) -> frozenset[int]:
    """Parse the numbers of the steps that verl's profiler was set to record; empty without a tool.

    >>> sorted(parse_profiled_steps({"global_profiler.tool": "torch", "global_profiler.steps": "[2, 4]"}))
    [2, 4]
    """
    tool, steps = (settings.get(f"global_profiler.{name}", "none") for name in ("tool", "steps"))
    return frozenset(map(int, _INTEGER.findall(steps))) if tool.lower() not in ("none", "null") else frozenset()
