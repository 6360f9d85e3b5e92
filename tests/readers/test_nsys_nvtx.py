"""NVTX ranges: names, domains, kinds, arguments, and what is torch's own."""

import os
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_builder import PID, TID, Text, category, domain, execute, global_tid, mark, nvtx, system, write
from nsys_nvtx_reading import argument, list_texts, listed, of_file

from tracekit.model.stages import is_collective_range
from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import trim_texts
from tracekit.model.trace import Source, Want
from tracekit.process.steps.stage_lookup import select_outer_stages
from tracekit.readers import nsys
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx

REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.fixture
def path(tmp_path):
    numbers = iter(range(10_000))
    return lambda: tmp_path / f"{next(numbers)}.sqlite"


@pytest.fixture
def read(path):
    """A function: the ranges of an export of these rows."""

    def load(rows, schema="3.11", args=None, **more):
        return of_file(write(path(), rows, schema=schema, **more), args)

    return load


@pytest.mark.parametrize("schema", ["2021", "2.9", "3.0", "3.7", "3.11", "3.25"])
def test_ranges_of_every_version_have_time_name_and_thread(read, schema):
    rows = [nvtx("inner", 20, 30), nvtx("outer", 10, 90, registered=True), mark("a mark", 15)]
    found = read(rows, schema)
    assert listed(nsys_nvtx.select_complete_ranges(found, PID)) == [
        (10, 80, "outer", "nvtx", "range", TID),
        (20, 10, "inner", "nvtx", "range", TID),
    ]
    assert nsys_nvtx.get_nvtx_count(found, "marks", PID) == 1
    assert nsys_nvtx.count_process_ranges(found) == {PID: 2}
    assert nsys_nvtx.note_nvtx_ranges(found, PID) == []


def test_a_file_without_nvtx_recorded_none(read):
    assert read([system("CpuCores", "2")]) is None
    empty = read([], tables=["NVTX_EVENTS"])
    assert listed(nsys_nvtx.select_complete_ranges(empty, None)) == []


def test_the_order_does_not_depend_on_that_of_the_rows(read):
    rows = [nvtx("b", 10, 30), nvtx("a", 10, 30), nvtx("long", 10, 40), nvtx("b", 5, 6, kind=60),
            nvtx("a", 10, 30, tid=7), nvtx("a", 10, 30, domain=2)]  # fmt: skip
    told = listed(nsys_nvtx.select_complete_ranges(read(rows), PID))
    assert told == listed(nsys_nvtx.select_complete_ranges(read(rows[::-1]), PID))
    assert [row[2] for row in told[:2]] == ["b", "long"]
    few = read([nvtx("first", 5, 6), nvtx("last", 20, 21), nvtx("middle", 10, 11)])
    assert list_texts(nsys_nvtx.select_complete_ranges(few, PID).name) == ["first", "middle", "last"]


def test_every_way_of_naming_is_read(read):
    odd = ["", "x" * 5000, "é中文 \U0001f642", "a\x1fb", "tab\tnew\nline", "'; DROP TABLE x; --", "0", "1seq"]
    inline = [nvtx(name, 10 * i, 10 * i + 5) for i, name in enumerate(odd)]
    kept = [nvtx(name, 10 * i, 10 * i + 5, registered=True) for i, name in enumerate(odd[2:])]
    nameless = ("NVTX_EVENTS", {"start": 1000, "end": 1001, "eventType": 59, "globalTid": global_tid()})
    assert list_texts(nsys_nvtx.select_complete_ranges(read([*inline, nameless]), PID).name) == [*odd, ""]
    assert list_texts(nsys_nvtx.select_complete_ranges(read(kept), PID).name) == odd[2:]
    both = list_texts(nsys_nvtx.select_complete_ranges(read([*inline, *kept]), PID).name)
    assert max(Counter(both).values()) == 2


def test_a_registered_name_counts_before_an_inline_one_and_a_lost_one_is_unknown(read, path):
    both = nvtx("inline", 1, 2, textId=Text("registered"))
    assert list_texts(nsys_nvtx.select_complete_ranges(read([both]), PID).name) == ["registered"]
    file = write(path(), [nvtx("gone", 1, 2, registered=True), nvtx("here", 3, 4, registered=True)])
    execute(file, "DELETE FROM StringIds WHERE value = 'gone'")
    found = of_file(file)
    assert list_texts(nsys_nvtx.select_complete_ranges(found, PID).name) == [None, "here"]
    assert nsys_nvtx.get_nvtx_count(found, "no-name", PID) == 1


