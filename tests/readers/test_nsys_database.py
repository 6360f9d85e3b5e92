"""Integers, texts and small tables of an export, block by block."""

import sqlite3

import nsys_builder as nsys
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.readers.nsys.sqlite import blocks as nsys_blocks
from tracekit.readers.nsys.sqlite import connection as nsys_connection
from tracekit.readers.nsys.sqlite.blocks import read_column_blocks
from tracekit.readers.nsys.sqlite.connection import has_table_columns, open_export
from tracekit.readers.nsys.sqlite.database import read_integer_columns, read_small_table, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def database(path, *statements):
    """An export with a table `t` of whatever the statements put there."""
    nsys.write(path, [])
    return nsys.execute(path, *statements)


def filled(path, values):
    nsys.write(path, [])
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a, b)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", values)
    connection.commit()
    connection.close()
    return path


def test_tables_and_columns_are_as_they_are_in_the_file(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", [nsys.kernel("k", 1, 2)], schema="2.9")
    with open_export(path) as db:
        assert has_table_columns(db, KERNEL, "start", "end", "deviceId")
        assert not has_table_columns(db, KERNEL, "graphNodeId")
        assert not has_table_columns(db, "NVTX_EVENTS")


def test_absent_columns_are_missing_and_absent_tables_empty(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", [nsys.kernel("k", 1, 2), nsys.kernel("k", 3, 4)])
    with open_export(path) as db:
        found = read_integer_columns(db, KERNEL, ("start", "no such"), expressions={"dur": '"end" - start'})
        assert found.values["start"].tolist() == [1, 3]
        assert found.values["dur"].tolist() == [1, 1]
        assert found.missing["start"] is None
        assert found.missing["no such"].tolist() == [True, True]
        assert read_integer_columns(db, "no such", ("start",)).length == 0


VALUES = st.lists(st.tuples(*[st.none() | st.integers(-(2**63) + 1, 2**63 - 1)] * 2), max_size=40)


@given(VALUES, st.integers(1, 9))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_integers_come_back_exactly_whatever_the_size_of_a_block(tmp_path, values, size):
    path = tmp_path / "x.sqlite"
    path.unlink(missing_ok=True)
    filled(path, values)
    with pytest.MonkeyPatch.context() as patch, open_export(path) as db:
        patch.setattr(nsys_blocks, "BLOCK_ROWS", size)
        for place, name in enumerate("ab"):
            found = read_integer_columns(db, "t", (name,))
            assert found.values[name].tolist() == [row[place] or 0 for row in values]
            missing = found.missing[name]
            told = np.zeros(len(values), bool) if missing is None else missing
            assert told.tolist() == [row[place] is None for row in values]


def test_row_ids_far_apart_cost_no_more_than_their_rows(tmp_path):
    path = filled(tmp_path / "x.sqlite", [])
    for row in (-(2**63), -5, 0, 7, 2**63 - 1):
        nsys.execute(path, (f"INSERT INTO t (rowid, a) VALUES ({row}, ?)", (row % 1000,)))
    with open_export(path) as db:
        assert read_integer_columns(db, "t", ("a",)).values["a"].tolist() == [192, 995, 0, 7, 807]


def test_what_is_no_integer_is_missing_and_counted(tmp_path):
    odd = [1.5, "x", b"\x00", "1,2", "", float("inf")]
    path = filled(tmp_path / "x.sqlite", [(value, 7) for value in odd] + [(3, 8)])
    with open_export(path) as db:
        found = read_integer_columns(db, "t", ("a", "b"))
        assert found.values["b"].tolist() == [7] * 6 + [8]
        assert found.missing["a"].tolist() == [True] * 6 + [False]
        assert found.values["a"][6] == 3
        assert db.odd == {("t", "a"): 6}


def test_conditions_and_order_are_followed(tmp_path):
    path = filled(tmp_path / "x.sqlite", [(i % 5, i) for i in range(20)])
    with open_export(path) as db:
        found = read_integer_columns(db, "t", ("a", "b"), where="b >= ? OR a = ?", parameters=(18, 2), order=("a", "b"))
        assert found.values["b"].tolist() == [2, 7, 12, 17, 18, 19]
        assert list(read_column_blocks(db, "t", ("b",), where="b > 100")) == []


def test_texts_are_read_by_their_ids_and_cut(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", [nsys.api("a" * 9000, 0, 1), nsys.api("b", 0, 1)])
    with open_export(path) as db:
        assert read_texts_by_id(db, "StringIds", "id", "value", [2, 3]) == {2: "b"}
        assert read_texts_by_id(db, "StringIds", "id", "value") == {1: "a" * 4096, 2: "b"}
        assert read_texts_by_id(db, "StringIds", "id", "value", []) == {}
        assert read_texts_by_id(db, "no such", "id", "value") == {}


def test_rows_of_small_tables_hold_values_as_stored(tmp_path):
    path = filled(tmp_path / "x.sqlite", [(1, "x"), (None, 1.5), (b"\x01", 3)])
    with open_export(path) as db:
        assert read_small_table(db, "t", ("a", "none", "b")) == [(1, None, "x"), (None, None, 1.5), (b"\x01", None, 3)]
        assert read_small_table(db, "t", ("b",), where="a = ?", parameters=(1,)) == [("x",)]
        assert read_small_table(db, "t", ("a",), limit=1) == [(1,)]


def test_names_of_tables_and_columns_are_quoted(tmp_path):
    name = 'a"b; DROP TABLE StringIds --'
    quoted = '"' + name.replace('"', '""') + '"'
    path = database(tmp_path / "x.sqlite", f"CREATE TABLE {quoted} ({quoted})", f"INSERT INTO {quoted} VALUES (5)")
    with open_export(path) as db:
        assert read_integer_columns(db, name, (name,)).values[name].tolist() == [5]
        assert read_small_table(db, name, (name,)) == [(5,)]


def test_a_query_that_would_never_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_connection, "STEPS", 1_000)
    path = database(tmp_path / "x.sqlite")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(TraceFormatError, match="interrupted"), open_export(path) as db:
        db.connection.execute(endless).fetchall()


def test_nothing_can_be_written_through_the_connection(tmp_path):
    path = database(tmp_path / "x.sqlite")
    for statement in ("CREATE TABLE y (a)", "DELETE FROM StringIds", f"ATTACH '{tmp_path}/new' AS n"):
        with pytest.raises(TraceFormatError), open_export(path) as db:
            db.connection.execute(statement)
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]


def test_missing_never_leaves_as_a_number(tmp_path):
    path = filled(tmp_path / "x.sqlite", [(MISSING, 1)])
    with open_export(path) as db:
        found = read_integer_columns(db, "t", ("a",))
        assert found.values["a"].tolist() == [0]
        assert found.missing["a"].tolist() == [True]
