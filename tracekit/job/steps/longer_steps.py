"""Reasons why some steps of a run are longer: step times under a host that runs ahead, and longer host pauses."""

from __future__ import annotations

import numpy as np

from tracekit.job.frames import UNIT, clear_redundant_parts, name_stages, summarize_step_walls
from tracekit.job.steps.steady_steps import Steps, drop_left_out_steps
from tracekit.job.steps.step_values import list_values_and_marks
from tracekit.model.metrics import RAN_AHEAD, STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import mask_value
from tracekit.model.tables.frame import Frame, max_of, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

AHEAD_SHARE = 0.5
"""Share of its steps from which on the host of a run counts as running ahead."""

SHORTEST_NS = 1_000_000
"""Shortest pause that does not look like Python between ops."""

PAUSE_PHRASES = {
    "host_loader": "the host waits for its data loader for {} more",
    "host_gc": "the host collects garbage for {} more",
    "host_sync": "the host waits in synchronizing calls for {} more, with the GPU idle",
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


def measure_device_walls(measured: Measurements, left_out: Steps) -> Frame:
    """Measure the walls of the steps that count; if the host runs ahead, from the end of one step's work to the next.

    A host that runs ahead takes long only where it waits for its device, so its windows do not show single steps.
    `measured` has all steps.
    """
    ahead = _find_ahead_runs(measured)
    kept = tuple(step for step in left_out if not (step.ran_ahead and step.run in ahead))
    walls = summarize_step_walls(drop_left_out_steps(measured, kept)).walls
    if not ahead or not len(walls):
        return walls
    times = _measure_completion_times(measured)
    times = walls.select(*UNIT).join(times, UNIT, "left", optional=UNIT)
    is_ahead = np.array([(run or "") in ahead for run in walls.values("run")]) & ~times.is_missing("wall_ns")
    return walls.with_columns(wall_ns=np.where(is_ahead, times.integers("wall_ns"), walls["wall_ns"]))


def _find_ahead_runs(measured: Measurements) -> set[str]:
    """Find the runs whose host runs ahead in most steps."""
    marks = list_values_and_marks(measured)
    counts = []
    for name in (RAN_AHEAD, STEP_TIME):
        runs = [run or "" for run in marks.filter(marks.equals("name", name)).distinct(*UNIT).values("run")]
        counts.append({run: runs.count(run) for run in set(runs)})
    ahead, steps_of = counts
    return {run for run, count in ahead.items() if count >= AHEAD_SHARE * steps_of.get(run, 0)}


def _measure_completion_times(measured: Measurements) -> Frame:
    """Measure UNIT and wall_ns per unit: the longest process, from the end of its previous step to its own end.

    A step ends when its host window is over and all work that it launched is done.
    """
    rows = clear_redundant_parts(measured.frame("steps"))
    rows = rows.filter(~rows.is_missing("work_end_ns"))
    rows = rows.with_columns(capture=rows.group_by(*CAPTURE).number).sort("capture", "ts_ns")
    capture, start = rows["capture"], rows["ts_ns"]
    host_end = start + rows["dur_ns"]
    end = np.maximum(host_end, rows.integers("work_end_ns"))
    begin = start.copy()
    # Only steps that follow at once: time between two windows belongs to neither.
    follows = (capture[1:] == capture[:-1]) & (start[1:] - host_end[:-1] <= SHORTEST_NS)
    begin[1:][follows] = end[:-1][follows]
    return rows.group_by(*UNIT).agg(wall_ns=max_of(end - begin))


# Longer pauses of the host


def find_longer_pause(measured: Measurements, steps: Frame, long_steps: Frame) -> LongerPause | None:
    """Find the longest extra pause of a host in some steps of a run over its other steps, while its GPU is idle.

    Looks at the process that pauses longest. None where no pause is long enough, or `long_steps` are all steps.
    """
    if not len(steps) or not measured.has("slots"):
        return None
    rows = _list_pause_slots(measured, steps.values("run")[0])
    rows = rows.filter(rows.is_among(steps, UNIT, optional=UNIT))
    is_long = rows.is_among(long_steps, UNIT, optional=UNIT)
    if not len(rows) or is_long.all() or not is_long.any():
        return None
    count = len(long_steps), len(steps) - len(long_steps)
    time = rows["exclusive_ns"]
    weight = np.where(is_long, time / max(count[0], 1), -time / max(count[1], 1))
    members = rows.with_columns(weight=weight).group_by(*CAPTURE, "device")
    more = np.bincount(members.number, weight)
    chosen = members.frame.filter(members.number == int(more.argmax()))
    parts = chosen.group_by("canonical", "cause").agg(more_ns=sum_of("weight"))
    largest = int(parts["more_ns"].argmax())
    if float(more.max()) < SHORTEST_NS:
        return None
    stage, cause = (parts.values(name)[largest] for name in ("canonical", "cause"))
    where = f" in {stage}" if stage else ""
    words = PAUSE_PHRASES[cause].format(f"{format_quantity(float(parts['more_ns'][largest]), 'ns')}{where}")
    return LongerPause(float(more.max()), stage, words.replace(f"{where} more", f" more{where}"))


def _list_pause_slots(measured: Measurements, run: str | None) -> Frame:
    """List the rows of `slots` of a run in which a process idles for its host, with `canonical`."""
    slots = measured.columns("slots")
    chosen = mask_value(slots["class"], "idle") | mask_value(slots["class"], "no_op")
    rows = Frame.from_columns(slots.where(chosen & mask_value(slots["run"], run)))
    is_known = rows.is_in("cause", {cause for cause in PAUSE_PHRASES if cause})
    rows = clear_redundant_parts(rows.filter(is_known | rows.equals("class", "no_op")))
    return rows.with_columns(canonical=name_stages(rows, in_file=True))
