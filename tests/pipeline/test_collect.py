"""Reports are gathered from Ray's sessions by verified copies; nothing is moved, overwritten or taken twice."""

import os
import sqlite3
from pathlib import Path

import pytest
from nsys_programs import REPORT, everything, put_export

from tracekit.discover import discover
from tracekit.model.errors import TracekitError
from tracekit.pipeline.collecting import file_copies
from tracekit.pipeline.collecting import ray_sessions as collecting
from tracekit.pipeline.collecting.file_copies import copy_verified
from tracekit.readers.loading import sniff
from tracekit.readers.nsys.files import is_empty_capture

ONE, TWO = "session_2026-11-20_10-00-00_000001_11", "session_2026-11-21_10-00-00_000001_22"


def nsight(ray, session, **files):
    """The directory of reports of one session, with files of these names (without suffix) and contents."""
    folder = ray / session / "logs" / "nsight"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}.nsys-rep").write_bytes(data)
    return folder


@pytest.fixture
def ray(tmp_path):
    """Two sessions: the first with two reports, the second, which `session_latest` leads to, with one."""
    ray = tmp_path / "ray"
    nsight(ray, ONE, worker_process_1=REPORT + b"1", worker_process_2=REPORT + b"2")
    nsight(ray, TWO, worker_process_1=REPORT + b"3")
    (ray / "session_latest").symlink_to(ray / TWO)
    (ray / ONE / "sockets").mkdir()
    return ray


def targets(plan, below):
    return [one.target.relative_to(below).as_posix() for one in plan.wanted]


def reasons(plan):
    return {one.path.name: one.reason for one in plan.left_out}


def collect(roots, target, host=None):
    return [k.outcome for k in collecting.copy_reports(collecting.plan_copies(roots, target, host).wanted)]


# What is found


def test_every_session_below_a_root_is_found_once(ray, tmp_path):
    out = tmp_path / "out"
    expected = [
        f"{ONE}/worker_process_1.nsys-rep",
        f"{ONE}/worker_process_2.nsys-rep",
        f"{TWO}/worker_process_1.nsys-rep",
    ]
    assert targets(collecting.plan_copies([ray], out), out) == expected
    roots = [ray, ray / "session_latest", ray / ONE / "logs" / "nsight", tmp_path]
    assert targets(collecting.plan_copies(roots, out), out) == expected


@pytest.mark.parametrize("below", ["", "logs", "logs/nsight"])
def test_a_root_may_be_a_session_or_a_directory_in_it(ray, tmp_path, below):
    out = tmp_path / "out"
    plan = collecting.plan_copies([ray / "session_latest" / below], out)
    assert targets(plan, out) == [f"{TWO}/worker_process_1.nsys-rep"]


def test_a_root_may_be_a_plain_directory_of_reports(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.nsys-rep").write_bytes(REPORT)
    plan = collecting.plan_copies([tmp_path / "mine"], tmp_path / "out")
    assert targets(plan, tmp_path / "out") == ["mine/a.nsys-rep"]


def test_what_belongs_to_a_report_comes_with_it_and_other_files_do_not(ray, tmp_path):
    folder = nsight(ray, ONE)
    put_export(folder / "worker_process_1.sqlite")
    put_export(folder / "alone.sqlite")
    (folder / "worker_process_9.qdstrm").write_bytes(b"stream")
    (folder / "capture.json").write_text('{"schema": "capture/1", "pid": 1, "files": []}')
    (folder / "notes.txt").write_text("x")
    (folder / "other.sqlite").write_bytes(b"SQLite format 3\0" + bytes(84))
    (folder / "empty.nsys-rep").write_bytes(REPORT)
    (folder / "worker_process_8.nsys-rep").write_bytes(b"")
    (folder / "link.nsys-rep").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe.nsys-rep")
    plan = collecting.plan_copies([ray / ONE], tmp_path / "out")
    assert {one.path.name for one in plan.wanted} == {
        "worker_process_1.nsys-rep", "worker_process_2.nsys-rep", "worker_process_1.sqlite",
        "alone.sqlite", "worker_process_9.qdstrm", "capture.json",
    }  # fmt: skip
    told = reasons(plan)
    assert told.pop("other.sqlite")
    assert told == {
        "notes.txt": "neither a report nor what belongs to one",
        "empty.nsys-rep": "Ray's check that nsys works: no profile",
        "worker_process_8.nsys-rep": "empty file (0 bytes): still being written, or nsys died",
        "link.nsys-rep": "a link, or no regular file",
        "pipe.nsys-rep": "a link, or no regular file",
    }


def test_links_in_a_circle_end(ray, tmp_path):
    (ray / "loop").symlink_to(ray)
    (ray / ONE / "logs" / "nsight" / "up").symlink_to(ray)
    assert len(collecting.plan_copies([ray], tmp_path / "out").wanted) == 3


def test_what_was_collected_before_is_not_collected_again(ray):
    out = ray / "out"
    collect([ray], out)
    nsight(out, TWO)
    (out / TWO / "logs" / "nsight" / "x.nsys-rep").write_bytes(REPORT)
    assert len(collecting.plan_copies([ray], out).wanted) == 3


def test_a_root_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TracekitError, match="no such directory"):
        collecting.plan_copies([tmp_path / "gone"], tmp_path / "out")


