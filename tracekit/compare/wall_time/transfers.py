"""Change of collectives, split into transfer and wait for other ranks.

The shortest duration of a collective over ranks is its transfer; each rank's remainder is its wait.
"""

from __future__ import annotations

import numpy as np

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time.attribution_rows import TransferChange
from tracekit.compare.wall_time.slot_table import CountedSteps, find_counted_steps, number_step_rows
from tracekit.job.collectives.matching import list_matched_collectives
from tracekit.job.frames import name_stages
from tracekit.model.tables.frame import Frame, concat, count_distinct_of
from tracekit.model.tables.keys import IN_RUN
from tracekit.model.trace import Measurements

TRANSFER_PARTS = ("transfer", "wait", "alone")
"""`alone`: whole duration of collectives that no other rank recorded, or that could not be matched."""


def compare_transfers(base: ComparedSide, opt: ComparedSide) -> tuple[TransferChange, ...]:
    """Compare every stage and kind of collective, the largest change first; empty if no ranks were matched."""
    base_steps, opt_steps = find_counted_steps(base), find_counted_steps(opt)
    if isinstance(base_steps, str) or isinstance(opt_steps, str):
        return ()
    before, after = _average_transfer_parts(base_steps), _average_transfer_parts(opt_steps)
    if not any(transfer for transfer, _, _ in (*before.values(), *after.values())):
        return ()
    nothing = (0.0, 0.0, 0.0)
    rows = []
    for stage, op in before.keys() | after.keys():
        rows.append(TransferChange(stage, op, before.get((stage, op), nothing), after.get((stage, op), nothing)))
    return tuple(sorted(rows, key=_rank_transfer))


def _rank_transfer(row: TransferChange) -> tuple[float, str, str]:
    """Sort key: the largest change first, then names."""
    return (-abs(sum(row.opt) - sum(row.base)), row.stage, row.op)


def _average_transfer_parts(steps: CountedSteps) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Average the `TRANSFER_PARTS` by stage and op: over ranks, then steps, then runs."""
    rows = concat([_split_collectives(measured, steps) for measured in steps.side.measured])
    rows = rows.with_columns(lane=rows.group_by(*IN_RUN, "device").number)
    lanes = rows.group_by("unit").each(count_distinct_of("lane"))
    weight = 1.0 / (np.bincount(steps.run)[steps.run] * (steps.run.max() + 1))
    share = weight[rows["unit"]] / lanes
    rows = rows.with_columns(**{part: rows[part] * share for part in TRANSFER_PARTS})
    means = {}
    for of_op in rows.group_by("canonical", "op").frames():
        first = next(of_op.rows("canonical", "op"))
        transfer, wait, alone = (_sum_compensated(of_op[part].tolist()) for part in TRANSFER_PARTS)
        means[first["canonical"] or "", first["op"] or ""] = (transfer, wait, alone)
    return means


def _sum_compensated(values: list[float]) -> float:
    """Add up thousands of shares without losing their last digits (Kahan's summation)."""
    total = excess = 0.0
    for value in values:
        corrected = value - excess
        larger = total + corrected
        excess = larger - total - corrected
        total = larger
    return total


def _split_collectives(measured: Measurements, steps: CountedSteps) -> Frame:
    """Select the collectives of one input in steps that count, split into `TRANSFER_PARTS`."""
    rows = measured.frame("collectives")
    duration = rows.number("dur_ns")
    shortest = list_matched_collectives(measured).number("transfer_ns")
    is_split = ~np.isnan(shortest)
    rows = rows.with_columns(
        canonical=name_stages(rows, in_file=True),
        transfer=np.where(is_split, shortest, 0.0),
        wait=np.where(is_split, duration - shortest, 0.0),
        alone=np.where(is_split, 0.0, duration),
    )
    return number_step_rows(rows, steps)
