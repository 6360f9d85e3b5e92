"""Waits booked to their causes, own work compared, R09 and R10. Traces in microseconds, results in nanoseconds."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from analyses.waiting_traces import measure_folder, rows_of, section
from changed_tables import with_tables
from chrome_builder import BASE_NS, annotation, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.firing import write_sources
from rules.traces_stragglers import FIRES, NEAR_MISSES, RUNLOOP, late_by, rank_group, turns

from tracekit.analyses import load_default_thresholds, rules
from tracekit.analyses.ranks import imbalance
from tracekit.job.frames import summarize_step_walls
from tracekit.job.rank_groups import compute_medians_of_others, measure_own_work_of_ranks
from tracekit.job.stragglers.collective_waits import attribute_collective_waits, sum_waits_for_last_rank
from tracekit.model.tables.frame import from_rows, sum_of
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("imbalance", "stragglers")

OWNER = {"straggler": "stragglers", "rank-imbalance": "imbalance"}


def measured_of(folder, sources):
    return measure_folder(write_sources(folder, sources))


def findings(measured, rule):
    return [f for f in section(measured, OWNER[rule]).findings if f.rule == rule]


def verdicts(measured, rule):
    return [(v.answer, v.reason) for v in section(measured, OWNER[rule]).verdicts if v.rule == rule]


@pytest.mark.parametrize("rule", OWNER)
def test_it_fires_with_the_numbers_worked_out_by_hand(tmp_path, rule):
    expected = FIRES[rule]
    measured = measured_of(tmp_path, expected.rows)
    (found,) = findings(measured, rule)
    assert (found.claim, found.severity) == (expected.claim, expected.severity)
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert {m.name: m.value for m in found.evidence} == pytest.approx(expected.evidence)
    assert found.places
    (other,) = OWNER.keys() - {rule}
    assert findings(measured, other) == []


@pytest.mark.parametrize("rule", OWNER)
def test_a_near_miss_does_not_fire(tmp_path, rule):
    assert findings(measured_of(tmp_path, NEAR_MISSES[rule]), rule) == []


@pytest.mark.parametrize("rule", OWNER)
def test_its_page_names_its_thresholds(rule):
    for name in load_default_thresholds().of(rule):
        assert name in rules.read_rule_page(rule)


# R09: each condition alone


def test_what_it_costs_must_reach_its_share_of_the_step(tmp_path):
    """15 of 1,000, and 14."""
    for more, number in ((15, 1), (14, 0)):
        rows = rank_group([[[50, 50, 50 + more]] + [[50, 50, 50]] * 9] * 4)
        assert len(findings(measured_of(tmp_path / str(more), rows), "straggler")) == number


@pytest.mark.parametrize(("ranks", "steps"), [(2, 6), (3, 4), (4, 4), (8, 3)])
def test_the_last_rank_is_named_after_as_many_steps_as_chance_allows(tmp_path, ranks, steps):
    """One of n is last in all of S steps by chance in 1 of n^(S-1) recordings; that may be in 0.05 · 0.75, of four ranks and
    more in half of that, as larger sets are looked for too."""
    work = [[50] * (ranks - 1) + [70]] * 10
    enough = findings(measured_of(tmp_path / "enough", rank_group([work] * steps)), "straggler")
    assert [[place.rank for place in found.places] for found in enough] == [[ranks - 1]]
    few = measured_of(tmp_path / "few", rank_group([work] * (steps - 1)))
    assert findings(few, "straggler") == []
    ((answer, reason),) = verdicts(few, "straggler")
    assert answer == "insufficient data"
    assert reason.startswith(f"200 µs of a step are waits for late ranks, most for rank {ranks - 1}: may be chance (")  # fmt: skip
    assert reason.endswith(f" in {steps - 1} steps, {steps} would decide it")


def test_nobody_is_cleared_by_fewer_steps_than_could_name_somebody(tmp_path):
    """Nobody waits, in 3 steps of 4 that would be needed, and in 4."""
    alike = [[50, 50, 50]] * 10
    measured = measured_of(tmp_path / "few", rank_group([alike] * 3))
    assert verdicts(measured, "straggler") == [("insufficient data", "3 of at least 4 steps")]
    assert verdicts(measured_of(tmp_path / "enough", rank_group([alike] * 4)), "straggler") == []


def test_nobody_is_cleared_while_ranks_wait_for_now_one_and_now_another(tmp_path):
    """Four steps of 1,050, in each of which all but one wait 150."""
    measured = measured_of(tmp_path, turns(85, (0, 1, 2, 0)))
    assert findings(measured, "straggler") == []
    assert verdicts(measured, "straggler") == [
        ("insufficient data", "150 µs of a step are waits for late ranks, for changing ranks: see rank-imbalance")
    ]  # fmt: skip


def test_one_rank_alone_says_nothing(tmp_path):
    measured = measured_of(tmp_path, rank_group([[[50]] * 10] * 8))
    assert verdicts(measured, "straggler") == [("insufficient data", "1 of at least 2 ranks of one role")]  # fmt: skip


def alike(slow, ranks=16, steps=3):
    """Three steps of ten segments: the last `slow` ranks work 70 where others work 50."""
    return rank_group([[[50] * (ranks - slow) + [70] * slow] * 10] * steps)


def test_equal_stragglers_are_named_together(tmp_path):
    """Four of 16 that come last at once: none of them alone is the last of any collective; the others wait 20 ten times."""
    (found,) = findings(measured_of(tmp_path, alike(4)), "straggler")
    assert found.claim.startswith("ranks 12–15 keep the others waiting: 200 µs per step, mostly in update_actor")  # fmt: skip
    assert found.cost_ns == 200_000
    evidence = {metric.name: (metric.value, metric.label) for metric in found.evidence}
    # The same four of 16 in three steps; sets of four have 1 in 2^4 of the certainty, all three steps three quarters.
    assert evidence["chance_ratio"][0] == pytest.approx(16 / math.comb(16, 4) ** 2 / 0.75)
    assert evidence["last_ratio"] == (1.0, "of 3 steps later than all others")
    assert [place.rank for place in found.places] == [12, 13, 14, 15]


def test_more_than_half_of_the_ranks_set_nobody_apart(tmp_path):
    """Five of eight: the others are early. Four are named."""
    assert len(findings(measured_of(tmp_path / "4", alike(4, ranks=8)), "straggler")) == 1
    assert findings(measured_of(tmp_path / "5", alike(5, ranks=8)), "straggler") == []


def test_a_second_rank_that_is_less_late_is_named_beside_the_latest(tmp_path):
    """Beyond the others by 200 and by 40 of 1,000 in each of five steps."""
    rows = rank_group([[[50, 50, 50, 50, 54, 70]] * 10] * 5)
    found = findings(measured_of(tmp_path, rows), "straggler")
    assert [f.places[0].rank for f in found] == [5]
    rows = rank_group([[[50, 50, 50, 50, 50, 70]] * 10 + [[50, 50, 50, 50, 54, 50]] * 10] * 5)
    found = findings(measured_of(tmp_path / "apart", rows), "straggler")
    assert [(f.places[0].rank, f.cost_ns) for f in found] == [(5, 200_000), (4, 40_000)]


@pytest.mark.parametrize("kind", ["host", "device_name"])
def test_the_ranks_of_a_host_or_of_a_model_of_gpu_are_named_by_it(tmp_path, kind):
    measured = measured_of(tmp_path, alike(4))
    captures = measured["captures"]
    names = np.where(captures["rank"] >= 12, "node-03", "node-02")
    (found,) = findings(with_tables(measured, {"captures": captures.assign(**{kind: names})}), "straggler")  # fmt: skip
    said = {"host": "of host", "device_name": "with"}[kind]
    assert found.claim.startswith(f"all 4 ranks {said} node-03 (ranks 12–15) keep the others waiting")
    names = np.where(captures["rank"] >= 11, "node-03", "node-02")
    (found,) = findings(with_tables(measured, {"captures": captures.assign(**{kind: names})}), "straggler")  # fmt: skip
    assert found.claim.startswith("ranks 12–15 keep the others waiting")


@pytest.mark.parametrize(("slowest", "step"), [((70, 75, 70, 70), 2), ((75, 70, 70, 70), 1), ((70, 70, 70, 70), 1)])
def test_it_is_shown_in_the_step_in_which_it_is_latest(tmp_path, slowest, step):
    """Later than the others by 200 or 250 of 1,000; of steps alike the first."""
    work = [[[50, 50, own]] * 10 for own in slowest]
    (found,) = findings(measured_of(tmp_path, rank_group(work)), "straggler")
    assert [(p.rank, p.step, p.stage) for p in found.places] == [(2, step, "update_actor")]


def test_a_rank_that_is_late_from_some_step_on_is_named_with_the_step(tmp_path):
    """Of eight ranks the last in steps 5 to 9 of 9, and in steps 5 to 8 of 8; nobody is late before.

    Five steps like these are 2 of 8^4 recordings, and there are eight steps from which on it could have been, which
    have a quarter of the certainty: 0.016. Of four steps it is 0.11.
    """
    quiet, late = [[50] * 8] * 10, [[50] * 7 + [70]] * 10
    (found,) = findings(measured_of(tmp_path / "5", rank_group([quiet] * 4 + [late] * 5)), "straggler")  # fmt: skip
    assert found.claim.startswith("rank 7 keeps the others waiting: 111 µs per step from step 5 on")
    evidence = {metric.name: metric.value for metric in found.evidence}
    assert evidence["chance_ratio"] == pytest.approx(2 * 8**-4 * 8 * 4)
    assert findings(measured_of(tmp_path / "4", rank_group([quiet] * 4 + [late] * 4)), "straggler") == []  # fmt: skip


def in_two_stages():
    """Four steps of ten segments, three in `gen` and seven in `update_actor`: rank 2 works 20 more before each."""
    rows = rank_group([[[50, 50, 70]] * 10] * 4)
    for rank, mine in rows.items():
        rows[rank] = [row for row in mine if row["name"] != "actor_update"]
        for at in (0, 1000, 2000, 3000):
            rows[rank] += [annotation("gen", at, 300), annotation("actor_update", at + 300, 700)]
    return rows


def test_the_stage_named_is_that_of_most_of_the_work_beyond(tmp_path):
    """60 of it in `gen`, 140 in `update_actor`."""
    (found,) = findings(measured_of(tmp_path, in_two_stages()), "straggler")
    assert found.claim.startswith("rank 2 keeps the others waiting: 200 µs per step, mostly in update_actor")
    told = {metric.name: (metric.value, metric.label) for metric in found.evidence}
    assert told["late_ns"] == (200_000, "later than the others, per step")


def test_what_it_costs_is_told_of_the_group_that_waits_longest_for_it(tmp_path):
    """Three collectives of a step in one group, seven in another: 60 and 140 of waits that would not be."""
    measured = measured_of(tmp_path, in_two_stages())
    tables = {}
    for name in ("collectives", "arrivals"):
        frame = measured[name]
        number = (
            frame.groupby(["rank", "step"]).cumcount() if "step" in frame else frame.groupby("rank").cumcount() % 10
        )
        tables[name] = frame.assign(group=pd.Categorical(np.where(number < 3, "few", "many")))
    parted = with_tables(measured, tables)
    (found,) = findings(parted, "straggler")
    assert found.cost_ns == 140_000


def test_last_without_working_longer_is_no_straggler(tmp_path):
    """Rank 2 comes last by 20 because it is blocked in broadcasts, not because it works."""
    rows = rank_group([[[50, 50, 50]] * 10] * 4)
    for rank, mine in rows.items():
        rows[rank] = [row for row in mine if not row["name"].startswith("gloo")]
        for k in range(40):
            at = 100 * k
            if rank == 2:
                rows[rank].append(annotation("gloo:broadcast", at + 50, 20, tid=103))
            begin = at + 50 + 20 * (rank == 2)
            rows[rank].append(annotation("gloo:all_reduce", begin, at + 75 - begin, tid=RUNLOOP))
    measured = measured_of(tmp_path, rows)
    (last,) = (r for r in rows_of(section(measured), "ranks") if r["rank"] == 2)
    assert (last["last_ratio"], last["taken"], last["beyond_ns"]) == (1.0, 40, 0)
    assert findings(measured, "straggler") == []
    assert verdicts(measured, "straggler") == [
        ("insufficient data", "200 µs of a step are waits for late ranks, most for rank 2: without a recorded cause in their own work")
    ]  # fmt: skip


def test_a_rank_that_begins_late_outside_its_stages_is_named_without_a_stage(tmp_path):
    """Rank 2 does nothing for 100 at the beginning of each step; then all work alike."""
    rows = {}
    for rank in range(3):
        rows[rank] = []
        for number in range(4):
            at, begin = 1000 * number, 1000 * number + 100 * (rank == 2)
            rows[rank] += [
                step(number + 1, at, 1000), annotation("actor_update", begin, at + 1000 - begin),
                op("aten::mm", begin, 500), op("aten::mm", at + 620, 380),
                annotation("gloo:all_reduce", begin + 500, at + 620 - begin - 500, tid=RUNLOOP),
            ]  # fmt: skip
    (found,) = findings(measured_of(tmp_path, rows), "straggler")
    assert found.cost_ns == 100_000
    assert found.claim.startswith("rank 2 keeps the others waiting: 100 µs per step: ")
    assert "outside its stages" in found.claim
    assert found.places[0].stage is None


# R10: each condition alone


def test_a_rank_that_is_always_the_longest_is_no_rotation(tmp_path):
    """Rank 0 in three of five steps: 60 %."""
    assert findings(measured_of(tmp_path, turns(85, (0, 1, 0, 2, 0))), "rank-imbalance") == []
    four = measured_of(tmp_path / "half", turns(85, (0, 1, 0, 2)))
    assert len(findings(four, "rank-imbalance")) == 1


def test_two_ranks_can_take_turns(tmp_path):
    """Own work of 1000 and 500 in each of four steps, by turns; a rank that is longest in three is no rotation."""

    def two_ranks(longest):
        return rank_group([[[100 if rank == who else 50 for rank in range(2)]] * 10 for who in longest], 105)

    (found,) = findings(measured_of(tmp_path, two_ranks((0, 1, 0, 1))), "rank-imbalance")
    assert found.evidence[0].value == pytest.approx(0.25)
    assert found.changes == ('{"do": "equalise", "on": "host"}',)
    assert findings(measured_of(tmp_path / "same", two_ranks((0, 1, 0, 0))), "rank-imbalance") == []


def test_two_steps_do_not_show_a_rotation(tmp_path):
    measured = measured_of(tmp_path, turns(50, (0, 1)))
    assert findings(measured, "rank-imbalance") == []
    assert verdicts(measured, "rank-imbalance") == [("insufficient data", "2 of at least 3 steps")]


def test_without_collectives_the_longest_is_set_against_the_median(tmp_path):
    """Own work of 100, 50 and 50 in stages of 100, and nobody who waits in a collective: 50 of 100."""
    ranks = {
        rank: [row for k in range(3) for row in
               (step(k + 1, 100 * k, 100), op("mm", 100 * k, 1),
                annotation("gen", 100 * k, 100 if k == rank else 50))]
        for rank in range(3)
    }  # fmt: skip
    (found,) = findings(measured_of(tmp_path, ranks), "rank-imbalance")
    assert (found.cost_ns, found.places[0].stage) == (50_000, "gen")
    assert section(measure_folder(tmp_path)).reason == "no collective was recorded"


# Waits and their causes


def rl_step(gen, adv=10):
    """A step of `gen` (by rank), then `adv` that begins with a collective ending 5 after the last has come."""
    end = max(gen) + 5
    return {
        rank: [
            step(1, 0, end + adv), annotation("gen", 0, own), annotation("adv", own, end + adv - own),
            op("mm", 0, own), op("mm", end, adv),
            annotation("gloo:all_gather", own, end - own, tid=RUNLOOP),
        ]
        for rank, own in enumerate(gen)
    }  # fmt: skip


def test_a_wait_is_booked_to_the_stage_in_which_the_late_rank_was_late(tmp_path):
    """Ranks 0 and 2 wait in adv for rank 1, which generated for 354 longer."""
    part = section(measured_of(tmp_path, rl_step([100, 454, 100])))
    assert [tuple(r.values()) for r in rows_of(part, "waits")] == [(1, "gen", "adv", 2, 354_000.0)]
    assert [(r["rank"], r["stage"], r["late_rank"], r["cause"], r["per_step"]) for r in rows_of(part, "wait_matrix")] == [
        (0, "adv", 1, "gen", 354_000.0), (2, "adv", 1, "gen", 354_000.0),
    ]  # fmt: skip
    assert part.metrics[0].value == pytest.approx(2 * 354_000 / 3)


def test_a_wait_that_compute_hides_is_not_lost(tmp_path):
    """Rank 0 comes 40 earlier but works on for 30 of them: 10 are lost."""
    end = 105
    rows = {
        rank: [
            step(1, 0, 200), annotation("update_actor", 0, 200), op("mm", 0, busy),
            annotation("gloo:all_reduce", came, end - came, tid=RUNLOOP), op("mm", end, 95),
        ]
        for rank, came, busy in ((0, 60, 90), (1, 100, 100))
    }  # fmt: skip
    found = attribute_collective_waits(measured_of(tmp_path, rows)).collectives
    assert found.sort("rank").values("lost_ns") == [10_000, 0]


def test_what_own_work_does_not_explain_is_booked_to_no_stage(tmp_path):
    """Both work 50; rank 1 begins its stage 30 later, as whoever calls it did."""
    rows = {
        rank: [
            step(1, 0, 200), annotation("update_actor", begin, 200 - begin), op("mm", begin, 50),
            annotation("gloo:all_reduce", begin + 50, 55 - begin, tid=RUNLOOP), op("mm", 105, 95),
        ]
        for rank, begin in ((0, 0), (1, 30))
    }  # fmt: skip
    part = section(measured_of(tmp_path, rows))
    (row,) = rows_of(part, "waits")
    assert (row["late_rank"], row.get("cause"), row["each_ns"]) == (1, None, 30_000.0)


def test_of_two_groups_that_lose_the_same_time_one_counts(tmp_path):
    """Ranks 0 and 1 (and 2 and 3) share a group, 0 and 2 (1 and 3) another; rank 3 works 40 longer.

    Rank 2 waits 40 for it in the first, ranks 0 and 1 wait 40 for 2 and 3 in the second.
    """
    for rank in range(4):
        pair, own = rank // 2, 50 + 40 * (rank == 3)
        both = 95 if pair else 55
        rows = [
            step(1, 0, 200), annotation("update_actor", 0, 200), op("mm", 0, own), op("mm", 130, 70),
            annotation("gloo:all_reduce", own, both - own, tid=RUNLOOP),
            annotation("gloo:all_gather", both, 130 - both, tid=RUNLOOP),
        ]  # fmt: skip
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=4)
    measured = measure_folder(tmp_path)
    groups = {0: ("tp0", "dp0"), 1: ("tp0", "dp1"), 2: ("tp1", "dp0"), 3: ("tp1", "dp1")}
    regrouped = {}
    for name in ("collectives", "arrivals"):
        frame = measured[name]
        frame["group"] = pd.Categorical(
            [groups[rank][op == "all_gather"] for rank, op in zip(frame["rank"], frame["op"], strict=True)]
        )  # fmt: skip
        regrouped[name] = frame
    measured = with_tables(measured, regrouped)
    lost = attribute_collective_waits(measured).collectives.group_by("rank", "group").agg(lost_ns=sum_of("lost_ns"))
    assert {(row["rank"], row["group"]): row["lost_ns"] for row in lost.rows() if row["lost_ns"]} == {
        (0, "dp0"): 40_000, (1, "dp1"): 40_000, (2, "tp1"): 40_000,
    }  # fmt: skip
    # In a group of two the median is half of what the one waits.
    assert sum_waits_for_last_rank(measured).values("lost_ns") == [20_000]


def test_the_wait_of_the_median_rank_counts_at_each_collective(tmp_path):
    """In each step six waits of 20, 20 and 0, and four of 1, 1 and 0."""
    measured = measured_of(tmp_path, late_by([20] * 6))
    assert set(sum_waits_for_last_rank(measured).values("lost_ns")) == {120_000 + 4 * 1_000}


def test_own_work_is_compared_not_the_wall_which_collectives_make_equal(tmp_path):
    """All stages take 1,050; the longest rank works 1,000, the others 850."""
    (row,) = rows_of(section(measured_of(tmp_path, turns(85)), "imbalance"), "imbalance")
    assert row["stage"] == "update_actor"
    assert (row["mean_ns"], row["max_ns"]) == (900_000, 1_000_000)
    assert row["imbalance_ratio"] == pytest.approx(0.1)


def test_roles_are_not_compared_with_one_another(tmp_path):
    """Two ranks of an actor and two of a critic, which works ten times as long."""
    for role, own in (("actor", 20), ("critic", 200)):
        for rank, mine in rank_group([[[own, own + 1]] * 10] * 2, 250).items():
            name = f"{role}_train_step1_rank{rank}-of-2_pid{rank + own}_20260101000000000.json"
            # The rows say the same process: at one time that would be one recording.
            later = [row | {"ts": row["ts"] + own} if "ts" in row else row for row in mine]
            write(tmp_path / name, later, rank=rank, world_size=2)
    measured = measure_folder(tmp_path)
    rows = rows_of(section(measured), "ranks")
    assert [(r["role"], r["rank"], abs(r["beyond_ns"])) for r in rows] == [
        (role, rank, 10_000) for role in ("actor", "critic") for rank in (0, 1)
    ]  # fmt: skip
    assert verdicts(measured, "straggler") == [("insufficient data", "2 of at least 6 steps")]


def test_runs_are_judged_apart_and_named(tmp_path):
    write_sources(tmp_path / "a", late_by([20] * 8))
    write_sources(tmp_path / "b", rank_group([[[50, 50, 50]] * 10] * 2))
    found = findings(measure_folder(tmp_path), "straggler")
    assert [f.claim.endswith(" (run a)") for f in found] == [True]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({0: []}, "no step or stage of a known rank was recorded"),
        ({0: [step(1, 0, 10), op("mm", 0, 5)]}, "only one rank was recorded: there is no other rank to compare with"),
        ({r: [step(1, 0, 10), op("mm", 0, 5)] for r in (0, 1)}, "no collective was recorded"),
        ({r: [step(1 + r, 0, 10), op("mm", 0, 5), annotation("gloo:all_reduce", 2, 4, tid=RUNLOOP)] for r in (0, 1)},
         "no collective could be matched between ranks"),
    ],
)  # fmt: skip
def test_without_waits_to_tell_the_section_says_why(tmp_path, rows, reason):
    if not rows[0]:
        write(tmp_path / "trace.json", [op("mm", 0, 5)])
        measured = measure_folder(tmp_path)
    else:
        measured = measured_of(tmp_path, rows)
    part = section(measured)
    assert (part.status, part.reason, part.findings) == ("skipped", reason, ())
    assert [v.answer for v in part.verdicts] == ["insufficient data"]


def test_the_chart_has_a_cell_a_rank_and_step(tmp_path):
    """Ranks 0 and 2 wait 1 for rank 1 once a step, rank 2 as long for rank 0."""
    (chart,) = section(measured_of(tmp_path, late_by([20] * 8))).charts
    assert chart.rows == ("rank 0", "rank 1", "rank 2")
    assert [mark for mark in chart.marks if mark[0] != 1] == [
        (rank, at * 1_000_000, (at + 1) * 1_000_000, waited)
        for rank, waited in ((0, 161_000), (2, 2_000)) for at in range(4)
    ]  # fmt: skip


# What must not matter


def on_one_clock(finding, ahead):
    """The finding with the times of its instances on the clock of rank 0; `ahead` is by how much others are ahead."""
    instances = []
    for each in finding.instances:
        late = ahead.get(each.place.rank, 0)
        place = replace(each.place, start_ns=each.place.start_ns - late, end_ns=each.place.end_ns - late)
        instances.append(replace(each, place=place))
    return replace(finding, instances=tuple(instances))


def told(measured, ahead=None):
    """All that is said of waits and own work, the clocks' offsets apart."""
    parts = [section(measured, name) for name in OWNER.values()]
    sheets = [[s for s in part.sheets if s.name != "clocks"] for part in parts]
    return [(p.status, p.metrics, s, [on_one_clock(f, ahead or {}) for f in p.findings], p.caveats, p.verdicts, p.charts)
            for p, s in zip(parts, sheets, strict=True)]  # fmt: skip


