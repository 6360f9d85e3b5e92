import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from any_report import charts, ints, numbers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_report import HOSTILE, bars, gantt, heatmap, histogram, hostile_chart, lines, single_bars

import tracekit.render
from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report, Section
from tracekit.render import read_report_json, write_report_json
from tracekit.render.charts.axis import make_axis
from tracekit.render.charts.frame import MAX_TOOLTIPS, TONES, get_text_role
from tracekit.render.charts.kinds import MOST_MARKS, MOST_ROWS, assign_stage_tones, limit_chart
from tracekit.render.charts.svg import draw_svg_chart
from tracekit.render.charts.text import estimate_text_width, fit_text, make_slug
from tracekit.render.escape import make_printable

NS = "{http://www.w3.org/2000/svg}"
CSS = (Path(tracekit.render.__file__).parent / "templates" / "report.css").read_text()
SAMPLES = (gantt(), bars(), heatmap(), lines(), histogram(), hostile_chart(), single_bars())


def picture(chart, given=None):
    return ET.fromstring(draw_svg_chart(chart, given))


def boxes(root, told=True):
    """(class, x, y, width, height, tooltip) of every box with a tooltip."""
    found = []
    for path in root.iter(f"{NS}path"):
        tip = path.find(f"{NS}title")
        if (tip is not None) == told and path.get("class") not in ("grid", "base", "line"):
            shape = re.match(r"M([\d.-]+) ([\d.-]+)h([\d.]+)v([\d.]+)H", path.get("d"))
            if shape:
                text = tip.text if told else ""
                found.append((path.get("class"), *map(float, shape.groups()), text))
    return found


def words(root):
    return [text.text for text in root.iter(f"{NS}text")]


def test_a_time_line_has_bars_as_long_as_their_time_on_one_axis():
    # Two rows; 0-40 and 60-100 ms of 100: 40 % of the plot each, the second from 60 %.
    marks = ((0, 0, 0, 40_000_000), (1, 1, 60_000_000, 100_000_000))
    root = picture(Chart("c", "C", "gantt", marks, ("a", "b"), ("rank 0", "rank 1")))
    first, second = boxes(root)
    assert first[0] == "s0"
    assert second[0] == "s1"
    whole = (second[1] + second[3] + 0.5) - first[1]
    assert first[3] + 0.5 == pytest.approx(whole * 0.4, abs=0.2)
    assert second[1] - first[1] == pytest.approx(whole * 0.6, abs=0.2)
    assert second[2] > first[2]
    assert first[5] == "rank 0 · a: 40.0 ms, from 0 ns"
    assert second[5] == "rank 1 · b: 40.0 ms, from 60.00 ms"
    assert [text for text in words(root) if "ms" in text][:6] == ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms", "100 ms"]


def test_bars_that_overlap_within_a_row_lie_below_one_another():
    marks = ((0, 0, 0, 100), (0, 1, 10, 50), (0, 1, 50, 90))
    outer, inner, after = boxes(picture(Chart("c", "C", "gantt", marks, ("a", "b"), ("r",))))
    assert outer[2] + outer[4] <= inner[2]
    assert inner[2] == after[2]


def test_bars_are_stacked_in_their_order_and_below_zero_to_the_left():
    marks = ((0, 0, 30), (0, 1, 10), (1, 0, -20), (1, 1, None))
    root = picture(Chart("c", "C", "bars", marks, ("a", "b"), ("r", "s"), "count"))
    first, second, left = boxes(root)
    assert second[1] == pytest.approx(first[1] + first[3] + 0.5, abs=0.15)
    assert (first[3] + 0.5) / (second[3] + 0.5) == pytest.approx(3, abs=0.02)
    assert left[1] + left[3] + 0.5 == pytest.approx(first[1], abs=0.15)
    assert "—" in words(root)


def test_an_amount_of_nothing_has_no_bar_and_an_unknown_one_says_so():
    root = picture(single_bars())
    assert len(boxes(root)) == 2
    shown = [text for text in words(root) if text in ("7.00 GiB", "−1.00 GiB", "—", "0 B")]
    assert shown == ["7.00 GiB", "−1.00 GiB", "—", "0 B"]


