"""Temporaries of killed programs are removed by the next one; those in use, of others, and of other names stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.model.system import temporaries

fcntl = pytest.importorskip("fcntl")

HOLD = """
import sys, time
from pathlib import Path
from tracekit.model.system import temporaries
folder = Path(sys.argv[1])
with temporaries.{kind}(folder) as made:
    print(made if isinstance(made, Path) else made[1], flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Each test is like a new program."""
    monkeypatch.setattr(temporaries, "_cleared", set())


@pytest.fixture(params=["new_file", "new_folder"])
def holder(request, tmp_path):
    """A program that has a temporary in `tmp_path`, and the path of that."""
    root = Path(tracekit.__file__).parents[1]
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(kind=request.param), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    path = Path(program.stdout.readline().strip())
    yield program, path
    program.kill()
    program.wait()
    program.stdout.close()


def prefix_of(path):
    return temporaries.BESIDE if path.is_file() else temporaries.IN_TMPDIR


def test_what_a_killed_program_left_is_removed_and_what_is_in_use_stays(holder, tmp_path):
    program, path = holder
    if path.is_dir():
        (path / "copy.sqlite").write_bytes(b"x")
    prefix = prefix_of(path)
    temporaries.remove_abandoned_files(tmp_path, prefix)
    assert path.exists()
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    assert path.exists()
    temporaries.remove_abandoned_files(tmp_path, prefix)
    assert list(tmp_path.iterdir()) == []


def test_whoever_makes_a_temporary_removes_the_abandoned_ones_beside_it(tmp_path):
    abandoned = tmp_path / f"{temporaries.BESIDE}{'0a' * 8}.tmp"
    abandoned.touch()
    with temporaries.new_file(tmp_path) as (_, path):
        assert list(tmp_path.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["tracekit-examples", "tracekit-0123456789abcdef", ".tracekit-x.tmp", "0a0a0a0a0a0a0a0a.tmp"]
)  # fmt: skip
def test_files_and_folders_of_other_names_stay(tmp_path, name):
    (tmp_path / name).mkdir()
    for prefix in (temporaries.BESIDE, temporaries.IN_TMPDIR, "partial-"):
        temporaries.remove_abandoned_files(tmp_path, prefix)
    assert (tmp_path / name).exists()


def test_links_pipes_and_files_of_other_users_stay(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / f"{temporaries.BESIDE}{'1' * 16}.tmp"
    link.symlink_to(target)
    pipe = tmp_path / f"{temporaries.BESIDE}{'2' * 16}.tmp"
    os.mkfifo(pipe)
    other = tmp_path / f"{temporaries.BESIDE}{'3' * 16}.tmp"
    other.touch()
    monkeypatch.setattr(os, "getuid", lambda: other.stat().st_uid + 1)
    temporaries.remove_abandoned_files(tmp_path, temporaries.BESIDE)
    monkeypatch.undo()
    assert target.is_dir()
    assert link.is_symlink()
    assert pipe.exists()
    assert other.exists()


def test_nothing_is_removed_where_nothing_can_be_locked(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    abandoned = tmp_path / f"{temporaries.BESIDE}{'0' * 16}.tmp"
    abandoned.touch()
    with temporaries.new_file(tmp_path) as (descriptor, path):
        os.write(descriptor, b"data")
        assert path.read_bytes() == b"data"
    assert list(tmp_path.iterdir()) == [abandoned]


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
def test_a_temporary_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch, kind):
    lock, calls = temporaries._try_flock, []

    def robbed(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            for path in tmp_path.iterdir():
                path.rmdir() if path.is_dir() else path.unlink()
        return lock(descriptor)

    monkeypatch.setattr(temporaries, "_try_flock", robbed)
    with getattr(temporaries, kind)(tmp_path) as made:
        path = made if kind == "new_folder" else made[1]
        assert path.exists()
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_system_leave_no_temporary_behind(tmp_path):
    with pytest.raises(OSError, match="no space"), temporaries.new_file(tmp_path):
        raise OSError("no space")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
@pytest.mark.parametrize("call", ["_try_flock", "_delete_temporary"])
def test_a_signal_while_it_is_made_or_removed_leaves_nothing(monkeypatch, tmp_path, kind, call):
    """The handler of a signal raises an exception between two lines."""
    original, calls = getattr(temporaries, call), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(temporaries, call, interrupted)
    with pytest.raises(KeyboardInterrupt), getattr(temporaries, kind)(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
