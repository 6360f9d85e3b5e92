import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from any_report import reports
from hypothesis import given, settings
from sample_report import HOSTILE, charted_report, gantt, sample_report

from tracekit.model.report import Chart, Finding, Heading, Metric, Place, Remark, Report, Section, Sheet, Verdict
from tracekit.render.escape import make_printable
from tracekit.render.document import MAX_PAGE_BYTES, render_document

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
        marks = "".join(
            f" {name}={value}" for name, value in attrs if name in ("id", "class", "href", "scope", "aria-label")
        )
        self._line(f"<{tag}{make_printable(marks, 90)}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

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


def test_the_structure_is_the_golden_one(sample, golden):
    golden("document_outline.txt", "\n".join(Page(render_document(sample)).outline) + "\n")


@settings(max_examples=25, deadline=None)
@given(reports)
def test_any_report_gives_a_well_formed_page_that_loads_nothing(report):
    page = Page(render_document(report))
    assert page.tags.count("script") == page.tags.count("style") == 1
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "srcset", "action", "formaction", "poster", "data", "style", "xlink:href")
        if name == "href":
            assert re.fullmatch(r"#[a-z0-9-]+", value), (tag, value)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 59 + "-" + "b" * 9, "a" * 58 + "-2", "", "-"])
def test_charts_of_one_name_have_an_id_each_however_long_it_is(name):
    charts = tuple(replace(gantt(), id=name) for _ in range(12))
    section = replace(charted_report().sections[0], id=name, charts=charts)
    page = Page(render_document(replace(charted_report(), sections=(section, section))))
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids)) > 24 * 3
    assert all(re.fullmatch(r"[a-z0-9-]+", value) for value in ids)


def test_every_link_on_the_page_leads_somewhere():
    page = Page(render_document(charted_report()))
    ids = {value for _, name, value in page.attributes if name == "id"}
    assert {value[1:] for _, name, value in page.attributes if name == "href"} <= ids


def test_style_and_script_load_nothing_and_build_no_markup_from_text(sample):
    style, script = parts(render_document(sample))
    assert not re.search(r"url\(|@import|https?:|//[a-z]", style)
    assert not re.search(
        r"https?:|fetch|XMLHttp|import\(|eval|innerHTML|outerHTML|insertAdjacent|document\.write", script
    )


def parts(page):
    return [re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script")]


def test_the_policy_allows_the_two_inlined_texts_and_nothing_else(sample):
    text = render_document(sample)
    (policy,) = [v for tag, name, v in Page(text).attributes if name == "content" and "default-src" in v]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed.pop("default-src") == "'none'"
    for directive, content in zip(("style-src", "script-src"), parts(text), strict=True):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed.pop(directive) == f"'sha256-{digest}'"
    assert set(allowed.values()) == {"'none'"}


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(name) < 160])
def test_a_hostile_name_is_text_on_the_page(sample, name):
    assert make_printable(name) in Page(render_document(sample)).text


def test_a_very_long_name_is_shortened_and_held_in_full_by_its_title(sample):
    page = Page(render_document(sample))
    titles = [value for tag, name, value in page.attributes if tag == "td" and name == "title"]
    assert [len(title) for title in titles] == [1_000]
    assert "x" * 200 not in page.text


def test_the_answer_is_the_one_heading_of_the_first_rank(sample):
    page = Page(render_document(sample))
    assert page.tags.count("h1") == 1
    assert "Step 1,842 ms 1,795–1,910" in " ".join(page.text.split())


def test_the_order_is_answer_overview_findings_gaps_sections_method(sample):
    text = render_document(sample)
    marks = ["<h1", 'id="overview"', 'id="findings"', 'id="not-analyzed"', 'id="section-kernels"', 'id="method"']
    found = [text.index(mark) for mark in marks]
    assert found == sorted(found)


def test_all_rows_of_the_report_are_on_the_page(sample):
    text = Page(render_document(sample)).text
    assert "kernel_119" in text
    assert "4,321 further rows are not in the report" in text


def test_a_share_has_a_bar_of_its_width_and_an_unknown_one_has_none(sample):
    headings = (Heading("share", "share", "ratio"),)
    rows = ((0.25,), (None,), (7.0,), (-1.0,), (float("nan"),))
    text = render_document(Report("t", "0", overview=Sheet("t", "T", headings, rows)))
    assert re.findall(r'<rect width="([\d.]+)%"', text) == ["25.0", "100.0", "0.0"]


