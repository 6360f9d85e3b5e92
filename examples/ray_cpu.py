"""A three-worker Ray job in the shape of an RL step, profiled by `capture`: a laptop does it in under a minute.

    pip install './capture[torch]' ray
    python examples/ray_cpu.py [OUT] [--steps 6] [--profile 2 3 4 5]
    tracekit analyze OUT/outputs/profile

Three ranks with a data-parallel policy over gloo, CPU only: they generate, score, and update the policy
in two mini-batches. `OUT/outputs/profile` gets a trace of every rank and profiled step and a manifest of
every rank, `OUT/metrics.jsonl` the times of all steps. Rank 1 has three times the samples of the others: a
straggler to find. One needs three ranks for that: of two, either may be the odd one.
"""

import argparse
import os
import socket
from pathlib import Path
from typing import Any

import ray

import capture.ray
from capture import DistProfiler, ProfilerConfig, TorchProfilerToolConfig, marked_timer
from capture.metrics import MetricsLogger
from capture.steps import StepPlan

RANKS, STRAGGLER, TIMES = 3, 1, 3
WIDTH, TOKENS, SAMPLES, MINI_BATCHES = 512, 24, 48, 8


class Policy:
    """One rank: a small network, its optimizer, and the stages of a step."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        import torch

        self.rank = rank
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        torch.manual_seed(0)
        layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        self.network = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-4)
        self.samples = SAMPLES * (TIMES if rank == STRAGGLER else 1)

    @DistProfiler.annotate(role="rollout_generate")
    def generate(self) -> None:
        """One token after another."""
        import torch

        tokens = [torch.randn(self.samples, WIDTH)]
        with torch.no_grad():
            for _ in range(TOKENS):
                tokens.append(self.network(tokens[-1]))
        self.batch = torch.stack(tokens, 1)

    @DistProfiler.annotate(role="actor_compute_log_prob")
    def compute_log_prob(self) -> None:
        """The old log-probabilities of what was generated."""
        import torch

        with torch.no_grad():
            self.old = self.network(self.batch).log_softmax(-1)

    @DistProfiler.annotate(role="actor_update", scheduled=True)
    def update_actor(self) -> None:
        """Mini-batches of forward, backward, one all-reduce of all gradients and an optimizer step."""
        import torch

        world = torch.distributed.get_world_size()
        pairs = zip(self.batch.chunk(MINI_BATCHES), self.old.chunk(MINI_BATCHES), strict=True)
        for number, (batch, old) in enumerate(pairs):
            with torch.profiler.record_function(f"mini_batch{number}"):
                ratio = (self.network(batch).log_softmax(-1) - old).exp()
                ratio.mean().backward()
                parameters = list(self.network.parameters())
                gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
                torch.distributed.all_reduce(gradients)
                torch.nn.utils.vector_to_parameters(gradients / world, [p.grad for p in parameters])
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.profiler.step()


def configuration(folder: Path) -> ProfilerConfig:
    """Every rank, a trace a step, with the host's operations only."""
    return ProfilerConfig(
        tool="torch",
        enable=True,
        all_ranks=True,
        save_path=str(folder),
        tool_config=TorchProfilerToolConfig(contents=["cpu"]),
    )


def main() -> None:
    """Start the workers, run the steps, and profile those of the plan."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path())
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--profile", type=int, nargs="*", default=[2, 3, 4, 5])
    options = parser.parse_args()
    folder = (options.out / "outputs" / "profile").resolve()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    here = Path(__file__).resolve().parent.parent
    paths = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))
    environment: dict[str, Any] = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(num_cpus=RANKS, include_dashboard=False, runtime_env=environment)
    worker = ray.remote(capture.ray.profiled(configuration(folder), role="actor_rollout")(Policy))
    workers = [worker.remote(rank, RANKS, port) for rank in range(RANKS)]
    ray.get([one.__ray_ready__.remote() for one in workers])

    plan = StepPlan.of(options.profile)
    metrics = MetricsLogger(options.out / "metrics.jsonl")
    for step in range(1, options.steps + 1):
        times: dict[str, float] = {}
        last = step == options.steps
        with capture.ray.profiling(workers, step, plan, last=last), marked_timer("step", times):
            for stage, method in (
                ("gen", "generate"),
                ("old_log_prob", "compute_log_prob"),
                ("update_actor", "update_actor"),
            ):
                with marked_timer(stage, times):
                    ray.get([getattr(one, method).remote() for one in workers])
        metrics.log_metrics(step, timings=times)
        print(f"step {step}: {times['step']:.2f} s")
    ray.shutdown()
    print(f"tracekit analyze {folder}")


if __name__ == "__main__":
    main()
