"""Rollout engines judged from iterations made by hand: tails, replicas, first iterations, and what the tables show.

Times are ns. An engine is a list of (requests that generate, ns of each iteration, how many such iterations).
"""

import pytest
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.rl import rollout


def rank_keys(rank, replica=None, **more):
    process = {"rank": rank, "replica": replica, "source": f"rank{rank}", "pid": rank}
    return {"run": "r", "role": "rollout", "host": "node1", **process, **more}


class Generation:
    """The rows of one generation of one process."""

    def __init__(self, *shape, rank=0, replica=None, step=None, at=0, pause=0, prefill=(), basis="iterations", **more):
        self.keys = rank_keys(rank, replica, step=step)
        self.iterations = []
        begin = at
        for running, dur, count in shape if basis == "iterations" else ():
            for _ in range(count):
                row = {"ts_ns": at, "dur_ns": dur, "pace_ns": dur, "count": 1, "decode_requests": running}
                row |= {"decode_tokens": running, "prefill": len(self.iterations) in prefill}
                self.iterations.append({**self.keys, **row, **more})
                at += dur
        dur = sum(dur * count for _, dur, count in shape)
        self.span = {**self.keys, "ts_ns": begin, "dur_ns": dur, "basis": basis, "longest_pause_ns": pause}


def judged(*generations, step_ns=None, relative=False, **span):
    """The section on these generations, in steps of this length, on one clock or none."""
    keys = list({one.keys["source"]: rank_keys(one.keys["rank"], one.keys["replica"]) for one in generations}.values())
    tables = {
        "generations": [one.span | span for one in generations],
        "iterations": [row for one in generations for row in one.iterations],
        "captures": [{**of, "absolute_time": not relative} for of in keys],
    }
    if step_ns is not None:
        tables["steps"] = [{**of, "step": 1, "dur_ns": step_ns} for of in keys]
    return rollout.judge(make_measured(**tables), load_default_thresholds())


def finding(section, rule):
    (found,) = (found for found in section.findings if found.rule == rule)
    return found


def rules(section):
    return {found.rule for found in section.findings}


def verdict(section, rule):
    (found,) = (found for found in section.verdicts if found.rule == rule)
    return found


def evidence(found):
    return {metric.name: metric.value for metric in found.evidence}


def sheet(section, name):
    one = next(s for s in section.sheets if s.name == name)
    columns = [heading.name for heading in one.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in one.rows]


LONG_TAIL = ((10, 10, 36), (1, 10, 40))
"""360 tokens in 360, then 40 in 400: these take 40 at the pace of the others, so 360 would be saved."""


# Tails


def test_a_tail_is_what_the_last_tenth_of_the_tokens_takes():
    found = finding(judged(Generation(*LONG_TAIL), step_ns=3600), "rollout-tail")
    assert evidence(found) == {
        "tail_ratio": 400 / 760, "low_batch_ratio": 400 / 760, "tail": 400, "peak_requests": 10,
    }  # fmt: skip
    assert (found.cost_ns, found.cost_ratio, found.severity) == (360, 0.1, "high")
    assert found.claim == "the last 10 % of the tokens take 53 % of generation"
    (place,) = found.places
    assert (place.name, place.rank, place.start_ns, place.end_ns) == ("rank 0", 0, 0, 760)


@pytest.mark.parametrize(("last", "fires"), [(9, True), (8, False)])
def test_a_tail_of_a_fifth_is_one(last, fires):
    """180 tokens in 144; the last 20 take 36 of 180, or 32 of 176. 5 is no low batch of 10."""
    assert ("rollout-tail" in rules(judged(Generation((10, 8, 18), (5, last, 4))))) is fires


def test_only_the_longest_engine_of_a_step_decides_about_tails():
    steady = Generation((10, 10, 77), rank=1)
    assert "rollout-tail" not in rules(judged(Generation(*LONG_TAIL), steady))
    shorter = Generation((10, 10, 75), rank=1)
    assert finding(judged(Generation(*LONG_TAIL), shorter), "rollout-tail").cost_ns == 760 - 750


