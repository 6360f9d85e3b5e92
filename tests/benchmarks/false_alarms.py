"""How often does a comparison cry wolf, and how often does it see a true change? SIMULATED worlds, by runs a side.

`python tests/benchmarks/false_alarms.py [replications]` prints a table: coverage of the 95 % interval, then in percent of
comparisons a false regression at a true 0 %, and a regression at a true +5 % and +10 %; before: by the interval alone,
now: as `tracekit compare` says it. The worlds share no code with the rules; the words come from the functions of the
command, on arrays.
"""

from __future__ import annotations

import sys

import numpy as np

from tracekit.model.stats.certainty import choose_words, compute_half_width, is_certain_change
from tracekit.model.stats.designs import compute_between_run_terms, compute_design_terms, list_error_spreads
from tracekit.model.stats.estimate import compute_t_quantiles
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import list_caps

STEPS = 5
DELTA = np.log(1.03)
LEVEL = 0.95
SIZES = ((2, 2), (3, 3), (5, 5), (10, 10), (3, 1))
PROMISED = 0.5
"""False regressions in percent: at most so many in every world, but where sessions differ."""


def normal_steps(random, shape, sd, between, rho=0.0):
    """Steps of runs (replications × runs × steps): their spread in a run, lag-1 correlation, and spread of runs."""
    replications, runs, steps = shape
    noise = np.empty(shape)
    before = random.standard_normal((replications, runs))
    for step in range(steps):
        fresh = random.standard_normal((replications, runs))
        before = rho * before + np.sqrt(1 - rho**2) * fresh if step else before
        noise[..., step] = before
    return np.exp(sd * noise + between * random.standard_normal((replications, runs, 1)))


def alike(random, shape, second):
    return normal_steps(random, shape, 0.03, 0.01)


def correlated(random, shape, second):
    return normal_steps(random, shape, 0.05, 0.01, 0.8)


def noisy_base(random, shape, second):
    sd, between = (0.02, 0.005) if second else (0.1, 0.03)
    return normal_steps(random, shape, sd, between)


def noisy_opt(random, shape, second):
    return noisy_base(random, shape, not second)


def slow_runs(random, shape, second):
    slow = random.random((*shape[:2], 1)) < 0.15
    return normal_steps(random, shape, 0.03, 0.01) * np.where(slow, 1.1, 1.0)


def spikes(random, shape, second):
    return normal_steps(random, shape, 0.03, 0.01) * np.where(random.random(shape) < 0.05, 3, 1)


def heavy_tail(random, shape, second):
    return normal_steps(random, shape, 0.5, 0.01)


def drifting(random, shape, second):
    return normal_steps(random, shape, 0.15, 0.01, 0.3) * (1 + 0.03 * np.arange(shape[2]))


def same_pattern(random, shape, second):
    """Steps of one place are long or short in every run alike, as with the same batches."""
    return normal_steps(random, shape, 0.01, 0.01) * np.array([1.0, 1.3, 0.8, 1.1, 0.9])


def sessions(random, shape, second):
    session = np.exp(0.02 * random.standard_normal((shape[0], 1, 1)))
    return normal_steps(random, shape, 0.03, 0.01) * session


WORLDS = {
    "steps 3 %, runs 1 %": alike,
    "steps 5 %, correlated .8": correlated,
    "base far noisier": noisy_base,
    "opt far noisier": noisy_opt,
    "15 % of runs +10 %": slow_runs,
    "5 % of steps × 3": spikes,
    "log-normal, σ .5": heavy_tail,
    "RL-like: 15 %, drift": drifting,
    "one pattern of steps": same_pattern,
    "sessions, 2 %": sessions,
}


def simulated(name, sizes, slower, replications, seed=0):
    """Runs of both sides as the command takes them: a list of runs, each replications × steps."""
    random = np.random.default_rng([seed, list(WORLDS).index(name), *sizes, round(1000 * slower)])
    sides = []
    for second, runs in enumerate(sizes):
        steps = WORLDS[name](random, (replications, runs, STEPS), bool(second))
        sides.append([steps[:, run] * (1 + slower if second else 1) for run in range(runs)])
    return sides


