"""Steps that are longer from some step on: R36 by steps of known length, in microseconds."""

import itertools
import math

import numpy as np
import pytest
from analyses.waiting_traces import measure_folder, section
from chrome_builder import annotation, op, step
from rules.firing import write_sources

from tracekit.analyses import load_default_thresholds, rules
from tracekit.analyses.time.drift import Rise, _find_rise, _list_rise_candidates


def measured_of(folder, lengths):
    """One rank with a stage of each length, and 10 in no stage before it."""
    rows, at = [], 0
    for number, length in enumerate(lengths, start=1):
        rows += [
            step(number, at, length), annotation("update_actor", at + 10, length - 10),
            op("aten::mm", at + 10, length - 20),
        ]  # fmt: skip
        at += length
    return measure_folder(write_sources(folder, rows and {0: rows}), ("drift", "steps"))


def judged(folder, lengths):
    part = section(measured_of(folder, lengths), "drift")
    return part.findings, [verdict.reason for verdict in part.verdicts]


def test_steps_that_are_all_longer_than_all_before_are_told_with_the_step(tmp_path):
    """1,000 on average, then 1,080: 80 in half of the steps, of a mean step of 1,040."""
    ((found,), _) = judged(tmp_path, [990, 1010, 1000, 1080, 1090, 1070])
    assert found.claim == "steps are 8.0 % slower from step 4 on, mostly in update_actor"
    assert (found.cost_ns, found.severity) == (40_000, "medium")
    assert found.cost_ratio == pytest.approx(40 / 1040)
    assert [(place.step, place.stage) for place in found.places] == [(4, "update_actor")]
    assert {m.name: m.value for m in found.evidence} == {
        "before_ns": 1_000_000, "after_ns": 1_080_000, "gain_ns": 40_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "lengths",
    [
        [990, 1080, 1000, 1010, 1090, 1075],  # one of the longer ones comes earlier
        [1000, 1000, 1000, 1029, 1029, 1029],  # by 2.9 %
        [1080, 1080, 1080, 1000, 1000, 1000],  # shorter
    ],
)
def test_near_misses(tmp_path, lengths):
    assert judged(tmp_path, lengths) == ((), [])


def test_five_steps_say_nothing(tmp_path):
    assert judged(tmp_path, [1000, 1000, 1000, 1080, 1080]) == ((), ["5 of at least 6 steps"])


@pytest.mark.parametrize("steps", [6, 7, 8])
def test_chance_finds_a_rise_in_at_most_5_percent_of_all_orders(steps):
    places = _list_rise_candidates(steps, 0.05)
    orders = 0
    for order in itertools.permutations(range(steps)):
        orders += any(min(order[place:]) > max(order[:place]) for place in places)
    assert 0 < orders <= 0.05 * math.factorial(steps)


@pytest.mark.parametrize("steps", [*range(12), 30, 67, 400])
def test_places_are_those_of_the_exact_chance(steps):
    chances = {place: 1 / math.comb(steps, place) for place in range(2, steps - 1)}
    for level in (0.01, 0.05, 0.5):
        places = _list_rise_candidates(steps, level)
        assert sum(chances[place] for place in places) <= level * (1 + 1e-9)
        further = [chances[place] for place in chances if place not in places]
        if further:
            assert sum(map(chances.get, places)) + min(further) > level * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_the_rise_is_the_largest_of_all_that_are_tried_one_by_one(seed):
    random = np.random.default_rng(seed)
    walls = random.integers(1_000_000, 1_050_000, random.integers(6, 50)).astype(float)
    walls[random.integers(1, len(walls)) :] += random.integers(0, 150_000)
    if seed % 4 == 0:
        walls.sort()
    places = _list_rise_candidates(len(walls), 0.05)
    rises = []
    for place in places:
        before, after = walls[:place], walls[place:]
        if after.min() > before.max() and after.mean() >= 1.03 * before.mean():
            rises.append(Rise(place, before.mean(), after.mean()))
    most = max(rises, key=lambda rise: rise.after_ns / rise.before_ns, default=None)
    assert _find_rise(walls, places, 0.03) == most


def test_its_page_names_its_thresholds():
    for name in load_default_thresholds().of("drift"):
        assert name in rules.read_rule_page("drift")