def wide(rows):
    headings = (Heading("name", "name"), Heading("time", "time", "ns"), Heading("share", "share", "ratio"))
    return Sheet("t", "T", headings, tuple((f"kernel_{i}_" + "n" * 60, i * 1_000, 0.5) for i in range(rows)))


def test_a_huge_report_stays_under_the_limit_and_says_what_is_cut():
    small = Sheet("small", "Small", (Heading("a", "a"),), tuple((f"row {i}",) for i in range(100)))
    sections = (Section("big", "Big", sheets=(wide(90_000), wide(60_000))), Section("s", "S", sheets=(small,)))
    text = render_document(Report("huge", "0", sections=sections))
    page = Page(text)
    assert MAX_PAGE_BYTES * 0.6 < len(text.encode()) <= MAX_PAGE_BYTES
    assert len(re.findall(r"of 90,000 rows shown; cut to keep this page under 5 MB", page.text)) == 1
    assert "row 99" in page.text


def test_a_report_of_endless_lists_stays_under_the_limit_and_says_what_is_cut():
    place = Place(name="p" * 150)
    found = tuple(Finding("rule", "high", "claim " * 100, "advice " * 100, (), (place,) * 200) for _ in range(3_000))
    report = replace(sample_report(), sections=(Section("s", "S", findings=found),) * 2)
    text = render_document(report)
    assert len(text.encode()) <= MAX_PAGE_BYTES
    assert re.search(r"items of long lists are not on this page", Page(text).text)


def test_a_headline_of_one_number_has_no_empty_list():
    page = Page(render_document(Report("t", "0", headline=(Metric("step", 5, "ns"),))))
    assert "dl" not in page.tags


def test_a_report_of_nothing_has_its_title_as_answer():
    page = Page(render_document(Report("nothing <b>", "0")))
    assert "nothing <b>" in page.text


def one(section, **more):
    return render_document(Report("t", "0", sections=(section,), **more))


def test_a_number_is_sorted_by_its_exact_value_and_an_unknown_one_has_none():
    headings = (Heading("name", "name"), Heading("time", "time", "ns"), Heading("on", "on", "count"))
    rows = (("7", 1_234_567, True), ("x", None, 2**60), ("y", float("inf"), 0.1))
    text = one(Section("s", "S", sheets=(Sheet("t", "T", headings, rows),)))
    cells = re.findall(r"<td[^>]*>[^<]*</td>", text)
    assert [re.findall(r'data-v="([^"]*)"', cell) for cell in cells] == [
        [], ["1234567"], ["1"], [], [], ["1152921504606846976"], [], [], ["0.1"],
    ]  # fmt: skip


def test_every_chart_is_on_the_page_with_its_title_caption_and_what_is_left_out():
    page = render_document(charted_report())
    charts = [chart for section in charted_report().sections for chart in section.charts]
    assert page.count("<figure") == page.count('<svg class="chart') == len(charts)
    text = Page(page).text
    for chart in charts:
        assert make_printable(chart.title) in text
        assert make_printable(chart.caption) in text
    assert "31 smaller marks or further rows are not drawn." in text


def test_two_charts_of_one_name_are_two_on_the_page():
    text = one(Section("s", "S", charts=(gantt(), gantt())))
    assert re.findall(r'<figure class="picture" id="([^"]+)"', text) == ["chart-stages", "chart-stages-2"]


def test_a_chart_that_cannot_be_drawn_says_so_and_the_others_are_there():
    wrong = replace(gantt(), marks=((99, 0, 0, 1),))
    text = one(Section("s", "S", charts=(wrong, gantt())))
    assert text.count('<svg class="chart') == 1
    assert "Not drawn: chart 'stages': marks[0] is of no row there is" in Page(text).text


def test_charts_beyond_their_share_of_the_page_are_named_and_not_drawn():
    marks = tuple((at % 300, at % 2, at, at + 1) for at in range(2_000))
    long = tuple(f"{at} " + "名" * 190 for at in range(300))
    many = tuple(Chart(f"c{at}", f"Chart {at}", "gantt", marks, ("a", "b"), long) for at in range(9))
    text = one(Section("s", "S", charts=many, sheets=(wide(50_000),)))
    drawn = text.count('<svg class="chart')
    assert 1 <= drawn < 9
    assert len(text.encode()) <= MAX_PAGE_BYTES
    page = Page(text)
    assert page.text.count("Not drawn, to keep this page under 5 MB") == 9 - drawn
    assert "Chart 8" in page.text


