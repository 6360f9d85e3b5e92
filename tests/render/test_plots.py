"""Charts as image files: the right marks in the right places, and the same bytes every time."""

import sys
import xml.etree.ElementTree as ET
from unittest.mock import MagicMock

import pytest
from any_report import charts
from hypothesis import given, settings
from sample_report import (
    HOSTILE,
    bars,
    gantt,
    heatmap,
    histogram,
    hostile_chart,
    lines,
    sample_report,
    single_bars,
)

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report, Section
from tracekit.render.charts import images as plots
from tracekit.render.charts.frame import tones
from tracekit.render.charts.images import COLORS, Line, picture
from tracekit.render.charts.plots_picture import UNKNOWN

SAMPLES = (gantt(), bars(), heatmap(), lines(), histogram(), hostile_chart(), single_bars())


def report_of(*found):
    return Report("t", "1", sections=(Section("s", "S", charts=found),))


# What is drawn where, for which no matplotlib is needed


def test_a_time_line_has_boxes_as_long_as_their_time():
    # 0-40 and 60-100 of 100; on the other row two that overlap, each half as high.
    marks = ((0, 0, 0, 40), (0, 1, 60, 100), (1, 0, 0, 50), (1, 1, 25, 75))
    drawn = picture(Chart("g", "G", "gantt", marks, ("a", "b"), ("rank 0", "rank 1")))
    assert [(b.left, b.right) for b in drawn.boxes] == [(0, 0.4), (0.6, 1), (0, 0.5), (0.25, 0.75)]
    assert [(round(b.top, 3), round(b.bottom, 3)) for b in drawn.boxes] == [
        (0.1, 0.5), (0.1, 0.5), (1.1, 1.5), (1.5, 1.9),
    ]  # fmt: skip
    assert drawn.rows == ("rank 0", "rank 1")
    assert drawn.legend == (("a", COLORS["s0"]), ("b", COLORS["s1"]))
    assert [b.color for b in drawn.boxes] == [COLORS["s0"], COLORS["s1"]] * 2


def test_amounts_are_stacked_and_idle_is_the_tone_of_nothing():
    marks = ((0, 0, 30), (0, 1, 70), (1, 0, 100))
    drawn = picture(Chart("b", "B", "bars", marks, ("compute", "idle"), ("x", "y"), "count"))
    assert [(b.left, b.right) for b in drawn.boxes] == [(0, 0.3), (0.3, 1), (0, 1)]
    assert [b.color for b in drawn.boxes] == [COLORS["s0"], COLORS["none"], COLORS["s0"]]


def test_what_is_below_zero_lies_left_of_it_and_what_is_unknown_nowhere():
    drawn = picture(single_bars())
    # 7 GiB and −1 GiB on an axis of 8; the unknown and the zero have no box.
    assert [(b.left, b.right) for b in drawn.boxes] == [(0.125, 1), (0, 0.125)]


def test_a_share_is_as_dark_as_it_is_of_the_whole_and_unknown_is_white():
    marks = ((0, 0, 1, 0.0), (0, 1, 2, 0.5), (0, 2, 4, None))
    drawn = picture(Chart("h", "H", "heatmap", marks, rows=("x",), unit="ratio"))
    shades = plots._SHADES
    assert [b.color for b in drawn.boxes] == [shades[0], shades[4], UNKNOWN]
    assert [(b.left, b.right) for b in drawn.boxes] == [(0, 0.25), (0.25, 0.5), (0.5, 1)]
    assert [words for words, _ in drawn.legend] == ["0 %", "100 %", "unknown"]


def test_a_line_is_interrupted_where_it_is_unknown():
    marks = ((0, 2, 20), (0, 0, 0), (0, 1, None), (0, 4, 20))
    drawn = picture(Chart("l", "L", "lines", marks, ("a",), unit="count", x_unit="count"))
    assert drawn.lines == (
        Line((0.0,), (0.0,), COLORS["s0"]),
        Line((0.5, 1.0), (1.0, 1.0), COLORS["s0"]),
    )
    assert drawn.rows == ()
    assert drawn.y_ticks[0] == (0.0, "0")


def test_a_histogram_stacks_its_series():
    marks = ((1, 0, 10, 10), (0, 0, 10, 30), (0, 10, 20, 20))
    drawn = picture(Chart("c", "C", "histogram", marks, ("a", "b"), unit="count"))
    assert [(b.left, b.right, b.bottom, b.top, b.color) for b in drawn.boxes] == [
        (0, 0.5, 0, 0.75, COLORS["s0"]),
        (0.5, 1, 0, 0.5, COLORS["s0"]),
        (0, 0.5, 0.75, 1, COLORS["s1"]),
    ]


