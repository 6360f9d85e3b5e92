"""Profiles a small real training run on four CPU processes, clean or with one known fault planted in it.

    pip install torch==2.13.0
    python examples/make_gloo_faults.py OUT [--faults clean,rotating,...] [--steps 5] [--small] [--ranks 2]

Every run leaves `OUT/<fault>/rank<r>.pt.trace.json.gz` and `truth.json`: what was planted where, and
the steps and stages by a clock outside the profiler. The stages are those of an RL step: `gen`,
`reward`, `old_log_prob`, `ref`, `adv`, `update_actor` with two mini-batches, `update_weights`.
"""

import argparse
import contextlib
import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WORLD, WIDTH, BATCH = 4, 256, 32
LAYERS, CALLS = 3, 8
"""Of the network, and calls of it in a stage; one of each makes small traces."""
WARMUP = 2
PINNED = ("contention", "contention_clean")
"""Runs that always have two ranks, each on a core of its own."""

FAULTS = {
    "clean": "nothing is planted",
    "straggler_ref": "rank {1} multiplies matrices for 150 ms more in ref, every step",
    "rotating": "in update_actor another rank each step sleeps for 120 ms",
    "rollout": "rank {3} generates three times as much",
    "loader": "the data loader sleeps for 60 ms a batch, without workers",
    "small_collectives": "600 all-reduces of 4 bytes in adv, every step",
    "tiny_ops": "4,000 additions of a scalar in update_actor, every step",
    "leak": "4 MiB kept every step; memory is profiled",
    "gc": "rank {2} holds a million objects that point at one another, and collects garbage in update_actor, every step",
    "loader_one_rank": "the data loader of rank {1} sleeps for 120 ms a batch, without workers",
    "more_samples": "rank {2} has 24 times as many samples as the others",
    "one_pause": "rank {3} sleeps for 400 ms in ref, in one step",
    "contention": "two ranks, each on a core; four busy processes share that of rank {1}",
    "contention_clean": "two ranks, each on a core",
    "ragged": "the second of the two mini-batches holds one sample, the first all others",
    "reward_pause": "every rank sleeps for 80 ms in reward, every step",
    "step_pause": "every rank sleeps for 80 ms between two steps",
    "python_loop": "every rank runs a loop of Python for 80 ms in adv, every step",
}
"""What is planted. Numbers in braces are ranks of four; a run of fewer ranks counts them modulo its own."""


class Job:
    """What one rank trains, and the clock of its stages."""

    def __init__(self, rank: int, world: int, fault: str, steps: int, small: bool) -> None:
        self.rank, self.world, self.fault, self.calls = rank, world, fault, 1 if small else CALLS
        self.batch = BATCH * (24 if self.has("more_samples", 2) else 1)
        layers = 1 if small else LAYERS
        self.actor, self.reference, self.rollout = (network(layers) for _ in range(3))
        self.model = torch.nn.parallel.DistributedDataParallel(self.actor)
        self.optimizer: torch.optim.Optimizer
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=False)
        if small:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, foreach=False)
        seconds = 0.060 if fault == "loader" else 0.0
        if self.has("loader_one_rank", 1):
            seconds = 0.120
        prompts = Prompts(self.batch * (steps + WARMUP + 2), seconds / BATCH)
        self.batches = iter(torch.utils.data.DataLoader(prompts, batch_size=self.batch))
        self.kept: list[torch.Tensor] = []
        self.objects = list(tangle(1_000_000)) if self.has("gc", 2) else []
        self.truth: list[dict[str, int]] = []

    def has(self, fault: str, rank: int) -> bool:
        """Whether this fault is planted, and in this rank: one of four, counted modulo the ranks there are."""
        return self.fault == fault and self.rank == rank % self.world

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The stage in the profile, and its time by a clock outside of it."""
        start = time.perf_counter_ns()
        with record_function(name):
            yield
        self.truth[-1][name] = time.perf_counter_ns() - start

    def step(self, number: int) -> None:
        """One RL step."""
        self.truth.append({})
        begin = time.perf_counter_ns()
        rows = next(self.batches)
        with self.stage("gen"), torch.no_grad():
            longer = 3 if self.has("rollout", 3) else 1
            for _ in range(4 * self.calls * longer):
                rows = torch.tanh(self.rollout(rows))
        with self.stage("reward"):
            reward = rows.mean(1)
            if self.fault == "reward_pause":
                time.sleep(0.080)
        with self.stage("old_log_prob"), torch.no_grad():
            old = sum(self.actor(rows) for _ in range(self.calls))
        with self.stage("ref"), torch.no_grad():
            target = sum(self.reference(rows) for _ in range(self.calls))
            if self.has("straggler_ref", 1):
                multiply(0.150)
            if self.has("one_pause", 3) and number == 3:
                time.sleep(0.400)
        with self.stage("adv"):
            advantage = self.advantage(reward)
        with self.stage("update_actor"):
            self.update(number, rows, advantage + 0 * (old - target).mean())
        if self.fault == "leak":
            self.kept.append(torch.ones(2**20))
        with self.stage("update_weights"), torch.no_grad():
            both = zip(self.actor.parameters(), self.rollout.parameters(), strict=True)
            for source, sink in both:
                dist.broadcast(source.data, 0)
                sink.copy_(source)
        if self.fault == "step_pause":
            time.sleep(0.080)
        self.truth[-1]["step_ns"] = time.perf_counter_ns() - begin

    def advantage(self, reward: torch.Tensor) -> torch.Tensor:
        """The reward less its mean over all ranks."""
        mean = reward.mean(0, keepdim=True)
        gathered = [torch.zeros_like(mean) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mean)
        for _ in range(600 if self.fault == "small_collectives" else 0):
            dist.all_reduce(torch.zeros(1))
        if self.fault == "python_loop":
            count_up(0.080)
        return reward - torch.cat(gathered).mean()

    def update(self, number: int, rows: torch.Tensor, advantage: torch.Tensor) -> None:
        """Two mini-batches."""
        cut = self.batch - 1 if self.fault == "ragged" else self.batch // 2
        for index, part in enumerate((slice(0, cut), slice(cut, self.batch))):
            with record_function(f"mini_batch{index}"):
                if self.fault == "rotating" and index == 0 and self.rank == number % self.world:
                    time.sleep(0.120)
                if self.objects and index == 0:
                    gc.collect()
                if self.fault == "tiny_ops":
                    scalar = torch.zeros(1)
                    for _ in range(2_000):
                        scalar = scalar + 1.0
                self.optimizer.zero_grad(set_to_none=True)
                (self.model(rows[part]).mean(1) * advantage[part]).sum().backward()
                self.optimizer.step()


class Prompts(torch.utils.data.Dataset[torch.Tensor]):
    """Random rows, each of which takes so many seconds to load."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def tangle(count: int) -> Iterator[list[object]]:
    """Objects each of which points at the one before it."""
    last: list[object] = []
    for _ in range(count):
        last = [last]
        yield last


