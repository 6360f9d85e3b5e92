"""An exact test whether the same members always come first, with one vote per round, and the number of rounds it needs.

Under chance the members of a round are exchangeable: any set of a given size is equally likely to come first. The tested
set was chosen because it came first, so the number of possible sets and sizes is corrected for.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_TERMS = 4_000
"""Number of votes up to which their distribution is exact; beyond, an upper bound is used."""


ALL_ROUNDS_SHARE = 0.75
"""Share of the significance level for all rounds; the rest is for "from some round on to the end"."""


def compute_lasting_chance(values: Floats, chosen: Bools, since: int = 0) -> float:
    """Compute the probability that chance puts some rows before all others as often as the chosen ones.

    Rows are members, columns are rounds. `since` is the first round from which they always come first, to the end. It was
    chosen among many possible ones, so those rounds need stronger evidence.

    >>> values = np.array([[0, 0, 9, 9, 9, 9, 9], [1, 2, 3, 4, 5, 6, 7], [2, 1, 0, 1, 2, 1, 2.0]])
    >>> [round(compute_lasting_chance(values, np.array([True, False, False]), since), 3) for since in (0, 2)]
    [0.181, 0.181]
    """
    rows, rounds = values.shape
    size = int(chosen.sum())
    likely = compute_vote_chance(rows, size, rounds, count_votes(values, chosen)) / ALL_ROUNDS_SHARE
    if since:
        votes = count_votes(values[:, since:], chosen)
        windows = (rounds - 1) / (1 - ALL_ROUNDS_SHARE)
        likely = min(likely, windows * compute_vote_chance(rows, size, rounds - since, votes))
    return min(likely, 1.0)


def count_votes(values: Floats, chosen: Bools) -> int:
    """Count how often a chosen row is among the largest of a column, as many as are chosen; a tie does not count.

    >>> count_votes(np.array([[9.0, 8.0], [1.0, 8.0], [2.0, 3.0]]), np.array([True, False, False]))
    1
    """
    size = int(chosen.sum())
    rows = len(values)
    largest_left_out = np.partition(values, rows - size - 1, axis=0)[rows - size - 1]
    return int((values[chosen] > largest_left_out).sum())


def compute_vote_chance(rows: int, size: int, rounds: int, votes: int) -> float:
    """Compute the probability that chance gives some set of this size or smaller at least this many votes.

    >>> round(compute_vote_chance(4, 1, 4, 4), 6), round(compute_vote_chance(2, 1, 6, 6), 6), compute_vote_chance(4, 1, 4, 1)
    (0.03125, 0.03125, 1.0)
    """
    total = size * rounds
    sets = _compute_log_choose(rows, size)
    # Each size gets a share of the significance level: 1/2, 1/4 …; with two or three rows there is only one size.
    sizes = 0.0
    if rows > 3:
        sizes = size * math.log(2)
    if votes >= total:
        tail = -rounds * sets
    elif total <= MOST_TERMS:
        tail = _compute_log_tail(rows, size, rounds, votes)
    else:
        tail = _compute_chernoff_bound(total, size / rows, votes / total)
    return math.exp(min(sets + sizes + tail, 0.0))


def count_rounds_needed(rows: int, size: int, level: float) -> int:
    """Compute how many rounds distinguish a set that always comes first from chance, by `compute_lasting_chance`.

    >>> count_rounds_needed(2, 1, 0.05), count_rounds_needed(3, 1, 0.05), count_rounds_needed(4, 1, 0.05), count_rounds_needed(8, 1, 0.05)
    (6, 4, 4, 3)
    """
    rounds = 2
    while compute_vote_chance(rows, size, rounds, size * rounds) > level * ALL_ROUNDS_SHARE:
        rounds += 1
    return rounds


def _compute_log_choose(rows: int, size: int) -> float:
    """Compute the logarithm of the number of sets."""
    return math.lgamma(rows + 1) - math.lgamma(size + 1) - math.lgamma(rows - size + 1)


def _compute_log_tail(rows: int, size: int, rounds: int, votes: int) -> float:
    """Compute the log probability that a set chosen beforehand gets at least this many votes."""
    of_round = np.zeros(size + 1)
    sets = _compute_log_choose(rows, size)
    for hits in range(max(0, 2 * size - rows), size + 1):
        ways = _compute_log_choose(size, hits) + _compute_log_choose(rows - size, size - hits)
        of_round[hits] = math.exp(ways - sets)
    likely = np.ones(1)
    for _ in range(rounds):
        likely = np.convolve(likely, of_round)
    tail = float(likely[votes:].sum())
    if tail <= 0:
        return -math.inf
    return math.log(tail)


def _compute_chernoff_bound(total: int, share: float, reached: float) -> float:
    """Compute Chernoff's bound of the same: drawing without replacement spreads no wider than with it."""
    if reached <= share:
        return 0.0
    below = (1 - reached) * math.log((1 - reached) / (1 - share))
    return -total * (reached * math.log(reached / share) + below)
