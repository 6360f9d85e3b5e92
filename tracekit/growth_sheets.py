"""Growth of memory as tables: every series with its evidence, and beside it what simpler rules would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.allocators import Series, groups, median_growth
from tracekit.pooling import run_heading
from tracekit.report import Heading, Sheet
from tracekit.sheets import sheet
from tracekit.stats.trend import Label, Limits, label, least_squares
from tracekit.trace import Measurements

GUIDE_STEPS, GUIDE_BYTES = 10, 1_000_000
"""From so many samples on NeMo-RL's guide calls a least-squares slope above so many bytes a sample a leak."""

WORDS = {
    "too few": "too few steps to judge",
    "none": "no steady growth",
    "saturating": "levels off",
    "shift": "one jump",
    "likely": "grows (likely)",
    "strong": "grows",
}
"""What a series shows, in words."""


def trend_sheet(
    measured: Measurements,
    found: Sequence[Series],
    labels: Sequence[Label | None],
    corrected: Sequence[float | None],
    limits: Limits,
) -> Sheet:
    """Every series with its slope, the interval, p, what would have been seen, and the answer; medians of ranks last."""
    rows = [
        _row(one, _word(one, answer), p)
        for one, answer, p in zip(found, labels, corrected, strict=True)
    ]
    for group in groups(found):
        mine = [found[i] for i in group]
        middle = median_growth(mine, limits) if mine[0].judged else None
        if middle is not None and middle.p is not None:
            answer = label(middle, limits)
            one = mine[0]
            rows.append(
                _row(one, WORDS.get(answer, answer), middle.p)
                | {
                    "who": f"median of {len(mine)}",
                    "floor": None if middle.slope is None else round(middle.slope.per_x),
                    "floor_low": None if middle.slope is None else round(middle.slope.low),
                    "floor_high": None if middle.slope is None else round(middle.slope.high),
                    "point": None,
                    "detectable": None if middle.detectable is None else round(middle.detectable),
                }
            )
    shown = pd.DataFrame(rows)
    numbers = ("warm_up", "floor", "floor_low", "floor_high", "point", "detectable")
    shown = shown.astype(dict.fromkeys(numbers, "Int64"))
    headings = (
        *run_heading(measured),
        Heading("who", "process", "text", "Each alone, and the median of all: that shows what all of them leak."),
        Heading("memory", "memory of"),
        Heading("quantity", "what", "text", "requested and allocated are judged; reserved and peaks grow without a leak."),
        Heading("answer", "trend"),
        Heading("steps", "steps", "count", "Compared; the first is left out where levels are relative."),
        Heading("warm_up", "warm-up", "count", "Steps left out at the beginning."),
        Heading("floor", "floor slope", "bytes", "Bytes per step by which the least level of a step grows (median of pairs)."),
        Heading("floor_low", "from", "bytes", "90 % interval; all pairs where there are few."),
        Heading("floor_high", "to", "bytes"),
        Heading("phase", "same point", "text", "The point at which steps are compared."),
        Heading("point", "slope there", "bytes", "Bytes per step."),
        Heading("p", "p", "", "Chance of such a rise without a trend; of several ranks corrected for their number (Holm)."),
        Heading("detectable", "would be seen from", "bytes", "Least growth per step that so many steps show in 4 of 5 cases."),
    )  # fmt: skip
    return sheet("memory_trend", "Growth from step to step", headings, shown)


def _row(one: Series, answer: str, p: float | None) -> dict[str, Any]:
    """The cells of one series."""
    at_point = one.point is not None and (one.phase.startswith("end of ") or one.logged)
    return {
        "run": one.of.run,
        "who": one.of.process,
        "memory": one.of.memory,
        "quantity": one.quantity,
        "steps": len(one.x),
        "warm_up": one.found.warm_up if one.judged else None,
        "floor": None if one.floor is None else round(one.floor.per_x),
        "floor_low": None if one.floor is None else round(one.floor.low),
        "floor_high": None if one.floor is None else round(one.floor.high),
        "phase": one.phase if one.phase.startswith("end") or one.logged else None,
        "point": round(one.point.per_x) if at_point and one.point is not None else None,
        "p": p,
        "detectable": None if one.found.detectable is None else round(one.found.detectable),
        "answer": answer,
    }


def _word(one: Series, answer: Label | None) -> str:
    """The answer in words; of what is no leak whatever it does, that it is not judged."""
    if answer is None:
        return (
            "cache growth: not judged" if one.quantity == "reserved" else "peak drift: not judged"
        )
    return WORDS.get(answer, answer)


def guide_sheets(
    measured: Measurements, found: Sequence[Series], labels: Sequence[Label | None]
) -> tuple[Sheet, ...]:
    """What the rules of NeMo-RL's guide would say of the same series, beside the answer here; no finding.

    None where no series is logged by the step, or long enough for that.
    """
    if not any(one.logged or len(one.x) >= GUIDE_STEPS for one in found):
        return ()
    rows = []
    for one, answer in zip(found, labels, strict=True):
        slope = least_squares(np.arange(len(one.x), dtype=np.float64), one.level)
        if not one.judged or slope is None:
            continue
        says = "leak" if slope > GUIDE_BYTES else "no leak"
        if len(one.x) < GUIDE_STEPS:
            says = f"nothing below {GUIDE_STEPS} samples"
        net = int(one.level[-1] - one.level[0])
        rows.append(
            {
                "run": one.of.run, "who": one.of.process, "memory": one.of.memory, "quantity": one.quantity,
                "slope": round(slope), "guide": says, "net": net,
                "freed": "leak" if net > 0 else "no leak", "answer": _word(one, answer),
            }
        )  # fmt: skip
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
    columns = [h.name for h in headings]
    frame = pd.DataFrame(rows, columns=columns if "run" in columns else ["run", *columns])
    title = "What NeMo-RL's guide would say"
    made = sheet("guide_rule", title, headings, frame, caption=caption)
    return (made,) if made.rows else ()
