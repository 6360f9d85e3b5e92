"""With real profiles at hand (TRACEKIT_REAL_DATA), a skipped test is a failure: nothing may pass by not running."""

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import tools
from command_line import invoke
from hypothesis import settings

from tracekit.pipeline import run as pipeline

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in the background; the programs that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and so would what tests start


# Who watches from a terminal of another width sees the same: tests that ask for a width set it.
os.environ.pop("COLUMNS", None)
# What a job of GitHub's sees is tested where it is asked for.
os.environ.pop("GITHUB_ACTIONS", None)

# Every test measures for itself: what one of them kept would hide from another what it breaks.
os.environ["TRACEKIT_NO_CACHE"] = "1"

# Reference counts free nearly all that tests make: looking for cycles among everything that was imported and
# collected took one part in twenty of their time.
gc.set_threshold(50_000, 50, 100)


# The same cases in every run, however long each takes: what passes here passes elsewhere. `make fuzz` draws others.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50)
# Other cases every time, and more of them; a failure prints what repeats it.
settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("TRACEKIT_HYPOTHESIS", "steady"))

collect_ignore = [
    f"{name}.py"
    for name in (
        "data/gpu/record",
        "support/hydra_overrides",
        "support/verl_group_run",
        "support/verl_group_switched",
        "support/verl_matrix",
        "support/verl_servers",
        "support/verl_switched_run",
        "support/verl_workers",
    )
]
"""Programs that only a Python with verl or torch can run."""


def pytest_configure():
    """Tests of a tool that was promised are not left out without a word."""
    if lacking := tools.missing():
        raise pytest.UsageError(f"TRACEKIT_TOOLS names what is not here: {', '.join(lacking)}")


def pytest_collection_finish():
    """What lives as long as the session is not looked through again."""
    gc.freeze()


EXAMPLES = Path(__file__).parents[1] / "examples"
MADE = {}
"""What `made_once` keeps, by what was asked."""


@pytest.fixture
def made_once(monkeypatch):
    """The committed examples are analysed and measured once for all tests that are about what comes after."""

    def of_examples(given):
        several = given if isinstance(given, list | tuple) else [given]
        paths = [Path(str(one).partition("=")[2] or str(one)) for one in several]
        return bool(paths) and all(EXAMPLES in path.resolve().parents for path in paths)

    def analyze(paths, options=pipeline.Options(), discovery=None):
        if not of_examples(paths):
            return really["analyze"](paths, options, discovery)
        key = ("analyze", repr(paths), repr(replace(options, progress=False)), str(Path.cwd()))
        if key not in MADE:
            MADE[key] = really["analyze"](paths, options, discovery)
        return replace(MADE[key], measurements=replace(MADE[key].measurements))

    def measure(found, options=pipeline.Options()):
        if not of_examples([source.path for source in found.sources]):
            return really["measure"](found, options)
        key = ("measure", repr(found), repr(replace(options, progress=False)), str(Path.cwd()))
        if key not in MADE:
            MADE[key] = really["measure"](found, options)
        return replace(MADE[key])

    really = {"analyze": pipeline.analyze_uncached, "measure": pipeline.measure}
    monkeypatch.setattr(pipeline, "analyze_uncached", analyze)
    monkeypatch.setattr(pipeline, "measure", measure)


@pytest.fixture
def call():
    """A function that runs the command line with these arguments, in this process."""

    def run(*args):
        result = invoke(*args)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file that is left out as a whole is a skipped test too."""
    report = yield
    if report.skipped and os.environ.get("TRACEKIT_REAL_DATA"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TRACEKIT_REAL_DATA is set: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TRACEKIT_REAL_DATA"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TRACEKIT_REAL_DATA is set: {report.longrepr}"
    return report