def place_links(place, **changes):
    finding = Finding("r", "low", "c", "", places=(place,))
    chart = replace(gantt(), **changes)
    text = one(Section("s", "S", findings=(finding,), charts=(chart,)))
    return re.findall(r'<li><a href="#([^"]+)">', text.split('class="where"')[1].split("</ul>")[0])


def test_a_place_leads_to_its_row_of_the_time_line():
    assert place_links(Place(rank=5, step=3)) == ["chart-stages--row-5"]
    assert place_links(Place(rank=5)) == ["chart-stages--row-5"]


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (Place(rank=55), {}),
        (Place(stage="update_actor"), {}),
        (Place(rank=5, step=2), {}),
        (Place(rank=5, run="a"), {"run": "other"}),
        (Place(rank=5), {"roles": (), "ranks": ()}),
    ],
)
def test_a_place_that_no_time_line_shows_has_no_link(place, changes):
    assert place_links(place, **changes) == []


def test_with_several_runs_a_place_leads_to_the_run_of_its_finding():
    assert place_links(Place(rank=1, run="b"), run="b") == ["chart-stages--row-1"]
    assert place_links(Place(rank=1), run="b") == ["chart-stages--row-1"]


def test_of_two_rows_of_a_rank_the_place_leads_to_that_of_its_role():
    rows = {"rows": ("x", "y"), "ranks": (0, 0), "roles": ("actor", "critic")}
    few = {"marks": ((0, 0, 0, 1), (1, 0, 0, 1)), **rows}
    assert place_links(Place(rank=0, role="critic"), **few) == ["chart-stages--row-1"]
    assert place_links(Place(rank=0, role="ref"), **few) == ["chart-stages--row-0"]


def test_a_finding_leads_to_the_section_that_found_it(sample):
    text = render_document(sample)
    homes = re.findall(r'More in <a href="#([^"]+)"', text)
    assert len(homes) == len(sample.findings)
    for finding, home in zip(sample.findings, homes, strict=True):
        (section,) = [s for s in sample.sections if any(f is finding for f in s.findings)]
        assert home == f"section-{section.id}"


def test_many_findings_remarks_and_places_are_folded_but_on_the_page():
    places = tuple(Place(rank=at) for at in range(9))
    found = tuple(Finding("r", "low", f"claim {at}", "", places=places) for at in range(20))
    remarks = tuple(Remark("info", "code", f"remark {at}") for at in range(30))
    page = Page(one(Section("s", "S", findings=found), remarks=remarks))
    words = " ".join(page.text.split())
    assert "12 more findings" in words
    assert "10 more remarks" in words
    assert words.count("5 more places") == 20
    assert "claim 19" in words
    assert "remark 29" in words
    numbers = [value for tag, name, value in page.attributes if (tag, name) == ("ol", "start")]
    assert numbers == ["1", "9"]


def test_rules_that_abstain_are_named_with_their_reason_once():
    told = (
        Verdict("step-variance", "insufficient data", "1 of 4 steps", "a"),
        Verdict("step-variance", "insufficient data", "2 of 4 steps", "b"),
        Verdict("copies", "not applicable"),
        Verdict("straggler", "fired"),
        Verdict("idle", "clear"),
    )
    text = " ".join(Page(one(Section("s", "S", verdicts=told))).text.split())
    assert (
        "could not be judged here: step-variance (insufficient data: 1 of 4 steps; and 1 more); copies (not applicable)"
    ) in text
    assert "straggler" not in text


def test_a_section_with_nothing_in_it_says_so():
    assert "Nothing to show." in Page(one(Section("s", "S"))).text
    assert "Nothing to show." not in Page(one(Section("s", "S", "skipped", "why"))).text


def test_the_contents_name_every_part_of_the_page(sample):
    text = render_document(sample)
    links = re.findall(r'<a href="#([^"]+)">', text[text.index("<nav") : text.index("</nav>")])
    parts = re.findall(r'<(?:section|footer) id="([^"]+)"', text)
    assert sorted(links) == sorted(parts)


def test_a_share_of_the_first_screen_has_a_bar(sample):
    header = render_document(sample).split("<header>")[1].split("</header>")[0]
    assert re.findall(r'<rect width="([\d.]+)%"', header) == ["54.0", "11.0", "3.0", "32.0", "1.4"]


def test_print_says_how_many_rows_of_a_long_table_it_leaves_out(sample):
    assert "The first 40 of 134 rows are printed." in Page(render_document(sample)).text
    assert render_document(sample).count("rows are printed") == 1


def test_a_page_with_every_kind_of_chart_is_small():
    assert len(render_document(charted_report()).encode()) < 300_000
