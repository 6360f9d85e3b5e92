"""What NCCL's calls carry: message sizes, communicators, ranks, from binary payloads laid out by hand."""

import pytest
from nsys_builder import PID, execute, launched, nvtx, write
from nsys_payload_builder import SIZED, WORLD, blob, call, init, layout, peer, sized, told

from tracekit.model.trace import Source, Trace, Want
from tracekit.process.collectives.table import list_collectives
from tracekit.readers import nsys
from tracekit.readers.nsys.nvtx import payloads as nsys_payloads
from tracekit.readers.nsys.sqlite.connection import open_export


@pytest.fixture
def export(tmp_path):
    """A function: the path of an export of these rows, a new one every time."""
    numbers = iter(range(1000))
    return lambda rows: write(tmp_path / f"{next(numbers)}.sqlite", [*rows, *layout(2)], schema="3.25")


def test_the_size_of_a_message_is_told_in_bytes(export):
    found = told(export([call("ncclAllReduce", 10, sized(4096)), call("ncclAllReduce", 30)]))
    assert found == {
        ("ncclAllReduce", 10): {
            "Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "Byte",
            "Process Group Name": "0xfedcba9876543210",
        }
    }  # fmt: skip


def test_the_other_side_of_a_gather_and_a_scatter_needs_the_number_of_ranks(export):
    calls = [call("ncclAllGather", 30, sized(100)), call("ncclReduceScatter", 50, sized(100))]
    unknown = told(export(calls))
    assert unknown["ncclAllGather", 30]["In msg nelems"] == 100
    assert "Out msg nelems" not in unknown["ncclAllGather", 30]
    assert "In msg nelems" not in unknown["ncclReduceScatter", 50]
    known = told(export([call("ncclCommInitRank", 10, init(2)), *calls]))
    assert known["ncclAllGather", 30]["Out msg nelems"] == 400
    assert (
        known["ncclReduceScatter", 50] | {"In msg nelems": 400, "Out msg nelems": 100} == known["ncclReduceScatter", 50]
    )
    assert known["ncclAllGather", 30]["Group size"] == WORLD
    assert ("ncclCommInitRank", 10) not in known


def test_the_end_of_a_group_carries_its_only_call(export):
    rows = [call("ncclGroupStart", 10), call("ncclAllReduce", 30, sized(64)), call("ncclGroupEnd", 50)]
    found = told(export(rows))
    assert found["ncclGroupEnd", 50] == found["ncclAllReduce", 30]


def group(*calls):
    """The calls 20 ns apart between the two borders of a group, which ends at 900."""
    inside = [call(name, 100 + 20 * i, data) for i, (name, data) in enumerate(calls)]
    return [call("ncclCommInitRank", 10, init(0)), call("ncclGroupStart", 50), *inside, call("ncclGroupEnd", 900)]  # fmt: skip


def test_the_end_of_a_group_carries_what_calls_of_one_kind_move_together(export):
    found = told(export(group(("ncclAllReduce", sized(1)), ("ncclAllReduce", sized(2)), ("ncclAllReduce", sized(4)))))
    end = found["ncclGroupEnd", 900]
    assert (end["Collective name"], end["In msg nelems"], end["Out msg nelems"]) == ("allreduce", 7, 7)
    gathers = told(export(group(("ncclAllGather", sized(10)), ("ncclAllGather", sized(20)))))
    assert [gathers["ncclGroupEnd", 900][f"{side} msg nelems"] for side in ("In", "Out")] == [30, 30 * WORLD]


@pytest.mark.parametrize(
    "calls",
    [
        [("ncclAllReduce", sized(1)), ("ncclAllGather", sized(2))],
        [("ncclAllReduce", sized(1)), ("ncclAllReduce", sized(2, 5))],
        [("ncclAllReduce", sized(1)), ("ncclAllReduce", None)],
        [("ncclSend", peer(1, 1)), ("ncclRecv", peer(1, 1))],
        [("ncclAllReduce", sized(2**59)), ("ncclAllReduce", sized(2**59)), ("ncclAllReduce", sized(2**59))],
    ],
    ids=["kinds", "communicators", "one unknown", "an exchange with some", "more than can be"],
)  # fmt: skip
def test_of_any_other_group_it_is_not_known_what_its_kernel_moves(export, calls):
    assert ("ncclGroupEnd", 900) not in told(export(group(*calls)))


@pytest.mark.parametrize(("kernel_count", "expected"), [(1, [1024]), (2, [-1, -1])])
def test_the_bytes_of_a_group_are_those_of_its_kernel_if_there_is_but_one(export, kernel_count, expected):
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
    rows = [call("ncclGroupStart", 50), call("ncclAllReduce", 100, sized(1000)), call("ncclAllReduce", 200, sized(24)),
            nvtx("ncclGroupEnd", 1000, 8000, domain=1, registered=True)]  # fmt: skip
    for i in range(1, 1 + kernel_count):
        rows += launched(name, 1000 * i + 10, 9000 + 500 * i, 9400 + 500 * i, i)
    path = export(rows)
    (trace,) = nsys.read(Source(path, path.name, "nsys", "nsys"), Want())
    assert list_collectives(trace).rows.frame()["size_bytes"].fillna(-1).tolist() == expected


