"""Charts as image files: all of each layout is painted, and the same bytes every time."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from any_report import charts
from hypothesis import given, settings
from sample_report import HOSTILE, bars, gantt, heatmap, histogram, hostile_chart, lines, sample_report, single_bars

import tracekit.render
from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report, Section
from tracekit.render.charts import images
from tracekit.render.charts.frame import assign_tones
from tracekit.render.charts.kinds import KINDS, lay_out_chart
from tracekit.render.charts.shapes import FilledArea, LineDot, LineStroke, PlacedText, SeriesGlyph

SAMPLES = (gantt(), bars(), heatmap(), lines(), histogram(), hostile_chart(), single_bars())


def report_of(*found):
    return Report("t", "1", sections=(Section("s", "S", charts=found),))


# What is handed to matplotlib, for which none is needed


def painted(chart, given=None):
    """(the areas as (corners, colour), the texts, how many lines and points) of a chart on axes that note it."""
    matplotlib, axes = MagicMock(), MagicMock()
    images._paint_picture(axes, lay_out_chart(chart, given), matplotlib)
    areas = []
    for call in matplotlib.collections.PolyCollection.call_args_list:
        areas += zip(call.args[0], call.kwargs["facecolors"], strict=True)
    return areas, [call.args[2] for call in axes.text.call_args_list], axes.plot.call_count


def test_a_time_line_has_boxes_as_long_as_their_time_in_the_tones_of_the_page():
    # 0-40 and 60-100 of 100: equally long, and half as much between them.
    marks = ((0, 0, 0, 40), (0, 1, 60, 100))
    areas, texts, _ = painted(Chart("g", "G", "gantt", marks, ("a", "b"), ("rank 0",)))
    (first, second), colors = [corners for corners, _ in areas], [color for _, color in areas]
    widths = [corners[1][0] - corners[0][0] for corners in (first, second)]
    assert widths[0] == pytest.approx(widths[1])
    assert second[0][0] - first[1][0] == pytest.approx(widths[0] / 2, abs=1)
    assert colors == ["#1d6a86", "#bd5216"]
    assert {"G", "rank 0", "a", "b"} <= set(texts)


def test_what_is_left_out_is_said():
    assert "All ranks on one clock. 31 marks left out" in painted(gantt())[1]


def test_a_stage_has_one_colour_in_all_time_lines(monkeypatch):
    one = Chart("one", "1", "gantt", ((0, 0, 0, 5), (0, 1, 5, 9)), ("update", "generate"), ("r",))
    marks = ((0, 0, 0, 50), (0, 1, 50, 9000))
    two = Chart("two", "2", "gantt", marks, ("generate", "other"), ("r",))
    pictures = []
    monkeypatch.setattr(images, "import_matplotlib", lambda: None)
    monkeypatch.setattr(images, "paint_layout", lambda found, *_: pictures.append(found) or b"")
    names = [name for name, _ in images.paint_report_charts(report_of(one, two))]
    assert names == ["s-one.png", "s-one.svg", "s-two.png", "s-two.svg"]
    roles = [
        {part.tip.split(":")[0]: part.role for part in picture.parts if isinstance(part, FilledArea)}
        for picture in pictures[::2]
    ]
    assert roles[0]["r · generate"] == roles[1]["r · generate"]


@settings(deadline=None)
@given(charts(kinds=tuple(KINDS)))
def test_any_chart_is_painted_with_all_of_its_parts(chart):
    picture = lay_out_chart(chart)
    areas, texts, line_count = painted(chart)
    parts = list(images._flatten_parts(picture.parts))
    assert len(areas) == sum(len(part.boxes) for part in parts if isinstance(part, FilledArea))
    assert len(texts) == 2 + sum(isinstance(part, PlacedText) for part in parts)  # title and caption
    lifted = sum(letter == "M" for part in parts if isinstance(part, LineStroke) for letter, _ in part.steps)
    assert line_count == lifted + sum(isinstance(part, SeriesGlyph | LineDot) for part in parts)
    assert all(text.isprintable() for text in texts)


def test_the_tones_are_those_of_the_page_as_it_is_printed():
    css = (Path(tracekit.render.__file__).parent / "templates" / "report.css").read_text()
    printed = dict(re.findall(r"--(s\d|none): (#\w{6})", css[css.index("@media print") :]))
    assert {*assign_tones([str(n) for n in range(8)]), "none"} == set(printed)
    assert printed.items() <= images._COLORS.items()


# Files


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TracekitError, match="need matplotlib") as refused:
        next(images.paint_report_charts(sample_report()))
    assert refused.value.hint == "pip install '.[plots]' (in a checkout of tracekit)"


def test_names_are_safe_and_each_once(monkeypatch):
    monkeypatch.setattr(images, "import_matplotlib", lambda: None)
    monkeypatch.setattr(images, "paint_layout", lambda *_: b"")
    evil = [Chart(name, "t", "bars", ()) for name in ("../../etc", "a/b", "A B", "a b", "", ".")]
    names = [name for name, _ in images.paint_report_charts(report_of(*evil))]
    assert len({name.lower() for name in names}) == len(names) == 12
    assert all("/" not in name and not name.startswith(".") for name in names)


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: chart.id)
def test_images_are_images_and_the_same_every_time(chart):
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    pictures = dict(images.paint_report_charts(report_of(chart)))
    assert pictures == dict(images.paint_report_charts(report_of(chart)))
    png = next(data for name, data in pictures.items() if name.endswith(".png"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    svg = next(data for name, data in pictures.items() if name.endswith(".svg"))
    root = ET.fromstring(svg.decode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in svg
    assert dict(matplotlib.rcParams) == before


def test_names_stand_in_the_picture_as_they_are():
    pytest.importorskip("matplotlib")
    name = r"gemm<$x^2$>_{\alpha}"
    chart = Chart("c", name, "bars", ((0, 0, 5),), ("a",), (name,))
    svg = dict(images.paint_report_charts(report_of(chart)))["s-c.svg"].decode()
    texts = [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(name) == 2


def test_hostile_names_break_no_picture():
    pytest.importorskip("matplotlib")
    marks = tuple((row, 0, 1) for row in range(len(HOSTILE)))
    chart = Chart("c", HOSTILE[0], "bars", marks, ("a",), HOSTILE)
    for name, data in images.paint_report_charts(report_of(chart)):
        if name.endswith(".svg"):
            ET.fromstring(data.decode())
