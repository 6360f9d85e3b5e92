"""`--engine ray` that is killed at any moment ends the cluster that it started: no process, open pipe or torn output is left.

The cluster is of this machine, as for every run without an address; Ray's own files in its session folder are Ray's.
"""

import signal

import kill_matrix as matrix
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    given = tmp_path_factory.mktemp("given") / "profile"
    matrix.make_profile(given)
    return matrix.Case(
        ["analyze", given, "--engine", "ray", "-q", "-o", "out/report.json"],
        ("out/report.json",),
        may_end_by_signal=True,  # Ray's own code drops all handlers of SIGTERM while it shuts down
        environment={"RAY_ADDRESS": None, "RAY_TMPDIR": "/tmp"},
    )


@pytest.fixture(scope="module")
def reference(case, tmp_path_factory):
    return case.measure(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def early_s(tmp_path_factory):
    return matrix.startup_s(tmp_path_factory.mktemp("version"))


@pytest.mark.parametrize("number", matrix.SIGNALS, ids=[s.name for s in matrix.SIGNALS])
def test_a_run_on_ray_leaves_nothing_whenever_it_is_killed(
    case, reference, early_s, tmp_path, number
):
    wrong = {}
    for moment in range(matrix.MOMENTS):
        after_s = (moment + 0.5) / matrix.MOMENTS * reference[0]
        folder = tmp_path / f"at{moment}"
        folder.mkdir()
        problems = matrix.problems_of(case, folder, number, after_s, reference, early_s)
        if problems:
            wrong[f"{signal.Signals(number).name} after {after_s:.2f} s"] = problems
    assert wrong == {}
