"""What each change does to a run: hand-made runs with times worked by hand, in µs."""

import pytest
from chrome_builder import annotation, memcpy, step
from replay.graphs import collective_name, issue, meet, replay_rows, runtime, shorten
from replay.rules import PAGEABLE, TO_HOST, aten, copy_call, exchange, gloo, gloo_rank
from replay.simulations import simulate_clean_job

from tracekit.replay.changes import ChangeError, make_change
from tracekit.replay.job_graph import join_processes
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import list_job_steps

REDUCE, GATHER = (f"^{kind}" for kind in ("ncclDevKernel_AllReduce", "ncclDevKernel_AllGather"))

# What is selected: host time that `set to_us=0` takes off


def host_step(base):
    """Of the step 300 µs are its own, of `gen` 70, of `train` 80, of `aten::a` 20 and 15, of `aten::b` 10 and 5."""
    return [
        annotation("gen", base + 10, 100), aten("aten::a", base + 20, 20), aten("aten::b", base + 50, 10),
        annotation("train", base + 200, 100), aten("aten::a", base + 210, 20), aten("aten::b", base + 215, 5),
    ]  # fmt: skip


HOST = [step(1, 0, 500), *host_step(0), step(2, 500, 500), *host_step(500)]


@pytest.mark.parametrize(
    ("where", "taken_us"),
    [
        ({}, 1_000),
        ({"step": 2}, 500),
        ({"step": "1-2"}, 1_000),
        ({"rank": 0}, 1_000),
        ({"range": "^gen$"}, 200),
        ({"range": "^gen$", "step": 1}, 100),
        ({"range": "gen|train"}, 400),
        ({"not_range": "gen|train"}, 600),
        ({"range": "ProfilerStep", "not_range": "gen"}, 800),
        ({"row": "aten::a"}, 70),
        ({"by": "aten::a"}, 80),
        ({"row": "aten::b"}, 30),
        ({"row": "aten::b", "by": "aten::a"}, 10),
        ({"row": "aten::b", "range": "train"}, 10),
        ({"silent": True}, 900),
        ({"silent": True, "range": "^gen$"}, 140),
        ({"silent": True, "range": "^gen$", "at_least_us": 50}, 100),
        ({"at_least_us": 90}, 1_000),
        ({"row": "^gen$", "at_least_us": 50}, 100),
        ({"row": "^aten::a$", "at_least_us": 10}, 60),
        ({"silent": True, "at_least_us": 70}, 860),
        ({"silent": True, "at_least_us": 280}, 290),
        ({"before": "^train$"}, 180),
        ({"before": "^aten::b$"}, 30),
        ({"before": "^aten::b$", "range": "^gen$"}, 20),
        ({"after": "^aten::b$"}, 300),
        ({"after": "^aten::a$"}, 580),
        ({"after": "^aten::a$", "range": "^train$"}, 140),
        ({"after": "^aten::a$", "at_least_us": 280}, 290),
        ({"range": "aten::a", "nth": 1}, 40),
        ({"range": "aten::a", "nth": [0, 1]}, 80),
        ({"range": "aten::[ab]", "nth": 2, "step": 1}, 20),
        ({"range": "^gen$", "nth": 0}, 200),
    ],
)
def test_host_time_is_selected(tmp_path, where, taken_us):
    after = replay_rows(tmp_path, HOST).after({"do": "set", "on": "host", "to_us": 0, **where})
    assert after.touched[0].host_ns == taken_us * 1_000
    assert after.host(1_000) == 1_000 - taken_us


@pytest.mark.parametrize(
    ("where", "end_us"),
    [({}, 50), ({"factor": 0.5}, 65), ({"range": "^gen$"}, 100), ({"row": "^aten::b$"}, 120)],
)
def test_calls_in_a_row_take_as_long_as_the_first(tmp_path, where, end_us):
    """Four calls of 10 µs, the last two in `gen`, with 10, 20 and 10 µs between: of 120 µs 30 and 40 go."""
    rows = [step(1, 0, 200), *(aten("aten::a", begin, 10) for begin in (0, 20, 50, 70)), annotation("gen", 45, 40)]
    rows += [aten("aten::b", 100, 20), aten("aten::a", 120, 20)]
    change = {"do": "fuse", "on": "host", "row": "^aten::a$", **where}
    if "row" in where:
        with pytest.raises(ChangeError, match="follow one another"):
            replay_rows(tmp_path, rows).after(change)
        return
    assert replay_rows(tmp_path, rows).after(change).host(120) == end_us


def test_host_time_is_shortened_to_a_length(tmp_path):
    """Of 25 segments in two steps those above 30 µs are cut: 50 and 70 of ranges, 90 and 200 of the step."""
    after = replay_rows(tmp_path, HOST).after({"do": "set", "on": "host", "to_us": 30})
    assert after.host(1_000) == 1_000 - 2 * (20 + 40 + 60 + 170)


DEVICE = [
    step(1, 0, 400), aten("aten::mm", 0, 10), *issue("a", 2, 9, 20, 1), aten("aten::add", 20, 30),
    aten("aten::mul", 22, 10), *issue("b", 24, 31, 10, 2), annotation("gen", 100, 100), *issue("a", 110, 117, 5, 3),
    copy_call(150, 4, 4), memcpy(PAGEABLE, 157, 8, 64, 4),
]  # fmt: skip
"""Device time: `a` 20 and 5, `b` 10, a copy 8."""


