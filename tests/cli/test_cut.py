"""`tracekit cut` and `tracekit export --range` as programs: status, messages, inputs that stay, hostile names."""

import gzip
import json
import subprocess
import sys

import pytest
from chrome_builder import annotation, launched, op, step, write

HOSTILE = "\x1b[31mred\x1b[0m <script>alert(1)</script>\n::error::x"


def run(*args):
    """Run tracekit in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *map(str, args)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def profile(tmp_path):
    rows = [
        *(step(number, 1000 * number, 1000) for number in (1, 2)), annotation(HOSTILE, 1100, 300), op("aten::mm", 1120, 50),
        *launched(HOSTILE, 1130, 1140, 40, 1), *launched("secret_kernel", 2130, 2140, 40, 2),
    ]  # fmt: skip
    return write(tmp_path / "in.json.gz", rows, rank=0, world_size=1)


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_range_is_written_and_described(profile, tmp_path):
    before = profile.read_bytes()
    done = run("cut", profile, "--range", "step 2", "-o", tmp_path / "out.json.gz", "--anonymize", "--no-cache")
    assert done.returncode == 0, done.stderr
    assert "replaced" in done.stdout + done.stderr
    assert f"wrote {tmp_path / 'out.json.gz'}" in done.stdout + done.stderr
    assert profile.read_bytes() == before
    names = {row["name"] for row in read(tmp_path / "out.json.gz")}
    assert "ProfilerStep#2" in names
    assert "ProfilerStep#1" not in names
    assert not any("secret" in name for name in names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "name one of --finding and --range"),
        (("--finding", "1", "--range", "step 1"), "name one of --finding and --range"),
        (("--range", "step 9"), "no such step"), (("--range", "9s:12s"), "the recording ends before"),
        (("--range", "5:1"), "range"), (("--finding", "nothing"), "no finding 'nothing'"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_status_2_and_writes_nothing(profile, tmp_path, options, message):
    done = run("cut", profile, *options, "-o", tmp_path / "out.json.gz", "--no-cache")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out.json.gz").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("cut",), ("export", "--to", "perfetto")])
def test_an_input_is_never_the_target(profile, command):
    before = profile.read_bytes()
    done = run(*command, profile, "--range", "step 1", "-o", profile)
    assert done.returncode == 2
    assert "one of the files to be read" in done.stderr
    assert profile.read_bytes() == before


@pytest.mark.parametrize("command", [("cut",), ("export", "--to", "perfetto")])
def test_hostile_names_reach_the_file_as_data_and_no_terminal(profile, tmp_path, command):
    done = run(*command, profile, "--range", "step 1", "-o", tmp_path / "out.json.gz")
    assert done.returncode == 0, done.stderr
    assert "\x1b[31m" not in done.stdout + done.stderr
    assert HOSTILE in {row["name"] for row in read(tmp_path / "out.json.gz")}


def test_an_exported_range_that_no_step_has_is_status_2(profile, tmp_path):
    done = run("export", profile, "--to", "perfetto", "--range", "step 9", "-o", tmp_path / "out.json.gz")
    assert done.returncode == 2
    assert "step 9" in done.stderr
    assert not (tmp_path / "out.json.gz").exists()
