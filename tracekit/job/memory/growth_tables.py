"""Tables of memory growth: every series with its evidence, and the answers of simpler rules for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.job.frames import make_run_heading
from tracekit.job.memory.growth_stages import find_growth_stage
from tracekit.job.memory.trend import FLOOR, Series, group_series, measure_median_growth
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Heading, Ranked, Sheet
from tracekit.model.stats.sawtooth import find_sawtooth
from tracekit.model.stats.trend import GROWS, Growth, GrowthLimits, Label, fit_least_squares, label_growth
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

_LEAK = {True: "leak", False: "no leak"}
GUIDE_STEPS, GUIDE_BYTES = 10, 1_000_000
"""With at least this many samples NeMo-RL's guide calls a least-squares slope above this many bytes per sample a leak."""

WORDS = {
    "too few": "too few steps to judge",
    "none": "no steady growth",
    "saturating": "levels off",
    "shift": "one jump",
    "filling": "grows more slowly: may be filling",
    "stairs": "grows in equal stairs",
    "likely": "grows (likely)",
    "strong": "grows",
}
"""Trends in words."""


_TREND_HEADINGS = parse_headings("""
    who | process | text | Each process, and the median of all, which shows a common leak.
    memory | memory of
    quantity | what | text | requested and allocated are judged; reserved and peaks grow without a leak.
    answer | trend
    stage | allocated in stage | text | The one stage whose net change per step is the growth.
    slope | growth per step | bytes | Median of the slopes of all pairs of steps after the warm-up.
    low | 90 % CI low | bytes | All pairs where there are few.
    high | 90 % CI high | bytes
    steps | steps | count | Compared; the first is left out where levels are relative.
    warm_up | warm-up | count | Steps left out at the beginning.
    phase | compared at | text | The same point of every step.
    floor | of the minimum | bytes | Growth per step of the least level of a step, where another point is compared.
    p | p | number | Chance of such a rise without a trend; of several ranks corrected for their number (Holm).
    detectable | detectable from | bytes | Smallest growth per step that this many steps detect in 4 of 5 cases.
""")


def make_trend_table(
    measured: Measurements,
    every_series: Sequence[Series],
    labels: Sequence[Label | None],
    corrected: Sequence[float | None],
    limits: GrowthLimits,
) -> Sheet:
    """List every series with its slope, interval, p, detectable slope and trend; medians of ranks last."""
    rows = [
        _make_row(item, _describe_trend(item, answer, limits.flat), p)
        | {"stage": find_growth_stage(measured, item) if answer in GROWS else None}
        for item, answer, p in zip(every_series, labels, corrected, strict=True)
    ]
    for group in group_series(every_series):
        members = [every_series[place] for place in group]
        item = members[0]
        middle = measure_median_growth(members, limits) if item.judged else None
        if middle is not None and middle.p is not None:
            answer = _describe_label(middle, label_growth(middle, limits), numbered=item.numbered)
            rows.append(
                _make_row(item, answer, middle.p)
                | {"who": f"median of {len(members)}", "floor": None, "stage": None, **_list_slope(middle)}
            )
    headings = (*make_run_heading(measured), *_TREND_HEADINGS)
    return make_sheet(
        "memory_trend",
        "Growth from step to step",
        headings,
        _list_cells(headings, rows),
        ranked=Ranked("slope", member="who", apart=("run", "quantity", "answer", "stage"), kind="memory"),
    )


def _list_cells(headings: Sequence[Heading], rows: Sequence[Mapping[str, Any]]) -> Frame:
    names = [heading.name for heading in headings]
    return from_rows(names, [[row[name] for name in names] for row in rows])


def _make_row(item: Series, answer: str, p: float | None) -> dict[str, Any]:
    """List the cells of one series."""
    at_floor = item.logged or item.phase == FLOOR
    row: dict[str, Any] = {
        "run": item.of.run,
        "who": item.of.process or None,
        "memory": item.of.memory,
        "quantity": item.quantity,
        "steps": len(item.x),
        "warm_up": None,
        "phase": item.phase,
        "floor": None,
        "p": p,
        "answer": answer,
        **_list_slope(item.found),
    }
    if item.judged:
        row["warm_up"] = item.found.warm_up
    if item.floor is not None and not at_floor:
        row["floor"] = round(item.floor.per_x)
    return row


