"""Did communication itself get slower, or do ranks wait for one another? Shortest rank against the others.

The shortest duration of a collective over ranks is its transfer; what a rank takes beyond is its wait.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.compare.origins import Transfer
from tracekit.compare.sides import Side
from tracekit.compare.slots_of import Steps, counted_steps, in_units
from tracekit.job.collectives import matched
from tracekit.job.frames import canonical_stages, units
from tracekit.model.keys import IN_RUN

PARTS = ("transfer", "wait", "alone")
"""`alone`: of collectives that no other rank shows, or that could not be matched, the whole duration."""


def transfers(base: Side, opt: Side) -> tuple[Transfer, ...]:
    """Every stage and kind of collective, the largest change first; nothing where no ranks were matched."""
    tables = []
    for side in (base, opt):
        steps = counted_steps(side)
        if isinstance(steps, str):
            return ()
        tables.append(_table(steps))
    if not any(mine["transfer"].any() for mine in tables):
        return ()
    keys = sorted(set(tables[0].index) | set(tables[1].index))
    rows = []
    for stage, op in keys:
        one, two = ((_row(mine, (stage, op))) for mine in tables)
        rows.append(Transfer(stage, op, one, two))
    return tuple(sorted(rows, key=lambda r: (-abs(sum(r.opt) - sum(r.base)), r.stage, r.op)))


def _row(table: pd.DataFrame, key: tuple[str, str]) -> tuple[float, float, float]:
    if key not in table.index:
        return (0.0, 0.0, 0.0)
    found = table.loc[[key]].iloc[0]
    return (float(found["transfer"]), float(found["wait"]), float(found["alone"]))


def _table(steps: Steps) -> pd.DataFrame:
    """By stage and op the `PARTS` of the mean step: mean over ranks, then steps, then runs."""
    frames = []
    for measured in steps.side.measured:
        rows = units(measured["collectives"])
        rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
        split = matched(measured)
        dur = rows["dur_ns"].to_numpy(np.float64)
        shortest = split["transfer_ns"].to_numpy(np.float64, na_value=np.nan)
        known = ~np.isnan(shortest)
        rows = rows.assign(
            transfer=np.where(known, shortest, 0.0),
            wait=np.where(known, dur - shortest, 0.0),
            alone=np.where(known, 0.0, dur),
        )
        frames.append(in_units(rows, steps))
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