def test_steps_are_averaged_and_the_tail_that_costs_most_is_named_first():
    """Step 1 has a tail of 400 / 760 that costs 360, step 2 none of its 100: a tenth of its tokens takes a tenth."""
    steps = Generation((10, 10, 25), step=1), Generation(*LONG_TAIL, step=2, at=5000)
    found = finding(judged(*steps), "rollout-tail")
    assert evidence(found)["tail_ratio"] == pytest.approx((0.1 + 400 / 760) / 2)
    assert evidence(found)["low_batch_ratio"] == pytest.approx(200 / 760)
    assert evidence(found)["tail"] == round((25 + 400) / 2)
    assert found.cost_ns == 180
    assert [place.step for place in found.places] == [2, 1]


def test_low_batches_make_a_finding_without_a_long_tail():
    """30 of 100 run 2 of 10 at first, then 10: the tail is a tenth of the tokens of the full batch."""
    section = judged(Generation((2, 10, 30), (10, 10, 70)))
    found = finding(section, "rollout-tail")
    assert found.claim == "30 % of generation runs below a quarter of the largest batch"
    assert "rollout-tail" not in rules(judged(Generation((2, 10, 29), (10, 10, 71))))


FEW = ((10, 10, 9), (1, 10, 10))
"""19 iterations: 90 tokens in 90, then 10 in 100, of which 90 would be saved."""


def test_a_tail_of_too_few_iterations_is_not_judged_but_has_its_price():
    told = verdict(judged(Generation(*FEW), step_ns=900), "rollout-tail")
    assert (told.answer, told.reason) == ("insufficient data", "19 of at least 20 decode iterations")
    assert (told.price_ns, told.price_ratio) == (90, 0.1)
    assert told.claim == "the last 10 % of the tokens take 53 % of generation"
    assert told.needs == "20 decode iterations would prove it"
    judged_one = judged(Generation((10, 10, 9), (1, 10, 11)))
    assert "rollout-tail" in rules(judged_one)


def test_a_tail_of_a_fifth_has_a_price_however_few_its_iterations():
    """9 tokens in 12, then one in 3 of 15."""
    section = judged(Generation((9, 12, 1), (1, 3, 1)))
    assert verdict(section, "rollout-tail").price_ns == round(3 - 12 / 9)
    # 9 in 4, then one in 1: half a nanosecond, which is rounded up.
    assert verdict(judged(Generation((9, 4, 1), (1, 1, 1))), "rollout-tail").price_ns == 1


def test_what_is_too_short_and_no_tail_has_no_price():
    steady = Generation((10, 10, 19))
    assert verdict(judged(steady), "rollout-tail").price_ns is None
    # A fifth of the time, with the full batch: nothing could have run beside it.
    slow_end = Generation((10, 10, 9), (10, 40, 1))
    told = verdict(judged(slow_end), "rollout-tail")
    assert (told.price_ns, told.claim) == (None, "")


def test_the_most_iterations_of_any_engine_are_told():
    one, two = Generation((10, 10, 7), step=1), Generation((10, 10, 5), step=2, at=1000)
    section = judged(one, two)
    assert verdict(section, "rollout-tail").reason == "7 of at least 20 decode iterations"
    assert verdict(section, "slow-first-iterations").reason == "7 of at least 30 decode iterations"


def test_a_long_pause_and_unknown_tokens_are_told_of_a_tail():
    counted = "assumes that the tail's few requests run in full batches"
    (said,) = finding(judged(Generation(*LONG_TAIL, pause=75)), "rollout-tail").caveats
    assert said.startswith(counted)
    (_, said) = finding(judged(Generation(*LONG_TAIL, pause=76)), "rollout-tail").caveats
    assert said.startswith("an idle gap between iterations takes 10 % of a generation")
    steps = Generation(*LONG_TAIL, step=1, pause=0), Generation(*LONG_TAIL, step=2, at=5000, pause=380)
    (_, said) = finding(judged(*steps), "rollout-tail").caveats
    assert said.startswith("an idle gap between iterations takes 50 % of a generation")
    unknown = Generation(*LONG_TAIL, step=2, at=5000, pause=None, decode_tokens=None)
    (_, said) = finding(judged(Generation(*LONG_TAIL, step=1), unknown), "rollout-tail").caveats
    assert said.startswith("tokens were not recorded")


def test_engines_of_which_only_the_end_is_known_have_no_tail():
    section = judged(*(Generation((1, 100, 1), rank=rank, basis="device") for rank in (0, 1)))
    for rule in ("rollout-tail", "slow-first-iterations"):
        told = verdict(section, rule)
        assert (told.answer, told.reason) == ("not applicable", "no iteration of a rollout engine was annotated")
    assert judged(Generation((1, 100, 1), basis="device")).status == "skipped"


