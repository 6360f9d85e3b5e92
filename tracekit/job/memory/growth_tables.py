"""Growth of memory as tables: every series with its evidence, and beside it what simpler rules would say."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import run_heading
from tracekit.job.memory.trend import FLOOR, Series, groups, median_growth
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.report import Heading, Ranked, Sheet
from tracekit.model.stats.sawtooth import sawtooth
from tracekit.model.stats.trend import Growth, Label, Limits, label, least_squares
from tracekit.model.trace import Measurements
from tracekit.model.units import show

_LEAK = {True: "leak", False: "no leak"}
GUIDE_STEPS, GUIDE_BYTES = 10, 1_000_000
"""From so many samples on NeMo-RL's guide calls a least-squares slope above so many bytes a sample a leak."""

WORDS = {
    "too few": "too few steps to judge",
    "none": "no steady growth",
    "saturating": "levels off",
    "shift": "one jump",
    "filling": "still grows, ever less: may be filling",
    "stairs": "grows in equal rises",
    "likely": "grows (likely)",
    "strong": "grows",
}
"""What a series shows, in words."""


_TREND_HEADINGS = as_headings("""
    who | process | text | Each alone, and the median of all: that shows what all of them leak.
    memory | memory of
    quantity | what | text | requested and allocated are judged; reserved and peaks grow without a leak.
    answer | trend
    slope | growth per step | bytes | Median of the slopes of all pairs of steps after the warm-up.
    low | from | bytes | 90 % interval; all pairs where there are few.
    high | to | bytes
    steps | steps | count | Compared; the first is left out where levels are relative.
    warm_up | warm-up | count | Steps left out at the beginning.
    phase | compared at | text | The same point of every step.
    floor | of the least | bytes | Growth per step of the least level of a step, where another point is compared.
    p | p | number | Chance of such a rise without a trend; of several ranks corrected for their number (Holm).
    detectable | would be seen from | bytes | Least growth per step that so many steps show in 4 of 5 cases.
""")


def trend_sheet(
    measured: Measurements,
    every_series: Sequence[Series],
    labels: Sequence[Label | None],
    corrected: Sequence[float | None],
    limits: Limits,
) -> Sheet:
    """Every series with its slope, the interval, p, what would have been seen, and the answer; medians of ranks last."""
    rows = [
        _row(item, _word(item, answer, limits.flat), p)
        for item, answer, p in zip(every_series, labels, corrected, strict=True)
    ]
    for group in groups(every_series):
        members = list(map(every_series.__getitem__, group))
        item = members[0]
        if not item.judged:
            continue
        middle = median_growth(members, limits)
        if middle is not None and middle.p is not None:
            answer = label(middle, limits)
            rows.append(
                _row(item, _said(middle, answer, numbered=item.numbered), middle.p)
                | {"who": f"median of {len(members)}", "floor": None, **_slope(middle)}
            )
    table = pd.DataFrame(rows)
    numbers = ("warm_up", "slope", "low", "high", "floor", "detectable")
    table = table.astype(dict.fromkeys(numbers, "Int64"))
    return sheet(
        "memory_trend",
        "Growth from step to step",
        (*run_heading(measured), *_TREND_HEADINGS),
        table,
        ranked=Ranked("slope", member="who", apart=("run", "quantity", "answer"), kind="memory"),
    )


def _row(item: Series, answer: str, p: float | None) -> dict[str, Any]:
    """The cells of one series."""
    at_floor = item.logged or item.phase == FLOOR
    row: dict[str, Any] = {
        "run": item.of.run,
        "who": item.of.process,
        "memory": item.of.memory,
        "quantity": item.quantity,
        "steps": len(item.x),
        "warm_up": None,
        "phase": item.phase,
        "floor": None,
        "p": p,
        "answer": answer,
        **_slope(item.found),
    }
    if item.judged:
        row["warm_up"] = item.found.warm_up
    if item.floor is not None and not at_floor:
        row["floor"] = round(item.floor.per_x)
    return row


def _slope(growth: Growth) -> dict[str, int | None]:
    """The slope with its interval, and which one would have been seen."""
    cells: dict[str, int | None] = dict.fromkeys(("slope", "low", "high", "detectable"))
    if growth.slope is not None:
        slope = growth.slope
        cells |= {"slope": round(slope.per_x), "low": round(slope.low), "high": round(slope.high)}
    if growth.detectable is not None:
        cells["detectable"] = round(growth.detectable)
    return cells


def _word(item: Series, answer: Label | None, flat: float) -> str:
    """The answer in words; of what is no leak whatever it does, that it is not judged.

    Beside no steady growth stands a sawtooth whose drops are of more than `flat` bytes, as a hint.
    """
    if answer is None:
        what = "cache growth" if item.quantity == "reserved" else "peak drift"
        return f"{what}: not judged"
    text = _said(item.found, answer, numbered=item.numbered)
    if answer != "none":
        return text
    teeth = sawtooth(item.level[item.found.warm_up :], flat)
    if teeth is None:
        return text
    text += f"; falls back {teeth.count} times by {show(round(teeth.height), 'bytes')}"
    if teeth.period is not None:
        text += f", every {teeth.period} steps"
    return text


def _said(growth: Growth, answer: Label, *, numbered: bool) -> str:
    """The answer in words; of a jump where and by how much."""
    text = WORDS.get(answer, answer)
    if answer != "shift" or growth.shift is None:
        return text
    step, rise = growth.shift
    # Without numbers of steps the first is 1 for whoever counts them.
    where = f"at step {round(step)}" if numbered else f"at step {round(step) + 1} in order"
    return f"{text} {where} by {show(round(rise), 'bytes')}"


def guide_sheets(
    measured: Measurements, every_series: Sequence[Series], labels: Sequence[Label | None]
) -> tuple[Sheet, ...]:
    """What the rules of NeMo-RL's guide would say of the same series, beside the answer here; no finding.

    None where no series is long enough for that.
    """
    if not any(len(item.x) >= GUIDE_STEPS for item in every_series):
        return ()
    rows = []
    for item, answer in zip(every_series, labels, strict=True):
        slope = least_squares(np.arange(len(item.x), dtype=np.float64), item.level)
        if not item.judged or slope is None:
            continue
        says = _LEAK[slope > GUIDE_BYTES]
        if len(item.x) < GUIDE_STEPS:
            says = f"nothing below {GUIDE_STEPS} samples"
        net = int(item.level[-1] - item.level[0])
        rows.append(
            {
                "run": item.of.run,
                "who": item.of.process,
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
        *run_heading(measured),
        Heading("who", "process"),
        Heading("memory", "memory of"),
        Heading("quantity", "what"),
        Heading("slope", "least-squares slope", "bytes", "Bytes per sample, warm-up included."),
        Heading("guide", "slope > 1 MB a sample"),
        Heading("net", "allocated - freed", "bytes", "Last level less the first."),
        Heading("freed", "allocated - freed > 0"),
        Heading("answer", "trend here"),
    )
    caption = (
        "Shown for comparison, not judged by. On simulated series of 20 steps without any leak the slope rule says leak "
        "of 31 % (noise of 50 MB), 49 % (500 MB), 95 % (one jump of 20 MB) and 100 % (a cold first step); of a leak of "
        "1 MB a step it misses about half. Any series that ends above its start has more allocated than freed."
    )
    columns = dict.fromkeys(("run", *map(attrgetter("name"), headings)))
    frame = pd.DataFrame(rows, columns=list(columns))
    title = "What NeMo-RL's guide would say"
    guide = sheet("guide_rule", title, headings, frame, caption=caption)
    return with_rows(guide)
