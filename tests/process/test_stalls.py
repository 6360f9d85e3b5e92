"""What synchronizing calls cost, what lies between stages, how long launched work waits: worked out by hand."""

import pytest
from chrome_builder import annotation, kernel, launch, launched, memcpy, op, step
from process.idle_traces import between, frame_of, load, only, sync

from tracekit.process.calls.activity import find_sync_calls
from tracekit.process.idle_time.launch_queues import measure_launch_delays, measure_launch_queues
from tracekit.process.idle_time.stalls import find_sync_stalls, measure_stage_edges

# Synchronizing calls


def synced(tmp_path, rows):
    trace, idle = only(tmp_path, rows)
    return find_sync_stalls(trace, idle)


def test_a_call_stalls_from_its_return_to_the_next_op(tmp_path):
    """Returned at 110 into the gap 100–150."""
    found = synced(tmp_path, between(sync(20, 9, 90), start=130))
    assert found.idle_ns.tolist() == [40_000]
    assert found.call_ns.tolist() == [90_000]
    assert found.stalled.tolist() == [True]


def test_a_call_that_returns_to_a_busy_device_costs_nothing(tmp_path):
    found = synced(tmp_path, between(sync(20, 9, 30, name="cudaEventSynchronize"), start=130))
    assert (found.idle_ns.tolist(), found.stalled.tolist()) == ([0], [False])


def test_a_copy_and_the_wait_for_it_in_one_op_are_one_occasion(tmp_path):
    """The copy returns at 106, the wait at 110; the copy itself runs 102–105."""
    rows = [
        op("aten::item", 50, 70), op("aten::_local_scalar_dense", 51, 65), launch(60, 3, 46, name="cudaMemcpyAsync"),
        memcpy("Memcpy DtoH (Device -> Pageable)", 102, 3, 4, 3, stream=7), sync(107, 9, 3),
        *between(start=130),
    ]  # fmt: skip
    trace, idle = only(tmp_path, rows)
    found = find_sync_stalls(trace, idle)
    host = trace["host_ops"]["name"].astype(str)
    assert host.iloc[found.row].tolist() == ["cudaStreamSynchronize"]
    assert host.iloc[found.op].tolist() == ["aten::item"]
    assert found.idle_ns.tolist() == [44_000]
    assert found.call_ns.tolist() == [49_000]


def caught_up(*more, waited=90):
    """The call returns at 110, `b` begins at 130 and `c` at 150, 10 after `b`; `e` waits for 35 behind `d`: the host is ahead."""
    return [
        *launched("a", 0, 10, 90, 1), sync(110 - waited, 9, waited), *launched("b", 120, 130, 10, 2),
        *launched("c", 145, 150, 10, 3), *launched("d", 158, 160, 40, 4), *launched("e", 165, 200, 10, 5),
        *launched("f", 230, 240, 10, 6), *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "later"),
    [
        (caught_up(), 10),
        # In the call the host lost 25, of which 20 are counted until `b` begins.
        (caught_up(waited=25), 5),
        (caught_up(annotation("actor_update", 0, 144)), 4),
        # Another call returns at 142.
        (caught_up(sync(141, 10, 1)), 2),
    ],
    ids=["all of it", "no more than was lost", "in one stage", "until the next call"],
)
def test_what_follows_counts_until_the_host_is_ahead_again(tmp_path, rows, later):
    found = synced(tmp_path, rows)
    assert found.idle_ns.tolist()[0] == 20_000
    assert found.later_ns.tolist()[0] == later * 1000


@pytest.mark.parametrize(
    ("name", "copy", "dur", "counts"),
    [
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 10, True),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 9, False),  # returned before the end
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", 10, False),
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", 3, True),
        ("hipMemcpyWithStream", "CopyDeviceToHost", 3, True),
        ("cuMemcpyDtoHAsync_v2", "Memcpy DtoH (Device -> Pinned)", 3, False),
    ],
)
def test_which_copies_synchronise(tmp_path, name, copy, dur, counts):
    """The call begins at 0, the copy ends at 10."""
    rows = [launch(0, 1, dur, name=name), memcpy(copy, 2, 8, 4, 1)]
    assert (len(load(tmp_path, rows).derived(find_sync_calls).row) == 1) == counts


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "hipStreamSynchronize", "cuCtxSynchronize", "cudaEventSynchronize"])  # fmt: skip
def test_which_calls_synchronise(tmp_path, name):
    assert len(load(tmp_path, [sync(0, 1, 5, name=name)]).derived(find_sync_calls).row) == 1


