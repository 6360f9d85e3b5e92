"""Charts as image files: every mark is drawn where its numbers say, in the colors of the page, and the same bytes every time."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from any_report import charts
from hypothesis import given, settings
from sample_report import HOSTILE, bars, gantt, heatmap, histogram, hostile_chart, lines, sample_report, single_bars

import tracekit.render
from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report, Section
from tracekit.model.tables.slots import CAUSE_TITLES
from tracekit.render.plots import colors, images
from tracekit.render.plots.axes import choose_axis_start
from tracekit.render.plots.changes import SHAPES, average_row_marks, format_factor_interval, list_factor_ticks
from tracekit.render.plots.kinds import DRAWINGS
from tracekit.render.plots.marks import FIELDS, MOST_MARKS, MOST_ROWS, Mark, find_chart_problem, limit_chart, list_marks
from tracekit.render.plots.rows import assign_lanes, stack_marks

SAMPLES = (gantt(), bars(), heatmap(), lines(), histogram(), hostile_chart(), single_bars())


def report_of(*found):
    return Report("t", "1", sections=(Section("s", "S", charts=found),))


def drawn(chart, stages=None):
    """The axes of a chart."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    images._draw_on_axes(axes, chart, stages or {})
    return axes


def list_boxes(axes):
    """(left, right, color) of each bar that is drawn by itself."""
    to_hex = pytest.importorskip("matplotlib.colors").to_hex
    boxes = []
    for part in axes.collections:
        for path in part.get_paths():
            xs = path.vertices[:, 0]
            boxes.append((xs.min(), xs.max(), to_hex(part.get_facecolor()[0])))
    return boxes


# Positions, worked by hand


def test_a_timeline_has_bars_as_long_as_their_time():
    """0 to 40 and 60 to 100 ns."""
    marks = ((0, 0, 0, 40), (0, 1, 60, 100))
    stages = {"a": "#112233", "b": "#445566"}
    axes = drawn(Chart("g", "G", "gantt", marks, ("a", "b"), ("rank 0",)), stages)
    assert list_boxes(axes) == [(0, 40, "#112233"), (60, 100, "#445566")]
    assert axes.get_title(loc="left") == "G"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0"]
    assert axes.get_xlabel() == "ns"


def test_numbers_are_in_the_unit_of_their_axis():
    """2 and 5 GiB, and 3 million ns = 3 ms."""
    axes = drawn(Chart("l", "L", "lines", ((0, 0, 2 << 30), (0, 3_000_000, 5 << 30)), ("a",), (), "bytes", "ns"))
    assert axes.lines[0].get_xydata().tolist() == [[0, 2], [3, 5]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ms", "GiB")


def test_an_unknown_y_interrupts_a_line():
    axes = drawn(Chart("l", "L", "lines", ((0, 0, 1), (0, 1, None), (0, 2, 3)), ("a",), (), "count", "count"))
    assert [y == y for y in axes.lines[0].get_ydata()] == [True, False, True]


def test_amounts_are_stacked_by_sign():
    """3 and 4 to the right, 2 to the left; an unknown one takes no room."""
    marks = list_marks(Chart("b", "B", "bars", ((0, 0, 3), (0, 1, -2), (0, 2, None), (0, 3, 4)), tuple("abcd"), ("r",)))
    ends = stack_marks(marks)
    assert [ends[place] for place in (0, 1, 3)] == [(0, 3), (0, -2), (3, 7)]


def test_overlapping_bars_are_in_lanes():
    """Two at once, a third when both are over; five at once share the fourth lane."""
    marks = [Mark(0, 0, *span) for span in ((0, 10), (5, 15), (15, 20))]
    assert assign_lanes(marks) == [0, 1, 0]
    assert assign_lanes([Mark(0, 0, 0, 10)] * 5) == [0, 1, 2, 3, 3]


def test_a_histogram_stacks_one_interval():
    chart = Chart("h", "H", "histogram", ((0, 0, 10, 2), (1, 0, 10, 3)), ("a", "b"), (), "count", "count")
    assert [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in drawn(chart).patches] == [(0, 0, 2), (0, 2, 3)]


def test_an_axis_of_decades_is_logarithmic():
    marks = ((0, 1, 10, 2), (0, 1_000, 10_000, 3))
    assert drawn(Chart("h", "H", "histogram", marks, ("a",), (), "count", "bytes")).get_xscale() == "log"
    assert drawn(Chart("h", "H", "histogram", marks[:1], ("a",), (), "count", "bytes")).get_xscale() == "linear"


def test_a_waterfall_leads_from_one_amount_to_the_other():
    """100 ns less 30, plus 10 is 80: the axis begins at 0, as 70 is more than a third below 100."""
    marks = ((0, 2, 0, 100), (1, 0, 100, 70), (2, 1, 70, 80), (3, 2, 0, 80))
    chart = Chart("w", "W", "waterfall", marks, ("takes less", "takes more", "whole"), tuple("abcd"))
    axes = drawn(chart)
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches[:4]] == [(0, 100), (70, 30), (70, 10), (0, 80)]
    assert [text.get_text() for text in axes.texts] == ["100 ns", "−30 ns", "+10 ns", "80 ns"]


@pytest.mark.parametrize(("values", "start"), [((1, 10), 0), ((-5, 10), -5), ((90, 100), 89), ((5, 5), 0), ((), 0)])
def test_an_axis_begins_at_zero_unless_that_hides_differences(values, start):
    assert choose_axis_start(values) == start


