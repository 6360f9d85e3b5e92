"""Record the traces and snapshots of this folder on one GPU: small programs with one planted cause each, and their truth.

    python record.py OUT [pairs compare no_marks rl snapshots]

`pairs` writes one trace per cause, and one more with `enable_cuda_sync_events` for some; `truth.json` holds the step time
without a profiler before and after. `compare` runs three sides in turns, `no_marks` records without profiler steps,
`rl` runs a small RL loop without a profiler and under two of `capture`, and `snapshots` writes memory snapshots. Traces
are packed as compact JSON without the path they were written to. Needs torch, `capture` for `rl`, and about six minutes.
On a machine without a GPU smaller programs run, to try the script.
"""

import argparse
import json
import lzma
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Cause:
    """The parts of a training program in which a planted cause differs from the clean one."""

    layers: int = 6
    width: int = 1024
    batch: int = 8
    tokens: int = 512
    dtype: torch.dtype = torch.bfloat16
    fused_attention: bool = True
    optimizer: str = "foreach"
    heads: int = 16
    causal: bool = False
    read_each_block: bool = False
    pinned: bool = True
    loader_s: float = 0.0
    pause_s: float = 0.0
    copy_beside: bool = False
    wait_beside: bool = False
    fill_zeros: bool = False
    empty_cache: bool = False
    forward_only: bool = False
    graph: bool = False
    with_stack: bool = False


SMALL = {"layers": 24, "width": 256, "batch": 2, "tokens": 64, "forward_only": True}
CAUSES = {
    "base": Cause(),
    "item": Cause(read_each_block=True),
    "pageable": Cause(pinned=False),
    "loader": Cause(loader_s=0.02, with_stack=True),
    "host_pause": Cause(pause_s=0.01, with_stack=True),
    "fp32": Cause(dtype=torch.float32),
    "unfused_attention": Cause(fused_attention=False),
    "unfused_optimizer": Cause(optimizer="single"),
    "side_copy": Cause(copy_beside=True),
    "wait_side": Cause(wait_beside=True),
    "zero_fill": Cause(fill_zeros=True),
    "empty_cache": Cause(empty_cache=True),
    "launch_bound": Cause(**SMALL),
    "cuda_graph": Cause(**SMALL, graph=True),
}
"""The clean program and one cause each; `cuda_graph` is `launch_bound` without its cause."""

OPTIMIZERS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
WITH_SYNC_EVENTS = ("base", "item", "wait_side")
SLOW = {"layers": 4, "heads": 8, "causal": True, "read_each_block": True, "optimizer": "single"}
SIDES = {
    "base": Cause(**SLOW),
    "opt": Cause(**{**SLOW, "read_each_block": False, "optimizer": "fused"}),
    "again": Cause(**SLOW),
}
"""`opt` reads no value per block and has a fused optimizer; `again` is `base` once more."""


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int = 16, *, fused: bool = True, causal: bool = False, act: str = "gelu"):
        super().__init__()
        self.heads, self.fused, self.causal = heads, fused, causal
        self.activate = getattr(nn.functional, act)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        query, key, value = heads
        if self.fused:
            seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            seen = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(self.activate(self.up(self.norms[1](x))))


