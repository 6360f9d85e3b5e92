"""Predicted savings beside real pairs: runs of gloo on two CPU cores with a planted fault, and clean runs.

    python tests/benchmarks/gloo_pairs.py RUNS [--torch PYTHON] [--rounds 3] [--only KIND,…] [--write]

`--torch` first makes the runs in the folder RUNS, with the Python of an environment that has torch: in each round every kind once
and two clean runs, of two ranks on a core of their own (`examples/make_gloo_faults.py`). Nothing else may run then.

The true gain of a kind is the mean step of its runs less that of the clean runs, by the clock of the runs themselves, as profiled.
Its interval reaches from the fastest faulted run less the slowest clean run to the slowest faulted run less the fastest clean run.
The predicted gain of a run is what the first finding about the fault saves alone. `--write` writes the table to `gloo_pairs.txt`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from tracekit.model.report import Finding, Report
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

TABLE = Path(__file__).with_suffix(".txt")
EXAMPLE = Path(__file__).parents[2] / "examples" / "make_gloo_faults.py"
STEPS = 8
"""Counted steps of a run: with two ranks, fewer than six cannot rule out that the same one is late by chance."""

KINDS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "straggler_ref": (("straggler",), 1),
    "rollout": (("straggler",), 1),
    "more_samples": (("straggler",), 0),
    "gc": (("straggler",), 0),
    "one_pause": (("straggler", "step-variance"), None),
    "rotating": (("rank-imbalance", "straggler"), None),
    "loader": (("data-loader-wait",), None),
    "loader_one_rank": (("data-loader-wait",), 1),
    "small_collectives": (("small-collectives",), None),
    "tiny_ops": (("small-ops",), None),
    "reward_pause": (("host-silence",), None),
    "step_pause": (("host-silence",), None),
    "python_loop": (("host-silence",), None),
}
"""Kind of fault to the rules that are about it, and the rank that they have to name."""


class Pair(NamedTuple):
    """One kind: its true gain in ms with its interval, and for each run the predicted gain, or the reason for none."""

    kind: str
    step: float
    gain: float
    low: float
    high: float
    predicted: tuple[float | str, ...]
    rules: tuple[str, ...]

    @property
    def numbers(self) -> list[float]:
        """Predicted gains."""
        return [value for value in self.predicted if not isinstance(value, str)]


def make_runs(folder: Path, python: str, rounds: int, kinds: Sequence[str]) -> None:
    """Make the runs: `RUNS/<half of a round>/<kind>`, with a clean run in each half."""
    for number in range(2 * rounds):
        faults = ",".join(["clean", *kinds[number % 2 :: 2]])
        command = [python, str(EXAMPLE), str(folder / str(number)), "--faults", faults]
        subprocess.run([*command, "--ranks", "2", "--steps", str(STEPS)], check=True)


def measure_step(folder: Path) -> float:
    """Measure the mean step of a run by its own clock, in ms: each step lasts until its slowest rank is done."""
    ranks = json.loads((folder / "truth.json").read_text(encoding="utf-8"))["ranks"]
    return mean(max(step["step_ns"] for step in of_ranks) for of_ranks in zip(*ranks, strict=True)) / 1e6


def predict_gain(folder: Path, rules: tuple[str, ...], rank: int | None) -> tuple[float | str, str]:
    """Predict what the fix of the fault saves in ms, or say why there is no number: (gain or reason, rule)."""
    report = analyze_uncached(folder, Options(jobs=1, cache=False)).report
    about = [finding for finding in report.findings if finding.rule in rules and names_rank(finding, rank)]
    if not about:
        return describe_silence(report, rules), ""
    finding = min(about, key=lambda finding: finding.rank or 0)
    if finding.saving is not None:
        return finding.saving.alone_ns / 1e6, finding.rule
    refusals = [replay.refusal for replay in report.replays if replay.refusal]
    reasons = [text for text in finding.caveats if text.startswith("not predicted")]
    return (*refusals, *reasons, "the finding names no change")[0], finding.rule


def names_rank(finding: Finding, rank: int | None) -> bool:
    """Check whether a finding names a rank, in its places or its claim."""
    is_named = rank in {place.rank for place in finding.places} or re.search(rf"\brank {rank}\b", finding.claim)
    return rank is None or bool(is_named)


def describe_silence(report: Report, rules: Sequence[str]) -> str:
    """Describe why no finding is about a fault."""
    reasons = [
        f"{verdict.rule}: {verdict.reason}"
        for section in report.sections
        for verdict in section.verdicts
        if verdict.rule in rules
    ]
    return f"no finding ({reasons[0]})" if reasons else "no finding"


def compare(folder: Path, kinds: Sequence[str]) -> Iterator[Pair]:
    """Compare the predicted gains of each kind with the true one."""
    clean = [measure_step(run.parent) for run in folder.glob("*/clean/truth.json")]
    for kind in kinds:
        runs = sorted(run.parent for run in folder.glob(f"*/{kind}/truth.json"))
        if not runs:
            continue
        steps = [measure_step(run) for run in runs]
        yield make_pair(kind, steps, clean, [predict_gain(run, *KINDS[kind]) for run in runs])


def make_pair(
    kind: str, steps: Sequence[float], clean: Sequence[float], outcomes: Sequence[tuple[float | str, str]]
) -> Pair:
    """Make the pair of a kind from the steps of its runs and of the clean ones in ms, and the predicted gain of each run."""
    predicted, rules = zip(*outcomes, strict=True)
    low, high = min(steps) - max(clean), max(steps) - min(clean)
    named = tuple(dict.fromkeys(rule for rule in rules if rule))
    return Pair(kind, mean(steps), mean(steps) - mean(clean), low, high, predicted, named)


def make_table(folder: Path, pairs: Sequence[Pair], torch: str) -> Iterator[str]:
    """Make the lines of the table: one for each kind, the reasons for no number, and the sums."""
    clean = [measure_step(run.parent) for run in folder.glob("*/clean/truth.json")]
    yield f"real runs of torch {torch} with gloo: two ranks, one core each, {STEPS} profiled steps"
    yield from list_pairs(pairs, clean)


def list_pairs(pairs: Sequence[Pair], clean: Sequence[float]) -> Iterator[str]:
    """List the clean step, a line for each pair, the reasons for no number, and the sums."""
    yield f"clean step: mean {mean(clean):.1f} ms, {min(clean):.1f} to {max(clean):.1f} in {len(clean)} runs"
    yield f"{'kind':19}{'step ms':>8}{'gain ms':>9}{'interval':>17}   {'predicted gain of each run':31}{'inside':>6}  rule"
    for pair in pairs:
        values = "  ".join("—" if isinstance(value, str) else f"{value:.1f}" for value in pair.predicted)
        inside = sum(pair.low <= value <= pair.high for value in pair.numbers)
        count = f"{inside}/{len(pair.numbers)}" if pair.numbers else "—"
        interval = f"{pair.low:.1f} to {pair.high:.1f}"
        yield (
            f"{pair.kind:19}{pair.step:8.1f}{pair.gain:9.1f}{interval:>17}   {values:31}{count:>6}  {', '.join(pair.rules)}"
        )
    reasons = dict.fromkeys(
        f"{pair.kind}: {value}" for pair in pairs for value in pair.predicted if isinstance(value, str)
    )
    yield from ("", "no number:", *reasons) if reasons else ()
    yield ""
    errors = [abs(value / pair.gain - 1) for pair in pairs for value in pair.numbers]
    inside = [pair.low <= value <= pair.high for pair in pairs for value in pair.numbers]
    some = sum(bool(pair.numbers) for pair in pairs)
    yield f"{some} of {len(pairs)} kinds have a number; {sum(inside)} of {len(inside)} numbers are inside the interval"
    if errors:
        yield f"error of the predicted gain: median {median(errors):.1%}, largest {max(errors):.1%}"


def main() -> None:
    """Make the runs if asked to, compare, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--torch", metavar="PYTHON", help="make the runs with this Python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--version", default="2.13.0", help="version of torch that made the runs")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    kinds = chosen.only.split(",") if chosen.only else list(KINDS)
    if chosen.torch:
        make_runs(chosen.runs, chosen.torch, chosen.rounds, kinds)
    text = "\n".join(make_table(chosen.runs, list(compare(chosen.runs, kinds)), chosen.version)) + "\n"
    if chosen.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