@pytest.mark.parametrize(
    ("where", "lengths"),
    [
        ({}, (10, 5, 2.5, 4)),
        ({"op": "^a$"}, (10, 10, 2.5, 8)),
        ({"op": "^(?!Mem)"}, (10, 5, 2.5, 8)),
        ({"by": "aten::add"}, (20, 5, 5, 8)),
        ({"row": "aten::mul|cudaLaunchKernel", "by": "aten::add"}, (20, 5, 5, 8)),
        ({"range": "gen"}, (20, 10, 2.5, 4)),
        ({"not_range": "gen"}, (10, 5, 5, 8)),
        ({"longer_than_us": 8}, (10, 5, 5, 8)),
        ({"range": "gen", "longer_than_us": 7.9}, (20, 10, 5, 4)),
        ({"step": 1, "rank": 0, "op": "Memcpy"}, (20, 10, 5, 4)),
    ],
)
def test_device_work_is_selected(tmp_path, where, lengths):
    after = replay_rows(tmp_path, DEVICE).after({"do": "scale", "on": "device", "factor": 0.5, **where})
    ops = (("a", 0), ("b", 0), ("a", 1), (PAGEABLE, 0))
    found = tuple(after.end(name, nth=nth) - after.start(name, nth=nth) for name, nth in ops)
    assert found == lengths
    assert after.touched[0].ops == sum(new != old for new, old in zip(found, (20, 10, 5, 8), strict=True))


def groups(*kinds):
    """Collectives one after the other: (kind, group, length)."""
    rows, at = [], 0
    for number, (kind, group, dur) in enumerate(kinds, 1):
        rows += meet(at, at + 7, dur, number, number, ranks=(0,), kind=kind, group=group, stream=20 + number)
        at += 100
    return rows


@pytest.mark.parametrize(
    ("where", "lengths"),
    [
        ({}, (5, 10, 15)),
        ({"group": "^1"}, (5, 20, 30)),
        ({"op": "AllReduce"}, (5, 20, 15)),
        ({"group": "2", "op": "AllGather"}, (10, 10, 30)),
    ],
)
def test_collectives_are_selected(tmp_path, where, lengths):
    job = replay_rows(tmp_path, groups(("AllReduce", "1", 10), ("AllGather", "2", 20), ("AllReduce", "2", 30)))
    after = job.after({"do": "scale", "on": "collective", "factor": 0.5, **where})
    ops = ((collective_name(), 0), (collective_name("AllGather"), 0), (collective_name(), 1))
    assert tuple(after.end(name, nth=nth) - after.start(name, nth=nth) for name, nth in ops) == lengths


# Scale and set


def test_work_is_shortened_to_a_length_and_never_longer(tmp_path):
    after = replay_rows(tmp_path, DEVICE).after({"do": "set", "on": "device", "to_us": 9})
    assert [after.end(n, nth=k) - after.start(n, nth=k) for n, k in (("a", 0), ("b", 0), ("a", 1))] == [9, 9, 5]


def test_a_huge_factor_gives_a_long_step(tmp_path):
    """20 µs a million times are 20 s; a second time they are cut to the longest time there is."""
    job, change = replay_rows(tmp_path, DEVICE), {"do": "scale", "on": "device", "op": "^a$", "factor": 10**6}
    assert job.after(change).end("a") == 9 + 20e6
    assert job.after(change, change).end("a") == 9 + 1e12


# Remove

LEAVES_PLACE = [
    *issue("x", 0, 7, 100, 1, stream=9), *issue("p", 4, 11, 5, 2), *issue("a", 10, 109, 30, 3), *issue("b", 20, 140, 10, 4),
]  # fmt: skip


def test_a_removed_op_keeps_the_waits_of_its_stream(tmp_path):
    """`a` waits for `x` until 109. Without it `b` waits for what the stream waited for, and follows a gap later."""
    after = replay_rows(tmp_path, LEAVES_PLACE).after({"do": "remove", "op": "^a$"})
    assert (after.start("a"), after.end("a"), after.start("b")) == (109, 109, 110)


def test_a_removed_op_needs_no_launch(tmp_path):
    """`a` was launched until 204 and held up `b`, launched before on another thread: `b` follows `p`, at 17."""
    rows = [*issue("p", 0, 7, 10, 1), *issue("a", 200, 207, 10, 2), *issue("b", 5, 218, 10, 3, tid=101)]
    after = replay_rows(tmp_path, rows).after({"do": "remove", "op": "^a$"})
    assert (after.end("a"), after.start("b")) == (17, 18)


ALONE = {"ranks": (0,)}
INPUT = [
    *meet(0, 7, 5, 1, 1, **ALONE), *issue("k", 20, 27, 100, 2), *meet(30, 130, 10, 3, 2, **ALONE),
    *meet(40, 141, 10, 4, 3, kind="AllGather", **ALONE), *issue("k", 200, 207, 100, 5),
    *meet(210, 217, 10, 6, 4, kind="AllGather", **ALONE),
]  # fmt: skip
"""The second reduction waits for `k`; the gather behind it on its stream does not wait for compute, as the last one shows."""


def test_a_removed_collective_waits_for_no_input(tmp_path):
    """The gather, launched until 44, starts at 47, and not after `k` at 127."""
    after = replay_rows(tmp_path, INPUT).after({"do": "remove", "on": "collective", "op": REDUCE})
    assert after.start(collective_name("AllGather")) == 47


PASSED = [
    *meet(10, 17, 100, 1, 1, kind="AllGather", **ALONE), *meet(20, 118, 10, 2, 2, **ALONE), *issue("z", 30, 130, 5, 3),
    *issue("k", 200, 207, 100, 4), *meet(210, 217, 10, 5, 3, kind="AllGather", **ALONE),
]  # fmt: skip


def test_the_wait_for_a_removed_collective_passes_to_the_one_before(tmp_path):
    """`z` waited for the reduction, until 128. Without it, it waits for the gather, until 117, and 1 µs more."""
    after = replay_rows(tmp_path, PASSED).after({"do": "remove", "on": "collective", "op": REDUCE})
    assert after.start("z") == 118


def test_without_a_collective_before_nothing_is_waited_for(tmp_path):
    """Without both collectives `z` starts 3 µs after its launch."""
    after = replay_rows(tmp_path, PASSED).after({"do": "remove", "on": "collective", "op": "ncclDevKernel"})
    assert after.start("z") == 37


