"""What results show of themselves: one line at a prompt, an answer with folded detail in a notebook, frames, figures."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from render.sample_report import HOSTILE

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Finding, Heading, Report, Section, Sheet
from tracekit.render.csv import render_csv
from tracekit.render.options import RenderOptions
from tracekit.render.plots.strip import make_strip_html

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def report():
    return tracekit.analyze(EXAMPLES / "simulated_gpu/outputs/profile", cache=False)


@pytest.fixture(scope="module")
def comparison():
    return tracekit.compare(EXAMPLES / "compare_cpu/base", EXAMPLES / "compare_cpu/opt")


class Balanced(HTMLParser):
    """Tags in the order in which they open, with an error where one closes that is not open."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(page):
    """The tags of a piece of HTML that is whole."""
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser.seen


def test_one_line_at_a_prompt(report, comparison):
    for thing in (report, report.sections[0], report.findings[0], report.overview, comparison):
        text = repr(thing)
        assert text.startswith(f"<{type(thing).__name__} ")
        assert text.endswith(">")
        assert len(text) <= 170
        assert "\n" not in text
    assert "step 63.7 ms" in repr(report)
    assert f"{len(report.findings)} findings" in repr(report)
    assert "1.62× faster" in repr(comparison)


def test_a_report_in_a_notebook_has_the_answer_and_every_section_folded(report):
    page = report._repr_html_()
    seen = [tag for tag, _ in tags(page)]
    assert seen.count("details") == len(report.sections)
    assert "Top issues" in page.partition("<details>")[0]
    assert len(page) < 200_000


def test_a_report_in_a_notebook_begins_with_the_strip_of_its_stages(report):
    """Bars are as long as the stages of the step, in percent of it, in the colors of the images."""
    page = make_strip_html(report)
    (chart,) = (one for section in report.sections for one in section.charts if one.id == "gantt-1")
    bars = [attrs for tag, attrs in tags(page) if tag == "span"]
    begin, end = min(mark[2] for mark in chart.marks), max(mark[3] for mark in chart.marks)
    widths = [float(re.search("width:([0-9.]+)%", bar["style"])[1]) for bar in bars]
    assert widths == [pytest.approx(100 * (to - start) / (end - begin), abs=1e-3) for _, _, start, to in chart.marks]
    assert {bar["title"].split(":")[0] for bar in bars} == set(chart.series)
    assert report._repr_html_().startswith(f"<div>{page}")
    assert make_strip_html(Report("t", "1")) == ""


def test_hostile_names_make_no_element_of_a_strip():
    chart = Chart("g", "<b>", "gantt", tuple((row, 0, 0, 5) for row in range(len(HOSTILE))), ("<i>x",), HOSTILE)
    page = make_strip_html(Report("t", "1", sections=(Section("s", "S", charts=(chart,)),)))
    assert {tag for tag, _ in tags(page)} == {"div", "small", "span"}


def test_sections_findings_sheets_and_comparisons_show_themselves(report, comparison):
    for section in report.sections:
        tags(section._repr_html_())
    tags(report.findings[0]._repr_html_())
    table = tags(report.overview._repr_html_())
    assert [tag for tag, _ in table].count("th") == len(report.overview.headings)
    assert "1.62× faster" in comparison._repr_html_()


def test_nothing_that_a_profile_says_becomes_markup():
    name = f"<script>alert(1)</script>{HOSTILE}"
    sheet = Sheet("s", name, (Heading("n", name, doc=name),), ((name,),), caption=name)
    finding = Finding("idle", "high", name, name, caveats=(name,))
    section = Section("s", name, "failed", name, sheets=(sheet,), findings=(finding,))
    report = Report(name, "1", sections=(section,), cautions=(name,))
    for thing in (report, section, finding, sheet):
        allowed = {"div", "pre", "details", "summary", "table", "caption", "thead", "tbody"}
        allowed |= {"tr", "th", "td", "p", "small"}
        for tag, attributes in tags(thing._repr_html_()):
            assert tag in allowed
            assert set(attributes) <= {"style", "title"}
        assert "\n" not in repr(thing)


