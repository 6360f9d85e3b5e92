"""A session reads the tables of profiles, only those that are named, and nothing else."""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from recorded import GPU
from sql_answers import answer, session

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.tables import KEYS
from tracekit.model.tables.arrays import Coded, Columns, Nullable
from tracekit.model.tables.table import Column, Table
from tracekit.pipeline import table_reading
from tracekit.pipeline.options import Options
from tracekit.sql import statements
from tracekit.sql.session import SqlSession

ROOT = Path(__file__).parents[2]
SIMULATED = ROOT / "examples/simulated_gpu/outputs/profile"
REAL = os.environ.get("TRACEKIT_REAL_DATA")

THINGS = Table(
    "things",
    "a thing",
    {
        "name": Column("category", "What it's called."),
        "ts_ns": Column("int64", "When."),
        "size_bytes": Column("Int64", "How large."),
        "share": Column("Float64", "A share."),
        "big": Column("bool", "Whether."),
        "row": Column("int32", "Which."),
    },
)
OTHERS = Table("others", "another thing", {"name": Column("category", "What it is called.")})


def things():
    return Columns(
        4,
        {
            "name": Coded(np.array([1, 0, -1, 1], np.int8), ("z", "a\udc80")),
            "ts_ns": np.array([2**62 + 1, 1, 2, 3]),
            "size_bytes": Nullable(np.array([5, 0, 7, 0]), np.array([0, 1, 0, 0], np.bool_)),
            "share": Nullable(np.array([0.5, np.nan, 1, 2]), np.array([0, 1, 0, 0], np.bool_)),
            "big": np.array([True, False, True, False]),
            "row": np.arange(4, dtype=np.int32),
        },
    )


@pytest.fixture
def asked():
    return []


@pytest.fixture
def small(asked):
    def load(names, with_step):
        asked.append((tuple(names), with_step))
        return {"things": things()} if "things" in names else {}

    return SqlSession([THINGS, OTHERS], load)


def rows(session_, statement):
    return session_.run(statement).rows(1000)


def refusal(session_, statement):
    with pytest.raises(TracekitError) as caught:
        session_.run(statement).rows(10)
    assert "\n" not in str(caught.value) + caught.value.hint
    assert caught.value.hint
    return str(caught.value)


def test_values_are_exact_and_what_is_missing_is_null(small):
    assert rows(small, "SELECT * FROM things") == [
        ("a\\udc80", 2**62 + 1, 5, 0.5, True, 0),
        ("z", 1, None, None, False, 1),
        (None, 2, 7, 1.0, True, 2),
        ("a\\udc80", 3, 0, 2.0, False, 3),
    ]


def test_types_are_those_that_the_schema_says_with_and_without_rows(small):
    expected = ["VARCHAR", "BIGINT", "BIGINT", "DOUBLE", "BOOLEAN", "INTEGER"]
    assert [row[1] for row in rows(small, "DESCRIBE things")] == expected
    assert [row[1] for row in rows(small, "DESCRIBE SELECT * FROM things")] == expected
    rows(small, "SELECT 1 FROM things")
    assert [row[1] for row in rows(small, "DESCRIBE SELECT * FROM things")] == expected


def test_texts_sort_and_compare_as_texts_not_by_their_codes(small):
    names = "SELECT DISTINCT name FROM things WHERE name IS NOT NULL ORDER BY name"
    assert rows(small, names) == [("a\\udc80",), ("z",)]
    assert rows(small, "SELECT count(*) FROM things WHERE name = 'nothing of it'") == [(0,)]
    assert rows(small, "SELECT coalesce(name, 'none') FROM things WHERE row = 2") == [("none",)]


def test_only_the_tables_that_a_statement_names_are_asked_for_and_each_once(small, asked):
    rows(small, "SHOW TABLES")
    rows(small, "DESCRIBE things")
    rows(small, "SELECT 'others', 1 -- FROM others")
    assert asked == []
    rows(small, "SELECT name FROM Things AS others")
    rows(small, "SELECT count(*) FROM (FROM main.things)")
    assert asked == [(("things",), False)]
    assert rows(small, "SELECT name FROM others") == []
    assert asked[1:] == [(("others",), False)]
    assert small.unfilled == {"others"}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT name FROM things JOIN others USING (name)",
        "WITH others AS (SELECT * FROM things) SELECT name FROM others",
        "SELECT 1 WHERE EXISTS (SELECT name FROM things)",
        "PIVOT things ON name USING sum(row)",
        "SUMMARIZE things",
        "FROM query_table('things')",
        "FROM query('FROM things')",
        "EXPLAIN SELECT name FROM things",
    ],
)
def test_a_table_is_found_wherever_a_statement_names_it(small, asked, statement):
    rows(small, statement)
    assert "things" in asked[0][0]


