"""OpenMetrics: what GitLab reads as numbers, whatever a profile calls its stages."""

import re

import pytest
from any_report import reports
from hypothesis import given, settings

from tracekit.model.report import Heading, Metric, Report, Section, Sheet
from tracekit.render import render

LINE = re.compile(
    r"# TYPE [a-zA-Z_][a-zA-Z0-9_]* gauge"
    r"|# UNIT [a-zA-Z_][a-zA-Z0-9_]* [a-z_]+"
    r'|[a-zA-Z_][a-zA-Z0-9_]*(\{[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\])*"'
    r'(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\])*")*\})? -?[0-9][0-9.e+-]*'
    r"|# EOF"
)


def of(*metrics, overview=None):
    section = Section("repeats", "Repeats", metrics=metrics)
    return render(Report("t", "0", sections=(section,), overview=overview), "openmetrics")


def table(*rows):
    headings = (Heading("stage", "stage"), Heading("wall_ns", "wall", "ns"), Heading("how", "how"))
    return Sheet("overview", "Overview", headings, rows)


def test_numbers_are_in_base_units_with_three_digits():
    text = of(Metric("mean_step", 1_234_567_890, "ns", low=1_199_999_999), Metric("steps", 18, "count"))
    assert text == (
        "# TYPE tracekit_repeats_mean_step_seconds gauge\n"
        "# UNIT tracekit_repeats_mean_step_seconds seconds\n"
        "tracekit_repeats_mean_step_seconds 1.23\n"
        'tracekit_repeats_mean_step_seconds{bound="low"} 1.2\n'
        "# TYPE tracekit_repeats_steps gauge\n"
        "tracekit_repeats_steps 18\n"
        "# EOF\n"
    )


def test_noise_below_the_third_digit_is_no_change():
    assert of(Metric("a", 1_001_000, "ns")) == of(Metric("a", 1_004_000, "ns"))
    assert of(Metric("a", 1_001_000, "ns")) != of(Metric("a", 1_010_000, "ns"))


def test_what_is_not_known_has_no_line():
    assert of(Metric("a", None, "ns")) == "# EOF\n"


def test_stages_are_labels_and_words_that_vary_are_none():
    text = of(overview=table(("gen", 2_000_000, "shorter"), ("reward", None, "")))
    assert 'tracekit_overview_wall_seconds{stage="gen"} 0.002\n' in text
    assert "shorter" not in text
    assert "reward" not in text


@pytest.mark.parametrize("name", ['a"} 1\n# EOF', "back\\slash", "\u202eevil", "tab\there", "{}"])
def test_a_hostile_name_stays_within_its_quotes(name):
    text = of(overview=table((name, 1_000_000, "")))
    assert text.count("# EOF") == 1 + (name.count("# EOF"))
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    assert text.endswith("\n# EOF\n")


def test_of_two_lines_for_the_same_the_first_stands():
    text = of(overview=table(("gen", 1_000_000, ""), ("gen", 2_000_000, "")))
    assert text.count('{stage="gen"}') == 1
    assert '{stage="gen"} 0.001' in text


@settings(max_examples=50, deadline=None)
@given(reports)
def test_any_report_is_well_formed(report):
    text = render(report, "openmetrics")
    lines = text.splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert lines[-1] == "# EOF"
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(set(samples)) == len(samples)
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(set(types)) == len(types)
