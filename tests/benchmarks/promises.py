"""Does a comparison keep what it promises? SIMULATED pilots: the printed power, and the printed number of runs.

`python tests/benchmarks/promises.py [pilots]` prints two tables. Power: where a pilot of so many runs per side says that a
slowdown of 10 % is seen in a share of comparisons, how often new comparisons of the same spread see it; the spread of
runs is log-uniform from 0.2 to 20 %. Plans: where N runs per side are said to show "no change" in 8 of 10 cases, how
often N runs of the same world do; how many pilots get no plan. The worlds are those of `false_alarms.py`.
"""

from __future__ import annotations

import sys
from math import log1p

import numpy as np
from benchmarks.false_alarms import DELTA, WORLDS, judged, percent

from tracekit.model.stats.needed import compute_needed_runs
from tracekit.model.stats.outlook import compute_chances, draw_comparisons
from tracekit.model.stats.speedup import compute_speedup

SIZES = (4, 5, 10)
BANDS = ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01))
PLANS = ((4, 4), (5, 8), (9, 16), (17, 30))
FRESH = 400
"""New comparisons for each pilot."""
TAME = ("steps 3 %, runs 1 %", "steps 5 %, correlated .8", "opt far noisier", "15 % of runs +10 %")
ODD = ("1 run in 25 +50 %", "throttling", "5 % of steps × 3", "runs of Student's t(2)")


def runs_of(random, spread, runs, comparisons):
    """Runs of one step whose logarithms have this standard deviation."""
    steps = np.exp(spread * random.standard_normal((comparisons, runs, 1)))
    return [steps[:, run] for run in range(runs)]


def single(sides, place):
    return [[run[place].tolist() for run in side] for side in sides]


def promised_power(pilot):
    drawn = draw_comparisons(pilot)
    return compute_chances(log1p(0.1), drawn, DELTA).regression


def power_table(runs, pilots, seed=0):
    """[(promised, true, pilots)] in each band of what is promised, as means in percent; None where no pilot is in it."""
    random = np.random.default_rng([seed, runs])
    said, true = np.empty(pilots), np.empty(pilots)
    for pilot, spread in enumerate(np.exp(random.uniform(np.log(0.002), np.log(0.2), pilots))):
        sides = [runs_of(random, spread, runs, 1) for _ in range(2)]
        said[pilot] = promised_power(compute_speedup(*single(sides, 0)))
        base, opt = (runs_of(random, spread, runs, FRESH) for _ in range(2))
        true[pilot] = np.mean(judged(base, [1.1 * run for run in opt])[0] == "regression")
    found = []
    for low, high in BANDS:
        inside = (said >= low) & (said < high)
        found.append((percent(said[inside]), percent(true[inside]), int(inside.sum())) if inside.any() else None)
    return found


def plan_table(runs, pilots, seed=1):
    """Delivered percent of "no change" of equal sides in each band of the planned runs; None where no plan is in it."""
    random = np.random.default_rng([seed, runs])
    planned, delivered = np.zeros(pilots), np.zeros(pilots)
    for pilot, spread in enumerate(np.exp(random.uniform(np.log(0.003), np.log(0.15), pilots))):
        sides = [runs_of(random, spread, runs, 1) for _ in range(2)]
        found = compute_speedup(*single(sides, 0))
        number = None if found.is_odd else compute_needed_runs(found).runs
        if number:
            planned[pilot] = number
            fresh = [runs_of(random, spread, number, FRESH) for _ in range(2)]
            delivered[pilot] = np.mean(judged(*fresh)[0] == "no change")
    found = []
    for low, high in PLANS:
        inside = (planned >= low) & (planned <= high)
        found.append(percent(delivered[inside]) if inside.any() else None)
    return found


def world_plans(world, runs, pilots, seed=2):
    """(percent of pilots with a plan, median of planned runs, delivered percent of "no change") in a world."""
    random = np.random.default_rng([seed, runs, list(WORLDS).index(world)])
    numbers, delivered = [], []

    def side(number, second, comparisons):
        steps = WORLDS[world](random, (comparisons, number, 5), second)
        return [steps[:, run] for run in range(number)]

    for _ in range(pilots):
        found = compute_speedup(*single([side(runs, False, 1), side(runs, True, 1)], 0))
        number = None if found.is_odd else compute_needed_runs(found).runs
        if number:
            numbers.append(number)
            fresh = side(number, False, FRESH), side(number, True, FRESH)
            delivered.append(np.mean(judged(*fresh)[0] == "no change"))
    if not numbers:
        return 0.0, None, None
    return 100 * len(numbers) / pilots, float(np.median(numbers)), percent(delivered)


def shown(value):
    return "   –" if value is None else f"{value:4.0f}"


def main(pilots):
    print(f"SIMULATED, {pilots:,} pilots, least effect 3 %, in percent")
    print("promised → true power at +10 %, spread of runs log-uniform from 0.2 to 20 %")
    for runs in SIZES:
        cells = [f"{shown(band and band[0])} →{shown(band and band[1])}" for band in power_table(runs, pilots)]
        print(f"{runs:2} v {runs:<2} " + "  ".join(cells), flush=True)
    print("delivered where 8 of 10 are promised, by planned runs: " + ", ".join(f"{low}–{high}" for low, high in PLANS))
    for runs in SIZES:
        print(f"{runs:2} v {runs:<2} " + "  ".join(map(shown, plan_table(runs, pilots))), flush=True)
    print("pilots with a plan, median of planned runs, delivered")
    for world in (*TAME, *ODD):
        for runs in SIZES:
            share, number, delivered = world_plans(world, runs, pilots // 10)
            print(f"{world:26}{runs:2} v {runs:<2} {share:4.0f} {shown(number)} {shown(delivered)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000)