def test_a_plan_is_shown_line_by_line(small):
    plan = small.run("EXPLAIN SELECT name FROM things WHERE row > 1")
    lines = [line for (line,) in plan.rows(1000)]
    assert plan.names == ("plan",)
    assert len(lines) > 3
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    "statement",
    [
        "FROM query_table('thi' || 'ngs')",
        "FROM query('FROM thi' || 'ngs')",
        "FROM query(concat('FROM thi', 'ngs'))",
        "FROM \"query\" ('FROM thi' || 'ngs')",
        "FROM QUERY/* */('FROM thi' || 'ngs')",
        "FROM query('FROM query(''FROM thi'' || ''ngs'')')",
        "SELECT 1 FROM others, query('FROM thi' || 'ngs')",
        "SUMMARIZE FROM query('FROM thi' || 'ngs')",
    ],
)
def test_a_name_that_is_put_together_is_refused_rather_than_an_empty_table(small, asked, statement):
    assert "is unknown" in refusal(small, statement)
    assert asked == []


def test_what_is_wrong_with_a_statement_is_said_before_any_file_is_read(small, asked):
    assert refusal(small, "SELECT nam FROM things") == "no column 'nam'; did you mean 'name'?"
    assert refusal(small, "SELECT t.nam FROM things t") == "no column 'nam'; did you mean 'name'?"
    assert refusal(small, "SELECT name FROM thing") == "no table 'thing'; did you mean 'things'?"
    assert refusal(small, "SELECT flor(1)") == "no function 'flor'; did you mean 'floor'?"
    assert refusal(small, "SELEC 1").startswith("the statement: syntax error")
    assert refusal(small, "SELECT name, count(*) FROM things").startswith("the statement: column")
    assert asked == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{0}')",
        "SELECT * FROM read_text('{0}')",
        "SELECT * FROM read_blob('{0}')",
        "SELECT * FROM read_json('{0}')",
        "SELECT * FROM read_parquet('{0}')",
        "SELECT * FROM parquet_metadata('{0}')",
        "SELECT * FROM sniff_csv('{0}')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '{0}'",
        "SELECT * FROM 'http://localhost/x.csv'",
        "SELECT * FROM sqlite_scan('{0}', 'x')",
        "EXPLAIN ANALYZE COPY things TO '{0}.csv'",
    ],
)
def test_no_file_and_no_network_is_in_reach(small, tmp_path, statement):
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    message = refusal(small, statement.format(file))
    assert "secret" not in message or "out of reach" in message or "no table" in message
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("COPY things TO '{0}/x.csv'", "COPY"),
        ("ATTACH '{0}/x.db'", "ATTACH"),
        ("INSTALL httpfs", "INSTALL"),
        ("LOAD httpfs", "LOAD"),
        ("SET enable_external_access = true", "SET"),
        ("RESET memory_limit", "RESET"),
        ("PRAGMA enable_profiling", "PRAGMA"),
        ("CALL pragma_version()", "CALL"),
        ("CREATE TABLE x AS SELECT 1", "CREATE"),
        ("INSERT INTO things (row) VALUES (1)", "INSERT"),
        ("DROP TABLE things", "DROP"),
        ("EXPORT DATABASE '{0}'", "EXPORT"),
        ("/* COPY */ DELETE FROM things", "DELETE"),
        ("SELECT 1; DROP TABLE things", "DROP"),
    ],
)
def test_nothing_but_queries_runs(small, tmp_path, statement, word):
    assert refusal(small, statement.format(tmp_path)).startswith(f"{word}: only queries run here")
    assert list(tmp_path.iterdir()) == []


