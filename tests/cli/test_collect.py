"""`tracekit collect`: what it prints and how it leaves."""

import pytest
from nsys_programs import REPORT

SESSION = "session_2026-11-20_10-00-00_000001_11"


@pytest.fixture
def ray(tmp_path):
    folder = tmp_path / "ray" / SESSION / "logs" / "nsight"
    folder.mkdir(parents=True)
    (folder / "worker_process_1.nsys-rep").write_bytes(REPORT)
    (folder / "worker_process_2.nsys-rep").write_bytes(REPORT)
    (folder / "empty.nsys-rep").write_bytes(REPORT)
    return tmp_path / "ray"


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_a_row_for_each_session_and_what_was_left_out(call, ray, tmp_path):
    result = call("collect", ray, "-o", tmp_path / "out")
    assert result.exit_code == 0
    table = rows(result.stdout)
    assert table[0] == ["session", "files", "size", "copied", "already", "there", "into"]
    assert table[1] == [SESSION, "2", "136", "B", "2", "0", str(tmp_path / "out" / SESSION)]
    assert "Left out: 1" in result.stdout
    assert "Ray's check that nsys works" in result.stdout
    assert "copying 2 files (136 B)" in result.stderr
    again = call("collect", ray, "-o", tmp_path / "out", "-q")
    assert rows(again.stdout)[1][4:6] == ["0", "2"]
    assert again.stderr == ""


def test_reports_of_dead_workers_are_copied_and_marked(call, ray, tmp_path):
    (ray / SESSION / "logs" / "nsight" / "worker_process_2.nsys-rep").write_bytes(b"torn")
    result = call("collect", ray, "-o", tmp_path / "out")
    assert result.exit_code == 0
    table = rows(result.stdout)
    assert table[0][6:] == ["suspect", "into"]
    assert table[1][4:7] == ["2", "0", "1"]
    assert "Suspect, and copied all the same: 1 (tracekit doctor looks closer)" in result.stdout
    assert "worker_process_2.nsys-rep  named like an Nsight Systems report" in result.stdout
    assert (tmp_path / "out" / SESSION / "worker_process_2.nsys-rep").read_bytes() == b"torn"
    assert "Suspect" in call("collect", ray, "-o", tmp_path / "other", "-n").stdout


def test_a_dry_run_writes_nothing(call, ray, tmp_path):
    result = call("collect", ray, "-o", tmp_path / "out", "-n", "--host", "node1")
    assert result.exit_code == 0
    assert "would be copied into" in result.stdout
    assert f"{tmp_path / 'out' / SESSION}/host=node1" in result.stdout
    assert not (tmp_path / "out").exists()


def test_no_report_is_status_2_with_what_was_left_out(call, ray, tmp_path):
    for n in (1, 2):
        (ray / SESSION / "logs" / "nsight" / f"worker_process_{n}.nsys-rep").write_bytes(b"")
    result = call("collect", ray, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "Left out: 3" in result.stdout
    assert "still being written" in result.stdout
    assert "no report of Nsight Systems found" in result.stderr
    assert "session_*/logs/nsight" in result.stderr


def test_a_report_that_could_not_be_copied_is_named_and_status_2(call, ray, tmp_path):
    there = tmp_path / "out" / SESSION / "worker_process_2.nsys-rep"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"other")
    result = call("collect", ray, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "worker_process_2.nsys-rep: not copied" in result.stderr
    assert rows(result.stdout)[1][4:7] == ["1", "0", "1"]
    assert there.read_bytes() == b"other"


@pytest.mark.parametrize("arguments", [["-o", "out"], ["ROOT"], ["gone", "-o", "out"], ["ROOT", "-o", "FILE"]])
def test_wrong_usage_is_status_2(call, ray, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    named = {"ROOT": ray, "FILE": tmp_path / "file"}
    result = call("collect", *(named.get(a, a) for a in arguments))
    assert result.exit_code == 2
    assert result.stderr
    assert not (tmp_path / "out").exists()
