"""CPU time of `analyze` of a training log of 10,000 steps beyond that of a short one: JSON lines and console form.

Usage: `python tests/benchmarks/log_speed.py > tests/benchmarks/log_speed.txt`. The shortest of several runs counts, as
other programs share the machine.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

STEPS, SHORT_STEPS, RUNS = 10_000, 40, 5
LIMIT_S = 0.6
"""Most CPU time beyond start-up for JSON lines."""


def make_steps(count: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Make the values of steps as verl's synchronous trainer logs them: 30 names."""
    rng = random.Random(0)
    for step in range(1, count + 1):
        length = 1_000 + 500 * step / count + rng.gauss(0, 60)
        gen, train = 8 + 0.03 * length + rng.random(), 10 + 0.03 * length + rng.random()
        total, tokens = gen + train + 3, 256 * (length + 300)
        yield step, {
            "timing_s/gen": gen, "timing_s/update_actor": train, "timing_s/old_log_prob": 1 + rng.random(),
            "timing_s/ref": 0.9, "timing_s/adv": 0.1, "timing_s/reward": 0.4, "timing_s/update_weights": 0.6,
            "timing_s/step": total, "perf/total_num_tokens": tokens, "perf/time_per_step": total,
            "perf/throughput": tokens / total / 8, "perf/mfu/actor": 0.35 + 0.01 * rng.random(),
            "response_length/mean": length, "response_length/max": 2.4 * length, "response_length/clip_ratio": 0.01,
            "prompt_length/mean": 300.0, "training/global_step": step, "actor/pg_loss": rng.gauss(0, 1),
            "actor/grad_norm": rng.random(), "actor/lr": 1e-6, "critic/score/mean": rng.random(),
            "global_seqlen/mean": tokens / 8, "global_seqlen/min": tokens / 11, "global_seqlen/max": tokens / 6,
            "global_seqlen/minmax_diff": tokens / 13, "global_seqlen/balanced_max": tokens / 7.9,
            "global_seqlen/balanced_min": tokens / 8.1, "actor/perf/cpu_memory_used_gb": 200 + rng.gauss(0, 1),
            "actor/perf/max_memory_reserved_gb": 60.0, "actor/perf/max_memory_allocated_gb": 52.0,
        }  # fmt: skip


def write_json_lines(path: Path, count: int) -> Path:
    """Write the log of verl's file logger."""
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in make_steps(count)))
    return path


def write_console(path: Path, count: int) -> Path:
    """Write the driver's output as Ray prints it."""
    with path.open("w") as file:
        for step, data in make_steps(count):
            pairs = " - ".join(f"{name}:{value!r}" for name, value in data.items())
            file.write(f"\x1b[36m(TaskRunner pid=4711)\x1b[0m step:{step} - {pairs}\n")
    return path


def measure_cpu_seconds(path: Path) -> float:
    """Measure the CPU time of the command without its cache, all processes together."""
    command = [sys.executable, "-m", "tracekit", "analyze", str(path), "--no-cache", "-q"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the times, and end with status 1 if JSON lines take longer than allowed."""
    beyond: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("JSON lines", write_json_lines), ("console", write_console)):
            short = write(Path(folder, f"{name[:4]}_short.log"), SHORT_STEPS)
            long = write(Path(folder, f"{name[:4]}_long.log"), STEPS)
            pairs = [(measure_cpu_seconds(short), measure_cpu_seconds(long)) for _ in range(RUNS)]
            start, whole = (min(times) for times in zip(*pairs, strict=True))
            beyond[name] = whole - start
            size = long.stat().st_size / 2**20
            print(
                f"{name}: {STEPS:,} steps, {size:.1f} MiB: {whole - start:.2f} s CPU beyond {start:.2f} s of a short log"
            )
    is_fast = beyond["JSON lines"] <= LIMIT_S
    print(f"limit for JSON lines: {LIMIT_S} s: {'kept' if is_fast else 'exceeded'}")
    sys.exit(not is_fast)


if __name__ == "__main__":
    main()