class Training:
    """Training program with the parts that its cause names."""

    def __init__(self, cause: Cause) -> None:
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        self.cause = cause if GPU else Cause(**{**vars(cause), "width": 64, "tokens": 16, "dtype": torch.float32})
        cause = self.cause
        shape = {"width": cause.width, "heads": cause.heads, "causal": cause.causal, "fused": cause.fused_attention}
        blocks = (Block(**shape) for _ in range(cause.layers))
        self.blocks = nn.ModuleList(blocks).to(DEVICE, cause.dtype)
        self.optimizer = torch.optim.AdamW(self.blocks.parameters(), lr=1e-5, **OPTIMIZERS[cause.optimizer])
        self.batch = torch.randn(cause.batch, cause.tokens, cause.width, dtype=cause.dtype)
        self.beside = torch.cuda.Stream() if GPU else None
        self.more: torch.Tensor | None = None
        if not cause.pinned or cause.copy_beside:
            self.more = torch.randn((64 if cause.copy_beside else 16) * MIB)
        if GPU and cause.pinned:
            self.batch = self.batch.pin_memory()
            self.more = None if self.more is None else self.more.pin_memory()
        self.target = torch.empty(64 * MIB, device=DEVICE) if cause.copy_beside else None
        self.replay: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        """Run one training step, or one forward pass."""
        cause = self.cause
        with record_function("data"):
            time.sleep(cause.loader_s)
            x = self.batch.to(DEVICE, non_blocking=True)
            if self.more is not None and not cause.copy_beside:
                self.more.to(DEVICE)
        if cause.copy_beside and self.target is not None:
            with self._enter_side_stream():
                self.target.copy_(self.more, non_blocking=True)
        with record_function("forward"), torch.no_grad() if cause.forward_only else nullcontext():
            y = self._replay_graph(x) if cause.graph and GPU else self._run_blocks(x)
        if cause.forward_only:
            return
        with record_function("backward"):
            y.float().pow(2).mean().backward()
        time.sleep(cause.pause_s)
        if cause.wait_beside and self.beside is not None:
            self.beside.wait_stream(torch.cuda.current_stream())
            with self._enter_side_stream():
                torch.cuda._sleep(10_000_000)
            torch.cuda.current_stream().wait_stream(self.beside)
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=not cause.fill_zeros)
        if cause.empty_cache and GPU:
            torch.cuda.empty_cache()

    def _enter_side_stream(self) -> Any:
        """Make the second stream the current one."""
        return torch.cuda.stream(self.beside) if GPU else nullcontext()

    def _run_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """Run the forward pass."""
        for block in self.blocks:
            x = block(x)
            if self.cause.read_each_block:
                x.sum().item()
        return x

    def _replay_graph(self, x: torch.Tensor) -> torch.Tensor:
        """Replay the forward pass, captured at the first call."""
        if self.replay is None:
            self.input = x.clone()
            self.replay, self.output = capture_graph(lambda: self._run_blocks(self.input))
        self.input.copy_(x)
        self.replay.replay()
        return self.output


