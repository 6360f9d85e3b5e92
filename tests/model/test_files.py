import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.system.files import check_writable, write_atomically


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def left_over(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".tracekit-")]


@pytest.mark.parametrize("data", [b"abc", [b"a", b"", b"bc"], iter([b"ab", b"c"])])
def test_the_file_holds_the_data(tmp_path, data):
    target = tmp_path / "x"
    write_atomically(target, data)
    assert target.read_bytes() == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_path_may_be_text_and_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomically("x", b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path, umask):
    write_atomically(tmp_path / "x", b"")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_an_existing_file_keeps_its_permissions(tmp_path, umask):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    target.chmod(0o604)
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "x"
    link.symlink_to(target)
    write_atomically(link, b"one")
    write_atomically(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"


def test_data_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "x"
    target.write_bytes(b"old")

    def broken():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, broken())
    assert target.read_bytes() == b"old"
    assert left_over(tmp_path) == []


def refused(path, data=b"data"):
    """The error, and the same one from asking beforehand where that can know."""
    with pytest.raises(TracekitError) as caught:
        write_atomically(path, data)
    assert "\n" not in caught.value.problem
    assert caught.value.hint
    return caught.value


def test_a_directory_is_refused_before_and_at_writing(tmp_path):
    assert "is a directory" in refused(tmp_path).problem
    with pytest.raises(TracekitError, match="is a directory"):
        check_writable(tmp_path)


def test_a_missing_directory_is_refused_and_named(tmp_path):
    error = refused(tmp_path / "no" / "where" / "x")
    assert "there is no directory" in error.problem
    assert error.hint == f"mkdir -p {tmp_path / 'no' / 'where'}"
    with pytest.raises(TracekitError, match="no directory"):
        check_writable(tmp_path / "no" / "x")


def test_a_file_as_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file" / "x").problem


def test_a_name_that_is_too_long_is_refused(tmp_path):
    assert refused(tmp_path / ("x" * 300)).hint == "choose a shorter name"


def test_a_null_byte_is_refused():
    assert "null byte" in refused("a\0b").problem


def test_a_circle_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a")


def test_what_may_not_be_written_is_refused(tmp_path, monkeypatch):
    # Root may write anything: the answer of the system is put in its place.
    (tmp_path / "x").write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "write-protected" in refused(tmp_path / "x").problem
    with pytest.raises(TracekitError, match="Permission denied"):
        check_writable(tmp_path / "new")
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_full_device_is_refused():
    error = refused("/dev/full")
    assert error.problem == "/dev/full: cannot be written: No space left on device"
    assert "space" in error.hint


WRITE_UNDER_A_LIMIT = """
import resource, sys
from tracekit.model.errors import TracekitError
from tracekit.model.system.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(sys.argv[1], [b"x" * 999, b"y" * 999])
except TracekitError as error:
    print(error.problem, error.hint)
"""


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNDER_A_LIMIT, str(target)],
        env={**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "File too large" in done.stdout
    assert "ulimit" in done.stdout
    assert target.read_bytes() == b"old"
    assert left_over(tmp_path) == []


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, [b"ab", b"c"])
    reader.join(5)
    assert got == [b"abc"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_can_be_written_passes_and_nothing_is_made(tmp_path):
    check_writable(tmp_path / "x")
    check_writable("/dev/null")
    assert list(tmp_path.iterdir()) == []
