"""Collectives that the host carries out itself: which ranges they are, and when they were issued."""

import pytest
from chrome_builder import BASE_NS, annotation, op, step
from process.collective_traces import COMMS, found, gloo, only
from rules.traces_communication import nccl


def test_without_a_device_ranges_of_the_host_are_the_collectives(tmp_path):
    rows = [step(1, 0, 100), annotation("update_actor", 0, 40), gloo("all_reduce", 50, 10, "[[100]]")]
    rows += [op("c10d::allreduce_", 30, 5)]
    row = only(tmp_path, rows)
    told = ("op", "size_bytes", "dur_ns", "issue_ns", "stage", "step", "synchronising")
    assert [row[n] for n in told] == [
        "all_reduce", 400, 10_000, BASE_NS + 30_000, "update_actor", 1, True,
    ]  # fmt: skip
    frame = found(tmp_path, rows).rows.frame()
    assert frame[["device", "stream", "exposed_ns"]].isna().all(axis=None)


def test_the_order_is_that_of_the_calls_not_of_the_threads_that_serve_them(tmp_path):
    """The second call's range starts first on another thread; the k-th call is that of the k-th range."""
    rows = [op("c10d::allreduce_", 0, 5), op("c10d::allreduce_", 10, 5)]
    rows += [gloo("all_reduce", 21, 10, tid=1), gloo("all_reduce", 20, 30, tid=2)]
    frame = found(tmp_path, rows).rows.frame()
    assert frame["issue_ns"].tolist() == [BASE_NS, BASE_NS + 10_000]
    assert frame["ordinal"].tolist() == [0, 1]


@pytest.mark.parametrize("calls", [[op("c10d::allreduce_", 30, 5)], [op("c10d::broadcast_", 0, 5)], []])
def test_calls_that_do_not_fit_tell_no_issue(tmp_path, calls):
    """A call after its range, a call of another kind, none: the range itself then tells step and stage."""
    rows = [annotation("gen", 15, 50), gloo("all_reduce", 20, 10), *calls]
    frame = found(tmp_path, rows).rows.frame()
    assert frame["issue_ns"].isna().all()
    assert frame["stage"].tolist() == ["gen"]


def test_the_call_may_tell_what_the_range_does_not(tmp_path):
    rows = [op("c10d::_allgather_base_", 0, 9), op("record_param_comms", 1, 5, **COMMS)]
    rows += [gloo("all_gather", 20, 10, "[[5]]")]
    row = only(tmp_path, rows)
    assert (row["seq"], row["group_size"], row["size_bytes"], row["dtype"]) == (17, 2, 20, "float16")


def test_a_range_within_one_is_part_of_it(tmp_path):
    rows = [gloo("all_reduce", 0, 30), gloo("broadcast", 5, 10)]
    assert only(tmp_path, rows)["op"] == "all_reduce"


def test_ranges_of_device_libraries_only_last_as_long_as_the_launch(tmp_path):
    """Without the device's own record nothing is known of the collective."""
    rows = [annotation("nccl:all_reduce", 0, 30), op("aten::mm", 0, 50)]
    assert len(found(tmp_path, rows).rows.frame()) == 0


def test_with_collectives_on_the_device_the_host_s_are_left_out(tmp_path):
    """Σ over both would count what a process does twice."""
    kept = found(tmp_path, [*nccl("allreduce", 0, 10, 5, 1, 1), gloo("all_reduce", 20, 10)])
    assert kept.on_device
    assert kept.rows.frame()["device"].tolist() == [0]
