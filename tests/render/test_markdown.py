import re
from dataclasses import replace

import pytest
from any_report import reports, texts
from hypothesis import example, given, settings
from sample_report import HOSTILE

from tracekit.model.report import Heading, Remark, Report, Section, Sheet
from tracekit.render import render
from tracekit.render.markdown import MAX_MARKDOWN_CHARS, escape_markdown, format_code_span


def test_the_comment_is_the_golden_one(sample, golden):
    golden("report.md", render(sample, "md"))


def test_the_whole_report_is_the_golden_one(sample, golden):
    golden("report_verbose.md", render(sample, "md", verbose=True, top=20))


@given(texts)
@example("a:on:b")
@example("$x$ and ~~y~~")
def test_a_sentence_holds_no_markup_html_mention_or_address(text):
    out = escape_markdown(text)
    assert out.isprintable()
    assert "<" not in out
    assert not re.search(r"@\w|://|(?i:www\.)|:\w+:", out)
    assert not re.search(r"(?<!&)#\d", out)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]~$|]", out)


@given(texts)
@example("a\\|b")
@example("ends in backslash\\")
@example("`")
@example("<code>")
def test_a_name_in_a_table_neither_splits_the_row_nor_leaves_its_span(text):
    out = format_code_span(text)
    assert "|" not in out
    assert "\n" not in out
    if out.startswith("<code>"):
        assert not re.search(r"[<>`*_\[\]\\@]", out.removeprefix("<code>").removesuffix("</code>"))
    elif out.startswith("`"):
        assert out.count("`") == 2
        assert out.endswith("`")
    else:
        assert not re.search(r"[<`*\[\]\\@]", out)


def test_every_row_of_a_table_has_as_many_cells_as_its_head(sample):
    text = render(sample, "md", verbose=True)
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1


def test_a_mention_in_a_name_calls_nobody(sample):
    text = render(sample, "md", verbose=True)
    bare = re.sub(r"`[^`]*`", "", text)
    assert "@octocat" in text
    assert not re.search(r"@\w", bare)


def test_a_hostile_title_cannot_close_the_fold(sample):
    section = Section("x", "</summary></details>`*[x](y)", sheets=sample.sections[0].sheets)
    text = render(replace(sample, sections=(section,), remarks=()), "md")
    assert text.count("</details>") == text.count("<details>") == 1
    assert text.count("</summary>") == 1


@settings(max_examples=30, deadline=None)
@given(reports)
def test_folds_are_balanced_in_any_report(report):
    text = re.sub(r"(?<!\\)`[^`]*`", "", render(report, "md", verbose=True))
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    assert len(text) <= MAX_MARKDOWN_CHARS


def many(rows, name="t"):
    cells = tuple((f"kernel_{i}_" + HOSTILE[9], i) for i in range(rows))
    return Sheet(name, name, (Heading("a", "a"), Heading("b", "b", "ns")), cells)


def test_a_long_report_fits_a_comment_and_says_what_was_cut():
    sections = tuple(Section(f"s{i}", f"Section {i}", sheets=(many(500),)) for i in range(80))
    text = render(Report("long", "0.1.0", sections=sections), "md", verbose=True)
    assert len(text) <= MAX_MARKDOWN_CHARS
    assert "Cut at 65,000 characters" in text.splitlines()[-1]
    assert "Section 79" in text.splitlines()[-1] or "more" in text.splitlines()[-1]


def test_a_table_that_is_too_long_loses_rows_before_it_is_dropped():
    text = render(Report("long", "0.1.0", sections=(Section("s", "S", sheets=(many(900),) * 8),)), "md", verbose=True)
    assert "10 of 900 rows shown" in text or "50 of 900 rows shown" in text
    assert "rows of long tables" in text


@pytest.mark.parametrize("start", ["# x", "- x", "1. x", "> x", "+ x", "=== x", "    x"])
def test_no_text_at_the_start_of_a_line_becomes_a_block(sample, start):
    report = Report("t", "0", identity=(start,), remarks=(Remark("error", "c", start),))
    for line in render(report, "md").splitlines():
        assert not re.match(r"\s*(#|>|\+ |\d+\. |=)|    ", line)