def test_a_removed_collective_makes_no_rank_wait(tmp_path):
    """Rank 0 goes on at its own launch of `z`, until 24. Its usual latency is 9.5, the median of 3 and 16.

    Rank 1 goes on once its compute has ended, at 127.
    """
    job = replay_rows(tmp_path, exchange(20, end=140), exchange(120))
    after = job.after({"do": "remove", "on": "collective", "op": REDUCE})
    assert (after.start("z", 0), after.start("z", 1)) == (33.5, 128)
    assert after.end(collective_name(), 0) == after.start(collective_name(), 0)


def test_a_collective_removed_from_one_rank_does_not_hold_up_the_other(tmp_path):
    """Rank 0 comes at 30 and transfers for 10 µs, without waiting for rank 1, which would come at 130."""
    job = replay_rows(tmp_path, exchange(20, end=140), exchange(120))
    after = job.after({"do": "remove", "on": "collective", "op": REDUCE, "rank": 1})
    assert (after.end(collective_name(), 0), after.start("z", 0)) == (40, 42)


COPIES = [
    step(1, 0, 400), aten("aten::to", 10, 50), copy_call(20, 30, 1), memcpy(PAGEABLE, 25, 20, 64, 1), aten("aten::mm", 70, 20),
    aten("aten::to", 100, 10), *issue("k", 300, 307, 20, 2),
]  # fmt: skip


def test_a_copy_is_removed_with_the_rows_that_launched_it(tmp_path):
    """The first `aten::to` takes 50 µs and launches the copy; the second launches nothing and stays."""
    after = replay_rows(tmp_path, COPIES).after({"do": "remove", "op": "HtoD", "host": "aten::to"})
    assert (after.host(60), after.host(110), after.start("k")) == (10, 60, 257)
    alone = replay_rows(tmp_path, COPIES).after({"do": "remove", "op": "HtoD"})
    assert alone.host(60) == 25 + 5 + 10, "the copy takes no time, and its call returns 5 µs after it"


VALIDATION = [
    step(1, 0, 500), *issue("k", 0, 7, 10, 1), annotation("validation", 100, 200), *issue("v", 110, 117, 150, 2),
    runtime("cudaDeviceSynchronize", 120, 150, 3), *issue("k", 320, 327, 10, 4), aten("end", 400, 10),
]  # fmt: skip


def test_a_range_is_removed_with_its_work_and_waits(tmp_path):
    """200 µs of host time go; `v`, which lasts until 267, holds up nobody."""
    after = replay_rows(tmp_path, VALIDATION).after({"do": "remove", "on": "range", "range": "validation"})
    assert (after.host(300), after.start("k", nth=1), after.host(410)) == (100, 127, 210)
    assert (after.touched[0].ops, after.touched[0].waits) == (1, 1)


# Waits


def test_a_call_that_does_not_wait_costs_its_own_time(tmp_path):
    """cudaDeviceSynchronize from 120 to 270 costs 5 µs by itself."""
    after = replay_rows(tmp_path, VALIDATION).after({"do": "unwait", "row": "cudaDeviceSynchronize"})
    assert (after.host(270), after.touched[0].waits) == (125, 1)


def test_waits_are_selected_by_the_op_around_them(tmp_path):
    rows = [
        *issue("k", 0, 7, 100, 1), aten("aten::item", 10, 110), runtime("cudaDeviceSynchronize", 15, 97, 2),
        *issue("k", 200, 207, 100, 3), aten("aten::cpu", 210, 110), runtime("cudaDeviceSynchronize", 215, 97, 4),
    ]  # fmt: skip
    after = replay_rows(tmp_path, rows).after({"do": "unwait", "by": "aten::item"})
    assert (after.host(112), after.host(312)) == (20, 107 + 13 + 100)


def test_waits_are_selected_by_their_own_name(tmp_path):
    """Only the stream synchronization, from 215 to 312, costs no more than its own 5 µs."""
    rows = [
        *issue("k", 0, 7, 100, 1), runtime("cudaDeviceSynchronize", 15, 97, 2),
        *issue("k", 200, 207, 100, 3), runtime("cudaStreamSynchronize", 215, 97, 4),
    ]  # fmt: skip
    after = replay_rows(tmp_path, rows).after({"do": "unwait", "row": "StreamSynchronize"})
    assert (after.host(112), after.host(312)) == (112, 220)


BLOCKING = [copy_call(10, 100, 1), memcpy(PAGEABLE, 15, 90, 4096, 1), *issue("k", 120, 127, 5, 2)]


def test_an_asynchronous_copy_returns_at_once(tmp_path):
    """The call costs 4 µs, and `k` is launched from 24 to 28; the copy still lasts until 105."""
    after = replay_rows(tmp_path, BLOCKING).after({"do": "unblock", "op": "HtoD .Pageable"})
    assert (after.host(110), after.start("k"), after.end(PAGEABLE)) == (14, 31, 105)


def test_copies_of_several_directions_are_not_made_asynchronous(tmp_path):
    rows = [*BLOCKING, copy_call(200, 90, 3), memcpy(TO_HOST.replace("Pinned", "Pageable"), 205, 80, 64, 3)]
    job = replay_rows(tmp_path, rows)
    with pytest.raises(ChangeError) as caught:
        job.after({"do": "unblock", "op": "Pageable"})
    assert caught.value.problem == "op 'Pageable' selects 2 kinds of ops: Memcpy DtoH, Memcpy HtoD"
    assert caught.value.hint == 'name one direction: op="Pageable -> Device", or the op that copies: by=aten::to'


# Order of work

HIDDEN = [
    *meet(0, 7, 100, 1, 1, **ALONE), *issue("z", 10, 109, 10, 2), aten("Optimizer.step", 50, 10), *issue("o", 52, 120, 5, 3),
]  # fmt: skip


