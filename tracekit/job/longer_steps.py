"""Reasons why some steps of a run are longer: step times under a host that runs ahead, and longer host pauses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import (
    UNIT,
    clear_parts_of_numbered_steps,
    find_canonical_stages,
    select_distinct_rows,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.steps.steady_steps import Steps, drop_left_out_steps
from tracekit.job.steps.step_values import list_marked_step_values
from tracekit.job.stragglers.collective_waits import estimate_wait_savings
from tracekit.model.lazy_pandas import pd
from tracekit.model.metrics import RAN_AHEAD, STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.tables.arrays import mask_value
from tracekit.model.tables.keys import CAPTURE, find_matching_rows, group_rows_by, mask_matching_rows, sum_by_group
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

AHEAD_SHARE = 0.5
"""Share of its steps from which on the host of a run counts as running ahead."""

SHORTEST_NS = 1_000_000
"""Shortest pause that does not look like Python between ops."""

PAUSE_PHRASES = {
    "host_loader": "the host waits for its data loader for {} more",
    "host_gc": "the host collects garbage for {} more",
    "host_sync": "the host waits in synchronising calls for {} more, with the GPU idle",
    "host_overhead": "the profiler or module loading takes {} more",
    "host_op": "the host is busy in ops and calls for {} more, with the GPU idle",
    "host_code": "the host runs Python for {} more, with the GPU idle",
    "host_none": "the host is between ops for {} more, with the GPU idle",
    "host_silent": "no host activity is recorded for {} more",
    None: "no op is recorded for {} more",
}
"""Phrases for a pause by cause of idle time; None: there is no GPU."""


@dataclass(frozen=True, slots=True)
class LongerPause:
    """How much longer one process pauses in some steps than in the others: `more_ns` per step, mostly in `stage`."""

    more_ns: float
    stage: str | None
    words: str


# Step times


def measure_device_walls(measured: Measurements, left_out: Steps) -> pd.DataFrame:
    """Measure the walls of the steps that count; if the host runs ahead, from the end of one step's work to the next.

    A host that runs ahead takes long only where it waits for its device, so its windows do not show single steps.
    `measured` has all steps.
    """
    ahead = _find_ahead_runs(measured)
    kept = tuple(step for step in left_out if not (step.ran_ahead and step.run in ahead))
    walls = summarize_job_steps(drop_left_out_steps(measured, kept)).walls
    if not ahead or not len(walls):
        return walls
    times = _measure_completion_times(measured)
    is_ahead = walls["run"].map(lambda run: (to_text_or_none(run) or "") in ahead).to_numpy(np.bool_)
    place = find_matching_rows(walls, times, UNIT, optional=UNIT)
    known = np.flatnonzero(is_ahead & (place >= 0))
    wall_ns = walls["wall_ns"].to_numpy(np.int64, copy=True)
    wall_ns[known] = times["wall_ns"].to_numpy(np.int64)[place[known]]
    return walls.assign(wall_ns=wall_ns)


def _find_ahead_runs(measured: Measurements) -> set[str]:
    """Find the runs whose host runs ahead in most steps."""
    marks = measured.derived(list_marked_step_values)
    counts = []
    for name in (RAN_AHEAD, STEP_TIME):
        steps = select_distinct_rows(marks[(marks["name"] == name).to_numpy(np.bool_)], UNIT)
        runs = [to_text_or_none(run) or "" for run in steps["run"]]
        counts.append({run: runs.count(run) for run in set(runs)})
    ahead, steps_of = counts
    return {run for run, count in ahead.items() if count >= AHEAD_SHARE * steps_of.get(run, 0)}


def _measure_completion_times(measured: Measurements) -> pd.DataFrame:
    """Measure UNIT and wall_ns per unit: the longest process, from the end of its previous step to its own end.

    A step ends when its host window is over and all work that it launched is done.
    """
    rows = clear_parts_of_numbered_steps(measured["steps"])
    rows = rows[rows["work_end_ns"].notna().to_numpy(np.bool_)]
    capture, _ = group_rows_by(rows, CAPTURE)
    start = rows["ts_ns"].to_numpy(np.int64)
    order = np.lexsort((start, capture))
    rows, capture, start = rows.iloc[order], capture[order], start[order]
    host_end = start + rows["dur_ns"].to_numpy(np.int64)
    end = np.maximum(host_end, rows["work_end_ns"].to_numpy(np.int64))
    begin = start.copy()
    # Only steps that follow at once: time between two windows belongs to neither.
    follows = (capture[1:] == capture[:-1]) & (start[1:] - host_end[:-1] <= SHORTEST_NS)
    begin[1:][follows] = end[:-1][follows]
    unit, first = group_rows_by(rows, UNIT)
    wall_ns = np.zeros(len(first), np.int64)
    np.maximum.at(wall_ns, unit, end - begin)
    return rows[[*UNIT]].iloc[first].reset_index(drop=True).assign(wall_ns=wall_ns)


# Longer pauses of the host


def find_longer_pause(measured: Measurements, steps: pd.DataFrame, long_steps: pd.DataFrame) -> LongerPause | None:
    """Find the longest extra pause of a host in some steps of a run over its other steps, while its GPU is idle.

    Looks at the process that pauses longest. None where no pause is long enough, or `long_steps` are all steps.
    """
    if not len(steps) or not measured.has("slots"):
        return None
    rows = _list_pause_slots(measured, to_text_or_none(steps["run"].iloc[0]))
    is_long = mask_matching_rows(rows, long_steps, UNIT)
    rows, is_long = _select_slots_of_steps(rows, is_long, steps)
    if not len(rows) or is_long.all() or not is_long.any():
        return None
    count = len(long_steps), len(steps) - len(long_steps)
    time = rows["exclusive_ns"].to_numpy(np.int64)
    weight = np.where(is_long, time / max(count[0], 1), -time / max(count[1], 1))
    member, _ = group_rows_by(rows, [*CAPTURE, "device"])
    more = np.bincount(member, weight)
    is_chosen = member == int(more.argmax())
    rows, weight = rows[is_chosen], weight[is_chosen]
    part, first = group_rows_by(rows, ["canonical", "cause"])
    more_of_part = np.bincount(part, weight)
    largest = int(more_of_part.argmax())
    if float(more.max()) < SHORTEST_NS:
        return None
    stage, cause = (to_text_or_none(rows[name].iloc[first[largest]]) for name in ("canonical", "cause"))
    where = f" in {stage}" if stage else ""
    words = PAUSE_PHRASES[cause].format(f"{format_quantity(float(more_of_part[largest]), 'ns')}{where}")
    return LongerPause(float(more.max()), stage, words.replace(f"{where} more", f" more{where}"))


def _list_pause_slots(measured: Measurements, run: str | None) -> pd.DataFrame:
    """List the rows of `slots` of a run in which a process idles for its host, with `canonical`."""
    slots = measured.columns("slots")
    chosen = mask_value(slots["class"], "idle") | mask_value(slots["class"], "no_op")
    rows = clear_parts_of_numbered_steps(slots.where(chosen & mask_value(slots["run"], run)).judged())
    is_known = rows["cause"].isin([cause for cause in PAUSE_PHRASES if cause]).to_numpy(np.bool_)
    rows = rows[is_known | (rows["class"] == "no_op").to_numpy(np.bool_)].reset_index(drop=True)
    return rows.assign(canonical=find_canonical_stages(rows, in_file=True))


def _select_slots_of_steps(rows: pd.DataFrame, is_long: Bools, steps: pd.DataFrame) -> tuple[pd.DataFrame, Bools]:
    """Select the rows of these steps, with their marks."""
    chosen = mask_matching_rows(rows, steps, UNIT)
    return rows[chosen].reset_index(drop=True), is_long[chosen]


# Time that findings of causes count


def list_time_counted_elsewhere(
    measured: Measurements, long_steps: pd.DataFrame, pause: LongerPause | None, steps: int
) -> Iterator[Metric]:
    """List the parts of the longer steps that findings on pauses and late ranks already count."""
    if pause is not None:
        pause_ns = round(pause.more_ns * len(long_steps) / steps)
        yield make_evidence_metric("pause_ns", pause_ns, "of it a longer pause of the host, per step")
    saved = estimate_wait_savings(measured)
    place = find_matching_rows(saved, long_steps, UNIT, optional=UNIT)
    saved_ns = saved["saved_ns"].to_numpy(np.int64)
    waited = sum_by_group(place, saved_ns, len(long_steps))
    usual = float(np.median(saved_ns[place < 0])) if (place < 0).any() else 0.0
    late_ns = round(float(np.maximum(waited - usual, 0).sum()) / steps)
    if late_ns:
        yield make_evidence_metric("late_ns", late_ns, "of it waits for late ranks, per step")