@pytest.mark.parametrize("name", ["cudaEventQuery", "cudaStreamWaitEvent", "cudaLaunchKernel"])
def test_which_calls_do_not(tmp_path, name):
    assert len(load(tmp_path, [sync(0, 1, 5, name=name)]).derived(find_sync_calls).row) == 0


def test_the_stall_of_a_call_ends_at_the_next_call_and_with_its_stage(tmp_path):
    """Returned at 110 and 125 into the gap 100–150; the stage ends at 140."""
    rows = [annotation("gen", 0, 140), sync(20, 8, 90), sync(120, 9, 5), *between(start=150)]
    assert synced(tmp_path, rows).idle_ns.tolist() == [15_000, 15_000]


def test_data_loading_after_a_call_is_not_its_fault(tmp_path):
    loader = annotation("enumerate(DataLoader)#X.__next__", 115, 20)
    found = synced(tmp_path, between(sync(20, 9, 90), loader, start=150))
    assert found.idle_ns.tolist() == [20_000]


def test_a_call_after_which_nothing_runs_any_more_stalls_nothing(tmp_path):
    rows = [step(1, 0, 300), *launched("a", 0, 0, 100, 1), sync(20, 9, 90)]
    assert synced(tmp_path, rows).idle_ns.tolist() == [0]


# Stage edges


def edges(tmp_path, rows):
    trace, idle = only(tmp_path, rows)
    return frame_of(measure_stage_edges(trace, idle, find_sync_stalls(trace, idle).after))


def test_an_edge_reaches_to_the_first_op_that_the_next_stage_launched(tmp_path):
    """`ref` ends at 100, `actor_update` begins at 130 and launches at 150 what begins at 160."""
    rows = [
        step(1, 0, 300), annotation("ref", 0, 100), annotation("actor_update", 130, 170),
        *launched("a", 0, 0, 90, 1), op("aten::x", 110, 5), *launched("b", 150, 160, 140, 2),
    ]  # fmt: skip
    (row,) = edges(tmp_path, rows).to_dict("records")
    assert (row["stage"], row["next_stage"], row["step"]) == ("ref", "actor_update", 1)
    assert (row["edge_ns"], row["idle_ns"]) == (60_000, 60_000)
    assert (row["explained_ns"], row["after_sync_ns"]) == (0, 0)
    assert row["host_ns"] == 7_000  # the op, and the launching call of 2


def test_work_that_still_runs_makes_an_edge_busy(tmp_path):
    rows = [
        step(1, 0, 300), annotation("ref", 0, 100), annotation("actor_update", 130, 170),
        *launched("a", 0, 0, 150, 1), *launched("b", 150, 160, 140, 2),
    ]  # fmt: skip
    assert edges(tmp_path, rows)["idle_ns"].tolist() == [10_000]


def test_a_next_stage_that_launches_nothing_ends_the_edge_where_it_begins(tmp_path):
    """`reward` runs on the host: the GPU is left alone by design."""
    rows = [
        step(1, 0, 300), annotation("gen", 0, 100), annotation("reward", 110, 90), annotation("ref", 205, 95),
        *launched("a", 0, 0, 100, 1), *launched("b", 205, 210, 90, 2),
    ]  # fmt: skip
    assert edges(tmp_path, rows)["idle_ns"].tolist() == [10_000, 10_000]


def test_between_steps_there_is_no_edge(tmp_path):
    rows = [
        step(1, 0, 100), step(2, 200, 100), annotation("ref", 0, 100), annotation("ref", 200, 100),
        *launched("a", 0, 0, 100, 1), *launched("b", 200, 200, 90, 2),
    ]  # fmt: skip
    assert len(edges(tmp_path, rows)) == 0


