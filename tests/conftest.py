"""With real profiles at hand (TRACEKIT_REAL_DATA), a skipped test is a failure: nothing may pass by not running."""

import os
import signal

import pytest
from click.testing import CliRunner
from hypothesis import settings

from tracekit import pipeline
from tracekit.cli import main
from tracekit.report import Section

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in the background; the programs that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same cases in every run, however long each takes: what passes here passes elsewhere. `make fuzz` draws others.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

collect_ignore = ["hydra_overrides.py", "verl_group_run.py"]
"""Programs that only a Python with verl can run."""


@pytest.fixture(autouse=True)
def only_asked(request, judged_only):
    """Where a module names the questions that its tests are about (`ASKED`), no others are judged: most of the time."""
    asked = getattr(getattr(request, "module", None), "ASKED", None)
    if asked is not None:
        judged_only(asked)


@pytest.fixture
def judged_only(monkeypatch):
    """A function that makes only the questions of these ids be judged."""
    judge = pipeline._section

    def only(asked):
        def section(analysis, *rest):
            if analysis.id in asked:
                return judge(analysis, *rest)
            return Section(analysis.id, analysis.title, "skipped", "no test of this module asks it")

        monkeypatch.setattr(pipeline, "_section", section)

    return only


@pytest.fixture
def call():
    """A function that runs the command line with these arguments, in this process."""

    def run(*args):
        result = CliRunner().invoke(main, [str(arg) for arg in args])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TRACEKIT_REAL_DATA"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TRACEKIT_REAL_DATA is set: {report.longrepr}"
    return report
