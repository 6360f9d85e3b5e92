"""Names of stages in a terminal: the order and the hues of the page, only with color, and at hardly any cost."""

import re
import time
from colorsys import rgb_to_hls
from dataclasses import replace
from pathlib import Path

import pytest
from page_reading import Page

import tracekit
from tracekit.render import render
from tracekit.render.plots.colors import HUES
from tracekit.render.plots.stage_inks import STAGE_INKS

EXAMPLES = Path(__file__).parents[2] / "examples"
LEVELS = (0, 95, 135, 175, 215, 255)
"""Levels of red, green and blue among the 216 colors of a terminal that are numbered from 16 on."""


def shares_of(number):
    """Red, green and blue of a color of the 256."""
    place = number - 16
    return [LEVELS[part] / 255 for part in (place // 36, place // 6 % 6, place % 6)]


def luminance(number):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in shares_of(number)]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.fixture(scope="module")
def report():
    return tracekit.analyze(EXAMPLES / "simulated_gpu", timeline=True)


def test_every_color_is_near_its_hue_and_readable_on_black_and_white():
    assert len(set(STAGE_INKS)) == len(STAGE_INKS) == len(HUES)
    for number, hue in zip(STAGE_INKS, HUES, strict=True):
        assert abs((rgb_to_hls(*shares_of(number))[0] * 360 - hue + 180) % 360 - 180) <= 20
        assert (luminance(number) + 0.05) / 0.05 >= 3
        assert 1.05 / (luminance(number) + 0.05) >= 3


def test_stages_have_the_color_of_their_place_on_the_page(report):
    page = Page(render(report, "html"))
    _, start, _, name, depth, _ = page.started("ranges", 6, 1)
    ranges = zip(start.tolist(), name.tolist(), depth.tolist(), strict=True)
    found = sorted((at, page.names[which]) for at, which, level in ranges if level == 0)
    order = list(dict.fromkeys(which for _, which in found))
    assert list(report.stage_order) == order
    rows = re.findall(r"^\x1b\[38;5;(\d+)m(\w+) *\x1b\[0m", render(report, "text", color=True), re.MULTILINE)
    assert {stage: int(ink) for ink, stage in rows} == dict(zip(order, STAGE_INKS, strict=False))


def test_color_of_stages_changes_no_character_and_nothing_without_color(report):
    plain = render(report, "text")
    assert "\x1b" not in plain
    lines = re.sub(r"\x1b\[[0-9;]*m", "", render(report, "text", color=True)).split("\n")
    assert [line.rstrip() for line in lines] == plain.split("\n")
    assert "stage_order" not in render(report, "json")


def test_color_of_stages_costs_less_than_two_milliseconds(report):
    def measure(one):
        times = []
        for _ in range(15):
            start = time.process_time()
            render(one, "text", color=True)
            times.append(time.process_time() - start)
        return min(times)

    assert measure(report) - measure(replace(report, stage_order=())) < 0.002
