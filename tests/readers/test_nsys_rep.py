"""Reports are exported by the nsys that is installed: once, elsewhere than beside them, and never for ever."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from killing import Program, wait_until
from nsys_programs import copies, everything, install, put_export, put_report, uninstall, whole_report

import tracekit
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.trace import Source, Want
from tracekit.readers.nsys import export as nsys_export
from tracekit.readers.nsys import report as nsys_rep
from tracekit.readers.nsys.files import find_export_problem, read_report_version

ROOT = Path(tracekit.__file__).parents[1]
OLD = 1_700_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRACEKIT_CACHE", str(folder))
    monkeypatch.delenv("TRACEKIT_CACHE_LIMIT", raising=False)
    return folder


@pytest.fixture
def good(tmp_path):
    return put_export(tmp_path / "good.sqlite")


@pytest.fixture
def report(tmp_path):
    path = put_report(tmp_path / "data" / "worker_process_4711.1.nsys-rep")
    os.utime(path, (OLD, OLD))
    return path


def export(path):
    """(the content of the export, whether it was made now)"""
    with nsys_export.open_export_of_report(path) as made:
        return made.path.read_bytes(), made.made


def kept(cache):
    return sorted(p.name for p in (cache / "nsys").iterdir())


def error_of(path):
    with pytest.raises(TraceFormatError) as caught:
        export(path)
    error = caught.value
    assert "\n" not in error.problem + error.hint
    assert error.problem.isprintable()
    assert len(error.problem) < 400
    return error


# What is a report


@pytest.mark.parametrize(
    ("rest", "version"), [(b" 1.\0\0\0Local", None), (b" 2025@5@1@121-255136380782v0", (2025, 5, 1, 121)), (b"", None)]
)
def test_reports_of_every_version_are_told_by_their_head(tmp_path, rest, version):
    head = b"NVIDIA Tegra Profiler Report" + rest
    assert nsys_rep.sniff(head)
    assert read_report_version(put_report(tmp_path / "x.nsys-rep", head)) == version


@pytest.mark.parametrize("head", [b"", b"NVIDIA Tegra Profiler", b"SQLite format 3\0", b"{}"])
def test_other_files_are_no_reports(head):
    assert not nsys_rep.sniff(head)


# Exporting


def test_a_report_is_exported_with_payloads_into_the_cache(tmp_path, monkeypatch, cache, good, report):
    nsys = install(tmp_path, monkeypatch, copies(good))
    assert export(report) == (good.read_bytes(), True)
    (run,) = nsys.runs()
    assert "export --type sqlite --force-overwrite true" in run
    assert "--include-blobs=true" in run
    (name,) = kept(cache)
    assert name.endswith("-2024.2.3.38-blobs.sqlite")


def test_payloads_are_not_asked_of_an_nsys_that_does_not_know_them(tmp_path, monkeypatch, cache, good, report):
    nsys = install(tmp_path, monkeypatch, copies(good), blobs=False)
    export(report)
    assert "blobs" not in nsys.runs()[0]
    assert kept(cache)[0].endswith("-plain.sqlite")


def test_the_variable_names_an_nsys_that_is_not_on_path(tmp_path, monkeypatch, good, report):
    nsys = install(tmp_path, monkeypatch, copies(good))
    path = os.environ["PATH"].split(os.pathsep, 1)[1]
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("TRACEKIT_NSYS", str(nsys.path))
    assert export(report)[1]
    monkeypatch.setenv("TRACEKIT_NSYS", str(tmp_path / "gone"))
    with pytest.raises(TracekitError, match="TRACEKIT_NSYS"):
        export(report)


@pytest.mark.parametrize(
    "name", ["two words", 'it\'s "quoted"', "-rf", "new\nline", "a?b#c%d%20", "$(touch x)", "%p", "\udcff"]
)
def test_hostile_names_reach_nsys_as_no_option_and_no_macro(
    tmp_path, monkeypatch, good, name
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    nsys = install(tmp_path, monkeypatch, f'test -f "$REPORT" && {copies(good)}')
    report = put_report(tmp_path / "data" / f"{name}.nsys-rep")
    before = everything(tmp_path / "data")
    assert export(report) == (good.read_bytes(), True)
    assert everything(tmp_path / "data") == before
    assert nsys.runs()[0].endswith("--output export.sqlite report.nsys-rep")
    assert not (tmp_path / "x").exists()


def test_a_relative_path_is_found(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, f'test -f "$REPORT" && {copies(good)}')
    monkeypatch.chdir(report.parent)
    assert export(Path(report.name))[1]


# What goes wrong


def test_without_nsys_the_command_to_run_is_told(tmp_path, monkeypatch, report):
    uninstall(tmp_path / "nothing", monkeypatch)
    error = error_of(report)
    assert error.path == str(report)
    assert error.problem == (
        "a report of Nsight Systems (nsys 2024.2.3.38 wrote it), and there is no nsys here to export it"
    )
    name = "worker_process_4711.1"
    assert error.hint.endswith(f"nsys export --type sqlite -o {name}.sqlite {name}.nsys-rep")


def test_the_command_asks_for_payloads_where_that_nsys_exports_them(tmp_path, monkeypatch):
    uninstall(tmp_path / "nothing", monkeypatch)
    report = put_report(tmp_path / "it's.nsys-rep", b"NVIDIA Tegra Profiler Report 2026@1@1@204-3v0")
    assert error_of(report).hint.endswith(
        """nsys export --type sqlite --include-blobs=true -o 'it'"'"'s.sqlite' 'it'"'"'s.nsys-rep'"""
    )


@pytest.mark.parametrize("does", ["exit 0", "echo text > $OUT", "head -c 4096 /dev/zero > $OUT", ": > $OUT", "exit 3"])
def test_success_is_not_believed_without_an_export(tmp_path, monkeypatch, cache, report, does):
    install(tmp_path, monkeypatch, does)
    assert "damaged or cut off: nsys 2024.2.3.38 says: " in error_of(report).problem
    assert kept(cache) == []


def test_a_database_of_something_else_is_no_export(tmp_path, monkeypatch, report):
    install(tmp_path, monkeypatch, 'echo "SQLite format 3" > "$OUT"; echo $REPORT')
    assert error_of(report).problem.endswith("says: report.nsys-rep")


@pytest.mark.parametrize(
    "said",
    [
        "Report was created in Nsight Systems version (2026.1.2.63-9), newer than your current version (2024)",
        "Exportation error: Version number is invalid: 2026@1@2@63-9",
    ],
)
def test_a_report_of_a_newer_nsys_says_which_to_install(tmp_path, monkeypatch, said):
    install(tmp_path, monkeypatch, f"echo '{said}'; exit 1")
    report = put_report(tmp_path / "x.nsys-rep", b"NVIDIA Tegra Profiler Report 2026@1@2@63-9v0")
    error = error_of(report)
    assert error.problem.startswith(
        "recorded by nsys 2026.1.2.63, a version that the nsys 2024.2.3.38 here cannot read: "
    )
    assert "install nsys 2026.1.2 or newer" in error.hint


def test_another_build_of_the_same_release_is_not_newer(tmp_path, monkeypatch, report):
    install(tmp_path, monkeypatch, "echo broken; exit 1", version="2024.2.3.1-x")
    assert error_of(report).problem.startswith("damaged or cut off")


PROTOBUF = (
    "[libprotobuf ERROR message_lite.cc:122] Can't parse message of type SessionState because it is "
    "missing required fields: DeviceState.Props.Items[56].Type\nExportation error: ProtobufParseException"
)
"""What nsys 2022.4.2 says, status 1, of a report whose head is of the old form and whose content is newer."""


def refusing(folder, monkeypatch, said, version):
    """An nsys of that version that fails with those words, and leaves the database that the real one does."""
    (folder / "said").write_text(said)
    script = f'head -c 4096 /dev/zero > "$OUT"; cat {shlex.quote(str(folder / "said"))}; exit 1'
    install(folder, monkeypatch, script, version=version)


def put_old(path, data):
    """A report that nobody is writing any more."""
    put_report(path, data)
    os.utime(path, (OLD, OLD))
    return path


def test_a_whole_report_of_2023_is_no_damaged_one_to_an_nsys_of_2022(tmp_path, monkeypatch):
    refusing(tmp_path, monkeypatch, PROTOBUF, "2022.4.2.1-df9881f")
    report = put_old(tmp_path / "x.nsys-rep", whole_report(b"2023.1.2.43-32377213v0"))
    assert read_report_version(report) == (2023, 1, 2, 43)
    error = error_of(report)
    assert error.problem.startswith(
        "recorded by nsys 2023.1.2.43, a version that the nsys 2022.4.2.1 here cannot read: "
    )
    assert "install nsys 2023.1.2 or newer" in error.hint
    assert "damaged" not in error.problem
    assert "copy it again" not in error.hint


def test_a_whole_report_of_a_version_that_nsys_should_know_may_be_damaged_inside(tmp_path, monkeypatch):
    refusing(tmp_path, monkeypatch, PROTOBUF, "2024.2.3.38-242334140272v0")
    data = whole_report(b"2023.1.2.43-32377213v0")
    error = error_of(put_old(tmp_path / "x.nsys-rep", data))
    assert error.problem.startswith(
        "it ends as whole reports do, recorded by nsys 2023.1.2.43, and nsys 2024.2.3.38 cannot export it: "
    )
    assert "a newer nsys" in error.hint
    unnamed = put_old(tmp_path / "y.nsys-rep", whole_report(b"no version"))
    assert read_report_version(unnamed) is None
    assert error_of(unnamed).problem.startswith("it ends as whole reports do, and nsys 2024.2.3.38")


@pytest.mark.parametrize("cut", [1, 7, 8, 16, 24, 60, 100_000])
def test_a_report_that_lost_its_end_is_cut_off(tmp_path, monkeypatch, cut):
    refusing(tmp_path, monkeypatch, PROTOBUF, "2024.2.3.38-242334140272v0")
    data = whole_report(b"2023.1.2.43-32377213v0")
    assert error_of(put_old(tmp_path / "x.nsys-rep", data[:-cut])).problem.startswith("damaged or cut off: ")


def test_an_end_that_points_beyond_the_file_is_no_whole_report(tmp_path, monkeypatch):
    refusing(tmp_path, monkeypatch, PROTOBUF, "2024.2.3.38-242334140272v0")
    data = whole_report(b"2023.1.2.43-32377213v0")
    pieces = data[:50_000] + data[-16:]  # a hole in the middle: the list of sections is not where it was
    assert error_of(put_old(tmp_path / "x.nsys-rep", pieces)).problem.startswith("damaged or cut")


def test_a_report_that_just_changed_may_still_be_being_written(tmp_path, monkeypatch, report):
    install(tmp_path, monkeypatch, "echo 'Cannot read from stream.'; exit 1")
    os.utime(report)
    error = error_of(report)
    assert error.problem.startswith("still being written? It changed ")
    assert error.problem.endswith("nsys says: Cannot read from stream.")
    os.utime(report, (OLD, OLD))
    assert "damaged or cut off" in error_of(report).problem


def test_what_nsys_says_is_shortened_and_cannot_control_the_screen(tmp_path, monkeypatch, report):
    install(tmp_path, monkeypatch, "printf '\\033[31mred\\n\\n\\007%01000000d' 7; exit 1")
    problem = error_of(report).problem
    assert "\033" not in problem


def test_a_report_that_changes_meanwhile_is_not_kept(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, f'{copies(good)}; touch "$REPORT"')
    assert "changed while" in error_of(report).problem
    assert kept(cache) == []


def test_an_nsys_that_hangs_is_stopped_with_all_it_started(tmp_path, monkeypatch, cache, report):
    install(tmp_path, monkeypatch, f"sleep 61 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr(nsys_export, "TIME_LIMIT_S", 0.2)
    started = time.monotonic()
    assert "took longer than" in error_of(report).problem
    assert time.monotonic() - started < 5
    assert _has_ended(int((tmp_path / "child").read_text()))
    assert kept(cache) == []


def test_an_interrupt_stops_nsys_and_leaves_nothing(tmp_path, monkeypatch, cache, report):
    install(tmp_path, monkeypatch, f"sleep 61 & echo $! > {tmp_path}/child; kill -INT {os.getpid()}; wait")
    with pytest.raises(KeyboardInterrupt):
        export(report)
    assert _has_ended(int((tmp_path / "child").read_text()))
    assert kept(cache) == []


@pytest.mark.skipif(sys.platform != "linux", reason="a guard finds processes in /proc")
@pytest.mark.parametrize("slow", ["export", "--version"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("count", [1, 3])
def test_nsys_and_its_children_end_with_tracekit(tmp_path, monkeypatch, report, slow, number, count):
    for other in range(1, count):  # several reports are exported by workers
        put_report(report.with_name(f"worker_process_{other}.1.nsys-rep"))
    asleep = f"sleep 61 & echo $! > {tmp_path}/child; wait"
    nsys = install(tmp_path, monkeypatch, asleep)
    if slow == "--version":
        nsys.path.write_text(f"#!/bin/sh\n{asleep}\n")
    command = [sys.executable, "-m", "tracekit", "analyze", report.parent, "-j2", "--no-cache"]
    program = Program(command, tmp_path, environment={"PYTHONPATH": str(ROOT)})
    wait_until((tmp_path / "child").exists)
    program.signal(number)
    ending = program.ending()
    assert ending.survivors == {}
    assert ending.is_closed


def _has_ended(pid):
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_nsys_that_cannot_be_run_is_named(tmp_path, monkeypatch, report):
    program = tmp_path / "nsys"
    program.write_bytes(b"\x7fELFgarbage")
    program.chmod(0o755)
    monkeypatch.setenv("TRACEKIT_NSYS", str(program))
    with pytest.raises(TracekitError, match="cannot be run"):
        export(report)


# What is an export


def test_what_a_file_is_instead_of_an_export_is_told(tmp_path, good):
    whole = good.read_bytes()
    cases = {
        "damaged-database": whole[:-4096],
        "interrupted-export": bytes(len(whole)),
        "empty-file": b"",
        "no-database": b"x" * len(whole),
    }
    path = tmp_path / "x.sqlite"
    path.write_bytes(whole)
    assert find_export_problem(path) is None
    for code, data in cases.items():
        path.write_bytes(data)
        before = everything(tmp_path)
        assert find_export_problem(path).code == code
        assert everything(tmp_path) == before


def test_a_damaged_list_of_tables_is_told(tmp_path, good):
    data = bytearray(good.read_bytes())
    data[100:200] = b"\xff" * 100
    (tmp_path / "x.sqlite").write_bytes(data)
    reason = find_export_problem(tmp_path / "x.sqlite")
    assert reason.code == "damaged-database"
    assert reason.text == f"damaged SQLite database: {reason.data['says']}"


# Reading


def source_of(path):
    return Source(path, path.name, "nsys_rep", "nsys", size_bytes=path.stat().st_size)


def ranges(traces):
    return [name for trace in traces for name in trace["host_ops"]["name"]]


def codes(traces):
    return [note.code for trace in traces for note in trace.notes if "export" in note.code]


def test_a_report_is_read_from_its_export_under_its_own_name(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, copies(good))
    before = everything(report.parent)
    traces = nsys_rep.read(source_of(report), Want())
    assert ranges(traces) == ["step 1"]
    assert [(t.source.path, t.source.name) for t in traces] == [(report, report.name)]
    assert codes(traces) == ["exported"]
    assert everything(report.parent) == before


def test_an_export_beside_the_report_is_read_without_nsys(tmp_path, monkeypatch, report):
    put_export(report.with_name("worker_process_4711.1.sqlite"), [("beside", 1, 2)])
    nsys = install(tmp_path, monkeypatch, "exit 1")
    assert ranges(nsys_rep.read(source_of(report), Want())) == ["beside"]
    assert nsys.runs() == []


def test_an_older_export_is_read_only_where_the_report_cannot_be(tmp_path, monkeypatch, good, report):
    stale = put_export(report.with_name("worker_process_4711.1.sqlite"), [("stale", 1, 2)])
    os.utime(stale, (OLD - 60, OLD - 60))
    install(tmp_path, monkeypatch, copies(good))
    assert ranges(nsys_rep.read(source_of(report), Want())) == ["step 1"]
    uninstall(tmp_path / "nothing", monkeypatch)
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "other"))
    traces = nsys_rep.read(source_of(report), Want())
    assert ranges(traces) == ["stale"]
    assert codes(traces) == ["stale-export"]


@pytest.mark.parametrize("data", [b"", bytes(8192), b"other", b"version https://git-lfs"])
def test_a_useless_export_beside_the_report_changes_nothing(tmp_path, monkeypatch, good, report, data):
    report.with_name("worker_process_4711.1.sqlite").write_bytes(data)
    install(tmp_path, monkeypatch, copies(good))
    assert ranges(nsys_rep.read(source_of(report), Want())) == ["step 1"]
    uninstall(tmp_path / "nothing", monkeypatch)
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "other"))
    with pytest.raises(TraceFormatError, match="there is no nsys here") as caught:
        nsys_rep.read(source_of(report), Want())
    assert caught.value.path == str(report)


def test_an_export_that_cannot_be_read_is_the_reports_error(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, copies(good))

    def read(source, *_):
        raise TraceFormatError(source.path, "no table of it can be read", "export it again")

    monkeypatch.setattr("tracekit.readers.nsys.read", read)
    with pytest.raises(TraceFormatError, match="no table of it") as caught:
        nsys_rep.read(source_of(report), Want())
    assert caught.value.path == str(report)
