"""What ranks wait for others that are held up: each at another time, all of them wait twice."""

from dataclasses import replace

import pytest
from chrome_builder import launch, launched, op, step, write
from jobsim.faults import job_of
from jobsim.job import Fault, Job
from jobsim.truth import make

import tracekit
from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000_000
QUIET = {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0}


def found_in(job, folder, rule):
    """(the truth of a simulated job, the finding of a rule on it)."""
    truth = make(job, folder)
    report = analyze_uncached(folder / "profile", Options(jobs=1, cache=False)).report
    (finding,) = (each for each in report.findings if each.rule == rule)
    return truth, finding


def test_collections_at_different_times_cost_all_ranks_each_of_them(tmp_path):
    """Rank 0 collects 5 ms in one stage and rank 1 in another: both lose 10 ms a step, 5 of it while they wait."""
    faults = (
        Fault("gc", {"gc_at": ("update_actor",), "gc_ns": 5 * MS}, (0,)),
        Fault("gc", {"gc_at": ("ref",), "gc_ns": 5 * MS}, (1,)),
    )
    job = Job("gc", ranks=2, steps=4, stacks=True, faults=faults, **QUIET)
    truth, finding = found_in(job, tmp_path, "garbage-collection")
    assert truth["all_faults_ns"] == pytest.approx(10 * MS, rel=0.01)
    assert finding.cost_ns == pytest.approx(10 * MS, rel=0.01)
    assert "while Python collects garbage, 5.0" in finding.claim
    assert {place.rank for place in finding.places} == {0, 1}


def test_collections_at_one_time_cost_once(tmp_path):
    fault = Fault("gc", {"gc_at": ("update_actor",), "gc_ns": 5 * MS}, (0, 1))
    job = Job("gc", ranks=2, steps=4, stacks=True, faults=(fault,), **QUIET)
    _, finding = found_in(job, tmp_path, "garbage-collection")
    assert finding.cost_ns == pytest.approx(5 * MS, rel=0.01)
    assert "other ranks" not in finding.claim


@pytest.mark.parametrize(("kind", "rule"), [("allocator_churn", "allocator-calls"), ("recompilation", "recompilation")])
def test_ranks_of_another_role_wait_for_what_holds_up_the_trainers(tmp_path, kind, rule):
    """Half of the ranks generate and wait for the weights: what holds up the others costs them as much."""
    job = replace(job_of(kind), async_rollout=True)
    truth, finding = found_in(job, tmp_path, rule)
    assert finding.cost_ns == pytest.approx(truth["all_faults_ns"], rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_collections_are_counted_once_beside_a_late_rank(tmp_path, seed):
    job = job_of("gc_one_rank", "large", seed)
    truth = make(job, tmp_path)
    report = analyze_uncached(tmp_path / "profile", Options(jobs=1, cache=False)).report
    recoverable = sum(f.cost_ns or 0 for f in report.findings if f.severity != "info")
    assert recoverable == pytest.approx(truth["all_faults_ns"], rel=0.1)


# Calls to the driver


def interruptions(folder, call):
    """The time of interruptions by name: one call of 20 µs in a step of 200."""
    rows = [step(9, 0, 200), launch(50, 1, 20, name=call), op("aten::mm", 80, 60), *launched("k", 2, 90, 40, 7)]
    write(folder / "rank0.json", rows)
    table = tracekit.measure(folder).tables["interruptions"]
    return dict(zip(table["name"], table["dur_ns"], strict=True))


MEMORY_CALLS = [
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaFreeHost",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemUnmap",
    "cuMemRelease",
    "hipMalloc",
    "hipFree",
    "hipMemSetAccess",
]


@pytest.mark.parametrize("call", MEMORY_CALLS)
def test_calls_that_ask_the_driver_for_memory_interrupt_steps(tmp_path, call):
    assert interruptions(tmp_path, call) == {call: 20 * 1_000}


@pytest.mark.parametrize("call", ["cudaMallocAsync", "cudaFreeAsync", "cudaMemcpyAsync"])
def test_calls_in_stream_order_do_not(tmp_path, call):
    assert interruptions(tmp_path, call) == {}
