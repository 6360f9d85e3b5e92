"""The nouns that flow: a trace and its tables, measured frames with their keys, measurements."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from columns import columns_of

from tracekit.model.errors import SchemaError, TracekitError
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.trace import Measurements, Note, Source, Trace, Want, add_key_columns
from tracekit.readers.chrome.scan import Sparse

SOURCE = Source(Path("/nowhere/rank3.json"), "rank3.json", "chrome", run="r", rank=3, pid=7)


def host_ops(count=2):
    return TABLES["host_ops"].frame(
        {
            "id": np.arange(count, dtype=np.int32), "ts_ns": np.arange(count) * 10,
            "dur_ns": np.full(count, 5), "kind": ["op"] * count,
            "thread": np.zeros(count, np.int32), "name": [f"op{i}" for i in range(count)],
        }
    )  # fmt: skip


@pytest.fixture
def trace():
    return Trace(SOURCE, {"host_ops": host_ops(), "windows": TABLES["windows"].frame()})


def test_recorded_tables_are_had_by_name(trace):
    assert trace["host_ops"]["name"].tolist() == ["op0", "op1"]
    assert len(trace["windows"]) == 0
    assert trace.has("host_ops", "windows")
    assert trace.has()
    assert not trace.has("host_ops", "device_ops")


def test_a_table_that_was_not_recorded_is_an_error_that_names_those_there_are(trace):
    with pytest.raises(TracekitError, match=r"rank3\.json: no table 'device_ops' was recorded") as e:
        trace["device_ops"]
    assert e.value.hint == "there are: host_ops, windows"


def test_a_trace_of_nothing_says_so():
    with pytest.raises(TracekitError) as caught:
        Trace(SOURCE, {})["host_ops"]
    assert caught.value.hint == "there are: none"


def test_get_gives_the_empty_table_where_nothing_was_recorded(trace):
    missing = trace.get_or_empty("device_ops")
    TABLES["device_ops"].check(missing)
    assert len(missing) == 0
    assert trace.get_or_empty("host_ops") is trace["host_ops"]


def test_the_bare_arrays_of_columns_are_made_once(trace):
    assert trace.numbers("host_ops", "ts_ns").tolist() == [0, 10]
    assert trace.texts("host_ops", "name").texts == ("op0", "op1")
    assert trace.texts("host_ops", "kind").codes.tolist() == [0, 0]
    assert trace.nullable("host_ops", "external_id").missing.tolist() == [True, True]
    assert trace.array("host_ops", "ts_ns") is trace.array("host_ops", "ts_ns")
    assert len(trace.numbers("device_ops", "ts_ns")) == 0
    assert trace.texts("device_ops", "name").texts == ()


@pytest.mark.parametrize(("ask", "column"), [("numbers", "name"), ("texts", "ts_ns"), ("nullable", "ts_ns")])
def test_a_column_of_another_kind_than_asked_for_is_an_error_of_ours(trace, ask, column):
    with pytest.raises(AssertionError, match=f"host_ops.{column}"):
        getattr(trace, ask)("host_ops", column)


@pytest.mark.parametrize("ask", [lambda t: t["nonsense"], lambda t: t.arg("k", "nonsense")])
def test_a_table_that_does_not_exist_is_an_error_of_ours(trace, ask):
    with pytest.raises(TracekitError):
        ask(trace)


def test_a_frame_that_breaks_its_schema_makes_no_trace():
    with pytest.raises(SchemaError, match="host_ops"):
        Trace(SOURCE, {"host_ops": host_ops().drop(columns="name")})
    with pytest.raises(SchemaError, match="windows"):
        Measurements({"windows": columns_of(host_ops())}, (SOURCE,))


def test_nothing_of_a_trace_can_be_replaced(trace):
    with pytest.raises(TypeError):
        trace.tables["host_ops"] = host_ops(1)
    with pytest.raises(FrozenInstanceError):
        trace.notes = ()
    with pytest.raises(FrozenInstanceError):
        trace.source.rank = 1


def test_the_mapping_given_may_change_later_without_changing_the_trace():
    tables = {"host_ops": host_ops()}
    trace = Trace(SOURCE, tables)
    tables.clear()
    assert trace.has("host_ops")


def test_what_is_derived_is_computed_once_for_each_trace(trace):
    calls = []

    def count(of):
        calls.append(of)
        return len(of["host_ops"])

    assert [trace.derived(count) for _ in range(3)] == [2, 2, 2]
    assert calls == [trace]
    other = Trace(SOURCE, {"host_ops": host_ops(5)})
    assert other.derived(count) == 5


def test_what_is_forgotten_is_computed_anew_when_it_is_asked_for(trace):
    calls = []
    trace.forget(calls.append)
    for _ in range(2):
        trace.derived(calls.append)
        trace.derived(calls.append)
        trace.forget(calls.append)
    assert calls == [trace, trace]


def test_a_derivation_that_fails_is_tried_again(trace):
    def fails(of):
        raise ValueError(of.source.name)

    for _ in range(2):
        with pytest.raises(ValueError, match="rank3"):
            trace.derived(fails)


def test_what_derives_to_nothing_is_remembered_as_well(trace):
    calls = []
    assert [trace.derived(calls.append) for _ in range(2)] == [None, None]
    assert len(calls) == 1


def test_arguments_belong_to_elements_and_line_up_with_rows():
    sparse = {"k": Sparse(np.array([1, 4], np.int32), np.array([10, 40])),
              "t": Sparse(np.array([0], np.int32), np.array([0], np.int32), ["text"])}  # fmt: skip
    trace = Trace(SOURCE, {"host_ops": host_ops(3)}, sparse=sparse)
    assert trace.arg("k", "host_ops").fillna(-1).tolist() == [-1, 10, -1]
    assert trace.arg("k").to_dict() == {1: 10, 4: 40}
    assert trace.arg("t", "host_ops").tolist() == ["text", None, None]
    assert trace.arg("t").dtype == object


def test_an_unread_argument_is_an_error_that_names_those_read(trace):
    with pytest.raises(TracekitError, match="no argument 'k' was read") as caught:
        trace.arg("k")
    assert caught.value.hint == "there are: none"


@pytest.mark.parametrize(
    ("want", "yes", "no"),
    [
        (Want(), ("host_ops", "counters"), ("flows",)),
        (Want(frozenset({"flows"})), ("flows",), ("host_ops",)),
        (Want(frozenset()), (), ("host_ops", "flows")),
    ],
)
def test_all_that_is_cheap_is_wanted_unless_tables_are_named(want, yes, no):
    assert all(want.table(name) for name in yes)
    assert not any(want.table(name) for name in no)


def test_a_note_on_a_source_leaves_the_source_as_it_was():
    noted = SOURCE.with_note("warning", "conflict", "two ranks")
    assert noted.notes == (Note("warning", "conflict", "two ranks", "rank3.json"),)
    assert SOURCE.notes == ()


def quality(**columns):
    columns = {"name": ["a", "b"], "count": [1, None], **columns}
    return add_key_columns(TABLES["quality"], columns, SOURCE).frame()


def test_measured_rows_begin_with_whose_they_are():
    frame = quality()
    TABLES["quality"].check(frame)
    assert list(frame)[: len(KEYS)] == list(KEYS)
    assert frame["rank"].tolist() == [3, 3]
    assert frame["pid"].tolist() == [7, 7]
    assert frame["run"].tolist() == ["r", "r"]
    assert frame["source"].tolist() == ["rank3.json", "rank3.json"]
    assert frame["tool"].tolist() == ["torch", "torch"]


def test_what_is_unknown_of_a_source_is_missing_never_zero():
    frame = quality()
    for name in ("role", "host", "replica", "scope", "part"):
        assert frame[name].isna().all(), name
    source = Source(Path("x"), "x", "chrome", rank=0)
    assert add_key_columns(TABLES["quality"], {"name": ["a"]}, source).frame()["rank"].tolist() == [0]


def test_no_columns_and_no_rows_give_the_empty_table():
    for columns in ({}, {"name": [], "count": []}):
        frame = add_key_columns(TABLES["quality"], columns, SOURCE).frame()
        TABLES["quality"].check(frame)
        assert len(frame) == 0


def test_unknown_measured_columns_are_refused():
    with pytest.raises(SchemaError, match="unknown"):
        quality(more=[1, 2])


def test_measurements_give_empty_tables_for_what_no_source_filled():
    measured = Measurements({"quality": columns_of(quality())}, (SOURCE,))
    assert measured.has("quality")
    assert not measured.has("quality", "captures")
    assert len(measured["captures"]) == 0
    assert list(measured["captures"]) == list(TABLES["captures"].columns)
    assert measured["quality"]["count"].isna().tolist() == [False, True]
    with pytest.raises(TypeError):
        measured.arrays["quality"] = columns_of(quality())
