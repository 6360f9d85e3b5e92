"""Markdown as GitHub reads it, by GitHub's own parser: names stay the names they are, and nothing else is made of them."""

import re
from html.parser import HTMLParser

import pytest
from any_report import reports, texts
from cmarkgfm import github_flavored_markdown_to_html as as_github
from cmarkgfm.cmark import Options as Cmark
from compared import change, comparison
from hypothesis import example, given, settings
from sample_report import HOSTILE, sample_report

from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.model.report import Heading, Report, Section, Sheet
from tracekit.render import render
from tracekit.render.escape import make_printable
from tracekit.render.markdown import escape_markdown, format_code_span, make_job_summary
from tracekit.render.options import RenderOptions
from tracekit.render.phrases import SENTENCE

OURS = {
    "p", "strong", "em", "h2", "h3", "ul", "ol", "li", "br", "sub", "code",
    "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
}  # fmt: skip
"""Every tag that we write or that Markdown of ours becomes; no link, image, footnote or check box."""

LIVE = re.compile(r"@\w|(?<![\w&])#\d|\bGH-\d|https?://|www\.\w|:[+\w-]+:", re.IGNORECASE)
"""What GitHub makes more of in text outside code: mentions, issues, addresses, emoji."""

NAMES = (*HOSTILE[:10], "a|b|c", "`tick``x`", "GH-12 :+1: $x$", "[^1]", "- [ ] todo", "\\|", "&lt;b&gt;", "~~a~~", "|", "`")  # fmt: skip


class Seen(HTMLParser):
    """The tags of a page, the cells of each row, and the text outside code."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.rows, self.outside, self.within = set(), [], [], []
        options = Cmark.CMARK_OPT_UNSAFE | Cmark.CMARK_OPT_FOOTNOTES
        self.feed(as_github(text, options))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "br":
            return
        assert {name for name, _ in attrs} <= {"align", "start"}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.within.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.within.pop() == tag

    def handle_data(self, data):
        if "td" in self.within or "th" in self.within:
            self.rows[-1][-1] += data
        if "code" not in self.within:
            self.outside.append(data)

    def handle_comment(self, data):
        assert re.fullmatch(r" tracekit:compare:[0-9a-f]{12} ", data)


def check(text):
    """What is seen of a page on which nothing is but what we write."""
    text.encode("utf-8")
    seen = Seen(text)
    assert seen.tags <= OURS
    assert seen.within == []
    # A wide space without width keeps a word from being a link, and is not seen.
    assert not [live for live in seen.outside if LIVE.search(live)]
    return seen


def sheet_of(names):
    headings = (Heading("name", "name"), Heading("value", "value", "count"))
    return Sheet("t", "T", headings, tuple((name, at) for at, name in enumerate(names)))


def shown(name, limit=120):
    """A name as it can be seen: on one line, what is invisible spelt out."""
    return " ".join(make_printable(name, limit).split())


def cell(seen, row, column=0):
    return " ".join(seen.rows[row][column].replace("\u200b", "").split())


def test_names_of_a_table_are_read_back_exactly():
    report = Report("t", "0", overview=sheet_of(NAMES))
    seen = check(render(report, "md", verbose=True))
    assert [len(row) for row in seen.rows] == [2] * (len(NAMES) + 1)
    assert [cell(seen, row) for row in range(1, len(NAMES) + 1)] == [shown(name) for name in NAMES]
    assert [cell(seen, row, 1) for row in range(1, len(NAMES) + 1)] == [str(at) for at in range(len(NAMES))]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(texts)
@example("a\\")
@example("a\\`b")
@example(" `` ")
@example("a&#124;b")
@example("\u00a0")
def test_any_name_is_one_cell_that_reads_as_the_name(name):
    seen = check(f"| name | value |\n|:--|--:|\n| {format_code_span(name)} | 7 |\n| x | 8 |\n")
    assert [len(row) for row in seen.rows] == [2, 2, 2]
    assert cell(seen, 1) == (shown(name) or "—")
    assert [row[1] for row in seen.rows] == ["value", "7", "8"]


@settings(max_examples=200, deadline=None)
@given(texts)
@example("a@b.example and _x_ __y__")
@example("http://example.com www.example.com ftp://x mailto:a@b.de xmpp:a@b")
def test_any_sentence_is_text_and_reads_as_it_was(text):
    seen = check(f"x {escape_markdown(text)} y")
    assert seen.tags == {"p"}
    told = "".join(seen.outside).replace("\u200b", "")
    assert " ".join(told.split()) == " ".join(f"x {make_printable(text, SENTENCE)} y".split())


def hostile_comparison():
    parts = [
        change(name, 9, 8 - at % 4, "inconclusive", low=0.9, high=3.0, role=HOSTILE[at - 3])
        for at, name in enumerate(HOSTILE)
    ]
    return comparison(*parts, warnings=HOSTILE, needed=HOSTILE[2], reading=HOSTILE[:4])


def test_a_comparison_of_hostile_names_is_as_many_cells_as_it_has():
    report = build_comparison_report(hostile_comparison())
    for text in (
        make_job_summary(report, RenderOptions(200, verbose=True)),
        render(report, "md", verbose=True, top=200),
    ):
        seen = check(text)
        stages = [row for row in seen.rows if row[0] in {shown(name) for name in HOSTILE}]
        assert len({len(row) for row in stages}) == 1
        assert len(stages) >= len(HOSTILE) - 1


def test_a_report_of_hostile_names_makes_nothing_of_them():
    check(render(sample_report(), "md", verbose=True, top=200))


@settings(max_examples=30, deadline=None)
@given(reports)
def test_any_report_makes_nothing_of_its_names(report):
    check(render(report, "md", verbose=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_section_is_folded_under_its_name(name):
    report = Report("t", "0", sections=(Section("s", name, sheets=(sheet_of(HOSTILE),)),))
    seen = check(render(report, "md", verbose=True))
    assert {"details", "summary"} <= seen.tags
    assert len(seen.rows) == len(HOSTILE) + 1
