"""The tables as data: what a frame must be, what it may lack, and what is refused."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses import list_measured_tables
from tracekit.model.errors import SchemaError, TracekitError
from tracekit.model.tables import (
    DEVICE_OP_KINDS,
    HOST_OP_KINDS,
    KEYS,
    RAW,
    TABLES,
    Column,
    Table,
    arrays,
    concatenate_table_parts,
)
from tracekit.model.tables.arrays import MAX_CACHED_TEXTS

TEXTS = pd.Index([], dtype="str").dtype
"""How this pandas keeps texts: as objects before version 3."""

SMALL = Table(
    "small",
    "one test row",
    {
        "id": Column("int32", "A number."),
        "ts_ns": Column("int64", "A time."),
        "size_bytes": Column("Int64", "A number that may be missing."),
        "value": Column("Float64", "Another."),
        "flag": Column("bool", "Yes or no."),
        "kind": Column("category", "Closed.", ("a", "b")),
        "name": Column("category", "Open."),
    },
)
ROWS = {"id": [1, 2], "ts_ns": [10, 20], "flag": [True, False], "kind": ["b", "a"]}


def types(frame):
    return {name: str(dtype) for name, dtype in frame.dtypes.items()}


def test_a_frame_has_the_declared_types_in_the_declared_order():
    frame = SMALL.frame({**ROWS, "name": ["x", None], "value": [1, None], "size_bytes": [None, 2]})
    assert types(frame) == {n: c.dtype for n, c in SMALL.columns.items()}
    assert list(frame) == list(SMALL.columns)
    SMALL.check(frame)


def test_what_may_be_missing_is_missing_in_every_row_if_it_is_not_given():
    frame = SMALL.frame(ROWS)
    assert frame[["size_bytes", "value", "name"]].isna().all().all()
    assert frame["kind"].tolist() == ["b", "a"]
    SMALL.check(frame)


def test_no_data_gives_the_empty_table():
    for empty in (SMALL.frame(), SMALL.frame({}), SMALL.frame({n: [] for n in SMALL.columns})):
        assert len(empty) == 0
        SMALL.check(empty)


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_every_table_has_an_empty_frame_that_is_its_own(table):
    frame = table.frame()
    table.check(frame)
    table.check(concatenate_table_parts(table, [table.cast(), table.cast()]).frame())
    for name, column in table.columns.items():
        if column.dtype == "category":
            assert frame[name].cat.categories.dtype == TEXTS
            assert tuple(frame[name].cat.categories) == column.values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": ["a", "c"]}, r"small: \['c'\] not in \('a', 'b'\)"),
        ({"kind": ["a", None]}, "not in"),
        ({"ts_ns": [1, None]}, "small: "),
        ({"ts_ns": [1.5, 2]}, "small: "),
        ({"ts_ns": ["later", 2]}, "small: "),
        ({"id": [1, 2**40]}, "small: "),
        ({"size_bytes": [2**70, 1]}, "small: "),
        ({"size_bytes": [1.5, 1]}, "small: "),
        ({"flag": ["maybe", True]}, "small: "),
        ({"value": ["x", 1]}, "small: "),
        ({"ts_ns": [1, 2, 3]}, "small"),
    ],
)
def test_values_that_do_not_fit_are_refused(change, said):
    with pytest.raises(SchemaError, match=said):
        SMALL.frame({**ROWS, **change})


@pytest.mark.parametrize(
    ("change", "said"), [({"more": [1, 2]}, r"unknown \['more'\]"), ({"kind": None}, r"missing \['kind'\]")]
)
def test_missing_and_unknown_columns_are_named(change, said):
    data = {name: values for name, values in {**ROWS, **change}.items() if values is not None}
    with pytest.raises(SchemaError, match=said):
        SMALL.frame(data)


def test_a_schema_error_is_a_tracekit_error_of_one_line():
    with pytest.raises(TracekitError) as caught:
        SMALL.frame({"id": [1]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f.drop(columns="name"), lambda f: f.assign(more=1), lambda f: f[list(f)[::-1]],
        lambda f: f.assign(ts_ns=f["ts_ns"].astype("float64")),
        lambda f: f.assign(name=f["name"].astype("str")), lambda f: f.assign(id=f["id"].astype("int64")),
        lambda f: f.rename(columns={"id": "Id"}),
    ],
    ids=["dropped", "added", "order", "float time", "text", "wider", "renamed"],
)  # fmt: skip
def test_a_frame_that_differs_is_not_the_table(spoil):
    with pytest.raises(SchemaError, match=r"small: columns differ"):
        SMALL.check(spoil(SMALL.frame(ROWS)))


def test_open_categories_are_text_whatever_they_were():
    frame = SMALL.frame({**ROWS, "name": [7, 1.5]})
    assert frame["name"].tolist() == ["7.0", "1.5"]
    assert frame["name"].cat.categories.dtype == TEXTS


def test_arrays_of_the_right_type_are_not_copied():
    many = 9_000
    ts = np.arange(2 * many)
    frame = SMALL.frame({name: values * many for name, values in ROWS.items()} | {"ts_ns": ts})
    assert np.shares_memory(frame["ts_ns"].to_numpy(), ts)
    assert types(frame) == types(SMALL.frame(ROWS))
    assert frame["kind"].tolist() == ["b", "a"] * many


@pytest.mark.parametrize("count", [MAX_CACHED_TEXTS, MAX_CACHED_TEXTS + 1, 20_000])
def test_open_categories_are_sorted_however_many_there_are(count):
    texts = [f"{at * 7919 % count:05}" for at in range(count)]
    assert len({*texts}) == count
    rows = {name: values[:1] * (count + 1) for name, values in ROWS.items()}
    made = SMALL.frame({**rows, "name": [*texts, None]})["name"]
    assert made.cat.categories.tolist() == sorted(texts)
    assert made[:-1].tolist() == texts
    assert made.isna().sum() == 1


def test_joining_unites_categories_and_keeps_the_order_of_rows():
    one = SMALL.cast({**ROWS, "name": ["x", None]})
    other = SMALL.cast({**ROWS, "id": [3, 4], "name": ["y", "x"]})
    both = concatenate_table_parts(SMALL, [one, other]).frame()
    SMALL.check(both)
    assert both["id"].tolist() == [1, 2, 3, 4]
    assert [None if pd.isna(n) else n for n in both["name"]] == ["x", None, "y", "x"]
    assert tuple(both["kind"].cat.categories) == ("a", "b")
    assert both.index.tolist() == [0, 1, 2, 3]


def test_joining_nothing_is_the_empty_table_and_joining_one_is_that_one():
    one = SMALL.cast(ROWS)
    assert concatenate_table_parts(SMALL, [one]) is one
    assert len(concatenate_table_parts(SMALL, [])) == 0


def test_joining_does_not_change_what_is_joined():
    one, other = (SMALL.cast({**ROWS, "name": ["x", "z"]}), SMALL.cast({**ROWS, "name": ["y", "x"]}))
    before = one.frame().copy(deep=True)
    concatenate_table_parts(SMALL, [one, other])
    assert one.frame().equals(before)
    assert one["name"].texts == ("x", "z")


cells = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "Int64": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    "Float64": st.one_of(st.none(), st.floats(allow_nan=False)),
    "bool": st.booleans(),
    "category": st.one_of(st.none(), st.text(st.characters(exclude_categories=("Cs",)), max_size=5)),
}  # fmt: skip


@st.composite
def frames(draw):
    count = draw(st.integers(0, 6))
    data = {}
    for name, column in SMALL.columns.items():
        of = st.sampled_from(column.values) if column.values else cells[column.dtype]
        values = draw(st.lists(of, min_size=count, max_size=count))
        data[name] = pd.array(values, "Int64") if column.dtype == "Int64" else values
    return data, count


@settings(max_examples=60, deadline=None)
@given(frames(), frames())
def test_what_goes_in_comes_out_also_after_joining(one, other):
    (first, _), (second, _) = one, other
    joined = concatenate_table_parts(SMALL, [SMALL.cast(first), SMALL.cast(second)]).frame()
    SMALL.check(joined)
    for name in SMALL.columns:
        expected = [*first[name], *second[name]]
        found = joined[name].tolist()
        assert [None if pd.isna(v) else v for v in found] == [None if pd.isna(v) else v for v in expected]


UNTIMED = {
    "allocations", "annotations", "out_of_memory", "memory_categories",
    "log_values", "logged", "engine_log", "engine_samples", "engine_requests", "request_times",
    "ray_calls",
}  # fmt: skip
"""Tables whose rows may lack a time."""


def test_names_are_plural_tables_of_singular_columns_with_units():
    name = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
    for table in TABLES.values():
        assert name.match(table.name)
        assert len(table.row) > 3
        for column_name, column in table.columns.items():
            assert name.match(column_name), (table.name, column_name)
            assert len(column.doc) > 3, (table.name, column_name)
            if column_name.endswith(("_ns", "_bytes")) and "mean" not in column_name:
                assert column.dtype in ("int64", "Int64", "Float64")
            if column_name.startswith("ts_"):
                assert column.dtype == ("Int64" if table.name in UNTIMED else "int64"), table.name


def test_no_table_is_declared_twice_and_measured_rows_begin_with_their_keys():
    assert len(TABLES) == len(RAW) + len(list_measured_tables())
    for table in list_measured_tables():
        assert list(table.columns)[: len(KEYS)] == list(KEYS)


def test_closed_sets_are_those_of_the_contract():
    assert DEVICE_OP_KINDS == ("kernel", "memcpy", "memset", "collective")
    assert set(HOST_OP_KINDS) >= {"op", "runtime", "range", "python"}
    assert TABLES["host_ops"].columns["kind"].values == HOST_OP_KINDS
    assert not TABLES["host_ops"].columns["kind"].nullable
    assert TABLES["host_ops"].columns["name"].nullable


@pytest.mark.parametrize("length", [0, 3, arrays.MAX_COPIED_ROWS + 1])
def test_a_frame_of_arrays_is_what_pandas_makes_of_them(length):
    numbers = np.arange(length)
    given = {
        "ts": numbers,
        "dur": numbers * 3,
        "share": numbers / 2,
        "is_gpu": numbers > 1,
        "stage": np.resize(np.array(["gen", np.nan, "ref"], object), length),
        "name": np.resize(np.array(["mm", "add"], object), length),
        "role": pd.array(["actor"] * length, dtype="category"),
        "pid": pd.array(np.resize(np.array([None, 7], object), length), dtype="Int64"),
        "rank": pd.Series(numbers).array,
    }
    made = arrays.make_frame(given, length)
    assert made.dtypes.astype(str).tolist() == [
        "int64", "int64", "float64", "bool", "object", "object", "category", "Int64", "int64",
    ]  # fmt: skip
    assert {name: made[name].tolist() for name in ("dur", "name")} == {
        name: given[name].tolist() for name in ("dur", "name")
    }
    if length <= arrays.MAX_COPIED_ROWS:  # of more rows they are shared
        made.loc[:, "dur"] = 7
    assert given["dur"].tolist() == [3 * number for number in range(length)]


def test_a_frame_is_not_made_of_arrays_of_other_lengths():
    for odd in (np.arange(2), pd.array([1, 2], dtype="Int64"), np.array(["a", "b"], object)):
        with pytest.raises((AssertionError, ValueError)):
            arrays.make_frame({"ts": np.arange(3), "odd": odd}, 3)
