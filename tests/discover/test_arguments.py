"""What is named on the command line: `label=path` means the same everywhere, and what is no file is refused at once."""

import os
import shutil
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from tracekit.discover.arguments import parse_path_arguments, refuse_missing, refuse_special, split_label
from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.comparing import is_step_log

PROFILE = Path(__file__).parents[2] / "examples" / "simulated_gpu" / "outputs" / "profile"
STEPS = "step,seconds\n" + "".join(f"{step},{1 + step / 100}\n" for step in range(1, 6))


@contextmanager
def at_once():
    """What takes ten seconds here waits for something."""

    def give_up(number, frame):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("typed", "label", "path"),
    [
        ("base=data", "base", "data"),
        ("a/b=data", "a/b", "data"),
        ("a/b=data/x=1", "a/b", "data/x=1"),
        ("data/x=1", None, "data/x=1"),  # it exists
        ("data/*=1", None, "data/*=1"),  # it matches
        ("base=data/*", "base", "data/*"),
        ("base=nosuch", "base", "nosuch"),
        ("=data", None, "=data"),
        ("base=", None, "base="),
        ("data", None, "data"),
        (Path("base=data"), None, "base=data"),
    ],
)
def test_a_label_is_split_off_where_nothing_is_called_so(tmp_path, monkeypatch, typed, label, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "x=1").mkdir(parents=True)
    assert split_label(typed) == (label, Path(path))
    if "nosuch" not in str(typed) and label is not None:
        assert parse_path_arguments([typed])[0].label == label


def test_home_is_meant_behind_a_label_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert split_label("a/b=~/run") == ("a/b", tmp_path / "run")


def test_a_label_with_a_slash_names_profiles_saved_files_and_logs_alike(tmp_path, monkeypatch, made_once):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(PROFILE, tmp_path / "profile")
    result = pipeline.analyze_uncached("profile", pipeline.Options(jobs=1))
    saved_measurements.save(result.measurements, tmp_path / "saved.tkm")
    Path("log.csv").write_text(STEPS)
    of_profile = pipeline.discover_sources(["a/b=profile"])
    assert {source.run for source in of_profile.sources} == {"a/b"}
    of_saved = pipeline.analyze_uncached(["a/b=saved.tkm"]).measurements
    assert {source.run for source in of_saved.sources} == {"a/b"}
    assert is_step_log("a/b=log.csv")


@pytest.mark.parametrize("typed", ["x/y=nosuch", "nosuch", "x/nosuch*"])
def test_what_is_not_there_is_named_as_it_was_typed(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TracekitError, match="no such file or directory") as caught:
        refuse_missing([typed])
    assert caught.value.problem.startswith(f"{typed}: ")


@pytest.mark.parametrize(
    "args",
    [
        ["compare", "a.csv", "nosuch.csv"],
        ["compare", "nosuch.csv", "a.csv"],
        ["compare", "a.csv", "a.csv", "--steps-from", "base=a.csv", "--steps-from", "opt=nosuch.csv"],
        ["compare", "a.csv", "a.csv", "--base-steps", "nosuch.csv", "--opt-steps", "a.csv"],
        ["noise", "a.csv", "nosuch.csv"],
    ],
)  # fmt: skip
def test_a_log_that_is_not_there_is_said_not_to_be_there(call, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(STEPS)
    result = call(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == "tracekit: nosuch.csv: no such file or directory"


COMMANDS = [
    ["analyze", "{}"],
    ["analyze", "x={}"],
    ["inspect", "{}"],
    ["doctor", "{}"],
    ["compare", "{}", "a.csv"],
    ["compare", "a.csv", "{}"],
    ["compare", "a.csv", "a.csv", "--steps-from", "base={}", "--steps-from", "opt=a.csv"],
    ["compare", "a.csv", "a.csv", "--noise", "{}"],
    ["compare", "a.csv", "a.csv", "--config", "{}"],
    ["gate", "{}", "--config", "budget.toml"],
    ["noise", "{}", "a.csv"],
    ["render", "{}"],
    ["export", "{}", "--perfetto", "out.json"],
]


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_no_command_waits_for_a_pipe(call, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(STEPS)
    Path("budget.toml").write_text('[gate]\n[[gate.rule]]\nmetric = "step_time"\nmax = "1s"\n')
    os.mkfifo("pipe.json")
    with at_once():
        result = call(*(arg.format("pipe.json") for arg in args))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "tracekit: pipe.json: a pipe, and a file is wanted",
        "          try: write what comes out of it to a file, and give that",
    ]


def test_sockets_and_devices_are_refused_and_what_is_asked_of_them_is_no(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.json")
        for path, kind in (("socket.json", "a socket"), ("/dev/zero", "a device")):
            with pytest.raises(TracekitError, match=kind):
                refuse_special(path)
            with pytest.raises(TracekitError, match=kind):
                parse_path_arguments([path])
            assert saved_measurements.sniff_saved_form(Path(path)) is None
            assert not is_step_log(path)


def test_files_directories_and_nothing_are_not_special(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nosuch", "\0"):
        refuse_special(path)
