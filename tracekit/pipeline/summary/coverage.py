"""Gaps in the headline: windows that do not match their GPU work, and time that no finding explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import (
    each_run,
    grouped,
    in_run,
    job,
    same_text,
    stage_rows,
    whole_or_none,
)
from tracekit.job.stages.periodic import planned_ns
from tracekit.job.stages.windows import whole
from tracekit.job.start_up import prefixes
from tracekit.job.steps.step_kinds import DISAGREE, device_steps
from tracekit.model import faults
from tracekit.model.keys import CAPTURE, looked_up
from tracekit.model.report import Metric, Section
from tracekit.model.tables.slots import CAUSE_TITLES, CPU_ACTIVITY_TITLES
from tracekit.model.trace import Measurements
from tracekit.model.units import show
from tracekit.pipeline.summary.screen import is_apart
from tracekit.pipeline.summary.unexplained_time import (
    Unexplained,
    are_rules_judged,
    unexplained_time,
)

WORTH_SAYING = 0.03
"""Unexplained time below this share of the step gets no sentence."""

NO_OPS = "between calls (ops were not recorded)"
"""Name of the time between ops if no op was recorded."""

TITLES: Mapping[str, str] = {
    **{cause: title for cause, (title, _) in CAUSE_TITLES.items()},
    **{activity: title for activity, (title, _) in CPU_ACTIVITY_TITLES.items()},
    "host_silent": "no host activity",
    "other": "launched but not started (cause unknown)",
}
"""The name of each cause in a sentence."""

FEWEST_STEPS = 3
"""With fewer steps, none counts as typical."""

OF_SOME_STEPS = frozenset(
    ("recompilation", "graph-capture", "start-up", "allocator-calls", "drift")
)
"""Rules on events that only some steps contain, which explain why these are longer."""


def disagreements(measured: Measurements) -> tuple[str, ...]:
    """Report windows that do not match their GPU work: it runs outside of them, or covers only a part of them."""
    return _of_some(measured, _disagreements)


def unexplained(measured: Measurements, sections: Sequence[Section]) -> tuple[str, ...]:
    """Describe the idle, waiting and step-to-step time that no finding covers, if it is large enough."""

    def parts(whom: Measurements) -> tuple[str, ...]:
        times = _of_captures(whom, unexplained_time(whom, sections))
        sentences = (_sentence(whom, each, sections) for each in times if each.ratio > WORTH_SAYING)
        longer_steps = _variation(whom, sections) if are_rules_judged(whom, sections) else ()
        return tuple(chain(sentences, longer_steps))

    return _of_some(measured, parts)


def unexplained_ratio(measured: Measurements, sections: Sequence[Section]) -> tuple[Metric, ...]:
    """Sum the idle and waiting share of the steps that no finding covers; empty if neither was measured."""

    def part(whom: Measurements) -> tuple[Metric, ...]:
        times = _of_captures(whom, [] if is_apart(whom) else unexplained_time(whom, sections))
        if not times:
            return ()
        ratio = sum(each.ratio for each in times)
        return (Metric("unexplained_ratio", ratio, "ratio", "lower", label="unexplained"),)

    return _of_some(measured, part)


def _of_captures(measured: Measurements, times: list[Unexplained]) -> list[Unexplained]:
    """Rescale the times to captures including their start-up, which is explained, like the shares of the headline."""
    of_runs = prefixes(measured)
    step_ns = float(job(measured).walls["wall_ns"].sum())
    if not of_runs or not step_ns:
        return times
    before_ns = sum(each.start_up_ns * job(measured).of(each.run).count for each in of_runs)
    longer = 1 + before_ns / step_ns
    return [replace(each, window_ns=each.window_ns * longer) for each in times]


def _of_some(measured: Measurements, part: Any) -> tuple[Any, ...]:
    """Evaluate one part of the summary; empty if it reads a table that failed or was not requested."""
    parts: tuple[Any, ...] = faults.sound(
        measured, lambda whom: faults.asked(whom, lambda m: tuple(part(m)), ()), ()
    )
    return parts


def _unit(measured: Measurements) -> str:
    """Name the windows in a sentence."""
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
    # A capture window is bounded by the work in it: it may begin after the launches of its work.
    is_marked = (rows["origin"] != "file").to_numpy(np.bool_)
    if float(rows["differ_ns"][is_marked].sum()) > DISAGREE * window_ns:
        inside, launched = (
            show(float(rows[name].mean()), "ns") for name in ("inside_ns", "launched_ns")
        )
        yield (
            f"GPUs are busy {inside} of a {unit} of {show(each, 'ns')}, but only {launched} with kernels launched in it: "
            f"the rest was launched in another {unit} or before the recording"
        )
        return
    yield from _apart(measured, rows, unit)


def _apart(measured: Measurements, rows: pd.DataFrame, unit: str) -> Iterator[str]:
    """Describe single windows with GPU work in only a part of them: when it ran, and how busy the GPUs were then."""
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
        f"GPU work covers {show(until_ns - from_ns, 'ns')} of the {unit} ({show(lasting, 'ns')}), starting "
        f"{show(max(from_ns, 0.0), 'ns')} into it; GPUs are busy {show(busy, 'ratio')} of that span"
    )


def _sentence(measured: Measurements, time: Unexplained, sections: Sequence[Section]) -> str:
    """Describe the size of unexplained time, and its largest part: cause, rank and stage."""
    part, cells = time.largest, time.cells
    cause = _cause(measured, part["cause"])
    what, largest = "idle time", [f"{show(part['ratio'], 'ratio')} {cause}"] if cause else []
    if time.kind == "waiting":
        what, largest = "waiting for collectives" if cause else "exposed communication", []
    if part["rank"] is not None and len(set(cells["rank"].dropna())) > 1:
        largest.append(f"rank {int(part['rank'])}")
    if cells["stage"].notna().any():
        largest.append(str(part["stage"] or "outside any stage"))
    sentence = f"{show(time.ratio, 'ratio')} {what} is unexplained"
    if largest:
        sentence += f": largest part {', '.join(largest)}"
    return sentence + (_reason(sections) if time.kind == "waiting" else "")


def _cause(measured: Measurements, cause: str | None) -> str:
    """Name a cause in a sentence."""
    is_between = cause == "host_none" and measured.row_count("host_counts") > 0
    if is_between and not measured["host_counts"]["leaf_count"].sum():
        return NO_OPS
    return TITLES.get(cause or "", cause or "")


def _reason(sections: Sequence[Section]) -> str:
    """Explain why communication has no finding, with the rule's reason for the largest exposure."""
    verdicts = [
        verdict
        for section in sections
        for verdict in section.verdicts
        if verdict.rule == "exposed-communication"
        if verdict.answer == "clear" and verdict.reason
    ]
    if not verdicts:
        return ""
    return f"; {max(verdicts, key=lambda verdict: verdict.price_ns or 0).reason}"