def spoken(base, opt, noise=None):
    """The word of each comparison, as the command says it, of its second side being slower."""
    design = "steps" if len(base) == len(opt) == 1 else "runs"
    first = compute_speedup([run[0] for run in base], [run[0] for run in opt])
    if noise is None and list_caps(first, assume_independent_steps=False):
        return np.full(len(base[0]), "inconclusive", "<U12")
    terms = compute_design_terms(base, opt, design)
    spreads = list_error_spreads(base, opt, design, terms, noise)
    delta = DELTA if noise is None else np.maximum(DELTA, noise[0])
    worse, half = -terms.log_ratio, compute_half_width(spreads, LEVEL)
    found = choose_words(worse - half, worse + half, delta)
    unsure = np.isin(found, ("regression", "improvement")) & ~is_certain_change(worse, spreads)
    return np.where(unsure, "inconclusive", found)


def by_interval(base, opt):
    """(the word by the interval alone, whether the interval holds a true 0)."""
    means = [np.log(np.stack([run.mean(axis=-1) for run in side], axis=-1)) for side in (base, opt)]
    terms = compute_between_run_terms(*means)
    half = compute_t_quantiles(0.5 + LEVEL / 2, terms.df) * np.sqrt(terms.variance)
    return choose_words(-terms.log_ratio - half, -terms.log_ratio + half, DELTA), abs(terms.log_ratio) <= half


def percent(hits):
    return 100 * float(np.mean(hits))


def cell(name, sizes, replications):
    """(coverage, regressions before at 0, 5, 10 %, the same now), in percent."""
    before, now, covered = [], [], None
    for slower in (0.0, 0.05, 0.1):
        base, opt = simulated(name, sizes, slower, replications)
        old, holds = by_interval(base, opt)
        covered = percent(holds) if covered is None else covered
        before.append(percent(old == "regression"))
        now.append(percent(spoken(base, opt) == "regression"))
    return covered, before, now


def calibrated_cell(name, sizes, calibrated, replications):
    """Regressions at 0, 5 and 10 % where so many runs of the base were calibrated before."""
    found = []
    for slower in (0.0, 0.05, 0.1):
        base, opt = simulated(name, sizes, slower, replications)
        equal, _ = simulated(name, (calibrated, 1), 0.0, replications, seed=1)
        means = np.log(np.stack([run.mean(axis=-1) for run in equal], axis=-1))
        noise = means.std(axis=-1, ddof=1), calibrated - 1.0
        found.append(percent(spoken(base, opt, noise) == "regression"))
    return found


def shown(numbers):
    return f"{numbers[0]:5.2f} {numbers[1]:4.0f} {numbers[2]:4.0f}"


def main(replications):
    print(f"SIMULATED, {replications:,} replications a cell, {STEPS} steps a run, least effect 3 %")
    print("false regressions at 0 %, regressions at +5 % and +10 %, in percent")
    print(f"{'world':26}{'runs':>8}{'covers':>8}{'before':>16}{'now':>16}")
    for name in WORLDS:
        for sizes in SIZES:
            covered, before, now = cell(name, sizes, replications)
            runs = f"{sizes[0]} v {sizes[1]}"
            print(f"{name:26}{runs:>8}{covered:8.1f}{shown(before):>16}{shown(now):>16}", flush=True)
    print("\nwith --noise of 8 runs (not part of the promise: what they did not show is not known)")
    for name in WORLDS:
        cells = (calibrated_cell(name, sizes, 8, replications) for sizes in ((1, 1), (3, 1)))
        print(f"{name:26}{'1 v 1':>8}{shown(next(cells)):>16}{'3 v 1':>10}{shown(next(cells)):>16}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
