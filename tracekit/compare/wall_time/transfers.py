"""Change of collectives, split into transfer and wait for other ranks.

The shortest duration of a collective over ranks is its transfer; each rank's remainder is its wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time.attribution_rows import TransferChange
from tracekit.compare.wall_time.slot_table import STEP_KEY, CountedSteps, find_counted_steps, number_step_rows
from tracekit.job.collectives.matching import list_matched_collectives
from tracekit.job.frames import name_stages
from tracekit.job.steps.metric_samples import Key
from tracekit.model.tables.frame import Frame, concat, count_distinct_of, sum_of
from tracekit.model.tables.keys import IN_RUN
from tracekit.model.trace import Measurements

TRANSFER_PARTS = ("transfer", "wait", "alone")
"""`alone`: whole duration of collectives that no other rank recorded, or that could not be matched."""


def compare_transfers(base: ComparedSide, opt: ComparedSide, unit: Key = STEP_KEY) -> tuple[TransferChange, ...]:
    """Compare every stage and kind of collective, the largest change first; empty if no ranks were matched."""
    base_steps, opt_steps = find_counted_steps(base, unit), find_counted_steps(opt, unit)
    if isinstance(base_steps, str) or isinstance(opt_steps, str):
        return ()
    before, after = _average_transfer_parts(base_steps), _average_transfer_parts(opt_steps)
    if not any(transfer for transfer, _, _ in (*before.values(), *after.values())):
        return ()
    base_waits, opt_waits = _average_waits_by_last_rank(base_steps), _average_waits_by_last_rank(opt_steps)
    nothing = (0.0, 0.0, 0.0)
    rows = []
    for kind in before.keys() | after.keys():
        waited_for = _find_rank_waited_for(base_waits.get(kind, {}), opt_waits.get(kind, {}))
        rows.append(TransferChange(*kind, before.get(kind, nothing), after.get(kind, nothing), waited_for))
    return tuple(sorted(rows, key=_rank_transfer))


def _find_rank_waited_for(before: Mapping[int, float], after: Mapping[int, float]) -> tuple[int, float, float] | None:
    """Find the rank for which the wait changed most, with the wait on both sides; None if none was last."""
    changes = [(rank, before.get(rank, 0.0), after.get(rank, 0.0)) for rank in before.keys() | after.keys()]
    return max(changes, key=lambda change: (abs(change[2] - change[1]), -change[0]), default=None)


def _average_waits_by_last_rank(steps: CountedSteps) -> dict[tuple[str, str], dict[int, float]]:
    """Average the wait for each last rank, by stage and op: per step and rank, as `TRANSFER_PARTS`."""
    waits: dict[tuple[str, str], dict[int, float]] = {}
    for rows in _share_collectives(steps):
        last = rows.filter(rows["is_last"] & ~rows.is_missing("rank"))
        if not len(last):
            continue
        rank_of = np.full(int(rows.integers("match", -1).max()) + 1, -1, np.int64)
        rank_of[last.integers("match", -1)] = last.integers("rank", -1)
        waiting = rows.filter(~rows.is_missing("match"))
        waiting = waiting.with_columns(waited_for=rank_of[waiting.integers("match", -1)])
        waiting = waiting.filter(waiting["waited_for"] >= 0)
        for row in waiting.group_by("canonical", "op", "waited_for").agg(wait=sum_of("wait")).rows():
            by_rank = waits.setdefault((row["canonical"] or "", row["op"] or ""), {})
            by_rank[row["waited_for"]] = by_rank.get(row["waited_for"], 0.0) + row["wait"]
    return waits


def _rank_transfer(row: TransferChange) -> tuple[float, str, str]:
    """Sort key: the largest change first, then names."""
    return (-abs(sum(row.opt) - sum(row.base)), row.stage, row.op)


def _average_transfer_parts(steps: CountedSteps) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Average the `TRANSFER_PARTS` by stage and op: over ranks, then steps, then runs."""
    rows = concat(_share_collectives(steps))
    means = {}
    for of_op in rows.group_by("canonical", "op").frames():
        first = next(of_op.rows("canonical", "op"))
        transfer, wait, alone = (_sum_compensated(of_op[part].tolist()) for part in TRANSFER_PARTS)
        means[first["canonical"] or "", first["op"] or ""] = (transfer, wait, alone)
    return means


def _share_collectives(steps: CountedSteps) -> list[Frame]:
    """Select the collectives of each input, with `TRANSFER_PARTS` as their part of the mean over ranks, steps and runs."""
    frames = [_split_collectives(measured, steps) for measured in steps.side.measured]
    rows = concat([frame.with_columns(measured=number) for number, frame in enumerate(frames)])
    rows = rows.with_columns(lane=rows.group_by(*IN_RUN, "device").number)
    lanes = rows.group_by("unit").each(count_distinct_of("lane"))
    weight = 1.0 / (np.bincount(steps.run)[steps.run] * (steps.run.max() + 1))
    if steps.shares is not None:
        weight = weight * steps.shares
    share = weight[rows["unit"]] / lanes
    rows = rows.with_columns(**{part: rows[part] * share for part in TRANSFER_PARTS})
    return [rows.filter(rows["measured"] == number) for number in range(len(frames))]


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
    matched = list_matched_collectives(measured)
    shortest = matched.number("transfer_ns")
    is_split = ~np.isnan(shortest)
    rows = rows.with_columns(
        canonical=name_stages(rows, in_file=True),
        match=matched["match"],
        is_last=matched["is_last"],
        transfer=np.where(is_split, shortest, 0.0),
        wait=np.where(is_split, duration - shortest, 0.0),
        alone=np.where(is_split, 0.0, duration),
    )
    return number_step_rows(rows, steps)
