"""The page in a real browser: what it loads, what it complains of, and what a person can do with it."""

from pathlib import Path

import pytest
from chromium import Browser
from sample_report import HOSTILE, charted_report

import tracekit
from tracekit.model.report import Finding, Heading, Report, Section, Sheet
from tracekit.render import render
from tracekit.render.escape import make_printable

ROOT = Path(__file__).parents[2]


def numbers():
    """A table whose shown numbers lie in another order than its exact ones, if one sorts what is shown."""
    values = [1_500, 40, None, 999_960_000, 999_950_000, 2**60 + 1, 2**60, -3_000_000_000]
    rows = tuple((f"row {at}", value) for at, value in enumerate(values))
    return Sheet("numbers", "Numbers", (Heading("name", "name"), Heading("t", "time", "ns")), rows)


def samples():
    many = tuple(Finding("r", "low", f"claim {at}", "try") for at in range(12))
    yield "sample", charted_report()
    yield ("numbers", Report("t", "0", sections=(Section("s", "S", sheets=(numbers(),), findings=many),)))
    yield "empty", Report("nothing", "0")
    for name in ("verl_cpu", "simulated_gpu"):
        yield name, tracekit.analyze(ROOT / "examples" / name / "outputs" / "profile")


pytestmark = pytest.mark.slow
NAMES = ("sample", "numbers", "empty", "verl_cpu", "simulated_gpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, report in samples():
        (folder / f"{name}.html").write_text(render(report, "html"), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in NAMES}


@pytest.fixture(scope="module")
def browser():
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser):
    return browser.page().look()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390}, {"media": "print"}])
def test_a_page_loads_itself_only_and_complains_of_nothing(page, files, name, look):
    page.look(**look).open(files[name])
    assert page.requests() == [files[name].resolve().as_uri()]
    assert page.complaints() == []


def test_what_the_last_test_watches_for_is_seen(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><img src='http://127.0.0.1:9/x.png'><script>nothing()</script>")
    page.open(bad)
    assert "http://127.0.0.1:9/x.png" in page.requests()
    assert any("Uncaught" in text for text in page.complaints())


def test_the_policy_holds_in_the_browser(page, files, tmp_path):
    worse = tmp_path / "worse.html"
    injected = "<script>document.title='taken'</script><p style='color:red' onclick='x()'>p</p></body>"
    worse.write_text(files["sample"].read_text("utf-8").replace("</body>", injected), encoding="utf-8")
    page.open(worse)
    assert page.ask("document.title") != "taken"
    assert len([text for text in page.complaints() if "Content Security Policy" in text]) >= 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 768, 1280, 2000])
def test_a_page_is_never_wider_than_the_window(page, files, name, width):
    page.look(width=width).open(files[name])
    assert page.ask("document.documentElement.scrollWidth") <= width


def column(page, table, at):
    rows = f"document.querySelector('#{table} tbody').rows"
    return page.ask(f"Array.from({rows}, (row) => row.cells[{at}].textContent)")


def press_heading(page, table, at):
    page.ask(f"document.querySelectorAll('#{table} th button')[{at}].focus()")
    page.press("Enter", 13, "\r")


def sort_of(page, table, at):
    return page.ask(f"document.querySelectorAll('#{table} th')[{at}].getAttribute('aria-sort')")


def test_numbers_sort_by_their_exact_value_with_unknown_ones_last(page, files):
    page.open(files["numbers"])
    # 2^60+1 > 2^60 > 999,960,000 > 999,950,000 > 1,500 > 40 > -3e9; the third is unknown.
    largest_first = ["row 5", "row 6", "row 3", "row 4", "row 0", "row 1", "row 7", "row 2"]
    press_heading(page, "table-numbers", 1)
    assert sort_of(page, "table-numbers", 1) == "descending"
    assert column(page, "table-numbers", 0) == largest_first
    press_heading(page, "table-numbers", 1)
    assert sort_of(page, "table-numbers", 1) == "ascending"
    assert column(page, "table-numbers", 0) == [*reversed(largest_first[:-1]), "row 2"]
    press_heading(page, "table-numbers", 1)
    assert sort_of(page, "table-numbers", 1) is None
    assert column(page, "table-numbers", 0) == [f"row {at}" for at in range(8)]


def test_names_sort_as_a_person_would(page, files):
    page.open(files["sample"])
    press_heading(page, "table-kernels", 0)
    names = [name for name in column(page, "table-kernels", 0) if name.startswith("kernel_")]
    assert names == [f"kernel_{at}" for at in range(120)]


def test_a_heading_is_sorted_by_the_keyboard_and_one_at_a_time(page, files):
    page.open(files["sample"])
    press_heading(page, "table-kernels", 2)
    press_heading(page, "table-kernels", 4)
    assert sort_of(page, "table-kernels", 2) is None
    assert sort_of(page, "table-kernels", 4) == "descending"


def visible_rows(page, table):
    rows = f"document.querySelector('#{table} tbody').rows"
    return page.ask(f"Array.from({rows}).filter((row) => row.offsetHeight > 0).length")


def type_filter(page, table, text):
    page.ask(f"(() => {{ const i = document.querySelector('#{table} .filter input'); i.focus(); i.select(); }})()")
    page.type(text)


