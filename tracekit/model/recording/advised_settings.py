"""Settings that advice names, by topic and framework: those of OpenRLHF, TRL, slime, ROLL and AReaL, each with its source.

The advice for verl and NeMo-RL contains its settings in the text of each rule.
"""

from __future__ import annotations

from collections.abc import Mapping

TOPICS = (
    *("trainer-wait", "generation-tail", "sequence-imbalance", "training-mfu"),
    *("validation", "checkpoint", "weight-sync"),
)

ADVISED_SETTINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # OpenRLHF/OpenRLHF, openrlhf/cli/train_ppo_ray.py at 021d1b09641902f7f06dc42331c75b37793ca950.
    "openrlhf": {
        "trainer-wait": ("--vllm_num_engines", "--async_queue_size"),
        "generation-tail": ("--generate_max_len", "--overlong_buffer_len"),
        "sequence-imbalance": ("--use_dynamic_batch", "--train_max_tokens_per_gpu"),
        "training-mfu": ("--micro_train_batch_size", "--packing_samples", "--adam_offload"),
        "validation": ("--eval_steps", "--eval_n_samples_per_prompt"),
        "checkpoint": ("--save_steps",),
        "weight-sync": ("--vllm_sync_backend",),
    },
    # huggingface/trl, trl/experimental/async_grpo/async_grpo_config.py at 019ac735792bb3a56e904d4d086d3bfa13acf8e2.
    "trl": {
        "trainer-wait": ("max_staleness", "max_inflight_tasks"),
        "generation-tail": ("max_completion_length",),
        "training-mfu": ("per_device_train_batch_size", "gradient_accumulation_steps"),
        "weight-sync": ("weight_sync_steps",),
    },
    # THUDM/slime, slime/utils/arguments.py at 002fa9d6bac42357d127df88ba01853fc56f939b.
    "slime": {
        "trainer-wait": ("--rollout-num-gpus",),
        "generation-tail": ("--rollout-max-response-len", "--over-sampling-batch-size", "--partial-rollout"),
        "sequence-imbalance": ("--balance-data", "--use-dynamic-batch-size"),
        "training-mfu": ("--use-dynamic-batch-size", "--max-tokens-per-gpu"),
        "validation": ("--eval-interval", "--n-samples-per-eval-prompt"),
        "checkpoint": ("--save-interval", "--async-save"),
        "weight-sync": ("--update-weight-buffer-size", "--update-weight-transport"),
    },
    # alibaba/ROLL, roll/configs/base_config.py at 0a6a47e5afdc97749b353425b54f45296d9df3ff, and for the ratio of
    # generation ahead its guide of asynchronous training, which quotes that file.
    "roll": {
        "trainer-wait": ("async_generation_ratio",),
        "generation-tail": ("response_length", "max_additional_running_prompts", "async_generation_ratio"),
        "training-mfu": ("is_offload_states", "is_offload_optimizer_states_in_train_step"),
        "validation": ("eval_steps", "val_batch_size"),
        "checkpoint": ("save_steps",),
        "weight-sync": ("model_update_buffer_size_mb",),
    },
    # inclusionAI/AReaL, examples/math/gsm8k_grpo.yaml at 00d07c047ebfbb3fc2a3581d656f6cca07eeef1a.
    "areal": {
        "trainer-wait": ("rollout.max_head_offpolicyness", "rollout.max_concurrent_rollouts"),
        "generation-tail": ("gconfig.max_new_tokens", "rollout.max_head_offpolicyness"),
        "sequence-imbalance": ("actor.mb_spec.max_tokens_per_mb",),
        "training-mfu": ("actor.mb_spec.max_tokens_per_mb",),
        "validation": ("evaluator.freq_steps",),
        "checkpoint": ("saver.freq_steps",),
        "weight-sync": ("actor.weight_update_mode",),
    },
}


def name_advised_settings(topic: str, framework: str) -> str:
    """Name the settings of a framework at the end of an advice; empty where none is known.

    >>> name_advised_settings("checkpoint", "slime"), name_advised_settings("checkpoint", "verl")
    (' (--save-interval, --async-save)', '')
    """
    assert topic in TOPICS, topic
    keys = ADVISED_SETTINGS.get(framework, {}).get(topic, ())
    return f" ({', '.join(keys)})" if keys else ""
