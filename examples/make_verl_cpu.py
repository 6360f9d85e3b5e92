"""Makes a profile as `verl_cpu` is: verl's own worker groups and profiler around a model of one layer, on a CPU.

    python examples/make_verl_cpu.py OUT [--fault slow_reward] [--steps 1,2,4]

Needs verl 0.9.1, Ray and torch (`make tools` makes an environment of them). No trainer of verl runs: this
program calls the workers in the order of verl's PPO trainer, starts and stops their profilers at the steps
that verl would, and times the calls with verl's timers. OUT gets `outputs/profile/`, `metrics.jsonl` and
`config_profiler.yaml`. A fault makes one stage slower: `tests/benchmarks/verl_pairs.py` compares such runs with clean ones.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import ray
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler, DistProfilerExtension, marked_timer
from verl.utils.tracking import Tracking

RANKS = 2
SAMPLES, MINI_BATCH, MICRO_BATCH, INFERENCE_BATCH = 16, 8, 4, 8
TOKENS, PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 48, 4, 8, 4
WIDTH, HEADS, VOCABULARY, POSITIONS = 64, 4, 256, 512

FAULTS = {
    "": "nothing is planted",
    "slow_reward": "every rank calls a function that sleeps for 80 ms after compute_log_prob has scored the samples",
    "slow_rank": "rank 1 multiplies matrices for 80 ms more in update_actor",
}

OVERRIDES = [
    "global_profiler.tool=torch",
    "actor_rollout_ref.actor.profiler.enable=True",
    "actor_rollout_ref.actor.profiler.all_ranks=True",
    "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[cpu]",
    "critic.profiler.enable=True",
    "critic.profiler.all_ranks=True",
    "critic.profiler.tool_config.torch.contents=[cpu]",
]


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wider, self.narrower = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        batch, tokens, _ = hidden.shape
        projected = self.queries_keys_values(self.before_attention(hidden))
        by_head = projected.view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*by_head, is_causal=True)
        hidden = hidden + self.joined(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return hidden + self.narrower(functional.gelu(self.wider(self.before_feed(hidden))))


class Model(nn.Module):
    """A transformer of one layer; `outputs` numbers for every token."""

    def __init__(self, outputs=VOCABULARY):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Embedding(POSITIONS, WIDTH),
        )
        self.block, self.norm, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, ids):
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.block(hidden)))


class ProfiledWorker(Worker, DistProfilerExtension):
    """A worker with verl's profiler, built as verl's own workers build it."""

    def __init__(self, block, prefix):
        Worker.__init__(self)
        torch.set_num_threads(1)
        if not distributed.is_initialized():
            distributed.init_process_group("gloo")
        config = omega_conf_to_dataclass(block)
        tool_config = config.tool_config[config.tool]
        profiler = DistProfiler(self.rank, config, tool_config, save_file_prefix=prefix)
        DistProfilerExtension.__init__(self, profiler)

    def samples(self, step, count, tokens):
        """Token ids, the same in every run."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        return torch.randint(0, VOCABULARY, (count, tokens), generator=generator)

    def infer(self, model, step):
        """What the model says of every sample, by micro-batches."""
        ids, means = self.samples(step, SAMPLES, TOKENS), []
        for number, batch in enumerate(ids.split(INFERENCE_BATCH)):
            with record_function(f"micro_batch{number}"), torch.no_grad():
                chosen = batch[:, 1:, None] % model.head.out_features
                means.append(model(batch[:, :-1]).log_softmax(-1).gather(-1, chosen))
        return torch.cat(means).mean().item()

    def train(self, model, optimizer, step):
        """The last loss of one pass over the samples, by mini- and micro-batches named as verl names them."""
        ids = self.samples(step, SAMPLES, TOKENS)
        for number, start in enumerate(range(0, SAMPLES, MINI_BATCH)):
            with record_function(f"mini_batch{number}"):
                optimizer.zero_grad()
                parts = ids[start : start + MINI_BATCH].split(MICRO_BATCH)
                for place, batch in enumerate(parts):
                    synchronised = place == len(parts) - 1
                    alone = contextlib.nullcontext() if synchronised else model.no_sync()
                    with record_function(f"micro_batch{place}"), alone:
                        logits = model(batch[:, :-1])
                        wanted = (batch[:, 1:] % logits.shape[-1]).flatten()
                        loss = functional.cross_entropy(logits.flatten(0, 1), wanted) / len(parts)
                        loss.backward()
                optimizer.step()
            self.profiler.step()
        return loss.item()