def test_neither_the_environment_nor_variables_of_this_program_can_be_read(small):
    frame = pd.DataFrame({"secret": [1]})
    assert len(frame) == 1
    assert refusal(small, "SELECT getenv('HOME')").startswith("no function 'getenv'")
    assert refusal(small, "SELECT * FROM frame") == "no table 'frame'"


def test_memory_is_bounded_and_nothing_is_written_to_the_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bounded = SqlSession([THINGS], lambda _names, _step: {}, memory="10MB", threads=1)
    large = "SELECT range::VARCHAR AS x, count(*) FROM range(10000000) GROUP BY x ORDER BY x"
    assert refusal(bounded, large).startswith("memory ran out")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TracekitError, match="not a size"):
        SqlSession([THINGS], lambda _names, _step: {}, memory="much")


def test_a_statement_that_takes_too_long_is_ended_and_the_next_one_runs():
    limited = SqlSession([THINGS], lambda _names, _step: {}, threads=1, limit_s=0.3)
    endless = "SELECT count(*) FROM range(10_000_000) AS a, range(10_000_000) AS b WHERE a.range > b.range * 2"
    with pytest.raises(TracekitError, match="took too long"):
        limited.run(endless)
    assert limited.run("SELECT 1 AS one").rows(2) == [(1,)]


def test_the_catalogue_says_what_tables_and_columns_mean(small):
    comments = "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'things'"
    assert ("name", "What it's called.") in rows(small, comments)
    rows(small, "SELECT name FROM things")
    assert ("name", "What it's called.") in rows(small, comments)
    views = "SELECT comment FROM duckdb_views() WHERE view_name = 'things'"
    assert rows(small, views) == [("a thing",)]
    assert rows(small, "SHOW TABLES") == [("things", "a thing"), ("others", "another thing")]
    assert rows(small, "desc things;")[0] == ("name", "VARCHAR", "What it's called.")


def test_several_statements_are_told_apart_and_one_is_wanted_at_a_time(small):
    assert small.statements("SELECT ';' ; -- x\n SELECT 2;") == ["SELECT ';'", "-- x\n SELECT 2"]
    assert refusal(small, "SELECT 1; SELECT 2") == "2 statements where one is wanted"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT name, count(*) FROM device_ops GROUP BY name", False),
        ("SELECT step FROM device_ops", True),
        ("SELECT 'step' AS word FROM device_ops", False),
        ("SELECT * FROM device_ops", True),
        ("SELECT d.* FROM device_ops d", True),
        ("FROM device_ops", True),
        ("SUMMARIZE device_ops", True),
        ("SELECT name FROM a NATURAL JOIN b", True),
    ],
)
def test_steps_are_made_where_a_statement_may_see_them(statement, expected):
    assert statements.may_use_step(statement) is expected


def test_what_was_read_without_steps_is_read_again_for_a_statement_about_them():
    opened = session(SIMULATED)
    without = rows(opened, "SELECT count(*) FROM device_ops")
    with_steps = rows(opened, "SELECT count(*), count(DISTINCT step) FROM device_ops")
    assert with_steps == [(*without[0], 3)]


def test_rows_and_threads_have_the_same_numbers_in_all_tables_of_a_session():
    path = Path(REAL or "") / "nsys/real_cpu/steps_nsys24.sqlite"
    if REAL is None:
        pytest.skip("real profiles are not here")
    joined = """
        SELECT host_ops.thread, count(*) AS count, any_value(threads.name) AS name
        FROM host_ops JOIN threads USING (process, thread) GROUP BY ALL ORDER BY ALL"""
    at_once = rows(session(path), joined)
    step_by_step = session(path)
    rows(step_by_step, "SELECT count(*) FROM open_ranges")
    rows(step_by_step, "SELECT count(*) FROM threads")
    rows(step_by_step, "SELECT count(*) FROM host_ops")
    assert rows(step_by_step, joined) == at_once
    by_name = "SELECT DISTINCT tid FROM {} JOIN threads USING (process, thread, tid)"
    assert rows(step_by_step, by_name.format("open_ranges")) == [(32138,)]


# --- tables of profiles ---------------------------------------------------------------------------