def test_a_factor_is_shown_with_its_interval():
    assert format_factor_interval(Mark(start=1.43, value=1.62, end=1.83)) == "1.62× [1.43, 1.83]"
    assert format_factor_interval(Mark(value=1.5)) == "1.50×, no interval"


@pytest.mark.parametrize("reach", [1.01, 1.06, 1.11, 1.2, 1.5, 1.7, 5, 60, 100])
def test_ticks_of_factors_are_mirrored_around_1_and_within_the_axis(reach):
    ticks = list_factor_ticks(reach)
    assert ticks == sorted(set(ticks))
    assert 1.0 in ticks
    assert len(ticks) % 2 == 1
    assert max(ticks) <= max(reach, 1.0)


def test_a_mean_is_of_the_values_that_count():
    marks = [Mark(0, 0, 10, label=0, value=1), Mark(0, 0, 20, label=1, value=1), Mark(0, 0, 99, label=2, value=0)]
    assert average_row_marks(marks) == {0: 15}


def test_what_is_left_out_is_said():
    axes = drawn(gantt())
    assert "31 marks left out" in axes.figure._supxlabel.get_text()


# Colors


def test_colors_are_those_of_the_page():
    """The page's program has the same hues, kinds and causes."""
    theme = (Path(tracekit.render.__file__).parent / "explorer" / "web" / "theme.ts").read_text()
    assert [int(hue) for hue in re.search(r"HUES = \[(.*?)\]", theme)[1].split(", ")] == list(colors.HUES)
    light = re.search(r'light: \["(.*?)"\]', theme)[1].split('", "')
    assert [colors.KINDS[kind] for kind in ("compute", "communication", "copies")] == light
    causes = dict(re.findall(r'(\w+): \["(#\w{6})", "#\w{6}"\]', theme))
    assert {CAUSE_TITLES[key][0]: color for key, color in causes.items()} == colors.CAUSES
    sites = re.findall(r'light: \[("#4c78a8".*?)\]', theme)[0]
    assert tuple(re.findall(r"#\w{6}", sites)) == colors.SITES


@settings(deadline=None, max_examples=30)
@given(charts(kinds=("gantt",)))
def test_up_to_12_stages_have_different_colors(chart):
    if find_chart_problem(chart):
        return
    assigned = colors.assign_stage_colors([chart])
    assert len(set(list(assigned.values())[:12])) == min(len(assigned), 12)


def test_a_stage_keeps_its_color_in_all_charts_in_order_of_appearance():
    one = Chart("one", "1", "gantt", ((0, 0, 5, 9), (0, 1, 0, 5)), ("update", "gen"), ("r",))
    two = Chart("two", "2", "bars", ((0, 0, 5), (0, 1, 2)), ("gen", "reward"), ("r",))
    stages = colors.assign_stage_colors([one, two])
    assert list(stages) == ["gen", "update"]
    assert colors.assign_series_colors(two.series, stages) == [stages["gen"], colors.SITES[0]]
    assert colors.assign_series_colors(("idle", "(outside any stage)"), stages) == [colors.NOTHING] * 2


def test_text_on_a_color_is_readable():
    assert colors.choose_text_color("#000000") == "#ffffff"
    assert colors.choose_text_color(colors.make_stage_color(0)) == "#0d1114"


# Any chart


@settings(deadline=None, max_examples=60)
@given(charts(kinds=tuple(DRAWINGS)))
def test_any_chart_is_drawn_or_refused(chart):
    if find_chart_problem(chart):
        with pytest.raises(TracekitError, match="chart "):
            drawn(chart)
        return
    axes = drawn(chart)
    texts = [text.get_text() for text in (*axes.texts, *axes.get_yticklabels(), axes.title)]
    assert all(text.isprintable() for text in texts)
    if chart.kind in ("gantt", "extents", "icicle"):
        assert len(axes.collections) == min(len(list_marks(limit_chart(chart))), MOST_MARKS)


def test_all_kinds_are_drawn():
    assert DRAWINGS.keys() == FIELDS.keys()
    assert len(SHAPES) == len(set(SHAPES))


def test_a_large_chart_keeps_its_largest_marks():
    marks = tuple((0, 0, place, place + 1 + place % 7) for place in range(3_000))
    few = limit_chart(Chart("g", "G", "gantt", marks, ("a",), ("r",)))
    assert (len(few.marks), few.omitted) == (MOST_MARKS, 1_000)
    assert min(end - start for _, _, start, end in few.marks) >= 3
    tall = Chart("b", "B", "bars", tuple((row, 0, 1) for row in range(400)), ("a",), tuple(map(str, range(400))))
    assert (len(limit_chart(tall).rows), limit_chart(tall).omitted) == (MOST_ROWS, 400 - MOST_ROWS)


@pytest.mark.parametrize("number", [None, float("inf"), float("nan"), 10**400, -(10**400)])
def test_numbers_that_are_no_measurements_are_not_drawn(number):
    assert list_marks(Chart("g", "G", "gantt", ((0, 0, 0, number),), ("a",), ("r",))) == []


# Files


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TracekitError, match="need matplotlib") as refused:
        next(images.paint_report_charts(sample_report()))
    assert refused.value.hint == "pip install '.[plots]' (in a checkout of tracekit)"


def test_names_are_safe_and_each_once(monkeypatch):
    monkeypatch.setattr(images, "import_matplotlib", lambda: None)
    monkeypatch.setattr(images, "paint_chart", lambda *_: b"")
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
