"""Classes of work per canonical stage, over ranks, GPUs and steps: the input of rules about operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from tracekit.job.frames import (
    apart,
    canonical_stages,
    in_run,
    ordered,
    same_text,
    share_of,
    summed,
    text_or_none,
)
from tracekit.job.stages.windows import Owner, StageWindow, recorded_steps_of
from tracekit.model.keys import records
from tracekit.model.records import dataclass
from tracekit.model.report import Place
from tracekit.model.trace import Measurements

MAX_NAMED = 3
"""Most stages with one cause that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One class of work of one stage: `busy_ns` out of `whole_ns`, both summed over the steps of its window.

    Each device counts its own steps. A process without a recorded device counts its own.
    """

    window: StageWindow
    busy_ns: int
    whole_ns: int
    count: int
    on_gpu: bool
    top: str | None
    parts: tuple[StageWork, ...] = ()
    """The merged stages, where there are several."""

    @property
    def ratio(self) -> float | None:
        """Share of the stage's work; None where it has none."""
        return share_of(self.busy_ns, self.whole_ns)

    def per_step(self, value: float) -> tuple[int, float | None]:
        """Average a value: (ns per step and GPU (process), the same as a share of the step)."""
        each, ratio = self.window.per_step(value)
        return round(each), ratio

    @property
    def stages(self) -> tuple[StageWork, ...]:
        """The single stages, the one with most work first."""
        return self.parts or (self,)

    @property
    def places(self) -> tuple[Place, ...]:
        """Places of the single stages, each with its top name."""
        return tuple(replace(work.window.place, name=work.top) for work in self.stages)


def by_stage(
    measured: Measurements, kind: str, of: str = "all", table: str = "work_classes"
) -> list[StageWork]:
    """List the work of class `kind` of every (run, role, stage) that has any, with class `of` as its whole."""
    works = []
    for window, part in measured.derived(_Parts(table)):
        classes = part["class"].to_numpy(object)
        is_kind = classes == kind
        if not is_kind.any():
            continue
        chosen, busy_ns = part[is_kind], part["busy_ns"].to_numpy(np.int64)
        works.append(
            StageWork(
                window,
                int(busy_ns[is_kind].sum()),
                int(busy_ns[classes == of].sum()),
                int(chosen["count"].sum()),
                bool(chosen["device"].notna().any()),
                _top(chosen),
            )
        )
    return works


def together(measured: Measurements, works: Sequence[StageWork]) -> list[StageWork]:
    """Merge the stages of each (run, role) into one, named by those with most work first.

    The cost of one cause in several stages is one finding.
    """
    by_owner: dict[Owner, list[StageWork]] = {}
    for work in works:
        by_owner.setdefault(work.window.owner, []).append(work)
    return list(map(partial(_as_one, measured), by_owner.values()))


def _as_one(measured: Measurements, works: list[StageWork]) -> StageWork:
    """Merge these stages of one owner."""
    if len(works) == 1:
        return works[0]
    most_first = sorted(works, key=lambda work: -work.busy_ns)
    largest = most_first[0]
    run = in_run(measured, largest.window.run)
    name = named_together([work.window.name.removesuffix(run) for work in most_first]) + run
    return replace(
        largest,
        window=replace(largest.window, canonical=None, name=name),
        busy_ns=sum(work.busy_ns for work in works),
        whole_ns=sum(work.whole_ns for work in works),
        count=sum(work.count for work in works),
        parts=tuple(most_first),
    )


def named_together(stages: Sequence[str]) -> str:
    """Phrase the stages of one finding.

    >>> named_together(["forward"]), named_together(["forward", "backward"])
    ('forward', 'forward and backward')
    >>> named_together(["a", "b", "c", "d", "e"])
    'a, b, c and 2 other stages'
    """
    names = list(stages)
    if len(names) > MAX_NAMED + 1:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} other stages"]
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


@dataclass(frozen=True)
class _Parts:
    """Function of measurements that is equal for equal tables, which makes `Measurements.derived` cache it."""

    table: str

    def __call__(self, measured: Measurements) -> list[tuple[StageWindow, pd.DataFrame]]:
        """List the rows of the table in every (run, role, stage)."""
        rows = measured[self.table]
        rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
        parts = []
        for of_owner in apart(rows, ["run", "role"]):
            (run, role) = next(records(of_owner, ["run", "role"]))
            steps = recorded_steps_of(measured, of_owner)
            rest = "the rest" if of_owner["canonical"].notna().any() else "the step"
            for part in apart(of_owner, ["canonical"]):
                canonical = text_or_none(part["canonical"].iloc[0])
                name = (canonical or rest) + in_run(measured, run)
                parts.append((StageWindow(run, role, canonical, name, steps), part))
        return parts


def _top(rows: pd.DataFrame) -> str | None:
    """Find the name with most time; each group counts for the name that leads it."""
    named = rows[rows["top"].notna()]
    if not len(named):
        return None
    sums = summed(named, ["top"], ["busy_ns"])
    return str(ordered(sums, busy_ns=False, top=True)["top"].iloc[0])


def of_run(measured: Measurements, table: str, run: object) -> pd.DataFrame:
    """Select the rows of one run in a table."""
    rows = measured[table]
    return rows[same_text(rows["run"], run)]
