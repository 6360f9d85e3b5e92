"""`--engine ray` that is killed at any moment ends the cluster that it started: no process, open pipe or torn output is left.

The cluster is of this machine, as for every run without an address; Ray's own files in its session folder are Ray's.
"""

import signal

import kill_matrix as matrix
import pytest

pytestmark = pytest.mark.slow

# Read in Ray 2.60: to connect, `ray.init` makes SIGTERM raise SystemExit(15), and its C++ part (absl) calls that handler
# after its own; tracekit turns it into 143. Calls of Ray report a SystemExit as an error, but not a KeyboardInterrupt.
# To leave, `CoreWorkerProcess::Shutdown` calls `RayLog::UninstallSignalAction`, which sets SIGTERM to SIG_DFL until
# `ray.shutdown` returns: only then may SIGTERM end the process itself. Ray does not touch SIGINT in a driver.
MARKED = """
import builtins, sys
from pathlib import Path
from tracekit.cli import main

importing = builtins.__import__

def import_and_mark(*args, **kwargs):  # no earlier: main handles signals while the module is imported
    module = importing(*args, **kwargs)
    cluster = sys.modules.get("tracekit.engine.ray_cluster")
    leave = getattr(cluster, "_leave", None)
    if leave is not None and builtins.__import__ is import_and_mark:  # not yet marked within this import
        builtins.__import__ = importing
        def marked(ray):
            mark = Path("leaves-ray")
            mark.touch()
            leave(ray)
            mark.unlink()
        cluster._leave = marked
    return module

builtins.__import__ = import_and_mark
main()
"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    given = tmp_path_factory.mktemp("given") / "profile"
    matrix.make_profile(given)
    return matrix.Case(
        ["analyze", given, "--engine", "ray", "-q", "-o", "out/report.json"],
        ("out/report.json",),
        program=("-c", MARKED),
        unhandled="leaves-ray",
        environment={"RAY_ADDRESS": None, "RAY_TMPDIR": "/tmp"},
    )


@pytest.fixture(scope="module")
def reference(case, tmp_path_factory):
    return case.measure(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("number", matrix.SIGNALS, ids=[s.name for s in matrix.SIGNALS])
def test_a_run_on_ray_leaves_nothing_whenever_it_is_killed(case, reference, tmp_path, number):
    wrong = {}
    for moment in range(matrix.MOMENTS):
        after_s = (moment + 0.5) / matrix.MOMENTS * reference[0]
        folder = tmp_path / f"at{moment}"
        folder.mkdir()
        problems = matrix.problems_of(case, folder, number, after_s, reference)
        if problems:
            wrong[f"{signal.Signals(number).name} after {after_s:.2f} s"] = problems
    assert wrong == {}