def test_what_has_a_cause_of_its_own_is_told_apart(tmp_path):
    """After the stage 20 of loading, then a synchronisation within the next stage until 150, idle to 160."""
    rows = [
        step(1, 0, 300), annotation("ref", 0, 100), annotation("actor_update", 130, 170),
        annotation("enumerate(DataLoader)#X.__next__", 105, 20), sync(140, 9, 10),
        *launched("a", 0, 0, 100, 1), *launched("b", 158, 160, 140, 2),
    ]  # fmt: skip
    (row,) = edges(tmp_path, rows).to_dict("records")
    assert (row["idle_ns"], row["explained_ns"], row["after_sync_ns"]) == (60_000, 20_000, 10_000)


def test_what_was_launched_already_does_not_wait_for_the_next_stage(tmp_path):
    """`ref` launches at 60 what begins at 1,200 only, before what `actor_update` launches: idle for 1,100, none of it for that."""
    rows = [
        step(1, 0, 2000), annotation("ref", 0, 100), annotation("actor_update", 130, 1800),
        *launched("a", 0, 0, 90, 1), *launched("b", 60, 1200, 10, 2), *launched("c", 150, 1210, 90, 3),
    ]  # fmt: skip
    (row,) = edges(tmp_path, rows).to_dict("records")
    assert (row["idle_ns"], row["explained_ns"], row["inside_ns"]) == (1_100_000, 1_100_000, 0)


# Delays and queues


def test_delays_are_from_the_end_of_the_call_and_may_be_negative(tmp_path):
    """Calls of 2 end at 2, 12 and 22; ops begin at 1 (before that), 20 and 122."""
    rows = [
        *launched("a", 0, 1, 5, 1), *launched("b", 10, 20, 5, 2), *launched("c", 20, 122, 5, 3),
        kernel("unlinked", 200, 5),
    ]  # fmt: skip
    trace, idle = only(tmp_path, rows)
    (row,) = frame_of(measure_launch_delays(trace, idle)).to_dict("records")
    assert (row["count"], row["negative_count"], row["max_ns"]) == (3, 1, 100_000)
    assert (row["p50_ns"], row["p95_ns"]) == (8_000, pytest.approx(90_800))


def test_a_graph_counts_once_by_its_first_op(tmp_path):
    rows = [launch(0, 1, name="cudaGraphLaunch"), *(kernel("k", 10 + 20 * i, 10, 1) for i in range(5))]  # fmt: skip
    trace, idle = only(tmp_path, rows)
    (row,) = frame_of(measure_launch_delays(trace, idle)).to_dict("records")
    assert (row["count"], row["p50_ns"]) == (1, 8_000)


def test_depth_is_what_is_launched_and_not_finished(tmp_path):
    """Launched at 0, 10, 20; finished at 50, 60, 100: depth 1 for 10, 2 for 10, 3 for 30, 2 for 10, 1 for 40."""
    rows = [
        *launched("a", 0, 5, 45, 1), *launched("b", 10, 50, 10, 2), *launched("c", 20, 60, 40, 3),
        *launched("other", 0, 0, 1, 4, stream=9),
    ]  # fmt: skip
    trace, idle = only(tmp_path, rows)
    found = frame_of(measure_launch_queues(trace, idle)).set_index("stream")
    assert found.loc[7].to_dict() == {
        "count": 3, "span_ns": 100_000, "p50_count": 1, "p95_count": 3, "max_count": 3, "full_ns": 0,
    }  # fmt: skip
    assert found.loc[9, "max_count"] == 1


def test_a_queue_of_1024_is_full(tmp_path):
    """1,024 launches at 0 (calls of no length), each op of 1: full until the first has finished."""
    rows = [row for i in range(1024) for row in (launch(0, i + 1, 0), kernel("k", i, 1, i + 1))]
    trace, idle = only(tmp_path, rows)
    assert measure_launch_queues(trace, idle)["full_ns"].tolist() == [1_000]
