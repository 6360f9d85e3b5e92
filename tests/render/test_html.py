"""The page of a report without a timeline: readable without scripts, inert, small. `test_explorer_page` has timelines."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from any_report import reports
from hypothesis import given, settings
from page_reading import Page as ExplorerPage
from sample_report import HOSTILE, charted_report, sample_report

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.report import Finding, Heading, Metric, Place, Remark, Report, Section, Sheet, Verdict
from tracekit.render import render
from tracekit.render.escape import make_printable
from tracekit.render.explorer.plain.notes import MOST_NOTES, NO_TIMELINE
from tracekit.render.explorer.template import read_page_assets
from tracekit.render.html import MAX_PAGE_BYTES, TIMELINE_BYTES

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "examples" / "simulated_gpu" / "outputs" / "profile"
VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """The page as elements, texts and attributes; fails where tags do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.outline, self.texts = [], [], [], [], []
        self.rows = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        assert len({name for name, _ in attrs}) == len(attrs)
        self.rows = self.rows + 1 if tag == "tr" else 0 if tag == "table" else self.rows
        marks = "".join(f" {name}={value}" for name, value in attrs if name in ("id", "class", "scope", "aria-label"))
        self._line(f"<{tag}{make_printable(marks, 90)}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.texts.append(data)
        if data.strip():
            self._line(make_printable(" ".join(data.split()), 90))

    def _line(self, text):
        # Four rows of a table show its form; the others differ in their values only.
        if not ("table" in self.open and self.rows > 4):
            self.outline.append("  " * len(self.open) + text)

    @property
    def text(self):
        return "".join(self.texts)

    @property
    def words(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def explorer():
    """The page of two simulated ranks, as `render` writes it."""
    return render(tracekit.analyze(PROFILE, timeline=True), "html")


def one(*sections, **more):
    return render(Report("t", "0", sections=sections, **more), "html")


def test_the_structure_is_the_golden_one(sample, golden):
    golden("report_html_outline.txt", "\n".join(Page(render(sample, "html")).outline) + "\n")


@settings(max_examples=25, deadline=None)
@given(reports)
def test_any_report_gives_a_well_formed_page_that_loads_nothing(report):
    check_inert(render(replace(report, answer=""), "html"))


def check_inert(text):
    page = Page(text)
    assert page.tags.count("style") == 1
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "srcset", "action", "formaction", "poster", "data", "style", "xlink:href", "href")
        assert tag != "script" or name in ("type", "id"), value
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    scripts = [value for tag, name, value in page.attributes if (tag, name) == ("script", "type")]
    assert len(scripts) == page.tags.count("script")
    assert scripts.count("module") == 1
    assert set(scripts) <= {"module", "application/json", "application/octet-stream"}


def test_the_page_with_a_timeline_is_inert_as_well(explorer):
    check_inert(explorer)


def list_inlined(text):
    """The texts of the style and of the program."""
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    return style, re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)[1]


def test_the_policy_allows_the_two_inlined_texts_and_nothing_else(sample, explorer):
    for text in (render(sample, "html"), explorer):
        (policy,) = [v for tag, name, v in Page(text).attributes if name == "content" and "default-src" in v]
        allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert allowed.pop("default-src") == "'none'"
        for directive, content in zip(("style-src", "script-src"), list_inlined(text), strict=True):
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert allowed.pop(directive) == f"'sha256-{digest}'"
        assert set(allowed.values()) == {"'none'"}


def test_style_and_program_load_nothing_and_build_no_markup_from_text():
    assets = read_page_assets()
    assert not re.search(r"url\(|@import|https?:|//[a-z]", assets.style)
    assert not re.search(
        r"fetch\(|XMLHttp|import\(|\beval\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write", assets.code
    )


def test_without_a_timeline_there_is_no_program_and_one_line_says_why(sample, explorer):
    text = render(sample, "html")
    assert list_inlined(text)[1] == ""
    assert Page(text).text.count(NO_TIMELINE) == 1
    assert "<noscript>" not in text
    assert NO_TIMELINE not in explorer
    assert list_inlined(explorer)[1] == read_page_assets().code


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(name) < 160])
def test_a_hostile_name_is_text_on_the_page(sample, name):
    assert make_printable(name) in Page(render(sample, "html")).text


