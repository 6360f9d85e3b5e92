"""Addresses of other stores and archives: their files are read as if they lay in a directory here."""

import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from chrome_builder import kernel, launch, step, text

import tracekit
from tracekit.discover import fetched, stores
from tracekit.model.errors import TracekitError
from tracekit.model.inputs import unpacked_size
from tracekit.model.system import cache

ROWS = [step(1, 0, 100), launch(5, 1), kernel("k", 10, 80, 1)]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A cache of its own, and a process that has looked at nothing."""
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRACEKIT_NO_CACHE", raising=False)
    forget()


def forget():
    fetched.fetch_address.cache_clear()
    fetched._extract_archive_state.cache_clear()


def trace(rank):
    return text(ROWS, rank=rank, world_size=2)


@pytest.fixture
def store():
    """A store in memory with a run of two ranks."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    for rank in (0, 1):
        files.pipe(f"/runs/a/rank{rank}.json", trace(rank))
    files.pipe("/runs/a/weights.bin", b"w" * (stores.SMALL_BYTES + 1))
    return files


def without_run(finding):
    """A finding without the names of its run and of the folders of its files."""

    def strip(place):
        return replace(place, run=None, source=place.source and place.source.rpartition("/")[2])

    places = tuple(map(strip, finding.places))
    instances = tuple(replace(each, place=strip(each.place)) for each in finding.instances)
    return replace(finding, places=places, instances=instances)


def same(path, here, tmp_path):
    """Whether a report says the same as that on the same files here, but for what they are called."""
    for rank in (0, 1):
        (tmp_path / here).mkdir(exist_ok=True)
        (tmp_path / here / f"rank{rank}.json").write_bytes(trace(rank))
    there, local = tracekit.analyze(path), tracekit.analyze(tmp_path / here)
    assert there.headline == local.headline
    assert list(map(without_run, there.findings)) == list(map(without_run, local.findings))
    assert there.title == str(path)
    return there


def test_an_address_is_read_like_a_directory(store, tmp_path):
    report = same("memory://runs/a", "a", tmp_path)
    assert dict(report.files)["read"] == 2
    copies = {path.name for path in (tmp_path / "cache/fetched").rglob("*") if path.is_file()}
    assert copies == {"rank0.json", "rank1.json", cache.INDEX}, "no weights"


@pytest.mark.parametrize("path", ["outputs/profile", "outputs/profile/rank0.json", "outputs"])
def test_the_log_of_the_driver_above_it_is_found_as_on_a_disk(path, store, tmp_path):
    log = b"".join(b'{"step": %d, "data": {"timing_s/gen": 1.5}}\n' % step for step in (1, 2))
    files = {"outputs/profile/rank0.json": trace(0), "metrics.jsonl": log, "notes.txt": b"none"}
    for name, data in files.items():
        store.pipe(f"/runs/c/{name}", data)
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).write_bytes(data)
    there, here = (tracekit.measure(f"{place}/{path}").sources for place in ("memory://runs/c", tmp_path / "c"))
    assert [source.name for source in there] == [source.name for source in here]
    logs = [source.name for source in there if "metrics.jsonl" in source.name]
    assert len(logs) == (0 if path.endswith(".json") else 1), "one file is read alone"


def test_logs_above_are_bounded_and_none_is_an_error(store, monkeypatch):
    store.pipe("/runs/d/profile/rank0.json", trace(0))
    store.pipe("/runs/d/metrics.jsonl", b'{"step": 1, "data": {"timing_s/gen": 1.5}}\n')
    monkeypatch.setattr(stores, "LOG_BYTES", 10)
    assert dict(tracekit.analyze("memory://runs/d/profile").files) == {"read": 1}
    monkeypatch.undo()
    forget()

    def failing(self, path, *more, **options):
        if path.endswith("metrics.jsonl"):
            raise OSError("the line is dead")
        return kept_open(self, path, *more, **options)

    kept_open = type(store).open
    monkeypatch.setattr(type(store), "open", failing)
    assert dict(tracekit.analyze("memory://runs/d/profile").files) == {"read": 1}


def test_too_many_files_are_refused_before_all_are_listed(store, monkeypatch):
    monkeypatch.setattr(stores, "MOST_FILES", 1)
    with pytest.raises(TracekitError, match="more than 1 files"):
        tracekit.analyze("memory://runs/a")


