"""Where the time of every step of both sides went: exclusive time by key and step, and what is left to the wall.

A step is reduced over ranks first: the mean over the lanes (devices, or processes without one) of a role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.compare.origins import StageTime
from tracekit.compare.sides import Side
from tracekit.compare.work_units import without_steps
from tracekit.job.frames import UNIT, canonical_stages, from_epoch, job, plain, units
from tracekit.job.metric_kinds import STEP_TIME
from tracekit.job.stage_windows import whole
from tracekit.model.intervals import Intervals, intersect, union
from tracekit.model.keys import CAPTURE, IN_RUN, looked_up, numbered_alike
from tracekit.model.trace import Measurements

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KEYS = ["stage", "class", "cause", "op", "kernel"]
"""What tells one row from another, on both sides alike."""

STEP_END, REST, UNRECORDED, TWICE = "step_end", "rest", "unrecorded", "twice"
"""Classes of what no lane accounts for: the longest rank beyond the mean one; other time that none recorded;
steps of which nothing was recorded; time that several files tell of (below zero)."""

RESIDUALS = (STEP_END, REST, UNRECORDED, TWICE)

_LANE = [*IN_RUN, "device"]
_FITS = 1e-3
"""Roles take turns where what they share is at most this part of the shorter."""


@dataclass(frozen=True, slots=True)
class Half:
    """One side: ns and counts of every key in every step (keys × steps), the run of each step, its wall in ns."""

    ns: Floats
    count: Floats
    run: Ints
    wall: Floats

    @property
    def weights(self) -> Floats:
        """What each step weighs: runs weigh alike, and within one its steps."""
        return np.asarray(1.0 / (np.bincount(self.run)[self.run] * (int(self.run.max()) + 1)))


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The keys of both sides in order (columns `KEYS`), both halves, and what to say of how they were made.

    `stages` are the stages of each role that makes up the step.
    """

    keys: pd.DataFrame
    base: Half
    opt: Half
    notes: tuple[str, ...] = ()
    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one side that count: number of run and wall of each, and where they were measured."""

    side: Side
    run: Ints
    wall: Floats
    ids: tuple[tuple[object, object, object], ...]


def slot_table(base: Side, opt: Side) -> SlotTable | str:
    """The slots of both sides, or in words why there are none.

    Rows of a step add up to its wall, with a row of `RESIDUALS` where lanes do not account for all of it.
    """
    found = []
    for side in (base, opt):
        steps = counted_steps(side)
        if isinstance(steps, str):
            return f"{side.name}: {steps}"
        rows = _rows(steps)
        if not len(rows):
            return f"{side.name}: no step holds recorded activity of a source without damage"
        found.append((steps, rows))
    chosen, notes = _roles(found)
    parts = []
    for number, (steps, rows) in enumerate(found):
        own = rows[rows["role_text"].isin(chosen)]
        parts.append(pd.concat([own, _residual(steps, own)], ignore_index=True).assign(half=number))
    both = pd.concat(parts, ignore_index=True)
    texts = both[KEYS].astype(object).where(both[KEYS].notna(), "")
    place = np.asarray(texts.groupby(KEYS, sort=True).ngroup(), np.int64)
    keys = texts.drop_duplicates().sort_values(KEYS, kind="stable", ignore_index=True)
    halves = []
    for which, (steps, _) in enumerate(found):
        mine = (both["half"] == which).to_numpy()
        at = place[mine] * len(steps.wall) + both["unit"].to_numpy(np.int64)[mine]
        size, shape = len(keys) * len(steps.wall), (len(keys), len(steps.wall))
        sums = [
            np.asarray(
                np.bincount(at, both[name].to_numpy(np.float64)[mine], minlength=size), np.float64
            ).reshape(shape)
            for name in ("ns", "count")
        ]
        halves.append(Half(sums[0], sums[1], steps.run, steps.wall))
    return SlotTable(keys, halves[0], halves[1], tuple(notes), _stage_times(both, halves))


def _stage_times(rows: pd.DataFrame, halves: Sequence[Half]) -> tuple[StageTime, ...]:
    """The exclusive time of every role and stage on its longest lane, in the mean step of both sides."""
    named = rows[rows["stage"].notna()].astype({"role_text": str, "stage": str})
    by = ["half", "unit", "role_text", "stage"]
    lanes = named.groupby([*by, "lane"])["exclusive_ns"].sum().groupby(by).max().reset_index()
    sums: dict[tuple[str, str], list[float]] = {}
    for which, half in enumerate(halves):
        mine = lanes[lanes["half"] == which]
        own = mine["exclusive_ns"] * half.weights[mine["unit"].to_numpy(np.int64)]
        for role, stage, ns in zip(mine["role_text"], mine["stage"], own, strict=True):
            sums.setdefault((role, stage), [0.0, 0.0])[which] += float(ns)
    return tuple(StageTime(role or None, stage, *sums[role, stage]) for role, stage in sorted(sums))


def counted_steps(side: Side) -> Steps | str:
    """The steps of a side that count, all of them measured; else why that is not so."""
    if without_steps(side):
        return "nothing marks a step: where the time of a unit of work went is not told"
    if (STEP_TIME, None, None) not in side.samples:
        return "a log tells no more than how long steps and stages last: give profiles as well"
    if side.errors:
        return f"an error of tracekit: {side.errors[0]}"
    if not side.measured:
        return "saved reports do not hold where time went: give the profiles, or what --save wrote"
    known: dict[tuple[object, object, object], set[float]] = {}
    for measured in side.measured:
        walls = job(measured).walls
        for run, step, part, wall in zip(*(walls[n] for n in (*UNIT, "wall_ns")), strict=True):
            known.setdefault(step_id(run, step, part), set()).add(float(wall))
    samples = side.samples[STEP_TIME, None, None]
    ids, runs, wall = [], [], []
    for number, (steps, values) in enumerate(zip(samples.steps, samples.values, strict=True)):
        for (run, step, part), value in zip(steps, values, strict=True):
            one = step_id(run, step, part)
            if known.get(one) != {value}:
                return f"run {run} was not measured here, or several inputs hold one of that name"
            ids.append(one)
            runs.append(number)
            wall.append(value)
    return Steps(side, np.array(runs, np.int64), np.array(wall, np.float64), tuple(ids))


def step_id(run: object, step: Any, part: Any) -> tuple[object, object, object]:
    """What one step is known by: its number, the part only where it has none."""
    if pd.isna(step):
        return (run, None, None if pd.isna(part) else part)
    return (run, int(step), None)


def in_units(rows: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """The rows (of `units`) of steps that count, with `unit`: the number of their step."""
    place = {one: number for number, one in enumerate(steps.ids)}
    pairs = rows[[*UNIT]].drop_duplicates()
    numbers = [place.get(step_id(*key), -1) for key in pairs.itertuples(index=False, name=None)]
    told, asked = numbered_alike([*UNIT], pairs, rows)
    of = np.empty(len(pairs), np.int64)
    of[told] = numbers
    unit = of[asked]
    return rows[unit >= 0].assign(unit=unit[unit >= 0])


def _rows(steps: Steps) -> pd.DataFrame:
    """Slots of the steps that count: unit, role_text, `KEYS`, ns and count, means over the lanes of each role."""
    frames = [_measured_rows(measured, steps) for measured in steps.side.measured]
    rows = pd.concat(frames, ignore_index=True)
    if not len(rows):
        return rows
    on_device = rows["device"].notna()
    role_has = on_device.groupby(rows["role_text"]).transform("any")
    rows = rows[on_device | ~role_has].copy()
    (rows["lane"],) = numbered_alike(["measured", *_LANE, "again"], rows)
    by = [rows["unit"], rows["role_text"]]
    lanes = rows["lane"].groupby(by).transform("nunique").to_numpy(np.float64)
    return rows.assign(ns=rows["exclusive_ns"] / lanes, count=rows["count"] / lanes)


def _measured_rows(measured: Measurements, steps: Steps) -> pd.DataFrame:
    slots = units(whole(measured, "slots"))
    slots = slots.assign(canonical=canonical_stages(slots, in_file=True))
    rows = in_units(slots, steps)
    recorded = plain(measured["steps"])
    keys = [*CAPTURE, "step", "occurrence"]
    recorded = recorded[[*keys, "origin", "ts_ns", "dur_ns"]]
    rows = looked_up(rows, recorded, keys, optional=["pid", "step"])
    walls = job(measured).walls
    origin = {
        step_id(*key): how
        for *key, how in walls[[*UNIT, "origin"]].itertuples(index=False, name=None)
    }
    wanted = np.array([origin.get(one) for one in steps.ids], object)
    rows = rows[(rows["origin"] == wanted[rows["unit"]]).to_numpy(bool)]
    return rows.assign(
        measured=id(measured),
        again=rows["occurrence"].where(rows["origin"] == "profiler", 0),
        role_text=rows["role"].where(rows["role"].notna(), ""),
        stage=rows["canonical"].astype(object).where(rows["canonical"].notna(), None),
        timed=from_epoch(measured, rows),
    )


def _residual(steps: Steps, rows: pd.DataFrame) -> pd.DataFrame:
    """What rows leave of the wall of every step, a row each where that is not nothing."""
    unit = rows["unit"].to_numpy(np.int64)
    rest = steps.wall - np.bincount(unit, rows["ns"].to_numpy(np.float64), len(steps.wall))
    profiled = np.zeros(len(steps.wall), bool)
    profiled[unit[(rows["origin"] == "profiler").to_numpy(bool)]] = True
    told = np.zeros(len(steps.wall), bool)
    told[unit] = True
    kind = np.where(profiled, STEP_END, REST).astype(object)
    kind[~told] = UNRECORDED
    kind[rest < 0] = TWICE
    at = np.flatnonzero(rest != 0)
    return pd.DataFrame({"unit": at, "class": kind[at], "ns": rest[at], "count": 0.0})


def _roles(found: Sequence[tuple[Steps, pd.DataFrame]]) -> tuple[list[str], list[str]]:
    """(the roles that make up the step, what to say of the others): those that take turns, the longest first.

    Roles at work at the same time cannot all add up to the step: of these the longest with a device counts.
    """
    totals: dict[str, float] = {}
    device: dict[str, bool] = {}
    for steps, rows in found:
        for name, mine in rows.groupby("role_text"):
            role = str(name)
            totals[role] = totals.get(role, 0.0) + mine["ns"].sum() / len(steps.wall)
            device[role] = device.get(role, False) or bool(mine["device"].notna().any())
    order = sorted(totals, key=lambda role: (not device[role], -totals[role], role))
    chosen: list[str] = order[:1]
    for role in order[1:]:
        if all(_take_turns(steps, rows, chosen, role) for steps, rows in found):
            chosen.append(role)
    left = [role or "(no role)" for role in order if role not in chosen]
    if not left:
        return chosen, []
    said = f"roles work at the same time: the step is told by {', '.join(r or '(no role)' for r in chosen)}, not by"
    return chosen, [f"{said} {', '.join(left)}"]


def _take_turns(steps: Steps, rows: pd.DataFrame, chosen: list[str], role: str) -> bool:
    """Whether a role and those that were chosen fit into each step, and overlap in none as far as clocks tell."""
    mine, others = rows[rows["role_text"] == role], rows[rows["role_text"].isin(chosen)]
    both = pd.concat([mine, others])
    total = np.bincount(both["unit"], both["ns"].to_numpy(np.float64), len(steps.wall))
    if (total > steps.wall * (1 + _FITS)).any():
        return False
    if not both["timed"].all():
        return True
    for unit in np.intersect1d(mine["unit"], others["unit"]):
        one, two = (_windows(some[some["unit"] == unit]) for some in (mine, others))
        if intersect(one, two).total > _FITS * min(one.total, two.total):
            return False
    return True


def _windows(rows: pd.DataFrame) -> Intervals:
    """When the steps of these rows were, over all lanes."""
    spans = rows[["ts_ns", "dur_ns"]].drop_duplicates()
    start = spans["ts_ns"].to_numpy(np.int64)
    return union(start, start + spans["dur_ns"].to_numpy(np.int64))
