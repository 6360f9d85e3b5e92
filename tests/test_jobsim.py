"""The simulator of jobs keeps its own laws: what it says a fault costs is only as good as these."""

import ast
import gzip
import json
import re
from itertools import pairwise
from pathlib import Path

import jobsim
import pytest
from jobsim import kineto
from jobsim.clean import CLEAN, WORLDS, clean_job
from jobsim.draws import SIZES
from jobsim.engine import meet, run
from jobsim.faults import ALL_KINDS, KINDS, job_of
from jobsim.job import Fault, Job
from jobsim.rank import COMPUTE, Meeting
from jobsim.truth import make, mean_step, truth

MS = 1_000_000
QUIET = {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0}
SMALL = Job("small", ranks=2, steps=2)


@pytest.fixture(scope="module")
def ranks():
    return run(SMALL)


def cost(job):
    return truth(job, run(job))["all_faults_ns"]


def planted(change, **settings):
    where = {name: settings.pop(name) for name in ("ranks_of_fault", "steps_of_fault") if name in settings}  # fmt: skip
    fault = Fault("planted", change, where.get("ranks_of_fault"), where.get("steps_of_fault"))
    return Job("planted", **({"ranks": 2, "steps": 2} | settings), faults=(fault,))


def test_the_simulator_shares_no_code_with_what_it_judges():
    for path in Path(jobsim.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            assert not [name for name in names if name.split(".")[0] == "tracekit"], path


def test_the_same_job_gives_the_same_bytes_and_another_seed_others(tmp_path):
    texts = []
    for number, seed in enumerate((0, 0, 1)):
        rank = run(Job("small", ranks=2, steps=1, seed=seed))[1]
        folder = tmp_path / str(number)
        folder.mkdir()
        texts.append(kineto.write(rank, folder).read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_all_times_are_whole_nanoseconds(ranks):
    for rank in ranks:
        times = [time for row in rank.device_rows for time in (row.start, row.end)]
        times += [time for row in rank.host_rows for time in (row.start, row.end)]
        times += [time for call in rank.calls for time in call[3:5]]
        assert {type(time) for time in times} == {int}
    document = json.loads(kineto.text(ranks[0]), parse_float=str, parse_int=str)
    stamps = [row["ts"] for row in document["traceEvents"] if "ts" in row]
    assert all(re.fullmatch(r"\d+\.\d{3}", stamp) for stamp in stamps)


def test_work_of_one_stream_runs_one_after_the_other(ranks):
    for rank in ranks:
        for stream in rank.free:
            rows = sorted((r.start, r.end) for r in rank.device_rows if r.stream == stream)
            assert all(before[1] <= after[0] for before, after in pairwise(rows))
            assert all(start < end for start, end in rows)


def test_a_collective_begins_to_transfer_when_its_last_rank_has_come():
    """Each rank's kernel runs from when it came until all leave: a transfer after the last came, give or take 3 µs."""
    job = Job("three", ranks=3, steps=2)
    seen = [rank.collectives for rank in run(job)]
    assert len({len(each) for each in seen}) == 1
    waited = 0
    for together in zip(*seen, strict=True):
        last = max(each.start for each in together)
        transfer = together[0].transfer
        for each in together:
            assert each.transfer == transfer
            assert 0 <= each.end - last - transfer <= 3_000
        waited += last - min(each.start for each in together)
    assert waited > 0


def test_groups_meet_apart():
    """With two-way tensor parallelism of four ranks, each rank is in three groups, two of them its own pairs."""
    job = Job("four", ranks=4, steps=1, tensor_parallel=2)
    groups = {seen.group for seen in run(job)[3].collectives}
    assert groups == {(0, 1, 2, 3), (2, 3), (1, 3)}


def test_ranks_that_never_meet_are_an_error_and_not_a_hang():
    def calls(name):
        yield Meeting((0, 1), name, 0, 10)

    with pytest.raises(AssertionError, match="wait for one another for ever"):
        meet([calls("a"), calls("b")])


@pytest.mark.parametrize("depth", [4, 32])
def test_no_more_is_launched_than_the_queue_holds(depth):
    """When a launch returns, at most so many of the launched are unfinished: it blocks until one is."""
    (rank,) = run(Job("alone", ranks=1, steps=1, queue_depth=depth))
    returned = {call[5]: call[4] for call in rank.calls}
    rows = sorted(rank.device_rows, key=lambda row: row.correlation)
    most = 0
    for index, row in enumerate(rows):
        at = returned[row.correlation]
        unfinished = {r.correlation for r in rows[: index + 1] if r.end > at}
        most = max(most, len(unfinished))
    # A graph is one launch that puts its kernels on the queue at once.
    assert depth - 1 <= most <= depth


def test_a_full_queue_blocks_the_launching_call():
    (short,) = run(Job("alone", ranks=1, steps=1, queue_depth=16))
    (deep,) = run(Job("alone", ranks=1, steps=1))
    longest = [max(call[4] - call[3] for call in rank.calls if call[1] == "cudaLaunchKernel") for rank in (short, deep)]  # fmt: skip
    assert longest[0] > 20 * longest[1]


def test_the_host_runs_ahead_of_the_device():
    """A kernel of the update starts long after its launch."""
    (rank,) = run(Job("alone", ranks=1, steps=1))
    calls = {call[5]: call[3] for call in rank.calls}
    delays = [row.start - calls[row.correlation] for row in rank.device_rows]
    assert max(delays) > 5 * MS


def test_a_copy_from_pageable_memory_blocks_the_host_and_one_from_pinned_memory_does_not():
    (rank,) = run(planted({"batch_bytes": 6 * 2**20, "pageable": True}, ranks=1, steps=1))
    calls = {call[5]: call for call in rank.calls}
    copies = [row for row in rank.device_rows if row.category == "gpu_memcpy"]
    pageable = [row for row in copies if "Pageable" in row.name]
    pinned = [row for row in copies if "HtoD (Pinned" in row.name]
    assert len(pageable) == 4
    assert all(calls[row.correlation][4] >= row.end for row in pageable)
    assert sum(calls[row.correlation][4] < row.start for row in pinned) > len(pinned) // 2
    # 6 MiB at 6 GB/s and 1.4 µs, give or take the noise of kernels.
    assert pageable[0].end - pageable[0].start == pytest.approx(1_400 + 6 * 2**20 / 6, rel=0.08)


@pytest.mark.parametrize("kind", ["pageable_copies", "logits_to_host", "optimizer_offload", "weights_through_host"])
def test_pageable_memory_is_repaired_by_pinned_memory(kind):
    """The repaired run makes the same copies, at 25 GB/s, and waits in none of their calls."""
    job = job_of(kind)
    (broken, *_), (repaired, *_) = run(job), run(job.without(*job.faults))
    sizes = {}
    for rank in (broken, repaired):
        ends = {call[5]: call[4] for call in rank.calls if call[1] == "cudaMemcpyAsync"}
        copies = [row for row in rank.device_rows if row.category == "gpu_memcpy" and "DtoD" not in row.name]
        large = [(row, int(row.args.split('"bytes": ')[1].split(",")[0])) for row in copies]
        sizes[rank] = [size for row, size in large if size > 2**20]
        waiting = [row for row, size in large if size > 2**20 and ends[row.correlation] > row.end]
        assert len(waiting) == (len(sizes[rank]) if rank is broken else 0)
        rate = 6 if rank is broken else 25
        for row, size in large:
            if size > 2**20:
                assert row.end - row.start == pytest.approx(1_400 + size / rate, rel=0.1)
    assert sizes[broken] == sizes[repaired] != []


def test_what_a_pause_costs_is_its_length():
    """At the pause the device has done all, and nothing else is late for it: 8 ms of every step, to the ns."""
    assert cost(planted({"pauses": (8 * MS,)})) == 8 * MS
    assert cost(planted({"pauses": (8 * MS, 3 * MS)})) == 11 * MS
    assert cost(planted({"loader_ns": 5 * MS}, seed=7)) == 5 * MS


def test_a_pause_in_one_of_two_steps_costs_half_of_it():
    """Of steps 3 to 5 the first does not count."""
    assert cost(planted({"pauses": (8 * MS,)}, steps=3, steps_of_fault=(5,))) == 4 * MS
    assert cost(planted({"pauses": (8 * MS,)}, steps=3, steps_of_fault=(3,))) == 0


def test_a_pause_of_one_rank_holds_up_the_others():
    """The first collective after it is late by the pause on every rank; without noise that is all of it."""
    alone = cost(planted({"pauses": (8 * MS,)}, ranks_of_fault=(1,), ranks=4, **QUIET))
    assert alone == pytest.approx(8 * MS, abs=50_000)


def test_a_slow_clock_costs_its_share_of_the_compute():
    """All ranks alike at 1.1: a tenth of what the compute stream did, but where it waited."""
    job = planted({"clock": 1.1}, ranks=1, steps=1, **QUIET)
    (rank,) = run(job.without(*job.faults))
    compute = sum(r.end - r.start for r in rank.device_rows if r.stream == COMPUTE and r.category == "kernel")  # fmt: skip
    assert cost(job) == pytest.approx(0.1 * compute, rel=0.02)


def test_two_faults_are_priced_apart_and_together():
    faults = (Fault("a", {"pauses": (8 * MS,)}), Fault("b", {"loader_ns": 5 * MS}))
    job = Job("both", ranks=2, steps=2, faults=faults)
    figures = truth(job, run(job))
    assert [each["cost_ns"] for each in figures["faults"]] == [8 * MS, 5 * MS]
    assert figures["all_faults_ns"] == 13 * MS
    assert figures["step_ns_without"] == round(mean_step(run(job.without(*faults)), [4]))


def test_warm_up_costs_nothing_in_the_steps_that_count_and_is_told_apart():
    job = job_of("first_calls")
    figures = truth(job, run(job))
    assert figures["steps_that_count"] == [2, 3, 4]
    assert figures["all_faults_ns"] == pytest.approx(0, abs=100_000)
    change = job.faults[0].change["module_load_ns"]
    # Of three first calls on every rank the host's lead hides a part of the last.
    assert 2 * change < figures["first_steps_ns"] < 3 * change


def test_noise_does_not_depend_on_what_is_planted():
    """Kernels that a fault does not touch last as long with it as without."""
    job = planted({"items": True}, norms=3)
    for with_it, without in zip(run(job), run(job.without(*job.faults)), strict=True):
        durations = [
            [(r.name, r.end - r.start) for r in rank.device_rows if r.category == "kernel" and "nccl" not in r.name]
            for rank in (with_it, without)
        ]  # fmt: skip
        assert durations[0] == durations[1]
        assert len(with_it.device_rows) > len(without.device_rows)


FIELDS = {
    ("X", "cpu_op"): {"External id", "Record function id", "Ev Idx"},
    ("X", "user_annotation"): {"External id", "Record function id", "Ev Idx"},
    ("X", "python_function"): {"Python parent id", "Python id", "Ev Idx"},
    ("X", "cuda_runtime"): {"External id", "cbid", "correlation"},
    ("X", "kernel"): {
        "External id", "queued", "device", "context", "stream", "correlation", "registers per thread",
        "shared memory", "blocks per SM", "warps per SM", "grid", "block", "est. achieved occupancy %",
    },
    ("X", "gpu_memcpy"): {"External id", "device", "context", "stream", "correlation", "bytes", "memory bandwidth (GB/s)"},
    ("X", "gpu_memset"): {"External id", "device", "context", "stream", "correlation", "bytes", "memory bandwidth (GB/s)"},
    ("X", "gpu_user_annotation"): {"External id"},
    ("X", "Trace"): {"Op count"},
}  # fmt: skip
"""What real Kineto files hold of each (CUDA, torch 2.9), besides what belongs to some ops or kernels alone."""
MORE = {
    "cpu_op": {"Concrete Inputs", "Input type", "Input Strides", "Input Dims", "Rank"},
    "kernel": {"graph id", "graph node id"},
    "python_function": {"Python module id"},
}
COLLECTIVE = {
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size", "Out split size",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Seq",
}  # fmt: skip


def test_rows_have_the_fields_of_real_files():
    job = Job("small", ranks=2, steps=1, stacks=True)
    document = json.loads(kineto.text(run(job)[0]))
    assert document["simulated"].startswith("SIMULATED")
    kinds = set()
    for row in document["traceEvents"]:
        key = row["ph"], row.get("cat")
        if row["ph"] != "X":
            continue
        kinds.add(key)
        more = MORE.get(row["cat"], set())
        if "Collective name" in row["args"]:
            more = more | COLLECTIVE
            assert row["args"].keys() >= COLLECTIVE
        assert FIELDS[key] <= row["args"].keys() <= FIELDS[key] | more, row
        assert row.keys() == {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"}
    assert kinds == FIELDS.keys()


def test_every_launch_has_its_work_and_all_work_its_launch(ranks):
    for rank in ranks:
        calls = {call[5] for call in rank.calls if call[1] in kineto.LAUNCHES}
        assert {row.correlation for row in rank.device_rows} == calls


def test_frames_nest():
    rank = run(Job("small", ranks=1, steps=1, stacks=True))[0]
    frames = {number: (start, end) for _, _, start, end, number, _ in rank.frames}
    for _, _, start, end, _, parent in rank.frames:
        if parent:
            assert frames[parent][0] <= start <= end <= frames[parent][1]
    assert {tid for _, tid, *_ in rank.frames} == {rank.main, rank.loader}
    assert not run(SMALL)[0].frames


def test_a_job_leaves_its_traces_and_its_truth(tmp_path):
    make(job_of("sleeping_loader"), tmp_path)
    figures = json.loads((tmp_path / "truth.json").read_text())
    (fault,) = figures["faults"]
    assert fault["kind"] == "sleeping_loader"
    assert fault["cost_ns"] == figures["all_faults_ns"] == fault["change"]["loader_ns"]
    traces = sorted((tmp_path / "profile").iterdir())
    ranks = [json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] for path in traces]  # fmt: skip
    assert ranks == [0, 1, 2, 3]


def test_clocks_of_hosts_differ_and_those_of_one_host_do_not():
    job = clean_job("hosts_with_clocks_apart")
    skews = [kineto.skew(job, rank) for rank in range(16)]
    assert skews[:8] == [0] * 8
    assert len(set(skews[8:])) == 1
    assert 0 < abs(skews[8]) <= 900_000


def test_there_are_as_many_kinds_as_were_asked_for():
    assert len(KINDS) >= 25
    assert len(ALL_KINDS) - len(KINDS) >= 25
    assert len(CLEAN) >= 20
    assert len(WORLDS) >= 12
    assert not any(clean_job(name).faults for name in CLEAN | WORLDS)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_fault_is_worth_finding_and_not_the_whole_step(kind, size):
    """2 to 25 % of the step; warm-up costs only steps that do not count."""
    for seed in range(3 if size == "small" else 1):
        job = job_of(kind, size, seed)
        figures = truth(job, run(job))
        share = figures["all_faults_ns"] / figures["step_ns"]
        if kind == "first_calls":
            assert figures["first_steps_ns"] > figures["step_ns"] / 2
        else:
            assert 0.02 <= share <= 0.25, share
