"""Change of collectives, split into transfer and wait for other ranks.

The shortest duration of a collective over ranks is its transfer; each rank's remainder is its wait.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time.attribution_rows import TransferChange
from tracekit.compare.wall_time.slot_table import CountedSteps, find_counted_steps, number_step_rows
from tracekit.job.collectives.matching import match_collectives
from tracekit.job.frames import clear_parts_of_numbered_steps, find_canonical_stages
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
    if not (before["transfer"].any() or after["transfer"].any()):
        return ()
    rows = []
    for stage, op in before.index.union(after.index):
        rows.append(
            TransferChange(stage, op, _get_transfer_parts(before, (stage, op)), _get_transfer_parts(after, (stage, op)))
        )
    return tuple(sorted(rows, key=_rank_transfer))


def _rank_transfer(row: TransferChange) -> tuple[float, str, str]:
    """Sort key: the largest change first, then names."""
    return (-abs(sum(row.opt) - sum(row.base)), row.stage, row.op)


def _get_transfer_parts(table: pd.DataFrame, key: tuple[str, str]) -> tuple[float, float, float]:
    """Get the `PARTS` of one stage and kind; zeros if a side has none."""
    if key not in table.index:
        return (0.0, 0.0, 0.0)
    parts = table.loc[[key]].iloc[0]
    return (float(parts["transfer"]), float(parts["wait"]), float(parts["alone"]))


def _average_transfer_parts(steps: CountedSteps) -> pd.DataFrame:
    """Average the `PARTS` by stage and op: over ranks, then steps, then runs."""
    frames = [_split_collectives(measured, steps) for measured in steps.side.measured]
    rows = pd.concat(frames, ignore_index=True)
    if not len(rows):
        return pd.DataFrame(columns=[*TRANSFER_PARTS], index=pd.MultiIndex.from_tuples([], names=["s", "o"]))
    lane = [*IN_RUN, "device"]
    rows["lane"] = rows.groupby(lane, dropna=False, sort=False).ngroup()
    lanes = rows.groupby("unit")["lane"].transform("nunique").to_numpy(np.float64)
    weight = 1.0 / (np.bincount(steps.run)[steps.run] * (steps.run.max() + 1))
    share = weight[rows["unit"].to_numpy(np.int64)] / lanes
    parts = rows[[*TRANSFER_PARTS]].mul(share, axis=0)
    stage = rows["canonical"].astype(object).where(rows["canonical"].notna(), "")
    return parts.groupby([stage, rows["op"].astype(object).fillna("")], sort=True).sum()


def _split_collectives(measured: Measurements, steps: CountedSteps) -> pd.DataFrame:
    """Select the collectives of one input in steps that count, split into `PARTS`."""
    rows = clear_parts_of_numbered_steps(measured["collectives"])
    rows = rows.assign(canonical=find_canonical_stages(rows, in_file=True))
    duration = rows["dur_ns"].to_numpy(np.float64)
    shortest = match_collectives(measured)["transfer_ns"].to_numpy(np.float64, na_value=np.nan)
    split = ~np.isnan(shortest)
    rows = rows.assign(
        transfer=np.where(split, shortest, 0.0),
        wait=np.where(split, duration - shortest, 0.0),
        alone=np.where(split, 0.0, duration),
    )
    return number_step_rows(rows, steps)
