"""Settings that advice names, by topic and framework: those of OpenRLHF, TRL, slime, ROLL and AReaL, each with its source.

Each can appear: a framework has a topic only where its log has the values that the rule judges. The advice for verl and
NeMo-RL contains its settings in the text of each rule.
"""

from __future__ import annotations

from collections.abc import Mapping

TOPICS = ("trainer-wait", "generation-tail", "validation", "checkpoint", "weight-sync")

ADVISED_SETTINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # OpenRLHF/OpenRLHF, openrlhf/cli/train_ppo_ray.py at 021d1b09641902f7f06dc42331c75b37793ca950.
    "openrlhf": {
        "weight-sync": ("--vllm_sync_backend",),
    },
    # huggingface/trl, trl/experimental/async_grpo/async_grpo_config.py at 019ac735792bb3a56e904d4d086d3bfa13acf8e2.
    "trl": {
        "trainer-wait": ("max_staleness", "max_inflight_tasks"),
        "weight-sync": ("weight_sync_steps",),
    },
    # THUDM/slime, slime/utils/arguments.py at 002fa9d6bac42357d127df88ba01853fc56f939b.
    "slime": {
        "trainer-wait": ("--rollout-num-gpus",),
        "generation-tail": ("--rollout-max-response-len", "--over-sampling-batch-size", "--partial-rollout"),
        "weight-sync": ("--update-weight-buffer-size", "--update-weight-transport"),
    },
    # alibaba/ROLL, roll/configs/base_config.py at 0a6a47e5afdc97749b353425b54f45296d9df3ff.
    "roll": {
        "weight-sync": ("model_update_buffer_size_mb",),
    },
    # inclusionAI/AReaL, examples/math/gsm8k_grpo.yaml at 00d07c047ebfbb3fc2a3581d656f6cca07eeef1a.
    "areal": {
        "validation": ("evaluator.freq_steps",),
        "checkpoint": ("saver.freq_steps",),
        "weight-sync": ("actor.weight_update_mode",),
    },
}


def name_advised_settings(topic: str, framework: str) -> str:
    """Name the settings of a framework at the end of an advice; empty where none is known.

    >>> name_advised_settings("checkpoint", "areal"), name_advised_settings("checkpoint", "verl")
    (' (saver.freq_steps)', '')
    """
    assert topic in TOPICS, topic
    keys = ADVISED_SETTINGS.get(framework, {}).get(topic, ())
    return f" ({', '.join(keys)})" if keys else ""