def test_a_cell_is_the_darker_the_larger_and_shares_are_of_one():
    marks = tuple((0, at, at + 1, value) for at, value in enumerate((0.0, 0.5, 1.0, None)))
    chart = Chart("c", "C", "heatmap", marks, rows=("r",), unit="ratio", x_unit="count")
    assert [cell[0] for cell in boxes(picture(chart))] == ["l0", "l4", "l8", "unknown"]
    assert boxes(picture(chart))[1][5] == "r, 1 – 2: 50 %"
    half = replace(chart, marks=marks[:2])
    assert [cell[0] for cell in boxes(picture(half))] == ["l0", "l4"]
    assert "unknown" not in words(picture(half))


def test_a_matrix_has_a_column_a_series_with_its_name_above():
    marks = ((0, 0, 0), (0, 1, 4), (1, 0, 9), (1, 1, None))
    chart = Chart("c", "C", "matrix", marks, ("a", "b"), ("r", "q"), unit="count")
    cells = boxes(picture(chart))
    assert [cell[0] for cell in cells] == ["l0", "l4", "l8", "unknown"]
    assert [cell[5] for cell in cells] == ["r · a: 0", "r · b: 4", "q · a: 9", "q · b: —"]
    assert cells[0][1] == cells[2][1] < cells[1][1] == cells[3][1]
    assert cells[0][2] == cells[1][2] < cells[2][2]
    assert {"a", "b", "unknown"} <= set(words(picture(chart)))


def test_a_line_goes_up_with_its_value_and_an_unknown_value_interrupts_it():
    marks = ((0, 1, 100), (0, 2, 200), (0, 3, None), (0, 4, 50), (0, 5, 60))
    root = picture(Chart("c", "C", "lines", marks, ("a",), unit="count", x_unit="id"))
    (path,) = [p for p in root.iter(f"{NS}path") if p.get("class") == "line s0"]
    points = re.findall(r"([ML])([\d.]+) ([\d.]+)", path.get("d"))
    assert [pen for pen, _, _ in points] == ["M", "L", "M", "L"]
    ys = [float(y) for _, _, y in points]
    assert ys[1] < ys[0] < ys[3] < ys[2]
    titles = [dot.find(f"{NS}title").text for dot in root.iter(f"{NS}circle")]
    assert titles == ["1: 100", "2: 200", "4: 50", "5: 60"]


def test_a_histogram_stacks_the_series_of_one_interval():
    marks = ((0, 0, 10, 6), (1, 0, 10, 3), (0, 10, 20, 2))
    root = picture(Chart("c", "C", "histogram", marks, ("a", "b"), unit="count", x_unit="count"))
    low, alone, high = boxes(root)
    assert (low[4], high[4]) == (pytest.approx(alone[4] * 3, abs=0.2), pytest.approx(alone[4] * 1.5, abs=0.2))
    assert high[2] + high[4] == pytest.approx(low[2], abs=0.2)
    assert alone[1] == pytest.approx(low[1] + low[3] + 0.5, abs=0.2)
    assert high[5] == "b, 0 – 10: 3"


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: f"{chart.kind}-{make_slug(chart.id)}")
def test_a_picture_says_what_it_shows_to_who_cannot_see_it(chart):
    root = picture(chart)
    assert root.get("role") == "img"
    ids = root.get("aria-labelledby").split()
    found = {element.get("id"): element for element in root.iter()}
    assert found[ids[0]].text == make_printable(chart.title, 200)
    assert f"{len(chart.marks):,} marks" in found[ids[1]].text
    for name in (*chart.rows[:2], *chart.series[:2]):
        assert make_printable(name, 200)[:8] in found[ids[1]].text


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(name) < 160])
def test_a_hostile_name_is_text_in_a_picture(name):
    chart = Chart("c", name, "gantt", ((0, 0, 0, 1),), (name, "b"), (name,), caption=name)
    text = draw_svg_chart(chart)
    assert "<script" not in text
    assert "<img" not in text
    assert f"{make_printable(name, 200)} · {make_printable(name, 200)}: 1 ns, from 0 ns" in [
        tip.text for tip in ET.fromstring(text).iter(f"{NS}title")
    ]