def test_a_hidden_collective_is_awaited_by_its_consumer_only(tmp_path):
    """`z` starts after its launch; `o`, inside the optimizer, 1 µs after the reduction."""
    after = replay_rows(tmp_path, HIDDEN).after({"do": "hide", "op": REDUCE, "until": "Optimizer.step"})
    assert (after.start("z"), after.start("o")) == (17, 108)


def test_a_collective_cannot_hide_until_a_row_that_launches_nothing(tmp_path):
    with pytest.raises(ChangeError, match="until: no row in this run that launches work matches 'optimiser'"):
        replay_rows(tmp_path, HIDDEN).after({"do": "hide", "op": REDUCE, "until": "optimiser"})


SCATTER = collective_name("ReduceScatter")
GATHERS = [
    *issue("k", 0, 7, 100, 1), *meet(10, 110, 20, 2, 1, kind="AllGather", **ALONE), *issue("z", 20, 132, 100, 3),
    *meet(30, 235, 20, 4, 2, kind="AllGather", **ALONE), *issue("y", 40, 257, 10, 5),
]  # fmt: skip
"""Each gather waits for the kernel before it, and the kernel after it for the gather."""


def test_a_gather_begins_as_early_as_the_one_before_it(tmp_path):
    """The second gather, like the first, waits for `k`, and then for the first: it runs from 131 to 151, beside `z`."""
    after = replay_rows(tmp_path, GATHERS).after({"do": "prefetch", "on": "collective", "op": "AllGather"})
    gather = collective_name("AllGather")
    assert (after.start(gather), after.start(gather, nth=1), after.start("y")) == (110, 131, 233)


def test_a_gather_waits_for_the_optimizer(tmp_path):
    """The first gather after a step of the optimizer begins no earlier; nothing else changes in this run."""
    step_of_optimizer = aten("Optimizer.step", 16, 10)
    change = {"do": "prefetch", "on": "collective", "op": "AllGather"}
    with pytest.raises(ChangeError, match="prefetch collective op=AllGather already overlap with compute"):
        replay_rows(tmp_path, [*GATHERS, step_of_optimizer]).after(change)


BACKWARD = {"tid": 101}
REDUCTIONS = [
    *issue("k", 0, 7, 100, 1, **BACKWARD), *meet(10, 110, 20, 2, 1, kind="ReduceScatter", **ALONE, **BACKWARD),
    *issue("z", 20, 132, 100, 3, **BACKWARD), *meet(30, 235, 20, 4, 2, kind="ReduceScatter", **ALONE, **BACKWARD),
    aten("Optimizer.step", 58, 10), *issue("o", 60, 257, 10, 5),
]  # fmt: skip
"""A backward pass on a thread of its own, with two reductions, and the optimizer on the first one."""


def test_reductions_are_awaited_where_their_pass_ends(tmp_path):
    """`z` follows `k` at once, the second reduction follows `z`, and the optimizer follows the second reduction."""
    after = replay_rows(tmp_path, REDUCTIONS).after({"do": "hide", "op": "ReduceScatter"})
    assert (after.start("z"), after.start(SCATTER, nth=1), after.start("o")) == (108, 211, 233)


def test_a_pass_without_a_known_consumer_is_awaited_by_another_thread(tmp_path):
    """The optimizer began at 240, during the second reduction; after the change it waits for its end, at 231."""
    rows = [*REDUCTIONS[:-1], *issue("p", 70, 240, 10, 6)]
    after = replay_rows(tmp_path, rows).after({"do": "hide", "op": "ReduceScatter"})
    assert (after.end(SCATTER, nth=1), after.start("p")) == (231, 232)


@pytest.mark.parametrize("change", [{"do": "hide"}, {"do": "accumulate"}])
def test_collectives_of_activations_are_needed_at_once(tmp_path, change):
    """The thread that reduces also gathers, in the same group."""
    rows = [*REDUCTIONS, *meet(40, 300, 9, 9, 3, kind="AllGather", **ALONE, **BACKWARD)]
    with pytest.raises(ChangeError):
        replay_rows(tmp_path, rows).after({**change, "op": "ReduceScatter"})


def test_gradients_are_reduced_once_per_step_of_the_optimizer(tmp_path):
    """`f` is a forward between two backward passes: the first reduction goes, and `f` follows `k` at once."""
    rows = [
        *issue("k", 0, 7, 100, 1, **BACKWARD), *meet(10, 110, 20, 2, 1, kind="ReduceScatter", **ALONE, **BACKWARD),
        *issue("f", 20, 132, 100, 3), *issue("z", 30, 233, 100, 4, **BACKWARD),
        *meet(40, 336, 20, 5, 2, kind="ReduceScatter", **ALONE, **BACKWARD),
        aten("Optimizer.step", 58, 10), *issue("o", 60, 358, 10, 6),
    ]  # fmt: skip
    after = replay_rows(tmp_path, rows).after({"do": "accumulate", "op": "ReduceScatter"})
    assert (after.start("f"), after.end(SCATTER, nth=1), after.start("o")) == (108, 332, 334)


def test_gradients_that_are_reduced_once_stay(tmp_path):
    with pytest.raises(ChangeError, match="run once per step of an optimizer"):
        replay_rows(tmp_path, REDUCTIONS).after({"do": "accumulate", "op": "ReduceScatter"})


def test_fused_ops_run_as_one(tmp_path):
    """Of `a`, `b` and `c`, 20 µs each and launched every 30, the first two take 5 + 5 µs without a gap; `c` is another op."""
    rows = [
        row for number, name in enumerate("abc") for row in issue(name, 30 * number, 30 * number + 7, 20, number + 1)
    ]
    job = replay_rows(tmp_path, rows)
    after = job.after({"do": "fuse", "op": "^[ab]$", "factor": 0.25})
    assert (after.start("a"), after.start("b"), after.end("b"), after.start("c")) == (7, 12, 17, 67)
    with pytest.raises(ChangeError, match="no two ops of fuse device op=c follow one another on a stream"):
        job.after({"do": "fuse", "op": "c"})


