import json

import pytest

from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.pipeline.cache import saved_measurements


def test_the_answer_is_printed_and_the_work_told_beside_it(call, pipeline):
    result = call("analyze", "outputs/profile")
    assert result.exit_code == 0
    assert "8 ranks" in result.stdout
    assert "1,842 ms" in result.stdout
    assert result.stderr.startswith("read 2 files, 2.00 MiB in ")
    assert "read" not in result.stdout


def test_every_option_reaches_the_pipeline(call, pipeline):
    options = "--ranks 0-3 --steps 2 --stages actor* --stages ref --exclude *.bak -j 3 --strict --device-memory 80GiB --sample 4"
    result = call("analyze", "a", "b=c", *options.split())
    assert result.exit_code == 0
    ((paths, given),) = pipeline.calls
    assert paths == ["a", "b=c"]
    assert given == pipeline.Options(
        "0-3", "2", ("actor*", "ref"), ("*.bak",), 3, True, device_memory=80 * 2**30, sample=4
    )


@pytest.mark.parametrize(
    ("asked", "details"),
    [
        ("", False),
        ("--quiet", False),
        ("-o FOLDER/report.txt", False),
        ("-v", True),
        ("-o FOLDER/report.txt -v", True),
        ("-o FOLDER/report.html", True),
        ("-q -o FOLDER/report.md", True),
        ("--export json=-", True),
        ("--export csv=FOLDER/tables", True),
        ("--save FOLDER/x.tkm", True),
        ("--strict", True),
    ],
)
def test_details_are_made_where_an_output_shows_them(call, pipeline, tmp_path, asked, details):
    assert call("analyze", "x", *asked.replace("FOLDER", str(tmp_path)).split()).exit_code == 0
    assert pipeline.calls[0][1].details is details


def test_quiet_prints_nothing_and_asks_for_no_progress(call, pipeline):
    result = call("analyze", "x", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert pipeline.calls[0][1].progress is False


def test_reports_are_written_in_the_format_of_their_suffix(call, pipeline, tmp_path):
    result = call("analyze", "x", "-o", tmp_path / "r.html", "-o", tmp_path / "r.json")
    assert result.exit_code == 0
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "r.json").read_text())["title"] == "outputs/profile"
    assert "1,842 ms" in result.stdout
    assert f"wrote {tmp_path / 'r.html'}" in result.stderr


def test_exports_of_several_files_make_a_directory(call, pipeline, tmp_path):
    folder = tmp_path / "tables"
    for _ in range(2):  # the second time it exists
        assert call("analyze", "x", "--export", f"csv={folder}").exit_code == 0
    assert list(folder.glob("*.csv"))


def test_an_export_to_standard_output_takes_the_place_of_the_text(call, pipeline):
    result = call("analyze", "x", "--export", "json=-")
    assert json.loads(result.stdout)["title"] == "outputs/profile"
    assert json.loads(call("analyze", "x", "-q", "--export", "json=-").stdout)


def test_saved_measurements_can_be_loaded(call, pipeline, tmp_path):
    result = call("analyze", "x", "--save", tmp_path / "x.tkm")
    assert result.exit_code == 0
    assert f"wrote {tmp_path / 'x.tkm'}" in result.stderr
    assert len(saved_measurements.load(tmp_path / "x.tkm").sources) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "nowhere/r.html"), "there is no directory nowhere"),
        (("-o", "."), "no output format"),
        (("-o", "r.pdf"), "no output format ends in '.pdf'"),
        (("-o", "-"), "no format is named"),
        (("-o", "r.csv"), "csv writes one file per table"),
        (("--export", "json"), "not KIND=PATH"),
        (("--export", "pdf=x"), "no output format 'pdf'"),
        (("--export", "csv=-"), "name a directory"),
        (("--export", "csv=nowhere/tables"), "there is no directory nowhere"),
        (("--export", "csv=file"), "is a file, and a directory is wanted"),
        (("--export", "json=-", "--export", "md=-"), "can take one of json, md"),
        (("--save", "nowhere/x.tkm"), "there is no directory nowhere"),
        (("--save", "."), "is a directory"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_anything_is_read(
    call, pipeline, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = call("analyze", "x", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "          try: " in result.stderr
    assert result.stdout == ""
    assert pipeline.calls == []


def test_failed_files_are_named_and_the_rest_is_reported(call, fail_some):
    fail_some(read=1, failed=2)
    result = call("analyze", "x", "-q")
    assert result.exit_code == 0
    expected = "tracekit: bad0.json: not a trace\n          try: check the copy\n"
    assert result.stderr.startswith(expected)
    assert "read 1 file, " in call("analyze", "x").stderr


def test_many_failed_files_are_counted(call, fail_some):
    fail_some(read=1, failed=15)
    result = call("analyze", "x")
    assert result.stderr.count("not a trace") == 10
    assert "5 more files could not be read" in result.stderr


def test_a_failed_file_fails_a_strict_run_after_the_report(call, fail_some, tmp_path):
    fail_some(read=1, failed=1)
    result = call("analyze", "x", "--strict", "-o", tmp_path / "r.html")
    assert result.exit_code == 2
    assert (tmp_path / "r.html").exists()
    assert "1,842 ms" in result.stdout


def test_when_nothing_could_be_read_the_status_says_so(call, fail_some):
    fail_some(read=0, failed=1)
    assert call("analyze", "x").exit_code == 2


@pytest.mark.parametrize(
    "error",
    [
        TracekitError("nothing: no profiles found", "name the directory"),
        TraceFormatError("nothing", "no profiles found", "name the directory"),
    ],
)
def test_an_error_is_two_lines_and_status_2(call, pipeline, error):
    pipeline.result = error
    result = call("analyze", "x")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == ("tracekit: nothing: no profiles found\n          try: name the directory\n")


def test_names_from_files_cannot_write_to_the_terminal(call, pipeline):
    pipeline.result = TracekitError("\x1b[31mevil\nname", "")
    assert call("analyze", "x").stderr == "tracekit: \\x1b[31mevil\\nname\n"


def test_an_internal_error_is_told_without_a_stack_unless_asked(call, pipeline):
    pipeline.result = ZeroDivisionError("division by zero")
    result = call("analyze", "x")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first == "tracekit: internal error: ZeroDivisionError: division by zero"
    assert second.startswith("          try: report this line")
    assert "Traceback" in call("analyze", "x", "-v").stderr


def test_running_out_of_memory_is_told_with_what_to_do(call, pipeline):
    pipeline.result = MemoryError()
    result = call("analyze", "x")
    assert result.exit_code == 2
    assert result.stderr.startswith("tracekit: memory ran out\n          try: read fewer")


def test_an_interrupt_has_its_own_status(call, pipeline):
    pipeline.result = KeyboardInterrupt()
    result = call("analyze", "x")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [(), ("x", "--nope"), ("x", "-j", "0"), ("x", "--top", "many")])
def test_wrong_usage_is_status_2_and_names_the_help(call, pipeline, arguments):
    result = call("analyze", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("tracekit: ")
    assert "try: tracekit analyze --help" in result.stderr