def test_one_engine_is_judged_if_any_of_its_generations_is_known_by_iterations():
    section = judged(Generation((8, 10, 25), step=1), Generation((1, 100, 1), step=2, at=5000, basis="device"))
    assert section.status == "ok"


# Replicas


def replicas(*walls, step=None, at=0):
    """Engines of steady batches that begin together; each iteration lasts 1."""
    return [Generation((8, 1, wall), replica=n, rank=n, step=step, at=at) for n, wall in enumerate(walls)]


def test_replicas_that_wait_for_the_last_one_are_told():
    """Ends at 100, 60 and 50: 90 of 300 are waited, which on average is 30 earlier."""
    found = finding(judged(*replicas(60, 100, 50), step_ns=300), "replica-imbalance")
    assert found.claim == "replicas are idle for 30 % of generation; the last one is replica 1"
    assert evidence(found) == {"bubble_ratio": 0.3, "behind_median": 40, "replicas": 3}
    assert (found.cost_ns, found.cost_ratio, found.severity) == (30, 0.1, "high")
    (place,) = found.places
    assert (place.name, place.rank) == ("replica 1", 1)
    assert found.caveats == ("ends are those of the last recorded work, on one clock",)


@pytest.mark.parametrize(("wall", "fires"), [(70, True), (71, False)])
def test_replicas_may_wait_less_than_15_per_cent(wall, fires):
    assert ("replica-imbalance" in rules(judged(*replicas(100, wall)))) is fires


def test_replicas_are_averaged_over_steps_and_the_last_need_not_be_the_same():
    """Bubbles of 25 and 5 %: 15 % in all; 25 and 5 would be saved."""
    section = judged(*replicas(100, 50, step=1), *replicas(90, 100, step=2, at=1000))
    found = finding(section, "replica-imbalance")
    assert found.claim.endswith("the last one is not always the same (replica 0, replica 1)")
    assert evidence(found) == {"bubble_ratio": 0.15, "behind_median": 15, "replicas": 2}
    assert found.cost_ns == 15
    assert [(place.step, place.name) for place in found.places] == [(1, "replica 0"), (2, "replica 1")]
    assert "replica-imbalance" not in rules(judged(*replicas(100, 50, step=1), *replicas(91, 100, step=2, at=1000)))


def test_the_most_engines_of_any_step_are_told():
    section = judged(*replicas(100, 50, step=1), *replicas(100, 50, 51, step=2, at=1000))
    assert evidence(finding(section, "replica-imbalance"))["replicas"] == 3


def test_a_step_with_one_engine_only_does_not_count_for_replicas():
    section = judged(*replicas(100, 70, step=1), Generation((8, 1, 90), step=2, at=1000))
    assert evidence(finding(section, "replica-imbalance"))["bubble_ratio"] == 0.15
    assert verdict(judged(Generation((8, 1, 90))), "replica-imbalance").reason == "one engine only"


def test_replicas_that_wait_for_a_tail_are_told_of_the_tail_alone():
    """760 and 400 would both end at 400 without the tail of the first."""
    section = judged(Generation(*LONG_TAIL), Generation((9, 10, 40), rank=1))
    assert rules(section) == {"rollout-tail"}
    told = verdict(section, "replica-imbalance")
    assert (told.answer, told.reason) == ("clear", "replicas wait for the tail of one: see rollout-tail")
    # 300 wait for the tail and another 100 for no tail.
    section = judged(Generation(*LONG_TAIL), Generation((9, 10, 28), rank=1))
    assert rules(section) == {"rollout-tail", "replica-imbalance"}


def test_replicas_that_wait_for_low_batches_are_told_where_no_tail_is():
    """25 of 100 run a low batch at first, which costs 20: no tail, and without it the other would wait 12 of 160."""
    section = judged(Generation((2, 1, 25), (10, 1, 75)), Generation((9, 1, 68), rank=1))
    assert rules(section) == {"replica-imbalance"}


def test_what_limits_the_times_of_replicas_is_said():
    clocks = "clocks of the replicas cannot be compared: each is timed from its own start"
    assert finding(judged(*replicas(100, 50), relative=True), "replica-imbalance").caveats == (clocks,)
    ends = [Generation((8, 1, wall), replica=n, rank=n, basis="device") for n, wall in ((0, 100), (2, 50))]
    assert finding(judged(*ends), "replica-imbalance").caveats == (
        "ends are those of the last recorded work, on one clock",
        "without annotated iterations a replica ends with its last op",
        "2 of at least 3 replicas were recorded",
    )
    mixed = Generation((8, 1, 100)), Generation((8, 1, 50), rank=1, basis="device")
    assert len(finding(judged(*mixed), "replica-imbalance").caveats) == 2


