"""Shared by the drawings of all kinds: scaled numbers, row names, text that fits into bars, legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.text.wrapping import shorten_middle
from tracekit.model.units import Scale, choose_scale, format_quantity
from tracekit.render.escape import make_printable
from tracekit.render.plots.marks import is_known

POINTS = 8.0
"""Size of letters, in points."""

NAME_LENGTH = 40
"""Longest name in a chart, in characters."""

GRID, INK, QUIET = "#d5d7d4", "#1f2326", "#5f656b"

WIDTH = 11.0
"""Width of an image, in inches."""

PLOT_WIDTH = 8.6
"""Width of a plot of rows in it, about."""

DECADES = 1_000
"""Positive values that span this factor get a logarithmic axis."""

_LETTER = 0.58
"""Mean width of a letter, in sizes of letters."""
_LEGEND, _LEGEND_COLUMNS = 16, 6


@dataclass(frozen=True, slots=True)
class Amounts:
    """Numbers of one axis: `divide` converts them to the unit of its label."""

    scale: Scale

    @property
    def label(self) -> str:
        """Unit of the axis."""
        return self.scale.label

    def divide(self, number: float) -> float:
        """Convert a number to the unit of the axis."""
        return number / float(self.scale.factor)


def scale_amounts(values: Iterable[float], unit: str) -> Amounts:
    """Choose the unit of an axis by its largest number."""
    return Amounts(choose_scale([value for value in values if is_known(value)], unit))


def format_amount(value: float, unit: str, figures: int = 3) -> str:
    """Format a number in a chart; whole numbers stay whole."""
    return make_printable(format_quantity(int(value) if value.is_integer() else value, unit, figures), NAME_LENGTH)


def shorten_chart_text(name: str, length: int = NAME_LENGTH) -> str:
    """Make a name printable and short."""
    return shorten_middle(make_printable(name, 8 * NAME_LENGTH), length)


def show_row_names(axes: Any, chart: Chart) -> None:
    """Show the name of each row, or of every n-th where they would overlap, the first on top."""
    interval = -(-len(chart.rows) // 60)
    places = range(0, len(chart.rows), interval)
    axes.set_yticks(list(places), [shorten_chart_text(chart.rows[place]) for place in places])
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def show_grid(axes: Any, axis: str = "x") -> None:
    """Show quiet lines behind the marks, without a frame."""
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis=axis, color=GRID, linewidth=0.6)
    axes.tick_params(labelsize=POINTS, labelcolor=QUIET, color=GRID)
    for side in ("top", "right", "left") if axis == "x" else ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)


def show_legend(axes: Any, series: Sequence[str], make_sample: Any) -> None:
    """Show the names of the series between title and plot if there are several; `make_sample` makes the sample of one."""
    if len(series) < 2:
        return
    names = [shorten_chart_text(name) for name in series[:_LEGEND]]
    samples = [make_sample(number) for number in range(len(names))]
    if len(series) > _LEGEND:
        names[-1] = f"and {len(series) - _LEGEND + 1} more"
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
    columns = max(1, min(_LEGEND_COLUMNS, int(PLOT_WIDTH * 72 / (POINTS * (3 + _LETTER * max(map(len, names)))))))
    axes.legend(samples, names, ncols=columns, fontsize=POINTS, frameon=False, handlelength=1.2, **place)
    axes.set_title(axes.get_title(loc="left"), loc="left", pad=8 + 1.7 * POINTS * -(-len(names) // columns))


def set_log_scale(axes: Any, values: Iterable[float], axis: str) -> bool:
    """Use a logarithmic axis if all values are positive and span decades: whether it does."""
    from matplotlib.ticker import NullLocator

    known = [value for value in values if is_known(value)]
    if not known or min(known) <= 0 or max(known) < DECADES * min(known):
        return False
    getattr(axes, f"set_{axis}scale")("log")
    line = getattr(axes, f"{axis}axis")
    line.set_major_formatter(lambda value, _: f"{value:g}")
    line.set_minor_locator(NullLocator())
    return True


def choose_axis_start(values: Iterable[float]) -> float:
    """Choose where an axis begins: at 0 or below, unless that hides differences of values that are within a third.

    >>> choose_axis_start([2.0, 10.0]), choose_axis_start([-1.0, 4.0]), choose_axis_start([9.0, 10.0])
    (0.0, -1.0, 8.9)
    """
    known = [value for value in values if is_known(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return low - (high - low) / 10 if 0 < high * 2 < low * 3 and low < high else min(low, 0.0)


def fits_into_plot(text: str, share: float) -> bool:
    """Check whether text fits into a share of the plot's width."""
    return len(text) * _LETTER * POINTS + 6 <= share * PLOT_WIDTH * 72
