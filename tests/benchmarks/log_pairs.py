"""Verdicts of `compare` on simulated pairs of training logs: the same code with longer answers, and code that is 10 % slower.

Usage: `python tests/benchmarks/log_pairs.py [PAIRS] > tests/benchmarks/log_pairs.txt`. The simulation shares no code with the
comparison: a step takes a fixed time and a time per token, runs differ by a level, and steps by autocorrelated noise.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

from tracekit.compare.comparison import Comparison
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options

PAIRS = 100
MOST_FALSE, LEAST_FOUND = 0.05, 0.8
"""Most false verdicts among equal pairs at 95 % confidence, and least share of the changes of 10 % that are found."""

CASES = (
    # name, runs per side, more tokens per answer after, slower by, spread of runs
    ("same code, same lengths, 1 v 1", 1, 0, 0.0, 0.0),
    ("same code, +250 tokens, 1 v 1", 1, 250, 0.0, 0.0),
    ("same code, +1500 tokens, 1 v 1", 1, 1_500, 0.0, 0.0),
    ("10 % slower, +250 tokens, 1 v 1", 1, 250, 0.1, 0.0),
    ("same code, +250 tokens, 4 v 4", 4, 250, 0.0, 0.01),
    ("10 % slower, +250 tokens, 4 v 4", 4, 250, 0.1, 0.01),
)


def simulate_run(path: Path, rng: random.Random, more: float, slower: float, spread: float) -> None:
    """Write the log of one run: answers lengthen by 500 tokens, every tenth step validates."""
    level = (1 + slower) * (1 + rng.gauss(0, spread))
    away, length_away, lines = 0.0, 0.0, []
    count = rng.choice((30, 40, 60))
    for step in range(1, count + 1):
        away = 0.4 * away + rng.gauss(0, 0.01)
        length_away = 0.5 * length_away + rng.gauss(0, 60)
        length = 1_200 + more + 500 * step / count + length_away
        work = level * (1 + away)
        gen, train = (20 + 0.03 * length) * work, (40 + 0.03 * length) * work
        total, tokens = gen + train, 256 * (length + 300)
        data = {
            "timing_s/gen": gen, "timing_s/update_actor": train, "timing_s/step": total, "perf/time_per_step": total,
            "perf/total_num_tokens": tokens, "perf/throughput": tokens / total / 8, "response_length/mean": length,
            "prompt_length/mean": 300.0, "training/global_step": step,
        }  # fmt: skip
        if step % 10 == 0:
            data["timing_s/testing"] = 90.0
        lines.append(json.dumps({"step": step, "data": data}) + "\n")
    path.parent.mkdir(parents=True)
    path.write_text("".join(lines))


def compare_pair(case: tuple[str, int, int, float, float], seed: int) -> Comparison:
    """Simulate and compare one pair."""
    _, runs, more, slower, spread = case
    rng = random.Random(f"{case[0]} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        for side, facts in (("before", (0.0, 0.0)), ("after", (float(more), slower))):
            for run in range(runs):
                simulate_run(Path(folder, side, f"run{run}", "metrics.jsonl"), rng, *facts, spread)
        return compare_paths([Path(folder, "before")], [Path(folder, "after")], Options(jobs=1)).comparison


def get_step_word(comparison: Comparison) -> str:
    """Get the verdict on the step at equal length."""
    assert comparison.lengths is not None, "the logs have lengths"
    return comparison.lengths.changes[0].word


def main() -> None:
    """Print the verdicts of each case, and end with status 1 if too many are wrong."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    wrong = []
    for case in CASES:
        words = [get_step_word(compare_pair(case, seed)) for seed in range(pairs)]
        counts = {word: words.count(word) for word in sorted(set(words))}
        print(
            f"{case[0]}: {pairs} pairs: " + ", ".join(f"{count} {word}" for word, count in counts.items()), flush=True
        )
        slower, faster = (counts.get(word, 0) / pairs for word in ("regression", "improvement"))
        is_sound = slower >= LEAST_FOUND and not faster if case[3] else slower + faster <= MOST_FALSE
        wrong += [] if is_sound else [case[0]]
    print(
        f"limits: {MOST_FALSE:.0%} false, {LEAST_FOUND:.0%} found: {'kept' if not wrong else 'exceeded by ' + '; '.join(wrong)}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
