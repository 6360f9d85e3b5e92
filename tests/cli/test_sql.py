"""`tracekit sql`: what is given, what is printed, and with which status it ends."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from command_line import APART

import tracekit.sql.session
from tracekit.cli import main, sql_shell
from tracekit.cli.commands import sql as command
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.sources import Fault
from tracekit.pipeline import table_reading

ROOT = Path(__file__).parents[2]
ONE = ROOT / "examples/simulated_gpu/outputs/profile/simulated_rank0.pt.trace.json.gz"
KINDS = "SELECT kind, count(*) AS count, sum(dur_ns) AS total_ns FROM device_ops GROUP BY kind ORDER BY kind"
TABLE = """\
kind        count    total_ns
collective    102  50,334,898
kernel      1,391  124,193,123
"""


def piped(text, *args):
    """What running the command with this standard input printed."""
    return CliRunner(**APART).invoke(main, ["sql", *map(str, args)], input=text)


def test_rows_are_printed_in_columns_under_the_names_of_the_statement(call):
    result = call("sql", ONE, KINDS)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["kind", "count", "total_ns"]
    assert [line[:2] for line in lines[1:]] == [
        ["collective", "102"],
        ["kernel", "1,391"],
        ["memcpy", "132"],
        ["memset", "7"],
    ]
    assert lines[1][2] == "50,334,898"


def test_a_file_has_all_rows_in_the_format_of_its_suffix(call, tmp_path):
    for name in ("rows.csv", "rows.json", "rows.parquet", "rows.txt"):
        result = call("sql", ONE, KINDS, "-o", tmp_path / name)
        assert (result.exit_code, result.stdout) == (0, "")
        assert f"wrote {tmp_path / name}" in result.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows[0] == {"kind": "collective", "count": 102, "total_ns": 50_334_898}
    assert len(rows) == 4
    lines = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert [{**line, "count": int(line["count"]), "total_ns": int(line["total_ns"])} for line in lines] == rows
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == rows
    assert (tmp_path / "rows.txt").read_text() == call("sql", ONE, KINDS).stdout


def test_a_format_may_be_named_and_goes_to_standard_output(call):
    printed = call("sql", ONE, KINDS, "--format", "json", "--limit", 1).stdout
    assert json.loads(printed) == [{"kind": "collective", "count": 102, "total_ns": 50_334_898}]
    values = "SELECT 1.5 AS half, [1, 2] AS list, NULL AS nothing, 'nan'::DOUBLE AS nan, DATE '2026-01-02' AS day"
    assert json.loads(call("sql", ONE, values, "--format", "json").stdout) == [
        {"half": 1.5, "list": [1, 2], "nothing": None, "nan": None, "day": "2026-01-02"}
    ]
    text = call("sql", ONE, values, "--format", "csv").stdout
    assert text.splitlines()[1] == '1.5,"[1, 2]",,,2026-01-02'


def test_a_text_shows_the_first_rows_and_says_that_there_are_more(call):
    every = "SELECT id FROM device_ops ORDER BY id"
    result = call("sql", ONE, every)
    assert len(result.stdout.splitlines()) == 1 + command.DEFAULT_TEXT_ROWS
    assert "more than 100 rows: --limit shows more" in result.stderr
    result = call("sql", ONE, every, "--limit", 5)
    assert (len(result.stdout.splitlines()), result.stderr) == (6, "")
    assert len(call("sql", ONE, every, "--format", "csv").stdout.splitlines()) == 1633


def test_a_table_without_rows_says_that_nothing_was_recorded(call):
    result = call("sql", ONE, "SELECT * FROM memory_log")
    assert result.exit_code == 0
    assert result.stderr == "memory_log: not recorded\n"
    assert result.stdout.startswith("run  tool  role")
    assert call("sql", ONE, "SELECT * FROM memory_log", "-q").stderr == ""


@pytest.mark.parametrize("comment", ["-- all = every\n", "--all\n-- and more\n", "/* all */ ", "\n-- x;y\n"])
def test_a_statement_may_begin_with_a_comment(call, comment):
    assert call("sql", ONE, comment + KINDS, "-q").stdout == call("sql", ONE, KINDS).stdout
    described = call("sql", ONE, f"{comment}DESCRIBE kernels").stdout
    assert described == call("sql", ONE, "DESCRIBE kernels").stdout
    assert piped(comment + KINDS, ONE).stdout == call("sql", ONE, KINDS).stdout


def test_an_option_that_is_not_there_is_still_refused(call):
    for option in ("--limits", "--limits\n", "--limits=\nSELECT 1"):
        assert "no option" in call("sql", ONE, KINDS, option).stderr


@pytest.mark.parametrize(
    ("args", "problem", "hint"),
    [
        ([ONE, "SELECT * FROM kernls"], "no table 'kernls'; did you mean 'kernels'?", "SHOW TABLES"),
        ([ONE, "SELECT dur FROM host_ops"], "no column 'dur'; did you mean 'dur_ns'?", "DESCRIBE"),
        ([ONE, "COPY kernels TO 'x.csv'"], "COPY: only queries run here", "-o FILE"),
        ([ONE, "SELECT * FROM read_csv('x.csv')"], "files, networks and extensions are out", "-o FILE"),
        ([ONE, "--recipe", "cuda_gpu_kern_summ"], "no recipe 'cuda_gpu_kern_summ'; did you mean", "--recipes"),
        ([ONE, "SELECT 1", "--recipe", "files"], "--recipe files: a statement is given as well", "leave out"),
        ([ONE, "SELECT 1; SELECT 2", "-o", "x.csv"], "-o takes the rows of one statement", "give one"),
        ([ONE, "SELECT 1 AS a", "-o", "x.xls"], "x.xls: no output format ends in '.xls'", ".csv"),
        ([ONE, "SELECT 1 AS a", "--format", "parquet"], "parquet needs a file", "-o"),
        ([ONE, "SELECT 1 AS a", "--memory", "much"], "--memory much: not a size", "4GiB"),
        (["no_such_place", "SELECT 1 FROM host_ops"], "no_such_place", ""),
        ([], "Missing argument 'PATH...'.", "tracekit sql --help"),
        (["SELECT 1 AS a"], "Missing argument 'PATH...'.", "tracekit sql --help"),
        ([ONE], "no statement is given", "SHOW TABLES"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_what_to_do_in_another(call, args, problem, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("sql", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("tracekit: ")
    assert problem in first
    assert hint in second
    assert list(tmp_path.iterdir()) == []


def test_statements_are_read_from_standard_input_one_after_the_other():
    result = piped(f"-- two of them\n{KINDS};\nSELECT 'x;y' AS text;", ONE)
    assert result.exit_code == 0
    first, second = result.stdout.split("\n\n")
    assert first.startswith("kind        count")
    assert second == "text\nx;y\n"
    assert piped("", ONE).exit_code == 2


def test_recipes_are_listed_printed_and_run(call):
    listed = call("sql", "--recipes").stdout
    assert "cuda_gpu_kern_sum" in listed
    assert "Kernels by name, as `nsys stats` sums them" in listed
    text = call("sql", "--recipe", "cuda_gpu_kern_sum", "--print").stdout
    assert text.startswith("-- Kernels by name")
    by_name = call("sql", ONE, "--recipe", "cuda_gpu_kern_sum")
    assert by_name.stdout == piped(text, ONE).stdout
    assert by_name.stdout.startswith("time_ratio")


def test_a_file_that_cannot_be_read_is_named_and_strict_makes_it_the_status(call, tmp_path):
    shutil.copy(ONE, tmp_path / "good.pt.trace.json.gz")
    (tmp_path / "bad.pt.trace.json").write_text('{"traceEvents": "none", "schemaVersion": 1}')
    for statement in ("SELECT count(*) AS count FROM device_ops", "SELECT count(*) AS count FROM kernels"):
        result = call("sql", tmp_path, statement)
        assert result.exit_code == 0
        assert "bad.pt.trace.json" in result.stderr
        assert call("sql", tmp_path, statement, "--strict").exit_code == 2


def test_a_table_that_failed_is_not_said_to_be_unrecorded(call, monkeypatch):
    fault = Fault("kernels", "measured", "ZeroDivisionError: x", "a.json", 1, ("kernels",))
    rows = table_reading.QueriedRows({}, (), (fault,))
    monkeypatch.setattr(table_reading, "query_rows", lambda *_args, **_more: rows)
    result = call("sql", ONE, "SELECT name FROM kernels")
    assert result.exit_code == 0
    assert "a.json: kernels could not be measured: ZeroDivisionError: x" in result.stderr
    assert "not recorded" not in result.stderr
    assert call("sql", ONE, "SELECT name FROM kernels", "--strict").exit_code == 2


def test_names_of_columns_that_a_profile_made_up_are_safe_to_print(call):
    hostile = "PIVOT (SELECT chr(27) || '[31m' AS name, 1 AS one) ON name USING sum(one)"
    assert call("sql", ONE, hostile).stdout == "\\x1b[31m\n       1\n"


def test_a_narrow_terminal_shortens_texts_and_no_number(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    result = call("sql", ONE, "--recipe", "short_kernels")
    long = "repeat('sm90_gemm_', 12) AS name, 123456789 AS total_ns"
    wide = call("sql", ONE, f"SELECT {long} FROM device_ops LIMIT 2")
    assert max(map(len, wide.stdout.splitlines())) <= 60
    assert "123,456,789" in wide.stdout
    assert "…" in wide.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_sentences_wrap_and_are_not_cut(call, monkeypatch, width):
    whole = call("sql", ONE, "DESCRIBE kernels").stdout
    monkeypatch.setenv("COLUMNS", str(width))
    shown = call("sql", ONE, "DESCRIBE kernels").stdout
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    assert sorted(shown.split()) == sorted(whole.split())


def test_without_duckdb_the_command_says_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = call("sql", ONE, "SELECT 1 AS a")
    assert result.exit_code == 2
    assert "sql needs duckdb" in result.stderr
    assert "tracekit" in result.stderr.splitlines()[1]


def test_no_other_command_imports_duckdb():
    code = f"""
