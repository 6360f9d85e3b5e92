"""Payloads as JSON: NCCL's fields under the names of its schema, and what users attach, bounded."""

import json

import pytest
from nsys_builder import PID, Text, execute, nvtx, write
from nsys_payload_builder import COMMUNICATOR, WORLD, call, layout, sized, told

from tracekit.readers.chrome.scan import Json
from tracekit.readers.nsys.nvtx import payload_texts as nsys_payload_texts
from tracekit.readers.nsys.nvtx import payloads as nsys_payloads
from tracekit.readers.nsys.sqlite.connection import open_export

GROUP = f"{COMMUNICATOR:#x}"


@pytest.fixture
def export(tmp_path):
    """A function: the path of an export of these rows, as a version without binary payloads has them."""
    numbers = iter(range(1000))
    return lambda rows, schema="3.11": write(tmp_path / f"{next(numbers)}.sqlite", rows, schema=schema)


def spelled(size, communicator=COMMUNICATOR, **more):
    return json.dumps({"NCCL communicator ID": communicator, "Message size [bytes]": size, **more})


def init(rank, world=WORLD, communicator=COMMUNICATOR):
    return json.dumps({"NCCL communicator ID": communicator, "No. of ranks": world, "Rank": rank, "CUDA device": 0})


def json_call(name, start, text, **more):
    return call(name, start, jsonText=text, **more)


def test_what_a_call_of_nccl_tells_is_the_same_from_json_as_from_bytes(export):
    rows = [json_call("ncclCommInitRank", 10, init(2)), json_call("ncclAllGather", 30, spelled(100))]
    found = told(export(rows))
    assert {key: value for key, value in found["ncclAllGather", 30].items() if key != "payload fields"} == {
        "Collective name": "allgather", "In msg nelems": 100, "Out msg nelems": 400, "Group size": WORLD,
        "dtype": "Byte", "Process Group Name": GROUP,
    }  # fmt: skip
    by_id = [call("ncclAllReduce", 30, jsonTextId=Text(spelled(64)))]
    assert told(export(by_id))["ncclAllReduce", 30]["In msg nelems"] == 64
    with open_export(export(rows)) as db:
        assert nsys_payloads.find_nccl_ranks(db) == {PID: (2, WORLD)}


def test_a_binary_payload_counts_before_its_json(export):
    rows = [call("ncclAllReduce", 10, sized(8), jsonText=spelled(9)), json_call("ncclAllReduce", 30, spelled(7))]
    found = told(export([*rows, *layout()], "3.25"))
    assert [found["ncclAllReduce", at]["In msg nelems"] for at in (10, 30)] == [8, 7]
    unknown = told(export(rows, "3.25"))
    assert unknown["ncclAllReduce", 10]["In msg nelems"] == 9


def test_a_call_that_tells_no_communicator_is_of_no_known_group(export):
    found = told(export([json_call("ncclAllReduce", 10, '{"Message size [bytes]": 4096, "Reduction operation": 0}')]))
    assert found["ncclAllReduce", 10]["In msg nelems"] == 4096
    assert "Process Group Name" not in found["ncclAllReduce", 10]


def test_fields_of_users_ranges_are_kept_as_compact_json(export):
    rows = [
        nvtx("a", 1, 2, jsonText='{"lr": 2.50e-4, "n": [1, 2], "s": "x"}'),
        nvtx("b", 3, 4, jsonTextId=Text("[1, {}]")),
        nvtx("c", 5, 6, jsonText="plain", int64Value=3),
        nvtx("d", 7, 8),
    ]
    found = told(export(rows))
    assert found == {
        ("a", 1): {"payload fields": '{"lr":0.00025,"n":[1,2],"s":"x"}'},
        ("b", 3): {"payload fields": "[1,{}]"},
        ("c", 5): {"payload": 3},
    }
    assert isinstance(found["a", 1]["payload fields"], Json)
    assert told(export(rows), args=("payload",)) == {("c", 5): {"payload": 3}}


BAD = [
    "", "{", "[]", "5", "null", "[" * 2000, '{"Message size [bytes]": -1}', '{"Message size [bytes]": 1.5}',
    '{"Message size [bytes]": true}', '{"Message size [bytes]": NaN}', '{"Message size [bytes]": ' + "9" * 4000 + "}",
    '{"Message size [bytes]": 18446744073709551616}', '{"Message size [bytes]": "x"}', '{"message size [bytes]": 5}',
    '{"Message size [bytes]": {"a": 5}}', '{"Message size [bytes]": 5, "x": "' + "x" * 5000 + '"}', "\ud7ff\x00{",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("column", ["jsonText", "jsonTextId"])
def test_json_that_tells_no_size_tells_nothing_of_a_collective(export, text, column):
    value = Text(text) if column == "jsonTextId" else text
    rows = [call("ncclAllReduce", 10, **{column: value}), json_call("ncclAllReduce", 30, spelled(8))]
    found = told(export(rows))
    assert found.get(("ncclAllReduce", 10), {}).keys() <= {"payload fields"}
    assert found["ncclAllReduce", 30]["In msg nelems"] == 8


@pytest.mark.parametrize("value", ["x'00ff'", "1.5", "9e999", "-9223372036854775808", "zeroblob(9000)", "'1,2'"])
@pytest.mark.parametrize("column", ["jsonText", "jsonTextId", "globalTid"])
def test_a_value_of_any_type_costs_at_most_its_row(export, column, value):
    file = export([json_call("ncclAllReduce", 10, spelled(8)), json_call("ncclCommInitRank", 30, init(1))])
    execute(file, f"UPDATE NVTX_EVENTS SET {column} = {value} WHERE start = 10")
    assert told(file, None).keys() >= {("ncclCommInitRank", 30)}
    with open_export(file) as db:
        assert nsys_payloads.find_nccl_ranks(db) == {PID: (1, WORLD)}


def test_texts_beyond_the_bound_are_left_out(export, monkeypatch):
    monkeypatch.setattr(nsys_payload_texts, "MAX_TEXTS", 2)
    rows = [json_call("ncclAllReduce", 10 * i, spelled(i)) for i in (1, 2, 3, 1)]
    found = told(export(rows[:3]))
    assert {at for _, at in found} == {10, 20}


def test_without_json_there_is_none(export):
    for file in (export([nvtx("a", 1, 2)]), export([nvtx("a", 1, 2)], "2021")):
        with open_export(file) as db:
            assert not nsys_payload_texts.has_json_payloads(db)
    with open_export(export([nvtx("a", 1, 2, jsonText="5")])) as db:
        assert nsys_payload_texts.has_json_payloads(db)


def test_rows_that_a_damaged_file_has_twice_count_once(export):
    file = export([json_call("ncclAllReduce", 10 * i, spelled(i)) for i in range(1, 1001)])
    data = bytearray(file.read_bytes())
    pages = [at for at in range(0, len(data), 4096) if data[at] == 13 and b"Message" in data[at : at + 4096]]
    assert len(pages) > 9
    data[pages[5] : pages[5] + 4096] = data[pages[4] : pages[4] + 4096]
    file.write_bytes(data)
    with open_export(file) as db:
        row = nsys_payload_texts.read(db).row
    assert 800 < len(row) < 1000
    assert len(set(row.tolist())) == len(row)
    assert told(file)["ncclAllReduce", 10]["In msg nelems"] == 1
