"""Runs verl's own PPO trainer for five steps on a CPU, with an actor, a reference model and a critic on two ranks.

    python examples/make_verl_ppo.py OUT [key=value …]

Needs verl 0.9.1, Ray and torch (`make tools` makes an environment of them). The model has two layers and
random weights, its tokens are letters, and a prompt wants its letters repeated: all of it is made here, from
seeds, so that two runs have the same losses. `verl_on_cpu.py` beside this is all that is replaced in verl;
`python -m verl.trainer.main_ppo` is what runs. OUT gets `model/`, `critic/`, `prompts.parquet`, `metrics.jsonl`
and `profile/`.
"""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS, STEPS, BATCH = 2, 5, 8
PROMPT_TOKENS, NEW_TOKENS = 24, 12
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{{ '=' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '>' }}{% endif %}"
)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_others):
    """The share of the answer's letters that the prompt wants."""
    del data_source, extra_info
    letters = [letter for letter in solution_str if letter in string.ascii_lowercase]
    return sum(letter in ground_truth for letter in letters) / max(len(letters), 1)


def make_models(out):
    """Write the actor's model, the critic's, and the tokenizer beside each."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForTokenClassification,
        PreTrainedTokenizerFast,
    )

    tokens = ["<pad>", "<eos>", "<unk>", "=", ">", *string.ascii_lowercase]
    letters = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, "<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        num_labels=1,
    )
    torch.manual_seed(0)
    for name, kind in (("model", LlamaForCausalLM), ("critic", LlamaForTokenClassification)):
        kind(config).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


def make_prompts(path):
    """Write the prompts, in the columns that verl reads."""
    import pyarrow as pa
    from pyarrow import parquet

    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=4 + n % 5)) for n in range(BATCH * STEPS)]
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": word}],
            "reward_model": {"style": "rule", "ground_truth": word},
            "extra_info": {"index": number},
        }
        for number, word in enumerate(words)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)


def settings(out):
    """The run as overrides of verl's configuration."""
    plain = {
        "data.train_files": out / "prompts.parquet",
        "data.val_files": out / "prompts.parquet",
        "data.train_batch_size": BATCH,
        "data.max_prompt_length": PROMPT_TOKENS,
        "data.max_response_length": NEW_TOKENS,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": out / "model",
        "critic.model.path": out / "critic",
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "+critic.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.use_kl_loss": True,  # or there is no reference model
        "actor_rollout_ref.actor.ppo_mini_batch_size": BATCH // 2,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.name": "host",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": RANKS,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "critic.ppo_micro_batch_size_per_gpu": 1,
        "critic.optim.lr": 1e-3,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": HERE / "make_verl_ppo.py",
        "trainer.v1.sampler.custom_sampler.path": "pkg://verl_on_cpu",
        "trainer.v1.sampler.custom_sampler.name": "InOrder",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": RANKS,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": STEPS,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.logger": "[console,file]",
        "ray_kwargs.ray_init.num_cpus": 8 * RANKS,
        "+ray_kwargs.ray_init.num_gpus": RANKS,  # slots, see verl_on_cpu.py
        "+ray_kwargs.ray_init.include_dashboard": False,
        "global_profiler.tool": "torch",
        "global_profiler.steps": "[2,4]",
        "global_profiler.save_path": out / "profile",
    }
    for role in ("actor_rollout_ref.actor", "critic"):
        plain[f"{role}.profiler.enable"] = plain[f"{role}.profiler.all_ranks"] = True
        plain[f"{role}.profiler.tool_config.torch.contents"] = "[cpu]"
    for role in (
        "actor_rollout_ref.actor.fsdp_config",
        "critic.fsdp",
        "actor_rollout_ref.ref.fsdp_config",
    ):
        plain[f"{role}.use_torch_compile"] = False  # it wants a compiler
        plain[f"{role}.strategy"] = "fsdp2"  # the first one's weights go over a GPU
    for model in ("actor_rollout_ref.model", "critic.model"):
        plain[f"{model}.use_remove_padding"] = False  # packed samples are flash attention's
    return [f"{key}={value}" for key, value in plain.items()]


def environment(out):
    """What the trainer and, through Ray, its workers find in the environment."""
    here = os.environ
    modules = [*filter(None, here.get("VERL_USE_EXTERNAL_MODULES", "").split(",")), "verl_on_cpu"]
    paths = [str(HERE), *filter(None, here.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **here,
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "PYTHONPATH": os.pathsep.join(paths),
        "VERL_ENGINE_DEVICE": "cuda",  # verl's FSDP engine, which goes by this name
        "VERL_FILE_LOGGER_PATH": str(out / "metrics.jsonl"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(out / "datasets"),
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(RANKS))),  # what Ray counts, and nobody uses
    }


def main():
    """Make what the run needs, and run verl."""
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    make_models(out)
    make_prompts(out / "prompts.parquet")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(out), *sys.argv[2:]]
    return subprocess.run(command, cwd=out, env=environment(out), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
