"""The independent simulator: equal seeds give equal runs, faults cost time, and rows keep their order."""

import gzip
import json

import pytest
from benchmarks.independent_job import Job
from benchmarks.independent_runs import KINDS, draw_faults, make_world, score_fault, write_run


def simulate(names, seed=1):
    world = make_world(names, seed)
    faults = {key: value for fault in draw_faults(names, world).values() for key, value in fault.items()}
    return Job(world, faults).simulate()


@pytest.mark.parametrize("name", ["slow_gpu_rank", "sync_layers", "late_gathers"])
def test_a_fault_makes_the_step_longer_than_in_the_same_run_without_it(name):
    job = simulate((name,))
    assert job.mean_step() == simulate((name,)).mean_step()
    assert job.mean_step() > 1.01 * Job(job.world, {}).simulate().mean_step()


def test_kernels_begin_after_their_launch_and_collectives_end_together(tmp_path):
    job = simulate(("late_gathers",))
    write_run(job, tmp_path)
    ends = {}
    for rank, offset in zip(job.ranks, job.offsets, strict=True):
        trace = json.loads(gzip.decompress((tmp_path / f"rank{rank.number}.pt.trace.json.gz").read_bytes()))
        rows = [row for row in trace["traceEvents"] if row["ph"] == "X" and row["cat"] != "cuda_sync"]
        calls = {row["args"]["correlation"]: row["ts"] for row in rows if row["cat"] == "cuda_runtime"}
        kernels = [row for row in rows if row["cat"] == "kernel"]
        assert kernels
        assert all(calls[row["args"]["correlation"]] < row["ts"] for row in kernels)
        shift = (trace["baseTimeNanoseconds"] - 1_750_000_000_000_000_000 - offset) / 1000
        gathers = [row for row in kernels if "AllReduce" in row["name"]]
        ends[rank.number] = [row["ts"] + row["dur"] + shift for row in gathers]
    for moments in zip(*ends.values(), strict=True):
        assert max(moments) - min(moments) <= 1.6


def test_a_finding_about_another_rank_does_not_name_the_fault():
    saving = {"alone_ns": 110.0}
    findings = [
        {"rule": "straggler", "claim": "rank 1 keeps the others waiting", "severity": "high", "saving": saving},
        {"rule": "straggler", "claim": "rank 0 keeps the others waiting", "severity": "low", "saving": saving},
    ]
    scored = score_fault("slow_gpu_rank", {"rank": 0}, 100.0, findings)
    assert (scored["place"], scored["error"]) == (1, pytest.approx(0.1))
    assert score_fault("slow_gpu_rank", {"rank": 2}, 100.0, findings)["place"] is None
    assert all(kind.low <= kind.high for kind in KINDS.values())