def capture_graph(call: Callable[[], Any], warmup: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture a call as a CUDA graph, after some calls on another stream."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def synchronize() -> None:
    """Wait for the GPU."""
    if GPU:
        torch.cuda.synchronize()


def time_calls(call: Callable[[], None], calls: int, per_batch: int = 1) -> list[float]:
    """Measure the ms per call by the host clock, with a synchronization around every batch."""
    times = []
    for _ in range(calls // per_batch):
        synchronize()
        start = time.perf_counter()
        for _ in range(per_batch):
            call()
        synchronize()
        times.append((time.perf_counter() - start) / per_batch * 1e3)
    return times


def pack_trace(profiler: profile, path: Path) -> None:
    """Write a trace as compact JSON, one event per line, without the path of its first file."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / path.stem
        profiler.export_chrome_trace(str(raw))
        trace = json.loads(raw.read_text())
    trace["traceName"] = path.stem
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace.pop("traceEvents"))
    head = json.dumps(trace, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{head[:-1]},"traceEvents":[\n{events}\n]}}\n'
    path.write_bytes(lzma.compress(text.encode(), preset=9))


@contextmanager
def profiled_to(path: Path, **options: Any) -> Iterator[None]:
    """Profile the body without profiler steps."""
    with profile(activities=ACTIVITIES, **options) as profiler:
        yield
        synchronize()
    pack_trace(profiler, path)


def profile_steps(program: Training, path: Path, *, sync_events: bool = False, shapes: bool = True) -> None:
    """Profile four steps after a wait and two warm-up steps."""
    config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True) if sync_events else None
    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=1, warmup=2, active=4),
        with_stack=program.cause.with_stack,
        record_shapes=shapes,
        experimental_config=config,
        on_trace_ready=lambda profiler: pack_trace(profiler, path),
    ) as profiler:
        for _ in range(7):
            program.step()
            profiler.step()


def record_pairs(out: Path) -> None:
    """Record every cause, with its step time without a profiler before and after."""
    truth: dict[str, Any] = {"device": torch.cuda.get_device_name() if GPU else "cpu", "torch": torch.__version__}
    for name, cause in CAUSES.items():
        program = Training(cause)
        for _ in range(5):
            program.step()
        before = time_calls(program.step, 50, per_batch=5)
        profile_steps(program, out / f"{name}.pt.trace.json.xz")
        if name in WITH_SYNC_EVENTS:
            profile_steps(program, out / f"{name}_sync_events.pt.trace.json.xz", sync_events=True)
        after = time_calls(program.step, 50, per_batch=5)
        truth[name] = {"unprofiled": summarize_times(before), "unprofiled_again": summarize_times(after)}
    write_json(out / "truth.json", truth)


def summarize_times(times: list[float]) -> dict[str, float]:
    """Summarize step times by their quartiles."""
    low, median, high = statistics.quantiles(times, n=4)
    return {"median_ms": median, "q25_ms": low, "q75_ms": high, "batches_of_5": len(times)}


def record_compare(out: Path) -> None:
    """Record four runs of each side in turns, each in a process of its own."""
    for number in range(1, 5):
        for side in SIDES:
            call_again("one_run", out / side / f"run{number}", side)


def record_one_run(folder: Path, side: str) -> None:
    """Record one run of a side, and its step times without a profiler."""
    program = Training(SIDES[side])
    for _ in range(5):
        program.step()
    times = time_calls(program.step, 20)
    profile_steps(program, folder / "rank0.pt.trace.json.xz", shapes=False)
    write_json(folder / "unprofiled.json", times)


def make_plain_step(act: str = "gelu", *, fused: bool = True) -> Callable[[], None]:
    """Make a training step without annotations, whose input is on the GPU."""
    width, layers, tokens = (512, 4, 256) if GPU else (64, 2, 16)
    dtype = torch.bfloat16 if GPU else torch.float32
    blocks = nn.ModuleList(Block(width, 8, causal=True, act=act) for _ in range(layers)).to(DEVICE, dtype)
    kind = OPTIMIZERS["fused" if fused else "single"]
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-5, capturable=GPU, **kind)
    batch = torch.randn(4, tokens, width, dtype=dtype, device=DEVICE)

    def step() -> None:
        x = batch
        for block in blocks:
            x = block(x)
        x.float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def record_no_marks(out: Path) -> None:
    """Record five steps per capture, one step per capture, and replays of whole steps, all without marks."""
    torch.manual_seed(0)
    truth: dict[str, Any] = {}
    for name, fused in (("plain_fused", True), ("plain_unfused", False)):
        step = make_plain_step(fused=fused)
        for _ in range(5):
            step()
        truth[name] = {"ms_per_step": time_calls(step, 20, per_batch=20)[0], "steps": 5}
        with profiled_to(out / f"{name}.pt.trace.json.xz"):
            for _ in range(5):
                step()
    step = make_plain_step()
    for number in range(6):
        with profiled_to(out / "per_step" / f"rank0_step{number}.pt.trace.json.xz"):
            step()
    truth["per_step"] = {"captures": 6, "note": "the first is cold: nothing ran before it"}
    for act in ("gelu", "silu") if GPU else ():
        graph, _ = capture_graph(make_plain_step(act), warmup=3)
        for _ in range(3):
            graph.replay()
        truth[f"graph_{act}"] = {"ms_per_step": time_calls(graph.replay, 20, per_batch=20)[0], "replays": 6}
        with profiled_to(out / f"graph_{act}.pt.trace.json.xz"):
            for _ in range(6):
                graph.replay()
    write_json(out / "truth.json", truth)


class Policy(nn.Module):
    """Language model of the RL loop."""

    def __init__(self) -> None:
        super().__init__()
        width, layers, self.words = (768, 6, 8192) if GPU else (64, 2, 128)
        self.embedding = nn.Embedding(self.words, width)
        self.blocks = nn.ModuleList(Block(width, 8, causal=True) for _ in range(layers))
        self.head = nn.Linear(width, self.words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def score(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the log probability of every token but the first."""
        logits = self(ids[:, :-1]).float()
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


class Worker:
    """Stages of a step of RL, one method each."""

    def __init__(self) -> None:
        dtype = torch.bfloat16 if GPU else torch.float32
        self.policy = Policy().to(DEVICE, dtype)
        self.reference = Policy().to(DEVICE, dtype).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-5)

    @torch.no_grad()
    def generate(self) -> None:
        """Sample 48 tokens for 16 prompts, with a buffer of a KV cache's size that is given back at the end."""
        layers, width = len(self.policy.blocks), self.policy.embedding.embedding_dim
        cache = torch.empty(layers, 2, 16, 112, width, dtype=self.policy.head.weight.dtype, device=DEVICE)
        ids = torch.randint(0, self.policy.words, (16, 64), device=DEVICE)
        for _ in range(48 if GPU else 4):
            odds = self.policy(ids[:, -64:])[:, -1].float().softmax(-1)
            token = torch.multinomial(odds, 1)
            ids = torch.cat([ids, token], 1)
            if bool((token == 0).all()):
                break
        self.ids = ids
        del cache
        if GPU:
            torch.cuda.empty_cache()

    @torch.no_grad()
    def score_policy(self) -> None:
        """Score the samples by the policy."""
        self.old = self.policy.score(self.ids)

    @torch.no_grad()
    def score_reference(self) -> None:
        """Score the samples by the reference."""
        self.kl = self.old - self.reference.score(self.ids)

    def update(self) -> float:
        """Update the policy by four mini-batches, and return their losses' sum."""
        total = 0.0
        for ids, old in zip(self.ids.chunk(4), self.old.chunk(4), strict=True):
            ratio = (self.policy.score(ids) - old).exp()
            loss = (ratio * (ids[:, 1:] % 7 - 3)).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.item()
        return total


STAGES = {
    "gen": ("rollout_generate", Worker.generate),
    "old_log_prob": ("actor_compute_log_prob", Worker.score_policy),
    "ref": ("ref_compute_log_prob", Worker.score_reference),
    "update_actor": ("actor_update", Worker.update),
}
"""Name in the log → role for the profiler, and the method."""


def record_rl_tools(out: Path) -> None:
    """Run the RL loop three times: without a profiler, and under two tools."""
    for tool in ("off", "torch", "torch_memory"):
        call_again("rl_loop", out, tool)


def record_rl_loop(out: Path, tool: str) -> None:
    """Run eight steps of the RL loop, of which `tool` records steps 4 and 6."""
    from capture import DistProfiler, ProfilerConfig, TorchMemoryToolConfig, TorchProfilerToolConfig, marked_timer
    from capture.metrics import MetricsLogger

    torch.manual_seed(0)
    folder = out / tool
    options: Any = TorchProfilerToolConfig(contents=["cpu", "cuda"])
    if tool == "torch_memory":
        options = TorchMemoryToolConfig(trace_alloc_max_entries=20_000)
    config = ProfilerConfig(
        tool=None if tool == "off" else tool,
        enable=tool != "off",
        all_ranks=True,
        save_path=str(folder / "outputs" / "profile"),
        tool_config=options,
    )
    worker = Worker()
    worker.profiler = DistProfiler(0, config, save_file_prefix="actor_rollout")
    calls = {name: DistProfiler.annotate(role=role)(call) for name, (role, call) in STAGES.items()}
    logger, losses = MetricsLogger(folder / "metrics.jsonl"), []
    for step in range(1, 9):
        times: dict[str, float] = {}
        if step in (4, 6):
            worker.profiler.start(role="actor", profile_step=str(step))
        with marked_timer("step", times):
            for name, call in calls.items():
                with marked_timer(name, times):
                    loss = call(worker)
                    synchronize()
        losses.append(loss.hex())
        if step in (4, 6):
            worker.profiler.stop()
        peak = torch.cuda.max_memory_allocated() / GIB if GPU else 0.0
        metrics = {"actor/pg_loss": loss, "perf/max_memory_allocated_gb": peak}
        logger.log_metrics(step, timings=times, **metrics)
    write_json(folder / "losses.json", losses)


def record_snapshots(out: Path) -> None:
    """Record snapshots of a leak, a private pool, a fragmented pool and an out-of-memory error."""
    out.mkdir(parents=True, exist_ok=True)
    truth = {}
    for name, (fact, hold) in SNAPSHOTS.items():
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
        kept = hold()
        torch.cuda.memory._dump_snapshot(str(out / f"{name}.pickle"))
        truth[name] = fact.format(len(kept))
        del kept
    write_json(out / "truth.json", truth)


def allocate(size: int) -> torch.Tensor:
    """Allocate bytes on the GPU."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def hold_leak() -> list[torch.Tensor]:
    """Keep 2 MiB per step beside a temporary."""
    kept = []
    for _ in range(12):
        torch.randn(4 * MIB, device="cuda").sum()
        kept.append(allocate(2 * MIB))
    return kept


def hold_private_pool() -> list[Any]:
    """Free a block of 512 MiB in a private pool, and keep the pool."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        allocate(512 * MIB)
    return [pool, allocate(64 * MIB)]


def hold_fragments() -> list[torch.Tensor]:
    """Keep every second of 300 blocks."""
    return [allocate((2 + number % 3) * MIB) for number in range(300)][1::2]


def fill_memory() -> list[torch.Tensor]:
    """Allocate blocks of 4 GiB until one does not fit."""
    kept = []
    try:
        while True:
            kept.append(allocate(4 * GIB))
    except torch.OutOfMemoryError:
        return kept


SNAPSHOTS: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "leak_2MiB_per_step": ("{} steps, 2 MiB each kept", hold_leak),
    "private_pool_free": (
        "private pool reserves 512 MiB, nothing in use; 64 MiB in the default pool",
        hold_private_pool,
    ),
    "fragmented": ("every second of 300 blocks of 2 to 4 MiB freed", hold_fragments),
    "out_of_memory": ("{} blocks of 4 GiB, then one more", fill_memory),
}
"""Name → truth with the number of objects kept, and the function that makes the state."""

PARTS: dict[str, Callable[[Path], None]] = {
    "pairs": record_pairs,
    "compare": record_compare,
    "no_marks": record_no_marks,
    "rl": record_rl_tools,
    "snapshots": record_snapshots,
}


def call_again(part: str, *arguments: object) -> None:
    """Run a part in a new process of this program."""
    subprocess.run([sys.executable, __file__, part, *map(str, arguments)], check=True)


def write_json(path: Path, value: object) -> None:
    """Write a file of the truth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def main() -> None:
    """Record the parts that the command line names, else all."""
    inner = {"one_run": record_one_run, "rl_loop": record_rl_loop}
    if len(sys.argv) == 4 and sys.argv[1] in inner:
        inner[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], default=[part for part in PARTS if GPU or part != "snapshots"]
    )
    arguments = parser.parse_args()
    for part in arguments.parts:
        PARTS[part](arguments.out / part)


if __name__ == "__main__":
    main()
