"""Exclusive time by key and step on both sides, with the remainder up to the wall time.

Steps are first averaged over the lanes of a role: devices, or processes without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum

import numpy as np
import numpy.typing as npt

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time.attribution_rows import StageTimeChange
from tracekit.compare.wall_time.renamed_kernels import rename_replaced_kernels
from tracekit.compare.work_units import WINDOW_KEY, has_no_steps
from tracekit.job.frames import UNIT, has_epoch_times, keep_undamaged_rows, name_stages, summarize_step_walls
from tracekit.job.steps.metric_samples import Key, MetricSamples
from tracekit.model.intervals import Intervals, intersect, merge_intervals
from tracekit.model.metrics import LAUNCH_CADENCE, PER_WORK, RANGE_CADENCE, STAGE_TIME, STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.frame import Frame, concat, count_distinct_of, max_of, sum_of, texts
from tracekit.model.tables.keys import CAPTURE, IN_RUN
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

_FITS = 1e-3
"""Largest overlap of roles that still count as taking turns, as a share of the shorter one."""


STEP_KEY: Key = (STEP_TIME, None, None)

SHARED_UNITS = (RANGE_CADENCE, LAUNCH_CADENCE, STAGE_TIME, *(name for name, _ in PER_WORK.values()))
"""Metrics whose samples are units of work that recordings consist of."""

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

    keys: Frame
    base: SlotHalf
    opt: SlotHalf
    notes: tuple[str, ...] = ()
    stages: tuple[StageTimeChange, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Steps of one side that count: run number, wall time and id of each.

    Without step marks they are recordings, `shares` the part of each that one unit of work takes, and `stage` the
    role and stage that is the unit; None for other units.
    """

    side: ComparedSide
    run: Ints
    wall: Floats
    ids: tuple[StepKey, ...]
    shares: Floats | None = None
    stage: tuple[str | None, str] | None = None


def build_slot_table(base: ComparedSide, opt: ComparedSide, unit: Key = STEP_KEY) -> SlotTable | str:
    """Build the slots of both sides, or the reason why there are none.

    Rows of a step, or of one `unit` of work without step marks, add up to its wall time; a row of `RESIDUALS`
    covers time that lanes do not account for.
    """
    sides: list[tuple[CountedSteps, Frame]] = []
    for side in (base, opt):
        steps = find_counted_steps(side, unit)
        if isinstance(steps, str):
            return f"{side.name}: {steps}"
        rows = _average_slots_over_lanes(steps)
        if not len(rows):
            return f"{side.name}: no step has activity from an undamaged source"
        sides.append((steps, rows))
    roles, notes = _choose_step_roles(sides)
    parts = []
    for number, (steps, rows) in enumerate(sides):
        of_roles = rows.filter(rows.is_in("role_text", roles))
        complete = concat([of_roles, _measure_residual_time(steps, of_roles)])
        parts.append(complete.with_columns(half=number))
    both = concat(parts)
    both = both.with_columns(**{name: _fill_missing_texts(both[name]) for name in SLOT_KEYS})
    both = rename_replaced_kernels(both)
    both = both.with_columns(key=both.dense_rank(*SLOT_KEYS))
    keys = both.distinct(*SLOT_KEYS).select(*SLOT_KEYS).sort(*SLOT_KEYS)
    halves = []
    for number, (steps, _) in enumerate(sides):
        halves.append(_make_slot_half(steps, both.filter(both["half"] == number), len(keys)))
    return SlotTable(keys, halves[0], halves[1], tuple(notes), _measure_stage_times(both, halves))


def _fill_missing_texts(column: Coded) -> Coded:
    """Replace missing texts by empty ones."""
    return select_rows(texts([*column.texts, ""]), column.codes)