def test_addresses_are_redacted(sample):
    secret = "s3://key:secret@bucket/run"
    report = replace(sample, title=secret, cautions=(f"read from {secret}",))
    assert "secret" not in render(report, "html")


def test_a_very_long_name_is_shortened_and_its_title_has_all_of_it(sample):
    page = Page(render(sample, "html"))
    titles = [value for tag, name, value in page.attributes if tag == "td" and name == "title"]
    assert [len(title) for title in titles] == [1_000]
    assert "x" * 200 not in page.text


def test_the_answer_is_the_only_heading_of_the_first_rank(sample, explorer):
    for text in (render(sample, "html"), explorer):
        assert Page(text).tags.count("h1") == 1


def test_an_answer_of_its_own_is_the_heading_with_its_basis():
    page = Page(render(Report("t", "0", answer="2 × faster · step 4 → 2 s", basis=("5 runs a side",)), "html"))
    assert "2 × faster · step 4 → 2 s" in page.words
    assert "5 runs a side" in page.words


def test_the_order_is_answer_findings_overview_notes_tables(sample):
    text = render(sample, "html")
    marks = ["<h1", 'id="issues"', 'id="first"', 'id="skipped"', 'id="notes"', 'id="tables"']
    found = [text.index(mark) for mark in marks]
    assert found == sorted(found)


def test_all_rows_of_the_report_are_on_the_page(sample):
    text = Page(render(sample, "html", top=1)).text
    assert "kernel_119" in text
    assert "4,321 further rows are not in the report" in text


def test_the_page_with_a_timeline_has_all_tables_for_readers_without_scripts(explorer):
    report = tracekit.analyze(PROFILE, timeline=True)
    plain = explorer[explorer.index("<noscript>") : explorer.index("</noscript>")]
    for section in report.sections:
        for sheet in section.sheets:
            assert f"<summary>{sheet.title}</summary>".replace("'", "&#x27;") in plain
    assert plain.count("<details>") == plain.count("<table>") > 30
    assert "rows shown" not in plain


def test_numbers_of_the_first_screen_and_of_sections_are_in_tables():
    metrics = (Metric("x", 0.25, "ratio", label="some share"), Metric("y", None, "ns", label="unknown time"))
    page = Page(one(Section("s", "Some section", metrics=metrics), headline=(Metric("step_wall", 5_000_000, "ns"),)))
    assert "Numbers of the first screen" in page.words
    assert "Numbers: Some section number value range some share 25 % unknown time —" in page.words


def wide(rows):
    headings = (Heading("name", "name"), Heading("time", "time", "ns"), Heading("share", "share", "ratio"))
    return Sheet("t", "T", headings, tuple((f"kernel_{i}_" + "n" * 60, i * 1_000, 0.5) for i in range(rows)))


def test_a_huge_report_stays_under_the_limit_and_says_what_is_cut():
    small = Sheet("small", "Small", (Heading("a", "a"),), tuple((f"row {i}",) for i in range(100)))
    sections = (Section("big", "Big", sheets=(wide(90_000), wide(60_000))), Section("s", "S", sheets=(small,)))
    text = render(Report("huge", "0", sections=sections), "html")
    page = Page(text)
    assert MAX_PAGE_BYTES * 0.6 < len(text.encode()) <= MAX_PAGE_BYTES
    assert len(re.findall(r"of 90,000 rows shown; cut to keep this page small", page.text)) == 1
    assert "row 99" in page.text


def test_a_report_of_endless_lists_stays_under_the_limit_and_says_what_is_cut():
    place = Place(name="p" * 150)
    found = tuple(Finding("rule", "high", "claim " * 100, "advice " * 100, (), (place,) * 200) for _ in range(3_000))
    report = replace(sample_report(), sections=(Section("s", "S", findings=found),) * 2)
    text = render(report, "html")
    assert len(text.encode()) <= MAX_PAGE_BYTES
    assert re.search(r"items of long lists are not on this page", Page(text).text)


def test_the_timeline_leaves_room_for_the_tables(explorer):
    assert len(explorer.encode()) < TIMELINE_BYTES / 4


def test_a_report_of_nothing_has_its_title_as_answer():
    assert "nothing <b>" in Page(render(Report("nothing <b>", "0"), "html")).text


