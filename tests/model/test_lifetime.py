"""A process ends with the one that started it, and a guard ends what a library left, and nothing else."""

import signal
import sys
from pathlib import Path

import pytest
from killing import Program, wait_until

import tracekit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")

ROOT = Path(tracekit.__file__).parents[1]

GUARDED = """
import subprocess, sys, time
from pathlib import Path
from tracekit.model.lifetime import start_guard
sleep = "import time; time.sleep(600)"
start = lambda word: subprocess.Popen([sys.executable, "-c", sleep, word], start_new_session=True, stdout=-3, stderr=-3)
earlier = start("marked")
guard = start_guard(["marked"])
later, other = start("marked"), start("another")
Path("ids").write_text(f"{earlier.pid} {later.pid} {other.pid}")
time.sleep(2)
Path("begun").touch()
sys.argv[1] == "close" and guard.stdin.close()
time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_guard_ends_what_is_marked_and_began_later_and_nothing_else(tmp_path, ending):
    variables = {"PYTHONPATH": str(ROOT)}
    program = Program([sys.executable, "-c", GUARDED, ending], tmp_path, environment=variables)
    wait_until((tmp_path / "begun").exists)
    earlier, later, other = map(int, (tmp_path / "ids").read_text().split())
    if ending == "kill":
        program.signal(signal.SIGKILL)
    wait_until(lambda: later not in program._living(), limit_s=10)
    assert {earlier, other} <= set(program._living())
    program.signal(signal.SIGKILL)
    program.ending()


CHILD = """
import os, sys, time
from tracekit.model.lifetime import die_with
parent = os.getpid()
if os.fork() == 0:
    die_with(parent)
    open("begun", "w").close()
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(tmp_path, number):
    variables = {"PYTHONPATH": str(ROOT)}
    program = Program([sys.executable, "-c", CHILD], tmp_path, environment=variables)
    wait_until((tmp_path / "begun").exists)
    program.signal(number)
    ending = program.ending()
    assert (ending.survivors, ending.is_closed) == ({}, True)
