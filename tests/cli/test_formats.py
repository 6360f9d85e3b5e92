"""One convention of all commands: `--format`, its alias `--json`, and `-o FILE`."""

import csv
import io
import json

import pytest

from tracekit.cli import main, options

SIMULATED = "examples/simulated_gpu/outputs/profile"


def get_result_commands():
    """The commands with `--format`, each with the formats that it can write."""
    commands = {}
    for name in main.list_commands(None):
        command = main.get_command(None, name)
        for option in command.params:
            if isinstance(option.type, options.ResultFormat):
                commands[name] = option.type.choices
    return commands


def test_every_command_with_a_result_has_format_output_and_json():
    commands = get_result_commands()
    assert {"analyze", "compare", "gate", "noise", "inspect", "doctor", "sql", "cache"} <= set(commands)
    for name in commands:
        flags = {flag for option in main.get_command(None, name).params for flag in option.opts}
        assert {"-o", "--output", "--format", "--json"} <= flags, name


@pytest.mark.parametrize("name", sorted(get_result_commands()))
def test_a_format_that_a_command_cannot_write_is_refused_with_those_it_can(call, name):
    formats = get_result_commands()[name]
    refused = next((known for known in options.COMPARISON_FORMATS if known not in formats), "pdf")
    done = call(name, "x", "--format", refused)
    assert (done.exit_code, done.stdout) == (2, "")
    assert ", ".join(formats) in done.stderr.splitlines()[1]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["analyze", "x", "--json", "--format", "md"], "--json and --format md name two formats"),
        (["analyze", "x", "--format", "md", "-o", "x.html"], "-o x.html and --format md name two formats"),
        (["inspect", "x", "--json", "-o", "x.csv"], "-o x.csv and --format json name two formats"),
        (["sql", "x", "SELECT 1", "-o", "x.csv", "--json"], "-o x.csv and --format json name two formats"),
        (["sql", "x", "SELECT 1", "-o", "x.csv", "-o", "y.csv"], "the rows go to one place: name one file"),
        (["inspect", "x", "--format", "csvv"], "no output format 'csvv'; did you mean 'csv'?"),
    ],
)
def test_outputs_that_contradict_each_other_are_usage_errors(call, tmp_path, monkeypatch, args, reason):
    monkeypatch.chdir(tmp_path)
    done = call(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"tracekit: {reason}"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("pipeline")
def test_json_is_the_same_as_format_json_and_as_the_older_export(call):
    outputs = [
        call("analyze", "x", "-q", *args).stdout for args in (["--json"], ["--format", "json"], ["--export", "json=-"])
    ]
    assert json.loads(outputs[0])["title"] == "outputs/profile"
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.usefixtures("pipeline")
def test_with_a_file_the_format_is_that_of_the_file(call, tmp_path):
    done = call("analyze", "x", "--format", "json", "-o", tmp_path / "report")
    assert "1,842 ms" in done.stdout
    assert json.loads((tmp_path / "report").read_text())["title"] == "outputs/profile"


@pytest.mark.usefixtures("pipeline")
def test_a_folder_takes_one_file_per_table(call, tmp_path):
    assert call("analyze", "x", "--format", "csv", "-o", tmp_path / "tables").exit_code == 0
    assert (tmp_path / "tables/stages.csv").is_file()
    refused = call("analyze", "x", "--format", "csv")
    assert refused.exit_code == 2
    assert "--format csv -o tables/" in refused.stderr


def test_lists_are_text_json_csv_and_markdown(call, tmp_path):
    rows = json.loads(call("inspect", SIMULATED, "--json").stdout)["sources"]
    table = list(csv.DictReader(io.StringIO(call("inspect", SIMULATED, "--format", "csv").stdout)))
    assert [row["file"] for row in table] == [row["file"] for row in rows]
    markdown = call("inspect", SIMULATED, "--format", "md").stdout.splitlines()
    assert len(markdown) == 2 + len(rows)
    done = call("inspect", SIMULATED, "-o", tmp_path / "files.csv")
    assert "files to read" in done.stdout
    assert (tmp_path / "files.csv").read_bytes().count(b"\r\n") == 1 + len(rows)


def test_sizes_of_the_cache_have_every_format(call):
    kinds = json.loads(call("cache", "--json").stdout)["kinds"]
    table = list(csv.DictReader(io.StringIO(call("cache", "--format", "csv").stdout)))
    assert [row["kind"] for row in table] == list(kinds)


def test_what_doctor_found_has_every_format(call, tmp_path):
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    value = json.loads(call("doctor", tmp_path, "--json").stdout)
    table = list(csv.DictReader(io.StringIO(call("doctor", tmp_path, "--format", "csv").stdout)))
    assert value["diagnoses"]
    assert [row["what"] for row in table] == [diagnosis["what"] for diagnosis in value["diagnoses"]]
    assert all(row["places"].startswith("cut.json") for row in table)


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.HTML", "<!doctype html>"),
        ("r.htm", "<!doctype html>"),
        ("r.md", "**verl**"),
        ("r.json", "{"),
        ("r.prom", "#"),
    ],
)
def test_the_suffix_chooses_the_format(call, tmp_path, name, start):
    assert call("analyze", "x", "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(start)


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(("name", "format_"), [("markdown", "md"), ("txt", "text"), ("htm", "html")])
def test_a_format_may_be_named_by_its_suffix(call, name, format_):
    done = call("analyze", "x", "--format", name)
    assert (done.exit_code, done.stdout) == (0, call("analyze", "x", "--format", format_).stdout)


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("name", ["r.docx", "r", "r.json.gz", "r.xml"])
def test_a_suffix_of_no_format_is_refused_with_the_known_ones(call, tmp_path, name):
    done = call("analyze", "x", "-o", tmp_path / name)
    assert done.exit_code == 2
    assert "no output format ends in" in done.stderr
    assert ".html" in done.stderr.splitlines()[1]


def test_recipes_are_listed_in_every_format_but_parquet(call, tmp_path):
    listed = json.loads(call("sql", "--recipes", "--json").stdout)
    table = list(csv.DictReader(io.StringIO(call("sql", "--recipes", "--format", "csv").stdout)))
    assert listed == table
    lines = call("sql", "--recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [row["recipe"] for row in listed]
    refused = call("sql", "--recipes", "-o", tmp_path / "x.parquet")
    assert refused.exit_code == 2
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    ("args", "problem", "hint"),
    [
        (("--save", "run.json"), "--save run.json: saved measurements are a .tkm file", "--save run.tkm; -o run.json"),
        (("--save", "run"), "--save run: saved measurements are a .tkm file", "--save run.tkm"),
        (("--export", "json=a.html"), "the kind and the suffix of --export json=a.html name two formats", "--help"),
    ],
)
def test_a_suffix_of_another_format_is_refused_before_anything_is_read(call, pipeline, args, problem, hint):
    done = call("analyze", "x", *args)
    assert (done.exit_code, done.stdout, pipeline.calls) == (2, "", [])
    first, second = done.stderr.splitlines()
    assert first == f"tracekit: {problem}"
    assert hint in second


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("noise", "x", "-o", "noise.csv"), "no output format ends in '.csv'"),
        (("export", "x", "-o", "page.html.gz"), "no output format ends in '.html.gz'"),
        (("compare", "x", "y", "--export", "junit=gate.json"), "--export junit=gate.json name two formats"),
    ],
)
def test_no_file_gets_content_of_another_format_than_its_suffix(call, tmp_path, monkeypatch, args, reason):
    monkeypatch.chdir(tmp_path)
    done = call(*args)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("analyze", "x", "--tokens", "-3"), "'--tokens': must be above 0, not -3"),
        (("compare", "x", "y", "--tokens", "-3"), "--tokens -3: must be one or two positive numbers of tokens"),
        (("analyze", "x", "--top", "-1"), "'--top': must be at least 1, not -1"),
        (("analyze", "x", "--top", "many"), "'--top': must be a whole number, not many"),
        (("compare", "x", "y", "--level", "200"), "'--level': must be at most 99.99, not 200"),
        (("compare", "x", "y", "--min-effect", "x"), "'--min-effect': must be a number, not x"),
        (("sql", "x", "--limit", "0"), "'--limit': must be at least 1, not 0"),
        (("analyze", "x", "--steps", "-3"), "--steps: '-3' is not a number or a range"),
        (("analyze", "x", "--ranks", "3-1"), "--ranks: the range 3-1 ends before it begins"),
        (("analyze", "x", "--device-memory", "-3"), "--device-memory -3: must be between 1.00 MiB and 1,024 TiB"),
        (("analyze", "x", "--device-memory", "much"), "--device-memory: not a size: 'much'"),
        (("compare", ".", ".", "--noise", "no.json"), "no.json: no such file"),
        (("compare", ".", ".", "--noise", "bad.json"), "bad.json: is not an A/A noise file: it is not JSON"),
    ],
)
def test_an_error_about_a_value_names_the_option_and_what_it_takes(call, tmp_path, monkeypatch, args, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("step,seconds\n")
    done = call(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr.splitlines()[0]
    assert "in the range" not in done.stderr