def test_text_that_is_no_utf8_is_replaced(read, path):
    file = write(path(), [nvtx("x", 1, 2)])
    execute(file, "UPDATE NVTX_EVENTS SET text = CAST(x'61ff1f62' AS TEXT)")
    assert list_texts(nsys_nvtx.select_complete_ranges(of_file(file), PID).name) == ["a\ufffd\x1fb"]


@pytest.mark.parametrize("few_pairs", [nsys_nvtx.FEW_PAIRS, 0])
def test_a_domain_is_that_of_the_same_process(read, monkeypatch, few_pairs):
    monkeypatch.setattr(nsys_nvtx, "FEW_PAIRS", few_pairs)
    rows = [domain("trainer", 1), domain("rollout", 1, pid=7), nvtx("a", 1, 2, domain=1),
            nvtx("a", 1, 2, domain=1, pid=7), nvtx("b", 3, 4), nvtx("c", 5, 6, domain=9),
            nvtx("a", 1, 2, domain=1, pid=8)]  # fmt: skip
    found = read(rows)
    assert [row[2:4] for row in listed(nsys_nvtx.select_complete_ranges(found, PID))] == [
        ("a", "trainer"),
        ("b", "nvtx"),
        ("c", "nvtx"),
    ]
    assert list_texts(nsys_nvtx.select_complete_ranges(found, 7).cat) == ["rollout"]
    assert list_texts(nsys_nvtx.select_complete_ranges(found, 8).cat) == ["nvtx"]
    assert nsys_nvtx.count_process_ranges(found) == {PID: 3, 7: 1, 8: 1}
    assert len(nsys_nvtx.select_complete_ranges(found, None).ts_ns) == 5


def test_torchs_operators_lose_their_numbers_and_keep_them_as_arguments(read):
    rows = [
        nvtx("aten::mm, seq = 7, op_id = 41, sizes = [[2, 3], [3, 4], []]", 10, 20),
        nvtx("aten::empty, op_id = 42", 30, 40),
        nvtx("AddmmBackward0, seq = 7, op_id = 43, sizes = [[2, 3]], input_op_ids = [(41,0)]", 50, 60),
        nvtx("my_op, op_id = 44, seq = 8, sizes = [[4]]", 70, 80),
        nvtx("my scope, op_id = 45", 90, 95),
        nvtx("nccl:all_to_all, op_id = 46", 100, 110),
        nvtx("record_param_comms, op_id = 47", 120, 130),
        nvtx("aten::relu", 140, 150),
        nvtx("loss, seq = high", 160, 170),
    ]  # fmt: skip
    mine = nsys_nvtx.select_complete_ranges(read(rows), PID)
    assert [row[2:5] for row in listed(mine)] == [
        ("aten::mm", "cpu_op", "op"),
        ("aten::empty", "cpu_op", "op"),
        ("AddmmBackward0", "cpu_op", "op"),
        ("my_op", "cpu_op", "op"),
        ("my scope", "nvtx", "range"),
        ("nccl:all_to_all", "nvtx", "range"),
        ("record_param_comms", "cpu_op", "op"),
        ("aten::relu", "cpu_op", "op"),
        ("loss, seq = high", "nvtx", "range"),
    ]
    assert argument(mine, "Sequence number") == {"aten::mm": 7, "AddmmBackward0": 7, "my_op": 8}
    assert argument(mine, "op_id")["nccl:all_to_all"] == 46
    assert argument(mine, "Input Dims") == {
        "aten::mm": "[[2,3],[3,4],[]]", "AddmmBackward0": "[[2,3]]", "my_op": "[[4]]",
    }  # fmt: skip


def test_many_numbered_names_are_few_names(read):
    rows = [nvtx(f"aten::add, seq = {i}, op_id = {2 * i}", 10 * i, 10 * i + 5) for i in range(500)]
    found = read(rows)
    assert found.names == ["aten::add"]
    assert nsys_nvtx.select_complete_ranges(found, PID).args["op_id"].values.tolist() == list(range(0, 1000, 2))