def test_shifting_a_clock_by_a_second_changes_nothing(tmp_path):
    for name, rows in (("r09", late_by([20] * 8)), ("r10", turns(85))):
        still = measured_of(tmp_path / "still" / name, rows)
        for rank, mine in rows.items():
            base = BASE_NS + (10**9 if rank == 1 else 0)
            write(tmp_path / "moved" / name / f"rank{rank}.json", mine, rank=rank, world_size=3, base_ns=base)  # fmt: skip
        moved = measure_folder(tmp_path / "moved" / name)
        assert told(still) == told(moved, {1: 10**9})
        clocks = rows_of(section(moved), "clocks")
        assert [c["offset_ns"] for c in clocks] == [0, 10**9, 0]


def test_the_report_has_the_offset_of_each_clock_and_the_steps_that_count(tmp_path):
    for rank, mine in late_by([20] * 8).items():
        base = BASE_NS + (10**9 if rank == 1 else 0)
        write(tmp_path / f"rank{rank}.json", mine, rank=rank, world_size=3, base_ns=base)
    report = analyze_uncached(tmp_path, Options(jobs=1, questions=("stragglers",))).report
    assert [(clock.rank, clock.offset_ns) for clock in report.clocks] == [(0, 0), (1, 10**9), (2, 0)]
    assert len({clock.group for clock in report.clocks}) == 1
    ((numbers, left_out),) = [(steps.numbers, steps.left_out) for steps in report.counted_steps]
    assert (numbers, left_out) == ((1, 2, 3, 4), ())


