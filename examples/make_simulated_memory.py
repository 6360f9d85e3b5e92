"""Writes `simulated_memory/`: memory snapshots of a run that never took place, with a leak and without it.

    python examples/make_simulated_memory.py           write what differs
    python examples/make_simulated_memory.py --check   status 1 if a committed file differs

An actor of two ranks: weights and optimizer states once, then six steps with a KV cache while it generates,
activations and gradients while it learns. In `leaking/` every step of rank 0 keeps its log-probabilities
(`train.py:88 log_metrics`, 1.5 MiB); in `fixed/` it does not, and generates with half the KV cache. Batches
differ from step to step, equally on both sides. The model of the allocator is that of the tests.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from example_files import write_or_check  # noqa: E402 - found on the path above
from memory_builder import MIB, SIMULATED, Allocator, frame, snapshot  # noqa: E402

FOLDER = Path(__file__).parent / "simulated_memory"
STEPS, RANKS, LAYERS, MOST_ENTRIES = 6, 2, 4, 100_000
CARD = 8 * 2**30
NOTICE = SIMULATED.replace("a model", "examples/make_simulated_memory.py, a model")
LEAK = 3 * MIB // 2

TRAIN, MODEL = "/job/train.py", "/job/model.py"
MAIN = frame("main", TRAIN, 120)
AT = {
    "weights": [frame("__init__", MODEL, 21), frame("build", TRAIN, 30), MAIN],
    "optimizer": [
        frame("_init_group", "/venv/lib/python3.12/site-packages/torch/optim/adamw.py", 178),
        frame("update_actor", TRAIN, 71), MAIN,
    ],
    "cache": [frame("allocate_kv_cache", "/job/engine.py", 54), frame("generate", TRAIN, 48), MAIN],
    "activation": [frame("forward", MODEL, 64), frame("update_actor", TRAIN, 66), MAIN],
    "gradient": [frame("_engine_run_backward", "/venv/lib/python3.12/site-packages/torch/autograd/graph.py", 829),
                 frame("update_actor", TRAIN, 68), MAIN],
    "kept": [frame("log_metrics", TRAIN, 88), MAIN],
}  # fmt: skip


def run(folder: Path, *, rank: int, leaks: bool) -> dict[Path, bytes]:
    """The snapshots of one rank, one at the end of every step, by path."""
    drawn = random.Random(rank)
    card = Allocator(device=0, capacity=CARD, most=MOST_ENTRIES)
    for layer in range(LAYERS):
        card.alloc((12 + layer) * MIB, AT["weights"])
    found: dict[Path, bytes] = {}
    for step in range(1, STEPS + 1):
        tokens = drawn.randint(160, 240)
        with marked(card, "gen"):
            generate(card, tokens, halved=not leaks)
        with marked(card, "update_actor"):
            update(card, tokens, first=step == 1)
        if leaks and rank == 0:
            card.alloc(LEAK, AT["kept"])
        made = snapshot(card, trace_alloc_max_entries=MOST_ENTRIES, simulated=NOTICE)
        name = f"step{step}/torch_memory_rank{rank}_pid{4000 + rank}.pickle"
        found[folder / name] = pickle.dumps(made, protocol=4)
        card.clear_history()
        card.annotations.clear()
    return found


@contextmanager
def marked(card: Allocator, name: str) -> Iterator[None]:
    """The marks of a range before and after."""
    card.annotate(name, "START")
    yield
    card.annotate(name, "END")


def generate(card: Allocator, tokens: int, *, halved: bool) -> None:
    """The KV cache of every layer, for as long as it generates."""
    size = tokens * 2**18 // (2 if halved else 1)
    free(card, [card.alloc(size, AT["cache"]) for _ in range(LAYERS)])


def update(card: Allocator, tokens: int, *, first: bool) -> None:
    """Activations, then gradients in their place; the optimizer's states come with the first step and stay."""
    kept = [card.alloc(tokens * 2**15, AT["activation"]) for _ in range(LAYERS)]
    gradients = []
    for layer in reversed(range(LAYERS)):
        gradients.append(card.alloc((12 + layer) * MIB, AT["gradient"]))
        free(card, [kept.pop()])
    if first:
        for layer in range(LAYERS):
            card.alloc(2 * (12 + layer) * MIB, AT["optimizer"])
    free(card, gradients)


def free(card: Allocator, addresses: list[int]) -> None:
    """Free them, the last first."""
    for address in reversed(addresses):
        card.free(address)


def files() -> dict[Path, bytes]:
    """The bytes of every file, by where it lies."""
    found: dict[Path, bytes] = {}
    for name, leaks in (("leaking", True), ("fixed", False)):
        for rank in range(RANKS):
            found |= run(FOLDER / name, rank=rank, leaks=leaks)
    return found


def main() -> int:
    """0, or with `--check` 1 if a committed file differs."""
    return write_or_check(files())


if __name__ == "__main__":
    sys.exit(main())