def test_the_ends_of_replicas_are_listed_in_order():
    section = judged(*replicas(60, 100, 55, step=3))
    assert sheet(section, "rollout_replicas") == [
        {"step": 3, "engines": 3, "first": 55, "median": 60, "last": 100, "bubble": pytest.approx(85 / 300),
         "who": "replica 1"},
    ]  # fmt: skip


# First iterations


def slow_first(*shape, **more):
    return judged(Generation(*shape), **more)


def test_first_iterations_are_compared_with_later_ones_of_their_batch():
    """3 of 30 take 13 instead of 10."""
    found = finding(slow_first((8, 13, 3), (8, 10, 27), step_ns=90), "slow-first-iterations")
    assert found.claim == "the first 10 % of decode iterations take 1.30 times as long as later ones of equal batch"
    assert evidence(found) == {"first_over_later": 1.3, "first_pace": 13, "generations": 1}
    assert (found.cost_ns, found.cost_ratio, found.severity) == (9, 0.1, "high")
    assert "slow-first-iterations" not in rules(slow_first((8, 129, 3), (8, 100, 27)))


def test_first_iterations_of_a_short_generation_are_not_compared():
    section = slow_first((8, 13, 2), (8, 10, 27))
    assert verdict(section, "slow-first-iterations").reason == "29 of at least 30 decode iterations"


def test_half_of_the_first_iterations_need_later_ones_of_their_batch():
    """2 of 4 have, then 1 of 3."""
    section = slow_first((64, 20, 2), (8, 20, 2), (8, 10, 36))
    assert evidence(finding(section, "slow-first-iterations"))["first_over_later"] == 2
    assert sheet(section, "rollout_engines")[0]["over"] == 2
    section = slow_first((64, 20, 2), (8, 20, 1), (8, 10, 27))
    assert verdict(section, "slow-first-iterations").reason == (
        "no later iterations of equal batch to compare the first ones with"
    )
    assert "over" not in sheet(section, "rollout_engines")[0]
    short = Generation((8, 10, 5), step=2, at=5000)
    section = judged(Generation((64, 20, 2), (8, 20, 1), (8, 10, 27), step=1), short)
    assert verdict(section, "slow-first-iterations").reason.startswith("no later iterations of equal batch")


def test_a_step_whose_first_iterations_are_not_compared_costs_nothing():
    """30 in the first step, nothing in the second: 15 per step."""
    compared = Generation((8, 20, 3), (8, 10, 27), step=1)
    found = finding(judged(compared, Generation((8, 10, 5), step=2, at=5000)), "slow-first-iterations")
    assert (found.cost_ns, evidence(found)["generations"]) == (15, 1)


def test_of_engines_side_by_side_the_slowest_start_costs_and_steps_are_averaged():
    """Step 1: 30 and 9 more than later ones; step 2: 12. Ratios 2, 1.3 and 1.4; paces 20, 13, 14."""
    generations = [
        Generation((8 + rank, first, 3), (8 + rank, 10, 27), step=step, rank=rank, at=1000 * step)
        for step, rank, first in ((1, 0, 20), (1, 1, 13), (2, 0, 14))
    ]
    found = finding(judged(*generations), "slow-first-iterations")
    assert found.cost_ns == (30 + 12) / 2
    assert evidence(found) == {"first_over_later": 1.4, "first_pace": 14, "generations": 3}
    assert [(place.step, place.name) for place in found.places] == [(1, "rank 0"), (2, "rank 0"), (1, "rank 1")]


# Headline and tables


def test_the_headline_has_medians_over_generations():
    """Walls 760, 270, 180; paces 10, 10, 6; tails 400 / 760, 0.1, 0.1; bubbles of the first step and of no other."""
    generations = [
        Generation(*LONG_TAIL, step=1),
        Generation((8, 10, 27), step=1, rank=1),
        Generation((8, 6, 30), step=2, at=5000),
    ]
    metrics = {metric.name: metric.value for metric in judged(*generations).metrics}
    assert metrics == {
        "generation_wall": 270, "decode_pace": 10, "tail_ratio": pytest.approx(0.1),
        "bubble_ratio": pytest.approx((760 - 270) / 2 / 760),
    }  # fmt: skip


