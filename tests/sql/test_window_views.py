"""Sums over windows that overlap: views of one kind of window, and a warning where kinds are added up."""

import pytest

import tracekit
from tracekit.pipeline import sql_session, table_reading
from tracekit.pipeline.options import Options


@pytest.fixture(scope="module")
def profile(request):
    return request.config.rootpath / "examples/simulated_gpu/outputs/profile"


@pytest.fixture(scope="module")
def session(profile):
    def load(names, with_step):
        return table_reading.query_rows(names, [str(profile)], Options(jobs=1), with_step=with_step).tables

    return sql_session.open_sql_session(load)


def rows(session, statement):
    return session.run(statement).rows(1000)


@pytest.mark.parametrize("kind", ["step", "stage"])
@pytest.mark.parametrize("table", ["idle", "gpu_time"])
def test_a_view_has_the_rows_of_its_windows(session, profile, table, kind):
    frame = tracekit.measure(profile).tables[table]
    expected = int(frame.loc[frame["window"] == kind, "idle_ns"].sum())
    assert rows(session, f"SELECT sum(idle_ns) FROM {table}_by_{kind}") == [(expected,)]
    assert expected > 0


def test_the_sum_over_all_windows_is_several_times_the_truth(session):
    ((every,),) = rows(session, "SELECT sum(idle_ns) FROM idle")
    ((steps,),) = rows(session, "SELECT sum(idle_ns) FROM idle_by_step")
    assert every > 2 * steps


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("SELECT sum(idle_ns) FROM idle", ["idle"]),
        ("SELECT rank, AVG (idle_ns) FROM idle GROUP BY rank", ["idle"]),
        ("SELECT sum(i.idle_ns) FROM idle i JOIN gpu_time g USING (rank)", ["gpu_time", "idle"]),
        ("SELECT sum(idle_ns) FROM idle WHERE \"window\" = 'capture'", []),
        ('SELECT "window", sum(idle_ns) FROM idle GROUP BY ALL', []),
        ("SELECT sum(idle_ns) FROM idle_by_step", []),
        ("SELECT idle_ns FROM idle", []),
        ("SELECT count(*) FROM idle", []),
        ("SELECT 'sum(x)' FROM idle", []),
        ("SELECT sum(dur_ns) FROM device_ops", []),
    ],
)
def test_a_statement_that_adds_windows_up_gets_a_warning(session, statement, named):
    warnings = session.list_warnings(statement)
    assert sorted(warning.split(":")[0] for warning in warnings) == named
    assert all(f"use {name}_by_step" in warning for name, warning in zip(named, sorted(warnings), strict=True))


def test_views_are_listed_described_and_suggested(session):
    meaning = dict(rows(session, "SHOW TABLES"))["idle_by_step"]
    assert meaning.startswith("idle time of one device")
    assert meaning.endswith("; steps only")
    columns = [name for name, *_ in rows(session, "DESCRIBE idle_by_stage")]
    assert "idle_ns" in columns
    assert "window" not in columns
    with pytest.raises(tracekit.TracekitError, match="idle_by_step") as error:
        session.run("SELECT * FROM idle_by_stepp")
    assert "idle_by_step" in str(error.value)


def test_the_command_prints_the_warning_beside_the_rows(call, profile):
    done = call("sql", profile, "SELECT sum(idle_ns) AS idle_ns FROM idle", "-j", "1")
    assert done.exit_code == 0
    assert "warning: idle: its windows (captures, steps, stages) overlap" in " ".join(done.stderr.split())
    assert "warning" not in done.stdout
    assert "warning" not in call("sql", profile, "SELECT sum(idle_ns) FROM idle", "-j", "1", "-q").stderr


@pytest.mark.parametrize(
    ("statement", "wrong", "nearest"),
    [
        ("SELECT idle_n FROM idle", "idle_n", "idle_ns"),
        ("SELECT sum(idle_n) FROM idle_by_step", "idle_n", "idle_ns"),
        ("SELECT idle_n\nFROM idle", "idle_n", "idle_ns"),
        ("WITH i AS (\n  SELECT i.idle_n\n  FROM idle AS i\n)\nSELECT * FROM i", "idle_n", "idle_ns"),
        ("SELECT IDLE_MS FROM IDLE", "IDLE_MS", "idle_ns"),
        ("SELECT ts\nFROM device_ops", "ts", "ts_ns"),
        ("SELECT d.name\nFROM device_ops AS d\nJOIN host_ops USING (corelation)", "corelation", "correlation"),
    ],
)
def test_an_unknown_column_suggests_the_nearest(session, statement, wrong, nearest):
    with pytest.raises(tracekit.TracekitError) as error:
        session.run(statement)
    assert str(error.value) == f"no column {wrong!r}; did you mean {nearest!r}?"


def test_an_unknown_column_without_a_near_one_lists_the_columns(session):
    with pytest.raises(tracekit.TracekitError, match="no column 'duration'\n") as error:
        session.run("SELECT duration\nFROM device_ops")
    assert error.value.hint.startswith("a column of device_ops: run, tool, role, rank, ")
    assert " dur_ns, " in error.value.hint
