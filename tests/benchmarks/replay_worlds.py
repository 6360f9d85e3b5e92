"""Predicted steps in worlds that are not max-plus: SIMULATED jobs with one fault, replayed, and simulated again without it.

    python tests/benchmarks/replay_worlds.py [--seeds 1] [--only KIND,…] [--jobs 2] [--write]

In `contention` kernels run at a rate of 1 / 1.6 beside a collective, in `rising clock` the clock of a device follows its load, in
`jitter` transfers are delayed by up to 60 µs, drawn anew in the run without the fault. A line has the errors of the step in a world
as shares of it, with contention as measured and without, and the measured factor. `--write` writes the table to
`replay_worlds.txt`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import numpy as np
from jobsim.faults import ALL_KINDS
from replay.worlds import WORLDS, WorldErrors, measure_world_errors

TABLE = Path(__file__).with_suffix(".txt")

Work = tuple[str, str, int]
"""Kind, world and seed."""


def measure(work: Work) -> WorldErrors:
    """Measure one job."""
    return measure_world_errors(*work)


def make_table(errors: dict[Work, WorldErrors]) -> Iterator[str]:
    """Make the lines of the table: two for each world."""
    yield "SIMULATED jobs in worlds that are not max-plus: errors of the predicted step, as shares of the step"
    yield f"{'world':14}{'contention':>12}{'jobs':>6}{'median':>9}{'p95':>9}{'largest':>9}  kind of the largest; factor measured"
    for world in WORLDS:
        of_world = {work: each for work, each in errors.items() if work[1] == world}
        for label, values in (
            ("measured", {work: each.step for work, each in of_world.items()}),
            ("ignored", {work: each.without for work, each in of_world.items()}),
        ):
            shares = np.array([*values.values()])
            largest = max(values, key=lambda work: values[work])
            figures = "".join(f"{value:9.2%}" for value in (np.median(shares), np.quantile(shares, 0.95), shares.max()))
            yield f"{world:14}{label:>12}{len(shares):6}{figures}  {largest[0]}; {_describe_factors(of_world, label)}"


def _describe_factors(errors: dict[Work, WorldErrors], label: str) -> str:
    factors = np.array([each.factor for each in errors.values() if each.factor is not None])
    if label == "ignored" or not len(factors):
        return "none"
    return f"{np.median(factors):.2f} ({factors.min():.2f}–{factors.max():.2f}) in {len(factors)} jobs"


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    kinds = chosen.only.split(",") if chosen.only else list(ALL_KINDS)
    works = [(kind, world, seed) for world in WORLDS for kind in kinds for seed in range(chosen.seeds)]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        errors = dict(zip(works, pool.map(measure, works), strict=True))
    text = "\n".join(make_table(errors)) + "\n"
    if chosen.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