# Several hosts


def test_a_label_keeps_hosts_apart(ray, tmp_path):
    out = tmp_path / "out"
    plan = collecting.plan_copies([ray / TWO], out, "node-7.local")
    assert targets(plan, out) == [f"{TWO}/host=node-7.local/worker_process_1.nsys-rep"]


@pytest.mark.parametrize("host", ["", "..", "a/b", "-x", "a b", "x\n", "é"])
def test_a_label_that_is_no_name_of_a_host_is_refused(ray, tmp_path, host):
    with pytest.raises(TracekitError, match="--host"):
        collecting.plan_copies([ray], tmp_path / "out", host)


def test_one_session_below_two_directories_is_of_two_hosts(tmp_path):
    for host in ("node1", "node 2"):
        nsight(tmp_path / host, ONE, worker_process_1=REPORT + host.encode())
    out = tmp_path / "out"
    plan = collecting.plan_copies([tmp_path], out)
    assert sorted(targets(plan, out)) == [
        f"{ONE}/host=node-2/worker_process_1.nsys-rep",
        f"{ONE}/host=node1/worker_process_1.nsys-rep",
    ]


def test_hosts_of_a_session_are_one_run_and_sessions_are_several(ray, tmp_path):
    out = tmp_path / "out"
    for host in ("node1", "node2"):
        collect([ray], out, host)
    for copy in out.rglob("*.nsys-rep"):  # two nodes never write the same
        copy.write_bytes(copy.read_bytes() + str(copy.relative_to(out)).encode())
    got = discover([out / TWO], sniff=sniff)
    assert [(s.run, s.host, s.pid) for s in got.sources] == [(TWO, "node1", 1), (TWO, "node2", 1)]
    assert not any(note.code == "duplicate" for s in got.sources for note in s.notes)
    assert {s.run for s in discover([out], sniff=sniff).sources} == {ONE, TWO}


# Copies


def test_originals_stay_as_they_are_and_copies_are_equal(ray, tmp_path):
    before = everything(ray)
    assert collect([ray], tmp_path / "out") == ["copied"] * 3
    assert everything(ray) == before
    original = ray / ONE / "logs" / "nsight" / "worker_process_1.nsys-rep"
    copy = tmp_path / "out" / ONE / "worker_process_1.nsys-rep"
    assert copy.read_bytes() == original.read_bytes()
    assert copy.stat().st_mtime_ns == original.stat().st_mtime_ns
    assert not [p for p in (tmp_path / "out").rglob("*") if p.name.endswith(".tmp")]


def test_a_second_time_nothing_is_copied(ray, tmp_path):
    collect([ray], tmp_path / "out")
    before = everything(tmp_path / "out")
    assert collect([ray], tmp_path / "out") == ["already there"] * 3
    assert everything(tmp_path / "out") == before


def test_a_different_file_is_never_overwritten(ray, tmp_path):
    there = tmp_path / "out" / TWO / "worker_process_1.nsys-rep"
    there.parent.mkdir(parents=True)
    for data in (b"longer than the report itself is" * 9, REPORT + b"4"):
        there.write_bytes(data)
        plan = collecting.plan_copies([ray / TWO], tmp_path / "out")
        (kept,) = collecting.copy_reports(plan.wanted)
        assert kept.outcome == "failed"
        assert "is there, and is different" in str(kept.error)
        assert there.read_bytes() == data


def test_a_link_where_the_copy_should_be_is_not_written_through(ray, tmp_path):
    victim = tmp_path / "victim"
    there = tmp_path / "out" / TWO / "worker_process_1.nsys-rep"
    there.parent.mkdir(parents=True)
    there.symlink_to(victim)
    assert collect([ray / TWO], tmp_path / "out") == ["failed"]
    assert not victim.exists()


def test_one_that_fails_does_not_end_the_others(ray, tmp_path):
    plan = collecting.plan_copies([ray], tmp_path / "out")
    plan.wanted[0].path.unlink()
    assert [k.outcome for k in collecting.copy_reports(plan.wanted)] == ["failed", "copied", "copied"]


def test_a_file_that_changes_meanwhile_is_not_copied(tmp_path, monkeypatch):
    source = tmp_path / "a.nsys-rep"
    source.write_bytes(b"x" * 1000)
    write = file_copies._write_blocks

    def growing(*args):
        digest = write(*args)
        source.write_bytes(b"x" * 2000)
        return digest

    monkeypatch.setattr(file_copies, "_write_blocks", growing)
    with pytest.raises(TracekitError, match="changed meanwhile"):
        copy_verified(source, tmp_path / "out" / "a")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_copy_that_the_disk_spoils_is_noticed(tmp_path, monkeypatch):
    source = tmp_path / "a.nsys-rep"
    source.write_bytes(b"x" * 1000)
    write = file_copies._write_blocks

    def spoiled(blocks, descriptor, mode):
        digest = write(blocks, descriptor, mode)
        os.pwrite(descriptor, b"y", 999)
        return digest

    monkeypatch.setattr(file_copies, "_write_blocks", spoiled)
    with pytest.raises(TracekitError, match="differs"):
        copy_verified(source, tmp_path / "out" / "a")
    assert list((tmp_path / "out").iterdir()) == []