def test_a_name_with_a_tail_in_a_domain_is_no_operator(read):
    rows = [domain("mine", 3), nvtx("aten::mm, seq = 7", 1, 2, domain=3)]
    assert listed(nsys_nvtx.select_complete_ranges(read(rows), PID))[0][2:5] == ("aten::mm", "mine", "range")


def test_a_domain_may_be_named_like_a_range_or_like_the_category_of_operators(read):
    alike = read([domain("a", 1), nvtx("a", 1, 2, domain=1)])
    assert listed(nsys_nvtx.select_complete_ranges(alike, PID)) == [(1, 1, "a", "a", "range", TID)]
    inline = read([nvtx("trainer", 0, None, kind=75, domain=1), nvtx("b", 1, 2, domain=1)])
    assert list_texts(nsys_nvtx.select_complete_ranges(inline, PID).cat) == ["trainer"]
    rows = [domain("cpu_op", 3), nvtx("mine", 1, 2, domain=3), nvtx("aten::mm, seq = 7", 3, 4)]
    found = nsys_nvtx.select_complete_ranges(read(rows), PID)
    assert [row[2:5] for row in listed(found)] == [("mine", "cpu_op", "range"), ("aten::mm", "cpu_op", "op")]


def test_of_ranges_that_begin_together_the_longest_is_first_then_thread_name_and_domain(read, path):
    rows = [nvtx("b", 10, 30), nvtx("a", 10, 30), nvtx("gone", 10, 30, registered=True), nvtx("z", 10, 30, tid=7),
            nvtx("long", 10, 40), nvtx("before", 5, 90)]  # fmt: skip
    file = write(path(), rows)
    execute(file, "DELETE FROM StringIds WHERE value = 'gone'")
    mine = nsys_nvtx.select_complete_ranges(of_file(file), PID)
    names = list_texts(mine.name)
    assert names == ["before", "long", "z", None, "a", "b"]
    assert {HOST_OP_KINDS[code] for code in mine.kind.tolist()} == {"range"}


def test_ranges_of_one_process_can_be_dropped(read):
    rows = [nvtx("aten::mm, seq = 7", 1, 2), nvtx("aten::mm, seq = 8", 3, 4, pid=7), nvtx("c", 5, 9, pid=7)]
    rest = nsys_nvtx.drop_process_ranges(read(rows), PID)
    assert nsys_nvtx.count_process_ranges(rest) == {7: 2}
    other = nsys_nvtx.select_complete_ranges(rest, 7)
    assert [row[:3] for row in listed(other)] == [(3, 1, "aten::mm"), (5, 4, "c")]
    assert argument(other, "Sequence number") == {"aten::mm": 8}
    assert nsys_nvtx.count_process_ranges(nsys_nvtx.drop_process_ranges(rest, None)) == {}


def test_payloads_of_every_kind_and_categories_are_arguments(read):
    kinds = {"uint64Value": 2**40, "int64Value": -2, "uint32Value": 4, "int32Value": -5, "doubleValue": 1.5,
             "floatValue": 0.25}  # fmt: skip
    rows = [nvtx(name, 10 * i, 10 * i + 5, **{name: v}) for i, (name, v) in enumerate(kinds.items())]
    rows += [nvtx("none", 500, 510), category("rollout", 3, domain=2),
             nvtx("in category", 600, 610, category=3, domain=2), nvtx("other", 620, 630, category=3)]  # fmt: skip
    mine = nsys_nvtx.select_complete_ranges(read(rows), PID)
    assert argument(mine, "payload") == kinds
    assert argument(mine, "category") == {"in category": "rollout"}
    whole = nsys_nvtx.select_complete_ranges(read([nvtx("a", 1, 2, int64Value=3)]), PID)
    assert whole.args["payload"].values.dtype == np.int64


def test_only_wanted_arguments_are_read(read):
    rows = [nvtx("aten::mm, seq = 7, op_id = 41", 10, 20, int64Value=1)]
    assert dict(nsys_nvtx.select_complete_ranges(read(rows, args=()), PID).args) == {}
    assert [*nsys_nvtx.select_complete_ranges(read(rows, args=("op_id", "Seq")), PID).args] == ["op_id"]


