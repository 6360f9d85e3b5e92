"""How often noise and leaks are called growth: the whole table of operating characteristics, made again.

Series of 6 to 50 steps around 40 GiB, in MiB; each cell is the share called likely (or strong), and the share
called strong. The rule is applied to thousands of series at once by a twin of it, which is proved to be equal.
"""

import functools
import math

import numpy as np
import pytest
from scipy.stats import rankdata

from tracekit.analyses import load_default_thresholds
from tracekit.model.stats.trend import GrowthLimits, label_growth, measure_growth

MIB = 2**20
SET = load_default_thresholds().of("memory-growth")
LIMITS = GrowthLimits(
    int(SET["min_steps"]), SET["slope_bytes"] / MIB, SET["slope_ratio"], SET["flat_bytes"] / MIB,
    SET["p_likely"], SET["p_strong"], SET["late_ratio"],
)  # fmt: skip
"""The limits as they are set, in MiB."""

LEVEL = 40 * 1024.0
STEPS = (6, 8, 10, 12, 15, 20, 30, 50)

REPEATS = 10_000
CHUNK = 2_500


# --- what may happen to memory --------------------------------------------------------------------


def flat(rng, count, steps, deviation):
    return rng.normal(0, deviation, (count, steps))


def correlated(rng, count, steps, deviation, repeat):
    """Each step repeats a share of the one before; the spread is the same at all of them."""
    out = rng.normal(0, deviation, (count, steps))
    out[:, 1:] *= math.sqrt(1 - repeat**2)
    for at in range(1, steps):
        out[:, at] += repeat * out[:, at - 1]
    return out


