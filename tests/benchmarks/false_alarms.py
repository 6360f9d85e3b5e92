"""How often does a comparison cry wolf, and how often does it see a true change? SIMULATED worlds, by runs and steps a side.

`python tests/benchmarks/false_alarms.py [replications]` prints a table: coverage of the 95 % interval; in percent of
comparisons of equal sides, how many are called slower and faster, at a least effect of 3 % and of 0; how many are called
slower at a true +5 %, +10 % and +20 %; and "no change" of equal sides. Then: three runs per side that ask for a fourth,
and the worst that equal runs on two to four levels can do, enumerated. The worlds share no code with the rules; the words
come from the functions of the command, on arrays.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass

import numpy as np

from tracekit.model.stats.certainty import choose_words, compute_half_width, is_certain_change
from tracekit.model.stats.designs import EarlierRuns, compute_design_terms, compute_log_run_means, list_error_spreads
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.two_levels import can_show_change, measure_gaps
from tracekit.model.stats.verdict import list_caps

DELTA = np.log(1.03)
LEVEL = 0.95
PROMISED = 0.5
"""False verdicts of either direction in percent: at most so many in every world, but where sessions differ."""
EFFECTS = (0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Sides:
    """Steps of each run of both sides, and earlier runs of the base."""

    base: tuple[int, ...]
    opt: tuple[int, ...]
    earlier: int = 0


DESIGNS = {
    "2 v 2": Sides((5,) * 2, (5,) * 2),
    "3 v 3": Sides((5,) * 3, (5,) * 3),
    "3 v 3 + 6": Sides((5,) * 3, (5,) * 3, 6),
    "3 v 3 + 12": Sides((5,) * 3, (5,) * 3, 12),
    "3 v 3, 20 v 3 steps": Sides((20,) * 3, (3,) * 3),
    "4 v 4": Sides((5,) * 4, (5,) * 4),
    "4 v 4, 20 v 3 steps": Sides((20,) * 4, (3,) * 4),
    "5 v 5": Sides((5,) * 5, (5,) * 5),
    "10 v 10": Sides((5,) * 10, (5,) * 10),
    "5 v 1": Sides((5,) * 5, (5,)),
    "1 v 1 + 8": Sides((5,), (5,), 8),
    "5 v 2": Sides((5,) * 5, (5,) * 2),
    "6 v 3": Sides((5,) * 6, (5,) * 3),
    "9 v 3": Sides((5,) * 9, (5,) * 3),
    "10 v 3": Sides((5,) * 10, (5,) * 3),
    "3 v 10": Sides((5,) * 3, (5,) * 10),
}


def steps_of(random, shape, sd, between, rho=0.0):
    """Steps of runs (replications × runs × steps): their spread in a run, lag-1 correlation, and spread of runs."""
    replications, runs, steps = shape
    noise = np.empty(shape)
    before = random.standard_normal((replications, runs))
    for step in range(steps):
        fresh = random.standard_normal((replications, runs))
        before = rho * before + np.sqrt(1 - rho**2) * fresh if step else before
        noise[..., step] = before
    return np.exp(sd * noise + between * random.standard_normal((replications, runs, 1)))


def on_levels(random, shape, share, factor):
    """A factor for the share of runs that are slow."""
    return np.where(random.random((*shape[:2], 1)) < share, factor, 1.0)


def alike(random, shape, second):
    return steps_of(random, shape, 0.03, 0.01)


def correlated(random, shape, second):
    return steps_of(random, shape, 0.05, 0.01, 0.8)


def noisy_base(random, shape, second):
    sd, between = (0.02, 0.005) if second else (0.1, 0.03)
    return np.exp(-(sd**2 + between**2) / 2) * steps_of(random, shape, sd, between)


def noisy_opt(random, shape, second):
    return noisy_base(random, shape, not second)


def few_slow_runs(random, shape, second):
    return alike(random, shape, second) * on_levels(random, shape, 0.15, 1.1)


def many_slow_runs(random, shape, second):
    return alike(random, shape, second) * on_levels(random, shape, 0.3, 1.1)


def two_levels_near(random, shape, second):
    return steps_of(random, shape, 0.02, 0.003) * on_levels(random, shape, 0.5, 1.05)


def two_levels_far(random, shape, second):
    return steps_of(random, shape, 0.02, 0.003) * on_levels(random, shape, 0.5, 1.15)


def two_levels_quiet(random, shape, second):
    return steps_of(random, shape, 0.003, 0.001) * on_levels(random, shape, 0.3, 1.1)


def rare_slow_run(random, shape, second):
    return steps_of(random, shape, 0.01, 0.003) * on_levels(random, shape, 0.04, 1.5)


def throttling(random, shape, second):
    """A quarter of the runs becomes 20 % slower from some step on."""
    hit = random.random((*shape[:2], 1)) < 0.25
    since = random.integers(0, shape[2], (*shape[:2], 1))
    return steps_of(random, shape, 0.02, 0.005) * np.where(hit & (np.arange(shape[2]) >= since), 1.2, 1.0)


def spikes(random, shape, second):
    return alike(random, shape, second) * np.where(random.random(shape) < 0.05, 3, 1)


def heavy_tail(random, shape, second):
    return steps_of(random, shape, 0.5, 0.01)


def wild_runs(random, shape, second):
    wild = np.clip(0.01 * random.standard_t(2, (*shape[:2], 1)), -0.7, 1.5)
    return steps_of(random, shape, 0.02, 0.0) * np.exp(wild)


def drifting(random, shape, second):
    return steps_of(random, shape, 0.15, 0.01, 0.3) * (1 + 0.03 * np.arange(shape[2]))


def same_pattern(random, shape, second):
    """Steps of one place are long or short in every run alike, as with the same batches."""
    pattern = np.resize([1.0, 1.3, 0.8, 1.1, 0.9], shape[2])
    return steps_of(random, shape, 0.01, 0.01) * pattern


def sessions(random, shape, second):
    return alike(random, shape, second) * np.exp(0.02 * random.standard_normal((shape[0], 1, 1)))


WORLDS = {
    "steps 3 %, runs 1 %": alike,
    "steps 5 %, correlated .8": correlated,
    "base far noisier": noisy_base,
    "opt far noisier": noisy_opt,
    "15 % of runs +10 %": few_slow_runs,
    "30 % of runs +10 %": many_slow_runs,
    "two levels, 5 %": two_levels_near,
    "two levels, 15 %": two_levels_far,
    "two levels, quiet": two_levels_quiet,
    "1 run in 25 +50 %": rare_slow_run,
    "throttling": throttling,
    "5 % of steps × 3": spikes,
    "log-normal, σ .5": heavy_tail,
    "runs of Student's t(2)": wild_runs,
    "RL-like: 15 %, drift": drifting,
    "one pattern of steps": same_pattern,
    "sessions, 2 %": sessions,
}
UNEQUAL_MEANS = {"RL-like: 15 %, drift", "one pattern of steps"}
"""Worlds in which runs of other lengths truly have other means."""
SESSIONS = {"sessions, 2 %"}


def simulated(world, design, slower, replications, seed=0):
    """(base, opt, earlier runs) as the command takes them: lists of runs, each replications × steps."""
    sides = DESIGNS[design]
    random = np.random.default_rng([seed, list(WORLDS).index(world), list(DESIGNS).index(design), round(1000 * slower)])
    drawn = []
    for second, lengths in ((False, sides.base), (True, sides.opt), (False, (5,) * sides.earlier)):
        steps = WORLDS[world](random, (replications, len(lengths), max(lengths, default=1)), second)
        drawn.append([steps[:, run, :length] * (1 + slower * second) for run, length in enumerate(lengths)])
    return tuple(drawn)


def has_equal_sides(world, design):
    sides = DESIGNS[design]
    return world not in UNEQUAL_MEANS or len({*sides.base, *sides.opt}) == 1


def earlier_of(runs):
    """What is known of earlier runs of the base."""
    if not runs:
        return None
    logs = compute_log_run_means(runs)
    return EarlierRuns(len(runs), logs.var(axis=-1) * len(runs), np.ptp(logs, axis=-1))


def judged(base, opt, earlier=(), delta=DELTA):
    """(the word of each comparison, as the command says it, of its second side; whether the interval holds a true 0)."""
    design = "steps" if len(base) == len(opt) == 1 else "runs"
    known = earlier_of(earlier)
    terms = compute_design_terms(base, opt, design, known)
    spreads = list_error_spreads(base, opt, design, terms, known)
    worse, half = -terms.log_ratio, compute_half_width(spreads, LEVEL)
    if known is not None and min(len(base), len(opt)) == 1:
        delta = np.maximum(delta, (known.squares / (known.runs - 1)) ** 0.5)
    words = choose_words(worse - half, worse + half, delta)
    first = compute_speedup([run[0] for run in base], [run[0] for run in opt])
    if not earlier and list_caps(first, assume_independent_steps=False):
        words[:] = "inconclusive"
    gaps = measure_gaps(compute_log_run_means(base), compute_log_run_means(opt), 0.0 if known is None else known.widest)
    shown = is_certain_change(worse, spreads) & gaps.is_apart() & can_show_change(len(base), len(opt), len(earlier))
    unsure = np.isin(words, ("regression", "improvement")) & ~shown
    return np.where(unsure, "inconclusive", words), np.abs(terms.log_ratio) <= half


def percent(hits):
    return 100 * float(np.mean(hits))


@dataclass(frozen=True)
class Cell:
    """One world and design, in percent."""

    covers: float
    slower: float
    faster: float
    slower_at_0: float
    faster_at_0: float
    seen: tuple[float, ...]
    no_change: float


def cell(world, design, replications):
    equal = simulated(world, design, 0.0, replications)
    words, holds = judged(*equal)
    tight, _ = judged(*equal, delta=0.0)
    seen = []
    for effect in EFFECTS:
        found, _ = judged(*simulated(world, design, effect, replications))
        seen.append(percent(found == "regression"))
    return Cell(
        percent(holds),
        percent(words == "regression"),
        percent(words == "improvement"),
        percent(tight == "regression"),
        percent(tight == "improvement"),
        tuple(seen),
        percent(words == "no change"),
    )


def asks_and_decides(world, slower, replications):
    """Three runs per side that seem changed, and four that decide: percent (that ask, called slower, called faster)."""
    base, opt, _ = simulated(world, "4 v 4", slower, replications)
    terms = compute_design_terms(base[:3], opt[:3], "runs")
    half = compute_half_width(list_error_spreads(base[:3], opt[:3], "runs", terms), LEVEL)
    asks = np.abs(terms.log_ratio) > half
    words, _ = judged(base, opt)
    return percent(asks), percent(asks & (words == "regression")), percent(asks & (words == "improvement"))


def counts_on_levels(runs, levels):
    """Every way to spread so many runs over so many levels."""
    return np.array([at for at in itertools.product(range(runs + 1), repeat=levels) if sum(at) == runs])


def false_on_levels(design, levels, weights):
    """Percent of comparisons called slower where every run lies on one of the levels, with these weights; exact.

    A spread of 1e-4 around the levels stands for the tightest runs.
    """
    sizes = [len(part) for part in ((0,) * len(DESIGNS[design].base), (0,) * len(DESIGNS[design].opt))]
    sizes.append(DESIGNS[design].earlier)
    chances, drawn = [], []
    for size in sizes:
        counts = counts_on_levels(size, len(levels)) if size else np.zeros((1, len(levels)), int)
        ways = [math.factorial(size) / math.prod(map(math.factorial, row)) for row in counts.tolist()]
        chances.append(np.array(ways) * np.prod(np.asarray(weights) ** counts, axis=-1))
        jitter = 1e-4 * np.linspace(-1, 1, size)
        drawn.append(np.stack([np.repeat(levels, row) for row in counts]) + jitter)
    places = [axis.ravel() for axis in np.meshgrid(*(np.arange(len(part)) for part in chances), indexing="ij")]
    runs = [
        [np.exp(part[place][:, [run]]) for run in range(part.shape[1])]
        for part, place in zip(drawn, places, strict=True)
    ]
    words, _ = judged(*runs)
    weight = np.prod([part[place] for part, place in zip(chances, places, strict=True)], axis=0)
    return 100 * float(weight[words == "regression"].sum())


def worst_on_levels(design, tries=150, seeds=3):
    """The largest share that a search over two to four levels finds, and the levels."""
    runs = len(DESIGNS[design].base) + len(DESIGNS[design].opt) + DESIGNS[design].earlier
    worst = (0.0, None, None)
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        best = (0.0, None, None)
        for trial in range(tries):
            number = (2, 3, 3, 4)[trial % 4] if runs <= 10 else 2 + trial % 2
            if best[1] is not None and trial > tries // 3:
                levels = best[1] * np.exp(0.15 * random.standard_normal(len(best[1])))
                weights = best[2] * np.exp(0.15 * random.standard_normal(len(best[2])))
            else:
                levels = np.r_[0, np.cumsum(np.exp(random.normal(-2.5, 1, number - 1)))]
                weights = random.dirichlet(np.ones(number))
            weights = weights / weights.sum()
            for way in (levels, levels.max() - levels):
                best = max(best, (false_on_levels(design, way, weights), way, weights), key=lambda found: found[0])
        worst = max(worst, best, key=lambda found: found[0])
    return worst


def numbers(values):
    return " ".join(f"{value:3.0f}" for value in values)


def main(replications):
    print(f"SIMULATED, {replications:,} replications a cell, least effect 3 %, in percent")
    print(f"{'world':25}{'runs':>20} covers  slower faster  at 0: slower faster  slower at +5 +10 +20  no change")
    for design in DESIGNS:
        for world in WORLDS:
            if not has_equal_sides(world, design):
                continue
            found = cell(world, design, replications)
            print(
                f"{world:25}{design:>20} {found.covers:6.1f}  {found.slower:6.2f} {found.faster:6.2f}"
                f"  {found.slower_at_0:12.2f} {found.faster_at_0:6.2f}  {numbers(found.seen):>21}  {found.no_change:9.0f}",
                flush=True,
            )
    print(
        "\n3 v 3, and where the interval holds no 0 one more run per side, which decides: asks and slower at 0 +5 +10 +20; faster at 0"
    )
    for world in WORLDS:
        found = [asks_and_decides(world, slower, replications) for slower in (0.0, *EFFECTS)]
        slower = f"{found[0][1]:5.2f} {numbers([one[1] for one in found[1:]])}"
        print(
            f"{world:25} asks {numbers([one[0] for one in found])}  slower {slower}  faster {found[0][2]:5.2f}",
            flush=True,
        )
    print("\nthe worst of equal runs on two to four levels, by enumeration and search: called slower")
    for design, sides in DESIGNS.items():
        if can_show_change(len(sides.base), len(sides.opt), sides.earlier) and len({*sides.base, *sides.opt}) == 1:
            print(f"{design:>20} {worst_on_levels(design)[0]:5.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