def test_a_range_that_ends_on_another_thread_is_one_of_the_thread_that_began_it(read):
    rows = [nvtx("moved", 1, 9, kind=60, tid=5, endGlobalTid=global_tid(tid=6)),
            nvtx("stayed", 2, 3, kind=60, tid=5, endGlobalTid=global_tid(tid=5))]  # fmt: skip
    mine = nsys_nvtx.select_complete_ranges(read(rows), PID)
    assert mine.tid.tolist() == [5, 5]
    assert argument(mine, "end tid") == {"moved": 6}


def test_names_that_threads_were_given_are_found(read):
    rows = [nvtx("old", 1, None, kind=39, tid=5), nvtx("loader", 9, None, kind=39, tid=5), nvtx("a", 1, 2)]
    assert read(rows).thread_names == {global_tid(tid=5): "loader"}
    assert read(rows[1:2]).thread_names == {global_tid(tid=5): "loader"}
    assert read([nvtx("", 9, None, kind=39, tid=5), nvtx("lost", 9, None, kind=39, globalTid=None)]).thread_names == {}


def test_rows_without_a_thread_belong_to_no_process(read):
    found = read([nvtx("a", 1, 2, globalTid=None), nvtx("b", 3, 4, globalTid=-5)])
    assert nsys_nvtx.count_process_ranges(found) == {-1: 2}
    assert nsys_nvtx.select_complete_ranges(found, None).tid.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "column", ["start", "end", "eventType", "text", "textId", "globalTid", "domainId", "category", "int64Value"]
)
@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "1e300", "NULL", "9223372036854775807", "-9223372036854775808"])
def test_a_value_of_any_type_anywhere_is_read_or_left_out(path, column, value):
    file = write(path(), [nvtx("aten::mm, seq = 1, sizes = [[1]]", 1, 2, category=1), nvtx("b", 3, 4), domain("d", 1),
                          category("c", 1)])  # fmt: skip
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE other AS SELECT * FROM NVTX_EVENTS")
    connection.execute(f'UPDATE other SET "{column}" = {value} WHERE rowid = 1')
    connection.execute("DROP TABLE NVTX_EVENTS")
    connection.execute("ALTER TABLE other RENAME TO NVTX_EVENTS")
    connection.commit()
    connection.close()
    found = of_file(file)
    assert "b" in list_texts(nsys_nvtx.select_complete_ranges(found, None).name)
    assert nsys_nvtx.note_nvtx_ranges(found, None) is not None


@pytest.mark.parametrize("text", ["[[1, 2", "[" * 5000, "[[1]] tail", "[" + "[1]," * 9000 + "[1]]", "[]"])
def test_shapes_that_are_no_list_are_left_out(read, text):
    mine = nsys_nvtx.select_complete_ranges(read([nvtx(f"aten::mm, seq = 1, sizes = {text}", 1, 2)]), PID)
    assert list_texts(mine.name) == ["aten::mm"]
    found = argument(mine, "Input Dims") if "Input Dims" in mine.args else {}
    assert found == {"[[1]] tail": {"aten::mm": "[[1]]"}, "[]": {"aten::mm": "[]"}}.get(text, {})


def test_calls_of_nccl_are_no_stages_and_ranges_around_them_are(path):
    rows = [nvtx("update_actor", 0, 900, registered=True), nvtx("ncclGroupStart", 10, 20), nvtx("pncclAllReduce", 30, 40),
            nvtx("ncclGroupEnd", 50, 60)]  # fmt: skip
    (trace,) = nsys.read(Source(write(path(), rows), "x", "nsys", "nsys"), Want())
    names = trace["host_ops"]["name"].tolist()
    assert [is_collective_range(name) for name in names] == [False, True, True, True]
    assert trim_texts(select_outer_stages(trace).stage).texts == ("update_actor",)


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(NAMES, st.integers(-50, 50), st.integers(0, 90), st.booleans(),
                               st.sampled_from([PID, 7]), st.sampled_from([59, 60, 70, 71, 34])), max_size=12))  # fmt: skip
