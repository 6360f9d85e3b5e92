"""Critical path and ledger: each nanosecond has one owner, worked by hand and on simulated jobs."""

import numpy as np
import pytest
from chrome_builder import BASE_NS, annotation, step
from jobsim.faults import job_of
from jobsim.truth import make
from process.collective_traces import gloo
from replay.graphs import ReplayedJob, collective_name, issue, read_graphs, replay_rows, runtime, shorten
from replay.rules import aten, exchange

from tracekit.replay.job_graph import join_processes
from tracekit.replay.ledger import close_ledger, find_critical_path, name_owners
from tracekit.replay.steps import list_job_steps, measure_step_times

NCCL = collective_name()


def owners(job, spent):
    """(rank, kind, name) → µs."""
    rows = name_owners(job, spent).rows("rank", "kind", "name", "ns")
    return {(row["rank"], row["kind"], row["name"]): row["ns"] / 1_000 for row in rows}


def path_owners(replayed: ReplayedJob):
    """Owners of the critical path, and what came before its first instant, in µs."""
    path = find_critical_path(replayed.job, list_job_steps(replayed.job), replayed.timing)
    return owners(replayed.job, path.spent), path.before_ns / 1_000


def ledger_of(replayed: ReplayedJob):
    return close_ledger(replayed.job, list_job_steps(replayed.job), replayed.timing)


SYNCHRONIZED = [
    step(1, 0, 120), *issue("a", 0, 7, 50, 1), *issue("b", 10, 58, 40, 2),
    runtime("cudaDeviceSynchronize", 20, 85, 3), aten("log", 110, 8),
]  # fmt: skip
"""`a` from 7 to 57, `b` from 58 to 98, awaited until 105; then the host logs, from 110 to 118, and ends its step at 120."""


def test_the_critical_path_leads_back_through_what_decided(tmp_path):
    """120 = 4 (launch) + 3 (latency) + 50 + 1 (gap) + 40 + 7 (return) + 5 (step) + 8 (log) + 2 (step)."""
    found, before = path_owners(replay_rows(tmp_path, SYNCHRONIZED))
    assert found == {
        (0, "call", "cudaLaunchKernel"): 4, (0, "launch", "a"): 3, (0, "kernel", "a"): 50, (0, "stream gap", "b"): 1,
        (0, "kernel", "b"): 40, (0, "sync return", "cudaDeviceSynchronize"): 7, (0, "host row", "ProfilerStep#1"): 7,
        (0, "host row", "log"): 8,
    }  # fmt: skip
    assert before == 0


def test_after_a_change_the_critical_path_is_another(tmp_path):
    """`a` and `b` take a tenth: 5 µs from 7, and 4 from 17 (launched until 14); the call returns 7 µs later, at 28."""
    found, _ = path_owners(replay_rows(tmp_path, SYNCHRONIZED).after(shorten("[ab]", 0.1)))
    assert found == {
        (0, "call", "cudaLaunchKernel"): 8, (0, "host row", "ProfilerStep#1"): 13, (0, "launch", "b"): 3,
        (0, "kernel", "b"): 4, (0, "sync return", "cudaDeviceSynchronize"): 7, (0, "host row", "log"): 8,
    }  # fmt: skip


def test_time_that_nothing_explains_is_residual(tmp_path):
    """`a` is launched until 4 and starts at 400: 393 of 396 µs are none of a launch's, whose usual latency is 3."""
    rows = [step(1, 0, 520), *issue("a", 0, 400, 50, 1), runtime("cudaDeviceSynchronize", 20, 437, 3)]
    job = replay_rows(tmp_path, rows)
    path = find_critical_path(job.job, list_job_steps(job.job))
    assert (path.length_ns, path.residual_ns) == (520_000, 393_000)
    assert path.residual_share == pytest.approx(393 / 520)


def test_the_ledger_has_an_owner_for_each_hole(tmp_path):
    """Work is `a` and `b`: 90 of 120 µs. Before: launch and latency; between: the gap; after: return, step and log."""
    job = replay_rows(tmp_path, SYNCHRONIZED)
    ledger = ledger_of(job)
    assert (ledger.window_ns.tolist(), ledger.work_ns.tolist(), ledger.before_ns.tolist()) == ([120_000], [90_000], [0])
    assert owners(job.job, ledger.owed[0]) == {
        (0, "call", "cudaLaunchKernel"): 4, (0, "launch", "a"): 3, (0, "stream gap", "b"): 1,
        (0, "sync return", "cudaDeviceSynchronize"): 7, (0, "host row", "ProfilerStep#1"): 7, (0, "host row", "log"): 8,
    }  # fmt: skip