def test_a_group_that_sends_to_all_and_receives_from_all_is_an_all_to_all(export):
    exchange = [
        call(name, 100 + 40 * i + shift, peer(10 + i, i))
        for i in range(WORLD)
        for shift, name in ((0, "ncclSend"), (20, "ncclRecv"))
    ]
    rows = [call("ncclCommInitRank", 10, init(0)), call("ncclGroupStart", 80), call("ncclGroupStart", 90), *exchange,
            call("ncclGroupEnd", 400), call("ncclGroupEnd", 420)]  # fmt: skip
    found = told(export(rows))
    assert found["ncclGroupEnd", 420] | {
        "Collective name": "alltoall", "In msg nelems": 10 + 11 + 12 + 13, "Out msg nelems": 46,
    } == found["ncclGroupEnd", 420]  # fmt: skip
    assert ("ncclGroupEnd", 400) not in found
    some = told(export([*rows[:4], *rows[6:]]))
    assert ("ncclGroupEnd", 420) not in some


def test_groups_of_threads_and_processes_are_kept_apart(export):
    rows = [call("ncclGroupEnd", 5), call("ncclGroupStart", 10, tid=1), call("ncclGroupStart", 12, tid=2),
            call("ncclAllReduce", 30, sized(1), tid=1), call("ncclAllReduce", 32, sized(2), tid=2),
            call("ncclGroupEnd", 52, tid=2), call("ncclGroupEnd", 50, tid=1), call("ncclGroupStart", 70, tid=2)]  # fmt: skip
    found = told(export(rows))
    assert found["ncclGroupEnd", 50]["In msg nelems"] == 1
    assert found["ncclGroupEnd", 52]["In msg nelems"] == 2
    assert ("ncclGroupEnd", 5) not in found


def test_ranks_are_those_of_the_largest_communicator(export):
    rows = [call("ncclCommInitRank", 10, init(1, 2, 5)), call("ncclCommInitRank", 30, init(3)),
            call("ncclCommInitRank", 30, init(0), pid=7), call("ncclCommInitRank", 50, init(1, 4, 9), pid=8),
            call("ncclCommInitRank", 70, init(2, 4, 10), pid=8), call("ncclCommInitRank", 70, init(4, 4), pid=9)]  # fmt: skip
    with open_export(export(rows)) as db:
        assert nsys_payloads.find_nccl_ranks(db) == {PID: (3, 4), 7: (0, 4)}


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 32, blob(SIZED, b""), blob(SIZED, b"\0" * 8), blob(SIZED, b"\xff" * 16), blob(99, b"\0" * 16),
     blob(SIZED, b"\0" * 16, size=8), blob(SIZED, b"\1" * 16, size=2**63), b"\xff" * 4000, b"\0" * 70_000, "text", 5],
)  # fmt: skip
def test_a_payload_that_is_none_tells_nothing(export, data):
    assert told(export([call("ncclAllReduce", 10, data)])) == {}


@pytest.mark.parametrize("statement", [
    "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = -1", "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = 1 << 62",
    "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = 'x'", "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET type = 19",
    "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = x'00'", "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET schemaId = 'x'",
    "DELETE FROM NVTX_PAYLOAD_SCHEMA_ENTRIES", "DROP TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES",
])  # fmt: skip
def test_a_layout_that_cannot_be_tells_nothing(export, statement):
    path = execute(export([call("ncclAllReduce", 10, sized(8))]), statement)
    assert told(path) == {}
    with open_export(path) as db:
        assert nsys_payloads.find_nccl_ranks(db) == {}


def test_only_wanted_facts_are_kept(export):
    path = export([call("ncclAllReduce", 10, sized(8), int64Value=4)])
    assert told(path, args=("dtype",)) == {("ncclAllReduce", 10): {"dtype": "Byte"}}
    assert told(path, args=("op_id",)) == {}


def test_a_kernel_that_nccl_launched_has_the_bytes_of_the_call(export):
    rows = [
        call("ncclCommInitRank", 10, init(1)),
        nvtx("ncclAllGather", 100, 5000, domain=1, registered=True, binaryData=sized(1000)),
        *launched("ncclDevKernel_AllGather_RING_LL(args)", 200, 9000, 9500, 1),
        *launched("void gemm(float)", 6000, 9600, 9700, 2),
    ]
    path = export(rows)
    (trace,) = nsys.read(Source(path, path.name, "nsys", "nsys"), Want())
    assert isinstance(trace, Trace)
    found = list_collectives(trace).rows.frame()
    assert found[["op", "dtype", "size_bytes", "group_size", "group"]].to_numpy().tolist() == [
        ["all_gather", "uint8", 4000, 4, "0xfedcba9876543210"]
    ]
