"""Exports are kept by content, for their owner only, within a limit, and safely for several processes at once."""

import os
import stat
import threading

import pytest
from nsys_programs import REPORT, copies, install, put_export, put_report, uninstall

from tracekit.model.errors import TracekitError
from tracekit.readers.nsys import export as nsys_export

OLD = 1_700_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRACEKIT_CACHE", str(folder))
    monkeypatch.delenv("TRACEKIT_CACHE_LIMIT", raising=False)
    monkeypatch.setattr("tracekit.model.system.cache.listeners", [lambda *_: None])
    return folder


@pytest.fixture
def good(tmp_path):
    return put_export(tmp_path / "good.sqlite")


@pytest.fixture
def report(tmp_path):
    return put_report(tmp_path / "data" / "worker_process_4711.1.nsys-rep")


def export(path):
    """(the content of the export, whether it was made now)"""
    with nsys_export.open_export_of_report(path) as made:
        return made.path.read_bytes(), made.made


def kept(cache):
    return sorted(p.name for p in (cache / "nsys").iterdir())


def test_the_same_content_is_exported_once_whatever_it_is_called(tmp_path, monkeypatch, good, report):
    nsys = install(tmp_path, monkeypatch, copies(good))
    export(report)
    moved = report.rename(tmp_path / "elsewhere.nsys-rep")
    assert export(moved) == (good.read_bytes(), False)
    assert len(nsys.runs()) == 1
    moved.write_bytes(REPORT + b"more")
    assert export(moved)[1]
    assert len(nsys.runs()) == 2


def test_another_nsys_exports_anew(tmp_path, monkeypatch, good, report):
    install(tmp_path / "old", monkeypatch, copies(good), version="2023.4.4.54-x")
    export(report)
    other = install(tmp_path / "new", monkeypatch, copies(good))
    assert export(report)[1]
    assert len(other.runs()) == 1


def test_a_kept_export_serves_where_there_is_no_nsys(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, copies(good))
    export(report)
    uninstall(tmp_path / "nothing", monkeypatch)
    assert export(report) == (good.read_bytes(), False)


def test_a_kept_export_that_was_damaged_is_made_again(tmp_path, monkeypatch, cache, good, report):
    nsys = install(tmp_path, monkeypatch, copies(good))
    export(report)
    (cache / "nsys" / kept(cache)[0]).write_bytes(good.read_bytes()[:5000])
    assert export(report) == (good.read_bytes(), True)
    assert len(nsys.runs()) == 2


def test_two_at_once_both_get_a_whole_export(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, f"sleep 0.1; {copies(good)}")
    got = []
    threads = [threading.Thread(target=lambda: got.append(export(report)[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [good.read_bytes()] * 2
    assert len(kept(cache)) == 1


def test_exports_are_for_their_owner_only(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, copies(good))
    export(report)
    assert stat.S_IMODE((cache / "nsys").stat().st_mode) == 0o700
    (path,) = (cache / "nsys").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_longest_unused_exports_go_first_and_those_in_use_stay(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, copies(good))
    size = good.stat().st_size
    others = []
    for n in range(3):
        others.append(put_report(tmp_path / f"{n}.nsys-rep", REPORT + bytes([n])))
        export(others[n])
    by_age = sorted((cache / "nsys").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    for n, path in enumerate(by_age):
        os.utime(path, (OLD + n, OLD + n))
    export(others[0])  # used just now: 1 is the oldest, then 2
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", str(3 * size))
    with nsys_export.open_export_of_report(others[1]) as held:
        os.utime(held.path, (OLD, OLD))
        export(report)
        assert held.path.exists()
    assert [export(path)[1] for path in (others[0], others[1], report)] == [False] * 3
    assert len(kept(cache)) == 3
    assert export(others[2])[1]


def test_a_limit_smaller_than_the_export_still_gives_it(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, copies(good))
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", "1kB")
    assert export(report) == (good.read_bytes(), True)
    other = put_report(tmp_path / "b.nsys-rep", REPORT + b"b")
    assert export(other) == (good.read_bytes(), True)
    assert len(kept(cache)) == 1


def test_a_limit_that_is_no_size_is_refused(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, copies(good))
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", "plenty")
    with pytest.raises(TracekitError, match=r"TRACEKIT_CACHE_LIMIT: not a size"):
        export(report)


def test_what_crashes_left_in_the_cache_is_removed_after_a_day(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, copies(good))
    export(report)
    old, new = "partial-a_b1c2d3", f"partial-{'0f' * 8}"
    for name in (old, new):
        (cache / "nsys" / name).mkdir()
        (cache / "nsys" / name / "export.sqlite").write_bytes(b"x")
    os.utime(cache / "nsys" / old, (OLD, OLD))
    export(put_report(tmp_path / "other.nsys-rep", REPORT + b"other"))
    assert new in kept(cache)
    assert old not in kept(cache)


def test_without_a_usable_cache_the_export_is_made_elsewhere_and_removed(tmp_path, monkeypatch, good, report):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "file" / "below"))
    nsys = install(tmp_path, monkeypatch, copies(good))
    for _ in range(2):
        with nsys_export.open_export_of_report(report) as made:
            where = made.path
            assert where.read_bytes() == good.read_bytes()
        assert not where.parent.exists()
    assert len(nsys.runs()) == 2


def test_a_cache_of_somebody_else_is_not_trusted(tmp_path, monkeypatch, cache, good, report):
    install(tmp_path, monkeypatch, copies(good))
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    export(report)
    assert kept(cache) == []


def test_the_cache_lies_where_the_system_wants_it(tmp_path, monkeypatch, good, report):
    install(tmp_path, monkeypatch, copies(good))
    monkeypatch.delenv("TRACEKIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    export(report)
    assert len(kept(tmp_path / "xdg" / "tracekit")) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    export(report)
    assert len(kept(tmp_path / "home" / ".cache" / "tracekit")) == 1
