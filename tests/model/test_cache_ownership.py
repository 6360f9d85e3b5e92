"""The cache deletes only entries of its own: a folder with other files is refused, and foreign names stay."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.errors import TracekitError
from tracekit.model.system import cache

TRACE = Path("tests/data/cases/python_gc").absolute()
OLD = 1_600_000_000
OWN = {
    "measured": f"{'a' * 64}-{'b' * 64}.measured",
    "nsys": f"{'c' * 64}-2025.3.1.90-253135822126v0-plain.sqlite",
    "reports": f"{'d' * 64}.report",
}
FOREIGN = (
    "runs/partial-ckpt/model.bin",
    "runs/partial-0123456789abcdef/model.bin",
    "reports/mine.report",
    "measured/a.measured",
    "nsys/run.sqlite",
    "fetched/data/index",
    "reports/partial-results/table.csv",
    "partial-state",
    "notes.txt",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A place for the cache, which does not exist yet."""
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "place"))
    monkeypatch.setattr(cache, "listeners", [])
    cache._tell_unusable.cache_clear()
    return tmp_path / "place"


def put_old(folder, names):
    """Write files that are older than any limit on what is abandoned."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"the only copy")
        os.utime(path, (OLD, OLD))
        os.utime(path.parent, (OLD, OLD))


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run(place, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *arguments],
        env={**os.environ, "TRACEKIT_CACHE": str(place), "TRACEKIT_CACHE_LIMIT": "1 B", "TRACEKIT_NO_CACHE": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_leaves_a_used_folder_as_it_is_and_says_so_in_one_line(tmp_path):
    put_old(tmp_path / "used", FOREIGN)
    done = run(tmp_path / "used", "analyze", "-q", str(TRACE))
    assert done.returncode == 0
    assert files(tmp_path / "used") == set(FOREIGN)
    (line,) = done.stderr.splitlines()
    assert "used: nothing is cached: the directory contains other files; name an empty directory" in line
    cleared = run(tmp_path / "used", "cache", "--clear")
    assert cleared.returncode == 2
    assert "contains other files" in cleared.stderr
    assert files(tmp_path / "used") == set(FOREIGN)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_place_that_cannot_be_a_folder_is_named_once_where_the_user_chose_it(tmp_path, monkeypatch, name):
    (tmp_path / "file").write_bytes(b"the only copy")
    done = run(tmp_path / name, "analyze", "-q", str(TRACE))
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert f"{name}: nothing is cached: Not a directory; name an empty directory" in line
    assert files(tmp_path) == {"file"}
    monkeypatch.delenv("TRACEKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.make_kind_folder("reports") is None


def test_the_cache_command_names_a_place_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    done = run(tmp_path / "file", "cache")
    assert done.returncode == 2
    assert "file: nothing is cached: Not a directory" in done.stderr


def test_foreign_names_in_a_cache_stay_whatever_the_limit(place):
    assert cache.make_kind_folder("reports") == place / "reports"
    own = [f"{kind}/{name}" for kind, name in OWN.items()]
    own += [f"fetched/{'e' * 32}/index", f"fetched/{'e' * 32}/copies/rank0.json"]
    own += [f"nsys/partial-{'0f' * 8}/export.sqlite", "nsys/partial-abc_1234/export.sqlite"]
    put_old(place, [*FOREIGN, *own])
    cache.evict_oldest(0)
    assert files(place) == {cache.MARKER, *FOREIGN}


def test_a_link_to_a_folder_of_the_user_is_not_followed(place, tmp_path):
    cache.make_kind_folder("nsys")
    put_old(tmp_path / "mine", ["weights.bin"])
    (place / "nsys" / f"partial-{'0f' * 8}").symlink_to(tmp_path / "mine")
    cache.evict_oldest(0)
    assert files(tmp_path / "mine") == {"weights.bin"}


@pytest.mark.parametrize(
    ("before", "is_taken"),
    [
        ((), True),
        (("reports/" + OWN["reports"], "nsys/" + OWN["nsys"]), True),
        (("reports/" + OWN["reports"], "notes.txt"), False),
        (("reports/mine.report",), False),
        (("measured",), False),
    ],
)
def test_only_empty_folders_and_caches_of_before_are_marked(place, before, is_taken):
    place.mkdir()
    put_old(place, before)
    if is_taken:
        assert cache.make_kind_folder("reports") == place / "reports"
        assert (place / cache.MARKER).read_bytes().startswith(b"Signature: 8a477f597d28d1727")
        return
    with pytest.warns(UserWarning, match="contains other files"):
        assert cache.make_kind_folder("reports") is None
    assert files(place) == set(before)


def test_the_marker_of_another_program_is_not_ours(place):
    place.mkdir()
    (place / cache.MARKER).write_bytes(cache._MARK + b"# This is a cache of cargo.\n")
    with pytest.warns(UserWarning, match="contains other files"):
        assert cache.make_kind_folder("reports") is None


def test_a_marker_that_a_crash_left_empty_is_written_again(place):
    place.mkdir()
    (place / cache.MARKER).touch()
    assert cache.make_kind_folder("reports") is not None
    assert cache.is_own_cache(place)


@given(st.text("abcdef0123456789-._xy", min_size=1, max_size=80))
def test_no_short_name_counts_as_an_entry(name):
    for kind in ("measured", "nsys", "reports"):
        assert not cache._NAMES[kind].fullmatch(name) or len(name) > 64


def test_the_cache_command_refuses_a_used_folder(place):
    from tracekit.cli.commands.cache import command

    put_old(place, FOREIGN)
    with pytest.raises(TracekitError, match="contains other files"):
        command.main(["--clear"], standalone_mode=False)
