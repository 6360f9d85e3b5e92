"""Why a rank is late, from device traces worked out by hand. Times in microseconds."""

import pytest
from analyses.waiting_traces import measure_folder, section
from chrome_builder import annotation, kernel, launch, op, step
from rules.firing import write_sources

NAMES = ("gemm", "norm", "softmax", "adam")
USUAL = dict.fromkeys(NAMES, 100)
LENGTH = 1500
STEPS = 4


def rank_rows(durations, pause=0, count=1, late=1.0, between=0, steps=STEPS, length=LENGTH):
    """Steps of one rank: each kernel `count` times, a pause after the second, then an all-reduce that ends 100 before the step.

    Ops of the host take 10 (times `late`), and `between` passes before each; they launch kernels of `durations`.
    `pause` may be one for each step.
    """
    rows, correlation = [], 0
    pauses = pause if isinstance(pause, list) else [pause] * steps
    for number in range(steps):
        at = begin = number * length
        rows += [step(number + 1, begin, length), annotation("update_actor", begin, length)]
        free = begin
        for place, name in enumerate(list(durations) * count):
            at += between + pauses[number] * (place == 2)
            correlation += 1
            host = round(10 * late)
            rows += [op(f"aten::{name}", at, host), launch(at + 2, correlation, dur=2)]
            free = max(free, at + 10)
            rows.append(kernel(name, free, durations[name], correlation))
            free += durations[name]
            at += host
        correlation += 1
        begin_collective = max(free, at + 10)
        rows += [op("c10d::allreduce_", at, 10), launch(at + 2, correlation, dur=2)]
        rows.append(
            kernel(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", begin_collective,
                begin + length - 100 - begin_collective, correlation, stream=20,
            )
        )  # fmt: skip
    return rows


def claim(folder, **changed):
    """What R09 says where rank 3 of four is changed."""
    ranks = {rank: rank_rows(USUAL) for rank in range(3)}
    ranks[3] = rank_rows(**{"durations": USUAL} | changed)
    measured = measure_folder(write_sources(folder, ranks))
    (found,) = section(measured).findings
    return found.claim


def test_kernels_that_are_all_slower_by_one_factor_are_a_clock(tmp_path):
    said = claim(tmp_path, durations=dict.fromkeys(NAMES, 120))
    assert said.endswith(": the same kernels take 1.20 times as long as on the others")


def test_where_some_kernels_stay_as_they_are_it_is_more_work(tmp_path):
    """The optimizer's kernel takes as long as elsewhere: rows, not the clock."""
    said = claim(tmp_path, durations={"gemm": 140, "norm": 120, "softmax": 120, "adam": 100})
    assert said.endswith(": more work, mostly gemm in update_actor")


def test_more_calls_are_counted(tmp_path):
    said = claim(tmp_path, count=2)
    assert ", 2 calls per step instead of 1" in said


def test_a_pause_is_told_with_its_length_and_stage(tmp_path):
    """The kernels are done at 210 when the host goes on at 1,020 with the third: it waits 820."""
    said = claim(tmp_path / "long", pause=1000)
    assert "mostly in update_actor" in said
    assert "waits" in said or "nothing is recorded" in said or "it idles longer" in said


@pytest.mark.parametrize(("late", "factor"), [(30, "30.0"), (20, "20.0")])
def test_calls_of_the_host_that_all_take_longer_are_other_load(tmp_path, late, factor):
    """Each op takes 300 (200) instead of 10, so that the device waits for it."""
    said = claim(tmp_path, late=late)
    assert f"the calls of its host take {factor}" in said.replace(",", "")


def of_two(folder, steps, count=1, **late):
    """The findings and the reasons of R09 for two ranks in steps of 30,000: the second is changed."""
    shape = {"durations": USUAL, "count": count, "steps": steps, "length": 30_000}
    ranks = {0: rank_rows(**shape), 1: rank_rows(**shape | late)}
    judged = section(measure_folder(write_sources(folder, ranks)))
    return judged.findings, [v.reason for v in judged.verdicts if v.rule == "straggler"]


def test_a_pause_in_one_step_is_told_as_a_pause_of_its_length_and_no_more(tmp_path):
    """Two kernels end at 210, the third op begins at 10,020: nothing for 9,810."""
    (found,), _ = of_two(tmp_path, 1, pause=10_000)
    assert found.claim == (
        "a pause of rank 1 keeps the others waiting: 9.81 ms, mostly in update_actor: no host activity is recorded for 9.81 ms per step in update_actor"
    )
    assert found.cost_ns == 9_810_000