import sys
from tracekit.cli import main
try: main(["analyze", {str(ONE)!r}, "-q"])
except SystemExit: pass
try: main(["sql", "--recipes"])
except SystemExit: pass
assert "duckdb" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- the shell ------------------------------------------------------------------------------------


@pytest.fixture
def typed(monkeypatch, capsys):
    """A function that types lines into the shell, and gives what it printed."""

    def run(*lines):
        remaining = list(lines)

        def read(prompt):
            if not remaining:
                raise EOFError
            line = remaining.pop(0)
            if isinstance(line, BaseException):
                raise line
            prompts.append(prompt)
            return line

        prompts = []
        monkeypatch.setattr("builtins.input", read)
        session = tracekit.sql.session.SqlSession([], lambda _names, _step: {})

        def show(statement):
            print(session.run(statement).rows(10))

        sql_shell.run_sql_shell(session, show)
        assert remaining == []
        return prompts, capsys.readouterr()

    return run


def test_the_shell_runs_a_statement_at_its_semicolon_over_several_lines(typed):
    prompts, printed = typed("SELECT", "", "1 + 1;", "SELECT 2; SELECT 3;")
    assert prompts == ["sql> ", "...> ", "...> ", "sql> "]
    assert printed.out == "[(2,)]\n[(2,)]\n[(3,)]\n\n"