def test_a_wait_for_a_late_rank_is_owned_by_that_rank(tmp_path):
    """Rank 0 is at the collective at 30, and rank 1 at 130: its compute owns 97 µs of rank 0, its lag 3.

    Both transfer from 130 to 140, and `z` runs from 142 to 147.
    """
    rows = [[step(1, 0, 160), *exchange(20, end=140)], [step(1, 0, 160), *exchange(120)]]
    job = replay_rows(tmp_path, *rows)
    ledger = ledger_of(job)
    assert ledger.work_ns.tolist() == [20_000 + 10_000 + 5_000, 120_000 + 10_000 + 5_000]
    found = owners(job.job, ledger.owed[0])
    assert found[1, "kernel", "k"] == 100
    assert found[1, "stream wait", NCCL] == 3
    assert sum(found.values()) == 160 - 35
    assert {rank for rank, *_ in owners(job.job, ledger.owed[1])} == {1}


def test_a_window_begins_with_the_first_step_and_ends_with_the_last(tmp_path):
    """Work before step 1 and after step 2 is outside of 100 to 400; `b` from 90 to 110 is work for 10 µs."""
    rows = [step(1, 100, 100), step(2, 250, 150), *issue("a", 0, 7, 50, 1), *issue("b", 83, 90, 20, 2)]
    rows += [*issue("c", 300, 307, 40, 3), *issue("d", 500, 507, 40, 4)]
    job = replay_rows(tmp_path, rows)
    ledger = ledger_of(job)
    assert (ledger.window_ns.tolist(), ledger.work_ns.tolist()) == ([300_000], [50_000])
    path = find_critical_path(job.job, list_job_steps(job.job))
    assert path.length_ns == 300_000


def test_time_before_the_first_instant_of_the_run_has_no_owner(tmp_path):
    """Rank 1 starts to record 40 µs after rank 0, with the kernel that its window begins in."""
    late = [step(1, 40, 120), kernel_without_launch(45, 80), *issue("z", 100, 130, 20, 2)]
    job = replay_rows(tmp_path, [step(1, 0, 160), *issue("k", 0, 7, 20, 1)], late)
    ledger = ledger_of(job)
    assert ledger.window_ns.tolist() == [160_000, 120_000]
    assert ledger.before_ns.tolist() == [0, 5_000], "nothing is known of before the first op of a stream"


def kernel_without_launch(ts, dur):
    """An op of which no launch is recorded."""
    return {
        "ph": "X", "cat": "kernel", "name": "orphan", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": 7},
    }  # fmt: skip


def test_without_steps_the_whole_recording_is_the_window(tmp_path):
    job = replay_rows(tmp_path, [*issue("a", 0, 7, 50, 1), *issue("b", 10, 58, 40, 2)])
    ledger = ledger_of(job)
    assert (ledger.window_ns.tolist(), ledger.work_ns.tolist()) == ([98_000], [90_000])
    path = find_critical_path(job.job, list_job_steps(job.job))
    assert path.length_ns == 98_000


def test_host_collectives_are_no_work_of_a_device(tmp_path):
    """Without a device all is owed, also the transfer of 40 µs."""

    def rank(compute_us):
        rows = [step(1, 0, 500), aten("compute", 0, compute_us), aten("c10d::allreduce_", compute_us, 10)]
        return [*rows, gloo("all_reduce", compute_us + 15, 440 - compute_us), aten("optimizer", 460, 20)]

    job = replay_rows(tmp_path, rank(100), rank(400))
    ledger = ledger_of(job)
    assert (ledger.window_ns.tolist(), ledger.work_ns.tolist()) == ([500_000] * 2, [0, 0])
    assert owners(job.job, ledger.owed[0])[1, "host row", "compute"] == 400


