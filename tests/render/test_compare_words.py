"""Words of a comparison are right for what should fall and for what should rise, in every output."""

import csv
import io
from xml.etree import ElementTree as ET

import pytest
from compared import STEP, change, comparison

from tracekit.compare.comparison import Change
from tracekit.compare.gate_rules import parse_rule_text
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.model.report import Gate
from tracekit.render import render
from tracekit.render.ci.gates import make_gate_junit

LESS = "before over after; above 1 is better (less after)."
MORE = "before over after; below 1 is better (more after)."


def rate(word="improvement"):
    """50 tokens a second that become 100: the ratio, first over second, is 0.5."""
    return Change("throughput", "tokens per second and rank", None, None, "", "higher", word, 50.0, 100.0, 50.0, 0.5, 0.45, 0.55)  # fmt: skip


def time(word="improvement"):
    return change("time per token", 20, 10, word, low=1.9, high=2.1, name="time_per_token", stage=None)  # fmt: skip


def count(better, name="host_ops"):
    return Change(name, name, None, None, "count", better, "changed", 4.0, 2.0, -2.0, 2.0)


def sheets(*changes):
    report = build_comparison_report(comparison(*changes))
    return {sheet.name: sheet for section in report.sections for sheet in section.sheets}


def test_a_ratio_says_which_side_of_1_is_better():
    found = sheets(rate(), time())
    for name, words in (("metrics-rates", MORE), ("metrics-times", LESS)):
        (ratio,) = (heading for heading in found[name].headings if heading.name == "ratio")
        assert ratio.doc == words.capitalize()
        assert found[name].caption.startswith(f"Ratio: {words}")


def test_where_rows_disagree_or_have_no_direction_none_is_told():
    for others in (("lower", "neither"), ("lower", "higher"), ("neither",)):
        found = sheets(*(count(better, name) for better, name in zip(others, ("a", "b"), strict=False)))  # fmt: skip
        assert found["metrics-counts"].caption == "Ratio: before over after."


@pytest.mark.parametrize("format_", ["text", "md", "html"])
def test_people_read_the_direction_under_the_table(format_):
    text = " ".join(render(build_comparison_report(comparison(rate(), time())), format_, verbose=True).split())
    assert MORE in text
    assert LESS in text
    assert "takes less" not in text.split("Rates")[-1]


def test_a_word_follows_the_direction_and_not_the_ratio():
    (rows,) = (data for name, data in render(build_comparison_report(comparison(rate("regression"))), "csv").items() if "rates" in name)  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(rows.decode("utf-8")))
    assert (row["ratio"], row["word"]) == ("0.5", "regression")


@pytest.mark.parametrize(
    ("text", "rule"), [("step_time>3%", "step_time: at most +3 %"), ("throughput>3%", "throughput: at least −3 %")]
)
def test_a_limit_is_told_on_the_side_that_is_worse(text, rule):
    assert str(parse_rule_text(text)) == rule
    gate = Gate(rule, rule.split(":")[0], "fail", "error", "claim", 0.03, "ratio", "")
    (case,) = ET.fromstring(make_gate_junit("base · opt", [gate]).encode()).iter("testcase")
    assert case.get("name") == rule


def test_logged_steps_are_drawn_first():
    logged = change("step, un-profiled", 90, 75, "improvement", low=1.1, high=1.3, name="unprofiled_step_time", stage=None)  # fmt: skip
    found = comparison(changes=(logged, STEP), headline=logged)
    (forest,) = (c for section in build_comparison_report(found).sections for c in section.charts if c.id == "ratios")  # fmt: skip
    assert forest.rows == ("step, un-profiled", "step")