ITERATIONS = [
    step(1, 0, 400), *(
        row
        for number, running in enumerate((32, 32, 4, 4))
        for row in (
            annotation(f"execute_context_0(0)_generation_{running}({running})", 100 * number, 90),
            *issue("k", 100 * number + 10, 100 * number + 17, 80, number + 1),
        )
    ), annotation("execute_context_1(64)_generation_4(4)", 400, 90),
]  # fmt: skip


def test_iterations_of_few_requests_are_scaled_with_what_they_launch(tmp_path):
    """The third and fourth kernel last 8 µs, and their iterations on the host 9; the one with a prompt stays."""
    after = replay_rows(tmp_path, ITERATIONS).after({"do": "scale", "on": "range", "requests_below": 16, "factor": 0.1})
    lengths = [after.end("k", nth=nth) - after.start("k", nth=nth) for nth in range(4)]
    assert lengths == [80, 80, 8, 8]
    assert (after.host(200), after.host(290), after.host(300), after.host(390)) == (200, 209, 219, 228)
    assert after.host(490) - after.host(400) == 90


def test_work_of_a_step_lasts_as_long_as_in_the_median_step(tmp_path):
    """`k` lasts 50, 70, 90 and 200 µs; the host pauses for 300 µs more in the last step."""
    rows = []
    for number, (dur, pause) in enumerate(((50, 10), (70, 10), (90, 10), (200, 310))):
        base = 1_000 * number
        rows += [step(number + 1, base, 900), *issue("k", base + 10, base + 17, dur, number + 1)]
        rows += [annotation("pause", base + 300, pause)]
    job = replay_rows(tmp_path, rows)
    device = job.after({"do": "equalise", "across": "step", "step": 4})
    assert [device.end("k", nth=nth) - device.start("k", nth=nth) for nth in range(4)] == [50, 70, 90, 70]
    everywhere = job.after({"do": "equalise", "across": "step"})
    assert [everywhere.end("k", nth=nth) - everywhere.start("k", nth=nth) for nth in range(4)] == [50, 70, 80, 80]
    host = job.after({"do": "equalise", "on": "host", "across": "step", "step": 4, "row": "^pause$"})
    assert host.host(3_610) - host.host(3_300) == 10


LOADED = [
    row
    for base in (0, 150, 300)
    for row in (annotation("enumerate(DataLoader)#1", base, 100), aten("train", base + 100, 50))
]
"""A batch takes 100 µs to load and 50 to train on."""


@pytest.mark.parametrize(("workers", "ends"), [(1, (50, 150, 250)), (2, (50, 100, 150)), (4, (50, 100, 150))])
def test_prefetched_batches_are_ready_a_preparation_after_each_other(tmp_path, workers, ends):
    """One worker prepares a batch in 100 µs, longer than the 50 of training; two deliver one every 50."""
    after = replay_rows(tmp_path, LOADED).after({"do": "prefetch", "range": "DataLoader", "workers": workers})
    assert tuple(after.host(150 * number) for number in (1, 2, 3)) == ends


DECODE = [
    annotation("decode", 0, 100), *(aten("aten::mm", at, 20) for at in (10, 40, 70)),
    *issue("k", 12, 19, 9, 1), *issue("k", 42, 49, 9, 2), *issue("k", 72, 79, 9, 3), aten("aten::next", 100, 10),
]  # fmt: skip


@pytest.mark.parametrize(("factor", "end"), [({}, 40), ({"factor": 0.5}, 70), ({"factor": 2}, 160)])
def test_a_graph_takes_the_host_time_of_its_ops(tmp_path, factor, end):
    """Of 100 µs of `decode` 60 are of its three ops."""
    after = replay_rows(tmp_path, DECODE).after({"do": "graph", "range": "decode", **factor})
    assert after.host(100) == end


START_OF_MODULE = [annotation("decode", 0, 300), aten("aten::mm", 10, 150), aten("aten::mul", 170, 20), runtime("cudaLaunchKernel", 172, 10, 2)]  # fmt: skip
"""150 µs in one row are no launch: it compiles or computes."""


def test_a_graph_leaves_what_loads_data_and_long_stretches(tmp_path):
    """Of 300 µs of `decode` 20 are of a short op; the long one and the loader keep their 150 and 30, and the range its 100."""
    rows = [*START_OF_MODULE, aten("enumerate(DataLoader)#iter.__next__", 200, 30), aten("aten::stack", 205, 10)]
    after = replay_rows(tmp_path, [*rows, aten("aten::next", 300, 10)]).after({"do": "graph", "range": "decode"})
    assert after.host(300) == 280


def test_rows_that_name_work_are_not_silent(tmp_path):
    """Of 300 µs `gen` has 200 without a row; a loader and a collective of the host have 40 and 60."""
    rows = [
        annotation("gen", 0, 300), annotation("enumerate(DataLoader)#1", 50, 40), annotation("gloo:all_reduce", 150, 60),
        aten("aten::next", 300, 10),
    ]  # fmt: skip
    after = replay_rows(tmp_path, rows).after({"do": "set", "on": "host", "silent": True, "to_us": 0})
    assert after.host(300) == 100