def test_the_step_is_the_mean_over_processes(tmp_path):
    """Rank 0: steps of 100 and 150 µs with 50 between: 300 / 2; rank 1: one of 90."""
    rows = [step(1, 0, 100), step(2, 150, 150), annotation("x", 10, 5)], [step(1, 0, 90), annotation("x", 10, 5)]
    job = replay_rows(tmp_path, *rows).job

    def mean_us(counts):
        return measure_step_times(list_job_steps(job, counts), job.time).mean_ns / 1_000

    assert [mean_us(lambda process, _, wanted=wanted: process == wanted) for wanted in (0, 1)] == [150, 90]
    assert mean_us(None) == 120
    assert mean_us(lambda _, number: number == 2) == 150


def test_an_empty_recording_has_an_empty_path():
    job = join_processes([])
    path = find_critical_path(job, list_job_steps(job))
    assert (path.length_ns, path.before_ns, path.residual_share) == (0, 0, 0)
    assert close_ledger(job, list_job_steps(job)).window_ns.tolist() == []


# Simulated jobs


def simulated(folder, kind, seed=0):
    """A simulated job: the job, its truth, and its graph over the steps that count."""
    job = job_of(kind, "small", seed)
    truth = make(job, folder)
    graph = join_processes(read_graphs(folder / "profile"))
    return job, truth, graph, list_job_steps(graph, lambda _, number: number in truth["steps_that_count"])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_slow_gpu_owns_what_the_others_wait_for(tmp_path, seed):
    """Waits of other ranks for the slow rank's lag, by hand: the sum over holes that end at an arrival."""
    job, _, graph, steps = simulated(tmp_path, "straggler_clock", seed)
    (slow,) = job.faults[0].ranks
    ledger = close_ledger(graph, steps)
    owed_to_others, owed_to_slow = 0, 0
    for place, process in enumerate(ledger.process.tolist()):
        rank = graph.processes[process].source.rank
        if rank == slow:
            continue
        for (owner, *_), us in owners(graph, ledger.owed[place]).items():
            owed_to_slow += us * (owner == slow)
            owed_to_others += us * (owner not in (slow, rank))
    waits = measure_waits(graph, steps, slow)
    assert owed_to_slow >= 0.9 * (owed_to_slow + owed_to_others)
    assert owed_to_slow + owed_to_others >= 0.9 * waits > 0


def measure_waits(graph, steps, slow):
    """Time in which all streams of a rank but for a collective's idle, from its start to the last arrival, in µs."""
    total = 0
    for number, process in enumerate(graph.processes):
        if process.source.rank == slow:
            continue
        rows = np.flatnonzero((graph.meeting.process == number) & (graph.meeting.op >= 0))
        begin, arrival = graph.time[graph.meeting.begin[rows]], graph.time[graph.meeting.arrival[rows]]
        low, high = graph.time[steps.begin].min(), graph.time[steps.end].max()
        waits = [(max(a, low), min(b, high)) for a, b in zip(begin.tolist(), arrival.tolist(), strict=True) if a < b]
        ops = process.ops
        compute = ~ops.is_collective
        busy = np.zeros(1, np.int64), np.zeros(1, np.int64)
        if compute.any():
            busy = ops.start[compute], ops.end[compute]
        for a, b in waits:
            covered = np.clip(np.minimum(busy[1], b) - np.maximum(busy[0], a), 0, None).sum()
            total += max(b - a - int(covered), 0)
    return total / 1_000


@pytest.mark.parametrize("kind", ["straggler_late", "slow_link", "reward_on_first_rank"])
def test_the_books_close_on_simulated_jobs(tmp_path, kind):
    """`close_ledger` and `find_critical_path` assert that their pieces add up; here in another way."""
    _, truth, graph, steps = simulated(tmp_path, kind)
    path = find_critical_path(graph, steps)
    low, high = int(graph.time[steps.begin].min()), int(graph.time[steps.end].max())
    assert path.length_ns == high - low == int(path.spent.ns.sum()) + path.before_ns
    assert path.before_ns == 0
    ledger = close_ledger(graph, steps)
    for place in range(len(ledger.process)):
        owed = int(ledger.owed[place].ns.sum()) + int(ledger.before_ns[place])
        assert int(ledger.window_ns[place]) == int(ledger.work_ns[place]) + owed
    assert measure_step_times(steps, graph.time).mean_ns == pytest.approx(truth["step_ns"], rel=1e-6)
    assert int(graph.time.min()) > BASE_NS
