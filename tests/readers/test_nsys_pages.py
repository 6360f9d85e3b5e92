"""The pages of an export are read as SQLite reads them, and SQLite is asked wherever they are not plain."""

import random
import sqlite3
from contextlib import closing

import nsys_builder as nsys
import numpy as np
import pandas as pd
import pytest

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.readers import nsys as reader
from tracekit.readers.nsys.sqlite import expressions
from tracekit.readers.nsys.sqlite import pages as nsys_pages
from tracekit.readers.nsys.sqlite.connection import open_export
from tracekit.readers.nsys.sqlite.pages import SHAPES, NameCodes, PageRows

pytestmark = pytest.mark.skipif(nsys_pages.native is None, reason="built without a compiler")

NAMES = (
    *("forward", "Grüße", "", "aten::mm, seq = 7, op_id = 41", "aten::add, op_id = 3"),
    *("aten::mm, seq = 8, op_id = 9, sizes = [[2, 3], [3, 4]]", "x, seq = none, op_id = 5", "y, seq = , seq = 4"),
    *("z, sizes = [", "a, b, c, seq = 9", "scope, op_id = 12, seq = 1", "k" * 3_000),
)  # fmt: skip


def export(path, page_size=512, count=900):
    """An export of many small pages, with every kind of name that is told from others."""
    rows = [nsys.nvtx("gen", 0, 9_000_000), nsys.nvtx("by id", 10, None, registered=True), nsys.gpu(0)]  # fmt: skip
    for n in range(1, count):
        rows += nsys.launched(f"kernel {n % 7}", n * 1000, n * 1000 + 300, n * 1000 + 900, n, tid=100 + n % 3)
        rows.append(nsys.nvtx(NAMES[n % len(NAMES)], n * 1000 - 1, n * 1000 + 950, pid=100 + n % 2))
        rows.append(nsys.memcpy(n * 1000, n * 1000 + 9, n % 4 and 4096, n, pid=100 + n % 2))
    nsys.write(path, rows, duration_ns=10_000_000)
    nsys.execute(path, f"PRAGMA page_size = {page_size}", "VACUUM")
    return path


def read(path, **want):
    return reader.read(Source(path, "x", "nsys", "nsys"), Want(**want))


def by_both(path, monkeypatch):
    """What is read of a file by its pages, and by SQLite alone: Traces, or the words that refuse it."""
    outcomes = []
    for native in (nsys_pages.native, None):
        with monkeypatch.context() as patch:
            patch.setattr(nsys_pages, "native", native)
            try:
                outcomes.append(read(path))
            except TraceFormatError as error:
                outcomes.append(str(error))
    return outcomes


def assert_same(first, second):
    assert isinstance(first, str) == isinstance(second, str), (first, second)
    if isinstance(first, str):
        assert first == second
        return
    for one, other in zip(first, second, strict=True):
        assert one.tables.keys() == other.tables.keys()
        for name in one.tables:
            pd.testing.assert_frame_equal(one[name], other[name])
        assert (one.notes, one.meta, one.source) == (other.notes, other.meta, other.source)
        assert one.sparse.keys() == other.sparse.keys()
        for key, column in one.sparse.items():
            np.testing.assert_array_equal(column.rows, other.sparse[key].rows)
            np.testing.assert_array_equal(column.values, other.sparse[key].values)
            assert column.categories == other.sparse[key].categories


def rows_of(path, table, sql, names=None):
    """(the columns that the pages give, whether those are all)."""
    with open_export(path, with_pages=True) as db:
        page_rows = PageRows(db, table, sql, names)
        blocks = [block for block, _ in page_rows.blocks(100)]
    columns = {name: np.concatenate([block[name] for block in blocks]).tolist() for name in sql} if blocks else {}
    return columns, page_rows.ended


@pytest.mark.parametrize("page_size", [512, 1024, 65536])
def test_pages_and_sqlite_give_the_same_traces(tmp_path, monkeypatch, page_size):
    path = export(tmp_path / "x.sqlite", page_size)
    assert_same(*by_both(path, monkeypatch))


def test_every_row_of_a_plain_table_comes_from_its_pages(tmp_path):
    path = export(tmp_path / "x.sqlite")
    sql = {"row": "rowid", "start": '"start"', "lasts": '"end" - "start"', "of": 'nullif("correlationId", 0)'}
    columns, ended = rows_of(path, "CUPTI_ACTIVITY_KIND_KERNEL", sql)
    assert ended
    assert columns["row"] == list(range(1, 900))
    assert columns["lasts"] == [600] * 899
    assert columns["of"] == list(range(1, 900))


def test_names_lose_their_tails_and_are_told_apart_by_them(tmp_path):
    path = export(tmp_path / "x.sqlite", 65536)
    keys = {}
    names = NameCodes("text", _Counted(keys), ("jsonText", "endGlobalTid"))
    _, ended = rows_of(path, "NVTX_EVENTS", {"start": '"start"'}, names)
    assert ended
    assert set(keys) == {
        b"0gen", b"0", b"0forward", "0Grüße".encode(), b"1aten::mm", b"2aten::add", b"2x, seq = none",
        b"0y, seq = , seq = 4", b"2z", b"1a, b, c", b"1scope, op_id = 12", b"0" + b"k" * 3_000,
    }  # fmt: skip
    assert names.facts == {"jsonText": False, "endGlobalTid": False, SHAPES: True}


