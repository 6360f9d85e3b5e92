"""No file harms the reader of memory snapshots: not by code, nor by memory, nor by time."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from snapshot_attacks import attacks

MOST_MB, MOST_SECONDS = 100, 1.0

# One process for all: forking and importing for each would take most of a minute.
PROGRAM = textwrap.dedent(
    """
    import contextlib, json, sys, time
    from pathlib import Path
    from tracekit.errors import TraceFormatError
    from tracekit.readers import torch_memory
    from tracekit.trace import Source, Want

    def status(field):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6

    def ran(path):
        Path("/proc/self/clear_refs").write_text("5")
        before, start = status("VmRSS"), time.process_time()
        try:
            torch_memory.read(Source(path, path.name, "torch_memory", tool="torch_memory"), Want())
            said = "no error"
        except TraceFormatError as error:
            said = f"TraceFormatError {error}"
        except BaseException as error:
            said = f"{type(error).__name__} {error}"
        return said, status("VmHWM") - before, time.process_time() - start

    ran(Path(sys.argv[1], "empty"))
    print(json.dumps({p.name: ran(p) for p in sorted(Path(sys.argv[1]).iterdir())}))
    """
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    for name, (data, _) in attacks().items():
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
    assert {path.name for path in folder.iterdir()} == set(attacks())
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", attacks())
def test_an_attack_is_refused_with_its_place_in_little_memory_and_time(name, outcomes):
    said, megabytes, seconds = outcomes[name]
    assert said.startswith("TraceFormatError ")
    assert attacks()[name][1] in said
    assert "\n" not in said
    assert megabytes < MOST_MB
    assert seconds < MOST_SECONDS
