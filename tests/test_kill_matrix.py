"""A command that is killed at any moment leaves no process, no open pipe, no torn output and, after the next run, no file.

Moments are spread over the measured length of an undisturbed run. `tests/on_ray/test_kill_matrix.py` does the same
with a cluster.
"""

import signal
import sys

import kill_matrix as matrix
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """The commands by name, each over inputs that are made once."""
    folder = tmp_path_factory.mktemp("given")
    base, opt = folder / "base", folder / "opt"
    matrix.make_profile(base)
    matrix.make_profile(opt)
    copies = matrix.make_reports(folder / "ray", 60_000_000)
    statement = matrix.HEAVY.format(rows=12_000)
    return {
        "analyze": matrix.Case(["analyze", base, "-j", "2", "-q", "-o", "out/report.json"], ("out/report.json",)),
        "compare": matrix.Case(
            ["compare", base, opt, "-j", "2", "-q", "-o", "out/compared.json"], ("out/compared.json",)
        ),
        "sql": matrix.Case(["sql", base, statement, "-j", "2", "-q", "-o", "out/rows.csv"], ("out/rows.csv",)),
        "sql-printed": matrix.Case(["sql", base, statement, "-j", "2", "-q"]),
        "mcp": matrix.Case(
            ["mcp", "--root", folder],
            given=matrix.mcp_lines(f"{folder.name}/base", statement),
            until=matrix.until_answered,
        ),
        "collect": matrix.Case(["collect", folder / "ray", "-o", "out", "-q"], copies),
    }


@pytest.fixture(scope="module")
def references(cases, tmp_path_factory):
    """A function that gives how long a command takes and what it writes, measured once."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = cases[name].measure(tmp_path_factory.mktemp("undisturbed"))
        return known[name]

    return of


def killed(case, reference, number, shares, folder):
    """What is wrong after the signal at each of these shares of a run."""
    wrong = {}
    for share in shares:
        after_s = share * reference[0]
        place = folder / f"at{share:.3f}"
        place.mkdir()
        problems = matrix.problems_of(case, place, number, after_s, reference)
        if problems:
            wrong[f"{number.name} after {after_s:.2f} s"] = problems
    return wrong


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("analyze", signal.SIGKILL),
        ("compare", signal.SIGTERM),
        ("sql", signal.SIGINT),
        ("mcp", signal.SIGTERM),
        ("collect", signal.SIGKILL),
    ],
)
def test_a_command_that_is_killed_midway_leaves_nothing(cases, references, tmp_path, name, number):
    wrong = killed(cases[name], references(name), number, [0.7], tmp_path)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("number", matrix.SIGNALS)
@pytest.mark.parametrize("name", ["analyze", "compare", "sql", "sql-printed", "mcp", "collect"])
def test_a_command_leaves_nothing_whenever_it_is_killed(cases, references, tmp_path, name, number):
    shares = [(moment + 0.5) / matrix.MOMENTS for moment in range(matrix.MOMENTS)]
    wrong = killed(cases[name], references(name), number, shares, tmp_path)
    assert wrong == {}