def test_a_long_table_shows_the_rows_that_hold_every_word(page, files):
    page.open(files["sample"])
    assert visible_rows(page, "table-kernels") == 134
    type_filter(page, "table-kernels", "KERNEL_11")
    # kernel_11 and kernel_110 to kernel_119.
    assert visible_rows(page, "table-kernels") == 11
    assert page.ask("document.querySelector('#table-kernels [role=status]').textContent") == "11 of 134 rows"
    type_filter(page, "table-kernels", "float vectorized")
    assert visible_rows(page, "table-kernels") == 1
    type_filter(page, "table-kernels", "no such kernel")
    assert visible_rows(page, "table-kernels") == 0
    page.press("Backspace", 8)
    type_filter(page, "table-kernels", " ")
    assert visible_rows(page, "table-kernels") == 134


def test_short_tables_have_no_filter(page, files):
    page.open(files["sample"])
    assert page.ask("document.querySelectorAll('#table-collectives .filter').length") == 0


@pytest.mark.parametrize("name", NAMES)
def test_without_scripts_everything_is_there(page, files, name):
    page.open(files[name])
    with_scripts = page.ask("document.querySelectorAll('td, figure svg, details, li.card').length")
    page.open(files[name], scripts=False)
    assert page.ask("document.querySelectorAll('th button, .filter').length") == 0
    assert page.ask("document.querySelectorAll('td, figure svg, details, li.card').length") == with_scripts
    hidden = "Array.from(document.querySelectorAll('tbody tr, figure svg')).filter((e) => e.getBoundingClientRect().height < 4)"
    assert page.ask(f"{hidden}.length") == 0


@pytest.mark.parametrize("scripts", [True, False])
def test_hostile_names_are_words_on_the_page_and_in_pictures(page, files, scripts):
    page.open(files["sample"], scripts=scripts)
    shown = page.ask("document.querySelector('main').textContent")
    tips = page.ask("Array.from(document.querySelectorAll('figure svg title'), (t) => t.textContent).join('\\n')")
    for name in HOSTILE:
        if len(name) < 160:
            assert make_printable(name) in shown
            assert make_printable(name) in tips
    assert page.ask("document.querySelectorAll('img, main script, b b').length") == 0


def test_a_link_into_what_is_folded_unfolds_it(page, files):
    page.open(files["numbers"])
    card = "document.getElementById('finding-12').checkVisibility()"
    assert page.ask("document.querySelectorAll('li.card').length") == 12
    assert page.ask(card) is False
    page.ask("document.querySelector('a[href=\"#finding-12\"]').click()")
    page.ask("new Promise((done) => setTimeout(done, 100))")
    assert page.ask(card) is True


def test_a_place_leads_to_its_row_which_then_stands_out(page, files):
    page.open(files["sample"])
    row = "document.querySelector('#chart-stages--row-5 rect')"
    before = page.ask(f"getComputedStyle({row}).fill")
    page.ask("document.querySelector('#finding-1 .where a').click()")
    page.ask("new Promise((done) => setTimeout(done, 100))")
    assert page.ask("location.hash") == "#chart-stages--row-5"
    assert page.ask(f"getComputedStyle({row}).fill") != before
    top = page.ask(f"{row}.getBoundingClientRect().top")
    assert 0 <= top < 900


def test_the_contents_mark_the_part_that_is_read(page, files):
    page.open(files["sample"])
    current = "document.querySelector('nav [aria-current]').textContent"
    assert page.ask(current) == "Overview"
    page.ask("document.getElementById('section-communication').scrollIntoView()")
    page.ask("new Promise((done) => setTimeout(done, 100))")
    assert page.ask(current) == "Communication"


def test_everything_that_reacts_is_reached_by_the_keyboard(page, files):
    page.open(files["sample"])
    reached = set()
    for _ in range(200):
        page.press("Tab", 9)
        reached.add(page.ask("document.activeElement.tagName + '.' + document.activeElement.className"))
        if page.ask("document.activeElement === document.body"):
            break
    assert {"A.skip", "BUTTON.", "INPUT.", "SUMMARY.", "DIV.scroll", "DIV.plot", "A."} <= reached


def test_the_colours_follow_the_reader_and_print_is_on_white(page, files):
    background = "getComputedStyle(document.body).backgroundColor"
    fill = "getComputedStyle(document.querySelector('figure path.s0')).fill"
    light = page.open(files["sample"]).ask(background), page.ask(fill)
    dark = page.look(dark=True).open(files["sample"]).ask(background), page.ask(fill)
    printed = (page.look(dark=True, media="print").open(files["sample"]).ask(background), page.ask(fill))
    assert len({light[0], dark[0], printed[0]}) == 3
    assert light[1] == printed[1] != dark[1]
    assert printed[0] == "rgb(255, 255, 255)"


def test_print_unfolds_and_leaves_out_what_only_a_screen_needs(page, files):
    page.look(media="print").open(files["numbers"])
    assert page.ask("document.getElementById('finding-12').checkVisibility()") is True
    page.open(files["sample"])
    assert visible_rows(page, "table-kernels") == 40
    assert page.ask("document.querySelector('.printed').offsetHeight > 0") is True
    assert page.ask("document.querySelector('nav').offsetHeight") == 0
