"""Kernels beside collectives: how much longer they take is measured, and applied where a change moves a collective."""

import numpy as np
import pytest
from benchmarks.replay_worlds import TABLE as WORLD_TABLE
from chrome_builder import kernel, launch, step
from replay.graphs import collective_name, meet, replay_rows
from replay.worlds import WORLDS, measure_world_errors, simulate_in_world

from tracekit.replay.changes import make_change, parse_change
from tracekit.replay.contention import measure_contention, rescale_kernels
from tracekit.replay.edges import Weights
from tracekit.replay.plan import Fix, plan_fixes
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import list_job_steps
from tracekit.replay.what_if import answer_what_if, build_plan_report, build_what_if_report

ALONE, BESIDE, TRANSFER = 100, 150, 200
ROUND = 600
"""Every round of 600 µs a kernel runs alone, and one beside a collective of 200 µs."""
APPLIED = "kernels during communication take 1.50× as long: measured on 48 kernels, applied"
CONSTANT = "durations are constants: contention between kernels, clocks and caches are not modeled"


def make_rank(rank, rounds=24, *, alone=ALONE, beside=BESIDE, grid=True):
    """The rows of a rank: launches, then one `gemm` alone and one within an all-reduce, in each round."""
    about = {"grid": [8, 1, 1]} if grid else {}
    rows = [step(1, 0, rounds * ROUND)]
    for number in range(rounds):
        at, key = number * ROUND, 1_000 * (rank + 1) + 10 * number
        rows += [launch(at + 10, key, dur=4), kernel("gemm", at + 17, alone, key, **about)]
        rows += meet(at + 190, at + 197, TRANSFER, key + 1, number + 1)
        rows += [launch(at + 200, key + 2, dur=4), kernel("gemm", at + 207, beside, key + 2, **about)]
    return rows


def replay_two(folder, **options):
    return replay_rows(folder, *(make_rank(rank, **options) for rank in (0, 1)))


def test_the_factor_is_the_median_ratio_of_kernels_of_the_same_work(tmp_path):
    contention = measure_contention(replay_two(tmp_path).job)
    assert (contention.factor, contention.kernels) == (pytest.approx(1.5), 48)


def test_kernels_alone_of_different_lengths_are_not_the_same_work(tmp_path):
    """Every other kernel alone takes three times as long: nothing shows which of the two runs beside the collective."""
    rows = [make_rank(rank) for rank in (0, 1)]
    for of_rank in rows:
        alone = [row for row in of_rank if row["name"] == "gemm" and row["dur"] == ALONE]
        for row in alone[::2]:
            row["dur"] = ALONE / 3
    assert measure_contention(replay_rows(tmp_path, *rows).job) is None


def test_kernels_without_a_collective_beside_them_get_shorter(tmp_path):
    run = replay_two(tmp_path)
    after = run.after({"do": "remove", "on": "collective", "op": "AllReduce"})
    lengths = [after.end("gemm", nth=nth) - after.start("gemm", nth=nth) for nth in range(4)]
    assert lengths == [ALONE] * 4


def test_kernels_that_come_beside_a_collective_get_longer(tmp_path):
    """Ten times as long a transfer lasts into the next rounds: all but the first kernel run beside one."""
    run = replay_two(tmp_path)
    after = run.after({"do": "scale", "on": "collective", "op": "AllReduce", "factor": 10})
    lengths = [after.end("gemm", nth=nth) - after.start("gemm", nth=nth) for nth in range(5)]
    assert lengths == [ALONE, BESIDE, BESIDE, BESIDE, BESIDE]


def test_a_kernel_that_is_only_partly_beside_a_collective_is_slower_only_then(tmp_path):
    """A transfer of 40 µs, from 197 to 237: of the kernel from 207 on 30 µs are beside it, in which 20 µs of work are done."""
    after = replay_two(tmp_path).after({"do": "scale", "on": "collective", "op": "AllReduce", "factor": 0.2})
    assert after.end("gemm", nth=1) - after.start("gemm", nth=1) == pytest.approx(30 + 80)


def test_a_kernel_that_a_change_makes_shorter_has_less_work(tmp_path):
    after = replay_two(tmp_path).after({"do": "scale", "on": "device", "op": "gemm", "factor": 0.5})
    lengths = [after.end("gemm", nth=nth) - after.start("gemm", nth=nth) for nth in range(2)]
    assert lengths == [pytest.approx(ALONE / 2), pytest.approx(BESIDE / 2)]