def _make_slot_half(steps: CountedSteps, rows: Frame, keys: int) -> SlotHalf:
    """Convert the rows of one side to matrices, keys × steps."""
    shape = (keys, len(steps.wall))
    ns, count = np.zeros(shape), np.zeros(shape)
    np.add.at(ns, (rows["key"], rows["unit"]), rows["ns"])
    np.add.at(count, (rows["key"], rows["unit"]), rows["count"])
    return SlotHalf(ns, count, steps.run, steps.wall)


def sum_rows_by_group(values: Floats, group: Ints, groups: int) -> Floats:
    """Sum the rows of every group."""
    sums = np.zeros((groups, values.shape[1]))
    np.add.at(sums, group, values)
    return sums


def _measure_stage_times(rows: Frame, halves: Sequence[SlotHalf]) -> tuple[StageTimeChange, ...]:
    """Measure the exclusive time of every role and stage on its longest lane, in the mean step of both sides."""
    by = ("half", "unit", "role_text", "stage")
    named = rows.filter(~rows.equals("stage", ""))
    lanes = named.group_by(*by, "lane").agg(exclusive_ns=sum_of("exclusive_ns"))
    longest = lanes.group_by(*by).agg(exclusive_ns=max_of("exclusive_ns")).sort(*by)
    weights = [half.weights for half in halves]
    sums: dict[tuple[str, str], list[float]] = {}
    for row in longest.rows():
        half = row["half"]
        ns = sums.setdefault((row["role_text"], row["stage"]), [0.0, 0.0])
        ns[half] += float(row["exclusive_ns"] * weights[half][row["unit"]])
    return tuple(StageTimeChange(role or None, stage, *sums[role, stage]) for role, stage in sorted(sums))


def find_counted_steps(side: ComparedSide, unit: Key = STEP_KEY) -> CountedSteps | str:
    """Find the steps of a side that count, or its recordings, or the reason why there are none.

    All are measured. Recordings without step marks are shared out over the `unit`s of work in them.
    """
    unmarked = has_no_steps(side)
    if not unmarked and STEP_KEY not in side.samples:
        return "a log has the times of steps and stages only: give profiles as well"
    if side.errors:
        return f"an error in tracekit: {side.errors[0]}"
    if not side.measured:
        return "saved reports do not contain exclusive times: give the profiles, or the files that --save wrote"
    steps = _list_measured_steps(side, side.samples[WINDOW_KEY if unmarked else STEP_KEY])
    if isinstance(steps, str) or not unmarked:
        return steps
    return _share_out_recordings(steps, unit)


def _share_out_recordings(steps: CountedSteps, unit: Key) -> CountedSteps | str:
    """Share the time of each run's recordings out over the units of work in them."""
    if unit == WINDOW_KEY:
        return steps
    samples = steps.side.samples.get(unit)
    if samples is None or unit[0] not in SHARED_UNITS:
        return "nothing marks a step, and the two sides share no unit of work"
    by_run = dict(zip(samples.runs, samples.values, strict=True))
    windows = steps.side.samples[WINDOW_KEY]
    if by_run.keys() != set(windows.runs):
        return "the unit of work does not recur in every run"
    shares = np.empty(len(steps.wall))
    for number, run in enumerate(windows.runs):
        values, mine = by_run[run], steps.run == number
        # A cadence or a count shares out whole recordings, a stage those parts of them that are its own.
        whole = float(steps.wall[mine].sum())
        if not whole:
            return "a recording without step marks lasts 0 ns"
        shares[mine] = (
            (fsum(values) / len(values) * mine.sum() / whole) if unit[0] != STAGE_TIME else mine.sum() / len(values)
        )
    if unit[0] != STAGE_TIME:
        return replace(steps, wall=steps.wall * shares, shares=shares)
    means = np.array([fsum(by_run[run]) / len(by_run[run]) for run in windows.runs])
    return replace(steps, wall=means[steps.run], shares=shares, stage=(unit[1], unit[2] or ""))


