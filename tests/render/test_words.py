"""Words of the field are explained where they occur, and only there."""

import pytest

from tracekit.model.report import Finding, Metric, Report, Section
from tracekit.render.options import RenderOptions
from tracekit.render.text import render_text
from tracekit.render.words import MEANINGS


def report(claim="", label="compute"):
    """A report with one finding and one number beside the step."""
    finding = Finding("a-rule", "medium", claim or "nothing strange", "")
    headline = (Metric("step_wall", 10, "ns"), Metric("x", 0.5, "ratio", label=label))
    return Report("t", "0", ("t",), headline, sections=(Section("s", "S", findings=(finding,)),))


def last_lines(text):
    return text.rstrip("\n").rpartition("\n\n")[2]


@pytest.mark.parametrize("word", MEANINGS)
def test_a_word_on_the_screen_is_explained_below_it(word):
    shown = render_text(report(f"4 things about {word}, of two"), RenderOptions())
    assert last_lines(shown) == f"{word}: {MEANINGS[word]}"
    assert last_lines(render_text(report(label=word), RenderOptions())) == f"{word}: {MEANINGS[word]}"


def test_a_screen_without_them_ends_as_it_did():
    shown = render_text(report("someH2Ds and busbw_x: parts of other names"), RenderOptions())
    assert not any(meaning in shown for meaning in MEANINGS.values())


def test_no_line_is_wider_than_the_screen():
    shown = render_text(report(" ".join(MEANINGS)), RenderOptions(width=60))
    assert max(map(len, shown.splitlines())) <= 60
    flat = " ".join(shown.split())
    assert all(meaning in flat for meaning in MEANINGS.values())
