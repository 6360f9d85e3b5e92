"""`tracekit doctor` as it is called: what it prints, and the status it leaves."""

import json
import os
from dataclasses import replace

import nsys_programs
import pytest
from chrome_builder import launched, op, step, write

from tracekit.health.checks import diagnose
from tracekit.model.trace import Failure


def rank(folder, number, world=2):
    rows = [step(1, 0, 90), op("aten::mm", number, 50), *launched("gemm", 5, 10, 20, 1)]
    return write(folder / f"rank{number}.json", rows, rank=number, world_size=world)


@pytest.fixture
def healthy(tmp_path, monkeypatch):
    nsys_programs.uninstall(tmp_path / "nothing", monkeypatch)
    folder = tmp_path / "profile"
    rank(folder, 0)
    rank(folder, 1)
    return folder


def test_a_healthy_directory_is_said_to_be_one(call, healthy):
    result = call("doctor", healthy)
    assert result.exit_code == 0
    assert result.stdout == (
        f"{healthy}: nothing wrong was found\n\n2 of 2 files read · ranks 0, 1 · step 1 · GPU work in 2\n"
    )


def test_what_is_wrong_is_told_with_cause_and_remedy_the_gravest_first(call, healthy):
    rank(healthy, 3, world=4)
    for number in range(4, 9):
        (healthy / f"rank{number}.json").touch()
    result = call("doctor", healthy)
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert lines[0] == f"{healthy}: 2 things to know"
    assert lines[2:4] == ["lost: 5 files of 0 bytes", "  files: rank4.json, rank5.json, rank6.json and 2 more"]
    assert lines[4].startswith("  cause: still being written, the disk was full")
    assert lines[5].startswith("  to do: wait until the job has ended")
    assert lines[7] == "warning: 1 rank of 4 missing: 2"
    assert lines[-1] == "8 files: 3 read, 5 refused · ranks 0, 1, 3 · step 1 · GPU work in 3"
    assert "rank8.json" in call("doctor", "-v", healthy).stdout


def test_strict_fails_on_what_was_lost_and_without_it_only_what_is_no_profile_does(call, healthy):
    rank(healthy, 3, world=4)
    assert call("doctor", "--strict", healthy).exit_code == 0
    cut = healthy / "rank3.json"
    cut.write_bytes(cut.read_bytes()[:-20])
    assert call("doctor", "--strict", healthy).exit_code == 2
    assert call("doctor", healthy).exit_code == 0
    (healthy / "rank2.json").touch()
    assert call("doctor", healthy).exit_code == 2


def test_where_nothing_could_be_read_the_status_is_2_and_the_reason_is_told(call, tmp_path, healthy):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "worker_process_1.nsys-rep").touch()
    result = call("doctor", tmp_path / "empty")
    assert result.exit_code == 2
    assert "no profile among 1 file" in result.stdout
    assert "1 file of 0 bytes" in result.stdout
    assert call("doctor", tmp_path / "gone").exit_code == 2
    report = tmp_path / "lone" / "worker_process_1.nsys-rep"
    nsys_programs.put_report(report)
    result = call("doctor", report)
    assert result.exit_code == 2
    assert "no nsys here to export them" in result.stdout


def test_programs_get_json(call, healthy):
    (healthy / "rank2.json").touch()
    value = json.loads(call("doctor", "--json", healthy).stdout)
    (found,) = value["diagnoses"]
    assert (found["code"], found["severity"], found["places"]) == ("empty-file", "data_loss", ["rank2.json"])
    assert (value["file_count"], value["read_count"], value["ignored_count"]) == (2, 2, 1)
    assert value["held"][0] == "3 files: 2 read, 1 refused"


def test_names_from_the_disk_do_not_reach_the_terminal_as_they_are(call, healthy):
    names = ["\x1b[31mrank5.json", "rank6\u202e.json", "rank7\n.json"]
    for name in [*names, os.fsdecode(b"rank8\xff.json")]:
        (healthy / name).touch()
    for arguments in ([], ["-v"], ["--json"]):
        printed = call("doctor", *arguments, healthy).stdout
        assert "\x1b" not in printed
        assert "\u202e" not in printed
        assert "4 files of 0 bytes" in printed
        printed.encode()
    assert "rank7\\n.json" in call("doctor", "-v", healthy).stdout


def test_many_problems_stay_on_one_screen(call, healthy, monkeypatch):
    from tracekit.pipeline import doctor

    def examine(paths, options):
        found = examined(paths, options)
        failures = [Failure(f"rank{n}.json", f"problem {n}") for n in range(40)]
        return replace(found, diagnoses=diagnose((), (), failures))

    examined = doctor.examine_captures
    monkeypatch.setattr(doctor, "examine_captures", examine)
    lines = call("doctor", healthy).stdout.splitlines()
    assert lines[0].endswith(": 40 things to know")
    assert "… and 28 more (-v)" in lines
    assert len(lines) < 70
    shown = call("doctor", "-v", healthy).stdout
    assert "more (-v)" not in shown
    assert shown.index("problem 2\n") < shown.index("problem 10\n")


def test_the_report_tells_the_same_in_its_data_quality(call, healthy):
    rank(healthy, 3, world=4)
    (healthy / "rank2.json.gz").touch()
    result = call("analyze", "-q", healthy, "--only", "data-quality", "--export", "json=-")
    (section,) = [s for s in json.loads(result.stdout)["sections"] if s["id"] == "data-quality"]
    (sheet,) = [s for s in section["sheets"] if s["name"] == "diagnoses"]
    assert [row[0] for row in sheet["rows"]] == ["1 file of 0 bytes", "1 rank of 4 missing: 2"]
    assert sheet["rows"][0][1] == "rank2.json.gz"
    chosen = call("analyze", "-q", healthy, "--only", "data-quality", "--ranks", "0,3", "--export", "json=-")
    assert "ranks of 4 missing" not in chosen.stdout


def test_a_healthy_report_has_no_such_table(call, healthy):
    assert "went wrong" not in call("analyze", "-q", healthy, "--only", "data-quality", "--export", "json=-").stdout


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_sentences_wrap_at_the_width_of_the_terminal(call, tmp_path, monkeypatch, width):
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    (tmp_path / "rank1_of_4.pt.trace.json").write_text("no trace at all")
    whole = call("doctor", tmp_path).stdout
    monkeypatch.setenv("COLUMNS", str(width))
    wrapped = call("doctor", tmp_path).stdout
    lines = [line for line in wrapped.splitlines() if line.startswith(("  cause", "  to do", "         "))]
    assert lines
    assert max(map(len, lines)) <= width
    assert "…" not in wrapped
    assert wrapped.split() == whole.split()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("csv", ["code,severity,what,cause,remedy,count,places"]),
        ("md", ["| code | severity | what | cause | remedy | count | places |", "|" + " --- |" * 7]),
    ],
)
def test_a_list_without_a_row_has_its_header(call, healthy, name, lines):
    assert call("doctor", healthy, "--format", name).stdout.splitlines() == lines