def test_what_no_longer_waits_keeps_no_recorded_time(tmp_path):
    """After 300 µs the library gathers, and reduces for 40 once that is issued.

    Without the 300 and the gathering, the reduction is issued at 15 instead of 325: its thread does not begin at 310.
    """
    rows = [aten("compute", 0, 300), aten("c10d::allgather_", 300, 10), gloo("all_gather", 305, 10)]
    rows += [aten("c10d::allreduce_", 315, 10), gloo("all_reduce", 322, 40), aten("optimizer", 367, 20)]
    job = replay_rows(tmp_path, rows, rows)
    quick = {"do": "scale", "on": "host", "row": "^compute$", "factor": 0}
    gone = {"do": "remove", "on": "collective", "op": "all_gather", "host": "^c10d::allgather_"}
    kept, without = (job.after(*changes).host(387) for changes in ((quick,), (quick, gone)))
    assert (kept, without) == (87, 77)


def test_work_lasts_as_long_as_on_the_median_rank(tmp_path):
    """`k` lasts 100 µs on rank 0, and 50, 70 and 90 on others: their median is 70; over all ranks it is 80.

    Work of ranks below the median is not made longer.
    """
    ranks = [[step(1, 0, 300), *issue("k", 0, 7, dur, 1), *issue("k", 150, 157, 9, 2)] for dur in (100, 50, 70, 90)]
    job = replay_rows(tmp_path, *ranks)
    after = job.after({"do": "equalise", "rank": 0})
    assert [after.end("k", rank) for rank in range(4)] == [77, 57, 77, 97]
    everywhere = job.after({"do": "equalise"})
    assert [everywhere.end("k", rank) for rank in range(4)] == [87, 57, 77, 87]
    assert everywhere.end("k", 0, nth=1) == 166, "the second `k` is another place"


def test_a_rank_with_more_ops_takes_as_long_as_others_altogether(tmp_path):
    """Rank 0 takes 100 µs for two `k`, others 40 and 60 for one: its 70 and 30 are halved to 50 together."""
    job = replay_rows(
        tmp_path,
        [step(1, 0, 300), *issue("k", 0, 7, 70, 1), *issue("k", 100, 107, 30, 2)],
        *([step(1, 0, 300), *issue("k", 0, 7, dur, 1)] for dur in (40, 60)),
    )
    after = job.after({"do": "equalise", "rank": 0})
    assert (after.end("k"), after.end("k", nth=1)) == (7 + 35, 107 + 15)
    assert (after.end("k", 1), after.end("k", 2)) == (47, 67)


def test_stages_and_steps_are_places_of_their_own(tmp_path):
    """Rank 0 has 80 µs in `gen` and 50 in `ref`, rank 1 has 30 and 90: only the 80 is above that of the other."""
    ranks = [
        [
            step(1, 0, 400), annotation("gen", 0, 100), *issue("k", 0, 7, gen, 1),
            annotation("ref", 200, 100), *issue("k", 200, 207, ref, 2),
        ]
        for gen, ref in ((80, 50), (30, 90))
    ]  # fmt: skip
    after = replay_rows(tmp_path, *ranks).after({"do": "equalise", "rank": 0})
    assert (after.end("k"), after.end("k", nth=1)) == (37, 257)


def test_stages_that_count_their_requests_are_one_place(tmp_path):
    """Rank 0 decodes for 64 requests, the others for 59 and 61: the 80 µs of its `k` become their median of 50."""
    ranks = [
        [step(1, 0, 400), annotation(f"execute_context_0(0)_generation_{count}({count})", 0, 100), *issue("k", 0, 7, dur, 1)]
        for count, dur in ((64, 80), (59, 40), (61, 60))
    ]  # fmt: skip
    after = replay_rows(tmp_path, *ranks).after({"do": "equalise", "rank": 0})
    assert after.end("k") == 57


STAGES = [
    step(1, 0, 400), annotation("gen", 0, 100), *issue("k", 10, 17, 20, 1), annotation("ref", 100, 100),
    *issue("k", 110, 117, 20, 2), *issue("k", 210, 217, 20, 3), aten("end", 300, 10),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "lengths"), [("gen", (10, 20, 20)), ("ref", (20, 10, 20)), ("", (20, 20, 10)), (None, (10, 10, 10))]
)
def test_work_of_a_stage_is_selected(tmp_path, stage, lengths):
    where = {} if stage is None else {"stage": stage}
    after = replay_rows(tmp_path, STAGES).after({"do": "scale", "on": "device", "factor": 0.5, **where})
    assert tuple(after.end("k", nth=nth) - after.start("k", nth=nth) for nth in range(3)) == lengths


@pytest.mark.parametrize(("stage", "taken_us"), [("gen", 100), ("ref", 100), ("", 200)])
def test_host_time_of_a_stage_is_selected(tmp_path, stage, taken_us):
    after = replay_rows(tmp_path, STAGES).after({"do": "set", "on": "host", "to_us": 0, "stage": stage})
    assert after.touched[0].host_ns == taken_us * 1_000
    assert after.host(400) == 400 - taken_us


def test_without_stages_all_work_is_outside_any(tmp_path):
    after = replay_rows(tmp_path, issue("k", 0, 7, 20, 1)).after(
        {"do": "scale", "on": "device", "factor": 0.5, "stage": ""}
    )
    assert after.end("k") == 17


def test_a_stage_is_removed_with_its_work(tmp_path):
    """`ref` takes 100 µs of the host and launches one `k`."""
    after = replay_rows(tmp_path, STAGES).after({"do": "remove", "on": "range", "stage": "ref"})
    assert (after.host(310), after.end("k", nth=1) - after.start("k", nth=1), after.start("k", nth=2)) == (210, 0, 117)
    assert after.touched[0].ops == 1


SMALL_AND_LARGE = [*meet(0, 7, 10, 1, 1, **ALONE), *meet(100, 107, 20, 2, 2, **ALONE), *issue("k", 200, 207, 5, 3)]
SMALL_AND_LARGE[3]["args"].update({"In msg nelems": 2048, "Out msg nelems": 2048})
"""Messages of 1,024 and 2,048 numbers of 4 bytes, and a kernel without one."""