def files():
    yield pytest.param(SIMULATED / "simulated_rank0.pt.trace.json.gz", id="simulated")
    for name in (
        "chrome/tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "chrome/hta/nccl_parser_config/nccl_data.json.gz",
        "nsys/real_cpu/steps_nsys24.sqlite",
        "memory/CPU_torch2.13",
    ):
        path = Path(REAL or "") / name
        if REAL and path.is_dir():
            path = min(p for p in path.rglob("*") if p.suffix in (".pickle", ".pkl"))
        if REAL:
            yield pytest.param(path, id=name)
    if REAL is None:
        ours = (
            "pairs/wait_side_sync_events.pt.trace.json.xz",
            "no_marks/graph_gelu.pt.trace.json.xz",
            "snapshots/fragmented.pickle",
        )
        yield from (pytest.param(GPU / name, id=name) for name in ours)


@pytest.mark.parametrize("path", list(files()))
def test_raw_tables_hold_what_load_gives_row_by_row(path):
    trace = tracekit.load(path)
    for name in trace.tables:
        # They number what is read: where more is read, they may be others.
        frame = trace[name].drop(columns=["id", "thread"], errors="ignore")
        columns = ", ".join(f'"{column}"' for column in frame)
        given = answer(f"SELECT {columns} FROM {name}", path)
        expected = frame.astype(object).where(frame.notna(), None).to_dict("records")
        for record in expected:
            for column, value in record.items():
                if isinstance(value, str):
                    record[column] = value.encode("utf-8", "backslashreplace").decode()
        assert given == expected, name


def test_measured_tables_are_those_that_analyze_measures():
    from tracekit.pipeline import run

    measured = run.measure_all([str(SIMULATED)], Options())
    for name in ("kernels", "gpu_time", "collectives", "operator_shapes", "metrics"):
        frame = measured.arrays[name].frame()
        expected = frame.astype(object).where(frame.notna(), None).to_dict("records")
        assert answer(f"SELECT * FROM {name}", SIMULATED) == expected, name


def test_every_table_of_tracekit_tables_can_be_named_and_begins_with_the_keys():
    from tracekit.analyses import list_measured_tables
    from tracekit.model.tables import ARGS, RAW

    table_reading.list_queryable_tables.cache_clear()  # a question of one's own may have come since
    names = [table.name for table in (*RAW, ARGS, *list_measured_tables())]
    assert [table.name for table in table_reading.list_queryable_tables()] == names
    opened = SqlSession(table_reading.list_queryable_tables(), lambda _names, _step: {})
    for table in table_reading.list_queryable_tables():
        result = opened.run(f"SELECT * FROM {table.name}")
        assert result.names == tuple(table.columns)
        assert KEYS.keys() <= set(result.names)


def test_what_a_measured_table_does_not_need_is_not_read(monkeypatch):
    from tracekit.pipeline import measure_source

    wants = []
    read = measure_source.read_parts

    def watched(source, advance, want, **more):
        wants.append(want)
        return read(source, advance, want, **more)

    monkeypatch.setattr(table_reading, "read_parts", watched)
    one = SIMULATED / "simulated_rank0.pt.trace.json.gz"
    answer("SELECT count(*) FROM kernels", one)
    assert wants == []  # no raw table is made
    answer("SELECT name FROM device_ops", one)
    assert wants[0].tables == {"device_ops"}


def test_saved_measurements_hold_measured_tables_and_say_so_of_raw_ones(tmp_path):
    from tracekit.pipeline import run
    from tracekit.pipeline.cache import saved_measurements

    saved_measurements.save(run.measure_all([str(SIMULATED)], Options()), tmp_path / "run.tkm")
    statement = "SELECT * FROM kernels"
    assert answer(statement, tmp_path / "run.tkm") == answer(statement, SIMULATED)
    with pytest.raises(TracekitError, match="saved measurements contain no raw tables") as caught:
        answer("SELECT name FROM device_ops", tmp_path / "run.tkm")
    assert "\n" not in str(caught.value)


def test_rows_of_raw_tables_say_whose_they_are():
    keys = "SELECT DISTINCT run, tool, rank, host, source, process FROM device_ops ORDER BY rank"
    first, second = answer(keys, SIMULATED)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["process"] == "profile/simulated_rank0.pt.trace.json.gz"
    assert (first["run"], first["tool"], first["host"]) == ("profile", "torch", "simulated-host")


