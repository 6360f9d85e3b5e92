"""Pauses of hosts without a device that recur: at one place, in three quarters of the steps and ranks.

A thread that waits for a CPU core also shows no activity, but not at the same place in every step. Pauses of single
ranks or steps belong to the rules about late ranks and longer steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracekit.job.frames import UNIT, clear_redundant_parts, name_stages
from tracekit.job.stages.periodic import list_chore_keys
from tracekit.job.stages.windows import (
    STAGE_KEY,
    Owner,
    count_steps_by_process,
    find_rows_of_owners,
    list_owners,
    list_undamaged_rows,
)
from tracekit.job.steps.steady_steps import MARKED_ORIGINS
from tracekit.model.tables.frame import Frame, Ints, count_rows, min_of, sum_of
from tracekit.model.tables.keys import PROCESS
from tracekit.model.trace import Measurements, derive_once

CPU_KINDS = ("cpu-only", "ran-on-cpu")
"""Kinds of recordings whose ops compute on the CPU."""

PLACE = ("canonical", "after", "before")
"""Place of a pause: its stage, and the ops around it."""


class RecurringPauses(NamedTuple):
    """Pauses of one run and role that recur.

    `places` has a row for each place, the longest first: `pause_ns` of a step, `code_ns`, the part in Python or a range, and
    `shortest_ns`, the mean pause of the step and rank where it is shortest. `steps` is the number of steps of a rank.
    """

    places: Frame
    steps: int
    step_ns: float

    @property
    def total_ns(self) -> int:
        """Time of all pauses of a step."""
        return int(self.places["pause_ns"].sum())

    @property
    def ratio(self) -> float:
        """Their share of the step."""
        return self.total_ns / self.step_ns


@derive_once
def find_recurring_pauses(measured: Measurements) -> dict[Owner, RecurringPauses]:
    """Find the pauses that recur, by run and role; only where no process of the run has a device."""
    rows = _select_judged_pauses(measured)
    by_process = count_steps_by_process(measured).group_by(*PROCESS)
    processes = by_process.agg(steps=sum_of("steps"), wall_ns=sum_of("wall_ns"))
    process_places = _take_usual_steps(rows, processes)
    found = {}
    for owner in list_owners(process_places.distinct("run", "role")):
        own = process_places.filter(find_rows_of_owners(process_places, [owner]))
        group = processes.filter(find_rows_of_owners(processes, [owner]))
        places = _take_usual_ranks(own, len(group))
        if len(places):
            steps = int(group["steps"].sum())
            found[owner] = RecurringPauses(places, int(group["steps"].min()), float(group["wall_ns"].sum()) / steps)
    return found


def select_recurring_pauses(measured: Measurements, owner: Owner, pauses: RecurringPauses) -> Frame:
    """Select the rows of `host_pauses` at the places where the pauses of one run and role recur, with `canonical`."""
    rows = _select_judged_pauses(measured)
    return rows.filter(find_rows_of_owners(rows, [owner]) & rows.is_among(pauses.places, PLACE, optional=PLACE))


def _select_judged_pauses(measured: Measurements) -> Frame:
    """Select the pauses inside stages, and in marked steps outside stages; scheduled stages do not count."""
    rows = clear_redundant_parts(list_undamaged_rows(measured, "host_pauses"))
    rows = rows.with_columns(canonical=name_stages(rows))
    recorded = measured.frame("recordings")
    on_cpu = recorded.filter(recorded.is_in("kind", CPU_KINDS))
    captures = measured.frame("captures")
    with_device = captures.filter(captures.integers("device_op_count") > 0)
    steps = measured.frame("steps")
    marked = steps.filter(steps.is_in("origin", MARKED_ORIGINS))
    chosen = rows.is_among(on_cpu, ["source"]) & ~rows.is_among(with_device, ["run"], optional=["run"])
    chosen &= ~rows.is_missing("canonical") | rows.is_among(marked, PROCESS, optional=PROCESS)
    chores = list_chore_keys(measured)
    by_stage = rows.group_by(*STAGE_KEY)
    is_chore = [tuple(key.values()) in chores for key in by_stage.agg().rows(*STAGE_KEY)]
    return rows.filter(chosen & ~np.array([*is_chore, False], np.bool_)[by_stage.number])


def _take_usual_steps(rows: Frame, processes: Frame) -> Frame:
    """Take the lower quartile of the steps of each process at each place: a pause in three quarters of the steps recurs."""
    keys = (*PROCESS, *PLACE)
    by_step = rows.group_by(*keys, *(name for name in UNIT if name not in PROCESS), "occurrence")
    sums = by_step.agg(pause_ns=sum_of("pause_ns"), code_ns=sum_of("code_ns"), count=sum_of("count"))
    sums = sums.with_columns(shortest_ns=sums["pause_ns"] // np.maximum(sums["count"], 1))
    counts = sums.join(processes.select(*PROCESS, "steps"), PROCESS, "left", optional=PROCESS)
    return _take_lower_quartiles(sums, keys, counts.integers("steps"))


def _take_usual_ranks(own: Frame, count: int) -> Frame:
    """Take the lower quartile of `count` ranks at each place, the longest place first."""
    places = _take_lower_quartiles(own, PLACE, np.full(len(own), count))
    return places.sort("pause_ns", *PLACE, descending=["pause_ns"])


def _take_lower_quartiles(rows: Frame, keys: tuple[str, ...], totals: Ints) -> Frame:
    """Take the lower quartile of each group of `totals` values: those without a row are 0, and groups of 0 are left out."""
    order = rows.order("pause_ns")
    rows, totals = rows.take(order), totals[order]
    groups = rows.group_by(*keys)
    size: Any = groups.each(count_rows())
    wanted = (totals - 1) // 4 - (totals - size)
    kept = rows.filter((groups.position() == wanted) & (rows["pause_ns"] > 0))
    shortest = groups.agg(least_ns=min_of("shortest_ns"))
    kept = kept.join(shortest, list(keys), "left", optional=list(keys))
    return kept.with_columns(shortest_ns=kept.integers("least_ns")).drop("least_ns")
