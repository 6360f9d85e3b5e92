"""A gate as JUnit, as annotations and as a job's summary: hostile names change neither form nor count."""

import re
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from sample_report import HOSTILE

from tracekit.model.report import Gate, Heading, Report, Section, Sheet
from tracekit.render.ci.gates import (
    MAX_ANNOTATIONS,
    format_step_outputs,
    make_annotation,
    make_gate_annotations,
    make_gate_junit,
)
from tracekit.render.markdown import make_job_summary
from tracekit.render.options import RenderOptions


def gate(outcome="fail", severity="error", metric="step_time", claim="12 % more", **keys):
    rule = f"{metric}: at most +3 %"
    return Gate(rule, metric, outcome, severity, claim, 0.03, "ratio", "ns", **keys)


def suite(gates, **keys):
    (found,) = ET.fromstring(make_gate_junit("base · opt", gates, **keys).encode())
    return found


@pytest.mark.parametrize(
    ("outcome", "severity", "fails", "tag", "kind"),
    [
        ("pass", "error", False, "system-out", None),
        ("fail", "error", False, "failure", "regression"),
        ("fail", "warn", False, "system-out", None),
        ("inconclusive", "error", False, "skipped", None),
        ("inconclusive", "error", True, "failure", "inconclusive"),
        ("inconclusive", "warn", True, "skipped", None),
        ("not tested", "error", False, "error", "not tested"),
        ("not tested", "error", True, "error", "not tested"),
        ("not tested", "warn", True, "skipped", None),
        ("not comparable", "error", False, "error", "not comparable"),
        ("expired", "error", False, "error", "expired"),
        ("accepted", "error", False, "system-out", None),
    ],
)
def test_only_a_breach_is_a_failure_of_type_regression(outcome, severity, fails, tag, kind):
    found = suite([gate(outcome, severity)], inconclusive_fails=fails)
    (case,) = found.iter("testcase")
    _, said = case
    assert (said.tag, said.get("type")) == (tag, kind)
    counts = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    for name, attribute in counts.items():
        assert found.get(attribute) == str(int(name == tag))
    assert found.get("tests") == "1"


def test_a_rule_that_tested_nothing_is_skipped_where_that_passes():
    (case,) = suite([gate("not tested", "error")], untested_passes=True).iter("testcase")
    assert [part.tag for part in case] == ["properties", "skipped"]
    (line,) = make_gate_annotations([gate("not tested", "error")])
    assert line.startswith("::error ")
    (line,) = make_gate_annotations([gate("not tested", "error")], untested_passes=True)
    assert line.startswith("::warning ")


def test_numbers_stand_in_properties_and_unknown_ones_nowhere():
    (case,) = suite([gate(value=0.12, low=None, base=1e9)]).iter("testcase")
    found = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert found["value"] == "0.12"
    assert found["limit"] == "0.03"
    assert "low" not in found


@pytest.mark.parametrize("name", [*HOSTILE, "\x00\x0b\ufffe", "]]>", "&amp;"])
def test_a_hostile_name_survives_in_junit(name):
    text = make_gate_junit(name, [gate(metric=name, claim=name)])
    text.encode("utf-8")
    assert re.fullmatch(r"[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*", text)
    (found,) = ET.fromstring(text.encode())
    assert len(list(found.iter("testcase"))) == 1


@pytest.mark.parametrize("name", [*HOSTILE, "::stop-commands::x", "100 %0A::error::x"])
def test_a_hostile_name_begins_no_other_workflow_command(name):
    (line,) = make_gate_annotations([gate(metric=name, claim=name)])
    assert "\n" not in line
    assert "\r" not in line
    assert line.startswith("::error title=")
    head, _, text = line.removeprefix("::error title=").partition("::")
    assert not re.search(r"[:,]", head)
    assert not re.search(r"%(?!25)", text)
    text.encode("utf-8")


def test_an_annotation_is_escaped_as_github_reads_it():
    assert make_annotation("error", "a, b: c", "50 %\r\n::x") == "::error title=a%2C b%3A c::50 %25\\r\\n::x"


def test_at_most_ten_of_a_kind_and_the_last_tells_how_many_more():
    lines = make_gate_annotations([gate()] * 14 + [gate("inconclusive")] * 3 + [gate("pass")] * 5)
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == MAX_ANNOTATIONS
    assert "5 more" in errors[-1]
    assert len([line for line in lines if line.startswith("::warning")]) == 3


def test_a_breach_that_only_warns_is_a_warning_and_an_accepted_one_too():
    lines = make_gate_annotations([gate("fail", "warn"), gate("accepted")])
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::warning"]


def test_outputs_are_one_line_each():
    text = format_step_outputs({"verdict": "regression", "speedup": 0.123456789, "ci_low": None, "report": "a\nb=c"})
    assert text == "verdict=regression\nspeedup=0.123457\nci_low=\nreport=a\\nb=c\n"


def summary(report, limit=60_000, **options):
    return make_job_summary(report, RenderOptions(**options), limit)


def long_report():
    cells = tuple((f"kernel_{i}_" + HOSTILE[9], i) for i in range(500))
    sheet = Sheet("t", "T", (Heading("a", "a"), Heading("b", "b", "ns")), cells)
    gates = Section("gate", "Gate", sheets=(sheet,))
    others = tuple(Section(f"s{i}", f"Section {i}", sheets=(sheet,)) for i in range(80))
    return Report("long", "0", answer="1.12× faster", sections=(gates, *others))


def test_a_long_comparison_fits_a_summary():
    text = summary(long_report(), verbose=True)
    assert len(text) <= 60_000
    assert "1.12× faster" in text.splitlines()[0]
    assert "Cut at 60,000 characters" in text.splitlines()[-1]


def test_the_gate_stands_unfolded_after_what_to_be_careful_about():
    sheet = Sheet("gate", "Gate: shares", (Heading("rule", "rule"),), (("step_time",),))
    section = Section("gate", "x", sheets=(sheet,), caveats=("fail: step_time",))
    report = Report("t", "0", answer="gate: fail", sections=(section,), cautions=("too few runs",))
    text = summary(report)
    assert text.index("too few runs") < text.index("Gate: shares") < text.index("- fail: step")
    assert "<details>" not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_survives_in_a_summary(name):
    headings = (Heading("rule", "rule"), Heading("value", "found", "ratio"))
    sheet = Sheet("gate", "Gate", headings, ((name, 0.1), ("plain", 0.2)))
    section = Section("gate", "Gate", sheets=(sheet,), caveats=(f"fail: {name}",))
    report = Report("t", "0", identity=(name,), answer=name, sections=(section,), cautions=(name,))
    text = summary(report)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert html.count("<tr>") == 3
    assert html.count("<td") == 4
    for tag in set(re.findall(r"<(\w+)", html)):
        assert tag in {
            "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li", "h2",
            "em", "br", "sub",
        }  # fmt: skip
