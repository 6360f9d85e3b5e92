import csv
import io
import json
import re
from pathlib import Path

import pytest

from tracekit.analyses import rules
from tracekit.cli import COMMANDS, terminal
from tracekit.cli.glossary import TERMS
from tracekit.cli.topics import COMMAND_PAGES
from tracekit.discover import Discovery
from tracekit.discover.arguments import UnreadFile
from tracekit.model import tables as schema
from tracekit.model.inputs.note_codes import Reason
from tracekit.model.trace import Measurements, Note, Source
from tracekit.pipeline.cache import saved_measurements

# --- inspect


@pytest.fixture
def found(pipeline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = Source(Path("/d/a.json"), "a.json", "chrome", run="r", rank=1, world_size=8, step=2)
    first = first.with_note("warning", "odd", "looks odd")
    pipeline.discovery = Discovery(
        sources=(first, Source(Path("/d/b.json"), "b.json", "chrome", run="r", size_bytes=2048)),
        ignored=(UnreadFile(tmp_path / "notes.txt", Reason("no-format", "not a format that tracekit reads")),),
        notes=(Note("info", "left-out", "1 file left out"),),
        title="outputs/profile",
    )
    return pipeline


def test_inspect_shows_how_every_file_is_read(call, found):
    result = call("inspect", "outputs/profile")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "outputs/profile: 2 files to read"
    heading = next(line for line in lines if line.startswith("file"))
    row = next(line for line in lines if line.startswith("a.json"))
    assert heading.split() == ["file", "reader", "run", "step", "rank", "size", "notes"]
    assert row.split()[:6] == ["a.json", "chrome", "r", "2", "1/8", "0"]
    assert "odd: looks odd" in row


def test_inspect_shows_what_is_ignored_and_why(call, found):
    output = call("inspect", "x").stdout
    assert "Ignored: 1" in output
    assert "notes.txt  not a format that tracekit reads" in output
    assert "1 file left out" in output


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_the_files_of_inspect_fit_the_terminal(call, pipeline, monkeypatch, width):
    names = [f"actor-rollout-ref_train_step{n}_rank{n}-of-4_pid108{n}_20261120082159373.json.gz" for n in range(4)]
    common = {"run": "verl_like_perstep", "role": "actor-rollout-ref", "scope": "train", "world_size": 4}
    pipeline.discovery = Discovery(
        tuple(
            Source(
                Path("/d") / name,
                name,
                "chrome",
                rank=n,
                step=n,
                pid=1080 + n,
                size_bytes=170_000 + 9_000 * n,
                **common,
            )
            for n, name in enumerate(names)
        ),
        title="profile",
    )
    monkeypatch.setenv("COLUMNS", str(width))
    text = call("inspect", "x").stdout
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for value in ("chrome", "verl_like_perstep", "actor-rollout-ref", "train"):
        assert value in words
    assert ("Same for all: reader chrome" in words) == (width < 120)
    assert ("(--format csv shows all)" in words) == (width == 50)


def test_inspect_counts_ignored_files_that_are_too_many_to_show(call, found):
    many = tuple(UnreadFile(Path(f"/d/{n}"), Reason("no-format", "no")) for n in range(30))
    found.discovery = Discovery((), many)
    result = call("inspect", "x")
    assert "… and 10 more (-v)" in result.stdout
    assert "more (-v)" not in call("inspect", "x", "-v").stdout
    assert result.exit_code == 2


def test_inspect_prints_json_for_programs(call, found):
    value = json.loads(call("inspect", "x", "--json", "--exclude", "*.bak").stdout)
    assert [source["file"] for source in value["sources"]] == ["a.json", "b.json"]
    assert value["ignored"] == [
        {"file": "notes.txt", "reason": "not a format that tracekit reads", "code": "no-format"}
    ]
    assert value["notes"][0]["code"] == "left-out"
    assert found.calls[0][1].exclude == ("*.bak",)


# --- render


def test_a_saved_report_is_shown_as_text(call, report_file):
    result = call("render", report_file)
    assert result.exit_code == 0
    assert "1,842 ms" in result.stdout
    assert result.stderr == ""


def test_a_saved_report_is_shown_in_the_format_asked_for(call, report_file, tmp_path):
    assert json.loads(call("render", report_file, "-f", "json").stdout)["title"]
    assert "<html" in call("render", report_file, "-f", "html").stdout
    assert call("render", report_file, "-o", tmp_path / "r.md").exit_code == 0
    assert "8 ranks" in (tmp_path / "r.md").read_text(encoding="utf-8")
    assert call("render", report_file, "-f", "csv", "-o", tmp_path / "t").exit_code == 0
    assert list((tmp_path / "t").iterdir())


def test_saved_measurements_are_judged_and_shown(call, pipeline, tmp_path):
    path = tmp_path / "x.tkm"
    saved_measurements.save(Measurements({}, ()), path)
    assert "1,842 ms" in call("render", path).stdout
    assert isinstance(pipeline.calls[0], Measurements)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1", b"\xff\xfe", b"PK\x03\x04", b'{"schema": "other/1"}'])
def test_other_files_are_refused_by_name(call, pipeline, tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    result = call("render", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tracekit: {path}: ")
    assert "          try: " in result.stderr
    assert result.stdout == ""


def test_a_format_of_several_files_needs_a_directory(call, report_file):
    result = call("render", report_file, "-f", "csv")
    assert result.exit_code == 2
    assert "name a directory" in result.stderr


# --- tables


def test_all_tables_are_shown_with_their_columns(call):
    output = call("tables").stdout
    for name, table in schema.TABLES.items():
        assert f"{name} — one row: {table.row}" in output
    assert output.count("Global rank of the process.") == 1


def test_one_table_is_shown_with_its_type_and_meaning(call):
    lines = call("tables", "kernels").stdout.splitlines()
    assert len(lines) == 1 + len(schema.TABLES["kernels"].columns)
    assert any(line.split()[:2] == ["total_ns", "int64"] for line in lines)


def test_tables_as_markdown_have_a_row_for_every_column(call):
    output = call("tables", "counters", "--markdown").stdout
    assert output.startswith("### `counters`\n")
    rows = [line for line in output.splitlines() if line.startswith("| `")]
    assert len(rows) == len(schema.TABLES["counters"].columns)
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)
    every = call("tables", "--markdown").stdout
    assert every.count("\n### `") == len(schema.TABLES) + 1, "and args, which SQL alone has"


# --- explain


PAGE = """# R02 straggler: One rank is late

The others wait for it,
in *every* step.

**Cause.** Collectives run at the speed of the slowest rank, see [the guide](https://x.org/a).

- Its clock is lower by 5 % than the clocks of all other ranks of the same process group are.
- `load` differs.
"""


@pytest.fixture
def two_rules(monkeypatch):
    first = rules.RulePage("straggler", "R02", "One rank is late", PAGE)
    second = rules.RulePage("idle", "R01", "The GPU waits", "# R01 idle: The GPU waits\n\nIt waits.\n")
    monkeypatch.setattr(rules, "RULES", (first, second))


def test_all_rules_are_listed(call, two_rules):
    lines = call("explain").stdout.splitlines()
    assert lines[1:] == ["R02  straggler  One rank is late", "R01  idle       The GPU waits"]


def test_one_rule_is_explained_with_its_summary_first(call, two_rules, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert call("explain", "R02").stdout.splitlines() == [
        "straggler (R02): One rank is late",
        "",
        "The others wait for it, in every step.",
        "",
        "Cause",
        "  Collectives run at the speed of the slowest rank, see the",
        "  guide (https://x.org/a).",
        "",
        "  - Its clock is lower by 5 % than the clocks of all other",
        "    ranks of the same process group are.",
        "  - `load` differs.",
    ]


def test_headings_are_bold_on_a_terminal_only(call, two_rules, monkeypatch):
    plain = call("explain", "R02").stdout
    assert "\x1b" not in plain
    monkeypatch.setattr(terminal, "get_page_width", lambda: (100, True))
    styled = call("explain", "R02").stdout
    assert "\x1b[1mCause\x1b[0m" in styled
    assert re.sub(r"\x1b\[\d+m", "", styled) == plain


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_pages_of_rules_fit_every_terminal_and_lose_no_word(call, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for rule in rules.RULES:
        shown = call("explain", rule.id).stdout
        assert max(map(len, shown.splitlines())) <= min(width, 100)
        assert len(re.findall(r"\w+", shown)) == len(re.findall(r"\w+", rule.page)), rule.id


def test_a_rule_is_written_as_markdown_and_json(call, two_rules):
    assert call("explain", "R02", "--format", "md").stdout == PAGE
    assert json.loads(call("explain", "r2", "--json").stdout)["page"] == PAGE
    assert call("explain", "R02", "--format", "csv").stdout.splitlines()[0] == "number,rule,finds"


def test_a_rule_is_named_by_its_number_with_or_without_its_zero(call):
    assert call("explain", "r9").stdout == call("explain", "R09").stdout
    assert call("explain", "R9").stdout.startswith("straggler (R09): ")


def test_an_unknown_rule_is_refused(call):
    assert call("explain", "no-such-rule").exit_code == 2


# --- one look-up


@pytest.mark.parametrize("command", ["explain", "tables", "schema"])
@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("straggler", "straggler (R09): "),
        ("kernels", "kernels — one row: "),
        ("gpu_busy", "gpu_busy: a metric that `compare` and `gate` check"),
        ("idle_ns", "idle_ns: a column of "),
        ("report", '{\n "$schema"'),
        ("gate", "gate: a command (tracekit gate)"),
        ("mfu", "MFU, roofline: glossary"),
        ("Launch bound", "launch-bound (R03): "),
    ],
)
def test_every_kind_of_name_is_found_by_every_look_up(call, command, name, start):
    done = call(command, name)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(start)


@pytest.mark.parametrize("command", ["explain", "tables", "schema"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stragler", "straggler"),
        ("strag", "straggler"),
        ("kernls", "kernels"),
        ("step_tim", "step_time"),
        ("inspct", "inspect"),
    ],
)
def test_candidates_come_from_every_kind_of_name(call, command, typed, meant):
    done = call(command, typed)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"tracekit: unknown name {typed!r}; did you mean {meant!r}?"


def test_a_column_says_what_it_means_in_which_tables(call):
    value = json.loads(call("tables", "mean_ns", "--json").stdout)
    holders = {name for row in value["rows"] for name in row["tables"].split(", ")}
    assert "kernels" in holders
    assert holders == {name for name, table in schema.TABLES.items() if "mean_ns" in table.columns}


@pytest.mark.parametrize("format_", ["text", "json", "csv", "md"])
@pytest.mark.parametrize("name", ["straggler", "kernels", "gpu_busy", "idle_ns", "noise", "MFU", "report"])
@pytest.mark.parametrize("command", ["explain", "tables", "schema"])
def test_every_name_has_every_format_that_the_help_lists(call, command, name, format_):
    done = call(command, name, "--format", format_)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_explain_finds_every_command_with_its_page(call, name):
    text = " ".join(call("explain", f"tracekit {name}").stdout.split())
    assert text.startswith(f"{name}: a command (tracekit {name})")
    page = Path("docs") / f"{COMMAND_PAGES[name]}.md"
    assert f"Options: tracekit {name} --help. Documentation: {page}." in text
    assert page.is_file()
    if name not in ("open", "completion"):
        assert f"tracekit {name}" in page.read_text(encoding="utf-8")


def test_a_name_that_is_in_pages_of_rules_only_leads_to_them(call):
    done = call("explain", "nccl")
    assert done.exit_code == 2
    assert "rules that mention it: small-collectives" in done.stderr


def test_explain_finds_a_question_with_its_rules_and_tables(call):
    text = call("explain", "card-holders").stdout
    assert text.startswith("card-holders: Who uses the GPU's memory, while engines sleep and wake?")
    assert "tracekit analyze PATH -v --only card-holders" in text
    assert "Tables (tracekit tables NAME): card_holders, card_lines." in text
    assert call("explain", "hang").stdout.startswith("hang (R70): "), "a rule of the same name is first"


@pytest.mark.parametrize(
    ("command", "option"), [(("log", "x"), "--to SYSTEM=TARGET: tensorboard=DIR"), (("collect",), "-o DIR: ")]
)
def test_the_hint_about_a_missing_option_has_its_value_and_meaning(call, command, option):
    assert f"--help; {option}" in call(*command).stderr


def test_the_glossary_of_explain_is_that_of_the_page():
    rows = [f"| {words} | {meaning} |" for words, meaning in TERMS.items()]
    assert "\n".join(rows) in Path("docs/glossary.md").read_text(encoding="utf-8")


def test_a_schema_in_markdown_lists_each_field(call):
    lines = call("schema", "noise", "--format", "md").stdout.splitlines()
    assert lines[0] == "# `noise`: `urn:tracekit:noise:1`"
    assert "| MetricNoise | rho | number or null | yes |" in lines
    rows = list(csv.DictReader(io.StringIO(call("schema", "compare", "--format", "csv").stdout)))
    document = json.loads(call("schema", "compare").stdout)
    bodies = {document["title"]: document, **document["$defs"]}
    assert [(row["object"], row["field"]) for row in rows] == [
        (title, field) for title, body in bodies.items() for field in body["properties"]
    ]


def test_tables_are_json_and_csv(call):
    tables = json.loads(call("tables", "--json").stdout)
    assert {table["name"] for table in tables} >= set(schema.TABLES)
    rows = list(csv.DictReader(io.StringIO(call("tables", "kernels", "--format", "csv").stdout)))
    assert [row["column"] for row in rows] == list(schema.TABLES["kernels"].columns)


# --- the group


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(call, shell):
    result = call("completion", shell)
    assert result.exit_code == 0
    assert f"_TRACEKIT_COMPLETE={shell}_complete" in result.stdout


def test_completion_knows_commands_and_options(call, monkeypatch):
    monkeypatch.setenv("_TRACEKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tracekit an")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert call().stdout == "plain,analyze\n"
    monkeypatch.setenv("COMP_WORDS", "tracekit analyze --st")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert call().stdout == "plain,--steps\nplain,--stages\nplain,--strict\n"


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ("explain strag", {"straggler"}),
        ("explain R0", {f"R0{n}" for n in range(1, 10)}),
        ("explain gpu_bus", {"gpu_busy"}),
        ("tables kern", {"kernels"}),
        ("schema comp", {"compare"}),
        ("compare a b --fail-on step_t", {"step_time>"}),
        ("gate a --fail-on regr", {"regression"}),
        ("analyze x --only kern", {"kernels"}),
        ("analyze x --format m", {"md"}),
        ("export x --to perf", {"perfetto"}),
        ("analyze x --export csv", {"csv="}),
        ("sql --recipe short", {"short_kernels"}),
    ],
)
def test_completion_knows_names(call, monkeypatch, words, items):
    monkeypatch.setenv("_TRACEKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"tracekit {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert {line.removeprefix("plain,") for line in call().stdout.splitlines()} == items


@pytest.mark.parametrize("words", ["analyze ", "export ", "analyze x -o ", "analyze x --export csv=", "collect "])
def test_completion_asks_the_shell_for_paths(call, monkeypatch, words):
    monkeypatch.setenv("_TRACEKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"tracekit {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    assert call().stdout == "file,\n"


def test_help_names_every_command(call):
    from tracekit.cli import COMMANDS

    output = call("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in output
        result = call(name, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: tracekit {name}")


def test_without_a_command_the_help_is_the_result(call):
    result = call()
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout == call("--help").stdout
    assert result.stdout.startswith("Usage: tracekit [OPTIONS]")
    assert "\n  analyze " in result.stdout


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("analyze", "Missing argument 'PATH...'."),
        ("compare", "two sides are needed: before and after the change"),
        ("gate", "Missing argument 'PATH...'."),
        ("noise", "no run is named"),
        ("inspect", "Missing argument 'PATH...'."),
        ("doctor", "Missing argument 'PATH...'."),
        ("export", "Missing argument 'PATH...'."),
        ("open", "Missing argument 'PATH...'."),
        ("collect", "Missing option '-o' / '--output'."),
        ("mcp", "Missing option '--root'."),
        ("completion", "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
    ],
)
def test_a_command_without_what_it_needs_says_in_one_line_what_is_missing(call, command, missing):
    result = call(command)
    assert (result.exit_code, result.stdout) == (2, "")
    problem, hint = result.stderr.splitlines()
    assert problem == f"tracekit: {missing}"
    assert hint.startswith("          try: tracekit ")


def test_every_command_is_called_without_arguments(call):
    """The table above, the four commands that list everything and the example are all there are."""
    from tracekit.cli import COMMANDS

    assert {name for name in COMMANDS if call(name).exit_code == 0} == {"cache", "demo", "explain", "schema", "tables"}


@pytest.mark.parametrize(
    ("args", "problem", "hint"),
    [
        (["analyse"], "no command 'analyse'; did you mean 'analyze'?", "tracekit --help"),
        (["xyzzy"], "no command 'xyzzy'", "tracekit --help"),
        (["explain", "straggle"], "unknown name 'straggle'; did you mean 'straggler'?", "tracekit explain lists rules"),
        (["tables", "Kernls"], "unknown name 'Kernls'; did you mean 'kernels'?", "tracekit explain lists rules, "),
        (["analyze", "x", "--rank", "3"], "no option '--rank'; did you mean '--ranks'?", "tracekit analyze --help"),
        (["analyze", "x", "--wibble"], "no option '--wibble'", "tracekit analyze --help"),
        (
            ["analyze", "x", "--export", "cvs=d"],
            "no output format 'cvs'; did you mean 'csv'?",
            "there are: text, html, md, json, csv, parquet, openmetrics",
        ),
        (
            ["analyze", "x", "-o", "a.jsn"],
            "a.jsn: no output format ends in '.jsn'; did you mean '.json'?",
            "there are: .txt .html .htm .md .markdown .json .csv .parquet .prom",
        ),
        (
            ["compare", "a", "b", "--fail-on", "step_tme>3%"],
            "no metric is called 'step_tme'; did you mean 'step_time'?",
            "there are: ",
        ),
    ],
)
def test_what_was_mistyped_is_told_with_what_was_meant(call, args, problem, hint):
    result = call(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[0] == f"tracekit: {problem}"
    assert lines[1].startswith(f"          try: {hint}")


def test_a_path_where_a_command_was_expected_is_taken_to_be_analysed(call, tmp_path):
    result = call(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1] == f"          try: tracekit analyze {tmp_path}"
