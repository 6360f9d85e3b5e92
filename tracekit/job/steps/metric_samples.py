"""Samples of metrics: one value per step of the whole job, grouped by run.

Ranks are reduced first: they are parts of one measurement, not repetitions of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import to_int_or_none
from tracekit.model.metrics import METRICS, STEP_TIME, Reduction
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import Ints, group_rows_by, list_python_values

COLUMNS = ("run", "role", "rank", "step", "part", "stage", "name", "value")
"""Columns read from recorded values."""

_CAPTURE = re.compile(r"capture\d+\Z")

Key = tuple[str, str | None, str | None]
"""Name, role and stage of a metric."""

StepId = tuple[str, int | None, str | None]
"""Run, step number, and the part of the run where there is no number or several captures."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """One metric on one side: for each run the values of its steps, both in order."""

    key: Key
    runs: tuple[str, ...]
    steps: tuple[tuple[StepId, ...], ...]
    values: tuple[tuple[float, ...], ...]


def collect_metric_samples(values: pd.DataFrame) -> dict[Key, MetricSamples]:
    """Collect the samples of every known metric of one side from its recorded values (`COLUMNS`).

    A process that was captured several times gives one run per capture: windows minutes apart differ as much as separate
    launches.
    """
    rows = values.loc[values["name"].isin(list(METRICS)) & values["value"].notna(), [*COLUMNS]]
    rows = rows.assign(again=_find_recaptured_values(rows))
    rows["part"] = rows["part"].astype(object).where(rows["again"] | rows["step"].isna(), None)
    number, first = group_rows_by(rows, ["name", "role", "stage", "run", "step", "part", "again"])
    reduced = _reduce_metric_ranks(rows, number, first)
    pieces: dict[Key, dict[tuple[str, StepId], float]] = {}
    keys = [_list_sample_key_texts(rows[name].array[first]) for name in ("name", "role", "stage", "run", "part")]
    steps = [to_int_or_none(step) for step in rows["step"].array[first]]
    is_again = rows["again"].to_numpy(np.bool_)[first].tolist()
    for value, name, role, stage, run, part, step, several in zip(reduced, *keys, steps, is_again, strict=True):
        replicate = f"{run} {part}" if several else run
        of_metric = pieces.setdefault((str(name), role, stage), {})
        of_metric[str(replicate), (str(run), step, part)] = value
    return {key: _order_metric_samples(key, pieces[key]) for key in sorted(pieces, key=make_missing_last_key)}


def _find_recaptured_values(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the values of repeated captures whose step has no value as a whole."""
    # A step with a value as a whole is one step, however many captures have pieces of it.
    parts, distinct = pd.factorize(rows["part"])
    captured = np.array([*(bool(_CAPTURE.match(str(p))) for p in distinct), False], np.bool_)[parts]
    is_whole = (rows["name"] == STEP_TIME) & rows["step"].notna() & ~captured
    step, _ = group_rows_by(rows, ["run", "step"])
    return captured & ~np.isin(step, step[is_whole.to_numpy(np.bool_)])


def _list_sample_key_texts(keys: Any) -> list[str | None]:
    """List keys as text, None where missing."""
    return [None if key is None else str(key) for key in list_python_values(keys)]


def _reduce_metric_ranks(rows: pd.DataFrame, number: Ints, first: Ints) -> list[float]:
    """Reduce the rows of each number to one value: first the pieces of each rank, then the ranks."""
    kinds = [METRICS[name] for name in rows["name"].array[first]]
    keys = pd.DataFrame({"number": number, "rank": rows["rank"].array})
    of_rank, first_of_rank = group_rows_by(keys, ["number", "rank"])
    of_number = number[first_of_rank]
    pieces = [kinds[number_at].pieces for number_at in of_number.tolist()]
    ranks = _reduce_value_groups(rows["value"].to_numpy(np.float64), of_rank, pieces)
    return _reduce_value_groups(np.array(ranks, np.float64), of_number, [kind.ranks for kind in kinds])


def _reduce_value_groups(values: npt.NDArray[np.float64], group: Ints, how: Sequence[Reduction]) -> list[float]:
    """Reduce the values of each group to one; `how` has the reduction of each group."""
    ordered = values[np.argsort(group, kind="stable")]
    ends = np.cumsum(np.bincount(group, minlength=len(how)))
    starts = ends - np.diff(ends, prepend=0)
    values_of: list[float] = ordered[starts].tolist()
    for several in np.flatnonzero(ends - starts > 1).tolist():
        values_of[several] = _reduce_values(ordered[starts[several] : ends[several]].tolist(), how[several])
    return values_of


def _order_metric_samples(key: Key, values_by_step: Mapping[tuple[str, StepId], float]) -> MetricSamples:
    """Order the values of one metric by run and step."""
    steps: dict[str, list[StepId]] = {}
    values: dict[str, list[float]] = {}
    for replicate, step in sorted(values_by_step, key=lambda pair: (pair[0], make_missing_last_key(pair[1][1:]))):
        steps.setdefault(replicate, []).append(step)
        values.setdefault(replicate, []).append(values_by_step[replicate, step])
    return MetricSamples(
        key,
        tuple(steps),
        tuple(tuple(of_run) for of_run in steps.values()),
        tuple(tuple(of_run) for of_run in values.values()),
    )


def _reduce_values(values: list[float], how: Reduction) -> float:
    """Reduce several values to one, independent of their order."""
    if how == "max":
        return max(values)
    total = fsum(values)
    return total / len(values) if how == "mean" else total


def make_missing_last_key(key: Iterable[object]) -> tuple[tuple[bool, Any], ...]:
    """Make a sort key in which missing values come last."""
    return tuple((value is None, value if value is not None else 0) for value in key)