def test_as_recorded_no_kernel_changes(tmp_path):
    job = replay_two(tmp_path).job
    contention = measure_contention(job)
    assert np.array_equal(rescale_kernels(job, contention, job.edges.weight, job.time), job.edges.weight)
    simulation = simulate_in_world("slow_link", "contention")
    graph, weights = simulation.graph, Weights(simulation.graph.edges.weight)
    contention = measure_contention(graph)
    assert contention is not None
    assert np.array_equal(rescale_kernels(graph, contention, weights.weight, graph.time), weights.weight)


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 9},  # 18 kernels beside collectives
        {"beside": ALONE + 2},  # 2 % longer
        {"beside": 60},  # shorter
        {"grid": False},  # work of unknown size
    ],
)
def test_nothing_is_applied_without_evidence(tmp_path, options):
    assert measure_contention(replay_two(tmp_path, **options).job) is None


def test_kernels_of_another_grid_are_not_compared(tmp_path):
    ranks = [make_rank(rank) for rank in (0, 1)]
    for rows in ranks:
        gemms = [row for row in rows if row["name"] == "gemm"]
        for number, row in enumerate(gemms):
            row["args"]["grid"] = [8 + number % 2, 1, 1]
    assert measure_contention(replay_rows(tmp_path, *ranks).job) is None


def test_runs_without_collectives_have_no_factor(tmp_path):
    rows = [row for row in make_rank(0) if row["name"] != collective_name()]
    assert measure_contention(replay_rows(tmp_path, rows).job) is None


# What the report says


def list_cautions(run, change):
    steps = list_job_steps(run.job)
    answer = answer_what_if(run.job, steps, predict_changes(run.job, steps, [parse_change(change)]))
    return build_what_if_report(answer, "t").cautions


def test_the_report_states_the_factor_where_it_was_applied(tmp_path):
    cautions = list_cautions(replay_two(tmp_path), "remove collective op=AllReduce")
    assert APPLIED in cautions
    assert CONSTANT not in cautions
    assert any(caution.startswith("durations are constants otherwise") for caution in cautions)


def test_the_report_does_not_claim_a_factor_that_changed_nothing(tmp_path):
    cautions = list_cautions(replay_two(tmp_path), "scale host row=cudaLaunchKernel factor=0.99")
    assert CONSTANT in cautions
    assert not any("during communication" in caution for caution in cautions)


def test_without_a_factor_the_general_caveat_stays(tmp_path):
    cautions = list_cautions(replay_two(tmp_path, grid=False), "remove collective op=AllReduce")
    assert CONSTANT in cautions


def test_a_plan_applies_the_factor_and_states_it(tmp_path):
    """Shorter transfers make kernels shorter; quicker launches change no kernel."""
    run = replay_two(tmp_path)
    steps = list_job_steps(run.job)
    late = {"do": "scale", "on": "collective", "op": "AllReduce", "factor": 0.1}
    plans = [
        plan_fixes(run.job, steps, [Fix("f", (make_change(change),))])
        for change in (late, {"do": "scale", "on": "host", "row": "cudaLaunchKernel", "factor": 0.99})
    ]
    assert [plan.contention is not None for plan in plans] == [True, False]
    cautions = [build_plan_report(answer_what_if(run.job, steps), plan, (), "t").cautions for plan in plans]
    assert [APPLIED in listed for listed in cautions] == [True, False]
    assert [CONSTANT in listed for listed in cautions] == [False, True]


# Worlds that are not max-plus; `tests/benchmarks/replay_worlds.py` measures all kinds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow_link", "slow_network"])
def test_the_step_with_faster_links_includes_that_kernels_speed_up(kind):
    """With constant durations the error is above 2 % of the step."""
    errors = measure_world_errors(kind, "contention")
    assert errors.without > 0.02
    assert errors.step <= 0.005
    assert errors.factor == pytest.approx(1.6, abs=0.05)


def test_the_step_error_of_every_world_is_within_its_limit():
    """Of the jobs of each world 95 in 100 have an error of at most a tenth of the step, with the measured contention and without."""
    lines = WORLD_TABLE.read_text("utf-8").splitlines()[2:]
    errors = {(line[:14].strip(), line[14:26].strip()): float(line[41:50].strip().rstrip("%")) for line in lines}
    assert set(errors) == {(world, label) for world in WORLDS for label in ("measured", "ignored")}
    assert max(errors.values()) <= 10
    assert errors["contention", "measured"] < errors["contention", "ignored"] / 4


def test_a_prediction_in_such_a_world_has_its_caveat():
    simulation = simulate_in_world("slow_link", "contention")
    answer = answer_what_if(
        simulation.graph,
        simulation.steps,
        predict_changes(simulation.graph, simulation.steps, [parse_change("scale collective factor=0.5")]),
    )
    cautions = build_what_if_report(answer, "t").cautions
    assert any(caution.startswith("kernels during communication take 1.5") for caution in cautions)
    assert any(caution.startswith("durations are constants otherwise") for caution in cautions)


@pytest.mark.parametrize("world", ["rising clock", "jitter"])
def test_in_worlds_that_the_graph_does_not_model_the_step_is_near(world):
    assert measure_world_errors("straggler_clock", world).step <= 0.02