def _list_slope(growth: Growth) -> dict[str, int | None]:
    """List the slope with its interval, and the detectable slope."""
    cells: dict[str, int | None] = dict.fromkeys(("slope", "low", "high", "detectable"))
    if growth.slope is not None:
        slope = growth.slope
        cells |= {"slope": round(slope.per_x), "low": round(slope.low), "high": round(slope.high)}
    if growth.detectable is not None:
        cells["detectable"] = round(growth.detectable)
    return cells


def _describe_trend(item: Series, answer: Label | None, flat: float) -> str:
    """Describe the trend; a quantity that cannot leak is not judged.

    Without steady growth adds a sawtooth whose drops are larger than `flat` bytes, as a hint.
    """
    if answer is None:
        what = "cache growth" if item.quantity == "reserved" else "peak drift"
        return f"{what}: not judged"
    text = _describe_label(item.found, answer, numbered=item.numbered)
    if answer != "none":
        return text
    teeth = find_sawtooth(item.level[item.found.warm_up :], flat)
    if teeth is None:
        return text
    text += f"; falls back {teeth.count} times by {format_quantity(round(teeth.height), 'bytes')}"
    if teeth.period is not None:
        text += f", every {teeth.period} steps"
    return text


def _describe_label(growth: Growth, answer: Label, *, numbered: bool) -> str:
    """Describe a label; of a jump where and by how much."""
    text = WORDS.get(answer, answer)
    if answer != "shift" or growth.shift is None:
        return text
    step, rise = growth.shift
    # Without numbers of steps the first is 1 for whoever counts them.
    where = f"at step {round(step)}" if numbered else f"at step {round(step) + 1} in order"
    return f"{text} {where} by {format_quantity(round(rise), 'bytes')}"


def make_guide_tables(
    measured: Measurements, every_series: Sequence[Series], labels: Sequence[Label | None]
) -> tuple[Sheet, ...]:
    """Compare the trend of each series with the rules of NeMo-RL's guide; none if every series is too short."""
    if not any(len(item.x) >= GUIDE_STEPS for item in every_series):
        return ()
    rows = []
    for item, answer in zip(every_series, labels, strict=True):
        slope = fit_least_squares(np.arange(len(item.x), dtype=np.float64), item.level)
        if not item.judged or slope is None:
            continue
        says = _LEAK[slope > GUIDE_BYTES]
        if len(item.x) < GUIDE_STEPS:
            says = f"nothing below {GUIDE_STEPS} samples"
        net = int(item.level[-1] - item.level[0])
        rows.append(
            {
                "run": item.of.run,
                "who": item.of.process or None,
                "memory": item.of.memory,
                "quantity": item.quantity,
                "slope": round(slope),
                "guide": says,
                "net": net,
                "freed": _LEAK[net > 0],
                "answer": answer and WORDS.get(answer, answer),
            }
        )
    headings = (
        *make_run_heading(measured),
        Heading("who", "process"),
        Heading("memory", "memory of"),
        Heading("quantity", "what"),
        Heading("slope", "least-squares slope", "bytes", "Bytes per sample, warm-up included."),
        Heading("guide", "slope > 1 MB a sample"),
        Heading("net", "allocated - freed", "bytes", "Last level less the first."),
        Heading("freed", "allocated - freed > 0"),
        Heading("answer", "trend here"),
    )
    caption = "Shown for comparison only. On simulated series of 20 steps without a leak the slope rule reports a leak in 31 % (noise of 50 MB), 49 % (500 MB), 95 % (one jump of 20 MB) and 100 % (a cold first step); it misses about half of the leaks of 1 MB per step. Any series that ends above its start has more allocated than freed."
    title = "Result of NeMo-RL's guide"
    guide = make_sheet("guide_rule", title, headings, _list_cells(headings, rows), caption=caption)
    return select_filled_sheets(guide)