def keep_busy(core: int) -> None:
    """Never; a process on this core that always has something to do."""
    os.sched_setaffinity(0, {core})
    while True:
        multiply(1.0)


def network(count: int) -> torch.nn.Module:
    """A few layers of a perceptron."""
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)]
    return torch.nn.Sequential(*(part for one in layers for part in (one, torch.nn.GELU())))


def count_up(seconds: float) -> None:
    """Count for so long, in Python alone."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def multiply(seconds: float) -> None:
    """Real matrix products for so long."""
    square, until = torch.ones(384, 384), time.perf_counter() + seconds
    while time.perf_counter() < until:
        square = (square @ square) * 1e-3


def train(rank: int, world: int, fault: str, steps: int, small: bool, folder: str, port: int) -> None:
    """One rank of one run."""
    if world < WORLD:
        os.sched_setaffinity(0, {rank})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    job, path = Job(rank, world, fault, steps, small), Path(folder)
    for number in range(WARMUP):
        job.step(number)
    gc.collect()
    memory = fault == "leak"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path / f"rank{rank}.pt.trace.json.gz")),
        record_shapes=not (memory or small),
        profile_memory=memory,
    ) as profiler:
        for number in range(steps + 1):
            job.step(number)
            profiler.step()
    (path / f"truth{rank}.json").write_text(json.dumps(job.truth[WARMUP + 1 :]))
    dist.barrier()
    dist.destroy_process_group()


def describe(fault: str, world: int) -> str:
    """What is planted in a run of so many ranks."""
    return FAULTS[fault].format(*(rank % world for rank in range(WORLD)))


def run(fault: str, steps: int, small: bool, folder: Path, port: int, world: int = WORLD) -> None:
    """All ranks of one run, and its `truth.json`. With fewer than four ranks, each has a core of its own."""
    world = 2 if fault in PINNED else world
    folder.mkdir(parents=True, exist_ok=True)
    context = processes.get_context("spawn")
    rivals = [context.Process(target=keep_busy, args=(1,), daemon=True) for _ in range(4 * (fault == "contention"))]
    for rival in rivals:
        rival.start()
    processes.spawn(train, (world, fault, steps, small, str(folder), port), nprocs=world)
    for rival in rivals:
        rival.terminate()
    parts = [folder / f"truth{rank}.json" for rank in range(world)]
    ranks = [json.loads(part.read_text()) for part in parts]
    for part in parts:
        part.unlink()
    truth = {"fault": fault, "planted": describe(fault, world), "world_size": world, "ranks": ranks}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> None:
    """Make the runs that are asked for, all by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma separated")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--small",
        action="store_true",
        help="a network of one layer, called once in a stage, SGD, no shapes",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=WORLD,
        help="ranks of a run (4); with fewer, each is pinned to a core of its own",
    )
    options = parser.parse_args()
    for index, fault in enumerate(options.faults.split(",")):
        run(fault, options.steps, options.small, options.out / fault, 29_650 + index, options.ranks)
        print(f"{fault}: {describe(fault, options.ranks)}", flush=True)


if __name__ == "__main__":
    main()