class ActorRolloutRef(ProfiledWorker):
    """The actor, which generates too, and the reference model."""

    def __init__(self, block, fault):
        super().__init__(block, "actor_rollout_ref")
        self.fault = fault
        torch.manual_seed(0)
        self.actor = DistributedDataParallel(Model())
        self.ref = Model().requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.AdamW(self.actor.parameters(), lr=1e-3)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="red", role="rollout_generate")
    def generate_sequences(self, step):
        ids = self.samples(step, PROMPTS, PROMPT_TOKENS)
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                following = self.actor.module(ids)[:, -1].argmax(-1, keepdim=True)
                ids = torch.cat([ids, following], 1)
        return ids.shape[1]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
    def compute_log_prob(self, step):
        scores = self.infer(self.actor.module, step)
        if self.fault == "slow_reward":
            time.sleep(0.08)
        return scores

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="olive", role="ref_compute_log_prob")
    def compute_ref_log_prob(self, step):
        return self.infer(self.ref, step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_actor(self, step):
        if self.fault == "slow_rank" and self.rank == 1:
            square, until = torch.ones(256, 256), time.perf_counter() + 0.08
            while time.perf_counter() < until:
                square = (square @ square) * 1e-3
        return self.train(self.actor, self.optimizer, step)


class Critic(ProfiledWorker):
    """The critic."""

    def __init__(self, block):
        super().__init__(block, "value_model")
        torch.manual_seed(1)
        self.model = DistributedDataParallel(Model(outputs=2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="cyan", role="compute_values")
    def compute_values(self, step):
        return self.infer(self.model.module, step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="pink", role="critic_update")
    def update_critic(self, step):
        return self.train(self.model, self.optimizer, step)


def worker_group(worker, *arguments):
    """A Ray worker group of verl's, on CPUs."""
    made = RayClassWithInitArgs(ray.remote(worker), *arguments)
    pool = RayResourcePool(process_on_nodes=[RANKS], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, device_name="cpu")


def profiler_blocks(steps):
    """(global, actor's, critic's) profiler configuration, as Hydra resolves verl's own with `OVERRIDES`."""
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        whole = compose("ppo_trainer", overrides=[*OVERRIDES, f"global_profiler.steps=[{steps}]"])
    chosen = (whole.global_profiler, whole.actor_rollout_ref.actor.profiler, whole.critic.profiler)
    return [OmegaConf.create(OmegaConf.to_container(block, resolve=True)) for block in chosen]


def train_step(actor, critic, step, timing):
    """One step in the order of PPO, every stage timed as verl times it."""
    stages = {
        "gen": lambda: actor.generate_sequences(step),
        "reward": lambda: time.sleep(0.01),
        "old_log_prob": lambda: actor.compute_log_prob(step),
        "ref": lambda: actor.compute_ref_log_prob(step),
        "values": lambda: critic.compute_values(step),
        "adv": lambda: torch.randn(256, 256).cumsum(0),
        "update_critic": lambda: critic.update_critic(step),
        "update_actor": lambda: actor.update_actor(step),
    }
    with marked_timer("step", timing):
        for name, stage in stages.items():
            with marked_timer(name, timing):
                stage()


def main():
    """One step more than the last that is profiled, and five at least."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--steps", default="1,2,4", help="steps that are profiled")
    chosen = parser.parse_args()
    out = chosen.out
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(Path.cwd() / "metrics.jsonl")
    overall, actor_block, critic_block = profiler_blocks(chosen.steps)
    names = ("global_profiler", "actor_profiler", "critic_profiler")
    written = dict(zip(names, (overall, actor_block, critic_block), strict=True))
    Path("config_profiler.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(written)))
    ray.init(
        num_cpus=2 * RANKS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    actor, critic = worker_group(ActorRolloutRef, actor_block, chosen.fault), worker_group(Critic, critic_block)
    log = Tracking("tracekit", "verl_cpu", default_backend=["file"], config={})
    for step in range(1, max(overall.steps) + 2):
        timing, profiled = {}, step in overall.steps
        with marked_timer("start_profile", timing):
            if profiled:
                actor.start_profile(role="train", profile_step=step)
                critic.start_profile(profile_step=step)
        train_step(actor, critic, step, timing)
        with marked_timer("stop_profile", timing):
            if profiled:
                last = step == max(overall.steps)
                actor.stop_profile(run_command=last)
                critic.stop_profile(run_command=last)
        values = {f"timing_s/{name}": seconds for name, seconds in timing.items()}
        log.log({**values, "training/global_step": step}, step=step)
    ray.shutdown()


if __name__ == "__main__":
    main()
