"""The page of a comparison in a real browser: nothing loaded, nothing complained of, names that stay names."""

import pytest
from chromium import Browser
from compared import change, comparison
from sample_report import HOSTILE

from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.render import render

pytestmark = pytest.mark.slow

LOOKS = ({}, {"dark": True}, {"width": 390}, {"media": "print"})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    found = {
        "plain": comparison(
            change("gen", 60, 30, "improvement", low=1.8, high=2.2),
            change("actor", 30, 40, "regression", low=0.7, high=0.8),
            warnings=("all base runs ran before all opt runs",),
        ),
        "hostile": comparison(
            *(change(name, 9, 8 - at % 4, low=0.9, high=3.0) for at, name in enumerate(HOSTILE)),
            warnings=HOSTILE[:3],
            needed=HOSTILE[0],
        ),
        "not comparable": comparison(verdict="not comparable"),
    }
    for name, one in found.items():
        (folder / f"{name}.html").write_text(render(build_comparison_report(one), "html"), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


@pytest.fixture(scope="module")
def browser():
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser):
    return browser.page().look()


@pytest.mark.parametrize("name", ["plain", "hostile", "not comparable"])
@pytest.mark.parametrize("look", LOOKS)
def test_the_page_loads_itself_only_and_complains_of_nothing(page, files, name, look):
    page.look(**look).open(files[name])
    assert page.requests() == [files[name].resolve().as_uri()]
    assert page.complaints() == []
    wide = page.ask("document.documentElement.scrollWidth")
    assert wide <= look.get("width", 1280)


def test_the_answer_and_what_to_be_careful_of_are_on_the_first_screen(page, files):
    for width, height in ((1280, 900), (390, 844)):
        page.look(width=width, height=height).open(files["plain"])
        for part in ("h1", ".basis", "#notes"):
            bottom = page.ask(f"document.querySelector('{part}').getBoundingClientRect().bottom")
            assert bottom < height, (part, width)


def test_the_three_pictures_are_drawn_and_named_for_who_cannot_see_them(page, files):
    page.open(files["plain"])
    titles = "[...document.querySelectorAll('svg[role=img] > title')].map(t => t.textContent)"
    assert len(page.ask(titles)) == 3
    drawn = "[...document.querySelectorAll('svg[role=img]')].every(s => s.getBBox().width > 700)"
    assert page.ask(drawn)


def test_no_words_of_a_picture_leave_it(page, files):
    for name in ("plain", "hostile"):
        page.open(files[name])
        outside = """[...document.querySelectorAll('svg[role=img] text')].filter(t => {
            const box = t.getBBox(), view = t.ownerSVGElement.viewBox.baseVal;
            return box.x < -1 || box.x + box.width > view.width + 1;
        }).map(t => t.textContent)"""
        assert page.ask(outside) == []


def test_tones_differ_in_the_dark_and_a_hollow_dot_is_hollow(page, files):
    fills = {}
    for dark in (False, True):
        page.look(dark=dark).open(files["plain"])
        style = "getComputedStyle(document.querySelector('.strips {}')).fill"
        fills[dark] = [page.ask(style.format(s)) for s in (".glyph.hollow", ".glyph:not(.hollow)")]
        assert fills[dark][0] != fills[dark][1]
    assert fills[False] != fills[True]


def test_a_name_that_is_markup_is_shown_as_it_is(page, files):
    page.open(files["hostile"])
    assert page.ask("document.querySelectorAll('img, iframe, object').length") == 0
    assert page.ask("document.querySelectorAll('script').length") == 1
    assert "<img src=x" in page.ask("document.body.textContent")