def test_the_shell_takes_a_semicolon_in_a_comment_for_none(typed):
    prompts, printed = typed("-- one;", "SELECT 1 AS one -- ;", "; -- done")
    assert printed.out == "[(1,)]\n\n"
    assert len(prompts) == 3


def test_the_shell_goes_on_after_an_error_and_after_an_interruption(typed):
    _, printed = typed("SELECT nothing;", "SELECT", KeyboardInterrupt(), "SELECT 4;", ".nothing", ".recipe nothing")
    assert printed.out.strip() == "[(4,)]"
    assert "no column 'nothing'" in printed.err
    assert "no command '.nothing'" in printed.err
    assert "no recipe 'nothing'" in printed.err


def test_the_shell_tells_what_it_knows_and_ends_when_told(typed):
    _, printed = typed(".help", ".recipes", ".quit")
    assert "SHOW TABLES" in printed.out
    assert "cuda_gpu_kern_sum" in printed.out


def test_the_shell_opens_on_a_terminal(monkeypatch):
    opened = []
    monkeypatch.setattr(sql_shell, "run_sql_shell", lambda session, *_: opened.append(session))
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    assert piped("", ONE).exit_code == 0
    assert "kernels" in opened[0].tables


def test_errors_of_a_session_are_ours():
    with pytest.raises(TracekitError):
        tracekit.sql.session.SqlSession([], lambda _names, _step: {}).run("SELECT 1 / 'x'").rows(1)


def test_the_hint_for_memory_names_the_option(call):
    statement = "SELECT list(range::VARCHAR || repeat('x', 100)) FROM range(100000000)"
    result = call("sql", ONE, statement, "--memory", "64MiB")
    problem, hint = result.stderr.splitlines()
    assert "memory ran out" in problem
    assert hint.endswith("--memory 8GiB allows more")