def test_the_tables_are_those_that_csv_writes(report):
    written = render_csv(report, RenderOptions())
    assert {f"{name}.csv" for name in report.tables} == set(written)
    for name, frame in report.tables.items():
        head = written[f"{name}.csv"].decode("utf-8-sig").splitlines()[0]
        assert ",".join(frame.columns) == head
    kernels = report.tables["kernels"]
    sheet = next(s for one in report.sections for s in one.sheets if s.name == "kernels")
    assert kernels["total_ns"].tolist() == [row[2] for row in sheet.rows]
    assert str(kernels["total_ns"].dtype) == "Int64"
    assert kernels.attrs["units"]["total_ns"] == "ns"
    assert kernels.attrs["units"]["share_ratio"] == "ratio"
    assert kernels.attrs["title"] == "Kernels by total time"


def test_values_that_are_not_known_are_missing_and_large_numbers_stay_whole():
    headings = tuple(Heading(name, name) for name in "abcde")
    rows = ((1, 1.5, "x", True, 2**70), (None, None, None, None, None))
    report = Report("t", "1", sections=(Section("s", "s", sheets=(Sheet("s", "s", headings, rows),)),))
    frame = report.tables["s"]
    assert frame.iloc[0].tolist() == [1, 1.5, "x", True, 2**70]
    assert frame.iloc[1].isna().all()
    assert [str(frame[name].dtype) for name in "abd"] == ["Int64", "Float64", "boolean"]


def test_a_table_that_is_not_there_names_its_neighbour(report):
    with pytest.raises(TracekitError, match=r"no table 'kernel'.*did you mean 'kernels'"):
        report.tables["kernel"]
    with pytest.raises(KeyError, match="there are: steps, "):
        report.section("nothing")
    assert report.section("kernels").id == "kernels"


def test_arrow_takes_the_frames(report):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(report.tables["kernels"])
    assert table.num_rows == len(report.tables["kernels"])
    measured = tracekit.measure(EXAMPLES / "simulated_gpu/outputs/profile", questions="kernels")
    assert arrow.table(measured.tables["kernels"])["name"].to_pylist()[0]


def test_a_chart_is_drawn_by_its_id_or_that_of_its_section(report):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = report.figure("stages_by_rank")
    assert any(text.get_text().startswith("Wall") or text.get_text() for text in axes.texts)
    from matplotlib.figure import Figure

    own = Figure().add_subplot()
    assert report.figure("gpu-time", own) is own
    assert len(own.collections) + len(own.patches) > 0
    with pytest.raises(TracekitError, match=r"no chart 'stages_by_ranks'.*did you mean"):
        report.figure("stages_by_ranks")
    import matplotlib.pyplot as plt

    plt.close("all")


def test_measured_tables_have_units_and_meanings():
    measured = tracekit.measure(EXAMPLES / "simulated_gpu/outputs/profile", questions="kernels")
    kernels = measured.tables["kernels"]
    assert isinstance(kernels, pd.DataFrame)
    assert kernels.attrs["units"]["total_ns"] == "ns"
    assert kernels.attrs["units"]["name"] == "text"
    assert kernels.attrs["docs"].keys() == set(kernels.columns)
    assert len(kernels) == len(measured["kernels"])
    assert measured["kernels"].attrs == {}, "what questions judge does not carry it along"
    with pytest.raises(TracekitError, match=r"no table 'kernel' was measured; did you mean"):
        measured.tables["kernel"]
    assert re.match(r"<Measurements 2 sources · ", repr(measured))
    assert "a row is" in measured._repr_html_()


def test_a_trace_says_what_was_recorded():
    trace = tracekit.load(EXAMPLES / "simulated_gpu/outputs/profile", rank=1)
    assert trace.source.rank == 1
    assert repr(trace).startswith("<Trace simulated_rank1.pt.trace.json.gz · rank 1 · host_ops 4,")
    assert "an interval on a host thread" in trace._repr_html_()


def test_one_process_of_many_is_loaded_by_its_rank():
    profile = EXAMPLES / "simulated_gpu/outputs/profile"
    assert [trace.source.rank for trace in tracekit.load_all(profile)] == [0, 1]
    with pytest.raises(TracekitError, match="holds no process with rank 7"):
        tracekit.load(profile, rank=7)
    with pytest.raises(TracekitError, match="is a directory"):
        tracekit.load(profile)
    pid = tracekit.load(profile, rank=1).source.pid
    assert tracekit.load(profile, pid=pid).source.rank == 1


def test_equal_reports_stay_equal(report):
    assert replace(report) == report