def _list_measured_steps(side: ComparedSide, samples: MetricSamples) -> CountedSteps | str:
    """List the steps, or recordings, of samples, or the reason why they are not all measured."""
    measured_walls = _collect_step_walls(side.measured)
    keys, runs, walls = [], [], []
    for number, (steps, values) in enumerate(zip(samples.steps, samples.values, strict=True)):
        for (run, step, part), wall in zip(steps, values, strict=True):
            key = make_step_id(run, step, part)
            if measured_walls.get(key) != {wall}:
                return f"run {run} was not measured here, or several inputs have a run of that name"
            keys.append(key)
            runs.append(number)
            walls.append(wall)
    return CountedSteps(side, np.array(runs, np.int64), np.array(walls, np.float64), tuple(keys))


def _collect_step_walls(measured: Iterable[Measurements]) -> dict[StepKey, set[float]]:
    """Collect the wall times of every measured step; several if inputs share a step name."""
    walls: dict[StepKey, set[float]] = {}
    for measurements in measured:
        for row in summarize_step_walls(measurements).walls.rows(*UNIT, "wall_ns"):
            key = make_step_id(row["run"], row["step"], row["part"])
            walls.setdefault(key, set()).add(float(row["wall_ns"]))
    return walls


def make_step_id(run: object, step: int | None, part: object) -> StepKey:
    """Identify a step by its number, or by its part if it has no number."""
    return (run, step, part if step is None else None)


def number_step_rows(rows: Frame, steps: CountedSteps) -> Frame:
    """Select the rows of steps that count, with `unit`, the number of their step."""
    place = {key: number for number, key in enumerate(steps.ids)}
    by_step = rows.group_by(*UNIT)
    units = [place.get(make_step_id(*step.values()), -1) for step in by_step.agg().rows()]
    unit = np.array(units, np.int64)[by_step.number]
    return rows.with_columns(unit=unit).filter(unit >= 0)


def _average_slots_over_lanes(steps: CountedSteps) -> Frame:
    """Average the slots of counted steps over the lanes of each role: unit, role_text, `KEYS`, ns and count."""
    parts = [_select_counted_slots(measured, steps) for measured in steps.side.measured]
    rows = concat([part.with_columns(measured=number) for number, part in enumerate(parts)])
    on_device = ~rows.is_missing("device")
    role_has_device = rows.group_by("role_text").each(max_of(on_device))
    rows = rows.filter(on_device | ~role_has_device)
    rows = rows.with_columns(lane=rows.group_by("measured", *IN_RUN, "device", "again").number)
    lanes = rows.group_by("unit", "role_text").each(count_distinct_of("lane"))
    if steps.stage is not None:
        role, stage = steps.stage
        of_unit = rows.equals("stage", stage) & (rows.equals("role_text", role) if role else True)
        rows, lanes = rows.filter(of_unit), lanes[of_unit]
    if steps.shares is not None:
        share = steps.shares[rows["unit"]]
        rows = rows.with_columns(exclusive_ns=rows["exclusive_ns"] * share, count=rows["count"] * share)
    return rows.with_columns(ns=rows["exclusive_ns"] / lanes, count=rows["count"] / lanes)


def _select_counted_slots(measured: Measurements, steps: CountedSteps) -> Frame:
    """Select the slots of one input in counted steps whose marks have the same origin as the step's wall time."""
    origins = {}
    for row in summarize_step_walls(measured).walls.rows(*UNIT, "origin"):
        origins[make_step_id(row["run"], row["step"], row["part"])] = row["origin"]
    recorded = number_step_rows(measured.frame("steps"), steps)
    has_origin = [origins.get(steps.ids[row["unit"]]) == row["origin"] for row in recorded.rows("unit", "origin")]
    recorded = recorded.filter(np.array(has_origin, np.bool_))
    slots = keep_undamaged_rows(measured, measured.frame("slots"))
    keys = [*CAPTURE, "step", "occurrence"]
    rows = slots.join(recorded.select(*keys, "unit", "origin", "ts_ns", "dur_ns"), keys, optional=["pid", "step"])
    return rows.with_columns(
        again=np.where(rows.equals("origin", "profiler"), rows["occurrence"], 0),
        role_text=_fill_missing_texts(rows["role"]),
        stage=name_stages(rows, in_file=True),
        timed=has_epoch_times(measured, rows.distinct(*CAPTURE)),
    )