def test_every_range_comes_back_once_as_it_was_recorded(path, rows):
    made = [nvtx(name, start, None if kind == 34 else start + dur, kind=kind, pid=pid, registered=registered)
            for name, start, dur, registered, pid, kind in rows]  # fmt: skip
    found = of_file(write(path(), made, tables=["NVTX_EVENTS"]), args=())
    for pid in (PID, 7):
        told = sorted(row[:3] for row in listed(nsys_nvtx.select_complete_ranges(found, pid)))
        assert told == sorted((s, d, n) for n, s, d, _, p, kind in rows if p == pid and kind != 34)


@pytest.mark.skipif(REAL is None, reason="no real data")
@pytest.mark.parametrize("year", ["22", "23", "24"])
def test_ranges_of_real_captures_are_named_and_kept_apart(year):
    steps = of_file(Path(REAL) / f"nsys/real_cpu/steps_nsys{year}.sqlite")
    (pid,) = nsys_nvtx.count_process_ranges(steps)
    mine = nsys_nvtx.select_complete_ranges(steps, pid)
    assert len(mine.ts_ns) == 41
    assert [name for name in list_texts(mine.name) if name.startswith("step")] == ["step 0", "step 1", "step 2"]
    assert set(list_texts(mine.cat)) == {"nvtx", "data", "trainer"}
    assert list_texts(nsys_nvtx.select_open_ranges(steps, pid).name) == ["left_open"]
    spawn = of_file(Path(REAL) / f"nsys/real_cpu/spawn_nsys{year}.sqlite")
    assert sorted(nsys_nvtx.count_process_ranges(spawn).values()) == [24, 24, 29]
    torchlike = of_file(Path(REAL) / f"nsys/real_cpu/torchlike_nsys{year}.sqlite")
    (pid,) = nsys_nvtx.count_process_ranges(torchlike)
    mine = nsys_nvtx.select_complete_ranges(torchlike, pid)
    assert argument(mine, "payload") | {"mb3": 3.75} == argument(mine, "payload")
    assert argument(mine, "Input Dims").keys() == {"compute_log_prob"}
    assert max(map(len, list_texts(mine.name))) == 5000
    assert [*torchlike.thread_names.values()] == ["main trainer thread"]


@pytest.mark.skipif(REAL is None, reason="no real data")
def test_real_operators_of_two_processes_are_counted_as_recorded():
    found = of_file(Path(REAL) / "nsys/GindaChen_nsys-ai/mfu_2gpu_before.sqlite")
    assert nsys_nvtx.count_process_ranges(found) == {144: 9443, 145: 9675}
    assert len(found.names) < 100
    mine = [nsys_nvtx.select_complete_ranges(found, pid) for pid in (144, 145)]
    ops = HOST_OP_KINDS.index("op")
    # 462 calls of NCCL, 66 ranges `nccl:all_to_all` and 68 of FSDP are no operators, though most have a tail.
    assert sum(int((rows.kind != ops).sum()) for rows in mine) == 462 + 66 + 68
    assert sum(list_texts(rows.name).count("aten::copy_") for rows in mine) == 2840
    assert sum(len(rows.args["op_id"].rows) for rows in mine) == 19118 - 462
    left = nsys_nvtx.drop_process_ranges(found, 144)
    assert nsys_nvtx.count_process_ranges(left) == {145: 9675}
    assert left.counts == found.counts
    assert not len(nsys_nvtx.drop_process_ranges(left, None).ts_ns)
    again = nsys_nvtx.select_complete_ranges(left, 145)
    assert list_texts(again.name) == list_texts(mine[1].name)
    for column in ("ts_ns", "dur_ns", "kind", "tid"):
        np.testing.assert_array_equal(getattr(again, column), getattr(mine[1], column))
    for key, recorded in mine[1].args.items():
        np.testing.assert_array_equal(again.args[key].rows, recorded.rows)
        np.testing.assert_array_equal(again.args[key].values, recorded.values)


def test_a_range_may_have_the_name_of_an_operator(tmp_path):
    rows = [nvtx("scope, seq = 5", 0, 10), nvtx("scope", 20, 30)]
    path = write(tmp_path / "x.sqlite", rows, duration_ns=100_000)
    (trace,) = nsys.read(Source(path, "x", "nsys", "nsys"), Want())
    host = trace["host_ops"]
    assert host["name"].tolist() == ["scope", "scope"]
    assert host["kind"].tolist() == ["op", "range"]
