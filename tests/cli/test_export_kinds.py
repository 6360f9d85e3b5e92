"""`export --to`: profiles and saved files in every format, by the same code as the older `render` and `--perfetto`."""

import json

import pytest
from cli.exports import named, rows_of, two_ranks

from tracekit.model.trace import Measurements
from tracekit.pipeline.cache import saved_measurements

SIMULATED = "examples/simulated_gpu/outputs/profile"


@pytest.mark.parametrize(("kind", "name"), [("html", "r.html"), ("md", "r.md"), ("json", "r.json"), ("text", "r.txt")])
def test_profiles_are_exported_as_analyze_writes_them(call, tmp_path, kind, name):
    written, exported = tmp_path / f"analyze-{name}", tmp_path / name
    assert call("analyze", SIMULATED, "-q", "-o", written).exit_code == 0
    done = call("export", SIMULATED, "--to", kind, "-o", exported)
    assert (done.exit_code, done.stdout) == (0, "")
    assert exported.read_bytes() == written.read_bytes()
    assert done.stderr == f"wrote {exported}\n"


def test_a_timeline_is_the_same_by_both_spellings_and_beside_other_formats(call, tmp_path):
    folder = two_ranks(tmp_path / "in")
    older, newer, both = (tmp_path / f"{name}.json.gz" for name in ("older", "newer", "both"))
    assert call("export", folder, "--perfetto", older, "-j", "1").exit_code == 0
    assert call("export", folder, "--to", "perfetto", "-o", newer, "-j", "1").exit_code == 0
    assert call("export", folder, "-o", both, "-o", tmp_path / "r.md", "-j", "1").exit_code == 0
    assert older.read_bytes() == newer.read_bytes() == both.read_bytes()
    assert len(named(rows_of(newer)[1], "gemm")) == 4
    assert "gemm" in (tmp_path / "r.md").read_text(encoding="utf-8")


def test_a_timeline_may_be_a_plain_json_file(call, tmp_path):
    target = tmp_path / "out.json"
    assert call("export", two_ranks(tmp_path / "in"), "--to", "perfetto", "-o", target, "-j", "1").exit_code == 0
    assert "traceEvents" in json.loads(target.read_text())


def test_measurements_are_exported_and_read_again(call, tmp_path):
    saved = tmp_path / "run.tkm"
    assert call("export", SIMULATED, "-o", saved).exit_code == 0
    assert isinstance(saved_measurements.load(saved), Measurements)
    assert call("export", saved, "--to", "json").stdout == call("analyze", SIMULATED, "-q", "--json").stdout


@pytest.mark.parametrize("args", [(), ("-f", "json"), ("-f", "md", "--top", "1")])
def test_render_is_export(call, report_file, args):
    assert call("render", report_file, *args).stdout == call("export", report_file, *args).stdout != ""


def test_tables_are_files_of_a_folder(call, report_file, tmp_path):
    assert call("export", report_file, "--to", "csv", "-o", tmp_path / "t").exit_code == 0
    assert (tmp_path / "t/stages.csv").is_file()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([SIMULATED], "no format is named: --to perfetto, html, md, json, csv or tkm"),
        ([SIMULATED, "--to", "perfetto"], "perfetto needs a file"),
        ([SIMULATED, "--to", "tkm"], "tkm needs a file"),
        ([SIMULATED, "--to", "junit"], "junit is a format of gates, and a report has none"),
        ([SIMULATED, "--to", "perfeto"], "no output format 'perfeto'; did you mean 'perfetto'?"),
        ([SIMULATED, "--to", "html", "--range", "0:1ms"], "--range limits a timeline, and none is written"),
        ([SIMULATED, "--to", "html", "-o", "x.md"], "-o x.md and --format html name two formats"),
    ],
)
def test_exports_that_are_impossible_are_refused(call, args, reason):
    done = call("export", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"tracekit: {reason}"


def test_a_saved_report_has_no_measurements(call, report_file, tmp_path):
    done = call("export", report_file, "-o", tmp_path / "x.tkm")
    assert done.exit_code == 2
    assert "tkm contains measurements, and this file has none" in done.stderr
    assert not (tmp_path / "x.tkm").exists()


@pytest.mark.parametrize(("alias", "command"), [("top", "analyze"), ("diff", "compare"), ("render", "export")])
def test_an_alias_is_a_command_that_help_does_not_list(call, alias, command):
    shown = call(alias, "--help").stdout
    assert shown == call(command, "--help").stdout.replace(f"tracekit {command} ", f"tracekit {alias} ", 1)
    assert f"\n  {alias} " not in call("--help").stdout
