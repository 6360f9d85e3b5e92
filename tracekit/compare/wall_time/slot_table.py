"""Exclusive time by key and step on both sides, with the remainder up to the wall time.

Steps are first averaged over the lanes of a role: devices, or processes without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time.attribution_rows import StageTimeChange
from tracekit.compare.work_units import has_no_steps
from tracekit.job.frames import (
    UNIT,
    clear_parts_of_numbered_steps,
    find_canonical_stages,
    is_from_epoch,
    summarize_job_steps,
)
from tracekit.job.stages.windows import read_undamaged_table
from tracekit.model.intervals import Intervals, intersect, merge_intervals
from tracekit.model.metrics import STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import CAPTURE, IN_RUN, left_join, number_frames_alike
from tracekit.model.trace import Measurements

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SLOT_KEYS = ["stage", "class", "cause", "op", "kernel"]
"""Columns that identify a row on both sides."""

STEP_END, REST, UNRECORDED, TWICE = "step_end", "rest", "unrecorded", "twice"
"""Classes of time that no lane accounts for.

In order: the longest rank minus the mean; other time that was not recorded; steps without any recording;
time that several files recorded (negative).
"""

RESIDUALS = (STEP_END, REST, UNRECORDED, TWICE)

_LANE = [*IN_RUN, "device"]
_FITS = 1e-3
"""Largest overlap of roles that still count as taking turns, as a share of the shorter one."""


StepKey = tuple[object, object, object]
"""Run, step number, and the part of the run if there is no number."""


@dataclass(frozen=True, slots=True)
class SlotHalf:
    """One side: time (ns) and count per key and step (keys × steps), with the run and wall time of each step."""

    ns: Floats
    count: Floats
    run: Ints
    wall: Floats

    @property
    def weights(self) -> Floats:
        """Weight of each step: runs have equal weight, and within a run its steps do."""
        return np.asarray(1.0 / (np.bincount(self.run)[self.run] * (int(self.run.max()) + 1)))


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Sorted keys of both sides (columns `KEYS`), both halves, and notes on how they were built.

    `stages` are the stages of each role that makes up the step.
    """

    keys: pd.DataFrame
    base: SlotHalf
    opt: SlotHalf
    notes: tuple[str, ...] = ()
    stages: tuple[StageTimeChange, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Steps of one side that count: run number, wall time and id of each."""

    side: ComparedSide
    run: Ints
    wall: Floats
    ids: tuple[StepKey, ...]


def build_slot_table(base: ComparedSide, opt: ComparedSide) -> SlotTable | str:
    """Build the slots of both sides, or the reason why there are none.

    Rows of a step add up to its wall time; a row of `RESIDUALS` covers time that lanes do not account for.
    """
    sides: list[tuple[CountedSteps, pd.DataFrame]] = []
    for side in (base, opt):
        steps = find_counted_steps(side)
        if isinstance(steps, str):
            return f"{side.name}: {steps}"
        rows = _average_slots_over_lanes(steps)
        if not len(rows):
            return f"{side.name}: no step holds recorded activity of a source without damage"
        sides.append((steps, rows))
    roles, notes = _choose_step_roles(sides)
    parts = []
    for number, (steps, rows) in enumerate(sides):
        of_roles = rows[rows["role_text"].isin(roles)]
        complete = pd.concat([of_roles, _measure_residual_time(steps, of_roles)], ignore_index=True)
        parts.append(complete.assign(half=number))
    both = pd.concat(parts, ignore_index=True)
    texts = both[SLOT_KEYS].astype(object).where(both[SLOT_KEYS].notna(), "")
    key_number = np.asarray(texts.groupby(SLOT_KEYS, sort=True).ngroup(), np.int64)
    keys = texts.drop_duplicates().sort_values(SLOT_KEYS, kind="stable", ignore_index=True)
    halves = []
    for number, (steps, _) in enumerate(sides):
        on_side = (both["half"] == number).to_numpy()
        halves.append(_make_slot_half(steps, both[on_side], key_number[on_side], len(keys)))
    return SlotTable(keys, halves[0], halves[1], tuple(notes), _measure_stage_times(both, halves))


def _make_slot_half(steps: CountedSteps, rows: pd.DataFrame, key_number: Ints, keys: int) -> SlotHalf:
    """Convert the rows of one side to matrices, keys × steps."""
    cell = key_number * len(steps.wall) + rows["unit"].to_numpy(np.int64)
    ns = _sum_matrix_cells(rows["ns"], cell, keys, len(steps.wall))
    count = _sum_matrix_cells(rows["count"], cell, keys, len(steps.wall))
    return SlotHalf(ns, count, steps.run, steps.wall)


def _sum_matrix_cells(values: pd.Series[Any], cell: Ints, keys: int, steps: int) -> Floats:
    """Sum the values of every cell of a matrix, keys × steps."""
    sums = np.bincount(cell, values.to_numpy(np.float64), minlength=keys * steps)
    return np.asarray(sums, np.float64).reshape(keys, steps)


def sum_rows_by_group(values: Floats, group: Ints, groups: int) -> Floats:
    """Sum the rows of every group."""
    sums = np.zeros((groups, values.shape[1]))
    np.add.at(sums, group, values)
    return sums


def _measure_stage_times(rows: pd.DataFrame, halves: Sequence[SlotHalf]) -> tuple[StageTimeChange, ...]:
    """Measure the exclusive time of every role and stage on its longest lane, in the mean step of both sides."""
    named = rows[rows["stage"].notna()].astype({"role_text": str, "stage": str})
    by = ["half", "unit", "role_text", "stage"]
    lanes = named.groupby([*by, "lane"])["exclusive_ns"].sum().groupby(by).max().reset_index()
    sums: dict[tuple[str, str], list[float]] = {}
    for number, half in enumerate(halves):
        longest = lanes[lanes["half"] == number]
        weighed = longest["exclusive_ns"] * half.weights[longest["unit"].to_numpy(np.int64)]
        for role, stage, ns in zip(longest["role_text"], longest["stage"], weighed, strict=True):
            sums.setdefault((role, stage), [0.0, 0.0])[number] += float(ns)
    return tuple(StageTimeChange(role or None, stage, *sums[role, stage]) for role, stage in sorted(sums))


def find_counted_steps(side: ComparedSide) -> CountedSteps | str:
    """Find the steps of a side that count, all of them measured; else the reason why there are none."""
    if has_no_steps(side):
        return "nothing marks a step: where the time of a unit of work went is not told"
    if (STEP_TIME, None, None) not in side.samples:
        return "a log tells no more than how long steps and stages last: give profiles as well"
    if side.errors:
        return f"an error of tracekit: {side.errors[0]}"
    if not side.measured:
        return "saved reports do not hold where time went: give the profiles, or what --save wrote"
    measured_walls = _collect_step_walls(side.measured)
    samples = side.samples[STEP_TIME, None, None]
    keys, runs, walls = [], [], []
    for number, (steps, values) in enumerate(zip(samples.steps, samples.values, strict=True)):
        for (run, step, part), wall in zip(steps, values, strict=True):
            key = make_step_id(run, step, part)
            if measured_walls.get(key) != {wall}:
                return f"run {run} was not measured here, or several inputs hold one of that name"
            keys.append(key)
            runs.append(number)
            walls.append(wall)
    return CountedSteps(side, np.array(runs, np.int64), np.array(walls, np.float64), tuple(keys))


def _collect_step_walls(measured: Iterable[Measurements]) -> dict[StepKey, set[float]]:
    """Collect the wall times of every measured step; several if inputs share a step name."""
    walls: dict[StepKey, set[float]] = {}
    for measurements in measured:
        rows = summarize_job_steps(measurements).walls[[*UNIT, "wall_ns"]]
        for run, step, part, wall in rows.itertuples(index=False, name=None):
            walls.setdefault(make_step_id(run, step, part), set()).add(float(wall))
    return walls


def make_step_id(run: object, step: Any, part: Any) -> StepKey:
    """Identify a step by its number, or by its part if it has no number."""
    if not pd.isna(step):
        return (run, int(step), None)
    return (run, None, None if pd.isna(part) else part)


def number_step_rows(rows: pd.DataFrame, steps: CountedSteps) -> pd.DataFrame:
    """Select the rows (of `units`) of steps that count, with `unit`, the number of their step."""
    place = {key: number for number, key in enumerate(steps.ids)}
    distinct = rows[[*UNIT]].drop_duplicates()
    numbers = [place.get(make_step_id(*key), -1) for key in distinct.itertuples(index=False, name=None)]
    distinct_key, row_key = number_frames_alike([*UNIT], distinct, rows)
    unit_of_key = np.empty(len(distinct), np.int64)
    unit_of_key[distinct_key] = numbers
    unit = unit_of_key[row_key]
    return rows[unit >= 0].assign(unit=unit[unit >= 0])


def _average_slots_over_lanes(steps: CountedSteps) -> pd.DataFrame:
    """Average the slots of counted steps over the lanes of each role: unit, role_text, `KEYS`, ns and count."""
    frames = [_select_counted_slots(measured, steps) for measured in steps.side.measured]
    rows = pd.concat(frames, ignore_index=True)
    if not len(rows):
        return rows
    on_device = rows["device"].notna()
    role_has_device = on_device.groupby(rows["role_text"]).transform("any")
    rows = rows[on_device | ~role_has_device].copy()
    (rows["lane"],) = number_frames_alike(["measured", *_LANE, "again"], rows)
    by = [rows["unit"], rows["role_text"]]
    lanes = rows["lane"].groupby(by).transform("nunique").to_numpy(np.float64)
    return rows.assign(ns=rows["exclusive_ns"] / lanes, count=rows["count"] / lanes)


def _select_counted_slots(measured: Measurements, steps: CountedSteps) -> pd.DataFrame:
    """Select the slots of one input in counted steps whose marks have the same origin as the step's wall time."""
    slots = clear_parts_of_numbered_steps(read_undamaged_table(measured, "slots"))
    slots = slots.assign(canonical=find_canonical_stages(slots, in_file=True))
    rows = number_step_rows(slots, steps)
    keys = [*CAPTURE, "step", "occurrence"]
    recorded = measured["steps"][[*keys, "origin", "ts_ns", "dur_ns"]]
    rows = left_join(rows, recorded, keys, optional=["pid", "step"])
    walls = summarize_job_steps(measured).walls[[*UNIT, "origin"]]
    origins = {}
    for run, step, part, origin in walls.itertuples(index=False, name=None):
        origins[make_step_id(run, step, part)] = origin
    counted_origin = np.array([origins.get(id_) for id_ in steps.ids], object)
    rows = rows[(rows["origin"] == counted_origin[rows["unit"]]).to_numpy(bool)]
    return rows.assign(
        measured=id(measured),
        again=rows["occurrence"].where(rows["origin"] == "profiler", 0),
        role_text=rows["role"].where(rows["role"].notna(), ""),
        stage=rows["canonical"].astype(object).where(rows["canonical"].notna(), None),
        timed=is_from_epoch(measured, rows),
    )


def _measure_residual_time(steps: CountedSteps, rows: pd.DataFrame) -> pd.DataFrame:
    """Measure the wall time of every step that rows leave over; one row per step where it is not zero."""
    unit = rows["unit"].to_numpy(np.int64)
    residual = steps.wall - np.bincount(unit, rows["ns"].to_numpy(np.float64), len(steps.wall))
    profiled = np.zeros(len(steps.wall), bool)
    profiled[unit[(rows["origin"] == "profiler").to_numpy(bool)]] = True
    has_rows = np.zeros(len(steps.wall), bool)
    has_rows[unit] = True
    kind = np.where(profiled, STEP_END, REST).astype(object)
    kind[~has_rows] = UNRECORDED
    kind[residual < 0] = TWICE
    left = np.flatnonzero(residual != 0)
    return pd.DataFrame({"unit": left, "class": kind[left], "ns": residual[left], "count": 0.0})


def _choose_step_roles(sides: Sequence[tuple[CountedSteps, pd.DataFrame]]) -> tuple[list[str], list[str]]:
    """Choose the roles that make up the step: those that take turns, the longest first.

    Roles that run concurrently cannot all add up to the step; the longest role with a device represents them.
    The second result is a note on the roles left out.
    """
    totals: dict[str, float] = {}
    has_device: dict[str, bool] = {}
    for steps, rows in sides:
        for name, of_role in rows.groupby("role_text"):
            role = str(name)
            totals[role] = totals.get(role, 0.0) + of_role["ns"].sum() / len(steps.wall)
            on_device = bool(of_role["device"].notna().any())
            has_device[role] = has_device.get(role, False) or on_device
    order = sorted(totals, key=lambda role: (not has_device[role], -totals[role], role))
    counted: list[str] = order[:1]
    left_out: list[str] = []
    for role in order[1:]:
        turns = all(_do_roles_take_turns(steps, rows, counted, role) for steps, rows in sides)
        (counted if turns else left_out).append(role)
    if not left_out:
        return counted, []
    note = (
        f"roles work at the same time: the step is told by {_join_role_names(counted)},"
        f" not by {_join_role_names(left_out)}"
    )
    return counted, [note]


def _join_role_names(roles: Sequence[str]) -> str:
    """Join the names of roles."""
    return ", ".join(role or "(no role)" for role in roles)


def _do_roles_take_turns(steps: CountedSteps, rows: pd.DataFrame, roles: list[str], role: str) -> bool:
    """Check whether a role and `roles` fit into each step without overlap, as far as clocks tell."""
    of_role, of_roles = rows[rows["role_text"] == role], rows[rows["role_text"].isin(roles)]
    both = pd.concat([of_role, of_roles])
    total = np.bincount(both["unit"], both["ns"].to_numpy(np.float64), len(steps.wall))
    if (total > steps.wall * (1 + _FITS)).any():
        return False
    if not both["timed"].all():
        return True
    for unit in np.intersect1d(of_role["unit"], of_roles["unit"]):
        window = _merge_step_windows(of_role[of_role["unit"] == unit])
        windows = _merge_step_windows(of_roles[of_roles["unit"] == unit])
        if intersect(window, windows).total > _FITS * min(window.total, windows.total):
            return False
    return True


def _merge_step_windows(rows: pd.DataFrame) -> Intervals:
    """Merge the windows of the steps of these rows over all lanes."""
    spans = rows[["ts_ns", "dur_ns"]].drop_duplicates()
    start = spans["ts_ns"].to_numpy(np.int64)
    return merge_intervals(start, start + spans["dur_ns"].to_numpy(np.int64))