def test_the_order_of_files_and_rows_changes_nothing(tmp_path):
    rows = late_by([20] * 8)
    still = measured_of(tmp_path / "still" / "run", rows)
    shuffler = random.Random(3)
    for mine in rows.values():
        shuffler.shuffle(mine)
    assert told(measured_of(tmp_path / "rows" / "run", rows)) == told(still)
    tables = {name: still[name].sample(frac=1, random_state=5).reset_index(drop=True) for name in still.tables}
    assert told(with_tables(still, tables)) == told(still)


def test_rows_split_over_two_devices_are_not_merged(tmp_path):
    """Rank 2's collectives, half of them said to be on another device: it matches nothing any more."""
    measured = measured_of(tmp_path, late_by([20] * 8))
    tables = {}
    for name in ("collectives", "arrivals"):
        frame = measured[name]
        device = np.where((frame["rank"] == 2) & (np.arange(len(frame)) % 2 == 1), 1, 0)
        tables[name] = frame.assign(device=pd.array(device, dtype="Int64"))
    split = with_tables(measured, tables)
    assert findings(measured, "straggler")
    assert findings(split, "straggler") == []
    assert any("several processes or devices claim one rank" in c for c in section(split).caveats)


WORK = st.lists(
    st.lists(st.tuples(*[st.integers(1, 60)] * 3), min_size=1, max_size=4).map(list),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(WORK)
def test_times_add_up_for_any_work(tmp_path_factory, work):
    """Own, blocked and wall; waits and causes; a wait is the work that the last did more."""
    measured = measured_of(tmp_path_factory.mktemp("any"), rank_group([[list(s) for s in one] for one in work]))  # fmt: skip
    own = measure_own_work_of_ranks(measured)
    assert (own["own_ns"] + own["blocked_ns"]).sum() == 3 * summarize_step_walls(measured).walls["wall_ns"].sum()
    found = attribute_collective_waits(measured)
    waits = found.collectives
    has_last = waits.is_among(waits.filter(waits["is_last"]), ["match"])
    assert found.booked["lost_ns"].sum() == waits["lost_ns"][has_last].sum()
    for rank in range(3):
        assert waits["lost_ns"][waits.equals("rank", rank)].sum() == 1000 * sum(
            max(s) - s[rank] for one in work for s in one
        )
    for part in (section(measured, name) for name in OWNER.values()):
        assert part.status == "ok"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50)), max_size=12))