class _Counted(dict):
    """Numbers by key, counted up in the dictionary that is given."""

    def __init__(self, keys):
        super().__init__()
        self._keys = keys

    def __getitem__(self, key):
        return self._keys.setdefault(key, len(self._keys))


@pytest.mark.parametrize("change", [
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = x'ff' WHERE rowid = 500",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET \"end\" = 'later' WHERE rowid = 6",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 1e300 WHERE rowid = 700",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775808 WHERE rowid = 3",
    'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = 9223372036854775807, start = -5 WHERE rowid = 3',
    "UPDATE NVTX_EVENTS SET text = x'00' WHERE rowid = 400",
    "UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT) WHERE rowid = 401",
    "UPDATE NVTX_EVENTS SET text = 'a' || char(0) || 'b' WHERE rowid = 401",
    f"UPDATE NVTX_EVENTS SET text = '{'long' * 4_000}, seq = 5' WHERE rowid = 402",
    "UPDATE NVTX_EVENTS SET rowid = -17 WHERE rowid = 403",
    "DELETE FROM NVTX_EVENTS WHERE rowid % 7 = 3",
    "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN nameId; ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN nameId INTEGER DEFAULT 3",
])  # fmt: skip
def test_what_is_not_plain_is_read_as_sqlite_reads_it(tmp_path, monkeypatch, change):
    path = export(tmp_path / "x.sqlite", 1024)
    nsys.execute(path, *change.split("; "))
    assert_same(*by_both(path, monkeypatch))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_pages_are_read_as_sqlite_reads_them(tmp_path, monkeypatch, seed):
    path = export(tmp_path / "x.sqlite", count=120)
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 3, 20))):
        page = chance.randrange(1, len(content) // 512)
        # The beginning of a page says where its rows lie.
        place = page * 512 + chance.choice((chance.randrange(16), chance.randrange(512)))
        content[place] = chance.randrange(256)
    path.write_bytes(content)
    assert_same(*by_both(path, monkeypatch))


def test_a_loop_of_pages_ends(tmp_path, monkeypatch):
    path = export(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_RUNTIME'"
        (root,) = connection.execute(query).fetchone()
    content = bytearray(path.read_bytes())
    start = (root - 1) * 512
    assert content[start] == 5, "an interior page"
    content[start + 8 : start + 12] = root.to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(nsys_pages.DamagedPagesError):
        rows_of(path, "CUPTI_ACTIVITY_KIND_RUNTIME", {"start": '"start"'})
    assert_same(*by_both(path, monkeypatch))


@pytest.mark.parametrize("change", [
    "CREATE TABLE t2 (id INTEGER PRIMARY KEY, start INTEGER)",
    "CREATE TABLE t2 (start REAL)",
    "CREATE TABLE t2 (start INTEGER, twice INTEGER AS (start * 2))",
])  # fmt: skip
def test_tables_whose_columns_are_not_what_is_stored_are_left_to_sqlite(tmp_path, change):
    path = export(tmp_path / "x.sqlite", count=3)
    nsys.execute(path, change, "INSERT INTO t2 (start) VALUES (4)")
    assert rows_of(path, "t2", {"start": '"start"'}) == ({}, False)
    assert rows_of(path, "CUPTI_ACTIVITY_KIND_KERNEL", {"start": '"start"'})[1] is True


VALUES = (0, 1, -1, 5, 1023, -(2**40), 2**40 + 7, None)


@pytest.mark.parametrize("sql", [
    'nullif(("a" >> 24) & 16777215, 0)', '"a" & 16777215', '"a" - "b"', '"a" + "b"', 'coalesce("a", "b", 7)',
    'iif("a" is 1, 1, 0)', '((coalesce("a", 1023) & 1023) << 20) | "b"', "NULL", "nullif(NULL, 0)", '"b"', "12",
])  # fmt: skip
def test_expressions_are_worked_out_as_sqlite_does(sql):
    pairs = [(a, b) for a in VALUES for b in VALUES]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", pairs)
        expected = [row[0] for row in connection.execute(f"SELECT {sql} FROM t ORDER BY rowid")]
    missing = expressions.MISSING
    a, b = (np.array([missing if value is None else value for value in column]) for column in zip(*pairs, strict=True))
    tree = expressions.parse_expression(sql)
    values = expressions.evaluate_expression(tree, {"a": a, "b": b}, np.arange(len(a)))
    assert [None if value == missing else value for value in values.tolist()] == expected


@pytest.mark.parametrize("sql", ['"a" * 2', "abs(3)", "a", '"a" == 1', "(", '"a" - -9223372036854775808', 'iif("a", 1, 2)'])  # fmt: skip
def test_other_expressions_are_left_to_sqlite(sql):
    with pytest.raises(expressions.NotPlainError):
        expressions.evaluate_expression(expressions.parse_expression(sql), {"a": np.array([1])}, np.array([1]))


def test_sums_that_might_overflow_are_left_to_sqlite():
    tree = expressions.parse_expression('"a" - "b"')
    with pytest.raises(expressions.NotPlainError):
        expressions.evaluate_expression(tree, {"a": np.array([2**62]), "b": np.array([-(2**62)])}, np.array([1]))