@settings(max_examples=150, deadline=None)
@example(Chart("", "", "heatmap", ((0, 0, 0, None), (0, 0, 0, 10**308)), ("",), ("",), unit="id", x_unit=""))
@given(charts())
def test_any_chart_is_drawn_well_formed_within_its_frame_and_the_same_each_time(chart):
    text = draw_svg_chart(chart)
    assert draw_svg_chart(chart) == text
    root = ET.fromstring(text)
    width, height = (float(size) for size in root.get("viewBox").split()[2:])
    for element in root.iter():
        assert element.tag.removeprefix(NS) in {
            "svg", "g", "path", "rect", "circle", "text", "title", "desc",
        }  # fmt: skip
        assert not any(name.startswith("on") or "href" in name or name == "style" for name in element.attrib)
        for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert -0.1 <= float(element.get(name, 0)) <= most + 0.1
        for x in re.findall(r"[ML]([-\d.]+) ", element.get("d", "")):
            assert -0.1 <= float(x) <= width + 0.1
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(numbers, min_size=1, max_size=5),
    st.sampled_from(("", "ns", "bytes", "ratio", "count", "id")),
    st.booleans(),
    st.booleans(),
)
def test_an_axis_holds_its_values_with_few_ticks_in_their_order(values, unit, zero, wide):
    exact = [Fraction(value) for value in values]
    found = make_axis(exact, unit, zero=zero, wide=wide)
    assert all(0 <= found.project(value) <= 1 for value in exact)
    places = [at for at, _ in found.ticks]
    assert places == sorted(places)
    assert len(places) <= 9
    assert all(-1e-9 <= at <= 1 + 1e-9 for at in places)


