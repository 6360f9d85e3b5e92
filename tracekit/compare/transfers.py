"""Change of collectives, split into transfer and wait for other ranks.

The shortest duration of a collective over ranks is its transfer; each rank's remainder is its wait.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.compare.origins import Transfer
from tracekit.compare.sides import Side
from tracekit.compare.slot_table import Steps, counted_steps, in_units
from tracekit.job.collectives.matching import matched
from tracekit.job.frames import canonical_stages, units
from tracekit.model.keys import IN_RUN
from tracekit.model.trace import Measurements

PARTS = ("transfer", "wait", "alone")
"""`alone`: whole duration of collectives that no other rank recorded, or that could not be matched."""


def transfers(base: Side, opt: Side) -> tuple[Transfer, ...]:
    """Compare every stage and kind of collective, the largest change first; empty if no ranks were matched."""
    base_steps, opt_steps = counted_steps(base), counted_steps(opt)
    if isinstance(base_steps, str) or isinstance(opt_steps, str):
        return ()
    before, after = _table(base_steps), _table(opt_steps)
    if not (before["transfer"].any() or after["transfer"].any()):
        return ()
    rows = []
    for stage, op in before.index.union(after.index):
        rows.append(Transfer(stage, op, _row(before, (stage, op)), _row(after, (stage, op))))
    return tuple(sorted(rows, key=_largest_first))


def _largest_first(row: Transfer) -> tuple[float, str, str]:
    """Sort key: the largest change first, then names."""
    return (-abs(sum(row.opt) - sum(row.base)), row.stage, row.op)


def _row(table: pd.DataFrame, key: tuple[str, str]) -> tuple[float, float, float]:
    """Get the `PARTS` of one stage and kind; zeros if a side has none."""
    if key not in table.index:
        return (0.0, 0.0, 0.0)
    parts = table.loc[[key]].iloc[0]
    return (float(parts["transfer"]), float(parts["wait"]), float(parts["alone"]))


def _table(steps: Steps) -> pd.DataFrame:
    """Average the `PARTS` by stage and op: over ranks, then steps, then runs."""
    frames = [_collectives(measured, steps) for measured in steps.side.measured]
    rows = pd.concat(frames, ignore_index=True)
    if not len(rows):
        return pd.DataFrame(columns=[*PARTS], index=pd.MultiIndex.from_tuples([], names=["s", "o"]))
    lane = [*IN_RUN, "device"]
    rows["lane"] = rows.groupby(lane, dropna=False, sort=False).ngroup()
    lanes = rows.groupby("unit")["lane"].transform("nunique").to_numpy(np.float64)
    weight = 1.0 / (np.bincount(steps.run)[steps.run] * (steps.run.max() + 1))
    share = weight[rows["unit"].to_numpy(np.int64)] / lanes
    parts = rows[[*PARTS]].mul(share, axis=0)
    stage = rows["canonical"].astype(object).where(rows["canonical"].notna(), "")
    return parts.groupby([stage, rows["op"].astype(object).fillna("")], sort=True).sum()


def _collectives(measured: Measurements, steps: Steps) -> pd.DataFrame:
    """Select the collectives of one input in steps that count, split into `PARTS`."""
    rows = units(measured["collectives"])
    rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
    duration = rows["dur_ns"].to_numpy(np.float64)
    shortest = matched(measured)["transfer_ns"].to_numpy(np.float64, na_value=np.nan)
    split = ~np.isnan(shortest)
    rows = rows.assign(
        transfer=np.where(split, shortest, 0.0),
        wait=np.where(split, duration - shortest, 0.0),
        alone=np.where(split, 0.0, duration),
    )
    return in_units(rows, steps)
