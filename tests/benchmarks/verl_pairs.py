"""Predicted savings beside real pairs of verl: runs of its worker groups on the CPU with a planted fault, and clean runs.

    python tests/benchmarks/verl_pairs.py RUNS [--verl PYTHON] [--rounds 3] [--write]

`--verl` first makes the runs in the folder RUNS, with the Python of an environment that has verl (`make tools` makes one):
in each round a clean run and one of each fault (`examples/make_verl_cpu.py`), profiled by verl's own profiler.

The true gain is the mean profiled step of the faulted runs less that of the clean runs, by the timers of verl (`metrics.jsonl`).
Intervals and predicted gains are those of `gloo_pairs.py`. `--write` writes the table to `verl_pairs.txt`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gloo_pairs import list_pairs, make_pair, predict_gain

TABLE = Path(__file__).with_suffix(".txt")
EXAMPLE = Path(__file__).parents[2] / "examples" / "make_verl_cpu.py"
STEPS = range(3, 11)

KINDS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "slow_reward": (("host-silence",), None),
    "slow_rank": (("straggler",), 1),
}
"""Fault to the rules that are about it, and the rank that they have to name."""


def make_runs(folder: Path, python: str, rounds: int) -> None:
    """Make the runs: `RUNS/<round>/<fault>`."""
    for number in range(rounds):
        for fault in ("clean", *KINDS):
            command = [python, str(EXAMPLE), str(folder / str(number) / fault), "--steps", ",".join(map(str, STEPS))]
            subprocess.run([*command, *(["--fault", fault] if fault in KINDS else [])], check=True)


def measure_step(folder: Path) -> float:
    """Measure the mean profiled step of a run by verl's timer, in ms."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return mean(1e3 * row["data"]["timing_s/step"] for row in rows if row["step"] in STEPS)


def make_table(folder: Path) -> Iterator[str]:
    """Make the lines of the table."""
    clean = [measure_step(run) for run in sorted(folder.glob("*/clean"))]
    yield f"real runs of verl 0.9.1 with torch 2.13.0 on the CPU: two ranks, actor and critic, {len(STEPS)} profiled steps"
    pairs = []
    for kind, (rules, rank) in KINDS.items():
        runs = sorted(folder.glob(f"*/{kind}"))
        steps = [measure_step(run) for run in runs]
        pairs.append(make_pair(kind, steps, clean, [predict_gain(run, rules, rank) for run in runs]))
    yield from list_pairs(pairs, clean)


def main() -> None:
    """Make the runs if asked to, compare, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--verl", metavar="PYTHON", help="make the runs with this Python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.verl:
        make_runs(chosen.runs, chosen.verl, chosen.rounds)
    text = "\n".join(make_table(chosen.runs)) + "\n"
    if chosen.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
