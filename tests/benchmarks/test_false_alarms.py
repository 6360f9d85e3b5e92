"""False alarms of the command stay below what is promised, in every SIMULATED world; and the table is of the command."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import promises
from benchmarks.false_alarms import (
    DESIGNS,
    EFFECTS,
    PROMISED,
    SESSIONS,
    WORLDS,
    asks_and_decides,
    cell,
    counts_on_levels,
    false_on_levels,
    has_equal_sides,
    judged,
    percent,
    simulated,
    worst_on_levels,
)
from compare.made import report, step_rows

from tracekit.model.stats.noise import calibrate_noise
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.two_levels import can_show_change
from tracekit.model.stats.verdict import choose_verdict
from tracekit.render import write_report_json

TRIALS = 4_000
SAMPLING = 0.1
"""One standard error of a share of 0.5 % of so many comparisons, in percent."""

# World, design, how much slower the second is: some of each verdict among a few comparisons.
CELLS = [
    ("steps 3 %, runs 1 %", "4 v 4", 0.06),
    ("two levels, quiet", "4 v 4", 0.1),
    ("5 % of steps × 3", "4 v 4, 20 v 3 steps", 0.2),
    ("steps 3 %, runs 1 %", "5 v 5", 0.05),
    ("opt far noisier", "6 v 3", 0.2),
    ("base far noisier", "3 v 10", 0.2),
    ("steps 3 %, runs 1 %", "3 v 3", 0.1),
    ("steps 3 %, runs 1 %", "5 v 1", 0.1),
    ("steps 3 %, runs 1 %", "3 v 3 + 6", 0.06),
    ("two levels, 5 %", "3 v 3 + 12", 0.1),
    ("1 run in 25 +50 %", "1 v 1 + 8", 0.0),
    ("1 run in 25 +50 %", "4 v 4", 0.0),
]


def of_trial(sides, trial):
    return [[run[trial].tolist() for run in side] for side in sides]


def may_speak(design):
    sides = DESIGNS[design]
    return can_show_change(len(sides.base), len(sides.opt), sides.earlier)


SPEAKING = [design for design in DESIGNS if may_speak(design)]


@pytest.mark.parametrize(("world", "design", "slower"), CELLS)
def test_the_words_of_the_table_are_those_of_single_comparisons(world, design, slower):
    sides = simulated(world, design, slower, 100)
    words, holds = judged(*sides)
    for trial in range(100):
        base, opt, earlier = of_trial(sides, trial)
        found = compute_speedup(base, opt, noise=calibrate_noise(earlier) if earlier else None)
        assert choose_verdict(found).word == words[trial]
        assert (found.low <= 1 <= found.high) == holds[trial]


def test_the_cells_hold_every_word():
    words = {word for world, design, slower in CELLS for word in judged(*simulated(world, design, slower, 100))[0]}
    assert words == {"regression", "no change", "inconclusive"}
    base, opt, earlier = simulated("steps 3 %, runs 1 %", "4 v 4", 0.2, 10)
    assert set(judged(opt, base, earlier)[0]) == {"improvement"}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "design", "slower"), [one for one in CELLS if "+" not in one[1]])
def test_the_words_of_the_table_are_those_of_the_command(call, tmp_path, world, design, slower):
    """`tracekit compare`, with a gate: status 1 is where the table says regression."""
    sides = simulated(world, design, slower, 8)
    words, _ = judged(*sides)
    found = []
    for trial in range(8):
        paths = [tmp_path / f"{name}{trial}.json" for name in ("base", "opt")]
        for path, runs in zip(paths, of_trial(sides[:2], trial), strict=True):
            path.write_text(write_report_json(report(step_rows(*runs))), encoding="utf-8")
        result = call("compare", *paths, "--drop-first", 0, "--fail-on", "step_time>3%")
        assert ("inconclusive" in result.stdout.split("\n\n")[1]) == (words[trial] == "inconclusive")
        found.append(result.exit_code == 1)
    print(world, design, found)
    assert found == (words == "regression").tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "design"),
    [
        ("two levels, 15 %", "4 v 4"),
        ("two levels, 5 %", "4 v 4"),
        ("30 % of runs +10 %", "4 v 4"),
        ("5 % of steps × 3", "4 v 4, 20 v 3 steps"),
        ("two levels, 15 %", "6 v 3"),
        ("two levels, quiet", "3 v 3 + 6"),
        ("two levels, 5 %", "3 v 3 + 12"),
        ("opt far noisier", "10 v 3"),
        ("base far noisier", "3 v 10"),
        ("30 % of runs +10 %", "5 v 5"),
        ("RL-like: 15 %, drift", "10 v 10"),
    ],
)
def test_false_changes_are_as_rare_as_promised(world, design):
    found = cell(world, design, TRIALS)
    print(world, design, found)
    assert max(found.slower, found.faster) <= PROMISED + SAMPLING
    assert max(found.slower_at_0, found.faster_at_0) <= 0.7 + SAMPLING


@pytest.mark.parametrize("design", [design for design in DESIGNS if not may_speak(design)])
def test_runs_too_few_are_never_called_slower_or_faster(design):
    for slower in (0.0, 0.2):
        words, _ = judged(*simulated("steps 3 %, runs 1 %", design, slower, 500))
        assert set(words) <= {"no change", "inconclusive"}


def test_two_tight_levels_are_called_slower_as_often_as_the_bound_says():
    # Half of runs slow: (1/2)^8. A third of 6 v 3: (2/3)^6 (1/3)^3 = 64 / 19683. (1/2)^10 of 5 v 5. Never of 3 v 3.
    levels, half = np.array([0.0, 0.1]), np.array([0.5, 0.5])
    assert false_on_levels("4 v 4", levels, half) == pytest.approx(100 / 256)
    assert false_on_levels("5 v 5", levels, half) == pytest.approx(100 / 1024)
    assert false_on_levels("6 v 3", levels, np.array([2 / 3, 1 / 3])) == pytest.approx(6400 / 19683)
    assert false_on_levels("3 v 3", levels, half) == 0
    # Levels within the least effect are no change.
    assert false_on_levels("4 v 4", np.array([0.0, 0.02]), half) == 0


def test_every_way_to_spread_runs_over_levels_is_counted():
    counts = counts_on_levels(3, 2)
    assert sorted(map(tuple, counts.tolist())) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert len(counts_on_levels(6, 3)) == 28  # 8 over 2


@pytest.mark.slow
@pytest.mark.parametrize("design", ["4 v 4", "6 v 3", "3 v 3 + 6", "5 v 5", "9 v 3"])
def test_no_two_to_four_levels_break_the_promise(design):
    worst, levels, weights = worst_on_levels(design)
    print(design, worst, levels, weights)
    assert 0 < worst <= PROMISED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "design", "slower", "least"),
    [
        ("steps 3 %, runs 1 %", "4 v 4", 0.1, 93),
        ("steps 3 %, runs 1 %", "5 v 5", 0.1, 99),
        ("steps 3 %, runs 1 %", "10 v 10", 0.1, 99),
        ("steps 3 %, runs 1 %", "3 v 3 + 6", 0.1, 85),
        ("steps 3 %, runs 1 %", "6 v 3", 0.1, 80),
        ("steps 3 %, runs 1 %", "5 v 5", 0.05, 30),
        ("steps 3 %, runs 1 %", "10 v 10", 0.05, 63),
        ("15 % of runs +10 %", "10 v 10", 0.1, 90),
        ("one pattern of steps", "4 v 4", 0.1, 97),
    ],
)
def test_silence_is_not_how_the_promise_is_kept(world, design, slower, least):
    words, _ = judged(*simulated(world, design, slower, TRIALS))
    seen = percent(words == "regression")
    print(f"{world} {design}: {seen:.0f} %")
    assert seen >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "design", "least", "most"),
    [
        ("steps 3 %, runs 1 %", "3 v 3", 93, 99),
        ("opt far noisier", "3 v 3", 93, 99),
        ("opt far noisier", "6 v 3", 93, 99),
        ("opt far noisier", "10 v 3", 93, 99),
        ("two levels, 5 %", "3 v 3 + 6", 92, 99),
        ("steps 5 %, correlated .8", "4 v 4", 93, 99),
        ("5 % of steps × 3", "4 v 4, 20 v 3 steps", 88, 99),
        ("opt far noisier", "5 v 2", 87, 99),
        ("two levels, 15 %", "2 v 2", 87, 99),
    ],
)
def test_intervals_cover_what_they_say(world, design, least, most):
    """Percent of 95; more in skewed and two-level worlds. One standard error of 12,000 is .3 points."""
    _, holds = judged(*simulated(world, design, 0.0, 3 * TRIALS))
    print(world, design, percent(holds))
    assert least - 0.5 <= percent(holds) <= most + 0.5


def test_those_who_ask_are_few_among_equal_sides_and_are_decided_by_four():
    asks, slower, faster = asks_and_decides("steps 3 %, runs 1 %", 0.0, 1_000)
    assert 0 < asks < 8
    assert slower == faster == 0
    asks, slower, _ = asks_and_decides("steps 3 %, runs 1 %", 0.1, 1_000)
    assert asks > 97
    words, _ = judged(*simulated("steps 3 %, runs 1 %", "4 v 4", 0.1, 1_000))
    assert slower <= percent(words == "regression")
    assert slower > 90


@pytest.mark.slow
def test_three_runs_that_ask_for_a_fourth_see_what_three_saw_and_keep_the_promise():
    for effect, least in zip(EFFECTS, (20, 92, 99), strict=True):
        assert asks_and_decides("steps 3 %, runs 1 %", effect, TRIALS)[1] >= least
    for world in ("two levels, 5 %", "two levels, 15 %", "30 % of runs +10 %"):
        _, slower, faster = asks_and_decides(world, 0.0, TRIALS)
        print(world, slower, faster)
        assert max(slower, faster) <= PROMISED + SAMPLING


def committed_cells():
    """{(world, design): (slower, faster, slower at 0, faster at 0)} of the committed table."""
    text = (Path(__file__).parent / "false_alarms.txt").read_text(encoding="utf-8").split("\n\n")[0]
    return {
        (line[:25].strip(), line[25:45].strip()): tuple(map(float, line.split()[-8:-4]))
        for line in text.splitlines()[2:]
    }


def test_the_committed_table_holds_every_cell_and_keeps_the_promise():
    cells = committed_cells()
    assert set(cells) == {(world, design) for design in DESIGNS for world in WORLDS if has_equal_sides(world, design)}
    for (world, design), shares in cells.items():
        if not may_speak(design):
            assert shares == (0, 0, 0, 0)
        elif world not in SESSIONS:
            assert max(shares[:2]) <= PROMISED + 0.05, (world, design)


def test_the_docs_tell_the_worst_cell_of_the_committed_table():
    """The larger of slower and faster, over designs that may speak and worlds without sessions."""
    worst = max(
        max(shares[:2])
        for (world, design), shares in committed_cells().items()
        if design in SPEAKING and world not in SESSIONS
    )
    docs = Path(__file__).parents[2] / "docs"
    for page in ("compare.md", "method.md"):
        assert f"at most {worst:.1f} %" in (docs / page).read_text(encoding="utf-8")


def test_the_worlds_are_equal_sides_but_where_one_is_slower():
    for world in WORLDS:
        if world not in SESSIONS:
            base, opt, earlier = simulated(world, "3 v 3 + 6", 0.1, 4_000)
            means = [np.log(np.mean(side)) for side in (base, opt, earlier)]
            assert means[1] - means[0] == pytest.approx(np.log(1.1), abs=0.012), world
            assert means[2] - means[0] == pytest.approx(0, abs=0.012), world


def test_a_pilot_promises_within_its_band_and_a_plan_delivers_a_share():
    found = promises.power_table(4, 40)
    assert len(found) == len(promises.BANDS)
    for band, (low, high) in zip(found, promises.BANDS, strict=True):
        if band is not None:
            promised, true, pilots = band
            assert 100 * low <= promised < 100 * high
            assert 0 <= true <= 100
            assert 0 < pilots <= 40
    assert all(share is None or 50 <= share <= 100 for share in promises.plan_table(4, 20))
    share, number, delivered = promises.world_plans("steps 3 %, runs 1 %", 10, 4)
    assert 0 < share <= 100
    assert 4 <= number <= 30
    assert delivered > 50


@pytest.mark.slow
@pytest.mark.parametrize("runs", [4, 10])
def test_where_a_power_is_printed_new_comparisons_have_it(runs):
    """Averaged over spreads of runs from 0.2 to 20 %, in each band with enough pilots: ± 3 points.

    One printed value is off by 30 points in the middle: 200 of them by 2.
    """
    found = [band for band in promises.power_table(runs, 4_000, seed=5) if band is not None and band[2] >= 150]
    print(runs, found)
    assert len(found) >= 4
    for promised, true, _ in found:
        assert true == pytest.approx(promised, abs=3)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [4, 10])
def test_plans_deliver_eight_of_ten(runs):
    delivered = promises.plan_table(runs, 400)
    print(runs, delivered)
    assert all(share is None or share >= 80 - 4 for share in delivered)


@pytest.mark.slow
def test_odd_steps_get_no_plan():
    """Spikes: 79 to 99 % of pilots are refused; runs alike get one unless they look odd by chance."""
    assert promises.world_plans("5 % of steps × 3", 10, 100)[0] < 25
    assert promises.world_plans("steps 3 %, runs 1 %", 10, 100)[0] > 80