def test_somebody_faster_with_the_same_file_is_no_failure(tmp_path, monkeypatch):
    source, target = tmp_path / "a", tmp_path / "out" / "a"
    source.write_bytes(b"same")

    def beaten(_, at):
        at.write_bytes(b"same")
        return False

    monkeypatch.setattr(file_copies, "_link_into_place", beaten)
    assert copy_verified(source, target) == "already there"


def test_file_systems_without_links_get_the_copy_by_renaming(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    source, target = tmp_path / "a", tmp_path / "out" / "a"
    source.write_bytes(b"x")
    assert copy_verified(source, target) == "copied"
    assert [p.name for p in target.parent.iterdir()] == ["a"]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    source = tmp_path / "a"
    source.write_bytes(b"x")
    with pytest.raises(TracekitError, match=r"a: not copied: .*No space left"):
        copy_verified(source, tmp_path / "out" / "a")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["two words", "-rf", "new\nline", "a?b#c%d", "\udcff", "x" * 240])
def test_hostile_names_are_copied_as_they_are(ray, tmp_path, name):
    folder = nsight(ray, "session_9", **{name: REPORT})
    assert collect([ray / "session_9"], tmp_path / "out") == ["copied"]
    (copy,), (original,) = (tmp_path / "out" / "session_9").iterdir(), folder.iterdir()
    assert copy.name == original.name


def test_directories_within_keep_their_place(ray, tmp_path):
    deeper = nsight(ray, ONE) / "sub"
    deeper.mkdir()
    (deeper / "a.nsys-rep").write_bytes(REPORT)
    plan = collecting.plan_copies([ray], tmp_path / "out")
    assert f"{ONE}/sub/a.nsys-rep" in targets(plan, tmp_path / "out")
    assert isinstance(plan.wanted[0].path, Path)


# What is copied and of little use


def test_files_of_little_use_are_copied_and_named_with_the_reason(tmp_path):
    folder = nsight(tmp_path / "ray", ONE, good=REPORT, dead=REPORT, alone=REPORT, cut=b"NVIDIA", old=REPORT)
    put_export(folder / "good.sqlite")
    for name in ("dead", "old"):
        put_export(folder / f"{name}.sqlite", ranges=())
    os.utime(folder / "old.nsys-rep", (2**31, 2**31))
    (folder / "lost.qdstrm").write_bytes(b"stream")
    (folder / "good.qdstrm").write_bytes(b"stream")
    put_export(folder / "half.sqlite")
    (folder / "half.sqlite").write_bytes((folder / "half.sqlite").read_bytes()[:4096])
    (folder / "half.nsys-rep").write_bytes(REPORT)
    plan = collecting.plan_copies([tmp_path / "ray"], tmp_path / "out")
    told = {one.path.name: one.reason for one in collecting.find_useless_reports(plan.wanted)}
    assert {name: reason.partition(":")[0] for name, reason in told.items()} == {
        "cut.nsys-rep": "named like an Nsight Systems report, and holds none",
        "dead.nsys-rep": "no NVTX range, CUDA call or GPU work in it",
        "dead.sqlite": "no NVTX range, CUDA call or GPU work in it",
        "half.sqlite": "cut off",
        "lost.qdstrm": "Nsight Systems stream that was never made a report",
        # Its report is newer: what that holds is not known.
        "old.sqlite": "no NVTX range, CUDA call or GPU work in it",
    }
    assert {one.path.name for one in plan.wanted} >= told.keys()


@pytest.mark.parametrize(
    ("table", "row", "empty"),
    [
        ("NVTX_EVENTS", "(start, eventType) VALUES (1, 75)", True),
        ("NVTX_EVENTS", "(start, eventType) VALUES (1, 60)", False),
        ("OSRT_API", "VALUES (1)", True),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "VALUES (1)", False),
        ("GENERIC_EVENTS", "VALUES (1)", False),
    ],
)
def test_a_capture_is_empty_if_nothing_that_one_profiles_for_is_in_it(tmp_path, table, row, empty):
    path = put_export(tmp_path / "x.sqlite", ranges=(), tables=() if table == "NVTX_EVENTS" else (table,))
    with sqlite3.connect(path) as connection:
        connection.execute(f"INSERT INTO {table} {row}")
    connection.close()
    assert is_empty_capture(path) is empty


def test_what_is_no_export_is_no_empty_capture(tmp_path):
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0" + bytes(90))
    assert not is_empty_capture(tmp_path / "x.sqlite")
    assert not is_empty_capture(tmp_path / "gone.sqlite")
    assert not is_empty_capture(put_export(tmp_path / "view.sqlite"))
