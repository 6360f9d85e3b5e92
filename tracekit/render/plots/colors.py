"""Colors of stages, kinds of GPU activity and other series: the same in images, on the page and in the terminal.

The hues and the colors of kinds are those of the page's program (`render/explorer/web/theme.ts`; a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from colorsys import hls_to_rgb

from tracekit.model.report import Chart, Report
from tracekit.render.plots.marks import find_chart_problem, list_marks

HUES = (262, 24, 172, 330, 96, 208, 46, 290, 140, 4, 232, 70)
"""Hues of stages in degrees, neighbors far apart."""

KINDS: Mapping[str, str] = {
    "compute": "#0072b2",
    "busy": "#0072b2",
    "communication": "#d55e00",
    "exposed communication": "#d55e00",
    "exposed": "#d55e00",
    "overlapped with compute": "#f0b48f",
    "waiting": "#8a5a1c",
    "copies": "#009e73",
    "fills": "#6cc7a9",
    "faster": "#0072b2",
    "slower": "#d55e00",
    "takes less": "#0072b2",
    "takes more": "#d55e00",
}
"""Okabe and Ito's colors of kinds of GPU activity; parts of a kind are its shades."""

CAUSES: Mapping[str, str] = {
    "synchronizing call": "#b3438c",
    "host op": "#7b61b8",
    "between ops": "#a99bd0",
    "host code": "#5d4a9c",
    "garbage collection": "#7a3b5d",
    "data loader": "#8a5a1c",
    "start-up": "#c4bcae",
    "profiler": "#8d8d86",
    "no host activity": "#4c4c4c",
    "stream wait": "#c9a227",
    "launch latency": "#c9c9c2",
    "other": "#9c9c95",
    "launch unknown": "#b5b5ae",
    "after the last op": "#dcdcd6",
}
"""Colors of causes of idle time, by title: violet where the host did something, grey where nothing is known."""

SITES = (
    "#4c78a8",
    "#f2a65a",
    "#72b7b2",
    "#c26fb0",
    "#9bbf5a",
    "#e07b6a",
    "#8d7fc7",
    "#d9b53f",
    "#5f9e77",
    "#b98b6a",
    "#7ea6d9",
)
"""Colors of all other series, in turn."""

NOTHING = "#e0e0da"
"""Color of the absence of the others."""

_ABSENT = frozenset({"idle", "free", "other", "unattributed", "unknown", "outside any stage", "none", "no change"})

_KNOWN = {**KINDS, **CAUSES}


def assign_stage_colors(charts: Iterable[Chart]) -> dict[str, str]:
    """Assign a color to each stage of the timelines, in order of appearance; different ones for up to 12 stages."""
    names: dict[str, None] = {}
    for chart in charts:
        if chart.kind == "gantt" and not find_chart_problem(chart):
            for mark in sorted(list_marks(chart), key=lambda mark: mark.start):
                names.setdefault(chart.series[mark.series])
    stages = [name for name in names if name.lower() not in _ABSENT]
    return {name: make_stage_color(number) for number, name in enumerate(stages)}


def list_report_charts(report: Report) -> list[Chart]:
    """List the charts of all sections of a report."""
    return [chart for section in report.sections for chart in section.charts]


def make_stage_color(number: int) -> str:
    """Make the color of a stage by its number; those after the twelfth repeat the hues in another shade."""
    turn = number // len(HUES) % 3
    shares = hls_to_rgb(HUES[number % len(HUES)] / 360, 0.82 - 0.06 * turn, 0.58 - 0.14 * turn)
    return "#" + "".join(f"{round(255 * share):02x}" for share in shares)


def assign_series_colors(series: Iterable[str], stages: Mapping[str, str]) -> list[str]:
    """Assign a color to each series of a chart: that of its stage or kind, otherwise the next of `SITES`."""
    colors, number = [], 0
    for name in series:
        known = NOTHING if name.lower().strip("()") in _ABSENT else stages.get(name) or _KNOWN.get(name)
        colors.append(known or SITES[number % len(SITES)])
        number += known is None
    return colors


def choose_text_color(color: str) -> str:
    """Choose black or white, whichever has the higher contrast on a color."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#0d1114" if red * 0.299 + green * 0.587 + blue * 0.114 > 140 else "#ffffff"