@pytest.mark.parametrize(("columns", "style"), [(6, ""), (7, ' class="below"')])
def test_without_a_step_the_first_finding_is_the_answer_and_its_first_table_is_in_sight(columns, style):
    """The finding of medium severity is the second one; a wide table is below the findings."""
    names = [f"column {place}" for place in range(columns)]
    sheet = Sheet("ranks", "Ranks that wait", tuple(Heading(name, name) for name in names), (("rank 2",) * columns,))
    found = [Finding(f"r-{severity}", severity, f"claim of {severity}", "do it") for severity in ("high", "medium")]
    sections = [
        Section("other", "Other", findings=(found[1],), sheets=(replace(sheet, title="Other table"),)),
        Section("hang", "Hang", findings=(found[0],), sheets=(sheet, replace(sheet, title="Second table"))),
    ]
    text = one(*sections)
    assert "<h1>claim of high</h1>" in text
    first = re.search(r'<section id="first".*?</section>', text, re.DOTALL)[0]
    assert first.startswith(f'<section id="first"{style} aria-labelledby')
    assert "Ranks that wait" in first
    assert "Second table" not in first
    own = one(*sections, overview=replace(sheet, title="Overview"))
    assert "Overview" in re.search(r'<section id="first".*?</section>', own, re.DOTALL)[0]


def test_findings_have_saving_evidence_places_and_caveats():
    evidence = (Metric("x", 0.5, "ratio", label="share of it"),)
    places = tuple(Place(rank=at) for at in range(9))
    found = Finding("r", "low", "some claim", "some advice", evidence, places, caveats=("may be wrong",))
    words = Page(one(Section("s", "S", findings=(found,)))).words
    assert "some claim some advice share of it 50 % Where: rank 0; rank 1; rank 2; rank 3; 5 more places" in words
    assert "Caveat: may be wrong" in words


def test_notes_are_folded_bounded_and_counted():
    remarks = tuple(Remark("info", "code", f"remark {at}") for at in range(200))
    page = Page(
        one(Section("s", "S", caveats=("a caveat",)), remarks=remarks, cautions=("careful",), unseen=("x.bin",))
    )
    # The caution, the gap, the caveat, 200 remarks, and the version.
    assert "204 notes on the data and the method careful Not analyzed: x.bin S: a caveat remark 0" in page.words
    assert f"{204 - MOST_NOTES} more notes are in the JSON report" in page.words
    assert "remark 199" not in page.words


def test_rules_that_abstain_are_named_with_their_first_reason():
    verdicts = (
        Verdict("step-variance", "insufficient data", "1 of 4 steps", "a"),
        Verdict("step-variance", "insufficient data", "2 of 4 steps", "b"),
        Verdict("copies", "not applicable"),
        Verdict("straggler", "fired"),
        Verdict("idle", "clear"),
    )
    words = Page(one(Section("s", "S", verdicts=verdicts))).words
    assert "S: step-variance (insufficient data: 1 of 4 steps) S: copies (not applicable)" in words
    assert "straggler" not in words


def test_questions_without_an_answer_have_their_reason():
    words = Page(one(Section("s", "Why so?", "skipped", "not recorded"))).words
    assert "1 question could not be answered from this recording Why so?: not recorded" in words


def test_damaged_page_data_is_an_error_that_names_its_source():
    report = tracekit.analyze(PROFILE, timeline=True)
    first, *others = report.timeline.processes
    wrong = replace(report.timeline, processes=(replace(first, data=first.data[:-9]), *others))
    with pytest.raises(TracekitError, match=r"simulated_rank0.*not readable as a timeline"):
        render(replace(report, timeline=wrong), "html")


def test_the_page_has_the_timeline_of_the_report(explorer):
    page = ExplorerPage(explorer)
    assert [(row["rank"], row["device"]) for row in page.head["rows"]] == [(0, 0), (1, 1)]
    assert page.head["kernels"] == 2 * 1632
    assert page.head["missed"] == 0
    assert len(page.columns("critical", 5)[0]) > 1_000


def test_charts_of_a_report_are_not_on_its_page():
    assert "<svg" not in render(replace(charted_report(), answer=""), "html")


def test_numbers_that_json_lacks_are_null_in_the_head():
    page = one(headline=(Metric("x", float("nan"), "ns"), Metric("y", 0.5, "ratio")))
    head = re.search(r'id="head">(.*?)</script>', page)[1]
    assert '"metrics":{"x":null,"y":0.5}' in head
