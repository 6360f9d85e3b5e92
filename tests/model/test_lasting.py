"""Who always comes first: the chance of it against counting all that could have been, and against drawing it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.lasting import (
    ALL_ROUNDS_SHARE,
    compute_lasting_chance,
    compute_vote_chance,
    count_rounds_needed,
    count_votes,
)


@pytest.mark.parametrize(("rows", "size", "rounds"), [(3, 1, 3), (4, 1, 3), (4, 2, 3), (5, 2, 2)])
def test_the_chance_of_a_set_that_was_chosen_beforehand_is_counted(rows, size, rounds):
    """Over all ways in which sets of that size can come first in every round."""
    sets = [*itertools.combinations(range(rows), size)]
    chosen = set(sets[0])
    hits = [sum(len(chosen & set(of_round)) for of_round in way)
            for way in itertools.product(sets, repeat=rounds)]  # fmt: skip
    factor = len(sets) * (2**size if rows > 3 else 1)
    for votes in range(size * rounds + 1):
        counted = sum(number >= votes for number in hits) / len(hits)
        assert compute_vote_chance(rows, size, rounds, votes) == pytest.approx(min(1, factor * counted))


def test_of_very_many_votes_the_bound_is_never_below_the_chance():
    """500 of 1,000 rows in 9 rounds are 4,500 votes; all of them are worked out exactly, fewer are bounded."""
    assert compute_vote_chance(1000, 500, 9, 4500) < 1e-300
    assert compute_vote_chance(1000, 500, 9, 4499) >= compute_vote_chance(1000, 500, 9, 4500)
    assert compute_vote_chance(1000, 4, 2, 8) == pytest.approx(16 / math.comb(1000, 4))
    assert compute_vote_chance(1000, 500, 9, 2200) == 1


def test_a_tie_with_one_that_was_not_chosen_is_no_vote():
    values = np.array([[5, 5, 7], [5, 4, 1], [1, 1, 1.0]])
    assert count_votes(values, np.array([True, False, False])) == 2
    assert count_votes(values, np.array([True, True, False])) == 5


@pytest.mark.parametrize("rows", [2, 3, 4, 8, 64])
def test_so_many_rounds_are_enough_and_one_less_is_not(rows):
    rounds = count_rounds_needed(rows, 1, 0.05)
    assert compute_vote_chance(rows, 1, rounds, rounds) / ALL_ROUNDS_SHARE <= 0.05
    assert compute_vote_chance(rows, 1, rounds - 1, rounds - 1) / ALL_ROUNDS_SHARE > 0.05


DRAWS = 300


def late_by_half(values):
    """The rows that are late by half of the latest, as ranks are chosen."""
    mean = values.mean(axis=1)
    return mean >= mean.max() / 2


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([(2, 8), (3, 6), (4, 4), (4, 6), (8, 6), (16, 3)]), st.integers(0, 2**32))
def test_random_imbalance_names_nobody_and_a_lasting_one_is_named(shape, seed):
    """Lateness with heavy tails, as of tokens: at least 95 % of the draws name nobody, less three standard errors."""
    dice = np.random.default_rng(seed)
    named, innocent = 0, 0
    for _ in range(DRAWS):
        values = dice.lognormal(0, 1, shape)
        values -= np.median(values, axis=0)
        chosen = late_by_half(values)
        if 0 < 2 * chosen.sum() <= len(chosen):
            innocent += compute_lasting_chance(values, chosen, since_of(values, chosen)) <= 0.05
        values[0] += 200
        named += compute_lasting_chance(values, late_by_half(values)) <= 0.05
    assert innocent <= DRAWS * 0.05 + 3 * math.sqrt(DRAWS * 0.05 * 0.95)
    assert named == DRAWS


def since_of(values, chosen):
    """The round from which on the chosen ones are late to the end, as for ranks."""
    of_round = values[chosen].mean(axis=0)
    late = (of_round >= of_round.max() / 2) & (of_round > 0)
    start = int(late.argmax())
    return start if late[start:].all() else 0