def test_one_file_and_a_pattern(store):
    assert tracekit.analyze("memory://runs/a/rank1.json").title == "memory://runs/a/rank1.json"
    forget()
    report = tracekit.analyze("memory://runs/*/rank0*")
    assert dict(report.files)["read"] == 1
    assert tracekit.load("memory://runs/a/rank1.json").source.rank == 1


def test_a_label_stands_before_an_address(store):
    store.copy("/runs/a", "/runs/b", recursive=True)
    store.pipe("/runs/b/rank0.json", trace(0) + b" ")
    store.pipe("/runs/b/rank1.json", trace(1) + b" ")
    report = tracekit.analyze(["base=memory://runs/a", "opt=memory://runs/b"])
    assert set(report.tables["values"]["run"]) == {"base", "opt"}


def test_what_did_not_change_is_not_fetched_again(store, monkeypatch):
    tracekit.analyze("memory://runs/a")
    forget()
    opened = []
    kept_open = type(store).open
    monkeypatch.setattr(
        type(store), "open", lambda self, path, *a, **k: opened.append(path) or kept_open(self, path, *a, **k)
    )
    tracekit.analyze("memory://runs/a")
    assert opened == []
    store.pipe("/runs/a/rank1.json", trace(1) + b" ")
    store.rm("/runs/a/rank0.json")
    forget()
    opened.clear()
    report = tracekit.analyze("memory://runs/a")
    assert opened == ["/runs/a/rank1.json"]
    assert dict(report.files)["read"] == 1


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("memory://runs/nothing", "nothing is there"),
        ("memory://runs/*.nothing", "nothing is there"),
        ("nope://x/y", "cannot be listed: ValueError"),
    ],
)
def test_what_is_not_there_is_said_in_two_lines(store, address, problem):
    with pytest.raises(TracekitError, match=problem) as caught:
        tracekit.analyze(address)
    assert caught.value.hint


def test_a_store_without_its_package_names_it():
    pytest.importorskip("fsspec")
    with pytest.raises(TracekitError, match="s3fs"):
        tracekit.analyze("s3://bucket/run")