def test_the_median_of_the_others(pairs):
    group = np.array([g for g, _ in pairs], np.int64)
    values = np.array([v for _, v in pairs], np.int64)
    found = compute_medians_of_others(values, group)
    for k in range(len(pairs)):
        others = np.delete(values, k)[np.delete(group, k) == group[k]]
        assert found[k] == (np.floor(np.median(others)) if len(others) else values[k])


@pytest.mark.parametrize(
    ("missing", "words"), [(0, None), (1, "1 rank was not recorded:"), (3, "3 ranks were not recorded:")]
)
def test_ranks_that_were_not_recorded_are_counted_in_a_caveat(monkeypatch, missing, words):
    monkeypatch.setattr(imbalance, "count_missing_ranks", lambda *_: missing)
    caveats = imbalance._caveat_unrecorded_ranks(None, None)
    assert [caveat.startswith(words) for caveat in caveats] == ([] if words is None else [True])


@pytest.mark.parametrize(("ratios", "price"), [([0.1, 0.1], 7.0), ([0.1, 0.09], 0.0), ([0.1, None], 7.0)])
def test_an_imbalance_of_too_few_steps_is_priced_from_its_limit_on(monkeypatch, ratios, price):
    by_step = from_rows(("imbalance_ratio",), [(ratio,) for ratio in ratios])
    monkeypatch.setattr(imbalance, "_summarize_rank_imbalance", lambda *_: {"by_step": by_step, "rows": None})
    monkeypatch.setattr(imbalance, "_compute_imbalance_cost", lambda *_: 7.0)
    lack = imbalance._price_unproven_imbalance(None, None, {"imbalance_ratio": 0.1, "min_steps": 3}, "few")
    assert (lack.reason, lack.price_ns, bool(lack.claim)) == ("few", price, price > 0)


