"""The command line with a pipeline put in its place: commands are tested for what they pass and print."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracekit.pipeline
from tracekit.model.report import Heading, Metric, Report, Section, Sheet
from tracekit.model.tables import TABLES
from tracekit.model.trace import Failure, Measurements, Source
from tracekit.pipeline.options import parse_options
from tracekit.pipeline.run import Options, RunResult

SHEET = Sheet("stages", "Stages", (Heading("stage", "stage"),), (("rollout",), ("actor",)))
REPORT = Report(
    title="outputs/profile",
    tool_version="1.2.3",
    identity=("verl", "8 ranks"),
    headline=(Metric("step", 1_842_000_000, "ns", label="Step"),),
    overview=SHEET,
    sections=(Section("stages", "Stages", sheets=(SHEET,)),),
)


def measurements(read=2, failed=0):
    sources = tuple(Source(Path(f"/data/{n}.json"), f"{n}.json", "chrome", size_bytes=1 << 20) for n in range(read))
    failures = tuple(Failure(f"bad{n}.json", "not a trace", "check the copy") for n in range(failed))
    return Measurements({"windows": TABLES["windows"].cast()}, sources, failures)


class Pipeline(SimpleNamespace):
    """A stand-in that notes how it was called and returns, or raises, what a test sets."""

    Options = Options
    parse_options = staticmethod(parse_options)

    def analyze(self, paths, options, discovery=None):
        self.calls.append((list(paths), options))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    def discover_sources(self, paths, options):
        self.calls.append((list(paths), options))
        return self.discovery

    def judge(self, found):
        self.calls.append(found)
        return REPORT


@pytest.fixture
def pipeline(monkeypatch):
    stand_in = Pipeline(calls=[], discovery=None)
    stand_in.result = RunResult(REPORT, measurements())
    monkeypatch.setitem(sys.modules, "tracekit.pipeline.run", stand_in)
    monkeypatch.setattr(tracekit.pipeline, "run", stand_in, raising=False)
    return stand_in


@pytest.fixture(autouse=True)
def quiet_log():
    """Take back what -v does to the log of this process."""
    log = logging.getLogger("tracekit")
    before = log.level
    yield
    log.setLevel(before)


@pytest.fixture
def report():
    return REPORT


@pytest.fixture
def report_file(tmp_path):
    from tracekit.render import write_report_json

    path = tmp_path / "saved.json"
    path.write_text(write_report_json(REPORT), encoding="utf-8")
    assert json.loads(path.read_text())["title"] == REPORT.title
    return path


@pytest.fixture
def fail_some(pipeline):
    def fail(read, failed):
        pipeline.result = RunResult(REPORT, measurements(read, failed))

    return fail
