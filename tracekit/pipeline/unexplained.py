"""What the headline alone would leave open: windows that their device work does not fit, and idle time in no finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import ANALYSES, QUESTIONS
from tracekit.job.frames import grouped, job, summed
from tracekit.job.stage_windows import whole
from tracekit.job.start_up import prefixes
from tracekit.job.step_marks import DISAGREE, device_steps
from tracekit.model import faults
from tracekit.model.keys import CAPTURE, looked_up
from tracekit.model.report import Section
from tracekit.model.tables.slots import CAUSE_TITLES
from tracekit.model.trace import Measurements
from tracekit.model.units import show

WORTH_SAYING = 0.03
"""Idle and waiting time below this share of the step needs no finding and no reason."""

SHOWN_CAUSES = 3

NO_OPS = "The host was in no call, but not for long; its ops were not recorded."
"""What is known of time between ops where there are none."""

OF_IDLE_TIME = ("time.", "rl.", "ranks.")
"""The folders of the questions whose findings may be about time in which a device does nothing."""

OF_WAITING = ("ranks.",)
"""Those about time in which a device waits for other ranks, or for what they send."""

NOT_OF_WINDOWS = "time.steps"
"""The question whose finding is about how long steps take, not about what devices do in them."""


def disagreements(measured: Measurements) -> tuple[str, ...]:
    """Where device work does not fit the windows: what was launched in them runs outside, or they begin long before it."""
    return _of_some(measured, _disagreements)


def unexplained(measured: Measurements, sections: Sequence[Section]) -> tuple[str, ...]:
    """Why no finding is about the idle and waiting time of the headline, where none is and it is worth one."""

    def parts(whom: Measurements) -> tuple[str, ...]:
        return tuple(chain(_idle(whom, sections), _waiting(whom, sections)))

    return _of_some(measured, parts)


def _of_some(measured: Measurements, part: Any) -> tuple[str, ...]:
    """A part of what is said; nothing where it rests on a table that has failed or was not asked for."""
    sentences: tuple[str, ...] = faults.sound(
        measured, lambda whom: faults.asked(whom, lambda m: tuple(part(m)), ()), ()
    )
    return sentences


def _unit(measured: Measurements) -> str:
    """What the windows are called in a sentence."""
    walls = job(measured).walls
    if prefixes(measured):
        return "time after start-up"
    is_capture = (walls["origin"] == "file").all() and walls["step"].isna().all()
    return "capture" if is_capture else "step"


def _disagreements(measured: Measurements) -> Iterator[str]:
    if not (measured.row_count("gpu_time") and measured.row_count("steps")):
        return
    rows = device_steps(measured)
    rows = rows[(rows["origin"] != "stage").to_numpy(np.bool_)]
    window_ns = float(rows["window_ns"].sum())
    if not window_ns:
        return
    unit, each = _unit(measured), window_ns / len(rows)
    # A capture is known by what ran in it: it may begin behind the launches of its work.
    is_marked = (rows["origin"] != "file").to_numpy(np.bool_)
    if float(rows["differ_ns"][is_marked].sum()) > DISAGREE * window_ns:
        inside, launched = (
            show(float(rows[name].mean()), "ns") for name in ("inside_ns", "launched_ns")
        )
        yield (
            f"GPUs are busy {inside} of a {unit} of {show(each, 'ns')}, and {launched} with what was launched in it: "
            f"work of one {unit} runs in another, or was launched before the recording"
        )
        return
    yield from _apart(measured, rows, unit)


def _apart(measured: Measurements, rows: pd.DataFrame, unit: str) -> Iterator[str]:
    """The single windows of recordings whose device work takes much less than them: when it ran, and how busy then."""
    by_source = rows.groupby([*CAPTURE], dropna=False, sort=False)["ts_ns"].transform("size")
    numbered_file = (rows["origin"] == "file") & rows["step"].notna()
    single = rows[((by_source == 1) & ~numbered_file).to_numpy(np.bool_)]
    if len(single) < len(rows) or not len(rows):
        return
    gpu_time = whole(measured, "gpu_time")
    captures = gpu_time[(gpu_time["window"] == "capture").to_numpy(np.bool_)]
    captures = captures.assign(
        end_ns=captures["ts_ns"] + captures["window_ns"], span_ns=captures["window_ns"]
    )
    spans = grouped(
        captures,
        [*CAPTURE],
        begin_ns=("ts_ns", "min"),
        end_ns=("end_ns", "max"),
        span_ns=("span_ns", "sum"),
        quiet_ns=("idle_ns", "sum"),
    )
    both = looked_up(single.drop(columns=["idle_ns"]), spans, CAPTURE, optional=["pid"])
    both = both[both["span_ns"].notna().to_numpy(np.bool_)]
    span, window = float(both["span_ns"].sum()), float(both["window_ns"].sum())
    if not window or window - span <= DISAGREE * window:
        return
    busy = 1 - float(both["quiet_ns"].sum()) / span if span else 0.0
    lasting = float(both["dur_ns"].mean())
    from_ns = float((both["begin_ns"] - both["ts_ns"]).mean())
    until_ns = float((both["end_ns"] - both["ts_ns"]).mean())
    yield (
        f"device work takes {show(until_ns - from_ns, 'ns')} of the {unit} of {show(lasting, 'ns')}, "
        f"from {show(max(from_ns, 0.0), 'ns')} on, and GPUs are busy {show(busy, 'ratio')} of that"
    )


def _shares(measured: Measurements) -> dict[str, float]:
    """The shares of the windows in which devices idle, and in which they only communicate."""
    rows = whole(measured, "gpu_time")
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)]
    sums = rows[["window_ns", "idle_ns", "exposed_comm_ns"]].sum()
    total = float(sums["window_ns"])
    if not total:
        return {}
    return {name: float(sums[name]) / total for name in ("idle_ns", "exposed_comm_ns")}


def _has_finding(sections: Sequence[Section], folders: tuple[str, ...]) -> bool:
    """Whether a question of these folders found something that time could be gained by."""
    questions = _questions(folders)
    return any(
        section.id in questions and any(f.recoverable_ns for f in section.findings)
        for section in sections
    )


@cache
def _questions(folders: tuple[str, ...]) -> frozenset[str]:
    """The ids of the questions in these folders."""
    return frozenset(
        analysis.id
        for path, analysis in zip(QUESTIONS, ANALYSES, strict=True)
        if path.startswith(folders) and path != NOT_OF_WINDOWS
    )


def _idle(measured: Measurements, sections: Sequence[Section]) -> Iterator[str]:
    if not measured.row_count("gpu_time") or _has_finding(sections, OF_IDLE_TIME):
        return
    share = _shares(measured).get("idle_ns", 0.0)
    if share <= WORTH_SAYING:
        return
    sentence = f"no finding is about the {show(share, 'ratio')} of the {_unit(measured)} in which GPUs idle"
    rows = whole(measured, "idle")
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)]
    causes = summed(rows, ["cause"], ["idle_ns"]).sort_values(
        ["idle_ns", "cause"], ascending=[False, True]
    )
    total = float(causes["idle_ns"].sum())
    parts: list[str] = []
    for cause, ns in causes.itertuples(index=False, name=None):
        if ns and len(parts) < SHOWN_CAUSES:
            described = _described(measured, str(cause), is_first=not parts)
            parts.append(f"{show(share * float(ns) / total, 'ratio')} {described}")
    yield f"{sentence}: {'; '.join(parts)}" if parts else sentence


def _described(measured: Measurements, cause: str, *, is_first: bool) -> str:
    """A cause by its name; the largest one with what that means."""
    title, meaning = CAUSE_TITLES.get(cause, (cause, ""))
    if cause == "host_none" and measured.row_count("host_counts"):
        counts = measured["host_counts"]
        if not counts["leaf_count"].sum():
            title, meaning = "between calls", NO_OPS
    if not (is_first and meaning):
        return title
    return f"{title} ({meaning[0].lower()}{meaning[1:].rstrip('.')})"


def _waiting(measured: Measurements, sections: Sequence[Section]) -> Iterator[str]:
    if not measured.row_count("gpu_time") or _has_finding(sections, OF_WAITING):
        return
    share = _shares(measured).get("exposed_comm_ns", 0.0)
    if share <= WORTH_SAYING:
        return
    reason = "less than what the rules about communication report"
    for section in sections:
        for verdict in section.verdicts:
            if verdict.rule == "exposed-communication" and verdict.reason:
                reason = verdict.reason
    yield (
        f"no finding is about the {show(share, 'ratio')} of the {_unit(measured)} in which GPUs only communicate: {reason}"
    )
