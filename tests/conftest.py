"""With real profiles at hand (TRACEKIT_REAL_DATA), a skipped test is a failure: nothing may pass by not running."""

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path

import measured_few
import pytest
import tools
from command_line import invoke
from hypothesis import settings

from tracekit.model.report import Section
from tracekit.pipeline import run as pipeline

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in the background; the programs that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Who watches from a terminal of another width sees the same: tests that ask for a width set it.
os.environ.pop("COLUMNS", None)

# Reference counts free nearly all that tests make: looking for cycles among everything that was imported and
# collected took one part in twenty of their time.
gc.set_threshold(50_000, 50, 100)


# The same cases in every run, however long each takes: what passes here passes elsewhere. `make fuzz` draws others.
settings.register_profile("steady", derandomize=True, deadline=None)
# Other cases every time, and more of them; a failure prints what repeats it.
settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("TRACEKIT_HYPOTHESIS", "steady"))

collect_ignore = [
    f"support/{name}.py"
    for name in (
        "hydra_overrides",
        "verl_group_run",
        "verl_group_switched",
        "verl_matrix",
        "verl_servers",
        "verl_switched_run",
        "verl_workers",
    )
]
"""Programs that only a Python with verl can run."""


def pytest_configure():
    """Tests of a tool that was promised are not left out without a word."""
    if lacking := tools.missing():
        raise pytest.UsageError(f"TRACEKIT_TOOLS names what is not here: {', '.join(lacking)}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What a module or a cluster sets up with a tool is set up once, in one worker of `--dist loadgroup`."""
    if os.environ.get("TRACEKIT_TOOLS"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(tools.group(item)))


def pytest_collection_finish():
    """What lives as long as the session is not looked through again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def only_asked(request, judged_only, monkeypatch):
    """Where a module names the questions that its tests are about (`ASKED`), no others are judged: most of the time.

    Where it says that they look at nothing but sections (`SECTIONS_ONLY`), the first screen and the values for a
    later compare are left out as well. What none of this reads is not measured, unless it is named (`MEASURED`;
    `EVERYTHING` where tests look at all tables); `OWN_ROWS` are tables of which tests look at rows of `ASKED` alone.
    """
    module = getattr(request, "module", None)
    asked = getattr(module, "ASKED", None)
    if asked is not None:
        judged_only(asked)
    if getattr(module, "SECTIONS_ONLY", False):
        for part, nothing in FIRST_SCREEN.items():
            monkeypatch.setattr(pipeline.overview, part, lambda _, nothing=nothing: nothing)
        monkeypatch.setattr(pipeline.appendix, "values", lambda _: None)


FIRST_SCREEN = {"identity": (), "headline": (), "where_it_goes": None, "fingerprint": ()}
"""The parts of the first screen, and what stands for each when it is left out."""


@pytest.fixture
def judged_only(request, monkeypatch):
    """A function that makes only the questions of these ids be judged, and only what they read be measured."""
    judge, measure = pipeline._section, pipeline.measured
    module = getattr(request, "module", None)

    def only(asked):
        judging = []

        def section(analysis, *rest):
            if analysis.id not in asked:
                return Section(
                    analysis.id, analysis.title, "skipped", "no test of this module asks it"
                )
            judging.append(analysis.id)
            try:
                return judge(analysis, *rest)
            finally:
                judging.pop()

        monkeypatch.setattr(pipeline, "_section", section)
        also = frozenset(getattr(module, "MEASURED", ()))
        if also == measured_few.EVERYTHING:
            return
        screen = () if getattr(module, "SECTIONS_ONLY", False) else measured_few.FIRST_SCREEN
        questions = measured_few.needed(asked).union(also, screen)
        monkeypatch.setattr(pipeline, "measured", measured_few.measuring(measure, questions))
        own_rows = {(None, table) for table in getattr(module, "OWN_ROWS", ())}
        measured_few.watch(monkeypatch, questions, judging, own_rows)

    return only


EXAMPLES = Path(__file__).parents[1] / "examples"
JUDGED = pipeline._section
MADE = {}
"""What `made_once` keeps, by what was asked."""


@pytest.fixture
def made_once(monkeypatch):
    """The committed examples are analysed and measured once for all tests that are about what comes after.

    Not for tests of which only some questions are judged: their reports are of no use to the others.
    """

    def of_examples(given):
        several = given if isinstance(given, list | tuple) else [given]
        paths = [Path(str(one).partition("=")[2] or str(one)) for one in several]
        return bool(paths) and all(EXAMPLES in path.absolute().parents for path in paths)

    def analyze(paths, options=pipeline.Options()):
        if not of_examples(paths) or pipeline._section is not JUDGED:
            return really["analyze"](paths, options)
        key = ("analyze", repr(paths), repr(replace(options, progress=False)), str(Path.cwd()))
        if key not in MADE:
            MADE[key] = really["analyze"](paths, options)
        return replace(MADE[key], measurements=replace(MADE[key].measurements))

    def measure(found, options=pipeline.Options()):
        if not of_examples([source.path for source in found.sources]):
            return really["measure"](found, options)
        key = ("measure", repr(found), repr(replace(options, progress=False)), str(Path.cwd()))
        if key not in MADE:
            MADE[key] = really["measure"](found, options)
        return replace(MADE[key])

    really = {"analyze": pipeline.analyze, "measure": pipeline.measure}
    monkeypatch.setattr(pipeline, "analyze", analyze)
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
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TRACEKIT_REAL_DATA"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TRACEKIT_REAL_DATA is set: {report.longrepr}"
    return report
