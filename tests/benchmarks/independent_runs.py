"""Judge `tracekit analyze` with runs of a simulator that shares no code with tracekit.

`independent_world.py` simulates the machine, `independent_job.py` the program; their docstrings state
what they leave out. Each run has a fault with a drawn strength. Its true gain is the mean step of the run minus that
of the same seed without the fault. Clean runs have no fault.

The rules that may name a fault were chosen from the list of rules before any result was seen.

    python tests/benchmarks/independent_runs.py --seeds 3 --folder FOLDER
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.independent_job import Job, draw_world
from benchmarks.independent_world import write_trace


@dataclass(frozen=True)
class Kind:
    """A fault: its strength as a range, the world it needs, and the rules that name it."""

    rules: tuple
    low: float
    high: float
    whole: bool = False
    style: str | None = None
    ranks: int | None = None
    rate: float | None = None
    fault: str | None = None
    one_rank: bool = False


KINDS = {
    "slow_gpu_rank": Kind(("straggler",), 1.15, 1.4, one_rank=True),
    "slow_stage_of_pipeline": Kind(("straggler",), 1.2, 1.5, style="pipeline", fault="slow_gpu_rank", one_rank=True),
    "slow_host_rank": Kind(("straggler",), 5.0, 8.0, one_rank=True),
    "late_loader": Kind(("data-loader-wait", "straggler"), 4, 12, one_rank=True),
    "slow_loader": Kind(("data-loader-wait",), 4, 12),
    "sync_layers": Kind(("host-sync-stalls",), 3, 4, whole=True),
    "metric_items": Kind(("host-sync-stalls",), 1, 3, whole=True),
    "pageable_copies": Kind(("pageable-copies",), 1, 1, whole=True),
    "eager_decode": Kind(("launch-bound",), 2, 12),
    "late_reduction": Kind(("exposed-communication", "no-comm-overlap"), 1, 1, style="ddp", rate=0.5),
    "late_gathers": Kind(("exposed-communication", "no-comm-overlap"), 1, 1, style="fsdp"),
    "slow_link": Kind(("slow-link",), 0.12, 0.3, style="fsdp"),
    "small_collectives": Kind(("small-collectives",), 60, 120, whole=True, style="ddp"),
    "gc_pauses": Kind(("host-silence", "garbage-collection"), 2, 7),
    "allocator": Kind(("allocator-calls",), 300, 1200),
    "slow_optimizer": Kind(("unfused-optimizer", "launch-bound"), 6, 14, whole=True),
    "unequal_lengths": Kind(("rank-imbalance", "sequence-imbalance"), 1.3, 1.8),
    "checkpoint": Kind(("periodic-stage", "host-silence", "step-spikes"), 20, 80),
    "weight_sync": Kind(("weight-sync", "small-collectives"), 20, 60, whole=True),
    "short_batches": Kind(("rollout-tail", "generation-tail"), 6, 16, whole=True),
    "offload": Kind(("offload",), 10e6, 30e6, whole=True),
    "recompute": Kind((), 1, 1),
    "eager_attention": Kind(("unfused-operators",), 1.0, 2.0),
    "python_rollout": Kind(("launch-bound", "host-silence", "low-gpu-utilization"), 0.9, 2.0),
    "cpu_reward": Kind(("host-silence", "reward-time", "low-gpu-utilization", "stage-edge-idle"), 5, 15),
    "stage_edges": Kind(("stage-edge-idle", "host-silence"), 0.8, 2.5),
    "single_precision": Kind(("no-tensor-cores",), 1.6, 2.5),
    "layout_copies": Kind(("layout-copies",), 25, 60),
    "drift": Kind(("drift", "step-drift"), 1.5, 4),
}
PAIRS = [
    ("slow_gpu_rank", "pageable_copies"),
    ("gc_pauses", "late_reduction"),
    ("cpu_reward", "slow_optimizer"),
    ("slow_loader", "eager_attention"),
    ("offload", "sync_layers"),
    ("slow_host_rank", "eager_decode"),
    ("stage_edges", "layout_copies"),
    ("weight_sync", "unequal_lengths"),
]


def make_world(names, seed):
    """The world for these kinds: what one of them needs wins over the drawn one."""
    kinds = [KINDS[name] for name in names]

    def need(field):
        return next((getattr(kind, field) for kind in kinds if getattr(kind, field)), None)

    style = need("style")
    ranks = need("ranks") or (random.Random(f"stages {seed}").choice([2, 4]) if style == "pipeline" else None)
    return draw_world(f"{seed} {'+'.join(names)}", style, ranks, need("rate"))


def draw_faults(names, world):
    """The strength of each fault, as {name of the kind: {fault: strength}}."""
    drawn = {}
    for name in names:
        kind, chance = KINDS[name], random.Random(f"strength {world.seed} {name}")
        strength = chance.uniform(kind.low, kind.high)
        fault = {kind.fault or name: round(strength) if kind.whole else strength}
        if kind.one_rank:
            fault["rank"] = chance.randrange(world.ranks)
        if name == "checkpoint":
            fault["checkpoint_at"] = world.steps - 2
        drawn[name] = fault
    return drawn


def simulate_run(names, seed):
    """A run with these faults, and the gain in ns of removing each one."""
    world = make_world(names, seed)
    drawn = draw_faults(names, world)
    merged = {key: value for fault in drawn.values() for key, value in fault.items()}
    job = Job(world, merged).simulate()
    gains = {}
    for name in names:
        rest = {key: value for other, fault in drawn.items() if other != name for key, value in fault.items()}
        gains[name] = job.mean_step() - Job(world, rest).simulate().mean_step()
    return job, drawn, gains


def write_run(job, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank, offset in zip(job.ranks, job.offsets, strict=True):
        write_trace(rank, job.groups, folder, job.world.ranks, offset, job.world.sync_rows)


def analyze_run(folder):
    """The findings of `tracekit analyze`, best first."""
    command = [
        sys.executable,
        "-m",
        "tracekit",
        "analyze",
        str(folder),
        "--format",
        "json",
        "-q",
        "--no-cache",
        "-j",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sections = json.loads(done.stdout)["sections"]
    findings = [finding for section in sections for finding in section["findings"]]
    return sorted(findings, key=lambda finding: (finding["rank"] is None, finding["rank"]))


def name_runs(seeds):
    """The faults and the seed of each run. Runs without a fault are last."""
    for name in KINDS:
        for seed in range(1, seeds + 1):
            yield (name,), seed
    for pair in PAIRS:
        for seed in range(1, max(2, seeds)):
            yield pair, seed
    for seed in range(1, 4 * seeds + 1):
        yield (), seed


def score_fault(name, drawn, gain, findings):
    """How a fault is named: its place in the list, and the error of the predicted gain."""
    kind = KINDS[name]
    for place, finding in enumerate(findings):
        if finding["rule"] not in kind.rules:
            continue
        rank = drawn.get("rank")
        if rank is not None and finding["rule"] == "straggler" and f"rank {rank} " not in finding["claim"]:
            continue
        saving = (finding.get("saving") or {}).get("alone_ns")
        error = None if saving is None else (saving - gain) / gain
        return {
            "place": place,
            "rule": finding["rule"],
            "severity": finding["severity"],
            "saving": saving,
            "error": error,
        }
    return {"place": None, "rule": None, "severity": None, "saving": None, "error": None}


def judge_runs(seeds, folder, only=None):
    """One record per run."""
    for names, seed in name_runs(seeds):
        label = "+".join(names) or "clean"
        if only and label not in only:
            continue
        job, drawn, gains = simulate_run(names, seed)
        path = folder / f"{label}-{seed}"
        write_run(job, path)
        findings = analyze_run(path)
        record = {"run": label, "seed": seed, "world": job.world.style, "ranks": job.world.ranks}
        record["step_ns"] = job.mean_step()
        record["faults"] = {
            name: {"drawn": drawn[name], "gain": gains[name], **score_fault(name, drawn[name], gains[name], findings)}
            for name in names
        }
        record["findings"] = [(f["rule"], f["severity"], (f.get("saving") or {}).get("alone_ns")) for f in findings]
        yield record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    for record in judge_runs(options.seeds, options.folder, options.only):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
