"""No file harms the reader of memory snapshots: not by code, nor by memory, nor by time."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from snapshot_attacks import attacks
from snapshot_references import COUNT, LONG, references

MOST_MB, MOST_TIMES_FILE = 100, 30
MOST_SECONDS, MOST_SECONDS_PER_MB = 1.0, 1.0

# A process for each, forked from one that has imported all: what it takes beyond one that does nothing.
PROGRAM = textwrap.dedent(
    """
    import json, os, resource, sys, time
    from pathlib import Path
    from tracekit.model.errors import TraceFormatError
    from tracekit.readers import torch_memory
    from tracekit.model.trace import Source, Want

    def outcome(path):
        try:
            torch_memory.read(Source(path, path.name, "torch_memory", tool="torch_memory"), Want())
        except TraceFormatError as error:
            return f"TraceFormatError {error}"
        except BaseException as error:
            return f"{type(error).__name__} {error}"
        return "read"

    def taken(path):
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
            resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
            os.write(sending, (outcome(path) if path else "").encode()[:4000])
            os._exit(0)
        os.close(sending)
        with open(receiving, encoding="utf-8") as told:
            words = told.read()
        _, status, usage = os.wait4(child, 0)
        seconds = usage.ru_utime + usage.ru_stime
        return words or f"status {status}", usage.ru_maxrss * 1024 / 1e6, seconds

    paths = sorted(Path(sys.argv[1]).iterdir())
    outcome(paths[0])
    _, idle_mb, _ = taken(None)
    results = {path.name: taken(path) for path in paths}
    print(json.dumps({n: (words, mb - idle_mb, s) for n, (words, mb, s) in results.items()}))
    """
)

FILES = {name: data for name, (data, _) in attacks().items()} | references()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pwned" not in done.stdout
    assert {path.name for path in folder.iterdir()} == set(FILES)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", attacks())
def test_an_attack_is_refused_with_its_place_in_little_memory_and_time(name, outcomes):
    words, megabytes, seconds = outcomes[name]
    assert words.startswith("TraceFormatError ")
    assert attacks()[name][1] in words
    assert "\n" not in words
    assert megabytes < MOST_MB
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize("name", references())
def test_what_is_referred_to_often_is_read_once(name, outcomes):
    words, megabytes, seconds = outcomes[name]
    size_mb = len(FILES[name]) / 1e6
    assert words == "read"
    assert megabytes < MOST_TIMES_FILE * size_mb + MOST_MB
    assert seconds < MOST_SECONDS + MOST_SECONDS_PER_MB * size_mb


def test_a_long_text_is_kept_in_part_and_stays_apart_from_others(tables_of):
    def snapshot_of(*files):
        frames = [{"name": "f", "filename": file, "line": 1} for file in files]
        return {"segments": [], "device_traces": [[{"action": "alloc", "frames": frames}]]}

    tables = tables_of(snapshot_of("x" * LONG, "x" * (LONG + 1), "x" * LONG, "x" * 4096))
    first, second, third, fourth = tables["stacks"]["file"].tolist()
    assert first == third
    assert first != second
    assert re.fullmatch(r"x{4000,}… \(1,048,576 characters, [0-9a-f]{16}\)", first)
    assert max(map(len, (first, second))) == 4096
    assert fourth == "x" * 4096


def test_frames_that_are_one_object_are_rows_of_their_own(tables_of):
    shared = {"name": "f", "filename": "a.py", "line": 3}
    history = [{"action": "alloc", "frames": [shared] * COUNT}, {"action": "alloc", "frames": []}]
    stacks = tables_of({"segments": [], "device_traces": [history]})["stacks"]
    assert stacks["depth"].tolist() == list(range(COUNT))
    assert stacks["line"].tolist() == [3] * COUNT
