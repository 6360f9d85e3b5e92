"""Parts of amounts as pictures: a map of segments and a tree of stacks, on the page and as image files."""

import re
from xml.etree import ElementTree as ET

import pytest

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart
from tracekit.render.charts.kinds import limit_chart
from tracekit.render.charts.svg import draw_svg_chart

MIB = 2**20
TREE = Chart(
    "stacks", "Stacks", "icicle",
    ((0, 0, 0, 8 * MIB), (1, 1, 0, 6 * MIB), (1, 2, 6 * MIB, 8 * MIB), (2, 3, 0, MIB // 64)),
    ("main", "forward", "loss", "tiny"), ("outermost", "1", "2"), unit="bytes", x_unit="bytes",
)  # fmt: skip
MAP = Chart(
    "map", "Segments", "extents",
    ((0, 0, 0, 3 * MIB), (0, 1, 3 * MIB, 4 * MIB), (1, 1, 0, 2 * MIB)),
    ("in use", "free"), ("4 MiB", "2 MiB"), unit="bytes", x_unit="bytes",
)  # fmt: skip


def boxes(chart):
    """(tooltip, left, width) of every bar with a tooltip."""
    root = ET.fromstring(draw_svg_chart(chart))
    found = []
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        title = path.find("{http://www.w3.org/2000/svg}title")
        if title is not None:
            left, width = re.match(r"M([\d.]+) [\d.]+h([\d.]+)", path.get("d")).groups()
            found.append((title.text, float(left), float(width)))
    return found


def test_a_bar_is_as_wide_as_its_amount_and_lies_below_what_it_is_part_of():
    found = {tip: (left, width) for tip, left, width in boxes(TREE)}
    main, forward, loss = (found[f"{n}"] for n in ("main: 8.00 MiB", "forward: 6.00 MiB", "loss: 2.00 MiB"))  # fmt: skip
    assert forward[1] / main[1] == pytest.approx(0.75, abs=0.01)
    assert main[0] == forward[0]
    assert loss[0] == pytest.approx(main[0] + 0.75 * (main[1] + 0.5), abs=0.6)


def test_names_stand_in_bars_with_room_for_them():
    words = re.findall(r'<text class="(?:on|off)"[^>]*>([^<]*)<', draw_svg_chart(TREE))
    assert words == ["main", "forward", "loss"]


def test_a_map_has_a_legend_and_a_tree_has_none():
    assert ">in use</text>" in draw_svg_chart(MAP)
    assert ">free</text>" in draw_svg_chart(MAP)
    assert ">tiny</text>" not in draw_svg_chart(TREE)
    # What is free is pale, like all that is the absence of something.
    assert re.search(r'<path class="none"[^>]*><title>4 MiB · free', draw_svg_chart(MAP))


def test_hostile_names_are_only_text():
    name = '</text><script>alert("x")</script>\u202e'
    for kind in ("icicle", "extents"):
        chart = Chart("x", name, kind, ((0, 0, 0, 5),), (name, "other"), (name,), x_unit="bytes")
        text = draw_svg_chart(chart)
        ET.fromstring(text)
        assert "<script" not in text
        assert "\u202e" not in text


def test_the_largest_bars_are_kept_where_there_are_too_many():
    marks = tuple((0, 0, at, at + 1 + (at == 7)) for at in range(2_500))
    chart = Chart("x", "x", "extents", marks, ("a",), ("row",), x_unit="bytes")
    few = limit_chart(chart)
    assert (len(few.marks), few.omitted) == (2_000, 500)
    assert (0, 0, 7, 9) in few.marks


def test_a_mark_of_no_row_is_refused():
    with pytest.raises(TracekitError, match="of no row"):
        draw_svg_chart(Chart("x", "x", "icicle", ((1, 0, 0, 5),), ("a",), ("row",), x_unit="bytes"))
