"""A process ends with the one that started it, and a guard ends what a library left, and nothing else."""

import signal
import sys
import time
from pathlib import Path

import pytest
from killing import Program, wait_until

import tracekit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")

ROOT = Path(tracekit.__file__).parents[1]

GUARDED = """
import subprocess, sys, time
from pathlib import Path
from tracekit.model.system.lifetime import start_guard
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


SPAWNING = """
import subprocess, sys, time
from pathlib import Path
from tracekit.model.system.lifetime import start_guard
guard = start_guard(["marked"])
spawner = "import os, time\\nfor _ in range(300):\\n    os.fork() or time.sleep(600)\\n    time.sleep(0.01)\\ntime.sleep(600)"
subprocess.Popen([sys.executable, "-c", spawner, "marked"], stdout=-3, stderr=-3, start_new_session=True)
time.sleep(1)
Path("begun").touch()
time.sleep(600)
"""


def test_what_a_marked_process_starts_while_the_guard_ends_it_ends_too(tmp_path):
    program = Program([sys.executable, "-c", SPAWNING], tmp_path, environment={"PYTHONPATH": str(ROOT)})
    wait_until((tmp_path / "begun").exists)
    program.signal(signal.SIGKILL)
    ending = program.ending()
    assert (ending.survivors, ending.is_closed) == ({}, True)


GROUP = """
import subprocess, sys, time
from pathlib import Path
from tracekit.model.system.lifetime import guarded_programs
script = ["sh", "-c", "sleep 600 & wait"]
with guarded_programs() as start:
    named = start(script, stdout=-3, stderr=-3)
    other = subprocess.Popen(script, start_new_session=True, stdout=-3, stderr=-3)
    if sys.argv[1] == "kill":
        Path("begun").write_text(f"{named.pid} {other.pid}")
        time.sleep(600)
Path("begun").write_text(f"{named.pid} {other.pid}")
time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["leave", "kill"])
def test_a_named_group_ends_when_its_program_is_killed_within_the_context(tmp_path, ending):
    variables = {"PYTHONPATH": str(ROOT)}
    program = Program([sys.executable, "-c", GROUP, ending], tmp_path, environment=variables)
    wait_until(lambda: (tmp_path / "begun").exists() and " " in (tmp_path / "begun").read_text())
    named, other = map(int, (tmp_path / "begun").read_text().split())
    program.signal(signal.SIGKILL)  # at once: the guard may still be starting
    if ending == "kill":
        # Both shells, their sleeps, and the guard: what is left is the group that nobody named.
        wait_until(lambda: named not in program._living(), limit_s=10)
        wait_until(lambda: len(program._living()) == 2, limit_s=10)
        assert other in program._living()
    else:
        time.sleep(1)
        assert {named, other} <= set(program._living())
    program._end_survivors()
    program.ending()


BETWEEN = """
import os, signal, subprocess, sys
from tracekit.model.system import lifetime
def be_killed(guard, leader):
    os.kill(os.getpid(), signal.SIGKILL)
lifetime.entrust = be_killed
with lifetime.guarded_programs() as start:
    start(["sh", "-c", "touch begun; sleep 600 & wait"], stdout=-3, stderr=-3)
"""


def test_a_program_never_begins_if_we_are_killed_before_the_guard_knows_it(tmp_path):
    variables = {"PYTHONPATH": str(ROOT)}
    ending = Program([sys.executable, "-c", BETWEEN], tmp_path, environment=variables).ending()
    assert (ending.status, ending.survivors, ending.is_closed) == (-signal.SIGKILL, {}, True)
    assert not (tmp_path / "begun").exists()


CHILD = """
import os, sys, time
from tracekit.model.system.lifetime import die_with
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