@pytest.mark.parametrize(("nbytes", "lengths"), [(4097, (5, 20)), (8192, (5, 20)), (8193, (5, 10))])
def test_collectives_of_small_messages_are_selected(tmp_path, nbytes, lengths):
    change = {"do": "scale", "on": "collective", "factor": 0.5, "smaller_bytes": nbytes}
    after = replay_rows(tmp_path, SMALL_AND_LARGE).after(change)
    found = (after.end(collective_name(), nth=nth) - after.start(collective_name(), nth=nth) for nth in (0, 1))
    assert tuple(found) == lengths


@pytest.mark.parametrize(
    ("where", "ends"),
    [
        ({}, (415, 420)),
        ({"smaller_bytes": 17, "op": "reduce", "row": "gloo:"}, (415, 420)),
        ({"rank": 1}, (455, 460)),
        ({"smaller_bytes": 16}, None),
        ({"op": "gather"}, None),
        ({"longer_than_us": 1}, None),
    ],
)
def test_the_transfer_of_a_host_collective_is_selected(tmp_path, where, ends):
    """The last rank arrives at 415 and 40 µs later 16 bytes are reduced."""
    job = replay_rows(tmp_path, gloo_rank(100, 455), gloo_rank(400, 455))
    change = {"do": "set", "on": "collective", "to_us": 0, **where}
    if ends is None:
        with pytest.raises(ChangeError, match="no op in this run matches"):
            job.after(change)
        return
    after = job.after(change)
    assert (after.host(455, 0, thread=1), after.host(460, 0)) == ends
    assert after.touched[0].ops == (1 if "rank" in where else 2)


@pytest.mark.parametrize(("host", "optimizer"), [({}, 130), ({"host": "^c10d::"}, 120)])
def test_a_host_collective_is_removed_with_the_wait_for_it(tmp_path, host, optimizer):
    """Rank 0 computes 100 µs, issues for 10 and logs for 20; then it waited for rank 1."""
    job = replay_rows(tmp_path, gloo_rank(100, 455), gloo_rank(400, 455))
    after = job.after({"do": "remove", "on": "collective", "op": ".", **host})
    assert (after.host(460, 0), after.host(460, 1)) == (optimizer, optimizer + 300)


def test_no_message_is_smaller_than_the_smallest_and_a_kernel_has_none(tmp_path):
    job = replay_rows(tmp_path, SMALL_AND_LARGE)
    for change in (
        {"do": "scale", "on": "collective", "factor": 0.5, "smaller_bytes": 4096},
        {"do": "scale", "on": "device", "factor": 0.5, "smaller_bytes": 10**9},
    ):
        with pytest.raises(ChangeError, match="no op in this run matches"):
            job.after(change)


def test_host_time_is_that_of_the_median_rank(tmp_path):
    """`prepare` takes 100 µs on rank 2 and 40 and 50 on others."""
    ranks = [[step(1, 0, 300), aten("prepare", 10, dur), aten("go", 10 + dur, 20)] for dur in (40, 50, 100)]
    after = replay_rows(tmp_path, *ranks).after({"do": "equalise", "on": "host", "rank": 2, "row": "prepare"})
    assert (after.host(110, rank=2), after.host(50, rank=0), after.host(60, rank=1)) == (55, 50, 60)


@pytest.mark.parametrize(
    ("row", "pauses", "usual"),
    [
        (aten, (5_000, 0), 2_500),
        (annotation, (5_000, 0), 0),
        (annotation, (5_000, 4_200), 4_600),
        (annotation, (5_000, 0, 0), 0),
        (annotation, (5_000, 5_000, 0, 0), 0),
        (annotation, (5_000, 5_000, 0), 5_000),
    ],
)
def test_a_pause_that_half_of_the_ranks_have_is_not_needed(tmp_path, row, pauses, usual):
    """Each rank works for 100 µs, then is in `more` for 10 µs and the pause, then works for 20 µs; work is shared."""
    ranks = [
        [
            *(step(1, 0, 12_000), annotation("gen", 0, 11_000), aten("prepare", 0, 100)),
            *(row("more", 100, 10 + pause), aten("go", 110 + pause, 20)),
        ]
        for pause in pauses
    ]
    after = replay_rows(tmp_path, *ranks).after({"do": "equalise", "on": "host"})
    assert after.host(110 + pauses[0], rank=0) == 110 + usual


@pytest.mark.parametrize("shared", [0, 30, 100])
def test_work_of_the_cpu_done_on_one_rank_only_goes_as_far_as_its_stage_is_longer(tmp_path, shared):
    """`ref` has 100 µs of ops on rank 0; on rank 1 some of these, then 150 µs that no other rank has."""
    rows = [step(1, 0, 400), annotation("ref", 10, 300)]
    first = [*rows, aten("aten::add", 20, 100)]
    second = [*rows, *([aten("aten::add", 20, shared)] if shared else []), aten("aten::mm", 20 + shared, 150)]
    after = replay_rows(tmp_path, first, second).after({"do": "equalise", "on": "host", "rank": 1, "by": "^aten"})
    assert after.host(170 + shared, 1) == 120


def test_what_was_removed_is_not_brought_back_by_another_rank(tmp_path):
    """The wait of rank 0 is gone; that of rank 1 is no measure for it."""
    rows = [step(1, 0, 300), *issue("k", 0, 7, 100, 1), runtime("cudaDeviceSynchronize", 20, 90, 2)]
    job = replay_rows(tmp_path, [*rows, aten("prepare", 120, 40)], [*rows, aten("prepare", 120, 10)])
    after = job.after(
        {"do": "unwait", "row": "cudaDeviceSynchronize", "rank": 0}, {"do": "equalise", "on": "host", "rank": 0}
    )
    assert (after.host(110, rank=0), after.host(160, rank=0)) == (25, 25 + 10 + 10)


# Several changes