def _measure_residual_time(steps: CountedSteps, rows: Frame) -> Frame:
    """Measure the wall time of every step that rows leave over; one row per step where it is not zero."""
    residual = steps.wall - np.bincount(rows["unit"], rows["ns"], len(steps.wall))
    is_recorded, is_profiled = np.zeros((2, len(steps.wall)), np.bool_)
    is_recorded[rows["unit"]] = True
    is_profiled[rows["unit"][rows.equals("origin", "profiler")]] = True
    kind = np.select([residual < 0, ~is_recorded, is_profiled], [TWICE, UNRECORDED, STEP_END], REST)
    left = np.flatnonzero(residual)
    rows = Frame.from_columns({"unit": left, "ns": residual[left], "count": np.zeros(len(left))})
    return rows.with_columns(**{"class": texts(kind[left].tolist())})


def _choose_step_roles(sides: Sequence[tuple[CountedSteps, Frame]]) -> tuple[list[str], list[str]]:
    """Choose the roles that make up the step: those that take turns, the longest first.

    Roles that run concurrently cannot all add up to the step; the longest role with a device represents them.
    The second result is a note on the roles left out.
    """
    totals: dict[str, float] = {}
    has_device: dict[str, bool] = {}
    for steps, rows in sides:
        for of_role in rows.group_by("role_text").frames():
            role = of_role.values("role_text")[0]
            totals[role] = totals.get(role, 0.0) + of_role["ns"].sum() / len(steps.wall)
            has_device[role] = has_device.get(role, False) or not of_role.is_missing("device").all()
    order = sorted(totals, key=lambda role: (not has_device[role], -totals[role], role))
    counted: list[str] = order[:1]
    left_out: list[str] = []
    for role in order[1:]:
        turns = all(_do_roles_take_turns(steps, rows, counted, role) for steps, rows in sides)
        (counted if turns else left_out).append(role)
    if not left_out:
        return counted, []
    note = (
        f"roles run concurrently: the attribution covers {_join_role_names(counted)}, not {_join_role_names(left_out)}"
    )
    return counted, [note]


def _join_role_names(roles: Sequence[str]) -> str:
    """Join the names of roles."""
    return ", ".join(role or "(no role)" for role in roles)


def _do_roles_take_turns(steps: CountedSteps, rows: Frame, roles: list[str], role: str) -> bool:
    """Check whether a role and `roles` fit into each step without overlap, as far as clocks tell."""
    of_role, of_roles = rows.filter(rows.equals("role_text", role)), rows.filter(rows.is_in("role_text", roles))
    both = concat([of_role, of_roles])
    total = np.bincount(both["unit"], both["ns"], len(steps.wall))
    if (total > steps.wall * (1 + _FITS)).any():
        return False
    if not both["timed"].all():
        return True
    for unit in np.intersect1d(of_role["unit"], of_roles["unit"]):
        window = _merge_step_windows(of_role.filter(of_role["unit"] == unit))
        windows = _merge_step_windows(of_roles.filter(of_roles["unit"] == unit))
        if intersect(window, windows).total > _FITS * min(window.total, windows.total):
            return False
    return True


def _merge_step_windows(rows: Frame) -> Intervals:
    """Merge the windows of the steps of these rows over all lanes."""
    spans = rows.distinct("ts_ns", "dur_ns")
    return merge_intervals(spans["ts_ns"], spans["ts_ns"] + spans["dur_ns"])