def _variation(measured: Measurements, sections: Sequence[Section]) -> Iterator[str]:
    """For each run, describe how far the mean step exceeds the median, if no finding covers it."""
    findings = [finding for section in sections for finding in section.findings]
    if any(finding.rule == "step-variance" for finding in findings):
        return
    covered = sum(f.recoverable_ns or 0 for f in findings if f.rule in OF_SOME_STEPS)
    for run, walls in each_run(job(measured).walls):
        # Scheduled stages, such as checkpoints, are not step variance.
        wall = walls["wall_ns"].to_numpy(np.float64) - planned_ns(measured, walls)
        if len(wall) < FEWEST_STEPS or _is_unlike(walls):
            continue
        median = float(np.median(wall))
        excess = float(np.maximum(wall - median, 0).mean()) - covered
        share = excess / float(wall.mean()) if wall.any() else 0.0
        if share <= WORTH_SAYING:
            continue
        longest = walls.iloc[int(wall.argmax())]
        step = whole_or_none(longest["step"])
        which = "the longest step" if step is None else f"step {step}"
        took = f"{which} takes {show(float(wall.max()), 'ns')}, the median {show(median, 'ns')}"
        stage = _longer_stage(measured, run, step)
        yield (
            f"{show(share, 'ratio')} step-to-step time is unexplained: {took}"
            f"{stage}{in_run(measured, run)}"
        )


def _is_unlike(walls: pd.DataFrame) -> bool:
    """Check whether the windows are captures of unlike processes, not repetitions of one step."""
    return bool(walls["step"].isna().all()) and len(set(walls["origin"])) > 1


def _longer_stage(measured: Measurements, run: object, step: int | None) -> str:
    """Find the stage of a step that most exceeds its median over steps, and the rank with the longest one."""
    rows = stage_rows(measured)
    rows = rows[same_text(rows["run"], run).to_numpy(np.bool_)]
    if step is None or not len(rows):
        return ""
    by = ["step", "canonical", "rank"]
    walls = grouped(rows, by, wall_ns=("dur_ns", "sum"))
    of_step = walls["step"].eq(step).fillna(value=False).to_numpy(np.bool_)
    usual = walls.groupby("canonical")["wall_ns"].median()
    there = walls[of_step]
    if not len(there):
        return ""
    over = there["wall_ns"].to_numpy(np.float64) - usual.reindex(there["canonical"]).to_numpy()
    row = there.iloc[int(over.argmax())]
    rank = "" if pd.isna(row["rank"]) else f", rank {int(row['rank'])}"
    return f", largest part {show(float(over.max()), 'ns')} in {row['canonical']}{rank}"