def test_a_pause_in_one_of_two_steps_costs_half_of_it_per_step(tmp_path):
    (found,), _ = of_two(tmp_path, 2, pause=[0, 10_000])
    assert found.claim.startswith("a pause of rank 1 keeps the others waiting: 4.90 ms per step in step 2, ")  # fmt: skip
    assert found.cost_ns == 4_905_000


def test_pauses_of_ranks_that_take_turns_name_none_of_them(tmp_path):
    """Rank 0 pauses in the first of three steps, rank 1 in the second; rank 2 does not."""
    shape = {"steps": 3, "length": 30_000}
    ranks = {rank: rank_rows(USUAL, pause=[10_000 * (rank == at) for at in range(3)], **shape) for rank in range(2)}
    ranks[2] = rank_rows(USUAL, **shape)
    assert section(measure_folder(write_sources(tmp_path, ranks))).findings == ()


def test_of_a_pause_beside_more_work_only_the_pause_is_told(tmp_path):
    """Four kernels of 1,000 instead of 100 as well, which makes 3,600: the second ends at 2,010, nothing until 10,020."""
    (found,), _ = of_two(tmp_path, 1, pause=10_000, durations=dict.fromkeys(NAMES, 1_000))
    assert {m.name: m.value for m in found.evidence}["late_ns"] == 3_600_000 + 8_020_000
    assert found.cost_ns == 8_010_000


def test_more_work_beside_a_pause_is_not_told_from_chance_in_one_step(tmp_path):
    """Kernels of 2,400: 9,200 more, and 5,210 of pause after the second ends at 4,810."""
    findings, (reason,) = of_two(tmp_path, 1, pause=10_000, durations=dict.fromkeys(NAMES, 2_400))
    assert findings == ()
    assert reason.startswith("14.4 ms of a step are waits for late ranks, most for rank 1: may be chance")  # fmt: skip


@pytest.mark.parametrize(("steps", "number"), [(5, 0), (6, 1)])
def test_short_gaps_that_add_up_are_no_pause_and_need_the_test(tmp_path, steps, number):
    """A hundred kernels of 100; 140 pass between ops of 10 on one rank: its GPU waits 50 before each, 5,000 of 30,000."""
    findings, _ = of_two(tmp_path, steps, count=25, between=140)
    assert len(findings) == number


def slow_in(steps, factor=1.5):
    """Five steps of one rank whose kernels are slower in the steps of these numbers."""
    usual, slow = (rank_rows(dict.fromkeys(NAMES, round(100 * by)), steps=5) for by in (1, factor))
    return [row for rows in (usual, slow) for row in rows if (row["ts"] // LENGTH + 1 in steps) == (rows is slow)]


@pytest.mark.parametrize(("steps", "is_named"), [({4, 5}, True), ({4}, False), ({5}, False)])
def test_kernels_of_a_step_that_another_rank_lacks_show_a_slow_clock(tmp_path, steps, is_named):
    """Rank 0 ends after step 4: waits are known up to there. Kernels of ranks 1 to 3 are compared in step 5 too.

    Four kernels take 50 longer in two of the five steps.
    """
    ranks = {0: rank_rows(USUAL, steps=4), 1: slow_in(()), 2: slow_in(()), 3: slow_in(steps)}
    found = section(measure_folder(write_sources(tmp_path, ranks))).findings
    assert [(one.cost_ns, [place.rank for place in one.places]) for one in found] == [(80_000, [3])] * is_named
    assert all("the same kernels take 1.50 times as long" in one.claim for one in found)


@pytest.mark.parametrize(("steps", "is_named"), [({3, 4, 5}, True), ({2, 3}, False)])
def test_calls_that_take_longer_until_the_end_are_named_in_few_steps(tmp_path, steps, is_named):
    """Ops of two ranks take 300 instead of 10; four ranks need four steps to rule out chance."""
    usual, slow = (rank_rows(USUAL, late=late, steps=5) for late in (1, 30))
    late = [row for rows in (usual, slow) for row in rows if (row["ts"] // LENGTH + 1 in steps) == (rows is slow)]
    found = section(measure_folder(write_sources(tmp_path, {0: usual, 1: usual, 2: late, 3: late}))).findings
    assert [[place.rank for place in one.places] for one in found] == [[2, 3]] * is_named
    assert [one.claim.partition(": the ")[2] for one in found] == [
        "calls of its host take 30.00 times as long as on the others"
    ] * is_named
