"""Writes `colocated_memory/`: a snapshot and the log of a trainer with a vLLM engine in its process. The run never took place.

    python examples/make_colocated_memory.py           write what differs
    python examples/make_colocated_memory.py --check   status 1 if a committed file differs

Two steps: the engine generates and sleeps, the trainer updates the actor and empties its cache, the engine wakes up.
The model of the allocator is that of the tests. Sleep mode is unknown to it, as it is to PyTorch: the engine's pools
(30 GiB) count as reserved all the time. Lines of the log subtract them while the engine sleeps, and add 1.5 GiB that
PyTorch does not count (CUDA context, NCCL).
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from example_files import write_or_check  # noqa: E402 - found on the path above
from memory_builder import SIMULATED, Allocator, frame, snapshot  # noqa: E402

FOLDER = Path(__file__).parent / "colocated_memory"
NOTICE = SIMULATED.replace("a model", "examples/make_colocated_memory.py, a model")
GIB, LAYERS, STEPS, PID = 2**30, 4, 3, 4100
START_US = 1_788_249_600_000_000  # 2026-09-01 08:00:00 UTC: 10:00:00 on the log's clock
TOTAL_GIB, OUTSIDE_GIB = 79.1, 1.5

WORKER = "/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py"
RUNNER = "/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py"
TRAIN, MODEL = "/job/train.py", "/job/model.py"
AT = {
    "engine": [frame("create_weights", "/venv/lib/python3.12/site-packages/vllm/linear.py", 190), frame("load_model", WORKER, 315)],
    "kv": [frame("_allocate_kv_cache_tensors", RUNNER, 5012), frame("initialize_kv_cache", RUNNER, 5100)],
    "graph": [frame("graph_capture", "/venv/lib/python3.12/site-packages/vllm/compilation/cuda_graph.py", 210)],
    "weights": [frame("build", TRAIN, 30)],
    "optimizer": [frame("init_optimizer", TRAIN, 34)],
    "activation": [frame("forward", MODEL, 64), frame("update_actor", TRAIN, 66)],
    "gradient": [frame("backward", TRAIN, 68)],
}  # fmt: skip


class Job:
    """The GPU, the lines of the log so far, and whether the engine sleeps."""

    def __init__(self) -> None:
        """Build the trainer, then the engine."""
        self.card, self.lines, self.second, self.asleep_gib = Allocator(), [], 0, 0
        for _ in range(LAYERS):
            self.card.alloc(2 * GIB, AT["weights"], metadata="parameter")
            self.card.alloc(4 * GIB, AT["optimizer"], metadata="optimizer_state")
            self.card.alloc(3 * GIB // 2, AT["engine"], pool=(0, 1))
            self.card.alloc(6 * GIB, AT["kv"], pool=(0, 2))
        self.card.alloc(GIB, AT["graph"], pool=(0, 3))
        self.card.clear_history()

    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.second += seconds
        self.card.now_us = START_US + self.second * 1_000_000

    def log(self, seconds: int, text: str) -> None:
        """Add a line after this time."""
        self.wait(seconds)
        self.lines.append(f"INFO 09-01 10:{self.second // 60:02}:{self.second % 60:02} {text}")

    def log_memory(self, point: str) -> None:
        """Add verl's line about the memory."""
        allocated, reserved = self.card.allocated / GIB, self.card.reserved / GIB
        used = reserved - self.asleep_gib + OUTSIDE_GIB
        self.lines.append(
            f"(WorkerDict pid={PID}) {point}, memory allocated (GB): {allocated:.2f}, memory reserved (GB): {reserved:.2f}, "
            f"device memory used/total (GB): {used:.2f}/{TOTAL_GIB:.2f}"
        )

    def run_step(self, step: int) -> None:
        """Generate, sleep, update the actor, wake up."""
        self.log(40, "[cumem.py:205] CuMemAllocator: sleep freed 30.00 GiB memory in total")
        self.asleep_gib = 30
        self.log_memory("After rollout offload")
        blocks = [self.card.alloc(5 * GIB, AT["activation"], metadata="activation") for _ in range(LAYERS)]
        blocks += [self.card.alloc(2 * GIB, AT["gradient"], metadata="gradient") for _ in range(LAYERS)]
        self.wait(20)
        self.log_memory("Before optimizer step")
        for block in blocks:
            self.card.free(block)
        self.card.empty_cache()
        self.wait(5)
        self.log_memory("After update_actor")
        self.log(30, "[gpu_worker.py:160] It took 0.412 seconds to wake up tags {'weights', 'kv_cache'}.")
        self.asleep_gib = 0
        self.log_memory("After resume kv_cache")
        self.lines.append(
            f"(TaskRunner pid=4000) step:{step} - timing_s/gen:39.2 - timing_s/update_actor:26.1 - timing_s/step:95.0 - perf/cpu_memory_used_gb:{210 + step}.0"
        )


def files() -> dict[Path, bytes]:
    """The bytes of every file, by path."""
    job, found = Job(), {}
    for step in range(1, STEPS + 1):
        job.run_step(step)
        made = snapshot(job.card, simulated=NOTICE)
        found[FOLDER / f"step{step}/torch_memory_rank0_pid{PID}.pickle"] = pickle.dumps(made, protocol=4)
        job.card.clear_history()
    return {**found, FOLDER / "train.log": "".join(f"{line}\n" for line in job.lines).encode()}


def main() -> int:
    """0, or with `--check` 1 if a committed file differs."""
    return write_or_check(files())


if __name__ == "__main__":
    sys.exit(main())
