"""Why a rank is late, from device traces worked out by hand. Times in microseconds."""

import pytest
from analyses.waiting_traces import measure_folder, section
from chrome_builder import annotation, kernel, launch, op, step
from rules.firing import write_sources

NAMES = ("gemm", "norm", "softmax", "adam")
USUAL = dict.fromkeys(NAMES, 100)
LENGTH = 1500
STEPS = 4


def rank_rows(durations, pause=0, count=1, late=1.0):
    """Four steps of one rank: each kernel `count` times, a pause after the second, then an all-reduce that ends at 1,400.

    Ops of the host take 10 (times `late`) and launch kernels of `durations`.
    """
    rows, correlation = [], 0
    for number in range(STEPS):
        at = begin = number * LENGTH
        rows += [step(number + 1, begin, LENGTH), annotation("update_actor", begin, LENGTH)]
        free = begin
        for place, name in enumerate(list(durations) * count):
            at += pause * (place == 2)
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
                begin + 1400 - begin_collective, correlation, stream=20,
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
    assert said.endswith(": more work, most of it gemm in update_actor")


def test_more_calls_are_counted(tmp_path):
    said = claim(tmp_path, count=2)
    assert ", 2 calls a step instead of 1" in said


def test_a_pause_is_told_with_its_length_and_stage(tmp_path):
    """The kernels are done at 210 when the host goes on at 1,020 with the third: it waits 820."""
    said = claim(tmp_path / "long", pause=1000)
    assert "most of it in update_actor" in said
    assert "waits" in said or "nothing is recorded" in said or "it idles longer" in said


@pytest.mark.parametrize(("late", "factor"), [(30, "30.0"), (20, "20.0")])
def test_calls_of_the_host_that_all_take_longer_are_other_load(tmp_path, late, factor):
    """Each op takes 300 (200) instead of 10, so that the device waits for it."""
    said = claim(tmp_path, late=late)
    assert f"the calls of its host take {factor}" in said.replace(",", "")