@pytest.mark.parametrize(
    ("values", "unit", "labels"),
    [
        ((0, 63_600_000), "ns", ["0 ms", "20 ms", "40 ms", "60 ms"]),
        ((0, 1), "ratio", ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        ((0, 3 << 30), "bytes", ["0.0 GiB", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB", "2.5 GiB", "3.0 GiB"]),
        ((1, 3), "id", ["1", "2", "3"]),
        ((0, 2), "ns", ["0.0 ns", "0.5 ns", "1.0 ns", "1.5 ns", "2.0 ns"]),
    ],
)  # fmt: skip
def test_ticks_stand_at_round_numbers_in_one_unit(values, unit, labels):
    assert [label for _, label in make_axis([Fraction(value) for value in values], unit).ticks] == labels


def test_values_near_each_other_are_not_squeezed_together_by_zero():
    near = make_axis([Fraction(1_800), Fraction(1_900)], "count", zero=True)
    far = make_axis([Fraction(100), Fraction(1_900)], "count", zero=True)
    assert near.low > 0
    assert far.low == 0


@pytest.mark.parametrize(
    ("chart", "problem"),
    [
        (replace(gantt(), marks=((0, 0, 1),)), r"marks\[0\] has 3 numbers, not 4"),
        (replace(gantt(), marks=((0, 0, 1, 2), (8, 0, 1, 2))), r"marks\[1\] is of no row there is"),
        (replace(gantt(), marks=((0, 6, 1, 2),)), r"marks\[0\] is of no series"),
        (replace(bars(), marks=((0, -1, 1),)), "no series"),
        (replace(bars(), marks=((0.0, 0, 1),)), "no row"),
        (replace(bars(), marks=((None, 0, 1),)), "no row"),
        (replace(bars(), marks=((True, 0, 1),)), "no row"),
        (replace(lines(), series=()), r"series there is \(0 are named\)"),
    ],
)
def test_a_mark_that_refers_to_nothing_is_refused(chart, problem):
    with pytest.raises(TracekitError, match=problem):
        draw_svg_chart(chart)


def test_what_has_no_place_is_not_drawn():
    marks = ((0, 0, None, 5), (0, 0, 5, 1), (0, 0, 0, float("nan")), (0, 0, 0, 10))
    assert len(boxes(picture(Chart("c", "C", "gantt", marks, ("a",), ("r",))))) == 1
    assert words(picture(Chart("c", "C", "gantt", marks[:3], ("a",), ("r",)))) == ["nothing to draw"]
    assert words(picture(Chart("c", "C", "lines", ()))) == ["nothing to draw"]


def test_a_picture_of_too_many_marks_draws_the_largest_and_counts_the_others():
    marks = tuple((0, 0, at * 100, at * 100 + 1 + at % 50) for at in range(5_000))
    few = limit_chart(Chart("c", "C", "gantt", marks, ("a",), ("r",), omitted=7))
    assert len(few.marks) == MOST_MARKS
    assert few.omitted == 5_000 - MOST_MARKS + 7
    # 100 marks of each length 1 to 50: the 2,000 largest are those of 31 to 50.
    assert {end - start for _, _, start, end in few.marks} == set(range(31, 51))
    text = draw_svg_chart(few)
    assert text.count("<title>") == MAX_TOOLTIPS
    assert text.count("h") >= MOST_MARKS
    assert len(text) < 250_000


def test_too_many_rows_are_cut_with_their_marks():
    rows = tuple(f"rank {at}" for at in range(1_000))
    few = limit_chart(Chart("c", "C", "bars", tuple((at, 0, at) for at in range(1_000)), ("a",), rows))
    assert (len(few.rows), len(few.marks), few.omitted) == (MOST_ROWS, MOST_ROWS, 1_000 - MOST_ROWS)
    names = [text for text in words(picture(few)) if text.startswith("rank")]
    assert 20 < len(names) < 100


def test_a_name_has_one_tone_in_all_pictures_and_what_fills_most_has_the_first():
    slow = Chart("a", "A", "gantt", ((0, 0, 0, 10), (0, 1, 10, 100)), ("gen", "update"), ("r",))
    other = Chart("b", "B", "gantt", ((0, 0, 0, 5), (0, 1, 5, 6)), ("ref", "update"), ("r",))
    tones = assign_stage_tones((slow, other, bars()))
    assert tones == {"update": "s0", "gen": "s1", "ref": "s2"}
    assert [box[0] for box in boxes(picture(other, tones))] == ["s2", "s0"]


def test_idle_has_the_tone_of_nothing():
    classes = {box[0] for box in boxes(picture(bars()))}
    assert classes == {"s0", "s1", "s2", "none"}


@given(ints)
def test_a_text_is_cut_to_its_width(number):
    width = abs(number) % 300
    for name in HOSTILE:
        shown = fit_text(name, width)
        assert shown.isprintable()
        assert estimate_text_width(shown) <= max(width, estimate_text_width("…"))


def themes():
    """The variables of the style sheet, in light and in dark."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_all_words_stand_out_from_what_they_stand_on(theme):
    for ink in ("ink", "quiet", "cool", "warm"):
        assert contrast(theme[ink], theme["page"]) >= 4.5
        assert contrast(theme[ink], theme["raised"]) >= 4.5
    assert contrast(theme["warm"], theme["warm-soft"]) >= 4.5
    for tone in [*(f"s{at}" for at in range(TONES)), "none"]:
        assert contrast(theme[tone], theme["page" if get_text_role(tone) == "on" else "ink"]) >= 4.5


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_thin_lines_stand_out_from_the_page(theme):
    drawn = set(re.findall(r"\.line\.[\w.]+ \{ stroke: var\(--(s\d)\)", CSS))
    assert drawn
    assert all(contrast(theme[tone], theme["raised"]) >= 3 for tone in drawn)


def test_every_class_of_a_picture_has_a_style():
    used = {
        name for chart in SAMPLES for element in picture(chart).iter() for name in (element.get("class") or "").split()
    }
    assert {"s0", "l8", "unknown", "on", "off", "grid", "tick", "row", "line"} <= used
    # These carry the look of text in general, and mark the kind.
    assert {n for n in used if not re.search(rf"\.{n}\b", CSS)} <= {
        "gantt", "bars", "lines", "histogram", "value",
    }  # fmt: skip


def reported(chart):
    return Report("t", "0", sections=(Section("s", "S", charts=(chart,)),))


@settings(max_examples=40, deadline=None)
@given(charts())
def test_a_chart_reads_back_from_json_as_it_was_written(chart):
    assert read_report_json(write_report_json(reported(chart))) == reported(chart)


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        (((0, 0, 1),), r"charts\[0\]\.marks\[0\] has 3 numbers, not 4"),
        (((0, 9, 1, 2),), r"sections\[0\]\.charts\[0\]\.marks\[0\] is of no series"),
        (((0.5, 0, 1, 2),), "of no row"),
    ],
)
def test_a_report_whose_chart_refers_to_nothing_is_refused(marks, problem):
    with pytest.raises(TracekitError, match=problem):
        read_report_json(write_report_json(reported(replace(gantt(), marks=marks))))