def test_without_a_cache_nothing_stays(store, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEKIT_NO_CACHE", "1")
    tracekit.analyze("memory://runs/a")
    assert not (tmp_path / "cache/fetched").exists()


def test_an_interrupted_copy_is_no_copy(store, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError("the line is dead")

    monkeypatch.setattr(type(store), "open", lambda *_, **__: Broken())
    with pytest.raises(TracekitError, match="cannot be fetched: OSError: the line is dead"):
        tracekit.analyze("memory://runs/a")
    monkeypatch.undo()
    forget()
    assert dict(tracekit.analyze("memory://runs/a").files)["read"] == 2


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def tarred(path, members):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(("make", "name"), [(zipped, "run.zip"), (tarred, "run.tar"), (tarred, "run.tgz")])
def test_members_of_an_archive_are_the_files_of_a_directory(make, name, tmp_path):
    members = {f"profile/rank{rank}.json": trace(rank) for rank in (0, 1)}
    same(make(tmp_path / name, members), "a", tmp_path)
    assert not (tmp_path / "profile").exists(), "nothing is unpacked beside it"


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["../x.json", "/../../x.json", "a/../../x.json", "a/" + "n" * 300])
def test_names_that_lead_out_are_refused(make, name, tmp_path):
    suffix = "zip" if make is zipped else "tar"
    path = make(tmp_path / f"run.{suffix}", {name: trace(0), "b.json": trace(1)})
    with pytest.raises(TracekitError, match="no name that a file here may have"):
        tracekit.analyze(path)
    assert not (tmp_path.parent / "x.json").exists()


def test_links_and_devices_of_an_archive_are_left_out(tmp_path):
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("passwd.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        info = tarfile.TarInfo("rank0.json")
        info.size = len(trace(0))
        archive.addfile(info, io.BytesIO(trace(0)))
    assert dict(tracekit.analyze(path).files) == {"read": 1}


def test_a_bomb_is_stopped_at_what_the_cache_may_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", "1 MB")
    path = zipped(tmp_path / "run.zip", {"a.json": b" " * 3_000_000, "b.json": trace(1)})
    assert path.stat().st_size < 20_000
    with pytest.raises(TracekitError, match="the most that is kept"):
        tracekit.analyze(path)


@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_archive_that_unpacks_to_too_many_times_its_size_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.setattr(unpacked_size, "FREE_BYTES", 2**20)
    path = tmp_path / ("run.zip" if make is zipped else "run.tgz")
    make(path, {"a.json": b" " * 3_000_000, "b.json": b" " * 3_000_000})
    with pytest.raises(TracekitError, match="unpacks to more than 200 times its size") as caught:
        tracekit.analyze(path)
    assert "unpack it first" in caught.value.hint
    copied = [p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert sum(copied) < 2**21


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_named(tmp_path):
    path = tmp_path / "run.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/rank0.json", trace(0))
        archive.writestr("a/rank1.json", trace(1))
        archive.writestr("a/./rank0.json", b"{}")
    with pytest.raises(TracekitError, match=r"run\.zip: 2 members are called a/rank0\.json"):
        tracekit.analyze(path)
    tar = tarred(tmp_path / "run.tar", {"rank0.json": trace(1)})
    with tarfile.open(tar, "a") as archive:
        info = tarfile.TarInfo("rank0.json")
        info.size = len(trace(0))
        archive.addfile(info, io.BytesIO(trace(0)))
    assert tracekit.load(fetched.get_local_path(tar) / "rank0.json").source.rank == 0, "as tar unpacks it"


def test_an_encrypted_member_is_named(tmp_path):
    path = zipped(tmp_path / "run.zip", {f"rank{rank}.json": trace(rank) for rank in (0, 1)})
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(magic) + flags] |= 1
    path.write_bytes(data)
    with pytest.raises(TracekitError, match=r"run\.zip: rank1\.json is encrypted"):
        tracekit.analyze(path)


def test_a_damaged_archive_is_said_to_be_one(tmp_path):
    path = tarred(tmp_path / "run.tgz", {f"rank{rank}.json": trace(rank) for rank in (0, 1)})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TracekitError):
        tracekit.analyze(path)


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("is_young", [False, True])
def test_an_archive_that_changed_is_copied_again_even_if_size_and_time_did_not(make, is_young, tmp_path, monkeypatch):
    # Of a young one even the inode's time of change may be the same: clocks tick every few ms.
    monkeypatch.setattr("tracekit.model.system.files.MOMENTS_NS", -(10**12) if not is_young else 10**12)
    if is_young:
        monkeypatch.setattr(fetched, "make_file_sign", lambda status: (1, 1, status.st_size, 1, 10**18))
        monkeypatch.setattr(fetched.time, "time_ns", lambda: 10**18)
    path = tmp_path / f"run.{'zip' if make is zipped else 'tar'}"
    for name in ("gemm", "GEMM"):
        data = text([step(1, 0, 100), launch(5, 1), kernel(name, 10, 80, 1)], rank=0)
        make(path, {"rank0.json": data, "notes.json": b"[]"})
        os.utime(path, ns=(10**18, 10**18))
        forget()
        folder = fetched.get_local_path(path)
        assert name.encode() in (folder / "rank0.json").read_bytes()


def test_copies_are_counted_and_cleared(store, tmp_path):
    tracekit.analyze("memory://runs/a")
    ((_, size, index),) = cache.list_cache_entries("fetched")
    assert size >= 2 * len(trace(0))
    assert json.loads(index.read_bytes()).keys() == {"a/rank0.json", "a/rank1.json"}
    fetched._held.close()
    assert cache.remove_if_unlocked(index)
    assert not index.parent.exists()


def test_what_looks_like_an_address_and_is_a_directory_here_is_read_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("base=x").mkdir()
    (tmp_path / "base=x" / "rank0.json").write_bytes(trace(0))
    assert tracekit.analyze("base=x").title == "base=x"
    assert os.listdir(tmp_path)  # noqa: PTH208


def test_who_waits_is_told_of_every_file(store, monkeypatch):
    told = []
    monkeypatch.setattr(fetched, "watchers", [lambda *state: told.append(state)])
    tracekit.analyze("memory://runs/a")
    assert told == [("memory://runs/a", 1, 2), ("memory://runs/a", 2, 2)]
    forget()
    tracekit.analyze("memory://runs/a")
    assert len(told) == 2, "what is here already takes no time"
