"""Workers end with the program that started them, however it ends and from whichever thread they were started."""

import os
import signal
import sys
from pathlib import Path

import pytest
from killing import Program, wait_until

import tracekit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")

ROOT = Path(tracekit.__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])

SCRIPT = """
import sys, threading
from pathlib import Path
import workloads
from tracekit.engine.local import run_locally
from tracekit.model.trace import Source

def read():
    folder = Path(sys.argv[1])
    sources = [Source(folder / name, name, "none") for name in sys.argv[3:]]
    list(run_locally(workloads.sleep_silently, sources, jobs=len(sources), where="processes"))

if sys.argv[2] == "main":
    read()
else:
    threads = [threading.Thread(target=read)]
    threads[0].start()
    threads[0].join()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("names", ["12", "01", "0012"])
@pytest.mark.parametrize("thread", ["main", "other"])
def test_workers_end_with_their_parent_and_close_its_pipes(tmp_path, thread, names, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = [f"{name}-{place}" for place, name in enumerate(names)]
    program = Program(
        [sys.executable, script, tmp_path, thread, *given],
        tmp_path,
        environment={"PYTHONPATH": PATHS, "OPENBLAS_NUM_THREADS": "1"},
    )
    wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == len(given))
    program.signal(number)
    ending = program.ending()
    assert ending.survivors == {}
    assert ending.is_closed
    assert ending.status == -number