def test_files_of_one_content_count_once_in_raw_tables_too(tmp_path):
    one = SIMULATED / "simulated_rank0.pt.trace.json.gz"
    for name in ("a.pt.trace.json.gz", "b.pt.trace.json.gz"):
        (tmp_path / name).write_bytes(one.read_bytes())
    count = "SELECT count(*) AS count FROM device_ops"
    assert answer(count, tmp_path) == answer(count, one)


def test_runs_side_by_side_are_told_apart_by_their_labels():
    statement = "SELECT run, count(*) AS count FROM device_ops GROUP BY run ORDER BY run"
    base, opt = answer(statement, f"base={SIMULATED}", f"opt={SIMULATED}")
    assert (base["run"], opt["run"]) == ("base", "opt")
    assert base["count"] == opt["count"]


def test_steps_of_device_work_are_those_of_its_launch():
    launched = """
        SELECT op.step, launch.step AS launch_step, count(*) AS count
        FROM device_ops op JOIN host_ops launch
          ON launch.process = op.process AND launch.correlation = op.correlation AND launch.kind = 'runtime'
        GROUP BY ALL ORDER BY ALL"""
    found = answer(launched, SIMULATED)
    assert {row["step"] for row in found} >= {5, 6, 7}
    assert all(row["step"] == row["launch_step"] for row in found)


def test_ranks_that_were_not_asked_for_are_not_read():
    opened = session(SIMULATED, options=Options(ranks="1"))
    assert rows(opened, "SELECT DISTINCT rank FROM host_ops") == [(1,)]
    assert rows(opened, "SELECT DISTINCT rank FROM kernels") == [(1,)]


# --- the Parquet files of a report ----------------------------------------------------------------


def test_a_duckdb_of_your_own_reads_the_parquet_files_as_the_page_says(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    page = (ROOT / "docs/sql.md").read_text()
    (statement,) = [block for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if ".parquet" in block]
    assert "--export parquet=DIR" in page
    report = tracekit.analyze(SIMULATED)
    for name, data in tracekit.render(report, "parquet").items():
        (tmp_path / name).write_bytes(data)
    rows = duckdb.sql(statement.replace("DIR", str(tmp_path))).fetchall()
    expected = answer(
        "SELECT name, sum(total_ns) AS total_ns FROM kernels GROUP BY name ORDER BY total_ns DESC LIMIT 3", SIMULATED
    )
    assert [(name, round(ms * 1e6)) for name, ms, _ in rows] == [(row["name"], row["total_ns"]) for row in expected]
    assert all(0 < share < 1 for _, _, share in rows)
    for path in tmp_path.iterdir():
        assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall()[0][0] >= 0


class Interrupted:
    """A connection that is interrupted in its call of this number, the way DuckDB reports it: here and in its cursors."""

    def __init__(self, inner, last):
        self.inner, self.calls, self.last = inner, 0, last

    def __getattr__(self, name):
        value = getattr(self.inner, name)
        return self.counted(value) if callable(value) else value

    def counted(self, call):
        def run(*arguments):
            self.calls += 1
            if self.calls == self.last:
                raise RuntimeError("Query interrupted")
            result = call(*arguments)
            return Cursor(self, result) if hasattr(result, "fetchmany") else result

        return run


class Cursor:
    def __init__(self, connection, inner):
        self.connection, self.inner = connection, inner

    def __getattr__(self, name):
        value = getattr(self.inner, name)
        return self.connection.counted(value) if callable(value) else value


@pytest.mark.parametrize(
    "text", ["SELECT things.name FROM things, others", "EXPLAIN SELECT 1", "FROM duckdb_columns()"]
)
@pytest.mark.parametrize("limits", [None, (5, 100)])
def test_an_interrupt_of_any_call_of_a_statement_is_an_interrupt(text, limits):
    """DuckDB makes a RuntimeError of Ctrl-C wherever it is at: while it parses, plans, loads or fetches."""
    for number in range(1, 100):
        opened = SqlSession([THINGS, OTHERS], lambda names, with_step: {"things": things()})
        opened._connection = connection = Interrupted(opened._connection, number)
        try:
            opened.run(opened.statements(text)[0], limits).rows(5)
        except KeyboardInterrupt:
            continue
        break
    assert connection.calls < number
    assert number > 3
