"""Stages that only some steps have, such as validation or a checkpoint: their period and their cost per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.job.driver_log import RunDriverLog
from tracekit.job.frames import UNIT, phrase_run
from tracekit.job.stages.durations import list_recorded_steps, list_stage_steps, measure_stage_durations
from tracekit.job.stages.windows import STAGE_KEY
from tracekit.model.records import dataclass
from tracekit.model.stages import STAGES, VALIDATION
from tracekit.model.tables.frame import Frame, from_rows, max_of, sum_of
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements, derive_once
from tracekit.model.units import format_quantity

LEAST_TIMES = 2
"""Fewest steps with a stage for which a period is known."""

CHECKPOINT = "save"
"""Canonical stage of checkpoints."""

_CHORES = (VALIDATION, CHECKPOINT)

WORTH_NAMING = 0.001
"""Smallest share of the time that gets a sentence."""


@dataclass(frozen=True, slots=True)
class PeriodicStage:
    """A stage in `present` of `recorded` steps, of `wall_ns` on its longest rank.

    `every` is its period in steps, None without one. `share` is its part of all time, including steps without it.
    `is_between` is whether it runs between steps instead of in them.
    """

    run: str | None
    role: str | None
    canonical: str
    wall_ns: float
    present: int
    recorded: int
    every: int | None
    share: float
    is_between: bool = False

    @property
    def how_often(self) -> str:
        """Its period in words, or the number of steps that have it."""
        if self.every is not None:
            return f"every {self.every} steps"
        return f"in {self.present} of {self.recorded} steps"

    @property
    def per_step_ns(self) -> float:
        """Time per step, including steps without it."""
        return self.wall_ns * self.present / self.recorded

    @property
    def is_planned(self) -> bool:
        """Whether it runs on a schedule: with a period, or as a validation or checkpoint."""
        return self.every is not None or self.canonical in _CHORES

    @property
    def is_chore(self) -> bool:
        """Whether it runs on a schedule outside of training, like a validation or checkpoint: GPUs idle by plan."""
        return self.is_planned and (self.canonical not in STAGES or self.canonical in _CHORES)

    def sentence(self, measured: Measurements) -> str:
        """Describe its cost when it runs, and on average."""
        whose = f"{self.role} {self.canonical}" if self.role else self.canonical
        between = ", between steps" if self.is_between else ""
        return (
            f"{whose}{phrase_run(measured, self.run)}: {format_quantity(self.wall_ns, 'ns')} {self.how_often}"
            f"{between}, {format_quantity(self.share, 'ratio')} of the time"
        )


def find_stage_period(present: Sequence[int], recorded: Sequence[int]) -> int | None:
    """Find the k of a stage that runs in every k-th step, from step numbers; None without a period.

    Every recorded step at that distance must have the stage, and no other step. All steps between any two of them must be
    recorded.

    >>> find_stage_period([5, 10, 15], range(1, 18)), find_stage_period([1, 3, 5, 7], range(1, 8)), find_stage_period([5, 10], range(3, 20))
    (5, 2, None)
    >>> find_stage_period([2, 4], [1, 2, 4]), find_stage_period([7], range(1, 12)), find_stage_period([1, 2, 3], [1, 2, 3])
    (None, None, None)
    """
    have, every = sorted(set(present)), set(recorded)
    if len(have) < LEAST_TIMES:
        return None
    distance = have[1] - have[0]
    expected = [number for number in sorted(every) if (number - have[0]) % distance == 0]
    if distance < 2 or expected != have:
        return None
    return distance if every.issuperset(range(have[0], have[-1] + 1)) else None


@derive_once
def list_periodic_stages(measured: Measurements) -> list[PeriodicStage]:
    """List the stages that some recorded steps of their role lack, or that run between steps; the costliest first.

    Steps captured stage by stage are excluded: the missing stages may have run too.
    """
    walls = measure_stage_durations(measured)
    walls = walls.filter(~walls.is_missing("recorded_steps"))
    is_partial = (walls["steps"] < walls.integers("recorded_steps")) | (walls["outside_ns"] > 0)
    if not is_partial.any():
        return []
    steps, with_stage = list_recorded_steps(measured), list_stage_steps(measured)
    steps = steps.filter(~steps.equals("origin", "stage"))
    stages = []
    for row in walls.filter(is_partial).rows():
        recorded = _select_rows_of_owner(steps, row).values("step")
        of_role = _select_rows_of_owner(with_stage, row)
        present = of_role.filter(of_role.equals("canonical", row["canonical"])).values("step")
        present = [number for number in present if number is not None]
        # A stage before the first step is part of start-up.
        if len(recorded) > 1 and None not in recorded and present:
            outside_ns = float(_select_rows_of_owner(walls, row)["outside_ns"].sum())
            stages.append(_make_periodic_stage(row, present, recorded, outside_ns))
    return _sort_periodic_stages_by_cost(stages)


def _select_rows_of_owner(rows: Frame, row: Mapping[str, Any]) -> Frame:
    """Select the rows of the run and role of a row."""
    return rows.filter(rows.equals("run", row["run"]) & rows.equals("role", row["role"]))


def _make_periodic_stage(
    row: Mapping[str, Any], present: list[int], recorded: list[int], outside_ns: float
) -> PeriodicStage:
    """Make the stage of a row of `measure_stage_durations` from the step numbers with the stage, and all recorded.

    `outside_ns` is the time between steps of all stages of its role.
    """
    stage_ns = float(row["inside_ns"]) + float(row["outside_ns"])
    return PeriodicStage(
        row["run"],
        row["role"],
        row["canonical"],
        row["wall_ns"],
        len(present),
        len(recorded),
        find_stage_period(present, recorded),
        stage_ns / max(float(row["recorded_ns"]) + outside_ns, 1.0),
        not row["inside_ns"],
    )


def list_chore_keys(measured: Measurements) -> set[tuple[object, ...]]:
    """List run, role and canonical stage of chores, which rules about idle GPUs skip."""
    return {(stage.run, stage.role, stage.canonical) for stage in list_periodic_stages(measured) if stage.is_chore}


def sum_planned_stage_time(measured: Measurements, walls: Frame) -> npt.NDArray[np.float64]:
    """Sum the time of each unit (`measure_step_walls`) in scheduled stages that other steps lack."""
    planned = [s for s in list_periodic_stages(measured) if s.is_planned and not s.is_between]
    keys = from_rows(STAGE_KEY, [(stage.run, stage.role, stage.canonical) for stage in planned])
    rows = list_stage_steps(measured)
    rows = rows.filter(rows["is_inside"] & rows.is_among(keys, STAGE_KEY, optional=STAGE_KEY))
    by_role = rows.group_by(*UNIT, "role").agg(wall_ns=sum_of("wall_ns"))
    longest = by_role.group_by(*UNIT).agg(planned_ns=max_of("wall_ns"))
    return walls.select(*UNIT).join(longest, UNIT, "left", optional=UNIT).number("planned_ns", missing=0.0)


def find_logged_periodic_stages(log: RunDriverLog, run: str | None) -> list[PeriodicStage]:
    """List the stages that a driver log times in only some of its steps; the costliest first.

    A stage that does not fit into its step next to the others runs between steps (verl times validation that way).
    """
    steps = {step: ns for step, ns in log.step_ns.items() if ns > 0}
    partial: dict[str, dict[int, int]] = {}
    free_ns = dict(steps)
    for stage in log.stage_times.distinct("canonical").values("canonical"):
        times = {step: ns for step, ns in log.map_stage_ns(stage).items() if step in steps}
        if len(times) < len(steps):
            partial[stage] = times
            continue
        for step, ns in times.items():
            free_ns[step] -= ns
    between = [
        stage
        for stage, times in partial.items()
        if sum(free_ns[step] for step in times) < MIN_FITTING_SHARE * sum(times.values())
    ]
    time_ns = sum(steps.values()) + sum(sum(partial[stage].values()) for stage in between)
    stages = [
        PeriodicStage(
            run,
            None,
            stage,
            sum(times.values()) / len(times),
            len(times),
            len(steps),
            find_stage_period(list(times), list(steps)),
            sum(times.values()) / time_ns,
            stage in between,
        )
        for stage, times in partial.items()
        if times
    ]
    return _sort_periodic_stages_by_cost(stages)


MIN_FITTING_SHARE = 0.5
"""A stage runs between steps if they leave less room than this share of it next to the stages of every step."""


def _sort_periodic_stages_by_cost(stages: Sequence[PeriodicStage]) -> list[PeriodicStage]:
    """Sort the stages worth naming by cost, the costliest first."""
    worth = [stage for stage in stages if stage.share >= WORTH_NAMING]
    return sorted(worth, key=lambda stage: (-stage.share, stage.canonical))


MOST_NAMED = 4
"""Most stages of one caption."""


def describe_periodic_stages(measured: Measurements) -> str:
    """Describe the periodic stages in sentences, with the base of the shares; empty without any."""
    stages = list_periodic_stages(measured)
    if not stages:
        return ""
    sentences = [f"{stage.sentence(measured)}." for stage in stages[:MOST_NAMED]]
    if len(stages) > MOST_NAMED:
        more = len(stages) - MOST_NAMED
        sentences.append(f"{more} more {choose_plural(more, 'stage is', 'stages are')} in some steps only.")
    return " ".join((*sentences, "Shares are of all steps, including steps without it."))