@pytest.mark.parametrize(("is_whole", "steps", "constant"), [(True, 5, 0.8), (False, 3, 2 / 3)])
def test_the_longest_rank_is_looked_up_in_all_recorded_steps_of_its_group(monkeypatch, is_whole, steps, constant):
    """Rank 0 is longest in 2 of 3 steps that count, and in 4 of 5 of all; group b has other steps."""

    def compare(measured, group, _):
        ranks = {"some": [0, 0, 1], "all": [0, 0, 0, 0, 1]}[measured.name]
        ranks = ranks if group.labels == "a" else [1] * 9
        longest = from_rows(("role", "replica", "rank"), [(None, None, rank) for rank in ranks])
        return longest, ranks, longest

    monkeypatch.setattr(imbalance, "_compare_ranks_by_step", compare)
    groups = [SimpleNamespace(labels="b"), SimpleNamespace(labels="a"), SimpleNamespace(labels="c")]
    monkeypatch.setattr(imbalance, "list_rank_groups", lambda _: groups)
    monkeypatch.setattr(
        imbalance, "_find_most_frequent_rank", lambda longest: (0, longest.values("rank").count(0) / len(longest))
    )
    whole = SimpleNamespace(name="all")
    measured = SimpleNamespace(name="some", recorded=whole if is_whole else None)
    judged = imbalance._summarize_rank_imbalance(measured, groups[1], {})
    assert (judged["step_count"], judged["constant"]) == (steps, pytest.approx(constant))
    assert judged["by_step"] == [0, 0, 1]