def test_what_was_left_out_is_said():
    assert picture(gantt()).caption == "All ranks on one clock. 31 marks left out"


def test_a_stage_has_one_colour_in_all_time_lines(monkeypatch):
    one = Chart("one", "1", "gantt", ((0, 0, 0, 5), (0, 1, 5, 9)), ("update", "generate"), ("r",))
    two = Chart("two", "2", "gantt", ((0, 0, 0, 50), (0, 1, 50, 9000)), ("generate", "other"), ("r",))  # fmt: skip
    drawn = []
    monkeypatch.setattr(plots, "matplotlib_or_refuse", lambda: None)
    monkeypatch.setattr(plots, "_painted", lambda found, *_: drawn.append(found) or b"")
    names = [name for name, _ in plots.plots(report_of(one, two))]
    assert names == ["s-one.png", "s-one.svg", "s-two.png", "s-two.svg"]
    assert dict(drawn[0].legend)["generate"] == dict(drawn[2].legend)["generate"]


@settings(deadline=None)
@given(charts())
def test_any_chart_has_a_picture_within_its_frame(chart):
    drawn = picture(chart)
    bottom = len(drawn.rows) or 1
    for box in drawn.boxes:
        assert 0 <= box.left <= box.right <= 1.001
        assert 0 <= min(box.top, box.bottom) <= max(box.top, box.bottom) <= bottom
    for line in drawn.lines:
        assert len(line.x) == len(line.y) > 0
        assert all(0 <= at <= 1 for at in (*line.x, *line.y))
    assert {box.color for box in drawn.boxes} <= {*COLORS.values(), *plots._SHADES, UNKNOWN}
    assert drawn.height_in <= 24
    for words in (drawn.title, drawn.caption, *drawn.rows, *(w for w, _ in drawn.legend)):
        assert words.isprintable()


def test_the_tones_are_those_of_the_page():
    assert {*tones([str(n) for n in range(8)]), "none"} == set(COLORS)


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: chart.id)
def test_the_whole_picture_is_handed_to_matplotlib(chart):
    matplotlib, axes = MagicMock(), MagicMock()
    drawn = picture(chart)
    plots._paint(axes, drawn, matplotlib)
    assert axes.set_title.call_args.args == (drawn.title,)
    down = [label for _, label in drawn.y_ticks] or list(drawn.rows)
    assert axes.set_yticks.call_args.args[1] == down
    if drawn.boxes:
        corners = matplotlib.collections.PolyCollection.call_args.args[0]
        first = drawn.boxes[0]
        assert corners[0][0] == (first.left, first.top)
        assert corners[0][2] == (first.right, first.bottom)
        assert len(corners) == len(drawn.boxes)
    assert axes.plot.call_count == len(drawn.lines)
    assert matplotlib.patches.Patch.call_count == len(drawn.legend)


# Files


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TracekitError, match="need matplotlib") as refused:
        next(plots.plots(sample_report()))
    assert refused.value.hint == "pip install 'tracekit[plots]'"


def test_names_are_safe_and_each_once(monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_or_refuse", lambda: None)
    monkeypatch.setattr(plots, "_painted", lambda *_: b"")
    evil = [Chart(name, "t", "bars", ()) for name in ("../../etc", "a/b", "A B", "a b", "", ".")]
    names = [name for name, _ in plots.plots(report_of(*evil))]
    assert len({name.lower() for name in names}) == len(names) == 12
    assert all("/" not in name and not name.startswith(".") for name in names)


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: chart.id)
def test_images_are_images_and_the_same_every_time(chart):
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    images = dict(plots.plots(report_of(chart)))
    assert images == dict(plots.plots(report_of(chart)))
    png = next(data for name, data in images.items() if name.endswith(".png"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    svg = next(data for name, data in images.items() if name.endswith(".svg"))
    root = ET.fromstring(svg.decode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in svg
    assert dict(matplotlib.rcParams) == before


def test_names_stand_in_the_picture_as_they_are():
    pytest.importorskip("matplotlib")
    name = r"gemm<$x^2$>_{\alpha}"
    chart = Chart("c", name, "bars", ((0, 0, 5),), ("a",), (name,))
    svg = dict(plots.plots(report_of(chart)))["s-c.svg"].decode()
    texts = [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(name) == 2


def test_hostile_names_break_no_picture():
    pytest.importorskip("matplotlib")
    chart = Chart("c", HOSTILE[0], "bars", tuple((at, 0, 1) for at in range(len(HOSTILE))), ("a",), HOSTILE)  # fmt: skip
    for name, data in plots.plots(report_of(chart)):
        if name.endswith(".svg"):
            ET.fromstring(data.decode())
