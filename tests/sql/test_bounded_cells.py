"""Long cells are cut by DuckDB: short ones, orders and names stay as they are."""

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from tracekit.sql.session import SqlSession

ROOT = Path(__file__).parents[2]


@pytest.fixture
def session():
    return SqlSession([], lambda _names, _step: {})


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS a, 'x' AS b, NULL AS c, [1, NULL] AS d, {'k': 'v'} AS e, 1.50 AS f",
        "SELECT 1 AS a, 2 AS a, 'x' AS b, 'y' AS b",
        "SELECT range AS n, 'x' || range AS t FROM range(50) ORDER BY hash(range) -- a comment",
        "WITH t AS (FROM range(5)) FROM t ORDER BY range DESC",
        "VALUES (true, 'a'), (false, NULL)",
        "SELECT DATE '2020-01-31' AS d, 'a'::BLOB AS b, map(['k'], [1]) AS m, uuid() IS NULL AS u",
    ],
)
def test_what_is_short_comes_as_without_a_bound(session, statement):
    free = session.run(statement)
    names, rows = free.names, free.rows(100)
    bound = session.run(statement, (100, 1_000))
    assert bound.names == names
    assert bound.rows(100) == rows


def test_only_so_many_rows_are_made(session):
    result = session.run("SELECT range AS n FROM range(1000) ORDER BY n DESC", (3, 1_000))
    assert result.rows(100) == [(999,), (998,), (997,)]


@pytest.mark.parametrize(
    ("expression", "length"),
    [("repeat('x', 1001)", 1001), ("[repeat('x', 2000)]", 2002), ("{'a': repeat('y', 5000)}", 5007),
     ("repeat('x', 3000)::BLOB", 3000)],
)  # fmt: skip
def test_what_is_long_is_cut_with_its_length_and_a_hash(session, expression, length):
    statement = f"SELECT {expression} AS a, 'short' AS b, 2.5::DECIMAL(4, 2) AS c"
    ((cut, short, number),) = session.run(statement, (10, 1_000)).rows(10)
    assert (short, number) == ("short", Decimal("2.50"))
    assert len(cut) < 300
    beginning, _, ending = cut.partition("… (")
    assert len(beginning) == 250
    assert ending.startswith(f"{length:,} characters, ")


def test_different_long_texts_with_one_beginning_stay_different(session):
    rows = session.run("SELECT repeat('x', 2000) || n AS a FROM range(9) t(n)", (10, 1_000)).rows(9)
    assert len(set(rows)) == 9


WIDE = """
from pathlib import Path
from tracekit.model.errors import TracekitError
from tracekit.sql.session import SqlSession
session = SqlSession([], lambda _names, _step: {}, memory="500MiB")
try:
    session.run("SELECT repeat('x', 20000000 + range) AS a FROM range(200)", (500, 1000))
except TracekitError as error:
    assert "memory ran out" in error.problem
else:
    raise AssertionError("4 GB of text within 500 MiB")
# Not ru_maxrss, which counts what the test's own process held when it started this one.
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_wide_rows_are_refused_before_they_take_more_memory_than_allowed():
    """200 cells of 20 MB are 4 GB of text; DuckDB may have 500 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", WIDE],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 900_000
