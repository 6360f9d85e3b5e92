"""Recorded arguments by key: exact numbers, texts, gaps, and only those that were asked for."""

import json

import pandas as pd
import pytest
from chrome_builder import kernel, launch, memcpy, op, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.model.errors import TracekitError


@pytest.fixture(autouse=True, params=["native", "pure"])
def scanner(request, monkeypatch):
    monkeypatch.setenv("TRACEKIT_PURE", str(int(request.param == "pure")))


@pytest.fixture
def load(tmp_path):
    return lambda rows, **wants: tracekit.load(write(tmp_path / "t.json", rows), **wants)


def ops(key, *values):
    return [op(f"op{i}", i, 1, **{key: value}) for i, value in enumerate(values)]


def test_whole_numbers_are_integers_and_gaps_are_missing(load):
    found = load([*ops("Seq", 3, -7), op("bare", 9, 1)]).arg("Seq", "host_ops")
    assert found.dtype == "Int64"
    assert found.fillna(0).tolist() == [3, -7, 0]
    assert found.isna().tolist() == [False, False, True]


def test_integers_of_64_bits_without_a_sign_are_exact(load):
    """NCCL's communicator ids: a float would change the last digits."""
    big = 18_446_744_073_709_551_557
    found = load(ops("Comms Id", big, 5)).arg("Comms Id", "host_ops")
    assert found.dtype == "UInt64"
    assert found.tolist() == [big, 5]


def test_numbers_with_a_point_are_floats(load):
    found = load([*ops("occupancy", 0.25, -1e-300), op("bare", 9, 1)]).arg("occupancy", "host_ops")
    assert found.dtype == "Float64"
    assert found.tolist()[:2] == [0.25, -1e-300]
    assert found.isna().tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["NCCL_ALGO", ""], ["NCCL_ALGO", ""]),
        ([[1, [2, 3]], {"a": None}], ["[1,[2,3]]", '{"a":null}']),
        ([True, False], [True, False]),
        (["1", 1], ["1", 1]),
        ([1, 2.5], [1, 2.5]),
        ([2**64 - 1, -1], [2**64 - 1, -1]),
        ([2**64, 1], [str(2**64), 1]),
    ],
    ids=["text", "JSON", "truth", "text and number", "mixed numbers", "mixed signs", "too large"],
)
def test_all_else_is_text_or_the_value_itself(load, values, read):
    found = load([*ops("key", *values), op("bare", 9, 1)]).arg("key", "host_ops")
    assert found.dtype == object
    assert found.tolist()[:-1] == read
    assert [type(value) is bool for value in found[:-1]] == [type(v) is bool for v in read]
    assert pd.isna(found.iloc[-1])


def test_json_text_parses_to_what_was_recorded(load):
    dims = [[128, 768], [], [[1], [2]]]
    found = load(ops("Input Dims", dims)).arg("Input Dims", "host_ops")
    assert json.loads(found.iloc[0]) == dims


def test_an_argument_may_be_had_for_each_table_or_by_element(load):
    rows = [launch(0, 5), memcpy("Memcpy HtoD", 3, 2, 64, 5), kernel("k", 6, 1), launch(9, 6)]
    trace = load(rows)
    assert trace.arg("correlation", "host_ops").tolist() == [5, 6]
    assert trace.arg("correlation", "device_ops").fillna(-1).tolist() == [5, -1]
    whole = trace.arg("correlation")
    assert whole.index.name == "id"
    assert whole.to_dict() == {0: 5, 1: 5, 3: 6}
    assert trace.arg("bytes").to_dict() == {1: 64}


def test_an_argument_lines_up_with_a_part_of_its_table(load):
    trace = load(ops("Seq", 10, 11, 12))
    chosen = trace["host_ops"].iloc[[2, 0]]
    assert trace.arg("Seq", "host_ops")[chosen.index].tolist() == [12, 10]
    assert trace.arg("Seq")[chosen["id"]].tolist() == [12, 10]


def test_an_argument_of_no_row_of_a_table_is_missing_in_all_of_them(load):
    trace = load([kernel("k", 0, 1, grid=[1, 1, 1]), op("a", 0, 1)])
    assert trace.arg("grid", "host_ops").isna().tolist() == [True]
    assert trace.arg("grid", "device_ops").tolist() == ["[1,1,1]"]


def test_an_unknown_argument_names_those_there_are(load):
    with pytest.raises(TracekitError, match="no argument 'nope' was read") as caught:
        load(ops("Seq", 1)).arg("nope", "host_ops")
    assert caught.value.hint == "there are: Seq"


def test_a_table_that_is_not_there_is_an_error_for_its_arguments(load):
    with pytest.raises(TracekitError, match="no table 'device_ops'"):
        load(ops("Seq", 1)).arg("Seq", "device_ops")


def test_only_the_arguments_asked_for_are_kept_beside_those_of_the_tables(load):
    rows = [kernel("k", 0, 1, 5, grid=[1, 1, 1], queued=0), op("a", 0, 1, **{"External id": 2})]
    assert set(load(rows, args=("grid",)).sparse) == {
        "correlation", "device", "stream", "External id", "grid",
    }  # fmt: skip
    few = load(rows, args=())
    assert "grid" not in few.sparse
    assert few["device_ops"]["correlation"].tolist() == [5]


def test_a_repeated_key_has_its_last_value(load, tmp_path):
    path = tmp_path / "twice.json"
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"args":{"k":1,"k":"two"}}'
    path.write_text(f'{{"traceEvents":[{event}]}}')
    assert tracekit.load(path).arg("k", "host_ops").tolist() == ["two"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (64, 64), ("64", 64), ("-8", -8), (64.0, 64), (2**63 - 1, 2**63 - 1), (str(2**63 - 1), 2**63 - 1),
        (2**63, None), ("2^6", None), ("", None), (None, None), (1.5, None), (True, None), ([64], None),
        ("٦٤", None), (-(2**63), -(2**63)), (float("inf"), None), (float("nan"), None), ("9" * 30, None),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_the_bytes_of_a_copy_are_a_number_however_they_are_written(load, written, read):
    """Also beside a plain one, which leaves the column mixed."""
    rows = [memcpy("Memcpy HtoD", 0, 1, written)]
    assert load(rows)["device_ops"]["size_bytes"].isna().tolist() == [read is None]
    sizes = load([*rows, memcpy("Memcpy HtoD", 2, 1, 7)])["device_ops"]["size_bytes"]
    assert [None if pd.isna(size) else size for size in sizes] == [read, 7]


scalars = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), scalars), min_size=1, max_size=8))
def test_any_recorded_value_comes_back_as_it_was(tmp_path, values):
    rows = [op("a", i, 1, **({} if v is None else {"key": v})) for i, v in enumerate(values)]
    rows.append(op("last", 99, 1, key="text"))
    found = tracekit.load(write(tmp_path / "any.json", rows)).arg("key", "host_ops")
    assert [None if pd.isna(v) else v for v in found[:-1]] == values
