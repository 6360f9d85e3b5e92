"""Directories of Nsight Systems' files: each recording is read once, and what is not read says why."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import nsys_tool
import pytest
from nsys_programs import REPORT, copies, everything, install, put_export, put_report, uninstall

import tracekit
from tracekit.discover import discover
from tracekit.discover import nsys_files as nsys_pairs
from tracekit.engine import local
from tracekit.model.errors import TracekitError
from tracekit.model.trace import Source
from tracekit.readers import loading

QUESTIONS = ("data-quality",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
OLD = 1_700_000_000
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
    """A directory with the report of one worker."""
    put_report(tmp_path / "data" / "worker_process_7.nsys-rep")
    return tmp_path / "data"


def find(*paths, **options):
    return discover(list(paths), sniff=loading.sniff, **options)


def read(discovery):
    return {s.path.name: s.reader for s in discovery.sources}


def reasons(discovery):
    """Why each file is passed over, as its code."""
    return {i.path.name: i.reason.code for i in discovery.ignored}


def missed(discovery):
    return {n.source for n in discovery.notes if n.code == "not-read"}


def foreign(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE runs (id INTEGER); INSERT INTO runs VALUES (1);")
    return path


# One recording, several files


def test_a_report_alone_is_a_source_of_its_own(data):
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    assert (got.sources[0].tool, got.sources[0].pid) == ("nsys", 7)


def test_the_export_beside_a_report_is_read_in_its_place(data):
    put_export(data / "worker_process_7.sqlite")
    put_report(data / "worker_process_8.nsys-rep")
    put_export(data / "worker_process_8.sqlite", [("step 2", 10, 90)])
    got = find(data)
    assert read(got) == {"worker_process_7.sqlite": "nsys", "worker_process_8.sqlite": "nsys"}
    assert got.ignored_counts() == {nsys_pairs.EXPORT_IS_READ.text: 2}
    assert not got.notes


@pytest.mark.parametrize(("older_s", "reader"), [(1, "nsys"), (60, "nsys_rep")])
def test_an_export_older_than_its_report_is_left_for_the_report(data, older_s, reader):
    path = put_export(data / "worker_process_7.sqlite")
    made = (data / "worker_process_7.nsys-rep").stat().st_mtime
    os.utime(path, (made - older_s, made - older_s))
    assert list(read(find(data)).values()) == [reader]


@pytest.mark.parametrize("kind", ["", "zeros", "cut", "pointer"])
def test_a_useless_export_beside_a_report_is_left_quietly(data, kind):
    path = put_export(data / "worker_process_7.sqlite")
    whole = path.read_bytes()
    spoiled = {"": b"", "zeros": bytes(4096), "cut": whole[:-4096], "pointer": POINTER}
    path.write_bytes(spoiled[kind])
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    assert reasons(got) == {"worker_process_7.sqlite": "stale-export"}
    assert not got.notes


def test_an_export_without_its_report_is_read_and_told_if_it_is_damaged(tmp_path):
    folder = tmp_path / "data"
    put_export(folder / "a.sqlite")
    whole = (folder / "a.sqlite").read_bytes()
    (folder / "zeros.sqlite").write_bytes(bytes(4096))
    (folder / "empty.1.sqlite").write_bytes(b"")
    (folder / "pointer.sqlite").write_bytes(POINTER)
    (folder / "cut.sqlite").write_bytes(whole[:4096])
    got = find(folder)
    assert read(got).keys() == {"a.sqlite", "zeros.sqlite", "cut.sqlite"}
    assert missed(got) == {"empty.1.sqlite", "pointer.sqlite"}
    assert reasons(got)["empty.1.sqlite"] == "empty-file"
    with pytest.raises(TracekitError, match="its first page was never written"):
        tracekit.load(folder / "zeros.sqlite")


def test_parts_of_a_recording_are_paired_by_their_whole_name(tmp_path):
    for n in (1, 2):
        put_report(tmp_path / f"worker_process_7.{n}.nsys-rep")
    put_export(tmp_path / "worker_process_7.2.sqlite")
    got = find(tmp_path)
    assert [(s.path.suffix, s.part, s.step) for s in got.sources] == [
        (".nsys-rep", "range1", None),
        (".sqlite", "range2", None),
    ]


def test_files_of_different_directories_are_no_pair(data, tmp_path):
    put_export(data / "deeper" / "worker_process_7.sqlite")
    assert len(find(data).sources) == 2


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_stream_is_read_through_its_report_or_named_with_the_remedy(tmp_path, suffix):
    put_report(tmp_path / f"a{suffix}")
    (tmp_path / "a.qdstrm").write_bytes(b"stream")
    (tmp_path / "b.qdstrm").write_bytes(b"stream")
    (tmp_path / "c.qdstrm").write_bytes(b"")
    got = find(tmp_path)
    assert reasons(got)["a.qdstrm"] == "stream-of-report"
    assert reasons(got)["b.qdstrm"] == "stream-only"
    assert reasons(got)["c.qdstrm"] == "empty-file"
    texts = {i.path.name: i.reason.text for i in got.ignored}
    assert "QdstrmImporter -i FILE.qdstrm" in texts["b.qdstrm"]
    assert "still being written" in texts["c.qdstrm"]
    assert missed(got) == {"b.qdstrm", "c.qdstrm"}


# What is no recording


def test_databases_of_others_are_passed_over_without_a_word_of_loss(data):
    foreign(data / "mlflow.sqlite")
    foreign(data / "cookies.db")
    foreign(data / "worker_process_7.sqlite")
    (data / "torn.db").write_bytes((data / "cookies.db").read_bytes()[:4096])
    (data / "cookies.db-wal").write_bytes(b"x")
    with closing(sqlite3.connect(data / "logged.sqlite")) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE runs (id INTEGER)")
        shutil.copy(data / "logged.sqlite", data / "places.db")
        shutil.copy(data / "logged.sqlite-wal", data / "places.db-wal")
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    told = reasons(got)
    assert told.pop("torn.db")
    assert told.pop("cookies.db-wal") == told.pop("places.db-wal")
    assert set(told.values()) == {"foreign-database"}
    assert not got.notes


def test_what_is_only_called_a_report_is_missed(data):
    put_report(data / "a.nsys-rep", b"<html>not found</html>")
    put_report(data / "b.nsys-rep", b"")
    put_report(data / "c.nsys-rep", POINTER)
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    assert missed(got) == {"a.nsys-rep", "b.nsys-rep", "c.nsys-rep"}
    assert reasons(got)["a.nsys-rep"] == "no-report"
    assert reasons(got)["b.nsys-rep"] == "empty-file"
    assert reasons(got)["c.nsys-rep"] == "lfs-pointer"


def test_rays_check_is_no_profile(data):
    put_report(data / "empty.nsys-rep")
    put_export(data / "empty.sqlite")
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    assert set(reasons(got).values()) == {"ray-check"}
    assert not got.notes


def test_looking_changes_nothing(data):
    put_export(data / "worker_process_7.sqlite")
    foreign(data / "other.db")
    before = everything(data)
    find(data)
    assert everything(data) == before


def test_a_link_to_itself_ends(data):
    (data / "circle").symlink_to(data / "circle")
    (data / "one").symlink_to(data / "two")
    (data / "two").symlink_to(data / "one")
    (data / "up").symlink_to(data)
    got = find(data)
    assert read(got) == {"worker_process_7.nsys-rep": "nsys_rep"}
    assert reasons(got)["circle"] == "link"
    assert not got.notes


def test_hosts_of_a_run_lie_in_directories_that_say_so(tmp_path):
    for host in ("node1", "node2.cluster"):
        put_report(tmp_path / "run" / f"host={host}" / "worker_process_7.nsys-rep", REPORT + host.encode())
    got = find(tmp_path / "run")
    assert [(s.run, s.host) for s in got.sources] == [("run", "node1"), ("run", "node2.cluster")]
    for name in ("node1", "node2"):
        put_report(tmp_path / "runs" / name / "worker_process_7.nsys-rep", REPORT + name.encode())
    assert {s.run for s in find(tmp_path / "runs").sources} == {"node1", "node2"}


# From reports to an answer


@pytest.mark.slow
def test_a_directory_of_reports_is_analyzed_at_once(tmp_path, monkeypatch):
    export = put_export(
        tmp_path / "good.sqlite", [("update_actor", n * 1_000_000, n * 1_000_000 + 900_000) for n in range(1, 5)]
    )
    nsys = install(tmp_path, monkeypatch, copies(export))
    for pid in (7, 8):
        put_report(tmp_path / "data" / f"worker_process_{pid}.nsys-rep", REPORT + bytes([pid]))
    before = everything(tmp_path / "data")
    report = tracekit.analyze(tmp_path / "data", questions=QUESTIONS)
    assert "2 files" in tracekit.render(report, "text")
    assert len(nsys.runs()) == 2
    assert everything(tmp_path / "data") == before


def test_one_report_that_cannot_be_exported_does_not_hide_the_others(tmp_path, monkeypatch, data):
    uninstall(tmp_path / "nothing", monkeypatch)
    put_export(
        data / "worker_process_8.sqlite",
        [("update_actor", n * 1_000_000, n * 1_000_000 + 900_000) for n in range(1, 5)],
    )
    text = tracekit.render(tracekit.analyze(data, questions=QUESTIONS), "text", verbose=True)
    assert "worker_process_7.nsys-rep" in text
    assert "no nsys here to export it" in " ".join(text.split())


def test_a_report_alone_without_nsys_is_an_error_with_the_command(tmp_path, monkeypatch, data):
    uninstall(tmp_path / "nothing", monkeypatch)
    with pytest.raises(TracekitError, match="there is no nsys here") as caught:
        tracekit.analyze(data, questions=QUESTIONS)
    assert "nsys export --type sqlite -o worker_process_7.sqlite" in caught.value.hint


def test_several_reports_are_exported_at_once_however_small(monkeypatch):
    def source(reader, n):
        return Source(Path(f"{n}"), f"{n}", reader, "nsys", size_bytes=1000)

    chosen = []
    monkeypatch.setattr(local, "_run_here", lambda *_: chosen.append("here"))
    monkeypatch.setattr(local, "yield_outcomes", lambda *_: chosen.append("processes"))
    for reader, count in (("nsys", 5), ("nsys_rep", 1), ("nsys_rep", 2)):
        local.run_locally(len, [source(reader, n) for n in range(count)])
    assert chosen == ["here", "here", "processes"]


# With the real program, where there is one

if nsys_tool.found():  # else not even collected: no parameters would count as a skipped test

    @pytest.mark.slow
    @pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA names no directory of profiles")
    @pytest.mark.parametrize("program", nsys_tool.found(), ids=nsys_tool.version)
    def test_the_real_nsys_exports_what_it_may_and_names_what_is_too_new(tmp_path, monkeypatch, program):
        monkeypatch.setenv("TRACEKIT_NSYS", str(program))
        real = Path(REAL or "") / "nsys" / "real_cpu"
        folder = tmp_path / "it's 50% of -rf"
        folder.mkdir()
        for year in (22, 24):
            name = f"steps_nsys{year}.nsys-rep"
            shutil.copy(real / name, folder / name)
            before = everything(folder)
            if year == 24 and nsys_tool.version(program) < "2024":
                with pytest.raises(TracekitError, match="cannot read: "):
                    tracekit.load(folder / name)
            else:
                trace = tracekit.load(folder / name)
                kept = tracekit.load(real / name.replace("nsys-rep", "sqlite"))
                assert trace["host_ops"]["name"].tolist() == kept["host_ops"]["name"].tolist()
            assert everything(folder) == before
        whole = (real / "steps_nsys22.nsys-rep").read_bytes()
        for data, told in ((b"", "holds no text"), (whole[:60_000], "damaged or cut off")):
            path = put_report(tmp_path / "bad.nsys-rep", data)
            os.utime(path, (OLD, OLD))
            with pytest.raises(TracekitError, match=told):
                tracekit.load(path)
