"""What a report without findings says first: that no rule fired, or that no rule was asked."""

import re

import pytest

from tracekit.model.report import RULES, Report, Section
from tracekit.render import render

KERNELS = Section("kernels", "Which kernels take the time?")
CHECKED = Section(RULES, "Which rules were checked?")


def shown(sections, form):
    """The report as it is read: an HTML page without its marks and style."""
    text = render(Report("quiet", "0.1.0", sections=sections), form)
    return re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_where_no_rule_fired_there_are_no_findings(form):
    text = shown((KERNELS, CHECKED), form)
    assert "No findings" in text
    assert "No rules were asked" not in text


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_where_no_question_with_a_rule_was_asked_nothing_says_that_rules_found_nothing(form):
    text = shown((KERNELS,), form)
    assert "No rules were asked" in text
    assert "No findings" not in text
    assert "No rule found anything" not in text
