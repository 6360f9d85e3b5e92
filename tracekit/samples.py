"""From recorded values to samples: one value a step of the whole job, grouped by run.

Ranks are reduced first, as they do not repeat a measurement: they are parts of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, NamedTuple

import pandas as pd

from tracekit.metric_kinds import METRICS, STEP_TIME, Reduction

COLUMNS = ("run", "role", "rank", "step", "part", "stage", "name", "value")
"""What is read of recorded values."""

_CAPTURE = re.compile(r"capture\d+\Z")

Key = tuple[str, str | None, str | None]
"""A metric's name, role and stage."""

StepId = tuple[str, int | None, str | None]
"""Run, step number, and the part of the run where there is no number or several captures."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One metric on one side: for each run the values of its steps, both in order."""

    key: Key
    runs: tuple[str, ...]
    steps: tuple[tuple[StepId, ...], ...]
    values: tuple[tuple[float, ...], ...]


def samples(values: pd.DataFrame) -> dict[Key, Samples]:
    """Every metric of one side that is known by name, from its recorded values (`COLUMNS`).

    A process that was captured several times gives one run per capture: windows minutes apart differ
    as launches do.
    """
    rows = _known(values)
    captures = {part for part in {row.part for row in rows} if part and _CAPTURE.match(part)}
    # A step told of as a whole was one, however many captures hold pieces of it.
    whole = {
        (row.run, row.step)
        for row in rows
        if row.name == STEP_TIME and row.step is not None and row.part not in captures
    }
    pieces: dict[Key, dict[tuple[str, StepId], dict[int | None, list[float]]]] = {}
    for row in rows:
        again = row.part in captures and (row.run, row.step) not in whole
        step: StepId = (row.run, row.step, row.part if again or row.step is None else None)
        replicate = f"{row.run} {row.part}" if again else row.run
        of_metric = pieces.setdefault((row.name, row.role, row.stage), {})
        of_metric.setdefault((replicate, step), {}).setdefault(row.rank, []).append(row.value)
    return {key: _samples(key, pieces[key]) for key in sorted(pieces, key=_in_order)}


class _Row(NamedTuple):
    run: str
    role: str | None
    rank: int | None
    step: int | None
    part: str | None
    stage: str | None
    name: str
    value: float


def _known(values: pd.DataFrame) -> list[_Row]:
    """The rows of metrics that are known by name, with None for what is missing."""
    known = values[values["name"].isin(list(METRICS)) & values["value"].notna()]
    kinds = (str, str, int, int, str, str, str, float)
    columns = []
    for kind, name in zip(kinds, COLUMNS, strict=True):
        # A value is converted once, however many rows have it.
        number, distinct = pd.factorize(known[name])
        texts = [*(kind(value) for value in distinct), None]
        columns.append([texts[at] for at in number.tolist()])
    return [_Row(*row) for row in zip(*columns, strict=True)]


def _samples(
    key: Key, found: Mapping[tuple[str, StepId], Mapping[int | None, list[float]]]
) -> Samples:
    """One metric in the order of runs and steps: pieces of a rank reduced, then the ranks of a step."""
    kind = METRICS[key[0]]
    runs: dict[str, list[tuple[StepId, float]]] = {}
    for replicate, step in sorted(found, key=lambda at: (at[0], _in_order(at[1][1:]))):
        ranks = [_reduced(one, kind.pieces) for one in found[replicate, step].values()]
        runs.setdefault(replicate, []).append((step, _reduced(ranks, kind.ranks)))
    return Samples(
        key,
        tuple(runs),
        tuple(tuple(step for step, _ in pairs) for pairs in runs.values()),
        tuple(tuple(value for _, value in pairs) for pairs in runs.values()),
    )


def _reduced(values: list[float], how: Reduction) -> float:
    """Several values as one, whatever their order."""
    if len(values) == 1:
        return values[0]
    return max(values) if how == "max" else fsum(values) / (len(values) if how == "mean" else 1)


def _in_order(key: Sequence[str | int | None]) -> tuple[tuple[bool, Any], ...]:
    """A key by which missing values come last."""
    return tuple((value is None, value if value is not None else 0) for value in key)


def step_times(found: Mapping[Key, Samples]) -> Samples | None:
    """The samples of the step itself, None where no step was recorded."""
    return found.get((STEP_TIME, None, None))