def jump(rng, count, steps, size, deviation):
    """One jump, anywhere in the middle half."""
    at = rng.integers(max(2, steps // 4), max(3, 3 * steps // 4), (count, 1))
    return flat(rng, count, steps, deviation) + size * (np.arange(steps) >= at)


def warm_up(rng, count, steps, deviation):
    """The first three steps are 8, 4 and 1 GB lower."""
    out = flat(rng, count, steps, deviation)
    out[:, :3] -= (8000, 4000, 1000)
    return out


def sawtooth(rng, count, steps, period, deviation):
    """A rise of 100 in each period, begun anywhere in it."""
    phase = rng.integers(0, period, (count, 1))
    teeth = (np.arange(steps) + phase) % period
    return flat(rng, count, steps, deviation) + 100 * teeth / (period - 1)


def running_maximum(rng, count, steps, deviation):
    return np.maximum.accumulate(flat(rng, count, steps, deviation), axis=1)


def levelling_off(rng, count, steps, size, constant, deviation):
    rise = size * (1 - np.exp(-np.arange(steps) / constant))
    return rise + flat(rng, count, steps, deviation)


def leak(rng, count, steps, slope, deviation):
    return slope * np.arange(steps) + flat(rng, count, steps, deviation)


def uneven_leak(rng, count, steps, slope, scale):
    """Sequences of lognormal length."""
    lengths = np.exp(0.6 * rng.normal(size=(count, steps))) - 1.2
    return slope * np.arange(steps) + scale * lengths


def stairs(rng, count, steps, size, every, deviation):
    return size * (np.arange(steps) // every) + flat(rng, count, steps, deviation)


TABLE = {
    "flat, 50": (lambda r, c, n: flat(r, c, n, 50), ".028/0 .020/.001 .023/.001 .019/0 .020/0 .022/0 .025/0 .025/0"),
    "repeats 0.8": (
        lambda r, c, n: correlated(r, c, n, 50, 0.8),
        ".11/0 .09/.02 .11/.02 .11/.02 .11/.03 .10/.03 .09/.03 .07/.02",
    ),
    "one jump of 20": (
        lambda r, c, n: jump(r, c, n, 20, 5),
        ".12/0 .08/.01 .09/.01 .16/.01 .16/.02 .24/.03 .23/.02 .24/.02",
    ),
    "warm-up of 3 steps": (lambda r, c, n: warm_up(r, c, n, 5), "0/0 .07/.01 .02/0 .02/0 .02/0 .02/0 .02/0 0/0"),
    "sawtooth of 6": (lambda r, c, n: sawtooth(r, c, n, 6, 5), ".34/0 .16/.16 0/0 0/0 .07/0 0/0 0/0 0/0"),
    "sawtooth of 12": (lambda r, c, n: sawtooth(r, c, n, 12, 5), ".60/0 .52/.32 .48/.43 .44/.33 .24/.23 0/0 0/0 0/0"),
    "running maximum": (
        lambda r, c, n: running_maximum(r, c, n, 500),
        ".15/0 .11/0 .10/.01 .07/.05 .09/.09 .08/.08 .06/.06 .07/.07",
    ),
    "levelling off": (
        lambda r, c, n: levelling_off(r, c, n, 1000, 3, 5),
        "1/0 .94/.94 .92/.92 .40/.40 .01/.01 0/0 0/0 .01/.01",
    ),
    "leak of 1, 1": (lambda r, c, n: leak(r, c, n, 1, 1), ".55/0 .64/.15 .85/.42 .93/.73 .98/.97 1/1 1/1 1/1"),
    "leak of 1, 5": (lambda r, c, n: leak(r, c, n, 1, 5), ".08/0 .07/.01 .12/.01 .21/.01 .39/.04 .73/.24 .93/.89 1/1"),
    "leak of 1, 50": (lambda r, c, n: leak(r, c, n, 1, 50), ".04/0 .02/0 .03/0 .03/0 .04/0 .06/0 .09/0 .29/.02"),
    "leak of 10, 50": (
        lambda r, c, n: leak(r, c, n, 10, 50),
        ".08/0 .07/0 .13/.01 .19/.01 .41/.03 .70/.22 .92/.87 1/1",
    ),
    "leak of 100, 50": (lambda r, c, n: leak(r, c, n, 100, 50), ".92/0 .92/.62 .99/.92 1/1 1/1 1/1 1/1 1/1"),
    "leak of 100, lognormal 500": (
        lambda r, c, n: uneven_leak(r, c, n, 100, 500),
        ".16/0 .15/.02 .26/.04 .43/.07 .65/.21 .90/.68 .99/.99 1/1",
    ),
    "leak of 40 in every 4th step": (
        lambda r, c, n: stairs(r, c, n, 40, 4, 5),
        ".34/0 .06/.01 .72/.17 .43/.09 1/.68 1/1 1/1 1/1",
    ),
}


# --- the rule for many series at once --------------------------------------------------------------


def slopes(y):
    first, second = np.triu_indices(y.shape[1], 1)
    return np.median((y[:, second] - y[:, first]) / (second - first), axis=1)


def scores(y):
    first, second = np.triu_indices(y.shape[1], 1)
    return (y[:, second] > y[:, first]).sum(1) - (y[:, second] < y[:, first]).sum(1)


def variances(y):
    """The variance of Kendall's score without a trend; equal values lower it, as in a running maximum."""
    steps = y.shape[1]
    ordered = np.sort(y, axis=1)
    begins = np.ones(y.shape, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    place = np.arange(steps)
    # The how-manieth of its equals each value is; t (t - 1) (2 t + 5) is the sum of its growth.
    k = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    ties = (k + 1) * k * (2 * k + 7) - k * (k - 1) * (2 * k + 5)
    return (steps * (steps - 1) * (2 * steps + 5) - ties.sum(1)) / 18


def tails(score, variance):
    z = (score - np.sign(score)) / np.sqrt(np.maximum(variance, 1e-9))
    return np.where(variance > 0, 0.5 * erfc(z / math.sqrt(2)), 1.0)


erfc = np.vectorize(math.erfc, otypes=[float])


@functools.cache
def exact(steps):
    """The share of all orders with at most so many falling pairs."""
    falling = np.array([1.0])
    for size in range(2, steps + 1):
        falling = np.convolve(falling, np.ones(size))
    return np.cumsum(falling) / math.factorial(steps)


def kendall(y):
    steps = y.shape[1]
    score = scores(y)
    found = tails(score, variances(y))
    if steps <= 10:
        tied = (np.diff(np.sort(y, axis=1), axis=1) == 0).any(1)
        found = np.where(tied, found, exact(steps)[(steps * (steps - 1) // 2 - score) // 2])
    return found


def hamed_rao(y, slope, first):
    steps = y.shape[1]
    left = y - slope[:, None] * np.arange(first, first + steps)
    rank = rankdata(left, axis=1) - (steps + 1) / 2
    factor = np.ones(len(y))
    for lag in (1, 2, 3):
        weight = (steps - lag) * (steps - lag - 1) * (steps - lag - 2)
        repeated = (rank[:, lag:] * rank[:, :-lag]).sum(1) / np.maximum((rank**2).sum(1), 1)
        factor += 2 * weight * repeated / (steps * (steps - 1) * (steps - 2))
    return tails(scores(y), variances(y) * np.maximum(factor, 1))


def beside_a_shift(y):
    steps = y.shape[1]
    if steps < 6:
        return kendall(y)
    centred = np.cumsum(y - y.mean(1, keepdims=True), axis=1)
    at = np.arange(3, steps - 2)
    split = at[(centred[:, at - 1] ** 2 * (1 / at + 1 / (steps - at))).argmax(1)]
    out = np.empty(len(y))
    for one in np.unique(split):
        mine = y[split == one]
        score = scores(mine[:, :one]) + scores(mine[:, one:])
        out[split == one] = tails(score, variances(mine[:, :one]) + variances(mine[:, one:]))
    return out


def called(y):
    """(which series are called likely or strong, which strong)."""
    steps = y.shape[1]
    first = 3 if steps >= 10 else 2 if steps >= 7 else 1
    y = y[:, first:]
    slope = slopes(y)
    late = slopes(y[:, y.shape[1] // 2 :])
    third = y.shape[1] // 3
    thirds = [np.median(y[:, part], axis=1) for part in np.split(np.arange(y.shape[1]), (third, -third))]
    shape = (thirds[0] < thirds[1]) & (thirds[1] < thirds[2]) & (late >= 0.5 * slope)
    p = np.maximum(kendall(y), hamed_rao(y, slope, first))
    enough = np.maximum(LIMITS.slope, LIMITS.slope_ratio * np.abs(np.median(y, axis=1)))
    likely = (p < 0.05) & shape & (slope >= enough) & (np.ptp(y, axis=1) > LIMITS.flat)
    return likely, likely & (p < 0.01) & (beside_a_shift(y) < 0.05)


def shares(make, steps, repeats):
    """(the share called likely or strong, the share called strong)."""
    rng = np.random.default_rng(0)
    found = np.zeros(2)
    for _ in range(0, repeats, CHUNK):
        found += [part.sum() for part in called(LEVEL + make(rng, CHUNK, steps))]
    return found / repeats


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_the_twin_says_what_the_rule_says(count):
    """On 105, or 1,050, series of all kinds and lengths."""
    rng = np.random.default_rng(0)
    strong = 0
    for make, _ in TABLE.values():
        for steps in (6, 8, 10, 12, 15, 20, 30):
            series = LEVEL + make(rng, count, steps)
            labels = [label_growth(measure_growth(range(steps), one, LIMITS), LIMITS) for one in series]
            likely, firm = called(series)
            assert [one in ("likely", "strong") for one in labels] == likely.tolist()
            assert [one == "strong" for one in labels] == firm.tolist()
            strong += int(firm.sum())
    assert strong > 5 * count


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_cell_of_the_table_is_met(name):
    make, cells = TABLE[name]
    for steps, cell in zip(STEPS, cells.split(), strict=True):
        expected = np.array([float(share) for share in cell.split("/")])
        found = shares(make, steps, REPEATS)
        allowed = 0.02 + 3 * np.sqrt(found * (1 - found) / REPEATS)
        assert (np.abs(found - expected) <= allowed).all(), (steps, found.tolist(), cell)
