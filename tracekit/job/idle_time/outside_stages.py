"""Idle time of steps outside their stages in long pauses of the host, such as logging at the end of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import aggregate_by_keys, find_equal_rows, sum_columns_by_keys, to_text_or_none
from tracekit.job.stages.windows import Owner, list_judged_rows, number_stage_owners, read_undamaged_table
from tracekit.job.steps.steady_steps import MARKED_ORIGINS
from tracekit.model.keys import CAPTURE, left_join, mask_matching_rows
from tracekit.model.trace import Measurements

AFTER_LAST = "after_last"
"""Cause of idle time after the last device op of a recording."""

_GPU_STEP = [*CAPTURE, "device", "step"]


class IdleOutsideStages(NamedTuple):
    """Idle time outside stages with no host activity (`silent_ns`) or no op (`code_ns`) recorded: sums over steps."""

    silent_ns: int
    code_ns: int


def sum_idle_outside_stages(measured: Measurements) -> dict[Owner, IdleOutsideStages]:
    """Sum the idle time of host pauses outside stages, by run and role with stages and marked steps.

    Step marks show that one program runs the steps. Elsewhere, time between stages may belong to other processes. Empty if
    only some stages were requested.
    """
    if measured.facts.stages:
        return {}
    return measured.derived(_sum_idle_outside_stages)


def _sum_idle_outside_stages(measured: Measurements) -> dict[Owner, IdleOutsideStages]:
    in_stages = list_judged_rows(measured, "idle")
    in_stages = in_stages[(in_stages["canonical"].notna() & in_stages["step"].notna()).to_numpy(np.bool_)]
    steps = _select_marked_idle_rows(measured)
    if not len(in_stages) or not len(steps):
        return {}
    by_cause = {}
    for cause in ("host_silent", "host_code", AFTER_LAST):
        sums = [
            aggregate_by_keys(rows[(rows["cause"] == cause).to_numpy(np.bool_)], _GPU_STEP, ns=("idle_ns", "sum"))
            for rows in (steps, in_stages)
        ]
        by_cause[cause] = sums
    gpu_steps = sum_columns_by_keys(steps, ["run", "role", *_GPU_STEP], ["idle_ns"])
    left = {cause: _subtract_stage_idle(gpu_steps, *sums) for cause, sums in by_cause.items()}
    outside = {}
    owners, number = number_stage_owners(gpu_steps)
    for place, owner in enumerate(owners):
        stages = in_stages[find_equal_rows(in_stages["run"], owner[0]) & find_equal_rows(in_stages["role"], owner[1])]
        if len(stages):
            rows = number == place
            of_owner = {cause: ns[rows] for cause, ns in left.items()}
            outside[owner[0], to_text_or_none(owner[1])] = _sum_with_last_step(of_owner)
    return outside


def _select_marked_idle_rows(measured: Measurements) -> pd.DataFrame:
    """Select the idle time of steps that the profiler or the program marks."""
    rows, steps = read_undamaged_table(measured, "idle"), measured["steps"]
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)]
    marked = steps[steps["origin"].isin(MARKED_ORIGINS).to_numpy(np.bool_)]
    return rows[mask_matching_rows(rows, marked, CAPTURE)]


def _subtract_stage_idle(
    gpu_steps: pd.DataFrame, in_step: pd.DataFrame, in_stages: pd.DataFrame
) -> npt.NDArray[np.int64]:
    """Subtract the idle time of stages from that of each GPU step; 0 where stages reach beyond their step."""
    optional = ["pid", "device", "step"]
    of_step, of_stages = (
        left_join(gpu_steps[_GPU_STEP], sums, _GPU_STEP, optional=optional)["ns"].fillna(0).to_numpy(np.int64)
        for sums in (in_step, in_stages)
    )
    left: npt.NDArray[np.int64] = np.maximum(of_step - of_stages, 0)
    return left


def _sum_with_last_step(left: dict[str, npt.NDArray[np.int64]]) -> IdleOutsideStages:
    """Sum the steps of an owner's GPUs.

    After the last device op of a recording the reason for idling is unknown. The last step counts as much of that time as
    the other steps pause.
    """
    silent, code = (left[cause] for cause in ("host_silent", "host_code"))
    is_last = left[AFTER_LAST] > 0
    others = (silent + code)[~is_last]
    usual = int(np.median(others)) if len(others) else 0
    more = np.minimum(left[AFTER_LAST], np.maximum(usual - silent - code, 0))[is_last].sum()
    is_silent = int(silent.sum()) >= int(code.sum())
    return IdleOutsideStages(int(silent.sum()) + int(more) * is_silent, int(code.sum()) + int(more) * (not is_silent))