def test_changes_compose(tmp_path):
    """Half and half again is a quarter."""
    job = replay_rows(tmp_path, DEVICE)
    assert job.after(shorten("a"), shorten("a")).end("a") == 9 + 5


def test_each_prediction_tells_the_step_so_far_and_alone(tmp_path):
    """Host time 60 of 120 µs, then its other half: alone each takes off 60, together 120."""
    rows = [step(1, 0, 200), aten("one", 10, 60), aten("two", 80, 60)]
    job = replay_rows(tmp_path, rows).job
    changes = [make_change({"do": "set", "on": "host", "row": name, "to_us": 0}) for name in ("one", "two")]
    first, second = predict_changes(job, list_job_steps(job), changes)
    assert (first.step.mean_ns, first.alone_ns) == (140_000, 140_000)
    assert (second.step.mean_ns, second.alone_ns) == (80_000, 140_000)
    with pytest.raises(ChangeError, match="nothing in this run matches"):
        predict_changes(job, list_job_steps(job), [changes[0], changes[0]])


def test_a_prediction_leaves_the_recorded_graph_as_it_is(tmp_path):
    job = replay_rows(tmp_path, DEVICE)
    weights = job.job.edges.weight.copy()
    job.after(shorten("a"), {"do": "remove", "op": "^b$"})
    assert (job.job.edges.weight == weights).all()
    assert (job.job.settled.timing.time == job.job.time).all()


# Nothing selected

NOTHING = [
    (
        {"do": "scale", "on": "device", "op": "^bb$", "factor": 0.5},
        "no op in this run matches", "op: did you mean b?",
    ),
    ({"do": "scale", "on": "host", "range": "gem", "factor": 0.5}, "nothing in this run matches", "range: did you mean gen?"),
    ({"do": "unwait", "by": "aten::ad"}, "nothing in this run matches", "each pattern matches something, but nothing matches all of them and is long enough"),
    ({"do": "unwait", "by": "aten::mmm"}, "nothing in this run matches", "by: did you mean aten::mm, aten::mul, aten::add?"),
    ({"do": "scale", "on": "device", "rank": 7, "factor": 0.5}, "no op in this run matches", "rank: recorded are 0"),
    ({"do": "scale", "on": "device", "step": 3, "op": "c", "factor": 0.5}, "no op in this run matches", "step: recorded are 1"),
    ({"do": "scale", "on": "collective", "factor": 0.5}, "no op in this run matches", "each pattern matches something, but nothing matches all of them and is long enough"),
    ({"do": "remove", "on": "range", "range": "validate"}, "no range in this run matches", "range: no name matches 'validate'; tracekit whatif PATH lists the names on the critical path"),
    ({"do": "remove", "op": "^a$", "host": "aten::to"}, "host: no row in this run has such a name", "did you mean aten::mm, aten::mul, aten::add?"),
    ({"do": "prefetch", "range": "loader"}, "no range in this run matches", "range: no name matches 'loader'; tracekit whatif PATH lists the names on the critical path"),
    ({"do": "graph", "range": "decode"}, "nothing in this run matches", "range: no name matches 'decode'; tracekit whatif PATH lists the names on the critical path"),
    ({"do": "unblock", "op": "^b$"}, "nothing in this run matches", "each pattern matches something, but nothing matches all of them and is long enough"),
    ({"do": "equalise", "rank": 0}, "nothing in this run matches", "each pattern matches something, but nothing matches all of them and is long enough"),
    ({"do": "equalise", "op": "x"}, "nothing in this run matches", "op: no name matches 'x'; tracekit whatif PATH lists the names on the critical path"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "problem", "hint"), NOTHING)
def test_what_selects_nothing_is_refused_with_near_names(tmp_path, change, problem, hint):
    job = replay_rows(tmp_path, DEVICE)
    with pytest.raises(ChangeError) as caught:
        job.after(change)
    assert caught.value.problem.startswith(problem)
    assert caught.value.hint == hint


def test_an_unknown_group_is_refused_with_those_there_are(tmp_path):
    job = replay_rows(tmp_path, groups(("AllReduce", "1", 10), ("AllGather", "2", 20)))
    with pytest.raises(ChangeError) as caught:
        job.after({"do": "scale", "on": "collective", "group": "^7", "factor": 0.5})
    assert caught.value.hint.startswith("group: the groups are 1")


def test_names_of_profiles_are_safe_in_hints(tmp_path):
    rows = [step(1, 0, 100), aten("gen\x1b[31m", 0, 50)]
    with pytest.raises(ChangeError) as caught:
        replay_rows(tmp_path, rows).after({"do": "scale", "on": "host", "range": "gen.\\[31n", "factor": 0})
    assert caught.value.hint == "range: did you mean gen\\x1b[31m?"


def test_a_run_without_rows_refuses_every_change(tmp_path):
    job = join_processes([])
    for change in ({"do": "scale", "factor": 0.5}, {"do": "scale", "on": "device", "factor": 0.5}, {"do": "equalise"}):
        with pytest.raises(ChangeError):
            predict_changes(job, list_job_steps(job), [make_change(change)])


# A simulated job


def test_twice_as_fast_everywhere_is_half_the_step():
    """Host and device, waits and transfers: but for launch latencies and gaps, the whole step halves."""
    simulation = simulate_clean_job()
    halves = [{"do": "scale", "on": on, "factor": 0.5} for on in ("host", "device", "collective")]
    assert simulation.predict_changes(*halves) == pytest.approx(simulation.recorded_ns / 2, rel=0.01)


def test_slower_work_never_shortens_a_step():
    simulation = simulate_clean_job()
    for on in ("host", "device", "collective"):
        assert simulation.predict_changes({"do": "scale", "on": on, "factor": 1.5}) > simulation.recorded_ns
        assert simulation.predict_changes({"do": "scale", "on": on, "factor": 0.7}) < simulation.recorded_ns