def test_the_headline_of_ends_alone_has_no_pace():
    ends = [Generation((1, wall, 1), rank=rank, basis="device") for rank, wall in ((0, 100), (1, 80))]
    assert {m.name: m.value for m in judged(*ends).metrics} == {"generation_wall": 90, "bubble_ratio": 0.1}


def test_a_generation_has_its_throughput_and_its_prefill():
    """5 prefills of 20 and 10 decodes of 10: 15 · 8 tokens in 200 ns; the GPU works 4 in each."""
    one = Generation((8, 20, 5), (8, 10, 10), prefill=range(5), step=2, busy_ns=4)
    (row,) = sheet(judged(one), "rollout_engines")
    assert row["tokens_per_s"] == pytest.approx(120 / 200e-9)
    assert (row["prefill_time"], row["prefill_ratio"]) == (0.5, pytest.approx(1 / 3))
    assert (row["engine"], row["step"], row["wall_ns"], row["iterations"]) == ("rank 0", 2, 200, 15)
    assert (row["pace_ns"], row["peak"], row["mean"]) == (10, 8, 8)


def test_a_generation_without_prompts_has_no_share_of_prefill():
    (row,) = sheet(judged(Generation((8, 10, 10), busy_ns=4)), "rollout_engines")
    assert (row["prefill_time"], row["prefill_ratio"]) == (0, 0)


def test_a_generation_of_which_only_the_end_is_known_has_only_its_length():
    ends = [Generation((1, wall, 1), rank=rank, basis="device", step=1) for rank, wall in ((0, 100), (1, 80))]
    rows = sheet(judged(*ends), "rollout_engines")
    assert [{key: value for key, value in row.items() if value is not None} for row in rows] == [
        {"role": "rollout", "engine": "rank 0", "step": 1, "wall_ns": 100},
        {"role": "rollout", "engine": "rank 1", "step": 1, "wall_ns": 80},
    ]


def test_an_engine_that_generates_nothing_has_no_throughput():
    (row,) = sheet(judged(Generation((0, 10, 5))), "rollout_engines")
    assert "tokens_per_s" not in row or row["tokens_per_s"] is None
    assert (row["iterations"], row["wall_ns"]) == (5, 50)


def test_what_limits_what_is_known_of_engines_is_said():
    known = {"busy_ns": 1}
    assert judged(Generation((8, 10, 5), **known)).caveats == ()
    mates = [Generation((8, 10, 5), replica=0, rank=rank, **known) for rank in (0, 1)]
    assert judged(*mates).caveats == ("processes with the same batches (tensor parallel) are shown as one engine",)
    assert judged(Generation((8, 10, 5), busy_ns=None)).caveats == ("no GPU activity was recorded for some engines",)
    two = Generation((8, 10, 5), **known), Generation((9, 10, 5), rank=1, busy_ns=None)
    assert judged(*two).caveats == ("no GPU activity was recorded for some engines",)
    unknown = Generation((9, 10, 5), rank=1, decode_tokens=None, **known)
    (said,) = judged(Generation((8, 10, 5), **known), unknown).caveats
    assert said == "without recorded tokens, one per running request and iteration is assumed"
    with_ends = judged(Generation((8, 10, 5), **known), Generation((1, 50, 1), rank=1, basis="host"))
    assert with_ends.caveats == ("engines without annotated iterations are known only by their first and last work",)
    assert judged(Generation((8, 10, 5), **known), elsewhere_count=1200).caveats == (
        "1,200 iterations ran on other threads of their process: not shown",
    )


def test_at_most_eight_places_are_named_and_each_engine_once():
    generations = [Generation(*LONG_TAIL, step=step, at=1000 * step) for step in range(9)]
    assert len(finding(judged(*generations), "rollout-tail").places) == 8


def test_a_role_is_named_where_several_generate():
    actor = Generation(*LONG_TAIL)
    reward = Generation((8, 10, 40), rank=1)
    for row in (reward.span, reward.keys, *reward.iterations):
        row["role"] = "reward"
    section = judged(actor, reward)
    assert finding(section, "rollout-tail").claim.endswith("of generation of rollout")
    reasons = {told.reason for told in section.verdicts if told.rule == "replica-imbalance"}
    assert reasons == {"one engine only of rollout", "one engine only of reward"}
